"""The shape of a run's status, which `walferry status --json` prints and docs/json/status.schema.json describes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from walferry.ledger.rows import RunKind
from walferry.run.phases import Waits
from walferry.run.progress.batch_progress import BatchProgress
from walferry.run.progress.receiving import ReceivingShown
from walferry.run.progress.requests import RequestRate
from walferry.run.progress.states import Colour, StateName


class LagParts(BaseModel):
    """A lag and what it consists of: the three parts add up to it."""

    model_config = ConfigDict(frozen=True)

    server: str = Field(description="the server of the log: host, port and start code")
    group: str = Field(description="the WAL group of that log")
    lag_seconds: float = Field(description="all three parts")
    discovery_seconds: float = Field(description="waiting until a pass lists the log")
    read_seconds: float = Field(description="reading the log")
    apply_seconds: float = Field(description="applying what was read")
    shown_after_seconds: float | None = Field(
        description="age of the oldest edit when the newest pass that found any read it; null if none did"
    )
    text: str = Field(description="the same in words")


class ThrottleShown(BaseModel):
    """What the run may write to the target per second; null: there is no limit."""

    model_config = ConfigDict(frozen=True)

    write_bytes: float | None = Field(description="bytes per second of cells, or of HFiles with cells")
    write_cells: float | None = Field(description="cells per second")
    text: str = Field(description="the same in words; empty without limits")


class LogKept(BaseModel):
    """What keeps the source's log, and when the first unread WAL may be lost."""

    model_config = ConfigDict(frozen=True)

    kept_by: str = Field(description="the peer, or the folder with copies, in words")
    kept_files: int = Field(description="files that exist only because of it")
    kept_bytes: int = Field(description="bytes of these files")
    time_to_loss_seconds: float | None = Field(
        description="time until the first unread WAL may be lost, 0 if it may be lost already; null: never"
    )
    first_to_be_lost: str | None = Field(description="that WAL; null if it is not closed yet")
    cleaner_ttl_seconds: float = Field(description="how long the source keeps a closed WAL")
    cleaner_ttl_assumed: bool = Field(description="whether that is HBase's default because the source shows no setting")
    late: bool = Field(description="whether less than half of that time is left")
    text: str = Field(description="the same in words")


class MomentsKept(BaseModel):
    """What a run of kind `keep` has kept: any moment since the first base of a table can be restored."""

    model_config = ConfigDict(frozen=True)

    loss_seconds: float | None = Field(
        description="seconds of changes that a loss of the source would cost now; null before the first look at its log"
    )
    too_much: bool = Field(description="whether that is more than a minute, or three times `tail_seconds`")
    since_ms: dict[str, int | None] = Field(
        description="the first moment of each table that can be restored, in ms since 1970 (UTC); null: none yet"
    )
    bases: int = Field(description="snapshots that restores can begin from")
    copied_bases: int = Field(description="those whose files are in the folder")
    folder_bytes: int | None = Field(description="bytes in the run's folder; null: not counted yet")
    lost_ends: int = Field(description="logs that HBase deleted before they were copied whole")
    troubles: dict[str, str] = Field(description="why tables have no new base, by table")
    text: str = Field(description="the same in words")


class UnwatchedTimeShown(BaseModel):
    """A time in which nobody looked at the source's log, longer than a closed WAL is kept there."""

    model_config = ConfigDict(frozen=True)

    from_ms: int = Field(description="when it began, in ms since 1970 (UTC)")
    until_ms: int = Field(description="when it ended, in ms since 1970 (UTC)")
    ttl_seconds: float = Field(description="how long the source kept a closed WAL then")
    text: str = Field(description="the same in words")


class CountedShown(BaseModel):
    """Sequence numbers of a table that no entry of the log has, and that shut no gate."""

    model_config = ConfigDict(frozen=True)

    table: str = Field(description="the source table")
    places: int = Field(description="places in the log where numbers are missing")
    numbers: int = Field(description="numbers that are missing there")
    accepted_ms: int | None = Field(description="when a person accepted them, in ms since 1970 (UTC); null: nobody has")
    accepted_by: str | None = Field(description="who accepted them; null: nobody has")
    reason: str | None = Field(description="why that person did; null: nobody has")
    text: str = Field(description="the same in words")


