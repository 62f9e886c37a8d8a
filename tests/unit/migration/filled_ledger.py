"""A ledger filled by hand: a run in the middle of its replay."""

from __future__ import annotations

from typing import Any

from walferry.ledger import (
    ComparedTable,
    Difference,
    Ledger,
    LogPosition,
    QuarantineItem,
    RangeComparison,
    Round,
    SeenFile,
    WalRange,
)

CLUSTER = {"zookeeper": "127.0.0.1:1", "webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"}
SPEC: dict[str, Any] = {
    "name": "move",
    "source": CLUSTER,
    "target": CLUSTER,
    "tables": [{"source": "shop:orders", "target": "shop:orders"}],
}
GROUP = "rs%2C1%2C2"
FILE = f"{GROUP}.10"


def compared(table: str, differing_rows: int = 0, **more: Any) -> ComparedTable:
    """What the ledger is given of a comparison that a person asked for; `more` replaces fields."""
    known: dict[str, Any] = {"purpose": "verify", "phase_attempt": 0, "drain_attempt": 0, "end_fence": ""}
    return ComparedTable(table, 0, began_ms=1, ended_ms=2, differing_rows=differing_rows, **(known | more))


def filled(ledger: Ledger) -> str:
    """Open the run `move-1` and record what a run has after one round and one comparison; its id."""
    run = ledger.open_run("move", "tester", SPEC, "tester").run_id
    for phase, subject in (("plan", ""), ("protect", ""), ("fence", ""), ("snapshot", "shop:orders")):
        ledger.of(run).phases.start(phase, subject)
        ledger.of(run).phases.finish(phase, {}, subject)
    ledger.of(run).phases.start("replay")
    ledger.of(run).objects.plan("source", "peer", "walferry_move_1")
    ledger.of(run).objects.made("source", "peer", "walferry_move_1")
    ledger.of(run).log.set_fence("start", [LogPosition(GROUP, FILE, 10, 0)])
    ledger.of(run).log.see_files([SeenFile(FILE, GROUP, "rs,1,2", 10, f"/hbase/WALs/{FILE}", 1_000, sealed=True)])
    ledger.of(run).log.set_ranges([WalRange(FILE, 0, 1_000, "shop:orders", 3, 7, 1, 2, "applied")])
    ledger.of(run).rounds.record(Round(1, 100, 5_100, 1, 1_000, 3, 7, 5_000, 0))
    ledger.of(run).quarantine.put([QuarantineItem(FILE, 5, 7, "shop:orders", "r1", 4, "damaged cell", b"\x00\xff")])
    ledger.of(run).comparisons.record(
        compared("shop:orders", 2),
        [
            RangeComparison("shop:orders", "r1", b"", b"m", 2, 4, "01", 2, 4, "01", {"source": {"expired": 1}}),
            RangeComparison("shop:orders", "r2", b"m", b"", 1, 1, "f" * 32, 1, 2, "02", {"source": {"expired": 2}}),
        ],
        [Difference("shop:orders", b"x", "in-flight", "d"), Difference("shop:orders", b"y", "unexplained", "d")],
    )
    return run
