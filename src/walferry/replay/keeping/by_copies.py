"""Protection without a peer: each WAL is copied to the run's own folder as soon as it is closed.

The cleaner's time to live counts from a file's close, and HBase may archive the file long after that, so waiting until
the file is in oldWALs would be too late. A file is copied once its contents and its end are final (`wal.files`): when
it has its trailer or is archived; or, if it has no trailer because its writer broke or its server died, when the
NameNode lists as many bytes as can be read. If an archived file and its copy differ in length, the file is copied
again.

A copy under way has a unique name until it is complete. So two processes may copy the same file, and a killed process
leaves nothing that looks like a copy. Readers of the log find the copies through `wal.copies`.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import uuid4

from walferry.clock import now_ms
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.ledger import StagedFile
from walferry.replay.keeping.folder import UNFINISHED, try_writing
from walferry.replay.keeping.objects import made, plan_own
from walferry.replay.keeping.retention import Retention, retention_now
from walferry.run.cluster_ids import id_in_root, planned_id
from walferry.run.log_folder import require_log_folder
from walferry.run.progress.exposure import Exposure, note_exposure
from walferry.run.run import LogRun
from walferry.storage import FileSystem, PermissionDeniedError
from walferry.wal.copies import log_files_of, open_folder
from walferry.wal.files import Place, WalFile, if_sealed, list_live, list_wals
from walferry.wal.open import CLOSE_SECONDS

log = logging.getLogger(__name__)

NAMES_EVERY_LOG = False
"""A log that was created and closed a moment ago may have no copy yet: list the archive, which has few files."""
AT_ONCE = 4
"""how many files are copied at the same time"""
LEFT_MS = 3_600_000
"""age at which an unfinished copy counts as left behind by a killed process"""


class AnotherClusterError(WalferryError):
    """Another cluster was set up at the source's address; facts `run`, `cluster_id`."""


class StageLostError(WalferryError):
    """The folder with the run's copies no longer exists; fact `folder`."""


@dataclass(frozen=True)
class Stage:
    """The source's own files, HBase's root on them, and the folder for the copies with its path."""

    source: FileSystem
    root: str
    files: FileSystem
    path: str


def begin(run: LogRun) -> dict[str, Any]:
    """Create the run's folder. Copying begins with the start fence (`tend`). Facts: folder, groups."""
    if run.record.kind not in ("migration", "keep"):
        raise UsageError(f"protect: stage is only for migrations, and {run.run_id} is a {run.record.kind}; use peer")
    url, stage = _url(run), stage_of(run)
    plan_own(run, "source", "folder", url, there=stage.files.status(stage.path) is not None)
    stage.files.mkdirs(stage.path)
    try_writing(stage.files, stage.path)
    made(run, "source", "folder", url)
    live = list_live(stage.source, stage.root)
    _note(run, [], now_ms())  # from now on the status warns if `tend` stops
    return {"folder": url, "groups": sorted({file.group for file in live if file.place is Place.LIVE})}


def require(run: LogRun) -> None:
    """Raise StageLostError if the folder with the copies no longer exists."""
    stage = stage_of(run)
    if stage.files.status(stage.path) is None:
        raise StageLostError(
            f"the folder {_url(run)} with copies of the source's WALs no longer exists. If somebody moved it, move it "
            "back and run again; otherwise abort and start over with a new snapshot",
            folder=_url(run),
        )  # fmt: skip


def kept(run: LogRun) -> set[str]:
    """Names of the files that have a copy according to the ledger."""
    return {file.name for file in run.ledger.staged.there()}


def why_missing(run: LogRun, name: str) -> str:
    """What probably happened to a file that had a copy."""
    return f"it was copied to {_url(run)}/{name}, and somebody has deleted the copy"


def let_go(run: LogRun, keep_hours: float | None = None) -> list[str]:
    """Delete the copies that are applied for all tables and older than `keep_hours`. Returns their names.

    `keep_hours` defaults to the run's setting.
    """
    keep_hours = run.log_times.keep_hours if keep_hours is None else keep_hours
    until = now_ms() - keep_hours * 3_600_000
    old = [file.name for file in run.ledger.staged.there() if file.staged_ms <= until]
    applied = run.ledger.log.applied(old)
    stage = stage_of(run)
    for name in applied:
        stage.files.delete(f"{stage.path}/{name}")
    run.ledger.staged.removed(sorted(applied))
    return sorted(applied)


