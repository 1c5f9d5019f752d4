"""The families of the embedded corpus: what a phrase can say, drawn at random.

A family draws a meaning: names out of bounded inventories, numbers with few digits, and one rule of
`cldr.Language` that says it. Saying it in two languages gives a pair. The families know neither the
target language nor the splits.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from model.corpora.cldr import Language, ListStyle, RelativeUnit


def _codes(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TERRITORIES = _codes(
    "AR AT AU BE BG BR CA CH CL CN CO CY CZ DE DK EE EG ES FI FR GB GR HR HU ID IE IL IN IS IT JP "
    "KE KR MA MX NG NL NO NZ PE PH PL PT RO RS SA SE SK TH TR UA US VN ZA"
)
LANGUAGES = _codes(
    "af ar bg ca cs cy da de el en es et fa fi fr ga he hi hr hu hy id is it ja ka ko la lt lv mn "
    "nl pl pt ro ru sk sl sq sv sw th tr uk vi zh"
)
CURRENCIES = _codes(
    "USD EUR GBP JPY CHF CNY INR CAD AUD NZD SEK NOK DKK PLN CZK HUF TRY BRL MXN KRW ZAR ILS THB "
    "RON"
)
SYMBOLS = ("USD", "EUR", "GBP", "JPY")
UNITS = _codes(
    "duration-second duration-minute duration-hour duration-day duration-week duration-month "
    "duration-year length-millimeter length-centimeter length-meter length-kilometer length-inch "
    "length-foot length-yard length-mile mass-gram mass-kilogram mass-pound mass-ounce mass-tonne "
    "volume-milliliter volume-liter volume-gallon volume-teaspoon volume-tablespoon "
    "area-square-meter area-square-kilometer area-hectare speed-kilometer-per-hour "
    "speed-mile-per-hour speed-meter-per-second temperature-celsius temperature-fahrenheit "
    "digital-megabyte digital-gigabyte power-watt electric-volt"
)
RELATIVE_UNITS: tuple[RelativeUnit, ...] = (
    "second", "minute", "hour", "day", "week", "month", "year"
)  # fmt: skip
WEEKDAY_FIELDS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LIST_STYLES: tuple[ListStyle, ...] = ("standard", "or")

_FIRST_DAY = datetime.date(1950, 1, 1)
_DAYS = (datetime.date(2050, 1, 1) - _FIRST_DAY).days


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a phrase says, before any language.

    say: gives the phrase in a language.
    names: the CLDR names it uses, each in the form it uses ("unit length-mile one"); a phrase may
        only be held out of training where all of them are left in it.
    """

    say: Callable[[Language], str]
    names: tuple[str, ...]


def full_dates(random: Random) -> Meaning:
    """Tuesday, March 5, 2024."""
    date = _date(random)
    names = (f"weekday {date.weekday()}", f"month {date.month}")
    return Meaning(say=lambda language: language.full_date(date), names=names)


def partial_dates(random: Random) -> Meaning:
    """Tuesday, March 5; March 5, 2024; March 5; March 2024; 1st quarter 2024."""
    date = _date(random)
    month = f"month {date.month}"
    choice = random.random()
    if choice < 0.4:
        return Meaning(
            say=lambda language: language.weekday_and_day(date),
            names=(f"weekday {date.weekday()}", month),
        )
    if choice < 0.65:
        return Meaning(say=lambda language: language.long_date(date), names=(month,))
    if choice < 0.75:
        return Meaning(say=lambda language: language.month_and_day(date), names=(month,))
    if choice < 0.9:
        return Meaning(say=lambda language: language.month_and_year(date), names=(month,))
    return Meaning(
        say=lambda language: language.quarter_and_year(date),
        names=(f"quarter {(date.month + 2) // 3}",),
    )


def times(random: Random) -> Meaning:
    """Monday 3:30 PM; 3:30 PM."""
    time = _time(random)
    if random.random() < 0.2:
        return Meaning(say=lambda language: language.time(time), names=(_hour(time),))
    weekday = random.randrange(7)
    return Meaning(
        say=lambda language: language.weekday_and_time(weekday, time),
        names=(f"weekday {weekday}", _hour(time)),
    )


def appointments(random: Random) -> Meaning:
    """tomorrow at 3:30 PM; last Monday at 9:05 AM."""
    time = _time(random)
    field = "day" if random.random() < 0.35 else random.choice(WEEKDAY_FIELDS)
    offset = random.choice((-1, 0, 1))
    return Meaning(
        say=lambda language: language.relative_and_time(field, offset, time),
        names=(f"relative {field} {offset}", _hour(time)),
    )


