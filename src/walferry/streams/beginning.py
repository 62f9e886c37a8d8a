"""Where a stream begins, and each of its tables: at a fence of the log, unless there are positions to go on from."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from walferry.errors import UsageError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.errors import TableNotFoundError
from walferry.ledger import LogPosition
from walferry.replay.keeping.objects import snapshot_name
from walferry.replay.log.cut import cut_until, server_of, start_positions
from walferry.run.facts import kept_lines
from walferry.streams.delivery import Committer
from walferry.streams.message.events import schema_digest
from walferry.streams.ordering.sent import GroupRead, RegionSent, StreamPositions, TableSent
from walferry.streams.ordering.stays import NEVER, LogPlace
from walferry.streams.snapshot.records import Snapshots, Step, TableSnapshot
from walferry.streams.stream_run import StreamRun
from walferry.wal.offsets import GroupPosition

log = logging.getLogger(__name__)


def begin(run: StreamRun, sink: Committer) -> StreamPositions:
    """The positions to go on from, which the destination then has, too: those of the sink or, for a new epoch, those of
    the run's start fence. Tables that they lack join the stream at a fence of their own, with a snapshot if the spec
    wants one.

    Raises UsageError for positions of a later epoch, TransientError if the log cannot be cut.
    """
    before = StreamPositions.of_records(sink.positions)
    if before.epoch > run.spec.epoch:
        raise UsageError(
            f"{run.spec.positions_place} has positions of epoch {before.epoch}, and the spec has epoch "
            f"{run.spec.epoch}: give epoch {before.epoch} to go on from there, or {before.epoch + 1} to begin anew",
            epoch=before.epoch,
        )
    known = before
    snapshots = rows = Snapshots.of_records(sink.positions)
    begun: Collection[str] = before.tables
    if before.epoch < run.spec.epoch or not sink.positions:
        if sink.positions:
            log.info("epoch %d begins at the fence of this run; epoch %d ends", run.spec.epoch, before.epoch)
        known, snapshots, begun = _at_start_fence(run), Snapshots(), ()
    if joining := [table for table in run.source_tables if table not in known.tables]:
        known = _with(run, known, joining)
    for table in set(snapshots.tables) - set(run.source_tables):  # of an earlier run, which had more tables
        snapshots = snapshots.without(table)
    if run.spec.snapshot:
        first = {
            table: TableSnapshot(Step.TAKING, snapshot_name(run.run_id, table))
            for table in known.tables if table not in begun
        }  # fmt: skip
        snapshots = replace(snapshots, tables={**snapshots.tables, **first})
    sink.commit(known.changed(before) | snapshots.changed(rows))
    sink.write()
    return known


def descriptor_of(source: HBaseClient, table: str) -> TableDescriptor | None:
    """A table's present descriptor; None if it does not exist."""
    try:
        return source.describe(table)
    except TableNotFoundError:
        return None


def _at_start_fence(run: StreamRun) -> StreamPositions:
    """The run's start fence, for the tables that it knows: others have been added to the spec since."""
    fence = run.ledger.log.fence("start") or []
    groups = {}
    for position in fence:
        if position.file:
            place = GroupPosition(position.number)
        else:  # a dead server's group: nothing of it is the stream's
            place = GroupPosition(position.number - 1, read=True, over=True)
        groups[position.group] = GroupRead(place, LogPlace(position.number, 0))
    lines = kept_lines(run, "applied")
    return StreamPositions(groups, _regions(lines), _tables(run, lines), run.spec.epoch)


def _with(run: StreamRun, known: StreamPositions, tables: Sequence[str]) -> StreamPositions:
    """The positions with tables that join the stream at a cut of the log, which is made here."""
    log.info("%s: rolling all WALs, since the stream of these tables begins here", ", ".join(tables))
    cut = cut_until(run, lambda cut: [table for table in tables if not cut.is_quiet(table)], whole=True)
    lines = {table: cut.after.get(table, {}) for table in tables}
    joined = {
        table: replace(one, begins=_begins(start_positions(cut))) for table, one in _tables(run, lines).items()
    }  # fmt: skip
    return replace(known, regions={**known.regions, **_regions(lines)}, tables={**known.tables, **joined})


def _begins(positions: Iterable[LogPosition]) -> dict[str, int]:
    return {position.group: position.number for position in positions}


def _regions(lines: Mapping[str, Mapping[str, str]]) -> dict[str, RegionSent]:
    """The regions of tables, by their lines at a cut."""
    return {
        region: RegionSent(table, server_of(line), NEVER, 0, None)
        for table, of_table in lines.items() for region, line in of_table.items()
    }  # fmt: skip


def _tables(run: StreamRun, tables: Iterable[str]) -> dict[str, TableSent]:
    described = {table: descriptor_of(run.source, table) for table in tables}
    return {table: TableSent("" if found is None else schema_digest(found)) for table, found in described.items()}
