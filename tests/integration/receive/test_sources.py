"""A real source replicates to an RpcServer that poses as a sink's region server."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from integration.receive.recording import Receiving, Recorder, receiving
from walferry.embedded.cluster import MiniCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def receiver(source: MiniCluster, target: MiniCluster) -> Iterator[Receiving]:
    with receiving(source, target) as made:
        yield made


def test_rows_arrive_by_one_kind_of_call_with_the_ids_of_their_cluster(receiver: Receiving) -> None:
    for number in range(20):
        receiver.write(b"row%03d" % number, b"value of %03d" % number)
    for number in range(20):
        (call,) = receiver.recorder.await_accepted(b"row%03d" % number)
        assert b"value of %03d" % number in call.cells
        assert receiver.table.encode() in call.parameter
    seen = {(call.service, call.method) for call in receiver.recorder.calls}
    assert seen == {("AdminService", "ReplicateWALEntry")}


@pytest.mark.parametrize(
    ("java_class", "do_not_retry"),
    [
        ("java.io.IOException", False),
        ("org.apache.hadoop.hbase.DoNotRetryIOException", True),
        ("org.apache.hadoop.hbase.CallQueueTooBigException", False),
    ],
)
def test_what_was_refused_comes_again_until_it_is_accepted(
    receiver: Receiving, java_class: str, do_not_retry: bool
) -> None:
    recorder, row = receiver.recorder, f"refused by {java_class}".encode()
    recorder.java_class, recorder.do_not_retry, recorder.refuse = java_class, do_not_retry, 3
    receiver.write(row)
    calls = recorder.await_accepted(row)
    assert [call.refused for call in calls] == [True, True, True, False]
    assert len({(call.parameter, call.cells) for call in calls}) == 1


def test_large_batches_arrive_and_no_memory_is_held_afterwards(receiver: Receiving) -> None:
    dice = random.Random(3)
    values = {b"large%02d" % number: dice.randbytes(4 << 20) for number in range(20)}
    for row, value in values.items():
        receiver.write(row, value)
    for row, value in values.items():
        assert any(value in call.cells for call in receiver.recorder.await_accepted(row))
    receiver.served.await_held(lambda held: held == 0)


def test_what_a_receiver_that_hides_itself_does_not_accept_goes_to_another_one(receiver: Receiving) -> None:
    other, rows = Recorder(), [b"moved%02d" % number for number in range(10)]
    with receiver.beside(other) as presence:
        presence.show()
        assert receiver.presence.others() == [presence.server]
        receiver.presence.hide()
        receiver.recorder.refuse = 1_000_000
        for row in rows:
            receiver.write(row)
        for row in rows:
            other.await_accepted(row)
        assert all(call.refused for row in rows for call in receiver.recorder.with_row(row))
        receiver.recorder.refuse = 0
        receiver.presence.show()
        presence.hide()
        other.refuse = 1_000_000
        receiver.write(b"back")
        receiver.recorder.await_accepted(b"back")
