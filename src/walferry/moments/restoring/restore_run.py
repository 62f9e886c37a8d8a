"""One run of a restore: its table, its moment, its base, and both clusters."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha1

from pydantic import ValidationError

from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import Ledger, RunRecord
from walferry.moments.restoring.base import Kept, choose
from walferry.run.notes.kept_moments import base_of_restore, note_base_of_restore
from walferry.run.recorded_spec import log_spec_of
from walferry.run.run import Run
from walferry.run.spec import Cluster, ResolvedSpec, describe_faults

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
        """The base from which the table is restored, and the id of the run that keeps base and log. Raises UsageError
        if the base no longer exists."""
        if self._chosen is not None:
            return self._chosen
        given = base_of_restore(self.ledger)
        if given is None:
            raise UsageError(f"run {self.run_id} has no base: abort it, and start the restore again", run=self.run_id)
        keeper, snapshot = given
        for base in self.ledger.whole.of(keeper).bases.there(self.table):
            if base.snapshot == snapshot:
                return keeper, base
        raise UsageError(
            f"run {keeper} no longer has base {snapshot} of {self.table}: it was dropped. Abort this restore, "
            "and start it again",
            run=keeper, base=snapshot,
        )  # fmt: skip

    @property
    def same_cluster(self) -> bool:
        """Whether the new table is made at the source."""
        return self.source.cluster_id() == self.target.cluster_id()

    def snapshot(self, source_table: str) -> str:
        """The name of the base's snapshot, on both sides."""
        return self.kept[1].snapshot


def open_restore(ledger: Ledger, planned: RunRecord, kept: Kept, owner: str) -> str:
    """Open the run of a restore (`planned`), or find the owner's unfinished one. Returns its id."""
    keeper, base = kept
    run = ledger.open_run(planned.name, owner, planned.spec, owner, "restore")
    note_base_of_restore(ledger.of(run.run_id), keeper, base.snapshot)
    return run.run_id


def chosen(ledger: Ledger, table: str, at_ms: int, wanted: str | None = None) -> Kept:
    """The base from which a table is restored to a moment: the newest one that was complete then, or the `wanted` one
    by its snapshot's name. Raises NoBaseError, and UsageError."""
    table = table.removeprefix("default:")
    kept = ledger.of("").bases.of_all_runs(table)
    sources = {log_spec_of(ledger.run(run_id)).source.zookeeper for run_id, _ in kept}
    if len(sources) > 1 and wanted is None:
        raise UsageError(
            f"bases of {table} are kept of several clusters ({', '.join(sorted(sources))}): name a base", table=table
        )
    return choose(kept, table, at_ms, wanted)


def planned(
    ledger: Ledger, table: str, at_ms: int, new_table: str, kept: Kept, target: Cluster | None = None
) -> RunRecord:
    """The run that a restore would get, without recording it. `target`: the cluster of the new table; None: the source.

    Raises UsageError for names that cannot be used.
    """
    keeper, base = kept
    source = log_spec_of(ledger.run(keeper)).source
    cluster = target or source
    mark = sha1(f"{new_table} {cluster.zookeeper} {cluster.znode}".encode(), usedforsecurity=False).hexdigest()[:6]
    name = f"restore_{_PLAIN.sub('_', new_table.lower())[:25]}_{mark}"
    spec = {
        "name": name,
        "source": source,
        "target": cluster,
        "tables": [{"source": table.removeprefix("default:"), "target": new_table.removeprefix("default:")}],
        "window": {"from": _moment(base.begun_ms), "to": _moment(at_ms + 1)},
    }
    try:
        recorded = ResolvedSpec.model_validate(spec).as_recorded()
    except ValidationError as error:
        raise UsageError(f"restore {table} as {new_table}: {describe_faults(error)}", table=table) from None
    return RunRecord(name, name, "", recorded, "running", False, "", now_ms(), None, "restore")


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
