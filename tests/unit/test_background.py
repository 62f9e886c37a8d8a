"""What several threads of a process share."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from unit.spark_stand_in import SPARK
from walferry.background import OneByOne, beside, made_once
from walferry.errors import UsageError
from walferry.spark import session

ASKING = 4


def test_what_threads_ask_for_at_once_is_made_once() -> None:
    """Hole: tables are compared beside each other, and each would have opened a client, or Spark, of its own."""
    made: list[str] = []
    together = threading.Barrier(ASKING)

    @made_once
    def client(address: str) -> object:
        made.append(address)
        time.sleep(0.05)
        return object()

    def ask(_: int) -> object:
        together.wait(20)
        return client("zk")

    with ThreadPoolExecutor(ASKING) as threads:
        assert len(set(threads.map(ask, range(ASKING)))) == 1
    assert client("another") is not client("zk")
    assert made == ["zk", "another"]


def test_a_session_is_opened_when_it_is_first_asked_for_and_again_only_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []

    def open_session(app_name: str) -> object:
        opened.append(app_name)
        if len(opened) == 1:
            raise UsageError("PySpark is broken")
        return SPARK

    monkeypatch.setattr(session, "open_session", open_session)
    spark = session.opened_once("move")
    assert not opened
    with pytest.raises(UsageError):
        spark()
    assert spark() is spark() is SPARK
    assert opened == ["move", "move"]


def test_what_goes_on_beside_a_block_is_told_when_the_block_ends_and_waited_for() -> None:
    did: list[str] = []

    def work(over: threading.Event) -> None:
        over.wait()
        did.append(threading.current_thread().name)

    def fails() -> None:
        with beside(work, "looks"):
            assert not did
            raise UsageError("the block ends by an error")

    with pytest.raises(UsageError):
        fails()
    assert did == ["looks"]


def test_what_does_not_end_with_its_block_is_left_behind() -> None:
    left = threading.Event()
    with beside(lambda over: left.wait(20), "stuck", end_seconds=0.01):
        pass
    assert not left.is_set()
    left.set()


def test_calls_of_one_thread_are_made_in_their_order_and_each_tells_its_own_error() -> None:
    calls, did = OneByOne("calls"), list[str]()

    def slow() -> None:
        time.sleep(0.05)
        did.append("slow")

    def failing() -> None:
        raise UsageError(f"after {did}")

    first, second, third = calls.begun(slow), calls.begun(failing), calls.begun(lambda: threading.current_thread().name)
    calls.end()
    assert (third.result(20), first.done()) == ("calls", True)
    with pytest.raises(UsageError, match="slow"):
        second.result(0)
