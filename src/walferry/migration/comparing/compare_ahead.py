"""Compare while the log is followed, to keep the write stop short: first each table as a whole, and then, repeatedly,
the rows touched since. Rows that differ are repaired. If the touched rows of a table are unknown, the table is compared
as a whole again."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from walferry.background import beside
from walferry.clock import now_ms, steady_s
from walferry.errors import WalferryError
from walferry.migration.comparing.compare import compare
from walferry.migration.comparing.parts import UNDER_WAY_SECONDS, ComparisonStoppedError, Parts
from walferry.migration.comparing.written_rows import compare_written, differing
from walferry.migration.repairing.asked_repairs import answer_asked
from walferry.migration.repairing.known_differences import MOST_ROWS, RepairMeans, repair_differing
from walferry.migration.repairing.repair import ANY_REGION_BYTES
from walferry.migration.touching import touched
from walferry.migration.touching.equality import standing_comparison
from walferry.migration.touching.touched import end_equality
from walferry.replay.rights import dirty
from walferry.replay.rights.standstill import NoStandstillError, Standstill
from walferry.run.notes.copying_again import copying
from walferry.run.notes.last_comparison import counts_as_equal
from walferry.run.notes.looks import last_look, note_look
from walferry.run.progress.comparing_ahead import end_comparing, left_to_compare, note_comparing_ahead, note_failing
from walferry.run.progress.lag import caught_up
from walferry.run.run import Run, RunEndedError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
END_SECONDS = 0.2
"""how long a look may still take when the write stop starts; its findings are not used then"""
BETWEEN_SECONDS = 10.0
"""time from the end of one look at touched rows to the next look, until the cutover is approved"""
MOST_BETWEEN_SECONDS = 300.0
"""time between two looks at a table while other tables still wait for their whole comparison"""
ATTEMPTS = 3
"""how often the whole comparison of a table, the first look at touched rows, and the reading of rows under way are
tried"""
AGAIN_SECONDS = 60.0
"""the shortest time to the next whole comparison if none of the earlier ones counts"""
WHOLE_SHARE = 0.5
"""the largest share of time to spend on repeated whole comparisons"""
RETRY_SECONDS = 10.0
MOST_RETRY_SECONDS = 300.0
"""the longest time from an error that ends an attempt to the next attempt; the time doubles after each error"""
RENEWED_AT = 0.5
"""share of the allowed age of a comparison (`max_comparison_age`) after which the table is compared again"""
LOOKING_SHARE = 0.1
"""the largest share of time to spend on finding out from the log why rows that it wrote differ, and on repairing these
rows"""
HURRIED_SHARE = 0.5
"""the same share while rows may hold edits that the source has lost, which shuts the gate; whole comparisons then
follow each other without a rest"""
MOST_LOG_BYTES = 1 << 40
"""the most log that is read for this"""


@contextmanager
def compared_ahead(run: Run, spark: Callable[[], SparkSession], standstill: Standstill) -> Iterator[None]:
    """Compare in another thread until the block ends; nothing depends on its success. Rows that differ are repaired
    while the replay stands still.

    The gate to the cutover is shut until each table has been compared as a whole, and the rows touched meanwhile have
    been compared after that. Once a run has reached this point, a process that continues the run does not shut the gate
    again.
    """
    if run.ledger.phases.facts("write_stop") is not None:
        end_comparing(run.ledger)  # a killed process may have left this note
        yield
        return
    if run.spec.compare_ahead:
        before = left_to_compare(run.ledger)  # by a process that was killed
        tables = [pair.source for pair in run.tables]
        waits = [table for table in tables if table in before or standing_comparison(run.ledger, table) is None]
        note_comparing_ahead(run.ledger, waits)
    else:
        waits = []
        end_comparing(run.ledger)

    def work(over: threading.Event) -> None:
        if run.spec.compare_ahead:
            _CompareLoop(run, spark, standstill, over, waits).work()
        else:
            _answer(run, standstill, over)

    with beside(work, "compare ahead", END_SECONDS):
        yield


def _answer(run: Run, standstill: Standstill, over: threading.Event) -> None:
    """The thread's work with `compare_ahead: false`: do the repairs that somebody asks for."""
    while not over.wait(LOOK_SECONDS):
        try:
            answer_asked(run, standstill, over.is_set)
        except (WalferryError, OSError) as error:
            log.warning("cannot check for repair requests now: %s", error)