def relative_times(random: Random) -> Meaning:
    """in 3 days; 3 days ago."""
    unit, number = random.choice(RELATIVE_UNITS), _whole(random, 999)
    past = random.random() < 0.5
    return Meaning(
        say=lambda language: language.relative(number, unit, past=past),
        names=(_counted(f"relative {'past' if past else 'future'}", unit, Decimal(number)),),
    )


def intervals(random: Random) -> Meaning:
    """Mar 5 – 9, 2024; Mar 5 – May 9; 9:30 – 11:00 AM; Mar – May 2024; 2019 – 2024."""
    choice = random.random()
    if choice < 0.35:
        clock = sorted((_time(random, step=5), _time(random, step=5)))
        if clock[0] == clock[1]:
            return intervals(random)
        return Meaning(
            say=lambda language: language.time_interval(clock[0], clock[1]),
            names=(_hour(clock[0]), _hour(clock[1])),
        )
    first = _date(random)
    if choice < 0.75:
        start, end = _two_days(random, first.year)
        year = random.random() < 0.4
        return Meaning(
            say=lambda language: language.date_interval(start, end, year=year),
            names=(f"short month {start.month}", f"short month {end.month}"),
        )
    if choice < 0.9:
        months = sorted(random.sample(range(1, 13), 2))
        return Meaning(
            say=lambda language: language.month_interval(
                first.replace(day=1, month=months[0]), first.replace(day=1, month=months[1])
            ),
            names=tuple(f"short month {month}" for month in months),
        )
    last = first.replace(day=1, year=first.year + 1 + random.randrange(40))
    return Meaning(
        say=lambda language: language.year_interval(first.replace(day=1), last),
        names=("years",),
    )


def units(random: Random) -> Meaning:
    """3 kilometers; 2.5 liters; 1,250 miles per hour."""
    unit, number = random.choice(UNITS), _number(random)
    return Meaning(
        say=lambda language: language.unit(number, unit), names=(_counted("unit", unit, number),)
    )


def measures(random: Random) -> Meaning:
    """3 kilometers and 5 minutes; 4 liters or 1 gallon."""
    pair = random.sample(UNITS, 2)
    # Often 1, since nowhere else is a singular met in more than one phrase.
    numbers = [Decimal(1 if random.random() < 0.3 else _whole(random, 99)) for _ in pair]
    style = random.choice(LIST_STYLES)
    return Meaning(
        say=lambda language: language.join(
            [language.unit(number, unit) for number, unit in zip(numbers, pair, strict=True)], style
        ),
        names=tuple(
            _counted("unit", unit, number) for number, unit in zip(numbers, pair, strict=True)
        ),
    )


def money(random: Random) -> Meaning:
    """€3.50; 3.50 Swiss francs; 12 Polish zlotys."""
    cents = Decimal(random.randrange(1, 10000)) / 100
    if random.random() < 0.4:
        symbol = random.choice(SYMBOLS)
        amount = Decimal(_whole(random, 9999)) if symbol == "JPY" else cents
        return Meaning(
            say=lambda language: language.money(amount, symbol), names=(f"symbol {symbol}",)
        )
    currency = random.choice(CURRENCIES)
    whole = currency in ("JPY", "KRW") or random.random() < 0.6
    number = Decimal(_whole(random, 9999)) if whole else cents
    return Meaning(
        say=lambda language: language.money_name(number, currency),
        names=(_counted("currency", currency, number),),
    )


def percentages(random: Random) -> Meaning:
    """12%; 12.5%; -3.25%."""
    choice = random.random()
    if choice < 0.25:
        share = Decimal(_whole(random, 999)) / 100
    elif choice < 0.6:
        share = Decimal(random.randrange(1, 1000)) / 1000
    else:
        share = Decimal(random.randrange(1, 10000)) / 10000
    share = (-share if random.random() < 0.2 else share).normalize()
    return Meaning(say=lambda language: language.percent(share), names=("percent",))


def compact_numbers(random: Random) -> Meaning:
    """3.4 million; 12 thousand; 345 billion."""
    power = random.choice((3, 6, 9, 12))
    tenths = _whole(random, 999) if random.random() < 0.5 else 10 * _whole(random, 999)
    number = tenths * 10 ** (power - 1)
    if number < 1000:
        return compact_numbers(random)
    name = _counted("power", str(power), Decimal(tenths) / 10)
    return Meaning(say=lambda language: language.compact(number), names=(name,))


