"""Rows of applied files are known to the process that applied them, up to a bound."""

from __future__ import annotations

from walferry.run.known_rows import KnownRows


def test_the_oldest_files_are_forgotten_when_there_are_too_many_rows() -> None:
    known = KnownRows(most_bytes=10)
    known.keep("first", "t1", b"1234")
    known.keep("first", "t2", b"12")
    known.keep("second", "t1", b"1234")
    known.keep("first", "t1", b"123456")  # again: it is among the newest now
    assert known.of("first", "t2") is None
    assert (known.of("second", "t1"), known.of("first", "t1")) == (b"1234", b"123456")
    known.keep("third", "t1", b"x" * 11)
    assert known.of("third", "t1") is None, "what is above the bound by itself is not kept"
    assert known.of("first", "t1") is None


def test_a_file_without_an_edit_is_known_to_have_none() -> None:
    known = KnownRows()
    known.keep("file", "t1", b"")
    assert known.of("file", "t1") == b""
    assert known.of("file", "t2") is None


def test_rows_are_collected_of_the_tables_that_are_asked_for() -> None:
    known = KnownRows()
    assert known.tables == frozenset()
    known.collect("t1")
    known.collect("t2")
    assert known.tables == {"t1", "t2"}
