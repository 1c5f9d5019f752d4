"""What each rule says, in literals that were checked by hand."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal

import pytest

from model.corpora.cldr import Language, versions

Say = Callable[[Language], str]

_DAY = datetime.date(2024, 3, 5)
_NINTH = datetime.date(2024, 3, 9)
_MAY = datetime.date(2024, 5, 9)
_LATER = datetime.date(2028, 1, 1)
_TIME = datetime.time(15, 30)

# (the rule, English, German, French, Chinese)
TABLE: list[tuple[Say, str, str, str, str]] = [
    (
        lambda x: x.relative(3, "day", past=False),
        "in 3 days", "in 3 Tagen", "dans 3 jours", "3天后",
    ),
    (
        lambda x: x.relative(1, "month", past=True),
        "1 month ago", "vor 1 Monat", "il y a 1 mois", "1个月前",
    ),
    (
        lambda x: x.relative(90, "minute", past=True),
        "90 minutes ago", "vor 90 Minuten", "il y a 90 minutes", "90分钟前",
    ),
    (
        lambda x: x.full_date(_DAY),
        "Tuesday, March 5, 2024", "Dienstag, 5. März 2024", "mardi 5 mars 2024",
        "2024年3月5日星期二",
    ),
    (lambda x: x.long_date(_DAY), "March 5, 2024", "5. März 2024", "5 mars 2024", "2024年3月5日"),
    (
        lambda x: x.weekday_and_day(_DAY),
        "Tuesday, March 5", "Dienstag, 5. März", "mardi 5 mars", "3月5日星期二",
    ),
    (lambda x: x.month_and_day(_DAY), "March 5", "5. März", "5 mars", "3月5日"),
    (lambda x: x.month_and_year(_DAY), "March 2024", "März 2024", "mars 2024", "2024年3月"),
    (
        lambda x: x.quarter_and_year(_DAY),
        "1st quarter 2024", "1. Quartal 2024", "1er trimestre 2024", "2024年第1季度",
    ),
    (lambda x: x.time(_TIME), "3:30 PM", "15:30", "15:30", "15:30"),
    (lambda x: x.time(datetime.time(0, 5)), "12:05 AM", "00:05", "00:05", "00:05"),
    (
        lambda x: x.weekday_and_time(0, _TIME),
        "Monday 3:30 PM", "Montag, 15:30", "lundi 15:30", "星期一15:30",
    ),
    (
        lambda x: x.relative_and_time("day", 1, _TIME),
        "tomorrow at 3:30 PM", "morgen um 15:30", "demain à 15:30", "明天 15:30",
    ),
    (
        lambda x: x.relative_and_time("mon", -1, _TIME),
        "last Monday at 3:30 PM", "letzten Montag um 15:30", "lundi dernier à 15:30",
        "上周一 15:30",
    ),
    (
        lambda x: x.time_interval(datetime.time(9, 30), datetime.time(11)),
        "9:30\u2009–\u200911:00\u202fAM", "09:30–11:00 Uhr", "09:30\u2009–\u200911:00",
        "09:30–11:00",
    ),
    (
        lambda x: x.date_interval(_DAY, _NINTH, year=True),
        "Mar 5\u2009–\u20099, 2024", "5.–9. März 2024", "5–9 mars 2024",
        "2024年3月5日\u2009–\u20099日",
    ),
    (
        lambda x: x.date_interval(_DAY, _MAY, year=False),
        "Mar 5\u2009–\u2009May 9", "5. März\u2009–\u20099. Mai", "5 mars\u2009–\u20099 mai",
        "3月5日至5月9日",
    ),
    (
        lambda x: x.month_interval(_DAY, _MAY),
        "Mar\u2009–\u2009May 2024", "März–Mai 2024", "mars–mai 2024", "2024年3月\u2009–\u20095月",
    ),
    (
        lambda x: x.year_interval(_DAY, _LATER),
        "2024\u2009–\u20092028", "2024–2028", "2024–2028", "2024–2028年",
    ),
    (
        lambda x: x.unit(Decimal("2.5"), "length-kilometer"),
        "2.5 kilometers", "2,5 Kilometer", "2,5\xa0kilomètres", "2.5公里",
    ),
    (
        lambda x: x.unit(Decimal(1250), "speed-mile-per-hour"),
        "1,250 miles per hour", "1.250 Meilen pro Stunde", "1\u202f250\xa0miles par heure",
        "每小时1,250英里",
    ),
    (
        lambda x: x.join([x.unit(Decimal(n), "duration-month") for n in (1, 3)], "or"),
        "1 month or 3 months", "1 Monat oder 3 Monate", "1\xa0mois ou 3\xa0mois", "1个月或3个月",
    ),
    (lambda x: x.money(Decimal("3.5"), "EUR"), "€3.50", "3,50\xa0€", "3,50\xa0€", "€3.50"),
    (lambda x: x.money(Decimal(350), "JPY"), "¥350", "350\xa0¥", "350\xa0JPY", "JP¥350"),
    (
        lambda x: x.money_name(Decimal("3.5"), "CHF"),
        "3.50 Swiss francs", "3,50 Schweizer Franken", "3,50 francs suisses", "3.50瑞士法郎",
    ),
    (
        lambda x: x.money_name(Decimal(1), "GBP"),
        "1 British pound", "1 Britisches Pfund", "1 livre sterling", "1英镑",
    ),
    (lambda x: x.percent(Decimal("0.125")), "12.5%", "12,5\xa0%", "12,5\xa0%", "12.5%"),
    (lambda x: x.percent(Decimal("-0.0325")), "-3.25%", "-3,25\xa0%", "-3,25\xa0%", "-3.25%"),
    (
        lambda x: x.compact(3_400_000),
        "3.4 million", "3,4 Millionen", "3,4 millions", "340万",
    ),
    (
        lambda x: x.compact(345_000_000),
        "345 million", "345 Millionen", "345 millions", "3.45亿",
    ),
    (
        lambda x: x.words(3421),
        "three thousand four hundred twenty-one", "dreitausendvierhunderteinundzwanzig",
        "trois mille quatre cent vingt-et-un", "三千四百二十一",
    ),
    (lambda x: x.words(80), "eighty", "achtzig", "quatre-vingts", "八十"),
    (
        lambda x: x.ordinal_words(21),
        "twenty-first", "einundzwanzigste", "vingt-et-unième", "第二十一",
    ),
    (
        lambda x: x.join([x.territory(code) for code in ("IT", "JP", "TR")], "standard"),
        "Italy, Japan, and Türkiye", "Italien, Japan und Türkei", "Italie, Japon et Turquie",
        "意大利、日本和土耳其",
    ),
    (
        lambda x: x.join([x.language(code) for code in ("de", "zh")], "or"),
        "German or Chinese", "Deutsch oder Chinesisch", "allemand ou chinois", "德语或中文",
    ),
    (lambda x: x.currency("USD"), "US Dollar", "US-Dollar", "dollar des États-Unis", "美元"),
    (lambda x: f"{x.month(8)}", "August", "August", "août", "八月"),
    (lambda x: f"{x.weekday(6)}", "Sunday", "Sonntag", "dimanche", "星期日"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "code"), list(enumerate(("en", "de", "fr", "zh"))))
def test_rules_say_what_was_checked_by_hand(place: int, code: str) -> None:
    language = Language(code)
    assert [say(language) for say, *_ in TABLE] == [row[place] for _, *row in TABLE]


def test_number_words_have_no_soft_hyphens() -> None:
    for code in ("en", "de", "fr", "zh"):
        language = Language(code)
        text = "".join(language.words(n) + language.ordinal_words(n) for n in range(1, 1000, 7))
        assert "\u00ad" not in text


def test_versions_name_all_that_decides_the_text() -> None:
    found = versions()
    assert sorted(found) == ["babel", "cldr", "unicode-rbnf"]
    assert all(version[0].isdigit() for version in found.values())


@pytest.mark.parametrize("package", ["babel", "unicode_rbnf"])
def test_a_missing_library_names_the_extra(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from runtime.errors import MissingExtraError\n"
        "try: import model.corpora.phrases\n"
        "except MissingExtraError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == (
        f"the embedded corpus of phrases needs the package {package}, which is not installed; "
        "install it with: pip install -e '.[train]'\n"
    )
