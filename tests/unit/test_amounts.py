"""Amounts read as English."""

import pytest

from walferry.amounts import amount, amount_of_each, first_of, rows_differ


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows")])
def test_one_thing_is_singular_and_any_other_number_is_plural(number: int, text: str) -> None:
    assert amount(number, "row") == text


def test_a_clause_has_its_verb_in_the_same_number() -> None:
    assert [amount(n, "log was", "logs were") for n in (1, 3)] == ["1 log was", "3 logs were"]
    assert [rows_differ(n) for n in (0, 1, 7)] == ["0 rows differ", "1 row differs", "7 rows differ"]


def test_amounts_of_each_are_in_the_order_of_names() -> None:
    assert amount_of_each({"orders": 1, "events": 3}, "row") == "3 rows of events, 1 row of orders"


def test_of_many_names_the_first_ones_are_told() -> None:
    assert first_of([str(number) for number in range(8)]) == "0, 1, 2, 3, 4 and 3 more"
    assert first_of(["a"]) == "a"
    assert first_of(["a", "b", "c"], "; ", most=2) == "a; b and 1 more"