def number_words(random: Random) -> Meaning:
    """three thousand four hundred twenty-one; twenty-first."""
    if random.random() < 0.25:
        place = _whole(random, 999)
        return Meaning(say=lambda language: language.ordinal_words(place), names=("ordinal",))
    number = _whole(random, 9999)
    return Meaning(say=lambda language: language.words(number), names=("cardinal",))


def territories(random: Random) -> Meaning:
    """France; Italy or Japan; Germany, France, and Spain."""
    codes = random.sample(TERRITORIES, _list_size(random))
    return _list(random, codes, "territory", lambda language, code: language.territory(code))


def languages(random: Random) -> Meaning:
    """German; Dutch or Danish; German, French, and Spanish."""
    codes = random.sample(LANGUAGES, _list_size(random))
    return _list(random, codes, "language", lambda language, code: language.language(code))


def lists(random: Random) -> Meaning:
    """Monday, Tuesday, or Friday; March and May; US Dollar, Euro, and Swiss Franc."""
    choice = random.random()
    if choice < 0.25:
        days = [str(day) for day in random.sample(range(7), random.choice((2, 3, 3)))]
        return _list(random, days, "weekday", lambda language, day: language.weekday(int(day)))
    if choice < 0.5:
        months = [str(month) for month in random.sample(range(1, 13), random.choice((2, 3, 3)))]
        return _list(random, months, "month", lambda language, month: language.month(int(month)))
    codes = random.sample(CURRENCIES, _list_size(random))
    return _list(random, codes, "currency name", lambda language, code: language.currency(code))


FAMILIES: Mapping[str, Callable[[Random], Meaning]] = {
    "full-dates": full_dates,
    "partial-dates": partial_dates,
    "times": times,
    "appointments": appointments,
    "relative-times": relative_times,
    "intervals": intervals,
    "units": units,
    "measures": measures,
    "money": money,
    "percentages": percentages,
    "compact-numbers": compact_numbers,
    "number-words": number_words,
    "territories": territories,
    "languages": languages,
    "lists": lists,
}
"""Name of a family -> what draws a meaning of it."""


def _list(
    random: Random, codes: Sequence[str], kind: str, name: Callable[[Language, str], str]
) -> Meaning:
    style = random.choice(LIST_STYLES)
    return Meaning(
        say=lambda language: language.join([name(language, code) for code in codes], style),
        names=tuple(f"{kind} {code}" for code in codes),
    )


def _list_size(random: Random) -> int:
    return random.choice((1, 2, 2, 2, 3, 3))


def _counted(kind: str, name: str, number: Decimal) -> str:
    """A name in the form that a number gives it. French has the singular for all below 2."""
    form = "one" if number == 1 else "below two" if number < 2 else "other"
    return f"{kind} {name} {form}"


def _whole(random: Random, limit: int) -> int:
    """A whole number from 1 to `limit`: 1 often, because its grammar differs, then by digits."""
    choice = random.random()
    if choice < 0.08:
        return 1
    digits = 1 if choice < 0.3 else 2 if choice < 0.65 else 3 if choice < 0.9 else 4
    return random.randrange(1, min(10**digits - 1, limit) + 1)


def _number(random: Random) -> Decimal:
    """A whole number up to 9,999, or, one time in four, one decimal."""
    if random.random() < 0.75:
        return Decimal(_whole(random, 9999))
    tenths = random.randrange(1, 1000)
    return Decimal(tenths) / 10 if tenths % 10 else Decimal(tenths // 10)


def _date(random: Random) -> datetime.date:
    return _FIRST_DAY + datetime.timedelta(days=random.randrange(_DAYS))


def _two_days(random: Random, year: int) -> tuple[datetime.date, datetime.date]:
    """Two days of one year, the first before the second, as often as not in one month."""
    first = datetime.date(year, random.randrange(1, 13), random.randrange(1, 28))
    if random.random() < 0.5 or first.month == 12:
        return first, first.replace(day=random.randrange(first.day + 1, 29))
    month = random.randrange(first.month + 1, 13)
    return first, datetime.date(year, month, random.randrange(1, 29))


def _time(random: Random, *, step: int = 1) -> datetime.time:
    return datetime.time(random.randrange(24), random.randrange(0, 60, step))


def _hour(time: datetime.time) -> str:
    return f"hour {time.hour}"
