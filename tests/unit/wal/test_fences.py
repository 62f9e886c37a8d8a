"""What is between a run's fences, by WAL group."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from walferry.wal.fences import Fences


@dataclass(frozen=True)
class File:
    group: str
    number: int
    length: int = 100


FENCES = Fences(
    start={"rs1": (10, 0), "gone": (8, 0)}, end={"rs1": (12, 0), "rs2": (21, 30)}, known=frozenset({"rs1", "gone"})
)


@pytest.mark.parametrize(
    ("file", "starts_by", "past_end", "bytes_before_end"),
    [
        (File("rs1", 9), False, False, 100),
        (File("rs1", 10), True, False, 100),
        (File("rs1", 11), True, False, 100),
        (File("rs1", 12), True, True, 0),
        (File("rs1", 13), True, True, 0),
        # Its server started after the start fence: all of it is the run's. The end is within file 21.
        (File("rs2", 1), True, False, 100),
        (File("rs2", 21), True, False, 30),
        (File("rs2", 22), True, True, 0),
        # Its server stopped before the end fence, which therefore does not name the group.
        (File("gone", 7), False, False, 100),
        (File("gone", 8), True, False, 100),
        # Its server started after the end fence: nobody knew the group before.
        (File("late", 1), True, True, 0),
    ],
)
def test_a_file_is_placed_by_the_fences_of_its_group(
    file: File, starts_by: bool, past_end: bool, bytes_before_end: int
) -> None:
    assert FENCES.starts_by(file) == starts_by
    assert FENCES.is_past_end(file) == past_end
    assert FENCES.holds(file) == (starts_by and not past_end)
    assert FENCES.bytes_before_end(file) == bytes_before_end


def test_a_fence_that_is_not_set_shuts_nothing_out() -> None:
    files = [File("rs1", 1), File("rs2", 5)]
    assert Fences().within(files) == files
    assert Fences(start={"rs1": (3, 0)}).within(files) == files[1:]


HOUR = 3_600_000
NOW = 1_790_000_000_000
MOVE = Fences(
    start={"rs1": (NOW, 0), "dead": (NOW - HOUR + 1, 0)},
    end={"rs1": (NOW + HOUR, 0)},
    known=frozenset({"rs1", "short"}),
    started_ms=NOW,
)


@pytest.mark.parametrize(
    ("file", "late"),
    [
        (File("rs1", NOW + HOUR), True),
        (File("rs1", NOW + HOUR - 1), False),
        # Its server started after the end fence.
        (File("new", NOW + 2 * HOUR), True),
        # And may have a clock that is slow.
        (File("new", NOW - 60_000), True),
        # Its server died before the run began, and the snapshot has all of it.
        (File("dead", NOW - HOUR), False),
        # So does this one's, whose log was put back after the end fence.
        (File("older", NOW - HOUR), False),
        # Its server came and went between the fences.
        (File("short", NOW + 1_000), False),
    ],
)
def test_logs_of_servers_that_died_before_the_run_are_not_late(file: File, late: bool) -> None:
    assert MOVE.is_late(file) == late
