"""A request is sent only under the lease, one at a time, and never overtaken by the next after an unknown outcome."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from unit.apply.guards import Guard
from walferry.apply.rpc_writer import RpcWriter
from walferry.apply.writer_protocol import CellRun, RefusedError
from walferry.errors import TransientError, WalferryError
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.mutations import RowBorders
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import (
    AccessDeniedError,
    CallQueueFullError,
    ConnectionFailedError,
    RegionNotServedError,
    RemoteError,
    RequestTimeoutError,
    RequestTooBigError,
    ServerBusyError,
)
from walferry.hbase.locations import Located
from walferry.hbase.retry import REGION_ATTEMPTS
from walferry.hbase.zookeeper import Server
from walferry.replay.rights.lease import LeaseLostError
from walferry.security.handed import WorkerLoginError
from write_limits import write_limits

PAUSE = time.sleep  # tests of pauses replace it
LIMITS = write_limits(request_seconds=3, attempts=3, settle_seconds=7)
CELL = encode_cell(b"r", b"f", b"q", 7, CellType.PUT, b"v")
RUN = CellRun("ns:t", b"", 1)
SENT = f"sent {CELL!r}"
BUSY = ServerBusyError("busy")
SOURCE_ID = pb.UUID(least_sig_bits=1, most_sig_bits=2)


@dataclass
class Target:
    """A target that answers with these outcomes, one a request; None: it took the edits."""

    outcomes: list[Exception | None]
    log: list[str] = field(default_factory=list)

    @property
    def pool(self) -> Target:
        return self

    def located(self, table: str) -> Located:
        server = Server("rs", 1, 2)
        region = Region(b"r", "r", table, b"", b"", server, 1)
        return Located((region,), RowBorders.of([b""]))

    def location_failed(self, table: str, error: Exception, attempt: int) -> None:
        self.log.append(f"forgot {table}")

    def call(self, server: str, *request: Any, **how: Any) -> tuple[pb.MultiResponse, bytes]:
        self.log.append(f"sent {b''.join(request[-1])!r}")
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return pb.MultiResponse(), b""


def send(target: Target, monkeypatch: pytest.MonkeyPatch, lease_ends_after: int = 99) -> None:
    """Send one request; the log of the target gets guards and pauses, too."""
    monkeypatch.setattr(time, "sleep", lambda seconds: target.log.append(f"waited {seconds:g}"))

    def guard(tables: Collection[str]) -> None:
        target.log.append(f"asked for {sorted(tables)}")
        if sum(line.startswith("asked") for line in target.log) > lease_ends_after:
            raise LeaseLostError("another run applies", table="ns:t", fence=1)

    RpcWriter(cast(HBaseClient, target), SOURCE_ID, Guard(guard), LIMITS).send([RUN], CELL)


def test_every_request_asks_for_the_lease_first(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target([BUSY, None])
    send(target, monkeypatch)
    assert [line for line in target.log if not line.startswith(("waited", "forgot"))] == [
        "asked for ['ns:t']",
        SENT,
    ] * 2


def test_every_request_waits_for_its_turn_before_anything_else_and_a_busy_target_slows_the_process_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for a turn may take minutes: locations and the answer of the guard would be that old."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    log: list[str] = []

    class Logged(Target):
        def located(self, table: str) -> Located:
            log.append("located")
            return super().located(table)

    class Turns(Guard):
        def wait_turn(self, tables: Collection[str], cells: int, size: int) -> None:
            log.append(f"waited for {cells} cell of {sorted(tables)}")
            super().wait_turn(tables, cells, size)

    guard = Turns(lambda _: log.append("asked"))
    RpcWriter(cast(HBaseClient, Logged([BUSY, None])), SOURCE_ID, guard, LIMITS).send([RUN], CELL)
    assert log == ["waited for 1 cell of ['ns:t']", "located", "asked"] * 2
    assert guard.turns == [(1, len(CELL))] * 2
    assert guard.slowed == 1


def test_nothing_is_sent_once_the_lease_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target([BUSY, None])
    with pytest.raises(LeaseLostError):
        send(target, monkeypatch, lease_ends_after=1)
    assert target.log.count(SENT) == 1


def test_the_lease_is_asked_for_when_all_is_ready_and_the_time_of_a_request_counts_from_before_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a slow look-up, or a process that is suspended, would lie between the answer and the sending."""
    now, log = 100.0, list[str]()

    class Slow(Target):
        def located(self, table: str) -> Located:
            nonlocal now
            now += 50
            log.append("located")
            return super().located(table)

        def call(self, server: str, *request: Any, **how: Any) -> tuple[pb.MultiResponse, bytes]:
            log.append(f"sent with {how['timeout_s']:g} s since {how['since']:g}")
            return super().call(server, *request, **how)

    def guard(tables: Collection[str]) -> None:
        nonlocal now
        now += 2
        log.append("asked")

    monkeypatch.setattr("walferry.apply.rpc_writer.steady_s", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    target = Slow([BUSY, None])
    RpcWriter(cast(HBaseClient, target), SOURCE_ID, Guard(guard), LIMITS).send([RUN], CELL)
    assert log == [
        "located", "asked", "sent with 3 s since 150",
        "located", "asked", "sent with 3 s since 202",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "seconds", "lost", "marked"),
    [
        (None, 2.9, True, False),  # whoever came next was still waiting
        (None, 3.1, True, True),
        (RequestTimeoutError("no answer", sent=True), 3.1, True, True),
        (RemoteError("the region is gone"), 3.1, True, True),
        (RequestTimeoutError("held up", sent=False), 3.1, True, False),  # the server never got the end of it
        (None, 3.1, False, False),  # nobody else has had the lease
    ],
)
def test_rows_that_were_sent_too_late_for_the_last_answer_of_the_guard_are_marked_dirty(
    outcome: Exception | None, seconds: float, lost: bool, marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("walferry.apply.permit.steady_s", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    class Suspended(Target):
        def call(self, server: str, *request: Any, **how: Any) -> tuple[pb.MultiResponse, bytes]:
            nonlocal now
            how["may_send"]()
            now += seconds
            return super().call(server, *request, **how)

    def answer(tables: Collection[str]) -> None:
        if lost and now > 102.95:
            raise LeaseLostError("another run applies", table="ns:t", number=1)

    other = replace(RUN, table="ns:u")
    cells = b"".join(encode_cell(row, b"f", b"q", 7, CellType.PUT, b"") for row in (b"m", b"b", b"x", b"c"))
    guard, target = Guard(answer), Suspended([outcome, None])
    writer = RpcWriter(cast(HBaseClient, target), SOURCE_ID, guard, LIMITS)
    with suppress(WalferryError):
        writer.send([replace(RUN, cells=3), other], cells)
    assert guard.dirty == ([{"ns:t": (b"b", b"x"), "ns:u": (b"c", b"c")}] if marked else [])
    if marked:
        assert target.log.count(f"sent {cells!r}") == 1


def test_regions_are_looked_up_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target([RegionNotServedError("moved"), ConnectionFailedError("gone", sent=True), None])
    send(target, monkeypatch)
    assert target.log.count("forgot ns:t") == 2


SUSPENDED = """
import os, signal, sys
from dataclasses import replace
from types import SimpleNamespace

from walferry.apply.rpc_writer import RpcWriter
from walferry.apply.writer_protocol import CellRun
from walferry.apply.writers import limits_of
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.mutations import RowBorders
from walferry.hbase.authentication import Simple
from walferry.hbase.descriptors import Region
from walferry.hbase.locations import Located
from walferry.hbase.rpc import ConnectionPool
from walferry.hbase.writer_kind import WriterKind
from walferry.hbase.zookeeper import Server
from walferry.settings import Writing

host, _, port = sys.argv[1].rpartition(":")
region = Region(b"r", "r", "ns:t", b"", b"", Server(host, int(port), 1), 1)
client = SimpleNamespace(
    pool=ConnectionPool(Simple("alice")), located=lambda table: Located((region,), RowBorders.of([b""])),
    location_failed=lambda *failure: None,
)
asked = []

class Guard:
    def wait_turn(self, tables, cells, size):
        pass

    def __call__(self, tables):
        asked.append(tables)
        if len(asked) > int(sys.argv[3]):
            sys.exit(77)
        if len(asked) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

writing = Writing.model_validate({"WALFERRY_REQUEST_SECONDS": sys.argv[2]})
limits = replace(limits_of(WriterKind.RPC, writing), settle_seconds=0, attempts=2)
writer = RpcWriter(client, pb.UUID(least_sig_bits=1, most_sig_bits=2), Guard(), limits)
writer.send([CellRun("ns:t", b"", 1)], bytes.fromhex(sys.argv[4]))
"""


@pytest.mark.parametrize(("seconds", "sent"), [(10, True), (0.4, False)], ids=["shorter", "longer"])
def test_a_process_that_was_suspended_after_its_guard_for_longer_than_a_request_may_take_sends_nothing(
    seconds: float, sent: bool
) -> None:
    """Somebody else may have taken the lease meanwhile, and waits no longer than such a request can take."""
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                peer, _ = listening.accept()
                with peer:
                    while b"Multi" not in received and (data := peer.recv(1 << 16)):
                        received.extend(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-c", SUSPENDED, address, str(seconds), str(1 + sent), CELL.hex()]
        ) as process:
            while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.02)
            time.sleep(0 if sent else 2 * seconds)
            os.kill(process.pid, signal.SIGCONT)
            assert process.wait(timeout=30) == 77, "it asks again before it sends again"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert (b"Multi" in received) == sent


def test_after_an_unknown_outcome_it_waits_until_the_server_has_ended_the_request_and_after_an_answer_only_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Target([RequestTimeoutError("late", sent=True), ConnectionFailedError("broke", sent=True), None])
    send(target, monkeypatch)
    assert [line for line in target.log if line.startswith("waited")] == ["waited 7", "waited 7"]
    target = Target([RegionNotServedError("moved"), ConnectionFailedError("none", sent=False), None])
    send(target, monkeypatch)
    waits = [float(line.removeprefix("waited ")) for line in target.log if line.startswith("waited")]
    assert len(waits) == 2
    assert max(waits) < 1


@dataclass
class Two(Target):
    """A target of two servers, a row on each; the second answers late."""

    late: Exception | None = None

    def located(self, table: str) -> Located:
        regions = [
            Region(start, "r", table, start, end, Server(name, 1, 2), 1)
            for start, end, name in ((b"", b"m", "first"), (b"m", b"", "second"))
        ]
        return Located(tuple(regions), RowBorders.of([b"", b"m"]))

    def call(self, server: str, *request: Any, **how: Any) -> tuple[pb.MultiResponse, bytes]:
        if server == "first:1":
            return super().call(server, *request, **how)
        PAUSE(0.1)
        self.log.append("answered late")
        late, self.late = self.late, None
        if late is not None:
            raise late
        return pb.MultiResponse(), b""


@pytest.mark.parametrize(
    ("first", "late", "pause"),
    [
        (BUSY, None, "short"),
        (BUSY, RequestTimeoutError("late", sent=True), "waited 7"),
        (RequestTimeoutError("late", sent=True), BUSY, "waited 7"),
        (RemoteError("no such family"), RequestTimeoutError("late", sent=True), "waited 7"),
        (WorkerLoginError("its token ended", sent=False), RequestTimeoutError("late", sent=True), "waited 7"),
        (WorkerLoginError("its token ended", sent=False), BUSY, WorkerLoginError),
        (RemoteError("no such family"), BUSY, RefusedError),
        (RequestTimeoutError("late", sent=True), LeaseLostError("lost", table="t", number=1), LeaseLostError),
    ],
)
def test_a_request_to_two_servers_goes_on_once_both_have_answered_and_the_graver_failure_decides(
    first: Exception, late: Exception | None, pause: str | type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Two([first, None], late=late)
    cells = CELL + encode_cell(b"a", b"f", b"q", 7, CellType.PUT, b"v")
    monkeypatch.setattr(time, "sleep", lambda seconds: target.log.append(f"waited {seconds:g}"))
    writer = RpcWriter(cast(HBaseClient, target), SOURCE_ID, Guard(), LIMITS)
    if isinstance(pause, type):
        with pytest.raises(pause):
            writer.send([replace(RUN, cells=2)], cells)
        assert not [line for line in target.log if line.startswith("waited")]
        assert target.log[-1] == "answered late"
        return
    writer.send([replace(RUN, cells=2)], cells)
    log = [line for line in target.log if not line.startswith(("sent", "forgot"))]
    assert log[0] == log[2] == "answered late", "nothing is repeated before"
    assert len(log) == 3
    assert log[1] == pause if pause != "short" else float(log[1].removeprefix("waited ")) < 1


@pytest.mark.parametrize(
    ("outcome", "attempts"), [(BUSY, REGION_ATTEMPTS), (RequestTimeoutError("late", sent=True), LIMITS.attempts)]
)
def test_repeats_are_bounded(outcome: TransientError, attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target([outcome] * 30)
    with pytest.raises(type(outcome)):
        send(target, monkeypatch)
    assert target.log.count(SENT) == attempts


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(RemoteError("no such family"), RefusedError), (AccessDeniedError("not allowed"), AccessDeniedError)],
)
def test_what_the_target_will_never_take_is_not_repeated(
    outcome: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target([outcome])
    with pytest.raises(expected):
        send(target, monkeypatch)
    assert target.log.count(SENT) == 1


@dataclass
class Small(Target):
    """A target that takes requests of so many bytes at most."""

    outcomes: list[Exception | None] = field(default_factory=list)
    most_bytes: int = 0
    taken: list[bytes] = field(default_factory=list)
    refused: int = 0
    error: type[Exception] = RequestTooBigError

    def call(self, server: str, *request: Any, **how: Any) -> tuple[pb.MultiResponse, bytes]:
        cells = b"".join(request[-1])
        if len(cells) > self.most_bytes:
            self.refused += 1
            raise self.error("no request of that size")
        self.taken.append(cells)
        return pb.MultiResponse(), b""


def send_to(target: Small, cells: list[bytes]) -> None:
    """Send the cells as those of two tables, the second with three cells."""
    first, second = CellRun("ns:t", b"", len(cells) - 3), CellRun("ns:u", b"", 3)
    writer = RpcWriter(cast(HBaseClient, target), SOURCE_ID, Guard(), LIMITS)
    writer.send([first, second], b"".join(cells))


def test_a_request_that_is_too_big_for_the_target_is_halved_and_keeps_its_order() -> None:
    cells = [encode_cell(b"r", b"f", b"q%d" % i, 7, CellType.PUT, bytes(100)) for i in range(8)]
    target = Small(most_bytes=3 * len(cells[0]))
    send_to(target, cells)
    assert b"".join(target.taken) == b"".join(cells)
    assert target.refused == 3


def test_a_single_cell_that_is_too_big_for_the_target_is_refused_not_repeated() -> None:
    cells = [encode_cell(b"r", b"f", b"q%d" % i, 7, CellType.PUT, bytes(n)) for i, n in enumerate((9, 900, 9, 9))]
    target = Small(most_bytes=100)
    with pytest.raises(RefusedError, match="a single cell is larger"):
        send_to(target, cells)
    assert target.taken[0] == cells[0]
    assert target.refused == 3


def test_a_request_that_never_fits_into_the_targets_queue_is_halved_once_attempts_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    cells = [encode_cell(b"r", b"f", b"q%d" % i, 7, CellType.PUT, bytes(100)) for i in range(4)]
    target = Small(most_bytes=3 * len(cells[0]), error=CallQueueFullError)
    send_to(target, cells)
    assert b"".join(target.taken) == b"".join(cells)
    assert target.refused == LIMITS.attempts
    full = Small(most_bytes=10, error=CallQueueFullError)
    with pytest.raises(CallQueueFullError):
        send_to(full, cells)
    assert full.taken == []