class _CompareLoop:
    """The thread's work."""

    def __init__(
        self,
        run: Run,
        spark: Callable[[], SparkSession],
        standstill: Standstill,
        over: threading.Event,
        waits: Sequence[str],
    ) -> None:
        self._run = run
        self._spark = spark
        self._standstill = standstill
        self._over = over
        self._tables = [pair.source for pair in run.tables]
        self._rests_until = -math.inf
        """until then, the log is not read to find out why rows that it wrote differ"""
        self._read_for: dict[str, float] = {}
        """when the log was last read for rows of a table (`_turns`)"""
        self._marked = False
        """whether rows may hold edits that the source has lost, as of the last check"""
        self._pace = _Pace()
        self._waits = tuple(waits)
        """the tables that keep the gate shut until the first look at them"""
        self._new = True
        """whether there was no look yet"""
        self._looked = steady_s()
        """when all other tables had their last look during the whole comparison of a table"""
        self._told = ""

    def work(self) -> None:
        """Compare until the end is signalled. An error ends an attempt, and the next attempt starts after a while."""
        seconds, failed = RETRY_SECONDS, 0
        while not self._over.is_set():
            began = steady_s()
            try:
                self._collect()
                self._work()
                break
            except RunEndedError:
                break
            except Exception as error:  # whatever the error, the comparisons after the drain will meet it
                if steady_s() - began > MOST_RETRY_SECONDS:  # the attempt went well for long
                    seconds, failed = RETRY_SECONDS, 0
                failed += 1
                log.warning(
                    "comparing failed; trying again in %.0f s, and the write stop may take longer: %s", seconds, error
                )
                with suppress(Exception):  # the ledger itself may fail
                    note_failing(self._run.ledger, str(error))
                    if failed >= ATTEMPTS:  # the errors may last: the cutover does not wait
                        end_comparing(self._run.ledger)
            self._over.wait(seconds)
            seconds = min(2 * seconds, MOST_RETRY_SECONDS)
        try:
            end_comparing(self._run.ledger)
            note_failing(self._run.ledger, "")
        except WalferryError as error:  # the replay has ended, perhaps with the same error
            log.warning("cannot record that the comparison ahead has ended: %s", error)

    def _collect(self) -> None:
        """Have the written rows collected for tables that an earlier process compared."""
        for table in self._tables:
            if standing_comparison(self._run.ledger, table) is not None:
                self._run.known_rows.collect(table)

    def _work(self) -> None:
        self._compare_whole()
        note_failing(self._run.ledger, "")
        while self._rested():
            for table in self._turns(self._tables) if self._see() else ():
                self.at(table)
            if self._pace.is_due(self._run, self._tables, rests=not self._marked):
                self._compare_whole()

    def _rested(self) -> bool:
        """Wait until the next look is due. Returns False if there is no next look.

        After the approval of the cutover, the next look is due at once: it spares the write stop the same work.
        """
        until = steady_s() + BETWEEN_SECONDS
        while not self._over.wait(LOOK_SECONDS):
            answer_asked(self._run, self._standstill, self._over.is_set)
            if steady_s() >= until or self._run.ledger.phases.facts("approve") is not None:
                return True
        return False

    def _compare_whole(self) -> None:
        """Compare each due table as a whole, and then the rows touched meanwhile, until the last look at each table
        started after the last whole comparison."""
        run, began = self._run, steady_s()
        left, compared = [table for table in self._tables if self._pace.of(run, table)], list[str]()
        others = [table for table in self._tables if table not in left]
        wanting = [table for table in left if standing_comparison(run.ledger, table) is None]
        looked = steady_s()
        wanting += [table for table in others if table in self._waits]
        self._note(wanting, others)
        for table in list(left):
            if not self._compare_one(table):
                return
            compared.append(table)
            left.remove(table)
            self._note(wanting, [*others, *compared])
            if not left or steady_s() - looked >= MOST_BETWEEN_SECONDS:
                looked = steady_s()
                self._first([*others, *compared])
            else:
                self._first([table])
        if self._new and not compared:  # an earlier process compared them
            self._first(others)
        self._new, self._waits = False, ()
        end_comparing(run.ledger)
        self._pace.took(steady_s() - began)

    def _note(self, left: list[str], compared: list[str]) -> None:
        if left:
            note_comparing_ahead(self._run.ledger, left, [table for table in compared if table in left])

    def _compare_one(self, table: str) -> bool:
        """Compare a table as a whole, several times if needed. False if the comparison ahead is over."""
        for attempt in range(1, ATTEMPTS + 1):
            if not self._followed():
                return False
            if not self._pace.of(self._run, table):
                return True
            try:
                oldest_ms = self._pace.oldest_ms(self._run)
                parts = Parts(self._run, table, lambda: self._between(table), oldest_ms, keeps_equality=True)
                compare(self._run, self._spark, table, parts=parts)  # the next look repairs rows that still differ
            except ComparisonStoppedError:
                return False
            except RunEndedError:
                raise
            except WalferryError as error:
                log.warning("attempt %d of %d to compare %s failed: %s", attempt, ATTEMPTS, table, error)
        if self._pace.of(self._run, table):
            self._pace.failed(table)
        return True

    def _between(self, table: str) -> bool:
        """Between two parts of a table's whole comparison, wait until the log is followed, and look at touched rows of
        the other tables. False if the comparison ahead is over."""
        if not self._followed():
            return False
        try:
            answer_asked(self._run, self._standstill, self._over.is_set)
        except RunEndedError:
            raise
        except (WalferryError, OSError) as error:  # asked again after the comparison
            self._tell(f"cannot check for repair requests now: {error}")
        if steady_s() - self._looked >= MOST_BETWEEN_SECONDS:
            for other in self._turns(self._tables) if self._see() else ():
                if other != table:  # this table's touched rows are read between its parts
                    self.at(other)
            self._looked = steady_s()
        return not self._over.is_set()

    def _turns(self, tables: Sequence[str]) -> list[str]:
        """Tables in the order of their turns: the table for which the log was read most recently comes last."""
        return sorted(tables, key=lambda table: self._read_for.get(table, -math.inf))

    def _followed(self) -> bool:
        """Wait until the log is followed closely. False if the comparison ahead is over."""
        while not (caught_up(self._run.ledger) and not self._run.ledger.record.paused):
            if self._over.wait(LOOK_SECONDS):
                return False
        return not self._over.is_set()

    def _first(self, tables: Sequence[str]) -> None:
        """Look at tables now, several times if needed."""
        left = self._turns(tables)
        for _ in range(ATTEMPTS):
            if not left or not self._followed():
                return
            left = [table for table in left if not self.at(table)] if self._see() else left
            if left and self._over.wait(LOOK_SECONDS):
                return

    def _see(self) -> bool:
        """Find rows of all tables that something other than the log touched. False if that failed."""
        try:
            touched.look(self._run)
            self._void_marked()
        except (WalferryError, OSError) as error:
            self._tell(f"cannot determine now what something other than the log has touched: {error}")
            return False
        return True

    def _void_marked(self) -> None:
        """Have a table with dirty rows compared as a whole: once at first, and again after differing rows were
        repaired. The comparison that finds the table equal removes the marks."""
        run, found = self._run, dirty.marks_of(self._run)
        if found and not self._marked:
            self._rests_until = -math.inf
        self._marked = bool(found)
        for pair in run.tables if found else ():
            made = standing_comparison(run.ledger, pair.source)
            marks = [rows for rows in found if rows.table == pair.target]
            if made is None or not marks:
                continue
            if dirty.uncovered(run, marks, [made]) or counts_as_equal(run.ledger, pair.source):
                end_equality(run, pair.source, marks[0].describe())

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            log.warning("%s", text)

    def at(self, table: str) -> bool:
        """Look at the touched rows of a table. False if that failed: the next look reads the same rows."""
        try:
            took = look(
                self._run, self._spark, table, self._standstill, self._over, looks=steady_s() >= self._rests_until
            )
        except (WalferryError, OSError) as error:
            self._tell(f"touched rows of {table} cannot be compared now: {error}")
            return False
        if took:
            self._read_for[table] = now = steady_s()
            share = HURRIED_SHARE if self._marked else LOOKING_SHARE
            self._rests_until = max(self._rests_until, now + took * (1 / share - 1))
        return True


