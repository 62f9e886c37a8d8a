from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walferry.errors import UsageError
from walferry.hbase.rowkey import parse_row, shown_row


def test_row_keys_are_shown_as_the_shell_writes_them() -> None:
    assert shown_row(b"a\x00\xffz\\<") == r"a\x00\xFFz\x5C<"


@given(st.binary())
def test_what_is_shown_can_be_given_back(row: bytes) -> None:
    assert parse_row(shown_row(row)) == row


def test_other_characters_stand_for_themselves() -> None:
    assert parse_row("käse") == "käse".encode()


@pytest.mark.parametrize("text", ["a\\b", "\\x4", "\\xg0"])
def test_a_backslash_that_begins_no_byte_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write a backslash as .x5C"):
        parse_row(text)
