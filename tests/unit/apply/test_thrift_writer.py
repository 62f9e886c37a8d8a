"""What Thrift can say goes in order; what it cannot is refused, never turned into something similar."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.apply.guards import Guard
from walferry.apply import permit, thrift_writer
from walferry.apply.thrift_writer import MAX_CELLS, ThriftWriter, calls
from walferry.apply.writer_protocol import CellRun, RefusedError
from walferry.errors import TransientError
from walferry.formats.cells import CellIndex, CellType, encode_cell, index_cells
from walferry.hbase.address import ClusterAddress
from walferry.replay.rights.lease import LeaseLostError
from write_limits import write_limits

Edit = tuple[bytes, bytes, int, CellType, bytes]
"""row, qualifier, timestamp, type, value; all in family f"""


def index_of(edits: Sequence[Edit]) -> CellIndex:
    block = b"".join(encode_cell(row, b"f", qualifier, at, kind, value) for row, qualifier, at, kind, value in edits)
    return index_cells(np.frombuffer(block, np.uint8))


def test_a_family_is_deleted_by_its_bare_name_and_an_empty_qualifier_keeps_its_colon() -> None:
    edits = [
        (b"r", b"", 7, CellType.DELETE_FAMILY, b""),
        (b"r", b"", 7, CellType.DELETE_COLUMN, b""),
        (b"r", b"", 7, CellType.PUT, b"v"),
    ]
    assert [(call.is_put, call.cells) for call in calls(index_of(edits))] == [
        (False, ((b"r", b"f", b""), (b"r", b"f:", b""))),
        (True, ((b"r", b"f:", b"v"),)),
    ]


@pytest.mark.parametrize("kind", [CellType.DELETE, CellType.DELETE_FAMILY_VERSION])
def test_deletes_of_one_version_are_refused_by_name(kind: CellType) -> None:
    with pytest.raises(RefusedError, match=kind.name):
        list(calls(index_of([(b"r", b"", 7, kind, b"")])))


def test_tags_are_refused() -> None:
    block = encode_cell(b"r", b"f", b"q", 7, CellType.PUT, b"v", [(8, b"ttl")])
    with pytest.raises(RefusedError, match="tags"):
        list(calls(index_cells(np.frombuffer(block, np.uint8))))


edits_of = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b"]), st.sampled_from([b"", b"x"]), st.integers(1, 3),
        st.sampled_from([CellType.PUT, CellType.DELETE_COLUMN]), st.binary(max_size=2),
    ),
    max_size=40,
)  # fmt: skip


@given(edits_of)
def test_calls_hold_every_edit_once_in_order_and_never_mix_what_one_call_cannot_order(edits: list[Edit]) -> None:
    made = list(calls(index_of(edits)))
    flat = [(row, column, call.timestamp, call.is_put, value) for call in made for row, column, value in call.cells]
    assert flat == [
        (row, b"f:" + qualifier, at, kind == CellType.PUT, value) for row, qualifier, at, kind, value in edits
    ]
    for call in made:
        columns = [(row, column) for row, column, _ in call.cells]
        assert len(columns) == len(set(columns)) <= MAX_CELLS


class Server:
    """A Thrift server as happybase's connection shows it; the log tells what was asked of it."""

    def __init__(self, log: list[str], sending: Callable[[], None]) -> None:
        self._log = log
        self.sending = sending

    def connect(self, address: ClusterAddress) -> Any:
        self._log.append("connected")
        return self

    def table(self, name: str) -> Server:
        return self

    def batch(self, timestamp: int) -> Server:
        return self

    def put(self, row: bytes, cells: dict[bytes, bytes]) -> None:
        self._log.append(f"put {row!r}")

    def send(self) -> None:
        self._log.append("sent")
        self.sending()

    def close(self) -> None:
        self._log.append("closed")


def send(monkeypatch: pytest.MonkeyPatch, answers: Sequence[Exception | None], seconds: float = 0.1) -> list[str]:
    """Send one cell, which takes so many seconds; the guard has these answers. Returns what happened."""
    log: list[str] = []
    now, coming = 100.0, iter(answers)

    def answer(tables: Collection[str]) -> None:
        log.append("asked")
        if (error := next(coming)) is not None:
            raise error

    def sending() -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(thrift_writer, "connect", Server(log, sending).connect)
    monkeypatch.setattr(permit, "steady_s", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda seconds: log.append("waited"))
    guard = Guard(answer)
    writer = ThriftWriter(
        ClusterAddress("zk", thrift="there:9090"), guard, write_limits(attempts=3, request_seconds=60)
    )
    cell = encode_cell(b"r", b"f", b"q", 7, CellType.PUT, b"v")
    try:
        writer.send([CellRun("ns:t", b"", 1)], cell)
    except TransientError as error:
        log.append(type(error).__name__)
    return log + [f"dirty {rows}" for rows in guard.dirty]


def test_the_lease_is_asked_for_when_all_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ["connected", "put b'r'", "asked"]
    assert send(monkeypatch, [None]) == [*begun, "sent"]
    assert send(monkeypatch, [LOST]) == [*begun, "LeaseLostError"]


def test_a_call_that_took_too_long_for_the_answer_of_the_guard_asks_again_and_marks_its_rows_if_it_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = ["connected", "put b'r'", "asked", "sent"]
    assert send(monkeypatch, [None, None], 61) == [*begun, "asked"]
    assert send(monkeypatch, [None, LOST], 61) == [
        *begun, "asked", "LeaseLostError", "dirty {'ns:t': (b'r', b'r')}",
    ]  # fmt: skip


LOST = LeaseLostError("another run applies", table="ns:t", number=1)