class _Pace:
    """When tables are compared as a whole. In between, the clusters have a rest."""

    def __init__(self) -> None:
        self._rests_until = -math.inf
        self._failed: dict[str, float] = {}

    def is_due(self, run: Run, tables: list[str], *, rests: bool = True) -> bool:
        """Whether any of the tables is due now. Without `rests`, the clusters get no rest."""
        return (not rests or steady_s() >= self._rests_until) and any(self.of(run, table) for table in tables)

    def of(self, run: Run, table: str) -> bool:
        """Whether a table has no comparison that counts, or an old one."""
        if steady_s() < self._failed.get(table, -math.inf) or table in copying(run.ledger):
            return False
        made = standing_comparison(run.ledger, table)
        if made is None or run.ledger.phases.facts("approve") is not None:
            return made is None
        return made.began_ms < self.oldest_ms(run)

    def oldest_ms(self, run: Run) -> float:
        """A table is due again if its comparison started before this moment."""
        age = run.spec.max_comparison_age
        return -math.inf if age is None else now_ms() - age * 1000 * RENEWED_AT

    def failed(self, table: str) -> None:
        """Note that none of a table's comparisons counts, for example because too many rows differ: delay the next
        one."""
        self._failed[table] = steady_s() + AGAIN_SECONDS

    def took(self, seconds: float) -> None:
        """Note how long the last round of whole comparisons took."""
        self._rests_until = steady_s() + seconds * (1 / WHOLE_SHARE - 1)


