"""Restore a table to a moment: a new table from a base, then the log since up to that moment, then a check.

Nothing is changed but the new table. The log is read where it is: in the source's folders, or in the copies of the run
that keeps it. It is rolled first if the moment is so recent that a needed file is still open.

Once the source is lost, base and log are read in the folder of the run that keeps them alone (`Kept.alone`). What was
copied of a log while it was open counts as the log then, and the moment must be one up to which all was copied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession

from walferry.amounts import amount
from walferry.apply.by_row import RowTask
from walferry.apply.window_rows import Numbers, WindowRows, WriteTimes
from walferry.clock import iso, now_ms
from walferry.errors import GapError, TransientError, UnfinishedInputError, UsageError, WalferryError
from walferry.hbase.descriptors import TableDescriptor
from walferry.ledger import NumberGap
from walferry.migration.copying import copy as copying
from walferry.moments.restoring.base import StoredBase, files_after, files_named, known_files, read_base
from walferry.moments.restoring.check import check
from walferry.moments.restoring.log_part import (
    NEVER_MS,
    Moment,
    RegionPart,
    SeenFile,
    look,
    parts_and_gaps,
    require_one_history,
)
from walferry.moments.restoring.restore_run import RestoreRun
from walferry.replay.keeping import objects, protect
from walferry.replay.log.cut import await_archive, cut_log, record_seen
from walferry.replay.log.files_of_window import missing_ranges
from walferry.replay.rights.applying import applying, shared_by_workers
from walferry.replay.windows.window import RefusedEditsError
from walferry.replay.windows.window_bulk import apply_in_bulk, in_bulk
from walferry.replay.windows.window_pieces import apply_in_pieces, is_small
from walferry.run.notes.kept_moments import copied_ends, lost_ends
from walferry.run.progress.exposure import unwatched_times
from walferry.snapshots.manifest import has_manifest
from walferry.spark.clients import shared_log_files
from walferry.spark.fan_out import fan_out
from walferry.spark.session import LateSession, session_for
from walferry.wal.files import Place, WalFile
from walferry.wal.open import open_wal
from walferry.wal.pieces import is_of_pieces

log = logging.getLogger(__name__)

LATEST = "latest"
"""the moment after all that is in a folder"""

DOUBTS_SHOWN = 3
"""in the outcome of a run"""

Spark = Callable[[], SparkSession]
"""opens the session, or returns the open one"""


class MomentAheadError(UnfinishedInputError):
    """The log up to the moment is not complete yet; fact `complete_at_ms`."""


WORK: Mapping[str, Callable[[RestoreRun, Spark], object]] = {
    "plan": lambda run, spark: plan(run),
    "end": lambda run, spark: find_end(run, spark),
    "copy": lambda run, spark: _copy(run, spark),
    "clone": lambda run, spark: copying.clone(run, run.table),
    "apply": lambda run, spark: apply_log(run, spark),
    "verify": lambda run, spark: verify(run, spark),
    "release": lambda run, spark: protect.finish(run, outcome(run) + _doubtful(run)),
}
"""The function of each phase of a restore (`run.phases`). All are idempotent."""


def restore(run: RestoreRun, spark: Spark) -> None:
    """Do the phases that are not done. Raises their errors; one that cannot be mended ends the run as failed."""
    for work in WORK.values():
        work(run, spark)


def examine(run: RestoreRun) -> dict[str, Any]:
    """What a restore would read. Changes nothing. Facts: at, base, base_complete, keeper, files, bytes, to_be_rolled,
    missing.

    Raises MomentAheadError before the log up to the moment is complete, and UsageError for what cannot be restored.
    """
    kept, base = run.kept, run.kept.base
    require_past(run)
    if ("table", run.new_table) not in {(o.kind, o.name) for o in run.ledger.objects.all()} and run.target.table_exists(
        run.new_table
    ):
        raise UsageError(f"the target already has a table {run.new_table}: give another name", table=run.new_table)
    if kept.alone and run.source_uuid == run.target.cluster_uuid():
        raise UsageError(
            f"the target is the cluster that {run.table} was kept of, which --from-folder takes for lost: name another "
            "one by --to, or leave out --from-folder",
            table=run.table,
        )  # fmt: skip
    if not has_manifest(run.source_files, run.source_root, base.snapshot):
        place = run.source_address().root_copy if kept.alone else "the source"
        raise UsageError(
            f"{place} no longer has snapshot {base.snapshot}, the base of {run.table}: name another base",
            base=base.snapshot,
        )
    listed = run.list_log()
    files = _needed(run, listed)
    return {
        "at": iso(run.at_ms),
        "keeper": kept.keeper,
        "base": base.snapshot,
        "base_complete": iso(base.complete_ms),
        "base_bytes": base.bytes,
        "files": [file.name for file in files],
        "bytes": sum(file.length for file in files),
        "to_be_rolled": [file.name for file in _open_ones(files, listed)],
        "missing": _missing(run, listed),
    }


def require_past(run: RestoreRun) -> None:
    """Raise MomentAheadError before the log up to the moment is complete, and UsageError for a moment to come, or, in
    the folder alone, one up to which not all of the log was copied."""
    complete_at_ms = run.at_ms + run.log_times.clock_skew_ms
    if run.kept.alone:
        _require_copied(run, complete_at_ms)
        return
    if run.at_ms > now_ms():
        raise UsageError(f"{iso(run.at_ms)} is in the future: give a moment that has passed", at_ms=run.at_ms)
    if (wait_ms := complete_at_ms - now_ms()) > 0:
        raise MomentAheadError(
            f"the log up to {iso(run.at_ms)} will be complete at {iso(complete_at_ms)}, in {wait_ms / 1000:.0f} s: "
            "run it again then",
            complete_at_ms=complete_at_ms,
        )  # fmt: skip


def _require_copied(run: RestoreRun, complete_at_ms: int) -> None:
    """Raise UsageError if the log up to the moment may not be in the folder, unless all that is there is wanted."""
    ends = copied_ends(run.keeper)
    if run.kept.latest or (ends is not None and complete_at_ms <= ends.covered_ms):
        return
    until = "nothing of the log was copied" if ends is None else (
        f"all of the log was copied up to {iso(ends.covered_ms)} by the clock of {run.kept.keeper}, so, with servers' "
        f"clocks that may differ, up to {iso(ends.covered_ms - run.log_times.clock_skew_ms)}"
    )  # fmt: skip
    raise UsageError(
        f"{until}: choose a moment up to then, or --at {LATEST} for all that is there",
        at_ms=run.at_ms, covered_ms=ends and ends.covered_ms,
    )  # fmt: skip


def plan(run: RestoreRun) -> dict[str, Any]:
    """The phase `plan`: `examine`, and refuse to begin without the whole log. Raises GapError for a missing log. The
    run has then failed, as after any error that does not pass by itself."""

    def work() -> dict[str, Any]:
        facts = examine(run)
        require_whole(run, facts["missing"])
        return facts

    return _once(run, "plan", work)


def outcome(run: RestoreRun) -> str:
    """What a restore that was verified has made, for people."""
    made = run.done("verify")
    when = "as far as its log was copied" if run.kept.latest else f"as of {iso(run.at_ms)}"
    return (
        f"{run.new_table} is {run.table} {when}: {amount(made['rows'], 'row')}, "
        f"{amount(made['cells'], 'cell')}, digest {made['digest']}"
    )


def _doubtful(run: RestoreRun) -> str:
    doubts = run.done("end")["doubts"]
    return "".join(f"; doubtful: {doubt}" for doubt in doubts[:DOUBTS_SHOWN]) + (
        f"; and {len(doubts) - DOUBTS_SHOWN} more, see its report" if len(doubts) > DOUBTS_SHOWN else ""
    )


def require_whole(run: RestoreRun, missing: Sequence[str]) -> None:
    """Raise GapError for what is missing from the log."""
    if missing:
        place = run.source_address().root_copy if run.kept.alone else "the source's oldWALs"
        raise GapError(
            f"part of the log between base {run.kept.base.snapshot} and {iso(run.at_ms)} no longer exists: "
            f"{'; '.join(missing[:5])}. Choose a base after that, or put the files into {place}",
            file=None, start=run.kept.base.begun_ms, end=run.at_ms, ranges=list(missing),
        )  # fmt: skip


def _once(run: RestoreRun, phase: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`Run.once`; an error that does not pass by itself ends the run, so that its name is free for another try."""
    try:
        return run.once(phase, work)
    except (TransientError, UnfinishedInputError, RefusedEditsError):
        raise
    except WalferryError as error:
        if run.ledger.record.state == "running":
            objects.release(run)
            run.ledger.end("failed", run.actor, str(error))
        raise


