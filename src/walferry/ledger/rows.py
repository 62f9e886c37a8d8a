"""The ledger's rows as frozen dataclasses.

Times are milliseconds since 1970 UTC, offsets are bytes of a WAL file and ranges are [start, end).
Where a column's name differs from the field's (SQL reserves `table`, `start`, `end`, `group`), the field's metadata
has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from walferry.errors import class_of, message_of
from walferry.refusals import GapKind, RefusalKind

RunState = Literal["running", "done", "failed", "aborted"]
RunKind = Literal[
    "migration", "snapshot", "copy", "standby", "comparison", "window", "drain", "watch", "pair", "stream", "keep",
    "restore", "replication", "setup", "receive",
]  # fmt: skip
PhaseState = Literal["running", "done", "failed"]
ObjectState = Literal["planned", "made", "removed"]
FileState = Literal["open", "sealed", "missing"]
RangeState = Literal["seen", "sealed", "applied", "verified"]
FenceKind = Literal["start", "end"]
PieceKind = Literal["group", "rows"]
"""How a piece is applied: files of one WAL group in order, or a range of rows of all files."""
PieceState = Literal["waiting", "running", "done"]
ClusterSide = Literal["source", "target"]
ObjectKind = Literal[
    "peer", "folder", "snapshot", "table", "read-only table", "durability", "staging folder", "scope", "sink"
]
"""What walferry creates or sets on a cluster: a replication peer, a folder with copies of the source's WALs, a
snapshot, a target table (which stays when the run ends), READONLY of a source table, and another DURABILITY of a target
table ("table=its previous value"), a folder where HFiles wait to be bulk-loaded, REPLICATION_SCOPE of the families of a
table ("table=the previous values, as JSON"), and the node of ZooKeeper below which a source finds a run's processes."""
Resolution = Literal["retry", "rpc", "reread", "accept"]
Purpose = Literal["phase", "verify"]
"""What a comparison was made for: the run's own phase `compare`, or `walferry verify`."""
DifferenceKind = Literal[
    "in-flight",
    "not-in-log",
    "history-dependent",
    "snapshot-marker",
    "expired-overwrite",
    "left-out",
    "written-at-target",
    "changed-since-opening",
    "unexplained",
]
"""Why a row differs (walferry/migration/explaining/difference_classes.py)."""

RANGE_STATES: tuple[RangeState, ...] = ("seen", "sealed", "applied", "verified")
"""The states in the order in which a range passes through them. A range never moves back."""


@dataclass(frozen=True)
class RunRecord:
    """One run; `run_id` is its name with a number."""

    run_id: str
    name: str
    owner: str
    spec: dict[str, Any]
    state: RunState
    paused: bool
    outcome: str
    created_ms: int
    ended_ms: int | None
    kind: RunKind = "migration"


@dataclass(frozen=True)
class PhaseRecord:
    """One phase of a run, for the whole run (subject "") or for a table."""

    phase: str
    subject: str
    state: PhaseState
    attempts: int
    started_ms: int
    finished_ms: int | None
    facts: dict[str, Any]
    error: str
    """of a failed phase: its error as `errors.as_recorded` formats it, or why the phase must be done again"""
    transient: bool = False
    """of a failed phase: another attempt may succeed"""

    @property
    def error_class(self) -> str:
        """The class of a failed phase's error; "" when the phase must only be done again."""
        return class_of(self.error)

    @property
    def message(self) -> str:
        """A failed phase's error, for people."""
        return message_of(self.error)


@dataclass(frozen=True)
class ClusterObject:
    """Something that walferry creates or sets on a cluster (`ObjectKind`)."""

    cluster: ClusterSide
    kind: ObjectKind
    name: str
    state: ObjectState
    planned_ms: int
    made_ms: int | None
    removed_ms: int | None


@dataclass(frozen=True)
class Lease:
    """Who held the right to write to a target table; `fencing_number` only rises per resource."""

    resource: str
    fencing_number: int
    run_id: str
    holder: str
    taken_ms: int
    released_ms: int | None


@dataclass(frozen=True)
class StagedFile:
    """A copy of one of the source's WAL files, in the run's folder under the same name."""

    name: str
    bytes: int
    sha256: str
    staged_ms: int
    removed_ms: int | None = None


@dataclass(frozen=True)
class Base:
    """A FLUSH snapshot of a table that a run of kind `keep` has taken. Times in ms since 1970 UTC, by this machine."""

    snapshot: str
    """its name at the source"""
    table: str = field(metadata={"column": "table_name"})
    fence: dict[str, int]
    """for each WAL group that was alive the number of the first file that may have edits which the snapshot lacks"""
    begun_ms: int
    """before the snapshot was requested"""
    complete_ms: int
    """the snapshot was complete by then"""
    bytes: int
    """of its store files"""
    copied_ms: int | None = None
    """when all of its files were in the run's folder; None: they are only at the source"""
    dropped_ms: int | None = None


