"""A ledger filled by hand: a run that keeps moments, brought to each state that it can be in."""

from __future__ import annotations

from typing import Any

from unit.migration.filled_ledger import CLUSTER
from unit.run.progress.brought import fail, finish, work_on
from walferry.clock import now_ms
from walferry.ledger import Ledger, RunLedger
from walferry.ledger.rows import Base
from walferry.moments.keeping.start import start_keep
from walferry.run.notes.kept_moments import CopiedEnds, note_ends, note_folder_bytes
from walferry.run.progress.exposure import Exposure, note_exposure
from walferry.run.progress.states import StateName
from walferry.run.spec import Cluster

TABLES = ["orders", "shop:customers"]
PARAMS: dict[str, Any] = {"name": "moments", "source": "hbase_source", "tables": TABLES, "folder": "/backup"}
IN_AIRFLOW = "airflow manual__1"
STATES: tuple[StateName, ...] = (
    "not started", "working", "between phases", "catching up", "following", "exposed", "paused", "failed",
    "interrupted", "aborted",
)  # fmt: skip
"""those that such a run can be in"""


def cluster(connection_id: str) -> Cluster:
    assert connection_id == "hbase_source"
    return Cluster.model_validate(CLUSTER)


def opened(book: Ledger, owner: str = IN_AIRFLOW) -> RunLedger:
    """A run that has just been opened."""
    return book.of(start_keep(book, PARAMS, cluster, owner))


def base(table: str, complete_ms: int) -> Base:
    return Base(f"moments-1-{table.replace(':', '_')}-{complete_ms}", table, {"g": 1}, complete_ms - 5, complete_ms, 10)


def keep(run: RunLedger, loss_seconds: float, tables: list[str] = TABLES) -> None:
    """Up to the phase `keep`, which is at work: a loss of the source would cost so many seconds now."""
    finish(run, "plan", "protect")
    now = now_ms()
    for number, table in enumerate(tables):
        run.bases.record(base(table, now - 60_000 + number))
    note_exposure(run, Exposure("copies in file:///backup/moments-1", 2, 5_000, False, None, None, 600.0, False, now))
    note_ends(run, CopiedEnds(covered_ms=now - int(loss_seconds * 1000), at_ms=now, files=1, bytes=100))
    note_folder_bytes(run, 5_100)
    work_on(run, "keep")


def brought_to(run: RunLedger, name: StateName) -> None:
    """Bring a run that was just opened to a state."""
    match name:
        case "not started":
            pass
        case "working":
            work_on(run, "plan")
        case "between phases":
            finish(run, "plan")
        case "catching up":
            keep(run, 1, TABLES[:1])
        case "exposed":
            keep(run, 300)
        case "paused":
            keep(run, 1)
            run.whole.set_paused(run.run_id, True, "kim")
        case "failed":
            keep(run, 1)
            fail(run, "keep", "UsageError: the folder is gone")
        case "interrupted":
            keep(run, 1)
            run.notes.drop("at work", "keep")
        case "aborted":
            keep(run, 1)
            run.end("aborted", "kim", "no longer needed")
            run.phases.finish("keep", {"ended": "aborted"})
        case _:
            assert name == "following", name
            keep(run, 1)