def look(
    run: Run,
    spark: Callable[[], SparkSession],
    table: str,
    standstill: Standstill,
    over: threading.Event,
    *,
    looks: bool,
) -> float:
    """Compare the rows touched since the last look. Rows under way are read again. With `looks`, the log is read to
    find out why rows differ, so that they can be repaired. The next look starts where this one ended. Returns the
    seconds that reading the log and repairing took; 0 if the log was not read for any row."""
    since, at_ms = standing_comparison(run.ledger, table), now_ms()
    if since is None or run.ledger.record.paused or table in copying(run.ledger):
        return 0.0
    found = compare_written(run, table, since)
    rows = found.differing
    for _ in range(ATTEMPTS):
        if not rows or over.wait(UNDER_WAY_SECONDS):
            break
        rows = differing(run, table, sorted(rows))
    if over.is_set():
        return 0.0
    if found.why:
        log.warning("%s; comparing the table as a whole again", found.why)
        end_equality(run, table, found.why)
        return 0.0
    began, waited = steady_s(), standstill.waited_s
    before = last_look(run.ledger, table)
    looks = looks or before is None or before.at_ms < since.ended_ms  # examine the comparison's own rows
    looks = looks or (found.also is not None and any(map(found.also.has, rows)))  # those are not under way
    means = RepairMeans(
        spark, standstill, lambda some: differing(run, table, some), MOST_LOG_BYTES if looks else 0, ANY_REGION_BYTES,
        lambda: over.is_set() or not standstill.replays,
        under_way=lambda row: found.also is None or not found.also.has(row),
    )  # fmt: skip
    try:
        settled = repair_differing(run, table, rows, means)
    except NoStandstillError:  # the next look starts where this one did
        return 0.0
    left = settled.left
    found.keep(run, table, left if len(left) > MOST_ROWS else ())  # a few rows are read again in any case
    note_look(
        run.ledger, table, at_ms, found.rows, found.read_bytes, left,
        suspected=settled.suspected, unexamined=settled.unexamined,
    )  # fmt: skip
    return steady_s() - began - (standstill.waited_s - waited) if looks and rows else 0.0
