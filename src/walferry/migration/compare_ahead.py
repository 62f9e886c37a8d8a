"""Compare while the log is followed, so that the write stop need not: each table once as a whole, and then, again and
again, what was written since."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from walferry.clock import steady_s
from walferry.errors import WalferryError
from walferry.migration.compare import compare
from walferry.migration.known_differences import without_reason
from walferry.migration.written_rows import compare_written, differing
from walferry.run.comparing_ahead import end_comparing, note_comparing_ahead
from walferry.run.lag import caught_up
from walferry.run.last_comparison import clean_comparison
from walferry.run.run import Run

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
END_SECONDS = 0.2
"""for a look that is under way when the write stop begins; what it finds then is not used"""
BETWEEN_SECONDS = 10.0
"""from the end of one look at what was written to the next, until the cutover is approved"""
ATTEMPTS = 3
"""at the whole comparison of a table, and at rows that are under way"""
UNDER_WAY_SECONDS = 1.5
LOOKING_SHARE = 0.1
"""of the time, at most, in which the log is read for why rows differ"""
MOST_LOG_BYTES = 1 << 40
"""that are read for it"""


@contextmanager
def compared_ahead(run: Run, spark: Callable[[], SparkSession]) -> Iterator[None]:
    """Compare in another thread until the block ends, or the cutover is approved; nothing depends on its success.

    Until each table has been compared as a whole, the gate to the cutover is shut.
    """
    over = threading.Event()
    if not run.spec.compare_ahead or run.ledger.phases.facts("approve") is not None:
        end_comparing(run.ledger)  # a killed process may have left it
        yield
        return
    note_comparing_ahead(run.ledger, [pair.source for pair in run.tables])

    def work() -> None:
        try:
            _compare_whole(run, spark, over)
            end_comparing(run.ledger)
            rests_until = -math.inf
            while _rested(run, over):
                for pair in run.tables:
                    took = _compare_written(run, spark, pair.source, over, looks=steady_s() >= rests_until)
                    rests_until = max(rests_until, steady_s() + took / LOOKING_SHARE if took else rests_until)
        except Exception as error:  # whatever it is, the comparisons after the drain will meet it
            log.warning("nothing more is compared before the write stop, which will take longer: %s", error)
        finally:
            end_comparing(run.ledger)

    thread = threading.Thread(target=work, name="compare ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=END_SECONDS)


def _rested(run: Run, over: threading.Event) -> bool:
    """Wait until it is time for the next look. Once the cutover is approved it is: what is compared now need not be in
    the write stop. False if there is to be none."""
    until = steady_s() + BETWEEN_SECONDS
    while not over.wait(LOOK_SECONDS):
        if steady_s() >= until or run.ledger.phases.facts("approve") is not None:
            return True
    return False


def _compare_whole(run: Run, spark: Callable[[], SparkSession], over: threading.Event) -> None:
    left = [pair.source for pair in run.tables]
    for table in list(left):
        for attempt in range(1, ATTEMPTS + 1):
            while not (caught_up(run.ledger) and not run.ledger.record.paused):
                if over.wait(LOOK_SECONDS):
                    return
            if over.is_set() or clean_comparison(run.ledger, table) is not None:
                break
            try:
                compare(run, spark, table)
            except WalferryError as error:
                log.warning("attempt %d of %d to compare %s failed: %s", attempt, ATTEMPTS, table, error)
        left.remove(table)
        if left:
            note_comparing_ahead(run.ledger, left)


def _compare_written(
    run: Run, spark: Callable[[], SparkSession], table: str, over: threading.Event, *, looks: bool
) -> float:
    """Compare what was written since; what was under way is read again. If all is equal, or `looks` finds why not, the
    next one begins there. Returns how many seconds it took to look."""
    since = clean_comparison(run.ledger, table)
    if since is None or run.ledger.record.paused:
        return 0.0
    found = compare_written(run, table, since)
    rows = found.differing
    for _ in range(ATTEMPTS):
        if not rows or over.wait(UNDER_WAY_SECONDS):
            break
        rows = differing(run, table, sorted(rows))
    if found.why or over.is_set():
        return 0.0
    began = steady_s()
    left = without_reason(
        run, spark, table, rows, lambda some: differing(run, table, some), MOST_LOG_BYTES if looks else 0
    )
    if not left:
        run.ledger.log.mark_verified(table, found.files)
    return steady_s() - began