def require_same_source(run: LogRun) -> None:
    """Raise AnotherClusterError if the source's root folder has the id of another cluster than the run's plan found.

    With Kerberos only HBase reads that file (MasterFileSystem sets 600 at each start): then the id is ZooKeeper's.
    While that does not answer, nothing is raised: the cleaner does not wait with the logs that are to be copied.
    """
    planned = planned_id(run.ledger, "source")
    try:
        now = id_in_root(run.source_files, run.source_root)
    except FileNotFoundError:
        return  # not known: whoever needs more of it will fail
    except PermissionDeniedError:
        try:
            now = run.source.cluster_id()
        except TransientError:  # also while no KDC answers
            return
    if planned not in (None, now):
        raise AnotherClusterError(
            f"the cluster at {run.log_spec.source.address().cluster} is another one now: its id is {now}, not "
            f"{planned}. What was copied of the first one stays in {run.staged_folder}",
            run=run.run_id, cluster_id=now,
        )  # fmt: skip


def require_whole_log(run: LogRun) -> None:
    """Raise TransientError if servers keep their logs elsewhere: what is listed is then not all of the log. To be asked
    after copying, and before it is noted that all is kept: what is here must be copied meanwhile."""
    require_log_folder(run.source, "source", run.source_tables, run.wal_files)


def tend(run: LogRun) -> float | None:
    """Copy every closed file that has no copy yet. Returns the seconds until the next call; None: no further call.

    A file that cannot be copied does not stop the others. Once those are copied, raises the first error: a
    TransientError or an error of either file system. Raises the errors of `require_same_source`, and once all are
    copied those of `require_whole_log`.
    """
    if is_over(run):
        leave(run)
        return None
    looked_ms = now_ms()
    if not run.ledger.log.fence("start"):
        _note(run, [], looked_ms)
        return 1.0
    stage = stage_of(run)
    require_same_source(run)
    _sweep(stage)
    fences = run.fences()
    listed = [file for file in list_wals(stage.source, stage.root) if fences.starts_by(file)]
    known = run.ledger.staged.known([file.name for file in listed])
    newest = {file.group: file.number for file in listed}  # `listed` is ordered by number
    todo = [
        file for file in listed
        if file.name not in known or (file.place is Place.ARCHIVED and file.length != known[file.name].bytes)
    ]  # fmt: skip
    waiting = {file.name: file for file in todo if file.place is Place.ARCHIVED or file.number != newest[file.group]}
    todo.sort(key=lambda file: file.modified_ms)  # copy first what the cleaner deletes first
    errors: list[Exception] = []
    with ThreadPoolExecutor(AT_ONCE, "stage") as pool:
        tries = {pool.submit(_copy_if_final, stage, file, newest[file.group]): file for file in todo}
        for done in as_completed(tries):
            file = tries[done]
            try:
                if (copied := done.result()) is not None:
                    run.ledger.staged.record(copied)
                    waiting.pop(file.name, None)
                    log.info("staged WAL file %s, %d bytes", file.name, copied.bytes)
                elif file.place is not Place.ARCHIVED and file.name in waiting:
                    # The file is not closed yet: until then its modification time may be old.
                    waiting[file.name] = replace(file, modified_ms=max(file.modified_ms, looked_ms))
            except Exception as error:  # must not keep the others from being copied
                log.warning("WAL file %s could not be copied and may be lost: %s", file.path, error)
                errors.append(error)
    if is_over(run):
        leave(run)
        return None
    require_whole_log(run)
    kept = _note(run, list(waiting.values()), looked_ms)
    if errors:
        raise errors[0]
    return pause_seconds(kept.ttl_seconds)


def take_stock(run: LogRun, listed: Sequence[WalFile]) -> None:
    """Nothing to do: `tend` lists the source's files more often."""


def _note(run: LogRun, waiting: Sequence[WalFile], looked_ms: int) -> Retention:
    """Record what is kept, and which of the `waiting` files, closed but not copied, the cleaner would delete first. Log
    and audit an error if the previous look was too long ago."""
    kept = retention_now(run)
    first = min(waiting, key=lambda file: file.modified_ms, default=None)
    lost_ms = None if first is None else first.modified_ms + round(kept.ttl_seconds * 1000)
    files, size = run.ledger.staged.size()
    exposure = Exposure(
        f"copies in {_url(run)}", files, size, False, first.name if first else None, lost_ms,
        kept.ttl_seconds, kept.assumed, looked_ms,
    )  # fmt: skip
    if (standstill := note_exposure(run.ledger, exposure)) is not None:
        log.error("%s", standstill.describe())
        run.ledger.audit(run.actor, "log not looked at", asdict(standstill))
    return kept


