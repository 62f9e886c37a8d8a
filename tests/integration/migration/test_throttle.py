"""A throttle holds for the whole run while it replays, and a pause stops its requests in the midst of a round."""

from __future__ import annotations

import _thread
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from pyspark.sql import SparkSession

from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.replay.rounds.follower import replay
from walferry.run.notes.throttle import set_throttle
from walferry.run.run import Run, RunEndedError
from walferry.run.spec import Throttle

pytestmark = pytest.mark.cluster

CELLS = 16_000
SLOW, FAST = 300, 1_500
"""cells per second"""
SMALL = 25
"""cells of a request, so that what was sent can be seen to grow"""


def fill(client: HBaseClient, table: str) -> None:
    """One cell in each row, in all regions alike."""
    cells = [Cell(b"%c%05d" % (b"bhmqt"[n % 5], n), b"f", b"q", b"v%d" % n, 1) for n in range(CELLS)]
    for begin in range(0, CELLS, 1000):
        client.put(table, cells[begin : begin + 1000])


def found(client: HBaseClient, table: str) -> Counter[tuple[bytes, int, bytes]]:
    """The cells of a table, and how often each is there: row, timestamp, value."""
    cells: Counter[tuple[bytes, int, bytes]] = Counter()
    for block in client.scan_raw(table):
        batch = cells_to_arrow(index_cells(np.frombuffer(block, np.uint8)))
        cells.update((c["row"], c["timestamp"], c["value"]) for c in batch.to_pylist())
    return cells


@contextmanager
def replaying(run: Run, spark: SparkSession) -> Iterator[Callable[[], None]]:
    """A replay in another thread; what is given ends it after a round, and raises what it raised."""
    enough, failures = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            replay(run, spark, until=enough.is_set)
        except BaseException as error:
            failures.append(error)

    def end() -> None:
        enough.set()
        thread.join(120)
        assert not thread.is_alive()
        if failures:
            raise failures[0]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield end
    finally:
        run.ledger.whole.set_paused(run.run_id, False, "tester")
        set_throttle(run.ledger, Throttle(), "tester")
        enough.set()
        thread.join(120)


def test_a_replay_keeps_to_the_throttle_which_may_change_and_a_pause_stops_it_in_the_midst_of_a_round(
    at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[..., str], start_run: Callable[..., Run],
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WALFERRY_REQUEST_MUTATIONS", str(SMALL))
    table = make_table((b"h", b"m", b"q"))
    run = start_run(table)
    fill(at_source, table)
    set_throttle(run.ledger, Throttle(write_cells=SLOW), "tester")

    def there() -> int:
        return len(found(at_target, table))

    def rate(seconds: float) -> float:
        """Cells per second that arrive at the target."""
        before, began = there(), time.monotonic()
        time.sleep(seconds)
        return (there() - before) / (time.monotonic() - began)

    with replaying(run, spark) as end:
        until = time.monotonic() + 60
        while not there():
            assert time.monotonic() < until
            time.sleep(0.1)
        slow = rate(6)
        assert 0.6 * SLOW < slow < 1.2 * SLOW
        set_throttle(run.ledger, Throttle(write_cells=FAST), "tester")
        time.sleep(0.5)
        fast = rate(3)
        assert 2 * slow < fast < 1.2 * FAST
        run.ledger.whole.set_paused(run.run_id, True, "tester")
        time.sleep(1.0)
        stopped_at = there()
        assert rate(3) == 0
        assert 0 < stopped_at < CELLS
        assert run.ledger.rounds.totals().rounds == 0, "the round goes on"
        print(f"{slow:.0f} cells/s at {SLOW}, {fast:.0f} at {FAST}, paused at {stopped_at} of {CELLS}")
        set_throttle(run.ledger, Throttle(), "tester")
        time.sleep(1.0)
        assert there() == stopped_at
        run.ledger.whole.set_paused(run.run_id, False, "tester")
        end()
    assert found(at_target, table) == found(at_source, table)
    assert run.ledger.rounds.totals().cells >= CELLS
    (first, *_) = run.ledger.rounds.all()
    assert first.repeated == 0, "no piece was begun again"


@pytest.mark.parametrize("how", ["abort", "interrupt"])
def test_a_run_that_is_paused_in_the_midst_of_a_round_can_be_aborted_and_interrupted(
    how: str, at_source: HBaseClient, at_target: HBaseClient, make_table: Callable[..., str],
    start_run: Callable[..., Run], spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WALFERRY_REQUEST_MUTATIONS", str(SMALL))
    table = make_table((b"h", b"m", b"q"))
    run = start_run(table)
    fill(at_source, table)
    set_throttle(run.ledger, Throttle(write_cells=SLOW), "tester")
    told: list[float] = []

    def work() -> None:
        while not found(at_target, table):
            time.sleep(0.2)
        run.ledger.whole.set_paused(run.run_id, True, "tester")
        time.sleep(2.0)
        told.extend((time.monotonic(), len(found(at_target, table))))
        if how == "abort":
            run.ledger.end("aborted", "tester", "enough")
        else:
            _thread.interrupt_main()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    with pytest.raises(RunEndedError if how == "abort" else KeyboardInterrupt):
        replay(run, spark, until=lambda: False)
    thread.join()
    began, before = told
    took = time.monotonic() - began
    print(f"{how}: {took:.1f} s")
    assert took < 15
    time.sleep(2)
    assert len(found(at_target, table)) == before