@dataclass(frozen=True)
class RegionNumber:
    """The last applied entry of a region."""

    table: str = field(metadata={"column": "table_name"})
    region: str
    number: int = field(metadata={"column": "last_number"})
    file: str
    edit: bool
    """False: a marker"""


@dataclass(frozen=True)
class NumberGap:
    """Numbers of a region, both included, that no file has, and a person's decision that nothing was lost there."""

    table: str = field(metadata={"column": "table_name"})
    region: str
    first: int = field(metadata={"column": "first_missing"})
    last: int = field(metadata={"column": "last_missing"})
    file_before: str
    file_after: str
    found_ms: int
    accepted_ms: int | None = None
    accepted_by: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class LogPosition:
    """A position in the log of one WAL group: byte `offset` of the file with this `number` in its name."""

    group: str = field(metadata={"column": "wal_group"})
    file: str
    number: int
    offset: int = field(metadata={"column": "at_offset"})


@dataclass(frozen=True)
class SeenFile:
    """A WAL file in one listing. `sealed`: nobody writes to it any more and `length` is final."""

    name: str
    group: str = field(metadata={"column": "wal_group"})
    server: str
    number: int
    path: str
    length: int
    sealed: bool


@dataclass(frozen=True)
class RecordedFile:
    """All that is known of a WAL file. `sealed_ms` None: no listing showed the file sealed."""

    name: str
    group: str = field(metadata={"column": "wal_group"})
    server: str
    number: int
    path: str
    length: int
    state: FileState
    first_seen_ms: int
    sealed_ms: int | None
    applied: bool = False
    """for every table of the run"""


@dataclass(frozen=True)
class WalRange:
    """Bytes [start, end) of a file for one table; `entries` and `cells` count only that table's."""

    file: str
    start: int = field(metadata={"column": "start_offset"})
    end: int = field(metadata={"column": "end_offset"})
    table: str = field(metadata={"column": "table_name"})
    entries: int
    cells: int
    first_write_ms: int | None
    """of an entry, also of a marker"""
    last_write_ms: int | None
    """of an edit"""
    state: RangeState


@dataclass(frozen=True)
class Coverage:
    """Bytes of a WAL group by their current state, for one table; the four add up to all that was read."""

    group: str = field(metadata={"column": "wal_group"})
    table: str = field(metadata={"column": "table_name"})
    seen: int
    sealed: int
    applied: int
    verified: int


@dataclass(frozen=True)
class Gap:
    """Bytes that the run must still apply. An empty range: the file's real end is unknown."""

    file: str
    start: int = field(metadata={"column": "start_offset"})
    end: int = field(metadata={"column": "end_offset"})
    table: str = field(metadata={"column": "table_name"})
    kind: GapKind
    reason: str


@dataclass(frozen=True)
class KnownRegion:
    """What the snapshot and the applied part of the log show about a region."""

    table: str = field(metadata={"column": "table_name"})
    region: str
    store_files: frozenset[str]
    """files that the region certainly has, each as "family/name" """
    closed_sequence: int | None = None
    """sequence number of the region's closing, if the log shows nothing later"""
    closed_file: str = ""
    closed_offset: int = 0
    closed_ms: int = 0
    replaced_files: frozenset[str] = frozenset()
    """store files that a compaction removed before the log showed that they had been added"""


@dataclass(frozen=True)
class QuarantineItem:
    """Bytes that could not be applied, and why. ANY_TABLE and ANY_REGION where table and region cannot be decoded."""

    file: str
    start: int = field(metadata={"column": "start_offset"})
    end: int = field(metadata={"column": "end_offset"})
    table: str = field(metadata={"column": "table_name"})
    region: str
    sequence_number: int
    reason: str
    data: bytes
    kind: RefusalKind = RefusalKind.REFUSED


@dataclass(frozen=True)
class Quarantined:
    """A quarantined item with its state and resolution."""

    quarantine_id: int
    run_id: str
    file: str
    start: int = field(metadata={"column": "start_offset"})
    end: int = field(metadata={"column": "end_offset"})
    table: str = field(metadata={"column": "table_name"})
    region: str
    sequence_number: int
    reason: str
    data: bytes
    state: Literal["held", "released"]
    resolution: Resolution | None
    release_reason: str | None
    released_by: str | None
    recorded_ms: int
    released_ms: int | None
    kind: RefusalKind = RefusalKind.REFUSED


@dataclass(frozen=True)
class Hold:
    """A region held by a quarantined item: the run applies nothing of the region from `from_offset` on."""

    file: str
    table: str = field(metadata={"column": "table_name"})
    region: str
    from_offset: int
    quarantine_id: int


