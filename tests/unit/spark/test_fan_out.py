"""What is done without Spark: several items at a time, in this process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from walferry.errors import UsageError
from walferry.spark.fan_out import AT_ONCE_HERE, fan_out

INTERRUPTED = """
import threading, time
from walferry.background import begun
from walferry.spark.fan_out import fan_out

begins = threading.Event()

def slow(number):
    begins.set()
    print(number, flush=True)
    time.sleep(0.3)
    return [number]

begun(lambda: fan_out(None, slow, range(50), what="count"), "count")
begins.wait()
raise KeyboardInterrupt
"""


def test_results_come_in_the_order_of_the_items_which_are_done_some_at_a_time() -> None:
    working: list[int] = []
    most: list[int] = []

    def work(number: int) -> Iterator[int]:
        working.append(number)
        most.append(len(working))
        time.sleep(0.02 * (number % 2))
        working.remove(number)
        yield from (number, -number)

    assert fan_out(None, work, range(9), what="count") == [sign * n for n in range(9) for sign in (1, -1)]
    assert max(most) <= AT_ONCE_HERE


def test_after_an_error_nothing_is_begun_and_nothing_is_at_work() -> None:
    done: list[int] = []

    def work(number: int) -> list[int]:
        if number == 0:
            raise UsageError("no")
        time.sleep(0.05)
        done.append(number)
        return []

    with pytest.raises(UsageError, match="no"):
        fan_out(None, work, range(50), what="count")
    ended = list(done)
    assert len(ended) < AT_ONCE_HERE
    time.sleep(0.2)
    assert done == ended


def test_a_process_that_is_interrupted_does_not_first_do_all_that_waits() -> None:
    """Hole: Ctrl-C while tables were compared beside each other ended the command once all of them were compared."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert "KeyboardInterrupt" in ended.stderr
    assert len(ended.stdout.split()) <= 2 * AT_ONCE_HERE
