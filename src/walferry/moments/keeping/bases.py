"""Bases: a FLUSH snapshot of each table from time to time, from which a restore begins."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from walferry.clock import now_ms, steady_s
from walferry.errors import UsageError, WalferryError
from walferry.hbase.errors import TableNotFoundError
from walferry.ledger.rows import Base
from walferry.moments.keeping import base_files
from walferry.moments.keeping.keep_run import KeepRun
from walferry.replay.keeping.by_copies import Stage, require_same_source, stage_of
from walferry.replay.keeping.objects import drop_snapshot, snapshot_name, take_snapshot
from walferry.run.notes.kept_moments import end_trouble, lost_ends, note_trouble
from walferry.run.progress.exposure import unwatched_times
from walferry.snapshots.manifest import read_manifest, size_of
from walferry.snapshots.readable import why_unreadable
from walferry.storage import FileSystem
from walferry.wal.files import Place, WalFile, by_number, if_sealed, list_live

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
AGAIN_SECONDS = (10.0, 300.0)
"""a table whose base failed is tried again after so long, which doubles with each failure up to the second"""
REGIONS_SECONDS = 60.0
"""how often hbase:meta is asked whether a table was created again"""
ORPHAN_MS = HOUR_MS
"""a snapshot that is no base after this time was left by a killed process"""


class BaseTaker:
    """Takes a base of each table when it is due. One table's trouble is not that of the others."""

    def __init__(self, run: KeepRun, require_turn: Callable[[], None]) -> None:
        """`require_turn` raises if this process may no longer work on the run."""
        self._run, self._require_turn = run, require_turn
        self._stage = stage_of(run)
        self._again: dict[str, float] = {}
        self._pause: dict[str, float] = {}
        self._looked = -REGIONS_SECONDS
        self._anew: set[str] = set()
        self._newest_region: dict[str, int] = {}
        self._lost_ms = 0

    def look(self) -> bool:
        """Take the bases that are due, and copy to the folder those that are not there yet. Returns whether any was.

        Raises the errors of `require_turn`.
        """
        if steady_s() - self._looked >= REGIONS_SECONDS:
            self._looked = steady_s()
            self._anew = {table for table in self._run.source_tables if self._is_new(table)}
            self._lost_ms = self._last_loss_ms()
        last = {base.table: base for base in self._run.ledger.bases.there()}  # the newest one of each table
        due = [table for table in self._run.source_tables if self._is_due(table, last.get(table))]
        done = [self._tried(table, last.get(table)) for table in due]
        return any(done)

    def _is_due(self, table: str, last: Base | None) -> bool:
        """Whether a new base is to be taken, or the last one to be copied."""
        if steady_s() < self._again.get(table, 0.0):
            return False
        return last is None or self._is_old(last) or (self._run.spec.copy_bases and last.copied_ms is None)

    def _is_old(self, base: Base) -> bool:
        """Whether a base needs a successor: its time is over, its table was created again, or log was lost since."""
        over = now_ms() - base.begun_ms >= self._run.spec.base_hours * HOUR_MS
        return over or base.table in self._anew or self._lost_ms > base.begun_ms

    def _last_loss_ms(self) -> int:
        """When it was last noticed that log is lost, or may be, since nobody looked at it for too long."""
        noticed = [end.noticed_ms for end in lost_ends(self._run.ledger).values()]
        return max([*noticed, *(time.until_ms for time in unwatched_times(self._run.ledger))], default=0)

    def _tried(self, table: str, last: Base | None) -> bool:
        """Whether that worked; if not, it is noted and tried again later."""
        try:
            self._bring_up_to_date(table, last)
        except Exception as error:
            self._require_turn()  # a run that was aborted has no snapshot any more
            if not isinstance(error, (WalferryError, OSError)):
                raise
            pause = self._pause.get(table, AGAIN_SECONDS[0])
            log.warning("no base of %s now; trying again in %.0f s: %s", table, pause, error)
            note_trouble(self._run.ledger, table, str(error), gone=isinstance(error, TableNotFoundError))
            self._again[table], self._pause[table] = steady_s() + pause, min(2 * pause, AGAIN_SECONDS[1])
            return False
        self._pause.pop(table, None)
        end_trouble(self._run.ledger, table)
        return True

    def _bring_up_to_date(self, table: str, last: Base | None) -> None:
        base = take(self._run, self._stage, table) if last is None or self._is_old(last) else last
        self._anew.discard(table)
        if base is not last:
            self._newest_region.pop(table, None)
        if self._run.spec.copy_bases and base.copied_ms is None:
            base_files.copy(self._run, self._stage, base, self._require_turn)
            self._run.ledger.bases.copied(base.snapshot)

    def _is_new(self, table: str) -> bool:
        """Whether all regions of a table are newer than its last base: it was truncated, restored or created again.

        A table whose only region was split looks the same; a base too many does no harm.
        """
        there = self._run.ledger.bases.there(table)
        if not there:
            return False
        try:
            if table not in self._newest_region:
                manifest = read_manifest(self._run.source_files, self._run.source_root, there[-1].snapshot)
                self._newest_region[table] = max(
                    (region.region_info.region_id for region in manifest.region_manifests), default=0
                )
            oldest = min((region.region_id for region in self._run.source.regions(table)), default=0)
        except WalferryError as error:
            log.debug("the regions of %s cannot be looked at: %s", table, error)
            return False
        return oldest > self._newest_region[table]

    def drop_orphans(self) -> None:
        """Delete snapshots of this run that killed processes have taken and not recorded as bases."""
        bases = {base.snapshot for base in self._run.ledger.bases.there()}
        for item in self._run.ledger.objects.all():
            if item.kind != "snapshot" or item.state == "removed" or item.name in bases:
                continue
            taken = item.name.rpartition("-")[2]
            if taken.isdecimal() and now_ms() - int(taken) > ORPHAN_MS:
                drop_snapshot(self._run, self._run.source, item.cluster, item.name)


def take(run: KeepRun, stage: Stage, table: str) -> Base:
    """Take a base of a table and record it. Raises UsageError for a table whose snapshot cannot be read."""
    require_same_source(run)
    if why := why_unreadable(run.source.describe(table)):
        raise UsageError(f"no base of {table} can be taken, since {why}", table=table)
    # In this order: an edit in an older file than these was acknowledged before, so the snapshot has it.
    begun_ms = now_ms()
    fence = fence_of(stage.source, stage.root, list_live(stage.source, stage.root))
    name = snapshot_name(run.run_id, table)
    take_snapshot(run, name, table)
    complete_ms = now_ms()
    size = size_of(read_manifest(run.source_files, run.source_root, name))
    base = Base(name, table, fence, begun_ms, complete_ms, size)
    run.ledger.bases.record(base)
    log.info("base %s of %s taken in %.1f s, %.1f MB", name, table, (complete_ms - begun_ms) / 1000, size / 1e6)
    return base


def fence_of(files: FileSystem, root: str, live: Iterable[WalFile]) -> dict[str, int]:
    """For each WAL group that is alive the number of the first file that may get edits from now on.

    HBase creates the next file before it switches to it, so edits go on into the one before until that is sealed. A
    broken file without a trailer only makes the fence earlier.
    """
    by_group: dict[str, list[WalFile]] = defaultdict(list)
    for file in live:
        if file.place is Place.LIVE:
            by_group[file.group].append(file)
    fence = {}
    for group, members in by_group.items():
        members.sort(key=by_number, reverse=True)
        fence[group] = members[0].number
        for older in members[1:]:
            if if_sealed(files, root, older) is not None:
                break
            fence[group] = older.number
    return fence
