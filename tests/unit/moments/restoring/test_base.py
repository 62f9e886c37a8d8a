"""Which base a restore begins from, and which files of the log follow it."""

from __future__ import annotations

import pytest

from walferry.errors import UsageError
from walferry.ledger import StagedFile
from walferry.ledger.rows import Base
from walferry.moments.restoring.base import Kept, NoBaseError, choose, files_after, known_files
from walferry.wal.files import Place, WalFile

MINUTE_MS = 60_000


def base(name: str, complete_ms: int) -> Base:
    return Base(name, "t", {"a%2C1%2C1": 100}, complete_ms - 5, complete_ms, 10)


def file(group: str, number: int) -> WalFile:
    return WalFile(f"{group}.{number}", group, "s", number, "", Place.ARCHIVED, 1)


def test_the_newest_base_that_was_complete_is_chosen_or_the_one_that_is_named() -> None:
    kept = [Kept("k-1", base(name, complete_ms)) for name, complete_ms in (("old", 10), ("new", 20), ("late", 30))]
    assert choose(kept, "t", 25).base.snapshot == "new"
    assert choose(kept, "t", 20).base.snapshot == "new"
    assert choose(kept, "t", 25, "old").base.snapshot == "old"
    with pytest.raises(NoBaseError, match="the oldest base of t, old, was complete at"):
        choose(kept, "t", 9)
    with pytest.raises(NoBaseError, match="the base of t, late, was complete at"):
        choose(kept, "t", 25, "late")
    with pytest.raises(UsageError, match="t has no base other, only old, new, late"):
        choose(kept, "t", 25, "other")


def test_files_from_the_fence_on_and_those_of_servers_that_began_later_follow_a_base() -> None:
    begun_ms = 10 * MINUTE_MS
    one = Base("b", "t", {"a": 100, "b": 7}, begun_ms, begun_ms + 5, 10)
    listed = [
        file("a", 99), file("a", 100), file("a", begun_ms + MINUTE_MS), file("b", 7), file("dead", 50),
        file("dead", begun_ms - 30_000), file("new", begun_ms + 10), file("new", begun_ms + 5 * MINUTE_MS),
    ]  # fmt: skip
    found = files_after(one, listed, begun_ms + 2 * MINUTE_MS, MINUTE_MS)
    assert [(one.group, one.number) for one in found] == [
        ("a", 100), ("a", begun_ms + MINUTE_MS), ("b", 7), ("dead", begun_ms - 30_000), ("new", begun_ms + 10),
    ]  # fmt: skip


def test_files_of_the_fence_and_copied_ones_must_be_there() -> None:
    staged = [StagedFile("a%2C1%2C1.100", 5, "", 0), StagedFile("a%2C1%2C1.101", 6, "", 0)]
    found = known_files(base("b", 10), staged)
    assert [(one.name, one.length) for one in found] == [("a%2C1%2C1.100", 5), ("a%2C1%2C1.101", 6)]
    assert [one.name for one in known_files(base("b", 10), [])] == ["a%2C1%2C1.100"]
