"""Whatever a file gives as an option: it fits, or OptionError tells of it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from runtime.errors import OptionError
from runtime.options import SearchOptions

NAMES = [field.name for field in dataclasses.fields(SearchOptions)]


HUGE = (10**400, -(10**400), 10**5000, float("inf"), float("nan"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sampling"])
def test_numbers_too_large_for_any_option(name: str) -> None:
    for value, sampling in itertools.product(HUGE, (False, True)):
        with pytest.raises(OptionError, match=rf"^{name} is .*; expected ") as error:
            SearchOptions.from_json({name: value, "sampling": sampling})
        assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"length_penalty": 10**400}, "length_penalty is a whole number of about 400 digits; exp"),
        ({"seed": 2**128}, "seed is a whole number of about 39 digits; expected a whole number of "
         "at least 0 and below 2**128"),
        ({"max_length": 2**31}, "expected a whole number of at least 1 and at most 2,147,483,647"),
        ({"beam_size": 10**400}, "expected a whole number of at least 1 and at most 1,000,000"),
    ],
)  # fmt: skip
def test_bounds_are_told(changes: dict[str, int], text: str) -> None:
    with pytest.raises(OptionError) as error:
        SearchOptions.from_json(changes)
    assert text in str(error.value)


def test_the_largest_are_taken() -> None:
    SearchOptions(seed=2**128 - 1, max_length=2**31 - 1, min_length=2**31 - 1)
