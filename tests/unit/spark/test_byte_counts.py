"""The driver knows the bytes that a task has read before the task ends."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace

from walferry.spark.byte_counts import collecting, count_bytes, counting, counting_here
from walferry.spark.fan_out import progress_line


def test_counts_arrive_while_the_work_goes_on_and_a_strangers_do_not() -> None:
    with collecting("127.0.0.1") as (collector, counts):
        with counting(replace(collector, secret=b"\x00" * 16), 0):
            count_bytes(9)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"what is this", (collector.host, collector.port))
        with counting(collector, 1):
            count_bytes(700)
            deadline = time.monotonic() + 5
            while not counts and time.monotonic() < deadline:
                time.sleep(0.01)
            assert counts == {1: 700}  # the item is not done yet
            count_bytes(50)
        while counts == {1: 700} and time.monotonic() < deadline:
            time.sleep(0.01)
        assert counts == {1: 750}


def test_work_that_nobody_follows_counts_nothing_and_a_driver_that_is_gone_stops_no_work() -> None:
    count_bytes(5)
    with counting(None, 0):
        count_bytes(5)
    with collecting("127.0.0.1") as (collector, _):
        pass
    with counting(collector, 0):
        count_bytes(5)


def test_progress_is_told_in_bytes_with_a_rate_from_the_first_ones_on() -> None:
    sizes = (600_000_000, 400_000_000)
    assert progress_line("apply edits", {}, sizes, 5) == "apply edits: 0.0/1000.0MB 0.0%; Time: 5s; ETA: N/A"
    line = progress_line("apply edits", {0: 250_000_000}, sizes, 10)
    assert line == "apply edits: 250.0/1000.0MB 25.0%; Time: 10s; ETA: 30s"
    assert "400.0/1000.0MB" in progress_line("apply edits", {1: 999_000_000}, sizes, 10)  # listed too short


def test_items_that_threads_of_the_driver_work_on_are_counted_each_for_itself() -> None:
    counts: dict[int, int] = {}
    both = threading.Barrier(2)

    def work(item: int) -> None:
        with counting_here(counts, item):
            both.wait(10)
            count_bytes(10 * item)
            both.wait(10)
            count_bytes(1)
        count_bytes(1000)

    threads = [threading.Thread(target=work, args=(item,)) for item in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {1: 11, 2: 21}