@dataclass(frozen=True)
class ComparedTable:
    """One comparison of a table, its purpose and what it is based on."""

    table: str = field(metadata={"column": "table_name"})
    attempt: int
    """its number among the table's comparisons in this run"""
    purpose: Purpose
    phase_attempt: int
    """attempt of the phase `compare`; 0 for `walferry verify`"""
    drain_attempt: int
    """attempt of the phase `drain` that was done before it; 0 when there was none"""
    end_fence: str
    """digest of the end fence when the comparison started; "" without a fence"""
    began_ms: int
    ended_ms: int
    differing_rows: int


@dataclass(frozen=True)
class RangeComparison:
    """Both sides of a source region's row range [start, stop), read side by side. Digests are hex."""

    table: str = field(metadata={"column": "table_name"})
    region: str
    start: bytes = field(metadata={"column": "start_row"})
    stop: bytes = field(metadata={"column": "stop_row"})
    source_rows: int
    source_cells: int
    source_digest: str
    target_rows: int
    target_cells: int
    target_digest: str
    dropped: dict[str, Any]
    """invisible cells by side and fate"""
    expiring: int = 0
    """cells whose TTL ended during the read, compared because both sides held them"""
    uncompared: int = 0
    """cells whose TTL ended during the read, not compared because only one side held them"""
    first_ms: int | None = None
    """when the first piece of the range was requested"""
    last_ms: int | None = None
    """the moment at which the last piece was resolved"""

    @property
    def equal(self) -> bool:
        """Whether both sides are equal and everything was compared."""
        source = (self.source_rows, self.source_cells, self.source_digest)
        return source == (self.target_rows, self.target_cells, self.target_digest) and not self.uncompared


@dataclass(frozen=True)
class Difference:
    """A row that differs; `kind` is the class of the difference, `fingerprint` identifies exactly its cells."""

    table: str = field(metadata={"column": "table_name"})
    row: bytes = field(metadata={"column": "row_key"})
    kind: DifferenceKind
    detail: str
    fingerprint: str = ""


@dataclass(frozen=True)
class AcceptedDifference:
    """A person's decision to accept exactly this difference."""

    table: str = field(metadata={"column": "table_name"})
    row: bytes = field(metadata={"column": "row_key"})
    fingerprint: str
    detail: str
    reason: str
    accepted_by: str
    accepted_ms: int


@dataclass(frozen=True)
class Round:
    """One pass of the replay over the sealed files, for rate and lag over time."""

    number: int
    started_ms: int
    finished_ms: int
    files: int
    bytes: int
    entries: int
    cells: int
    lag_ms: int
    backlog_bytes: int
    pieces: int = 0
    repeated: int = 0
    """attempts at pieces beyond the first"""

    @property
    def covered_ms(self) -> int:
        """The start of this round's cut: after the round, everything written before that moment is applied."""
        return self.finished_ms - self.lag_ms


@dataclass(frozen=True)
class RoundTotals:
    """Sums over all rounds of a run."""

    rounds: int = 0
    bytes: int = 0
    entries: int = 0
    cells: int = 0
    longest_lag_ms: int = 0
    """just before a round ended: until then the target was as old as the previous round's cut"""

    def with_round(self, made: Round, previous: Round | None, *replaced: Round) -> RoundTotals:
        """The sums with another round, which follows `previous` and takes the place of the rounds `replaced`."""
        age_ms = made.finished_ms - previous.covered_ms if previous else 0
        return RoundTotals(
            self.rounds + 1 - len(replaced),
            self.bytes + made.bytes - sum(other.bytes for other in replaced),
            self.entries + made.entries - sum(other.entries for other in replaced),
            self.cells + made.cells - sum(other.cells for other in replaced),
            max(self.longest_lag_ms, made.lag_ms, age_ms),
        )


@dataclass(frozen=True)
class BatchRecord:
    """A batch of sealed files that the run has not completely applied; `plan` is JSON of the room that applies it."""

    plan: str
    started_ms: int


@dataclass(frozen=True)
class Piece:
    """A part of a batch that the run applies and records on its own.

    `plan` and `outcome` are JSON of the room that applies the piece.

    `subject` is a WAL group or a range of rows, as text. The oldest edits are in the lowest number.
    """

    number: int
    kind: PieceKind
    subject: str
    plan: str
    bytes: int
    state: PieceState = "waiting"
    attempts: int = 0
    started_ms: int | None = None
    finished_ms: int | None = None
    outcome: str = ""


@dataclass(frozen=True)
class AuditLine:
    """One line of the audit trail, chained to the previous one by `hash`."""

    sequence: int
    at_ms: int
    actor: str
    action: str
    run_id: str | None
    inputs: dict[str, Any]
    outcome: str
    hash: str


@dataclass(frozen=True)
class AuditHead:
    """The newest line of the trail. Kept outside the ledger, it proves that no line was cut off the end."""

    sequence: int
    hash: str
