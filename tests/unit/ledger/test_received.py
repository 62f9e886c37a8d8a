"""What a run was sent, and the processes that serve it, in both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from walferry.errors import UsageError, WalferryError
from walferry.ledger import Ledger, ReceivedCall, ReceivedTotal, Receiver, RunLedger
from walferry.ledger.batches import in_one
from walferry.ledger.leases import FollowedTwiceError
from walferry.ledger.received import _PAGE, GONE_MS

NOTHING = in_one()
SPEC = {"name": "east", "tables": ["orders", "items"]}


def call(content: bytes = b"", table: str = "orders", newest_ms: int | None = 5) -> ReceivedCall:
    return ReceivedCall(table, 2, 6, 100, 1, 3, newest_ms, content)


def receiver(server: str = "a,16040,1", **values: object) -> Receiver:
    made = Receiver(server, "serving", 1, 10, frozenset({"orders", "shop:items"}), 3, 1, 7)
    return replace(made, **values)  # type: ignore[arg-type]


@pytest.fixture
def receiving(ledger: Ledger) -> RunLedger:
    return ledger.of(ledger.open_run("east", "me", SPEC, "me", "receive").run_id)


@pytest.fixture
def beside(ledger: Ledger) -> RunLedger:
    return ledger.of(ledger.open_run("west", "me", SPEC | {"name": "west"}, "me", "receive").run_id)


def test_the_contents_of_a_table_are_found_again_in_the_order_of_its_calls(
    receiving: RunLedger, beside: RunLedger
) -> None:
    receiving.received.applied([call(b"\x00\xff"), call(b"i", "items"), call(b"2")], NOTHING)
    beside.received.applied([call(b"other")], NOTHING)
    receiving.received.applied([], NOTHING)
    receiving.received.applied([call(b"3")], NOTHING)
    assert list(receiving.received.contents("orders")) == [b"\x00\xff", b"2", b"3"]
    assert list(receiving.received.contents("items")) == [b"i"]
    assert list(receiving.received.contents("unknown")) == []


def test_more_contents_than_are_read_at_a_time_are_all_found(receiving: RunLedger) -> None:
    contents = [str(number).encode() for number in range(2 * _PAGE + 1)]
    receiving.received.applied([call(content) for content in contents], NOTHING)
    assert list(receiving.received.contents("orders")) == contents


def test_sums_go_on_and_the_newest_write_time_never_sinks(
    receiving: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter((100, 200, 300, 400))
    monkeypatch.setattr("walferry.ledger.received.now_ms", lambda: next(moments))
    receiving.received.applied([call(newest_ms=None)], NOTHING)
    assert receiving.received.totals() == [ReceivedTotal("orders", 1, 2, 6, 100, 1, 3, None, None, 100)]
    receiving.received.applied([call(newest_ms=9), call(newest_ms=7), call(table="items", newest_ms=4)], NOTHING)
    receiving.received.applied([call(newest_ms=9)], NOTHING)
    receiving.received.applied([call(newest_ms=None)], NOTHING)
    assert receiving.received.totals() == [
        ReceivedTotal("items", 1, 2, 6, 100, 1, 3, 4, 200, 200),
        ReceivedTotal("orders", 5, 10, 30, 500, 5, 15, 9, 200, 400),
    ]


def test_nothing_is_recorded_or_folded_once_the_lease_is_lost(receiving: RunLedger) -> None:
    def lost(connection: Connection) -> None:
        raise WalferryError("lost")

    receiving.received.applied([call(b"1"), call(b"2")], NOTHING)
    totals = receiving.received.totals()
    with pytest.raises(WalferryError, match="lost"):
        receiving.received.applied([call(b"3")], lost)
    with pytest.raises(WalferryError, match="lost"):
        receiving.received.fold("orders", 0, {"r": 1}, lost)
    assert (list(receiving.received.contents("orders")), receiving.received.totals()) == ([b"1", b"2"], totals)
    assert receiving.received.floors("orders") == {}


def test_folding_keeps_the_newest_calls_of_the_table_and_only_raises_floors(
    receiving: RunLedger, beside: RunLedger
) -> None:
    for part in (receiving, beside):
        part.received.applied([call(str(number).encode()) for number in range(5)], NOTHING)
    receiving.received.applied([call(b"i", "items")], NOTHING)
    receiving.received.fold("orders", 2, {"r1": 7, "r2": 0})
    assert list(receiving.received.contents("orders")) == [b"3", b"4"]
    receiving.received.fold("orders", 2, {"r1": 6, "r2": 3, "r3": 1})
    assert list(receiving.received.contents("orders")) == [b"3", b"4"]
    assert receiving.received.floors("orders") == {"r1": 7, "r2": 3, "r3": 1}
    assert list(receiving.received.contents("items")) == [b"i"]
    assert receiving.received.floors("items") == beside.received.floors("orders") == {}
    assert len(list(beside.received.contents("orders"))) == 5


def test_numbers_go_on_after_every_call_was_folded(receiving: RunLedger) -> None:
    receiving.received.applied([call(b"1"), call(b"2")], NOTHING)
    receiving.received.fold("orders", 0, {})
    receiving.received.applied([call(b"3"), call(b"4")], NOTHING)
    receiving.received.fold("orders", 1, {})
    assert list(receiving.received.contents("orders")) == [b"4"]
    assert [total.calls for total in receiving.received.totals()] == [4]


def test_a_run_that_has_ended_records_nothing_but_that_its_processes_leave(receiving: RunLedger) -> None:
    receiving.received.beat(receiver())
    receiving.end("aborted", "me")
    with pytest.raises(UsageError, match="has ended"):
        receiving.received.applied([call()], NOTHING)
    with pytest.raises(UsageError, match="has ended"):
        receiving.received.fold("orders", 0, {})
    with pytest.raises(UsageError, match="has ended"):
        receiving.received.beat(receiver())
    receiving.received.beat(receiver(state="left"))
    assert [one.state for one in receiving.received.receivers()] == ["left"]


def test_a_heartbeat_replaces_the_one_before_and_old_processes_are_forgotten(
    receiving: RunLedger, beside: RunLedger
) -> None:
    refusing = receiver(at_ms=20, tables=frozenset(), last_refusal="no lease", last_refusal_ms=19)
    receiving.received.beat(receiver())
    receiving.received.beat(receiver("b,16040,1", at_ms=15))
    receiving.received.beat(refusing)
    beside.received.beat(receiver())
    assert receiving.received.receivers() == [refusing, receiver("b,16040,1", at_ms=15)]
    receiving.received.forget_receivers(20)
    assert receiving.received.receivers() == [refusing]
    assert beside.received.receivers() == [receiver()]


def test_a_process_without_a_heartbeat_for_a_minute_does_not_serve() -> None:
    assert receiver(at_ms=10).serves(10 + GONE_MS - 1)
    assert not receiver(at_ms=10).serves(10 + GONE_MS)
    assert not receiver(at_ms=10, state="left").serves(10)


def test_calls_add_no_audit_line(receiving: RunLedger) -> None:
    before = len(receiving.audit_trail())
    receiving.received.applied([call()], NOTHING)
    receiving.received.fold("orders", 0, {"r": 1})
    receiving.received.beat(receiver())
    assert len(receiving.audit_trail()) == before


def test_recording_costs_the_same_for_many_calls_and_after_many(receiving: RunLedger) -> None:
    statements = list[str]()

    def counted(*of_statement: Any) -> None:
        statements.append(of_statement[2])

    def cost(calls: int) -> int:
        statements.clear()
        receiving.received.applied([call(str(number).encode()) for number in range(calls)], NOTHING)
        return len(statements)

    receiving.received.applied([call()], NOTHING)
    event.listen(Engine, "before_cursor_execute", counted)
    try:
        assert cost(1) == cost(200) == cost(1) <= 6
    finally:
        event.remove(Engine, "before_cursor_execute", counted)


def test_two_runs_cannot_both_receive_into_a_table_and_two_processes_of_one_can(
    receiving: RunLedger, beside: RunLedger
) -> None:
    receiving.leases.take("target orders", "a", 1)
    receiving.leases.take("target orders", "b", 2)
    with pytest.raises(FollowedTwiceError, match="run east-1 follows a log into target table orders"):
        beside.leases.take("target orders", "c", 3)


def test_rows_above_a_number_are_taken_back_with_their_part_of_the_sums(receiving: RunLedger) -> None:
    received = receiving.received
    assert received.applied([call(b"1"), call(b"2")], NOTHING) == {"orders": 2}
    assert received.applied([call(b"3"), call(table="items")], NOTHING) == {"orders": 3, "items": 1}
    items, orders = received.totals()
    assert received.take_back("orders", 3, NOTHING) == 0
    assert received.totals() == [items, orders]
    assert received.take_back("orders", 1, NOTHING) == 2
    assert received.totals() == [
        items, replace(orders, calls=1, entries=2, cells=6, bytes=100, repeated=1, late=3),
    ]  # fmt: skip
    assert list(received.contents("orders")) == [b"1"]
    assert received.take_back("orders", 0, NOTHING) == 1
    assert received.totals() == [items]


def test_new_rows_have_numbers_above_the_given_ones(receiving: RunLedger) -> None:
    assert receiving.received.applied([call()], NOTHING, {"orders": 7}) == {"orders": 8}
    assert receiving.received.applied([call()], NOTHING, {"orders": 7}) == {"orders": 9}


def test_nothing_is_taken_back_once_the_lease_is_lost(receiving: RunLedger) -> None:
    def lost(connection: Connection) -> None:
        raise WalferryError("lost")

    receiving.received.applied([call(b"1")], NOTHING)
    with pytest.raises(WalferryError, match="lost"):
        receiving.received.take_back("orders", 0, lost)
    assert list(receiving.received.contents("orders")) == [b"1"]
