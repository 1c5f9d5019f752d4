"""One language's way to say a date, an amount or a name, as CLDR gives it.

Every method states one rule for all languages, so that the same call on two `Language` objects
gives a phrase and its translation. Nothing here knows of corpora, randomness or models. Strings are
CLDR's own, no-break and narrow spaces included.
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

from runtime.errors import MissingExtraError

try:
    import babel
    import babel.core
    import babel.dates
    import babel.lists
    import babel.numbers
    import babel.units
    import unicode_rbnf
except ImportError as error:
    raise MissingExtraError(
        error.name or "babel", "train", "the embedded corpus of phrases"
    ) from error

RelativeUnit = Literal["second", "minute", "hour", "day", "week", "month", "year"]
ListStyle = Literal["standard", "or"]

_SECONDS: dict[RelativeUnit, int] = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86400,
    "week": 7 * 86400,
    "month": 30 * 86400,
    "year": 365 * 86400,
}
_CARDINAL = {"fr": "spellout-cardinal-masculine", "zh": "spellout-cardinal"}
_ORDINAL = {"fr": "spellout-ordinal-masculine"}
_MONDAY = datetime.date(2024, 1, 1)


def versions() -> dict[str, str]:
    """The versions that decide what the phrases say: babel, its CLDR, unicode-rbnf."""
    return {
        "babel": importlib.metadata.version("babel"),
        "cldr": str(babel.core.get_cldr_version()),
        "unicode-rbnf": importlib.metadata.version("unicode-rbnf"),
    }


class Language:
    """CLDR's rules for one language, such as "en", "de", "fr" or "zh"."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._locale = babel.Locale.parse(code)
        self._rbnf = unicode_rbnf.RbnfEngine.for_language(code)
        self._clock = "hm" if "a" in self._locale.time_formats["short"].pattern else "Hm"

    # Numbers and amounts.

    def percent(self, share: Decimal) -> str:
        """12.5% for a share of 0.125, every digit kept."""
        return babel.numbers.format_percent(share, locale=self._locale, decimal_quantization=False)

    def compact(self, number: int) -> str:
        """3.4 million for 3,400,000; at most two decimals."""
        return babel.numbers.format_compact_decimal(
            number, format_type="long", locale=self._locale, fraction_digits=2
        )

    def unit(self, number: Decimal, unit: str) -> str:
        """3 kilometers for 3 and "length-kilometer"."""
        return babel.units.format_unit(number, unit, locale=self._locale)

    def money(self, amount: Decimal, currency: str) -> str:
        """€3.50, with the currency's own number of decimals."""
        return babel.numbers.format_currency(amount, currency, locale=self._locale)

    def money_name(self, amount: Decimal, currency: str) -> str:
        """3 euros, or 3.50 euros where the amount has decimals."""
        pattern = "#,##0" if amount == amount.to_integral_value() else "#,##0.00"
        return babel.numbers.format_currency(
            amount,
            currency,
            format=pattern,
            format_type="name",
            currency_digits=False,
            locale=self._locale,
        )

    def words(self, number: int) -> str:
        """forty-two for 42: the number as one counts."""
        return self._spell(number, _CARDINAL.get(self.code, "spellout-numbering"))

    def ordinal_words(self, number: int) -> str:
        """forty-second for 42."""
        return self._spell(number, _ORDINAL.get(self.code, "spellout-ordinal"))

    def _spell(self, number: int, ruleset: str) -> str:
        # CLDR marks where a long word may be broken; a phrase is not broken.
        spelled = self._rbnf.format_number(number, ruleset_names=[ruleset])
        return spelled.text_by_ruleset[ruleset].replace("\u00ad", "")

    # Names.

    def territory(self, code: str) -> str:
        return str(self._locale.territories[code])

    def language(self, code: str) -> str:
        return str(self._locale.languages[code])

    def currency(self, code: str) -> str:
        return babel.numbers.get_currency_name(code, locale=self._locale)

    def month(self, month: int) -> str:
        """The name of month 1 to 12, standing alone."""
        names = babel.dates.get_month_names("wide", context="stand-alone", locale=self._locale)
        return str(names[month])

    def weekday(self, weekday: int) -> str:
        """The name of weekday 0 (Monday) to 6, standing alone."""
        names = babel.dates.get_day_names("wide", context="stand-alone", locale=self._locale)
        return str(names[weekday])

    def join(self, items: Sequence[str], style: ListStyle) -> str:
        """a, b, and c (standard), or a, b, or c (or)."""
        return babel.lists.format_list(items, style=style, locale=self._locale)

    # Dates and times.

    def full_date(self, date: datetime.date) -> str:
        """Tuesday, March 5, 2024."""
        return babel.dates.format_date(date, "full", locale=self._locale)

    def long_date(self, date: datetime.date) -> str:
        """March 5, 2024."""
        return babel.dates.format_date(date, "long", locale=self._locale)

    def weekday_and_day(self, date: datetime.date) -> str:
        """Tuesday, March 5."""
        return self._pattern("MMMMEd").apply(date, self._locale)

    def month_and_day(self, date: datetime.date) -> str:
        """March 5."""
        return self._pattern("MMMMd").apply(date, self._locale)

    def month_and_year(self, date: datetime.date) -> str:
        """March 2024."""
        return self._pattern("yMMMM").apply(date, self._locale)

    def quarter_and_year(self, date: datetime.date) -> str:
        """1st quarter 2024."""
        return self._pattern("yQQQQ").apply(date, self._locale)

    def time(self, time: datetime.time) -> str:
        """3:30 PM, on the language's own clock."""
        return self._pattern(self._clock).apply(time, self._locale)

    def weekday_and_time(self, weekday: int, time: datetime.time) -> str:
        """Monday 3:30 PM."""
        day = _MONDAY + datetime.timedelta(days=weekday)
        instant = datetime.datetime.combine(day, time)
        return self._pattern("E" + self._clock).apply(instant, self._locale)

    def relative(self, number: int, unit: RelativeUnit, *, past: bool) -> str:
        """in 3 days, or 3 days ago."""
        seconds = number * _SECONDS[unit]
        return babel.dates.format_timedelta(
            datetime.timedelta(seconds=-seconds if past else seconds),
            granularity=unit,
            threshold=10**9,  # never a larger unit than the one asked for
            add_direction=True,
            locale=self._locale,
        )

    def relative_name(self, field: str, offset: int) -> str:
        """tomorrow for ("day", 1), last Monday for ("mon", -1)."""
        name = babel.dates.get_relative_name(field, offset, locale=self._locale)
        assert name is not None, f"CLDR has no {field} {offset:+d} in {self.code}"
        return name

    def relative_and_time(self, field: str, offset: int, time: datetime.time) -> str:
        """tomorrow at 3:30 PM."""
        formats = self._locale.datetime_formats_relative
        pattern = str(formats.get("long") or self._locale.datetime_formats["long"])
        day = self.relative_name(field, offset)
        return pattern.replace("'", "").replace("{0}", self.time(time)).replace("{1}", day)

    def time_interval(self, start: datetime.time, end: datetime.time) -> str:
        """9:30 – 11:00 AM."""
        return self._interval(start, end, self._clock)

    def date_interval(self, start: datetime.date, end: datetime.date, *, year: bool) -> str:
        """Mar 5 – 9, or Mar 5 – 9, 2024 with the year."""
        return self._interval(start, end, "yMMMd" if year else "MMMd")

    def month_interval(self, start: datetime.date, end: datetime.date) -> str:
        """Mar – May 2024."""
        return self._interval(start, end, "yMMM")

    def year_interval(self, start: datetime.date, end: datetime.date) -> str:
        """2019 – 2024."""
        return self._interval(start, end, "y")

    def _interval(
        self,
        start: datetime.date | datetime.time,
        end: datetime.date | datetime.time,
        skeleton: str,
    ) -> str:
        return babel.dates.format_interval(start, end, skeleton, locale=self._locale)

    @functools.cache  # noqa: B019 - a Language lives as long as its few patterns
    def _pattern(self, skeleton: str) -> babel.dates.DateTimePattern:
        """The pattern of a skeleton, with the weekday's name in full."""
        pattern = self._locale.datetime_skeletons[skeleton].pattern
        # A single E abbreviates the weekday; quoted text is left alone.
        parts = pattern.split("'")
        parts[::2] = [re.sub(r"(?<!E)E(?!E)", "EEEE", part) for part in parts[::2]]
        return babel.dates.parse_pattern("'".join(parts))