def _needed(run: RestoreRun, listed: Sequence[WalFile]) -> list[WalFile]:
    return files_after(run.kept.base, listed, run.at_ms, run.log_times.clock_skew_ms)


def _open_ones(files: Sequence[WalFile], listed: Sequence[WalFile]) -> list[WalFile]:
    newest = {file.group: file.name for file in listed}  # ordered by number
    return [file for file in files if file.place is Place.LIVE and newest[file.group] == file.name]


def _missing(run: RestoreRun, listed: Sequence[WalFile]) -> list[str]:
    base, skew_ms = run.kept.base, run.log_times.clock_skew_ms
    known = known_files(base, run.keeper.staged.there())
    found = missing_ranges(listed, run.servers(), known, base.begun_ms, run.at_ms + 1, skew_ms)
    return found if run.kept.latest else found + _lost_ends(run, listed)


def _lost_ends(run: RestoreRun, listed: Sequence[WalFile]) -> list[str]:
    """Logs of which not all up to the moment was copied before they were gone, as text."""
    lost, complete_ms = lost_ends(run.keeper), run.at_ms + run.log_times.clock_skew_ms
    pieces = {file.name: file.length for file in listed if is_of_pieces(file.path)}
    names = {name for name, end in lost.items() if end.covered_ms < complete_ms}
    if not run.kept.alone:  # the source is there, and the log is not: it is lost, noted or not
        names |= pieces.keys() - lost.keys()
    names -= {file.name for file in listed if file.name not in pieces}
    files = files_named({name: pieces.get(name, 0) for name in sorted(names)})
    return [
        f"the end of {file.name}, of which {file.length} bytes were copied while it was open"
        for file in _needed(run, files)
    ]


