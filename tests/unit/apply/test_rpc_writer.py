"""A request is sent only under the lease, one at a time, and never overtaken by the next after an unknown outcome."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from walferry.apply.rpc_writer import RpcWriter
from walferry.apply.writer_protocol import CellRun, Limits, RefusedError
from walferry.errors import TransientError
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import (
    AccessDeniedError,
    CallQueueFullError,
    RemoteError,
    RequestTimeoutError,
    RequestTooBigError,
)
from walferry.replay.lease import LeaseLostError

LIMITS = Limits(request_seconds=3, attempts=3, settle_seconds=7)
RUN = CellRun("ns:t", b"", b"region", 5, 6, 1)


@dataclass
class Target:
    """A target that answers with these outcomes, one a request; None: it took the edits."""

    outcomes: list[Exception | None]
    log: list[str] = field(default_factory=list)

    def servers(self) -> list[str]:
        return ["rs"]

    def replicate(self, server: str, entries: Any, cells: bytes, *, timeout_s: float) -> None:
        self.log.append(f"sent {bytes(cells)!r}")
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome


def send(target: Target, monkeypatch: pytest.MonkeyPatch, lease_ends_after: int = 99, cells: bytes = b"cells") -> None:
    """Send one request; the log of the target gets guards and pauses, too."""
    monkeypatch.setattr(time, "sleep", lambda seconds: target.log.append(f"waited {seconds:g}"))

    def guard(tables: Collection[str]) -> None:
        target.log.append(f"asked for {sorted(tables)}")
        if sum(line.startswith("asked") for line in target.log) > lease_ends_after:
            raise LeaseLostError("another run applies", table="ns:t", fence=1)

    RpcWriter(cast(HBaseClient, target), pb.UUID(least_sig_bits=1, most_sig_bits=2), guard, LIMITS).send([RUN], cells)


def test_every_request_asks_for_the_lease_first(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target([TransientError("busy"), None])
    send(target, monkeypatch)
    assert [line for line in target.log if not line.startswith("waited")] == ["asked for ['ns:t']", "sent b'cells'"] * 2


def test_nothing_is_sent_once_the_lease_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target([TransientError("busy"), None])
    with pytest.raises(LeaseLostError):
        send(target, monkeypatch, lease_ends_after=1)
    assert target.log.count("sent b'cells'") == 1


def test_after_an_unknown_outcome_it_waits_until_the_server_has_ended_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = TransientError("the sink's own client gave up")  # whose request may go on
    unknown = [RequestTimeoutError("no answer"), TransientError("connection broke", sent=True), inner, None]
    target = Target(unknown[1:])  # type: ignore[arg-type]
    send(target, monkeypatch)
    assert [line for line in target.log if line.startswith("waited")] == ["waited 7", "waited 7"]
    target = Target([unknown[0], TransientError("no connection", sent=False), None])
    send(target, monkeypatch)
    assert [line for line in target.log if line.startswith("waited")] == ["waited 7", "waited 1"]


def test_repeats_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target([TransientError("busy")] * 9)
    with pytest.raises(TransientError, match="busy"):
        send(target, monkeypatch)
    assert target.log.count("sent b'cells'") == LIMITS.attempts


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
    assert target.log.count("sent b'cells'") == 1


@dataclass
class Small:
    """A target that takes requests of so many bytes at most."""

    most_bytes: int
    taken: list[tuple[list[tuple[int, int]], bytes]] = field(default_factory=list)
    refused: int = 0
    error: type[Exception] = RequestTooBigError

    def servers(self) -> list[str]:
        return ["rs"]

    def replicate(self, server: str, entries: Any, cells: bytes, *, timeout_s: float) -> None:
        if len(cells) > self.most_bytes:
            self.refused += 1
            raise self.error("no request of that size")
        keys = [pb.WALKey.FromString(key) for key, _ in entries]
        counts = [count for _, count in entries]
        self.taken.append(([(key.log_sequence_number, n) for key, n in zip(keys, counts, strict=True)], bytes(cells)))


def send_to(target: Small, cells: list[bytes]) -> None:
    """Send the cells as those of two entries, the second with three cells."""
    first = CellRun("ns:t", b"", b"region", 5, 6, len(cells) - 3)
    second = CellRun("ns:t", b"", b"region", 6, 6, 3)
    writer = RpcWriter(cast(HBaseClient, target), pb.UUID(least_sig_bits=1, most_sig_bits=2), lambda _: None, LIMITS)
    writer.send([first, second], b"".join(cells))


def test_a_request_that_is_too_big_for_the_target_is_halved_and_keeps_its_order() -> None:
    cells = [encode_cell(b"r", b"f", b"q%d" % i, 7, CellType.PUT, bytes(100)) for i in range(8)]
    target = Small(3 * len(cells[0]))
    send_to(target, cells)
    assert b"".join(content for _, content in target.taken) == b"".join(cells)
    assert [entries for entries, _ in target.taken] == [[(5, 2)], [(5, 2)], [(5, 1), (6, 1)], [(6, 2)]]
    assert target.refused == 3


def test_a_single_cell_that_is_too_big_for_the_target_is_refused_not_repeated() -> None:
    cells = [encode_cell(b"r", b"f", b"q%d" % i, 7, CellType.PUT, bytes(n)) for i, n in enumerate((9, 900, 9, 9))]
    target = Small(100)
    with pytest.raises(RefusedError, match="one cell alone"):
        send_to(target, cells)
    assert target.taken[0][1] == cells[0]
    assert target.refused == 3


def test_a_request_that_never_fits_into_the_targets_queue_is_halved_once_attempts_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    cells = [encode_cell(b"r", b"f", b"q%d" % i, 7, CellType.PUT, bytes(100)) for i in range(4)]
    target = Small(3 * len(cells[0]), error=CallQueueFullError)
    send_to(target, cells)
    assert b"".join(content for _, content in target.taken) == b"".join(cells)
    assert target.refused == LIMITS.attempts
    full = Small(10, error=CallQueueFullError)
    with pytest.raises(CallQueueFullError):
        send_to(full, cells)
    assert full.taken == []


@pytest.mark.parametrize("name", [b"HBASE::BULK_LOAD", b"HBASE::REPLICATION_MARKER"])
def test_a_column_that_the_target_would_take_for_a_marker_is_refused_and_not_sent(
    name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(qualifier: bytes, value: bytes) -> bytes:
        return encode_cell(b"r", b"f", qualifier, 7, CellType.PUT, value)

    for value_only in (cell(b"q", name), cell(b"HBASE::", b"v")):
        target = Target([None])
        send(target, monkeypatch, cells=value_only)
        assert len(target.log) == 2
    target = Target([])
    with pytest.raises(RefusedError, match=name.decode()):
        send(target, monkeypatch, cells=cell(b"q", b"v") + cell(name, b"v"))
    assert target.log == []