def pause_seconds(ttl_seconds: float) -> float:
    """Seconds until the source must be listed again: a small part of the cleaner's time to live."""
    return min(30.0, max(1.0, ttl_seconds / 20))


def _final(stage: Stage, file: WalFile, newest: int) -> WalFile | None:
    """The file as it is now if its contents and its end are final, or may be. `newest`: the group's highest number.

    A file without a trailer may be final: `_copy` compares the bytes it can read with the length the NameNode lists.
    """
    if file.place is Place.ARCHIVED:
        return file
    if file.place is Place.LIVE:
        if file.number == newest:
            return None
        if (sealed := if_sealed(stage.source, stage.root, file)) is not None:
            return sealed
    aged = time.time() * 1000 - file.modified_ms > CLOSE_SECONDS * 1000
    return file if file.length and aged else None


def _copy_if_final(stage: Stage, file: WalFile, newest: int) -> StagedFile | None:
    """Copy a file if it may be final; otherwise None."""
    now = _final(stage, file, newest)
    return None if now is None else _copy(stage, now)


def _copy(stage: Stage, file: WalFile) -> StagedFile | None:
    """Copy a file; None, to be tried again, if the file is not final yet or has moved since it was listed."""
    unfinished = f"{stage.path}/{file.name}.{uuid4().hex}{UNFINISHED}"
    digest, size = hashlib.sha256(), 0

    def chunks() -> Iterator[bytes]:
        nonlocal size
        for chunk in stage.source.read(file.path):
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    try:
        stage.files.write(unfinished, chunks())
        written = stage.files.status(unfinished)
        if size != file.length or written is None or written.length != size:
            stage.files.delete(unfinished)
            return None
        final = f"{stage.path}/{file.name}"
        there = stage.files.status(final)
        if there is not None and there.length != size:
            stage.files.delete(final)
        try:
            stage.files.rename(unfinished, final)
        except FileExistsError:  # another process has copied it
            stage.files.delete(unfinished)
    except FileNotFoundError:
        stage.files.delete(unfinished)
        return None
    except BaseException:
        with suppress(Exception):  # the first error says more
            stage.files.delete(unfinished)  # a full folder must not fill up with attempts
        raise
    return StagedFile(file.name, size, digest.hexdigest(), now_ms())


def _sweep(stage: Stage) -> None:
    """Delete unfinished copies of killed processes."""
    try:
        found = stage.files.list(stage.path)
    except FileNotFoundError:
        return  # another process has just renamed a copy
    for status in found:
        if status.name.endswith(UNFINISHED) and now_ms() - status.modified_ms > LEFT_MS:
            try:
                stage.files.delete(status.path)
            except Exception as error:  # copying is more urgent
                log.warning("cannot delete %s, which a killed process left behind: %s", status.path, error)


def is_over(run: LogRun) -> bool:
    """Whether nobody needs the log any more: the last gate was passed, or the run was ended."""
    return run.ledger.phases.facts("check_drain") is not None or run.ledger.record.state != "running"


def leave(run: LogRun) -> None:
    """Remove the folder again: a copy may have been written just after a release or an abort removed it."""
    if run.ledger.phases.find("release") is not None or run.ledger.record.state != "running":
        stage = stage_of(run)
        try:
            stage.files.delete(stage.path, recursive=True)
        except Exception as error:  # the file system may be gone for good: end with the run, like `objects.release`
            log.warning("%s cannot be deleted: if it is still there, delete it yourself: %s", _url(run), error)


def _url(run: LogRun) -> str:
    url = run.staged_folder
    if url is None:
        raise UsageError(f"run {run.run_id} has no folder for copies of WALs", run=run.run_id)
    return url


def stage_of(run: LogRun) -> Stage:
    """The source's own files, without copies, and the run's folder. Raises UsageError if the run has no folder."""
    source = log_files_of(run.log_spec.source_address())
    return Stage(source, run.wal_root, *open_folder(_url(run), run.source.address))
