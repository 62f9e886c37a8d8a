"""Times are told as a person reads them."""

from __future__ import annotations

import pytest

from walferry.clock import duration, iso


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3100, "51 min 40 s"), (3599.9, "1 h 00 min"),
        (86_379, "23 h 59 min"), (360_000, "100 h 00 min"),
    ],
)  # fmt: skip
def test_a_time_is_told_in_its_two_largest_units(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_a_recorded_time_is_told_as_iso_8601() -> None:
    assert iso(1_795_772_467_999) == "2026-11-27T09:41:07Z"