# ------------------------------------------------------------------ where the log ends


def find_end(run: RestoreRun, spark: Spark) -> dict[str, Any]:
    """The phase `end`: read the log since the base, and find where each region's part ends. Facts: files, their bytes,
    regions (their parts), doubts (what may be missing from the log without a sign of it, as text)."""

    def work() -> dict[str, Any]:
        base = _stored_base(run)
        _require_ordered_by_time(base.schema)
        files, listed = _sealed(run)
        gone = set(run.done("plan")["files"]) - {file.name for file in files}
        require_whole(run, [*sorted(gone), *_missing(run, listed)])
        record_seen(run, files, sealed={file.name for file in files})
        session = session_for(spark, sum(file.length for file in files), run.writing.here_bytes)
        moment = Moment(run.at_ms, run.log_times.clock_skew_ms)
        seen = _look_at(run, session, files, moment, base)
        require_one_history(
            seen, base.table, moment, base.known, run.families, opens_past_closing=run.opens_past_closing,
        )  # fmt: skip
        parts, gaps = parts_and_gaps(seen, run.table, base.table, moment, may_grow=run.kept.alone)
        doubts = [*_unwatched(run), *_not_copied(run, listed), *(_gap_text(gap) for gap in gaps)]
        for doubt in doubts:
            log.warning("%s: %s", run.table, doubt)
        return {
            "files": {file.name: file.length for file in files},
            "bytes": sum(file.length for file in files),
            "regions": {name: asdict(part) for name, part in sorted(parts.items())},
            "doubts": doubts,
        }

    return _once(run, "end", work)


def _require_ordered_by_time(table: TableDescriptor) -> None:
    for family in table.families.values():
        if family.new_version_behavior:
            raise UsageError(
                f"family {family.name} of {table.name} has NEW_VERSION_BEHAVIOR, so what a row shows depends on the "
                "order in which its cells were written, which a restore does not keep: clone a base instead",
                table=table.name, family=family.name,
            )  # fmt: skip


def _gap_text(gap: NumberGap) -> str:
    return (
        f"numbers {gap.first} to {gap.last} of region {gap.region} are in no file: edits that skip the log (SKIP_WAL) "
        "or a lost file"
    )


def _unwatched(run: RestoreRun) -> list[str]:
    """The times between base and moment in which the keeper copied nothing for too long."""
    base = run.kept.base
    times = unwatched_times(run.keeper)
    return [time.describe() for time in times if time.until_ms > base.begun_ms and time.from_ms <= run.at_ms]


def _not_copied(run: RestoreRun, listed: Sequence[WalFile]) -> list[str]:
    """What was lost with the source, if all that is in the folder is applied."""
    if not run.kept.latest:
        return []
    ends = copied_ends(run.keeper)
    since = "since the base" if ends is None else f"after {iso(ends.covered_ms)}"
    return [f"what the source acknowledged {since} may be missing", *_lost_ends(run, listed)]


def _stored_base(run: RestoreRun) -> StoredBase:
    return read_base(run.source_files, run.source_root, run.kept.base)


