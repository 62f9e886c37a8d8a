"""Handles rows that differ while the log is followed, or in the write stop. Rows that a person decided about, and rows
under way, are left alone; the others are repaired.

A decision holds as long as exactly the same cells differ. The next look reads repaired rows again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from pyspark.sql import SparkSession

from walferry.ledger import Difference
from walferry.migration.explaining.difference_classes import IN_FLIGHT, NOT_IN_LOG, UNEXPLAINED
from walferry.migration.explaining.explain_rows import EQUAL_NOW, explain
from walferry.migration.explaining.wal_lookup import log_bytes
from walferry.migration.repairing.repair import is_unfinished, repair
from walferry.migration.repairing.repairable import repairable, why_not
from walferry.refusals import ANY_TABLE
from walferry.replay.rights.standstill import Standstill
from walferry.run.run import Run
from walferry.spark.session import NoSparkError

_NOTE, _EXAMINED = "known differences", "examined differences"
MOST_ROWS = 1_000
"""the most rows of a table that one look explains and repairs; if more differ, each look continues where the last one
ended
"""


@dataclass(frozen=True)
class RepairMeans:
    """How rows are explained and repaired in one look."""

    spark: Callable[[], SparkSession]
    """opens the session; raises NoSparkError if there is no Spark"""
    standstill: Standstill
    read_again: Callable[[list[bytes]], Mapping[bytes, str]]
    """returns the given rows that differ now, each with the digest of its differing cells"""
    most_log_bytes: int
    """the most bytes of log to read for reasons; if there is more log, no reasons are looked for"""
    region_bytes: int
    """larger target regions are not compacted"""
    over: Callable[[], bool] = lambda: False
    without_reasons: bool = False
    """whether rows are repaired even if no reason was looked for, since nothing is under way any more"""
    under_way: Callable[[bytes], bool] = lambda _: False
    """whether the log may be about to change a row: while a round is applied, such a row may seem unexplained, so it
    counts only if the same cells differ at the next look"""


@dataclass(frozen=True)
class StillDiffering:
    """The outcome of one look for rows that differ."""

    left: Mapping[bytes, str]
    """rows that still differ and that nobody decided about, each with the reason why it is not repaired; "" if it is
    under way, or if no reason was looked for"""
    suspected: int = 0
    """how many of these have no explanation; if the same cells differ at the next look, the row is not under way"""
    unexamined: int = 0
    """how many of these were not examined for a reason, although they may not be under way"""


_OF_THE_LOG = (UNEXPLAINED, NOT_IN_LOG)
"""kinds that a row under way may be mistaken for"""
_LEFT = "?"
"""prefix of the digest of differing cells if the row may be under way"""


def known_rows(run: Run, table: str) -> list[bytes]:
    """The rows that differed or were repaired at the last look."""
    return [bytes.fromhex(row) for row in run.ledger.notes.get(_NOTE, table) or {}]


def rows_to_repair(run: Run, table: str) -> list[bytes]:
    """The rows of `known_rows` that nobody decided about."""
    return [
        bytes.fromhex(row)
        for row, cells in (run.ledger.notes.get(_NOTE, table) or {}).items()
        if not cells or cells.startswith(_LEFT)
    ]


def repair_differing(run: Run, table: str, differing: Mapping[bytes, str], means: RepairMeans) -> StillDiffering:
    """Repair the rows that nobody decided about and that are not under way, as far as possible now.

    `differing`: each row with the digest of its differing cells (`row_sides.differing_cells`), "" if unknown.
    """
    known = run.ledger.notes.get(_NOTE, table) or {}
    new = sorted(row for row, cells in differing.items() if not cells or known.get(row.hex()) != cells)
    same = {row for row in new if differing[row] and known.get(row.hex()) == _LEFT + differing[row]}
    left = dict.fromkeys(new, "")
    decided, equal, suspected = set[bytes](), set[bytes](), set[bytes]()
    some = _part(run, table, new)
    kinds: dict[bytes, str] = {}
    found = _explained(run, means, table, some) if some else None
    if found is not None:
        accepted = run.ledger.comparisons.accepted().keys()
        of_a_person = {item.row for item in found if item.kind != IN_FLIGHT and not repairable(item, accepted)}
        if of_a_person:  # the decision must be about these very cells: a write may have changed the row meanwhile
            again = means.read_again(sorted(of_a_person))
            decided = {row for row in of_a_person if again.get(row, "") == differing[row] != ""}
        equal = {item.row for item in found if item.kind == IN_FLIGHT and item.detail == EQUAL_NOW}
        kinds = {item.row: item.kind for item in found if item.kind != IN_FLIGHT and item.row not in of_a_person}
        suspected = {
            row for row, kind in kinds.items() if kind in _OF_THE_LOG and means.under_way(row) and row not in same
        }
        kinds = {row: kind for row, kind in kinds.items() if row not in suspected}
    elif some and means.without_reasons and not _somebody_decided(run, table):
        kinds = dict.fromkeys(some, "")
    elif some and means.without_reasons:
        size = log_bytes(run, table) / 1e6
        left |= dict.fromkeys(some, f"no reason found: {size:.0f} MB of log would have to be read")
    if kinds and (refusal := why_not(run, table, kinds)):
        left |= dict.fromkeys(kinds, refusal)
    elif kinds or is_unfinished(run.ledger, table):
        made = repair(run, means.standstill, table, kinds, region_bytes=means.region_bytes, over=means.over)
        left |= {row.row: row.fault for row in made}
        done = {row.row for row in made} if means.over() else kinds.keys()  # the other rows are equal by now
        equal |= done - {row.row for row in made if row.fault}
    examined = set(some) if found is not None or means.without_reasons else set[bytes]()
    before = [item for item in run.ledger.comparisons.looked(table) if item.row in left and item.row not in examined]
    left |= {item.row: item.detail for item in before}
    left = {row: fault for row, fault in left.items() if row not in decided | equal}
    # A row that differs in other cells now must still be compared: the log that wrote it may count as verified.
    kept = {row.hex(): cells for row, cells in differing.items()} | dict.fromkeys((row.hex() for row in equal), "")
    kept |= {row.hex(): _LEFT + differing[row] if differing[row] and not left[row] else "" for row in left}
    if kept != known:
        run.ledger.notes.keep(_NOTE, kept, table)
    if found is not None or not left:  # if no reasons were looked for, the earlier ones still stand
        run.ledger.comparisons.record_look(table, [*before, *(item for item in found or () if left.get(item.row))])
    waiting = same | _note_examined(run, table, new, some if examined else ())
    return StillDiffering(left, len(suspected), sum(row in waiting and not left[row] for row in left.keys() - examined))


def _part(run: Run, table: str, rows: Sequence[bytes]) -> Sequence[bytes]:
    """The rows, out of `rows` in order, that this look explains."""
    if len(rows) <= MOST_ROWS:
        return rows
    begin = bisect_right(rows, bytes.fromhex((run.ledger.notes.get(_EXAMINED, table) or {}).get("row", "")))
    return rows[begin if begin < len(rows) else 0 :][:MOST_ROWS]


def _note_examined(run: Run, table: str, rows: Sequence[bytes], examined: Sequence[bytes]) -> Set[bytes]:
    """Record how far the rows were examined. Returns the rows that no look has examined yet. Once a series of looks has
    gone through all rows, there are none: the next series finds whatever this one left."""
    kept = run.ledger.notes.get(_EXAMINED, table)
    if len(rows) <= MOST_ROWS:
        if kept is not None and (examined or not rows):
            run.ledger.notes.drop(_EXAMINED, table)
        return frozenset()
    row, through = (bytes.fromhex(kept["row"]), kept["through"]) if kept else (b"", False)
    if examined:
        row, through = examined[-1], through or examined[-1] == rows[-1]
        run.ledger.notes.keep(_EXAMINED, {"row": row.hex(), "through": through}, table)
    return frozenset() if through else frozenset(rows[bisect_right(rows, row) :])


def _explained(run: Run, means: RepairMeans, table: str, rows: Sequence[bytes]) -> list[Difference] | None:
    """Why rows differ; None if there is too much log to find out, or too much for a process without Spark."""
    if log_bytes(run, table) > means.most_log_bytes:
        return None
    try:
        return explain(run, means.spark, None, table, rows)
    except NoSparkError:
        return None


def _somebody_decided(run: Run, table: str) -> bool:
    """Whether a row may differ because a person left an edit of the table out, or accepted a difference."""
    left_out = [item.table for item in run.ledger.quarantine.items("released") if item.resolution == "accept"]
    left_out += [edit.table for edit in run.ledger.late.all() if edit.decision == "reject"]
    accepted = [of for of, _, _ in run.ledger.comparisons.accepted()]
    return table in accepted or not {table, ANY_TABLE}.isdisjoint(left_out)
