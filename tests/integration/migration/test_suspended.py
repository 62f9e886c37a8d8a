"""A process that was suspended while it sent: nothing old is applied over newer edits, or the gate is shut (R13)."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.migration.moves import visible
from walferry.apply.rpc_writer import RpcWriter
from walferry.apply.writer_protocol import CellRun
from walferry.cutover import gates, ledger_answers
from walferry.embedded.cluster import MiniCluster
from walferry.errors import GateShutError
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.migration.comparing.compare import compare
from walferry.replay.rights import dirty
from walferry.replay.rights.applying import applying
from walferry.replay.rights.claims import Claims
from walferry.replay.rights.lease import held_leases
from walferry.replay.rounds.rounds import run_round
from walferry.run.run import Run
from write_limits import write_limits

pytestmark = pytest.mark.cluster

LIMITS = write_limits(claim_seconds=1, request_seconds=2, settle_seconds=4, attempts=1)
ROWS = 40
VALUE_BYTES = 20_000  # a request of several parts
SOURCE_ID = pb.UUID(least_sig_bits=1, most_sig_bits=2)

WORKER = """
import base64, os, pickle, signal, sys, time
from walferry.apply.rpc_writer import RpcWriter
from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import rpc
from walferry.spark.clients import shared_client

claims, limits, run, cells, where = pickle.loads(base64.b64decode(sys.stdin.readline()))

class Counting:
    "The socket, which counts how much of the request is sent."
    all = 1 << 60
    sent = 0

    def __init__(self, sock):
        self._sock = sock

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def send(self, part):
        if self.sent == 0:
            Counting.all = 4 + int.from_bytes(part[:4], "big")
        if self.sent + len(part) == self.all:
            stop_at("after the last check")
        sent = self._sock.send(part)
        Counting.sent += sent
        if self.sent == self.all:
            time.sleep(1)  # else this process may reset the connection before the server has read the end
        return sent

def stop_at(place):
    "Suspends this process, as whoever runs the machine may do at any place."
    global where
    if place == where:
        where = ""
        os.kill(os.getpid(), signal.SIGSTOP)

class Suspended:
    mark_dirty = claims.mark_dirty
    wait_turn, slow_down = claims.wait_turn, claims.slow_down

    def __call__(self, tables):
        half = Counting.sent >= Counting.all / 2
        stop_at("before a check, with half of the request sent" if half else "before the first check")
        claims(tables)
        stop_at("after a check, with half of the request sent" if half else "after the first check")

client = shared_client(claims.target)
client.located(run.table)  # before sockets count: only the edits are to
connect = rpc.RpcConnection._connect
def connect_counting(*args):
    channel = connect(*args)
    channel.sock = Counting(channel.sock)
    return channel

rpc.RpcConnection._connect = connect_counting
source = pb.UUID(least_sig_bits=1, most_sig_bits=2)
try:
    RpcWriter(client, source, Suspended(), limits).send([run], cells)
    print("sent")
except TransientError as error:
    print(type(error).__name__)
"""


def edits(table: str, value: bytes) -> tuple[CellRun, bytes]:
    """One edit of each row, all at one timestamp: the one that is applied last is seen."""
    cells = [encode_cell(b"r%02d" % row, b"f", b"q", 7, CellType.PUT, value * VALUE_BYTES) for row in range(ROWS)]
    return CellRun(table, b"", len(cells)), b"".join(cells)


def send(client: HBaseClient, claims: Claims, table: str, value: bytes) -> None:
    run, cells = edits(table, value)
    RpcWriter(client, SOURCE_ID, claims, LIMITS).send([run], cells)


@contextmanager
def suspended(claims: Claims, table: str, where: str) -> Iterator[subprocess.Popen[str]]:
    """A process that sends old edits and was suspended there."""
    work = base64.b64encode(pickle.dumps((claims, LIMITS, *edits(table, b"o"), where))).decode()
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{work}\n")
        process.stdin.flush()
        while (state := Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
            assert state != "Z", "it ended"
            time.sleep(0.02)
        try:
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[str]) -> str:
    """Wake it up; what it says."""
    os.kill(process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=300)
    return output


PLACES = (
    "before the first check", "after the first check", "before a check, with half of the request sent",
    "after a check, with half of the request sent", "after the last check",
)  # fmt: skip


@pytest.mark.parametrize("where", PLACES)
def test_nothing_old_is_applied_over_newer_edits_or_the_gate_is_shut_until_a_comparison(
    where: str,
    at_source: HBaseClient,
    at_target: HBaseClient,
    target: MiniCluster,
    make_table: Callable[..., str],
    start_run: Callable[..., Run],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table()
    run = start_run(table)
    at_source.put(table, [Cell(b"r%02d" % row, b"f", b"q", b"n" * VALUE_BYTES, 7) for row in range(ROWS)])
    driver = HBaseClient(target.address)
    old = held_leases(driver.zk, [table], holder="run old-1", request_seconds=LIMITS.quiet_seconds, wait_seconds=5)
    claims = Claims(target.address, dict(old.__enter__()), "old-1", LIMITS.claim_seconds, LIMITS.quiet_seconds)
    with suspended(claims, table, where) as process:
        driver.close()
        began = time.monotonic()
        with applying(run) as route:
            assert time.monotonic() - began >= 1 + 2 + 4
            record, limits = json.loads(at_target.zk.get(f"/walferry/leases/{table}")[0]), route.limits
            quiet = limits.claim_seconds + limits.request_seconds + limits.settle_seconds
            assert record["request_seconds"] == quiet, "what the next one waits"
            assert run_round(run, spark, route).cells == ROWS
            said = go_on(process)
    values = {value[:1] for _, _, cells in visible(target, table) for value, _ in cells}
    marks = dirty.marks(at_target.zk, table)
    assert said.split() == ["LeaseLostError"], "nothing of the request went out, or it asks before it sends it again"
    if where != "after the last check":
        assert (values, marks) == ({b"n"}, [])
        return

    assert values == {b"o"}, "nothing can prevent this one"
    assert [(mark.run, mark.first, mark.last) for mark in marks] == [("old-1", "'r00'", "'r39'")]
    monkeypatch.setattr(ledger_answers, "caught_up", lambda ledger: True)
    with pytest.raises(GateShutError, match=r"rows 'r00' to 'r39' of target table .* may hold old edits"):
        gates.before_cutover(run)
    assert compare(run, lambda: spark, table).unexplained == ROWS
    with pytest.raises(GateShutError, match="may hold old edits"):
        gates.before_cutover(run)
    with held_leases(at_target.zk, [table], holder="a repair", request_seconds=0, wait_seconds=5) as leases:
        send(at_target, Claims(target.address, dict(leases), "repair", 1, 7), table, b"n")
    assert not compare(run, lambda: spark, table).shuts_the_gate
    gates.before_cutover(run)
    assert dirty.marks(at_target.zk, table) == []
