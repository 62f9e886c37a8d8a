"""A ledger for the board, filled by hand: runs in their replay (a gap, an item in quarantine) and runs that have ended.

Times are written as if the runs had taken their time, by a clock of our own behind the ledger's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from unit.migration.filled_ledger import compared
from walferry.ledger import (
    Difference,
    Hold,
    Ledger,
    LogPosition,
    QuarantineItem,
    RangeComparison,
    Round,
    SeenFile,
    WalRange,
)
from walferry.run.phases import steps

CLUSTER = {"zookeeper": "127.0.0.1:1", "webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"}
TABLES = [{"source": "shop:orders", "target": "shop:orders"}, {"source": "customers", "target": "crm:customers"}]
NAMES = ("shop:orders", "customers")
EVIL = "family <d> is not there"
"""a reason that must show up as the text it is"""
SPAN_MS = 20_000
"""between two rolls of a log"""


class Clock:
    """The ledger's clock while it is being filled."""

    def __init__(self, back_ms: int) -> None:
        self.ms = time.time_ns() // 1_000_000 - back_ms

    def __call__(self) -> int:
        self.ms += 7
        return self.ms

    def on(self, ms: int) -> None:
        """Let time pass."""
        self.ms += ms


@contextmanager
def clock(back_ms: int) -> Iterator[Clock]:
    """Let the ledger's time begin `back_ms` before now."""
    hands = Clock(back_ms)
    sections = ("ledger", "leases", "log", "notes", "objects", "phases", "quarantine", "store")
    with ExitStack() as stack:
        for section in sections:
            stack.enter_context(patch(f"walferry.ledger.{section}.now_ms", hands))
        yield hands


def spec(name: str, tables: list[dict[str, str]] = TABLES) -> dict[str, Any]:
    return {"name": name, "source": CLUSTER, "target": CLUSTER, "tables": tables, "max_lag": 30}


def server(i: int) -> str:
    return f"rs{i + 1}.old.example,16020,1700000000000"


def group(i: int) -> str:
    return server(i).replace(",", "%2C")


def seen(i: int, number: int, *, sealed: bool = True, length: int = 118_000_000) -> SeenFile:
    name = f"{group(i)}.{number}"
    return SeenFile(name, group(i), server(i), number, f"/hbase/oldWALs/{name}", length, sealed)


def apply(ledger: Ledger, run: str, files: list[SeenFile], tables: tuple[str, ...] = NAMES) -> None:
    """Record the files as applied for the tables, and as held for the others."""
    ranges = [
        WalRange(f.name, 0, f.length, table, 900, 2_100, 1, 2, "applied" if table in tables else "sealed")
        for f in files
        for table in NAMES
    ]
    ledger.of(run).log.set_ranges(ranges)


def until_replay(ledger: Ledger, hands: Clock, name: str, servers: int) -> tuple[str, int]:
    """A run up to its replay; its id and the number of the first log file."""
    run = ledger.open_run(name, "airflow manual__2026-11-20T08:00:00", spec(name), "airflow").run_id
    first = hands.ms
    took = {"plan": 9_000, "protect": 4_000, "fence": 6_000, "snapshot": 11_000, "copy": 260_000, "clone": 14_000}
    for phase in ("plan", "protect", "fence", "snapshot", "copy", "clone", "check_copy"):
        subjects = NAMES if phase in ("snapshot", "copy", "clone") else ("",)
        for subject in subjects:
            ledger.of(run).phases.start(phase, subject)
            hands.on(took.get(phase, 20_000))
            if phase == "fence":
                ledger.of(run).log.set_fence(
                    "start", [LogPosition(group(i), seen(i, first).name, first, 0) for i in range(servers)]
                )
            ledger.of(run).phases.finish(phase, {"at_ms": hands.ms}, subject)
    ledger.of(run).objects.plan("source", "peer", f"walferry_{name}_1")
    ledger.of(run).objects.made("source", "peer", f"walferry_{name}_1")
    ledger.of(run).phases.start("replay")
    return run, first


