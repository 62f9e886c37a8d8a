"""One run of a restore: its table, its moment, its base, and both clusters."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha1
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import TableDescriptor
from walferry.hbase.versions import release_of
from walferry.ledger import Ledger, RunLedger, RunRecord
from walferry.moments.restoring.base import Kept, choose
from walferry.moments.restoring.log_part import NONE
from walferry.replay.log.lineage import families_of
from walferry.run.notes.kept_moments import BaseOfRestore, base_of_restore, copied_ends, note_base_of_restore
from walferry.run.recorded_spec import log_spec_of, spec_of
from walferry.run.run import Run
from walferry.run.spec import Cluster, ResolvedSpec, describe_faults
from walferry.settings import LogTimes
from walferry.snapshots.manifest import read_manifest
from walferry.wal.copies import as_url, open_folder
from walferry.wal.files import WalFile, list_archive, list_wals

_PLAIN = re.compile("[^a-z0-9_]")


class RestoreRun(Run):
    """A run of kind `restore`. Its spec's window begins with the base and ends with the moment."""

    def __init__(
        self, ledger: Ledger, record: RunRecord | str, actor: str | None = None, given: Kept | None = None
    ) -> None:
        """As `Run`. `given`: the base of a run that is not in the ledger, for a dry run."""
        super().__init__(ledger, record, actor)
        self._chosen = given

    @property
    def table(self) -> str:
        """The table that is restored, by its name at the source."""
        return self.tables[0].source

    @property
    def new_table(self) -> str:
        """The table that is made, by its name at the target."""
        return self.tables[0].target

    @property
    def at_ms(self) -> int:
        """The moment, in ms since 1970 UTC: what was written at or before it belongs to it."""
        assert self.spec.window is not None, f"{self.run_id} has no window"
        return self.spec.window.end_ms - 1

    @cached_property
    def kept(self) -> Kept:
        """The base from which the table is restored. Raises UsageError if it no longer exists."""
        if self._chosen is not None:
            return self._chosen
        given = base_of_restore(self.ledger)
        if given is None:
            raise UsageError(f"run {self.run_id} has no base: abort it, and start the restore again", run=self.run_id)
        for base in self.ledger.whole.of(given.keeper).bases.there(self.table):
            if base.snapshot == given.snapshot:
                return Kept(given.keeper, base, given.alone, given.latest)
        raise UsageError(
            f"run {given.keeper} no longer has base {given.snapshot} of {self.table}: it was dropped. Abort this "
            "restore, and start it again",
            run=given.keeper, base=given.snapshot,
        )  # fmt: skip

    @property
    def keeper(self) -> RunLedger:
        """The ledger's part of the run that keeps base and log."""
        return self.ledger.whole.of(self.kept.keeper)

    @property
    def same_cluster(self) -> bool:
        """Whether the new table is made at the source."""
        return not self.kept.alone and self.source.cluster_id() == self.target.cluster_id()

    def snapshot(self, source_table: str) -> str:
        """The name of the base's snapshot, on both sides."""
        return self.kept.base.snapshot

    # ------------------------------------------------------------------ base and log: the source, or the folder alone

    @cached_property
    def _folder(self) -> str:
        """The URL of the keeper's folder."""
        stage = log_spec_of(self.ledger.whole.run(self.kept.keeper)).stage
        assert stage is not None, f"{self.kept.keeper} has no folder"
        return f"{as_url(stage)}/{self.kept.keeper}"

    @cached_property
    def staged_folders(self) -> tuple[str, ...]:
        """As `LogRun`; without the source, only the keeper's folder."""
        return (self._folder,) if self.kept.alone else super().staged_folders

    def source_address(self, workers: int = 0) -> ClusterAddress:
        """As `LogRun`; without the source, with the keeper's folder in place of its file system."""
        address = super().source_address(workers)
        return replace(address, root_copy=self._folder) if self.kept.alone else address

    @cached_property
    def source_root(self) -> str:
        """As `LogRun`; without the source, the keeper's folder, which is laid out in the same way."""
        if not self.kept.alone:
            return super().source_root
        return open_folder(self._folder, self.source_address())[1]

    @cached_property
    def wal_root(self) -> str:
        """As `LogRun`; without the source, the keeper's folder."""
        return self.source_root if self.kept.alone else super().wal_root

    @property
    def source_uuid(self) -> UUID:
        """As `LogRun`, known without the source, too."""
        return UUID(self._planned["cluster_id"]) if self.kept.alone else super().source_uuid

    @property
    def opens_past_closing(self) -> bool:
        """`Release.opens_past_closing` of the source, known without it, too."""
        if not self.kept.alone:
            return self.source.release.opens_past_closing
        return release_of(self._planned["version"]).opens_past_closing

    @property
    def _planned(self) -> dict[str, Any]:
        """What the keeper's plan has found of the source."""
        facts = self.keeper.phases.facts("plan")
        assert facts is not None, f"{self.kept.keeper} has bases without a plan"
        return facts

    def list_log(self) -> list[WalFile]:
        """The files of the log, as `list_wals`; without the source, its copies."""
        return (list_archive if self.kept.alone else list_wals)(self.wal_files, self.wal_root)

    def servers(self) -> set[str]:
        """The names of the source's live servers; without the source, none."""
        return set() if self.kept.alone else {server.name for server in self.source.servers()}

    def families(self, table: str) -> Collection[str] | None:
        """The table's families now, None if it was dropped; without the source, those of its last base in the
        folder."""
        if not self.kept.alone:
            return families_of(self.source, table)
        last = [base for base in self.keeper.bases.there(table) if base.copied_ms][-1]
        manifest = read_manifest(self.source_files, self.source_root, last.snapshot)
        return TableDescriptor(manifest.table_schema).families


