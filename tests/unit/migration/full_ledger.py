"""A ledger of a run of which the status and the report have something to say in every place."""

from __future__ import annotations

from dataclasses import asdict

from unit.migration.filled_ledger import CLUSTER, FILE, GROUP, compared, filled
from walferry import clock
from walferry.ledger import (
    Difference,
    Ledger,
    LogPosition,
    NumberGap,
    RangeComparison,
    RunLedger,
    SeenFile,
)
from walferry.ledger.late import LateEdit
from walferry.ledger.repairs import RepairedRow
from walferry.ledger.rows import Piece
from walferry.migration.touching.touched import Seen
from walferry.run.heartbeat import NOTE
from walferry.run.notes.copying_again import Copied
from walferry.run.notes.spot_check import SpotCheck, note_spot_check
from walferry.run.progress.exposure import Exposure, note_exposure
from walferry.run.progress.lag import Ahead, TailProgress, keep_ahead

TABLE = "shop:orders"


def full(book: Ledger) -> RunLedger:
    """The run `move-1` in the middle of a batch, with faults of every kind."""
    now = clock.now_ms()
    ledger = book.of(filled(book))
    rates = {f"{CLUSTER['zookeeper']}/hbase": {"namenode": 1.25}}
    ledger.notes.keep(NOTE, {"requests": rates}, "replay")
    groups = {
        GROUP: TailProgress(server="rs,1,2", covered_ms=now - 4_000, read_ms=50, apply_ms=100, shown_after_ms=250)
    }
    keep_ahead(ledger, Ahead(fault="no answer").covering(now - 5_000, now).having(groups))
    for at_ms in (now - 900_000, now):
        look = Exposure("copies in file:///c", 2, 3_400_000, False, "rs.7", now + 5_000, 600, True, at_ms)
        note_exposure(ledger, look)
    ledger.log.see_files([SeenFile(f"{GROUP}.11", GROUP, "rs,1,2", 11, "/11", 400, sealed=False)])
    pieces = [Piece(1, "group", GROUP, "{}", 300), Piece(2, "group", "g2", "{}", 100)]
    ledger.batches.begin("{}", pieces, now, lambda connection: None)
    for _ in range(2):
        ledger.batches.start(1, lambda connection: None)
    ledger.batches.finish(1, "{}", lambda connection: None)
    holes = [NumberGap(TABLE, "abc", 11, 14, FILE, f"{GROUP}.11", now), NumberGap(TABLE, "abc", 21, 22, FILE, "f", now)]
    ledger.log.set_ranges([], None, ledger.numbers.change([], holes[:1], []))
    ledger.log.set_ranges([], None, ledger.numbers.change([], holes[1:], [], only_count=True))
    _compare(ledger)
    _stop_writes(ledger, now)
    return ledger


def _compare(ledger: RunLedger) -> None:
    found = [
        Difference(TABLE, b"x", "not-in-log", "no WAL holds it", "1f"),
        Difference(TABLE, b"y\xff", "unexplained", "d", "2f"),
    ]
    region = RangeComparison(TABLE, "r1", b"", b"", 2, 4, "01", 2, 5, "02", {"source": {"expired": 1}}, 1, 2)
    made = ledger.comparisons.record(compared(TABLE, 2), [region], found)
    ledger.comparisons.accept(found[:1], "a test wrote it", "kim")
    ledger.comparisons.record_look(TABLE, [Difference(TABLE, b"z", "in-flight", "d")])
    note_spot_check(ledger, TABLE, SpotCheck(comparison=made.attempt, rows=9), made.purpose)
    ledger.notes.keep("copied again", asdict(Copied("kim", "it differed", 5, 7, 8, 1.5)), TABLE)
    ledger.repairs.record([RepairedRow(TABLE, b"x", "not-in-log", "put", 1, "", 6)], "p", "kim")
    Seen.change(ledger, lambda _: Seen(uncounted={"source": ["s1"]}, recent_ms={TABLE: clock.now_ms()}))


def _stop_writes(ledger: RunLedger, now: int) -> None:
    ledger.objects.plan("source", "read-only table", TABLE)
    ledger.objects.made("source", "read-only table", TABLE)
    ledger.log.set_fence("end", [LogPosition(GROUP, f"{GROUP}.11", 11, 0)])
    ledger.phases.start("write_stop")
    ledger.phases.finish("write_stop", {"at_ms": now - 98_000, "how": "confirm"})
    ledger.late.found([LateEdit(f"{GROUP}.11", 5, TABLE, "r1", 9, now, 1, b"r", now)])
    ledger.phases.fail("replay", "GapError: gone")