def write_log(first: int, servers: int, files: int) -> list[list[SeenFile]]:
    """The logs of some servers, rolled all at once, `SPAN_MS` apart; the first files are the longest."""
    dice = random.Random(5)
    return [
        [seen(i, first + n * SPAN_MS, length=int(dice.uniform(14e6, 22e6)) * (2 if n < 6 else 1)) for n in range(files)]
        for i in range(servers)
    ]


def add_rounds(ledger: Ledger, run: str, hands: Clock, logs: list[list[SeenFile]], rounds: int) -> None:
    """One round for each roll of the logs: the lag falls to a few seconds and grows until the next."""
    dice = random.Random(7)
    for n in range(rounds):
        started, batch = hands.ms, [log[n] for log in logs]
        hands.on(SPAN_MS)
        lag = int(SPAN_MS * dice.uniform(0.25, 0.5)) + max(0, 8 - n) * 4_000
        apply(ledger, run, batch)
        size = sum(file.length for file in batch)
        ledger.of(run).rounds.record(
            Round(n + 1, started, hands.ms, len(batch), size, size // 520, size // 170, lag, 0)
        )


def running(ledger: Ledger, name: str, *, gap: bool, held: bool, files: int = 90, servers: int = 6) -> str:
    """A run in its replay. `gap`: a file of rs3's log is gone; `held`: an entry of rs5's log waits for a decision."""
    with clock(files * SPAN_MS + 620_000) as hands:
        run, first = until_replay(ledger, hands, name, servers)
        logs = write_log(first, servers, files)
        ledger.of(run).log.see_files([file for log in logs for file in log])
        add_rounds(ledger, run, hands, logs, files - (5 if gap else 2))
        ledger.of(run).log.see_files([seen(i, first + files * SPAN_MS, sealed=False, length=0) for i in range(servers)])
        if gap:
            lost = logs[2][files - 5].name
            ledger.of(run).log.mark_missing(lost)
            ledger.of(run).phases.fail(
                "replay",
                f"GapError: WAL file {lost} is missing at the source and was not applied (1 in all): the log has "
                "a gap; abort this run and begin anew with a fresh snapshot",
            )
        elif held:
            rest = [log[-2] for log in logs]
            apply(ledger, run, [file for file in rest if file is not rest[4]])
            hold_one(ledger, run, rest[4])
    return run


def hold_one(ledger: Ledger, run: str, file: SeenFile) -> None:
    """Put an entry of `file` into quarantine; its region waits."""
    region = "5f0a1c7be2d94d3f8b6a7c9d0e1f2a3b"
    reason = f"the target refuses the entry: NoSuchColumnFamilyException: {EVIL}"
    item = QuarantineItem(file.name, 1_048_576, 1_049_216, "shop:orders", region, 81, reason, b"\x00\xff" * 320)
    (number,) = ledger.of(run).quarantine.put([item])
    ledger.of(run).quarantine.hold([Hold(file.name, "shop:orders", region, 0, number)])
    apply(ledger, run, [file], ("customers",))


def done(ledger: Ledger) -> str:
    """`visits-1`, cut over: all is verified, one row differs for a known reason."""
    with clock(30_000_000) as hands:
        run, first = until_replay(ledger, hands, "visits", 2)
        logs = write_log(first, 2, 40)
        ledger.of(run).log.see_files([file for log in logs for file in log])
        add_rounds(ledger, run, hands, logs, 40)
        ledger.of(run).phases.finish("replay", {})
        for phase in ("approve", "write_stop", "end_fence", "drain"):
            ledger.of(run).phases.start(phase)
            hands.on(5_000)
            ledger.of(run).phases.finish(phase, {"at_ms": hands.ms, "how": "confirm"})
        end = first + 40 * SPAN_MS
        ledger.of(run).log.set_fence("end", [LogPosition(group(i), seen(i, end).name, end, 0) for i in range(2)])
        compare(ledger, run, hands)
        for table in NAMES:
            ledger.of(run).log.mark_verified(table, [file.name for log in logs for file in log])
        for phase in ("check_drain", "release"):
            ledger.of(run).phases.start(phase)
            hands.on(8_000)
            ledger.of(run).phases.finish(phase, {"data_docs": "data_docs/visits-1/index.html"})
        ledger.of(run).end("done", "airflow", "cut over; nothing unexplained")
    return run


def compare(ledger: Ledger, run: str, hands: Clock) -> None:
    dice = random.Random(3)
    for table in NAMES:
        ledger.of(run).phases.start("compare", table)
        hands.on(30_000)
        keys = [b"", b"0300", b"06\x00\xff", b"0900", b""]
        rows = []
        for start, stop in pairwise(keys):
            n, digest = dice.randrange(200_000, 900_000), f"{dice.getrandbits(128):032x}"
            other = f"{dice.getrandbits(128):032x}" if (table, start) == ("customers", b"0300") else digest
            region = f"{dice.getrandbits(128):032x}"
            dropped = {"source": {"expired": dice.randrange(40)}, "target": {}}
            rows.append(RangeComparison(table, region, start, stop, n, n * 4, digest, n, n * 4, other, dropped))
        found = [Difference("customers", b"04\x00\xfe", "history-dependent", "the source kept 4 versions, not 3")]
        ledger.of(run).comparisons.record(compared(table, len(found)), rows, found if table == "customers" else [])
        ledger.of(run).phases.finish("compare", {}, table)


def aborted(ledger: Ledger) -> str:
    """`trial-1`, given up in its first minutes."""
    with clock(90_000_000) as hands:
        run = ledger.open_run("trial", "shell kim@host", spec("trial", TABLES[:1]), "kim").run_id
        ledger.of(run).phases.start("plan")
        hands.on(6_000)
        ledger.of(run).phases.fail("plan", "UsageError: table shop:orders is not at the source")
        hands.on(50_000)
        ledger.of(run).end("aborted", "kim", "wrong cluster")
    return run


def large(ledger: Ledger) -> str:
    """`wide-1`: 50 tables of 10 regions each, replayed and compared; of one the sides differ."""
    names = [f"ns{i % 5}:table_{i:02}" for i in range(50)]
    run = ledger.open_run("wide", "cli kim", spec("wide", [{"source": n, "target": n} for n in names]), "kim").run_id
    mine = ledger.of(run)
    for phase, subject in steps("migration", names):
        if phase.name == "check_drain":
            break
        mine.phases.start(phase.name, subject)
        if (phase.name, subject) == ("compare", names[30]):
            mine.phases.fail("compare", "SidesDifferError: 1 row differs", subject)
        else:
            mine.phases.finish(phase.name, {"at_ms": 1, "how": "confirm"}, subject)
    rows = [
        RangeComparison(
            name, f"{i:016x}{n:016x}", b"%04d" % n if n else b"", b"%04d" % (n + 1) if n < 9 else b"", 9_000, 36_000,
            f"{i:016x}{n:016x}", 9_000, 36_000, f"{i:016x}{n + (i == 30):016x}",
            {"source": {"expired": 7, "masked": 0}, "target": {"expired": 0, "masked": 3}},
        )
        for i, name in enumerate(names)
        for n in range(10)
    ]  # fmt: skip
    for name in names:
        found = [Difference(name, b"0001x", "unexplained", "only at the source")] if name == names[30] else []
        mine.comparisons.record(compared(name, len(found)), [row for row in rows if row.table == name], found)
    return run


def fill(ledger: Ledger, files: int = 90) -> None:
    """Runs of all kinds: trial-1, visits-1, accounts-1 with a gap, orders-1 with an item in quarantine."""
    aborted(ledger)
    done(ledger)
    running(ledger, "accounts", gap=True, held=False, files=files)
    running(ledger, "orders", gap=False, held=True, files=files)
