"""What a replay round costs walferry itself on a large source: `python -m bench.round_cost`, or `make bench-round`.

A process beside this one answers WebHDFS requests for N servers with W logs; its answers are in the exact JSON that a
Hadoop 3.4 NameNode gave to LISTSTATUS and GETFILESTATUS. ZooKeeper's answers are the names and values that HBase 2.6
keeps of a peer's queues. No byte of a log is applied: measured is what the driver does besides Spark's work, which is
to list, to see, to check that nothing is missing, to choose what is pending, to record ranges and to tell the status.

The ledger first gets the history of a day of rounds, then of a week, by the same calls. Time that a server takes to
answer is not counted. Prints, for each history: own time of a round (median and longest), requests of a round, peak
memory of this process, size of the ledger. And then, what a pass over the open logs costs and asks for, and how many
passes there are.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Annotated
from unittest.mock import patch

import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench.large_source import (
    LENGTH,
    ROOT,
    Logs,
    Size,
    Source,
    Waits,
    group_of,
    opened,
    serve,
    servers_of,
    timed_requests,
)

from unit.apply.guards import Guard
from walferry.apply.outcomes import FileReport, TableTally
from walferry.apply.route import Route
from walferry.apply.writers import limits_of
from walferry.hbase.address import ClusterAddress
from walferry.hbase.writer_kind import WriterKind
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, LogPosition, Round
from walferry.replay.log.cut import cut_log, see
from walferry.replay.record_reports import record_reports
from walferry.replay.rounds import open_logs
from walferry.replay.rounds.completeness import check_complete
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.run.facts import Lines, keep_lines
from walferry.run.progress.status import status
from walferry.run.run import Run
from walferry.settings import Writing

DAY_MS = 24 * 3600 * 1000


def report(source: Source, name: str, server: str, number: int) -> FileReport:
    """What executors would report of a log: edits of the tables whose regions its server has."""
    tallies = tuple(
        TableTally(table, 40, 400, number, number + 30_000)
        if table in source.tables_on[server] else TableTally(table, 0, 0, 0, 0)
        for table in source._regions
    )  # fmt: skip
    return FileReport(name, LENGTH, True, tallies, (), ())


def one_round(run: Run, source: Source, number: int) -> None:
    """The driver's own work of a round."""
    started_ms = source.now
    cut = cut_log(run)
    below = see(run, cut)
    check_complete(run, cut.files)
    waiting = run.ledger.log.pending([file.name for file in below])
    pending = [file for file in below if file.name in waiting]
    assert pending, "a round without a log measures nothing"
    finish(run, source, [report(source, f.name, f.server, f.number) for f in pending], number, started_ms, cut.before)
    status(run.ledger)