def open_restore(ledger: Ledger, planned: RunRecord, kept: Kept, owner: str) -> str:
    """Open the run of a restore (`planned`), or find the owner's unfinished one. Returns its id.

    Raises UsageError if the unfinished one began from another base, or reads it elsewhere.
    """
    given = BaseOfRestore(keeper=kept.keeper, snapshot=kept.base.snapshot, alone=kept.alone, latest=kept.latest)
    run = ledger.open_run(planned.name, owner, planned.spec, owner, "restore")
    before = base_of_restore(ledger.of(run.run_id))
    if before not in (None, given):
        raise UsageError(
            f"{run.run_id} is not finished, and began from {before.described}: `walferry resume {run.name}`, or "
            f"`walferry abort {run.name}` to begin again",
            run=run.run_id,
        )  # fmt: skip
    note_base_of_restore(ledger.of(run.run_id), given)
    return run.run_id


def chosen(
    ledger: Ledger, table: str, at_ms: int | None, wanted: str | None = None, *, alone: bool = False
) -> tuple[Kept, int]:
    """The base from which a table is restored to a moment: the newest one that was complete then, or the `wanted` one
    by its snapshot's name. With `alone`, one that was copied to its keeper's folder, and of several keepers preferably
    one that has all of the log up to the moment. Also returns the moment: `at_ms`, or, if that is None, one that
    follows all that is in the folder.

    Raises NoBaseError, and UsageError.
    """
    table = table.removeprefix("default:")
    kept = [Kept(run_id, base, alone, at_ms is None) for run_id, base in ledger.of("").bases.of_all_runs(table)]
    if alone:
        kept = _copied(ledger, kept, table, at_ms, wanted)
    sources = {log_spec_of(ledger.run(one.keeper)).source.zookeeper for one in kept}
    if len(sources) > 1 and wanted is None:
        raise UsageError(
            f"bases of {table} are kept of several clusters ({', '.join(sorted(sources))}): name a base", table=table
        )
    found = choose(kept, table, NONE if at_ms is None else at_ms, wanted)
    return found, _latest_ms(ledger, found.keeper) if at_ms is None else at_ms


def _copied(ledger: Ledger, all_kept: Sequence[Kept], table: str, at_ms: int | None, wanted: str | None) -> list[Kept]:
    """The bases that are in a folder, of the keepers to prefer. Raises UsageError if there is none, or not `wanted`."""
    asked = [one for one in all_kept if wanted in (None, one.base.snapshot)]
    kept = [one for one in asked if one.base.copied_ms]
    if asked and not kept:
        lacking = f"no base of {table} was" if wanted is None else f"base {wanted} of {table} was not"
        raise UsageError(
            f"{lacking} copied to a folder, as with `copy_bases: true`: without the source nothing can be restored "
            "from it",
            table=table,
        )  # fmt: skip
    if wanted is not None:
        return kept or list(all_kept)
    covered = {one.keeper: _covered_ms(ledger, one.keeper) for one in kept}
    enough = max(covered.values(), default=0) if at_ms is None else at_ms + LogTimes.read().clock_skew_ms
    return [one for one in kept if covered[one.keeper] >= enough] or kept


def _covered_ms(ledger: Ledger, keeper: str) -> int:
    ends = copied_ends(ledger.of(keeper))
    return 0 if ends is None else ends.covered_ms


def _latest_ms(ledger: Ledger, keeper: str) -> int:
    """A moment that follows all that a keeper has copied of the log, by any server's clock."""
    run = ledger.of(keeper)
    ends, bases = copied_ends(run), run.bases.there()
    copied = [0 if ends is None else max(ends.at_ms, ends.ended_ms), *(base.complete_ms for base in bases)]
    copied += [file.staged_ms for file in run.staged.there()]
    return max(copied) + LogTimes.read().clock_skew_ms


def moment_of_unfinished(ledger: Ledger, name: str) -> int | None:
    """The moment of the unfinished restore of this name to the latest moment, in ms; None if there is none."""
    try:
        run = ledger.find(name)
    except UsageError:
        return None  # there is no run of that name yet
    if (run.kind, run.state) != ("restore", "running"):
        return None
    given, window = base_of_restore(ledger.of(run.run_id)), spec_of(run).window
    return window.end_ms - 1 if given is not None and given.latest and window is not None else None


def planned(
    ledger: Ledger, table: str, at_ms: int, new_table: str, kept: Kept, target: Cluster | None = None
) -> RunRecord:
    """The run that a restore would get, without recording it. `target`: the cluster of the new table; None: the source.

    Raises UsageError for names that cannot be used.
    """
    source = log_spec_of(ledger.run(kept.keeper)).source
    cluster = target or source
    mark = sha1(f"{new_table} {cluster.zookeeper} {cluster.znode}".encode(), usedforsecurity=False).hexdigest()[:6]
    name = f"restore_{_PLAIN.sub('_', new_table.lower())[:25]}_{mark}"
    spec = {
        "name": name,
        "source": source,
        "target": cluster,
        "tables": [{"source": table.removeprefix("default:"), "target": new_table.removeprefix("default:")}],
        "window": {"from": _moment(kept.base.begun_ms), "to": _moment(at_ms + 1)},
    }
    try:
        recorded = ResolvedSpec.model_validate(spec).as_recorded()
    except ValidationError as error:
        raise UsageError(f"restore {table} as {new_table}: {describe_faults(error)}", table=table) from None
    return RunRecord(name, name, "", recorded, "running", False, "", now_ms(), None, "restore")


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
