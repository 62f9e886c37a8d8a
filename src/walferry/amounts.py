"""Amounts in sentences for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def amount(number: int, one: str, many: str = "") -> str:
    """A number and its noun: 1 row, 3 rows. `many` is the plural; by default it is `one` with an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def amount_of_each(counts: Mapping[str, int], one: str) -> str:
    """The amount of each key: 3 rows of events, 1 row of orders."""
    return ", ".join(f"{amount(number, one)} of {what}" for what, number in sorted(counts.items()))


def rows_differ(number: int) -> str:
    """So many rows differ, as a clause."""
    return amount(number, "row differs", "rows differ")


def first_of(names: Sequence[str], between: str = ", ", most: int = 5) -> str:
    """The first of these names, and how many more there are: a, b and 3 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{between.join(names[:most])}{more}"
