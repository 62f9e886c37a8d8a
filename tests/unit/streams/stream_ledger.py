"""A ledger filled by hand: a stream, brought to each state that it can be in."""

from __future__ import annotations

from typing import Any

from unit.migration.filled_ledger import CLUSTER, FILE, GROUP
from unit.run.progress.brought import fail, finish, work_on
from walferry import clock
from walferry.ledger import Ledger, LogPosition, QuarantineItem, Round, RunLedger, SeenFile, WalRange
from walferry.run.progress.exposure import Exposure, note_exposure
from walferry.run.progress.lag import Ahead, keep_ahead
from walferry.run.progress.states import StateName
from walferry.run.spec import Cluster
from walferry.streams.start import start_stream

TABLES = ["orders", "shop:customers"]
PARAMS: dict[str, Any] = {"name": "changes", "source": "hbase_source", "kafka": "kafka_default", "tables": TABLES}
IN_AIRFLOW = "airflow manual__1"
STATES: tuple[StateName, ...] = (
    "not started", "working", "between phases", "catching up", "following", "paused", "held", "gap", "failed",
    "interrupted", "aborted",
)  # fmt: skip
"""those that a stream can be in"""


def cluster(connection_id: str) -> Cluster:
    assert connection_id == "hbase_source"
    return Cluster.model_validate(CLUSTER)


def opened(book: Ledger, owner: str = IN_AIRFLOW) -> RunLedger:
    """A stream that has just been opened."""
    return book.of(start_stream(book, PARAMS, cluster, owner))


def follow(run: RunLedger, lag_seconds: float) -> None:
    """Up to the phase `stream`, which is at work, `lag_seconds` behind: one file is sent, one is written to."""
    finish(run, "plan", "protect", "fence")
    run.log.set_fence("start", [LogPosition(GROUP, FILE, 10, 0)])
    files = [(10, 1_000, True), (11, 0, False)]
    run.log.see_files(
        [SeenFile(f"{GROUP}.{n}", GROUP, "rs,1,2", n, f"/{n}", size, sealed=sealed) for n, size, sealed in files]
    )
    run.log.set_ranges([WalRange(FILE, 0, 1_000, table, 3, 7, 1, 2, "applied") for table in TABLES])
    note_exposure(run, Exposure("peer walferry_changes_1", 2, 5_000, True, None, None, 600.0, False, clock.now_ms()))
    work_on(run, "stream")
    now, lag_ms = clock.now_ms(), int(lag_seconds * 1000)
    keep_ahead(run, Ahead().covering(now - lag_ms, now))
    run.rounds.record(Round(1, now - 10_000, now, 0, 1_000, 30, 70, lag_ms, 0))


def brought_to(run: RunLedger, name: StateName) -> None:
    """Bring a stream that was just opened to a state."""
    match name:
        case "not started":
            pass
        case "working":
            work_on(run, "plan")
        case "between phases":
            finish(run, "plan")
        case "catching up":
            follow(run, 300)
        case "paused":
            follow(run, 1)
            run.whole.set_paused(run.run_id, True, "kim")
        case "held":
            follow(run, 1)
            run.quarantine.put([QuarantineItem(FILE, 5, 7, "orders", "r1", 4, "too large", b"\x00")])
        case "gap":
            follow(run, 1)
            run.log.mark_missing(f"{GROUP}.11")
            fail(run, "stream", f"GapError: WAL file {GROUP}.11 is missing, and was not sent past byte 12")
        case "failed":
            follow(run, 1)
            fail(run, "stream", "UsageError: topic orders has 4 partitions, but the stream began with 3")
        case "interrupted":
            follow(run, 1)
            run.notes.drop("at work", "stream")
        case "aborted":
            follow(run, 1)
            run.end("aborted", "kim", "no longer needed")
            run.phases.finish("stream", {"ended": "aborted"})
        case _:
            assert name == "following", name
            follow(run, 1)