def finish(run: Run, source: Source, reports: list[FileReport], number: int, started_ms: int, before: Lines) -> None:
    """Record a round."""
    record_reports(run, reports, lambda connection: None)
    keep_lines(run, "applied", before)
    size = sum(item.length for item in reports)
    cells = sum(tally.cells for item in reports for tally in item.tallies)
    run.ledger.rounds.record(Round(number, started_ms, source.now, len(reports), size, cells // 10, cells, 5_000, 0))


def live_through(run: Run, source: Source, size: Size, numbers: range) -> None:
    """Let rounds pass as the ledger sees them; once an hour the cleaner deletes what is older than a day."""
    each, hour = max(1, size.wals // size.rounds), max(1, size.rounds // 24)
    for number in numbers:
        started_ms = source.now
        servers = [source.servers()[(number * each + turn) % size.servers] for turn in range(each)]
        rolled = [wal for wal in map(source.begin_log, servers) if wal]
        begun = [opened(server, source.newest[server.name]) for server in servers]
        source.now = max(source.now, started_ms + DAY_MS // size.rounds)
        run.ledger.log.see_files([*rolled, *begun])
        finish(run, source, [report(source, f.name, f.server, f.number) for f in rolled], number, started_ms, {})
        if number % hour == 0:
            source.let_go(source.now - DAY_MS)
            run.ledger.log.fold({name for queue in source.znodes.queues.values() for name in queue})


def main(
    servers: Annotated[int, typer.Option(min=1)] = 50,
    regions: Annotated[int, typer.Option(min=1)] = 1_000,
    wals: Annotated[int, typer.Option(help="created in a day, and kept as long", min=1)] = 10_000,
    tables: Annotated[int, typer.Option(min=1)] = 50,
    rounds: Annotated[int, typer.Option(help="in a day", min=1)] = 2_880,
    days: Annotated[list[int], typer.Option(help="histories to measure, in days")] = [1, 7],  # noqa: B006
    measured: Annotated[int, typer.Option(help="rounds to measure", min=1)] = 10,
) -> None:
    """Measure, and print one line for each history."""
    size = Size(servers, regions, wals, tables, rounds)
    print(f"{servers} servers, {regions} regions, {wals} WALs a day, {tables} tables, {rounds} rounds a day")
    folder = Path(tempfile.mkdtemp())
    started = servers_of(size, 1_760_000_000_000)
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(Logs(started), there), daemon=True)
    process.start()
    try:
        measure(size, folder, here, started, sorted(days), measured)
    finally:
        here.send(None)
        process.join()
        shutil.rmtree(folder)


def measure(
    size: Size, folder: Path, orders: Connection, started: list[Server], days: list[int], measured: int
) -> None:
    """Live through the days, and measure rounds at the end of each."""
    port = orders.recv()
    cluster = {
        "zookeeper": "127.0.0.1:1", "webhdfs": f"http://127.0.0.1:{port}", "rootdir": f"hdfs://large{ROOT}",
        "user": "hbase",
    }  # fmt: skip
    names = [f"ns{n % 5}:table_{n:02}" for n in range(size.tables)]
    spec = {
        "name": "large",
        "source": cluster,
        "target": cluster,
        "tables": [{"source": n, "target": n} for n in names],
    }
    waits = Waits()
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", actor="bench") as ledger, timed_requests(waits):
        run = Run(ledger, ledger.open_run("large", "bench", spec, "bench").run_id)
        source = Source(size, run, orders, waits, started)
        run.__dict__["source"] = source
        begin(run, source)
        done = 1
        for day in days:
            begun = time.perf_counter()
            live_through(run, source, size, range(done, day * size.rounds + 1))
            done = day * size.rounds + 1
            run.wal_listing._whole_at = None  # the first of the measured rounds lists the whole archive
            print(f"history of {day} days: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
            own, busy, asked = [], [], Waits()
            for _ in range(measured):
                waits.seconds, waits.webhdfs, waits.zookeeper = 0.0, 0, 0
                begun, cpu = time.perf_counter(), time.process_time()
                one_round(run, source, done)
                own.append(time.perf_counter() - begun - waits.seconds)
                busy.append(time.process_time() - cpu)
                asked.webhdfs, asked.zookeeper = waits.webhdfs, waits.zookeeper
                done += 1
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1 << 20)
            stored = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            print(
                f"after {day} days: own time of a round {median(own):.3f} s, with a listing of the whole archive "
                f"{own[0]:.3f} s (of a processor {median(busy):.3f} and {busy[0]:.3f} s); requests to "
                f"WebHDFS {asked.webhdfs} and ZooKeeper {asked.zookeeper}; driver's peak {peak:.0f} MB; "
                f"ledger {stored:.1f} MB",
                flush=True,
            )
        follow(run, waits, measured)


def follow(run: Run, waits: Waits, passes: int) -> None:
    """Make passes over the open logs, beginning at a cut, and print what they cost."""
    here = ClusterAddress("127.0.0.1:1")
    tables = {pair.source: pair.target for pair in run.tables}
    route = Route(here, ROOT, (1, 2), here, tables, Guard(), limits_of(WriterKind.RPC, Writing.read()))
    logs = OpenLogs(run, route, lambda _: None)  # of the tables there is no edit
    logs.applied(cut := cut_log(run))
    pause = open_logs.seconds_between(len(cut.current))
    own, cpu = [], 0.0
    with patch.object(open_logs, "seconds_between", lambda groups: 0.0):
        assert logs.go_on(), "a round is needed"  # the first one looks up each log
        waits.webhdfs = 0
        for _ in range(passes):
            waits.seconds, begun, used = 0.0, time.perf_counter(), time.process_time()
            assert logs.go_on(), "a round is needed"
            own.append(time.perf_counter() - begun - waits.seconds)
            cpu += time.process_time() - used
    asked = waits.webhdfs / passes
    print(
        f"a pass over the open logs, every {pause:.1f} s: {asked:.0f} requests to WebHDFS, {asked / pause:.0f} a "
        f"second; {cpu / passes:.3f} s of a processor"
    )


def begin(run: Run, source: Source) -> None:
    """What a run has before its first round."""
    for server in source.servers():
        source.begin_log(server)
    run.ledger.objects.plan("source", "peer", run.peer)
    run.ledger.objects.made("source", "peer", run.peer)
    fence = [
        LogPosition(group_of(s), f"{group_of(s)}.{n}", n, 0) for s in source.servers() if (n := source.newest[s.name])
    ]
    run.ledger.log.set_fence("start", fence)
    run.ledger.phases.start("replay")
    assert json.dumps(run.record.spec)


if __name__ == "__main__":
    typer.run(main)