class RunShown(BaseModel):
    """What the status and the report of a run have in common."""

    model_config = ConfigDict(frozen=True)

    run: str = Field(description="the run's id: its name and a number")
    kind: RunKind = Field(description="the kind of run; docs/architecture.md lists them")
    state: StateName = Field(description="the state now; docs/board.md lists all states")
    colour: Colour = Field(description="the state's colour on the board")
    cause: str = Field(description="why the run is in this state, in words")
    next_step: str = Field(description="what a person can do, in words")
    waits_for: Waits | Literal["decision"] | None = Field(description="the answer that the run waits for; null: none")
    whom: str = Field(description="who must give that answer, and where; empty without one")
    longest_lag_seconds: float | None = Field(description="the longest lag so far; null before the first round")
    write_stop_seconds: float | None = Field(
        description="how long clients could not write, so far or in total; null before the write stop"
    )
    seconds_since_last_edit: float | None = Field(
        description="the same, counted from the log's last edit; null before the write stop, or without edits"
    )
    write_stop_over: bool = Field(description="whether clients can write again, to the target")
    standstills: tuple[UnwatchedTimeShown, ...] = Field(
        description="times in which the source's log was not looked at, oldest first"
    )
    counted_numbers: tuple[CountedShown, ...] = Field(description="missing numbers that shut no gate, by table")
    receiving: ReceivingShown | None = Field(
        description="what a run of kind `receive` was sent, and by which processes; null for other runs"
    )


class Status(RunShown):
    """The status of a run: what `walferry status --json` prints, and the board shows of each run."""

    version: Literal[1] = Field(description="rises when a field is removed or changes its meaning")
    since_ms: int = Field(description="when the state began, in ms since 1970 (UTC)")
    ended: bool = Field(description="whether the run has ended, as done or aborted")
    phase: str = Field(description="the phase that the state is about, with its table; `not started` before the first")
    error: str | None = Field(description="the error of that phase; null if it has not failed")
    error_class: str | None = Field(description="the class of that error; null if there is none")
    percent: float = Field(description="phases that are done, of all phases of the run, in percent")
    edits_applied: int = Field(description="cells applied from the log; for a stream: sent")
    edits_per_second: float = Field(
        description="cells applied, or sent, per second over the last five minutes; 0 once the run has ended"
    )
    backlog_bytes: int = Field(description="bytes of the log that the ledger knows of and that are not applied")
    open_logs: int = Field(description="WALs among these that the source still writes")
    lag_seconds: float | None = Field(
        description="age of the newest moment before which everything is at the target, or sent; null while unmeasured"
    )
    lag_unknown: str = Field(description="why there is no lag, in words; empty if there is one")
    not_followed: str = Field(description="why open logs are not followed now, in words; empty if they are")
    lag_split: LagParts | None = Field(description="the lag in parts, with the slowest log; null if it is not known")
    lag_by_server: tuple[LagParts, ...] = Field(description="the slowest logs, the slowest first, at most 20")
    target_open_ms: int | None = Field(
        description="when the write stop ended, in ms since 1970 (UTC); null before that"
    )
    elapsed_seconds: float = Field(description="how long the run has taken, so far or in total")
    requests: dict[str, dict[str, RequestRate]] = Field(
        description="requests to the clusters, by side (source, target) and service"
    )
    throttle: ThrottleShown = Field(description="what the run may write to the target")
    late_edits: int = Field(description="edits after the end fence that wait for a decision")
    log: LogKept | None = Field(description="what keeps the source's log; null if nothing is read, or not known yet")
    moments: MomentsKept | None = Field(description="what a run of kind `keep` has kept; null for other runs")
    batch: BatchProgress | None = Field(description="the batch that a replay applies now; null without one")
    eta_seconds: int | None = Field(
        description="time until the backlog is applied; null while unknown, and unless the run catches up or drains"
    )
