"""Bulk loads that last longer than a call: their calls, their region, and a lease that is given back meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from unit.receive.call_builder import REGION
from unit.receive.loaded_table import FILE, OTHER, Table, cell, edit, load, until
from unit.receive.loaded_table import process as process
from unit.receive.loaded_table import table as table
from unit.receive.processes import Process
from walferry.errors import TransientError
from walferry.formats import hfile
from walferry.hbase.errors import RemoteTransientError
from walferry.receive import loads, receiver
from walferry.replay.rights.lease import LeaseLostError
from walferry.run.notes.loads import loads_under_way


def test_a_load_that_lasts_refuses_its_call_and_keeps_its_region_until_it_has_ended_once(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 1.5)
    monkeypatch.setattr(loads, "TELL_SECONDS", 0.05)
    go_on = threading.Event()
    table.before = lambda value: value == b"b" and go_on.wait(10)
    table.add(cell(b"a", b"r1"), cell(b"b", b"r2"), name=FILE)
    table.add(cell(b"c", b"r3" * 99), name=OTHER)
    says = (
        f"bulk load 2 of region {REGION} of t1 is being applied: 1 of 2 files, [5-9][0-9]%, about .* left; the source "
        "sends the call"
    )
    with pytest.raises(RemoteTransientError, match=says):
        process.send(edit(1), load(2, FILE, OTHER), edit(3))
    for again in ([edit(1), load(2, FILE, OTHER), edit(3)], [edit(4)]):
        with pytest.raises(RemoteTransientError, match="being applied"):
            process.send(*again)
    process.send(edit(5, region="other"))
    assert table.values == [b"edit 1", b"c", b"a", b"edit 5"]
    (told,) = loads_under_way(table.ledger)
    assert "1 of 2 files" in told
    go_on.set()
    process.send(edit(1), load(2, FILE, OTHER), edit(3))
    assert table.values == [b"edit 1", b"c", b"a", b"edit 5", b"b", b"edit 3"]
    process.send(edit(1), load(2, FILE, OTHER), edit(3), edit(4))
    assert table.values[-1] == b"edit 4"
    assert table.sums() == (5, 7, 5, 0)
    assert table.guard.dirty == []
    assert loads_under_way(table.ledger) == []


def test_the_failure_of_a_load_that_nobody_waited_for_is_told_to_the_next_call(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 1.5)
    go_on = threading.Event()

    def fails(value: bytes) -> None:
        go_on.wait(10)
        raise TransientError("a server hangs")

    table.add(cell(b"a"))
    table.before = fails
    with pytest.raises(RemoteTransientError, match="being applied"):
        process.send(load(1))
    go_on.set()
    time.sleep(0.2)
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 5)
    table.before = lambda value: None
    with pytest.raises(RemoteTransientError, match="a server hangs"):
        process.send(load(1))
    process.send(load(1))
    assert table.values == [b"a"]


def refused(process: Process) -> int:
    return process.handler._standing.row("serving", (), 0).refused


def test_a_load_that_has_failed_is_a_fault_while_it_is_tried_again_until_it_has_not(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 2.0)
    tries, go_on = iter([True, True, False]), threading.Event()

    def fails(value: bytes) -> None:
        go_on.wait(10)
        if next(tries):
            raise TransientError("a block is damaged")

    table.add(cell(b"a"))
    table.before = fails
    counted = []
    for _ in range(3):
        go_on.clear()
        with pytest.raises(RemoteTransientError, match="being applied"):
            process.send(load(1))
        counted.append(refused(process))
        go_on.set()
        until(lambda: any(job.future.done() for job in jobs(process).values()) or not jobs(process))
        if jobs(process):
            with pytest.raises(RemoteTransientError, match="a block is damaged"):
                process.send(load(1))
            counted.append(refused(process))
    assert counted == [0, 1, 2, 3, 4], "the first try alone is no fault"
    process.send(load(1))
    assert jobs(process) == {}
    go_on.clear()
    table.before = lambda value: go_on.wait(10)
    table.add(cell(b"b"), name=OTHER)
    with pytest.raises(RemoteTransientError, match="being applied"):
        process.send(load(2, OTHER))
    assert refused(process) == 4, "it was another load"
    go_on.set()


def test_a_failure_is_no_matter_of_the_next_holder_and_a_lost_lease_is_none(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 1.5)
    go_on, errors = threading.Event(), iter([TransientError("a block is damaged"), lost_lease()])

    def fails(value: bytes) -> None:
        if value == b"a":
            go_on.wait(10)
            raise next(errors)

    table.add(cell(b"a"))
    table.before = fails
    with pytest.raises(RemoteTransientError, match="being applied"):
        process.send(load(1))
    go_on.set()
    until(lambda: all(job.future.done() for job in jobs(process).values()))
    table.give_back()
    process.handler._to._loads.given_back(table.given_back)  # type: ignore[attr-defined]
    table.take()
    process.send(edit(2))
    go_on.clear()
    with pytest.raises(RemoteTransientError, match="being applied"):
        process.send(load(3))
    go_on.set()
    until(lambda: not jobs(process))
    table.before = lambda value: None
    process.send(load(3))
    assert table.values == [b"edit 2", b"a"]
    assert refused(process) == 0


def lost_lease() -> LeaseLostError:
    return LeaseLostError("the lease is no longer held", table="copy", number=1)


def jobs(process: Process) -> dict[str, loads.Job]:
    found: dict[str, loads.Job] = process.handler._to._loads._jobs  # type: ignore[attr-defined]
    return found


def test_a_load_that_stands_still_is_a_fault_and_one_that_waits_for_others_is_none(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(loads, "STILL_SECONDS", 10)
    go_on = threading.Event()
    table.before = lambda value: go_on.wait(20)
    regions = [f"{number:032x}" for number in range(3)]
    for region in regions:
        table.add(cell(b"a"), region=region)
        with pytest.raises(RemoteTransientError, match="being applied"):
            process.send(load(1, region=region))
    assert refused(process) == 0
    monkeypatch.setattr(loads, "STILL_SECONDS", 1)
    with pytest.raises(RemoteTransientError, match=r"none of its cells was applied for \d+ s"):
        process.send(load(1, region=regions[0]))
    assert refused(process) == 1
    with pytest.raises(RemoteTransientError, match="being applied"):
        process.send(load(1, region=regions[2]))
    assert refused(process) == 1
    go_on.set()
    for region in regions:
        process.send(load(1, region=region))
    assert table.values == [b"a"] * 3


def test_a_lease_that_is_given_back_ends_the_load_at_once_and_the_next_holder_begins_it_again(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "ANSWER_SECONDS", 4)
    began, go_on = threading.Event(), threading.Event()

    def slow(value: bytes) -> None:
        if value == b"b":
            began.set()
            assert go_on.wait(10)

    table.before = slow
    table.add(*(cell(value, b"r" + value) for value in (b"a", b"b", b"c", b"d")))
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(process.send, load(1), edit(2))
        assert began.wait(10)
        given = pool.submit(table.give_back)
        time.sleep(0.2)
        assert not given.done(), "a request is under way"
        go_on.set()
        given.result(10)
        assert table.values == [b"a", b"b"]
        with pytest.raises(RemoteTransientError, match="not applied in time: nobody has it"):
            sent.result(10)
    table.values.clear()
    table.take()
    process.send(load(1), edit(2))
    assert table.values == [b"a", b"b", b"c", b"d", b"edit 2"]
    assert table.guard.dirty == []


def test_a_large_request_ends_at_its_next_part_when_the_lease_is_given_back(
    table: Table, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cells are of one block."""
    began, go_on = threading.Event(), threading.Event()

    def slow(_: bytes) -> None:
        began.set()
        assert go_on.wait(10)

    table.before = slow
    monkeypatch.setattr(hfile, "BATCH_BYTES", 1 << 20)
    table.add(*(cell(value, b"r" + value) for value in (b"a", b"b", b"c", b"d")))
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(process.send, load(1))
        assert began.wait(10)
        given = pool.submit(table.give_back)
        until(lambda: table.mine is None)
        time.sleep(0.1)
        go_on.set()
        given.result(10)
        assert table.values == [b"a"]
        table.take()
        sent.result(30)
    assert table.values == [b"a", b"a", b"b", b"c", b"d"]