def _sealed(run: RestoreRun) -> tuple[list[WalFile], list[WalFile]]:
    """The files of the log from the base up to the moment, all sealed, and all files: open ones are rolled first."""
    listed = run.list_log()
    if run.kept.alone:
        return _needed(run, listed), listed
    if _open_ones(_needed(run, listed), listed):
        cut_log(run)
    await_archive(run)
    listed = run.list_log()
    files = _needed(run, listed)
    if still := _open_ones(files, listed):
        raise TransientError(f"WAL file {still[0].name} is still open after a roll: run it again", file=still[0].name)
    return files, listed


def _look_at(
    run: RestoreRun, spark: SparkSession | None, files: Sequence[WalFile], moment: Moment, base: StoredBase
) -> list[SeenFile]:
    address, root, table, of_base = run.source_address(1), run.wal_root, run.table, base.table

    def read(file: WalFile) -> list[SeenFile]:
        return [look(open_wal(shared_log_files(address), root, file), file, table, moment, of_base)]

    return fan_out(spark, read, files, what="read WALs", sizes=[file.length for file in files])


# ------------------------------------------------------------------ the new table


def _copy(run: RestoreRun, spark: Spark) -> dict[str, Any]:
    if not run.same_cluster:
        return copying.copy(run, spark, run.table)
    return run.once("copy", lambda: {"files": 0, "bytes": 0, "copied": []}, run.table)


def _wanted(run: RestoreRun) -> WindowRows:
    """The parts of the log, as the phase `end` found them."""
    parts = {name: RegionPart(**facts) for name, facts in run.done("end")["regions"].items()}
    numbers = {name: Numbers(part.after, part.before, part.since_ms) for name, part in parts.items()}
    return WindowRows(WriteTimes(NEVER_MS, run.at_ms + 1), numbers=numbers)


def _files(run: RestoreRun) -> list[WalFile]:
    """The files that the phase `end` read. Raises GapError if one is gone, or another one."""
    known = run.done("end")["files"]
    listed = {file.name: file for file in run.list_log()}
    if gone := [name for name, size in known.items() if name not in listed or not _is_it(run, listed[name], size)]:
        raise GapError(
            f"WAL file {gone[0]} was read a while ago, and is gone now, or another one: abort {run.run_id}, and choose "
            "a later base",
            file=gone[0], start=0, end=None,
        )  # fmt: skip
    return [listed[name] for name in known]


def _is_it(run: RestoreRun, file: WalFile, size: int) -> bool:
    """Whether a file is the one that was read, by its size then. In the folder alone it may have got longer."""
    return file.length == size or (run.kept.alone and file.length > size)


def apply_log(run: RestoreRun, spark: Spark) -> dict[str, Any]:
    """The phase `apply`: apply the parts of the log to the new table. Facts: cells, bytes, pieces, repeated.

    Raises RefusedEditsError for edits that the new table refuses; the run goes on once they are taken.
    """

    def work() -> dict[str, Any]:
        session, files = LateSession(spark), _files(run)
        new = run.target.describe(run.new_table)
        if (local := new.unreplicated()) != new:  # a peer's cluster has no such table, and its queue would get stuck
            run.target.modify_table(local)
        with applying(run) as route:
            if not is_small(files, route.limits.here_bytes):
                route = shared_by_workers(run, route, session())
            task = RowTask(route, tuple(files), window=_wanted(run))
            way = apply_in_bulk if in_bulk(run, sum(file.length for file in files)) else apply_in_pieces
            done = way(run, session, task, len(files), set(), lambda indexes: None)
            if done.refusals:
                run.ledger.batches.drop(done.lease_check)
                raise RefusedEditsError(
                    f"{run.new_table} refuses {amount(len(done.refusals), 'edit')}, the first: "
                    f"{done.refusals[0].reason}. If its schema was changed since the base, change {run.new_table} in "
                    f"the same way, then give the command again",
                    table=run.new_table, items=[],
                )  # fmt: skip
            run.ledger.log.set_ranges(done.ranges, also=run.ledger.batches.end(done.lease_check))
        return {"cells": done.cells, "bytes": done.bytes, "pieces": done.pieces, "repeated": done.repeated}

    return _once(run, "apply", work)


def verify(run: RestoreRun, spark: Spark) -> dict[str, Any]:
    """The phase `verify`: compare the new table with base and log as their files show them. Facts: rows, cells, digest
    (hex), differing.

    Raises SidesDifferError if a row differs.
    """

    def work() -> dict[str, Any]:
        return check(run, spark, _stored_base(run), _files(run), _wanted(run))

    return _once(run, "verify", work)
