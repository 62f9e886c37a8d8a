"""How calls for a topic share transactions, and how each of them ends. In a real ledger."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from unit.receive.call_builder import REGION, Sent
from unit.receive.kafka_world import TABLE, Call, World, put, together, until
from walferry.formats.cells import encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.receive import applying, topic_table
from walferry.receive.holding import OutOfTimeError
from walferry.receive.topic_table import UnsendableError


def test_calls_that_wait_are_committed_together_and_one_that_cannot_be_sent_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.process()
    began, go_on = threading.Event(), threading.Event()
    commit = one.table.sink.commit

    def slow(changed: Any) -> int:
        began.set()
        assert go_on.wait(10)
        return commit(changed)

    monkeypatch.setattr(one.table.sink, "commit", slow)
    calls = [Call(one, (1, "r1"))]
    assert began.wait(10)
    calls += [Call(one, (number, f"r{number}")) for number in (2, 3)]
    bad = Call(one, Sent([put(b"big", b"x" * (1 << 20))], "r4", TABLE, 4))
    until(lambda: len(one.table._waiting) == 3)
    go_on.set()
    for call in (*calls, bad):
        call.thread.join(10)
    assert [call.error for call in calls] == [None] * 3
    assert isinstance(bad.error, UnsendableError)
    assert sorted(world.kafka.numbers) == [1, 2, 3]
    assert world.kafka.transactions == 2
    assert world.sums() == (3, 0, 0, 3)


class Panic(BaseException):
    """What no code expects."""


def panics(*_: Any) -> str:
    raise Panic


def test_calls_that_were_taken_end_whatever_a_decoder_raises(world: World) -> None:
    world.ledger.of(world.run_id).end("aborted", "kim")
    world.begin(decode="unit.receive.test_topic_table:panics")
    one = world.process()
    calls = together(one, (1, "r1"), (2, "r2"), (3, "r3"))
    assert sorted(type(call.error).__name__ for call in calls) == ["NotHeldError", "NotHeldError", "Panic"]
    assert one.table.stale


def test_calls_that_were_taken_end_if_the_topic_cannot_be_looked_at(world: World) -> None:
    one = world.process()
    world.kafka.refuses = RuntimeError("a fault")
    calls = together(one, (1, "r1"), Sent([put(b"big", b"x" * (1 << 20))], "r2", TABLE, 2))
    assert "a fault" in {str(call.error) for call in calls}
    assert one.table.stale
    assert world.kafka.numbers == [1]


def test_calls_that_are_committed_together_are_forgotten_by_the_ledger_no_sooner_than_here(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "MOST_CALLS", 8)
    one = world.process()
    for number in range(1, 9):
        one.send((number, f"r{number}"))
    together(one, *((number, f"r{number}") for number in range(9, 12)))
    assert world.kafka.transactions == 9
    assert world.rows() == one.table.seen.calls
    assert world.received.floors(TABLE) == one.table.seen.floors


def test_a_sink_that_is_spent_by_a_commit_costs_no_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.process()
    commit = one.table.sink.commit

    def disturbed(changed: Any) -> int:
        monkeypatch.setattr(one.table.sink, "is_spent", True)
        return commit(changed)

    monkeypatch.setattr(one.table.sink, "commit", disturbed)
    one.send(1)
    assert one.table.stale, "the table is opened again before the next call"
    assert world.sums() == (1, 0, 0, 1)


def test_a_call_whose_time_is_over_is_not_sent(world: World) -> None:
    one = world.process()
    with pytest.raises(OutOfTimeError):
        one.send(1, deadline_s=-1)
    one.send(1)
    assert world.kafka.numbers == [1]


def test_a_large_call_goes_in_several_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.process()
    one.table._most_bytes = 100
    one.send(*range(1, 31))
    assert world.kafka.numbers == list(range(1, 31))
    assert world.kafka.transactions > 5


def test_a_slow_kafka_gets_smaller_transactions_and_larger_ones_when_it_is_quick(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.process()
    monkeypatch.setattr(topic_table, "LONG_S", -1.0)
    for number in range(8):
        one.send(number)
    assert one.table._most_bytes == topic_table.LEAST_BYTES
    monkeypatch.setattr(topic_table, "LONG_S", 3.0)
    for number in range(10, 18):
        one.send(number)
    assert one.table._most_bytes == topic_table.MOST_BYTES


def test_the_ledgers_time_is_not_a_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one, passed_s = world.process(), 0.0
    applied = one.table.ledger.applied

    def slow(*args: Any) -> dict[str, int]:
        nonlocal passed_s
        passed_s += 10
        return applied(*args)

    monkeypatch.setattr(topic_table, "steady_s", lambda: passed_s)
    monkeypatch.setattr(one.table.ledger, "applied", slow)
    one.send(1)
    assert one.table._most_bytes == topic_table.MOST_BYTES


def test_a_bulk_load_is_an_event_in_every_partition_between_the_changes_before_and_after(world: World) -> None:
    one = world.process()
    for _ in range(2):
        one.send(1, load("loaded_1"), 3)
    assert world.kafka.numbers == [1, 2, 2, 3]
    events = [value for value in world.kafka.messages if "event" in value]
    assert [value["partition"] for value in events] == [0, 1]
    assert events[0]["event"] == {"kind": "bulk_load", "files": [{"family": "d", "name": "loaded_1"}]}
    assert events[0]["position"] == [0, 2, 0]
    assert world.sums()[:2] == (3, 3)


def load(*files: str) -> Sent:
    """A bulk load, whose number is 2."""
    told = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"shop", qualifier=b"orders"), encoded_region_name=REGION.encode(),
        stores=[pb.StoreDescriptor(family_name=b"d", store_home_dir="d", store_file=files)], bulkload_seq_num=2,
    )  # fmt: skip
    marker = encode_cell(b"\0", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, 4, told.SerializeToString())
    return Sent([marker], REGION, TABLE, 2)


def test_an_event_that_is_too_large_fails_alone_and_is_named(world: World) -> None:
    world.kafka.most_bytes = 2000
    one = world.process()
    good, bad = together(one, (7, "another region"), load(*(f"loaded_{number}" for number in range(200))))
    assert good.error is None
    assert isinstance(bad.error, UnsendableError)
    assert f"edit 2 of region {REGION} of {TABLE} cannot be sent to Kafka: the message has" in bad.error.message
    assert bad.error.message.endswith("and its topic takes 2000: raise the topic's max.message.bytes")
    assert world.kafka.numbers == [7]
