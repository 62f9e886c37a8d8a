"""What the log holds of a few rows, looked up in the executors.

Only files that can hold them are read: those past the start fence in which the ledger counted cells of the table, and
those that it has not counted yet. A file's write times and regions do not rule it out: applications may set any
timestamp, and a row's region may have been on any server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from walferry.errors import DamagedInputError, GapError
from walferry.hbase.address import ClusterAddress
from walferry.ledger import RunLedger
from walferry.migration.explain import Cell, Question, RowLog, cells_of
from walferry.replay.cut import as_listed
from walferry.run.facts import fence_facts
from walferry.run.run import Run
from walferry.spark.clients import shared_files
from walferry.spark.fan_out import fan_out
from walferry.wal.files import WalFile, list_wals
from walferry.wal.open import Until, open_wal
from walferry.wal.open import cells_of as cells_of_table

log = logging.getLogger(__name__)

KEPT_CELLS = 1_000
"""of one row, in all of the log; a row with more stays unexplained"""
FILES_AT_ONCE = 64


@dataclass(frozen=True)
class _Lookup:
    """One file to read."""

    source: ClusterAddress
    file: WalFile
    applied: bool
    table: str
    questions: Mapping[bytes, Question]
    left_out: frozenset[int]
    """offsets of entries that an operator left out"""


@dataclass
class _Found:
    """What one file holds of the rows, bounded per row."""

    applied: bool
    cells: dict[bytes, dict[Cell, int]] = field(default_factory=dict)
    """by row, with the sequence number of the newest edit"""
    left_out: dict[bytes, set[Cell]] = field(default_factory=dict)
    too_many: set[bytes] = field(default_factory=set)
    unread: str = ""


def logged(
    run: Run, spark: SparkSession, table: str, questions: Mapping[bytes, Question], applied: set[str], until_ms: int
) -> dict[bytes, RowLog]:
    """What WAL files past the start fence hold of these rows; `applied` names those whose edits the target has.

    `until_ms`: the latest timestamp that the source's clock can have given to a cell that differs.
    """
    since_ms = fence_facts(run, "start").at_ms
    logs = {row: RowLog(since_ms, until_ms) for row in questions}
    decided = {
        (item.file, item.start)
        for item in run.ledger.quarantine.items("released")
        if item.resolution == "accept" and item.table == table
    }
    source = run.spec.source.address()
    files = _files(run, table, applied)
    for first in range(0, len(files), FILES_AT_ONCE):
        open_questions = {row: asked for row, asked in questions.items() if not logs[row].too_many}
        lookups = [
            _Lookup(
                source, file, file.name in applied, table, open_questions,
                frozenset(start for name, start in decided if name == file.name),
            )
            for file in files[first : first + FILES_AT_ONCE]
        ]  # fmt: skip
        for found in fan_out(spark, lambda lookup: [_look(lookup)], lookups, what="look into the log"):
            _merge(logs, found)
    return logs


def _files(run: Run, table: str, applied: set[str]) -> list[WalFile]:
    """The files that can hold rows of the table: those that the ledger knows, and newer ones."""
    files = {known.name: as_listed(known) for known in run.ledger.log.files()}
    fences = run.fences()
    for file in list_wals(run.source_files, run.source_root):
        if fences.starts_by(file):
            files.setdefault(file.name, file)
    empty = _without_cells(run.ledger, table) & applied
    return [file for file in files.values() if file.name not in empty]


def _without_cells(ledger: RunLedger, table: str) -> set[str]:
    cells: dict[str, int] = {}
    for item in ledger.log.ranges():
        if item.table == table:
            cells[item.file] = cells.get(item.file, 0) + item.cells
    return {name for name, count in cells.items() if not count}


def _merge(logs: Mapping[bytes, RowLog], found: _Found) -> None:
    for row, log_ in logs.items():
        if found.unread:
            log_.unread.append(found.unread)
        log_.too_many |= row in found.too_many
        if found.applied:
            for cell, number in found.cells.get(row, {}).items():
                log_.applied[cell] = max(number, log_.applied.get(cell, -1))
        else:
            log_.pending |= found.cells.get(row, {}).keys()
        log_.left_out |= found.left_out.get(row, set())
        if len(log_.applied) + len(log_.pending) + len(log_.left_out) > KEPT_CELLS:
            log_.too_many = True
            log_.applied, log_.pending, log_.left_out = {}, set(), set()


# ------------------------------------------------------------------ in an executor


def _look(lookup: _Lookup) -> _Found:
    """Read one file."""
    found = _Found(lookup.applied)
    wanted = pa.array(sorted(lookup.questions), pa.binary())
    try:
        until = Until.SEALED if lookup.applied else Until.NOW
        wal = open_wal(shared_files(lookup.source), lookup.source.root_path, lookup.file, until)
        for batch in cells_of_table(wal, lookup.file.name, lookup.table):
            _collect(found, lookup, batch.filter(pc.is_in(batch["row"], wanted)))
    except GapError:
        found.unread = f"WAL file {lookup.file.name} no longer exists at the source"
    except DamagedInputError as error:
        found.unread = str(error)
    return found


def _collect(found: _Found, lookup: _Lookup, mine: pa.RecordBatch) -> None:
    positions = zip(*(mine[name].to_pylist() for name in ("row", "sequence_number", "offset")), strict=True)
    for (row, number, offset), cell in zip(positions, cells_of(mine), strict=True):
        if row in found.too_many or not lookup.questions[row].concerns(cell):
            continue
        if offset in lookup.left_out:
            kept = found.left_out.setdefault(row, set())
            kept.add(cell)
        else:
            cells = found.cells.setdefault(row, {})
            cells[cell] = max(number, cells.get(cell, -1))
        if len(found.cells.get(row, ())) + len(found.left_out.get(row, ())) > KEPT_CELLS:
            found.too_many.add(row)
            found.cells.pop(row, None)
            found.left_out.pop(row, None)
