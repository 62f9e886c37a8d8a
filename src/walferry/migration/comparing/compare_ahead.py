"""Compare while the log is followed, so that the write stop need not: each table as a whole, and then, again and again,
what was touched since. Rows that differ are repaired. If it is not known what was touched of a table, it is compared as
a whole again."""

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
"""for a look that is under way when the write stop begins; what it finds then is not used"""
BETWEEN_SECONDS = 10.0
"""from the end of one look at what was touched to the next, until the cutover is approved"""
MOST_BETWEEN_SECONDS = 300.0
"""between two looks at a table while others are still to be compared as a whole"""
ATTEMPTS = 3
"""at the whole comparison of a table, at the first look at what was touched, and at rows that are under way"""
AGAIN_SECONDS = 60.0
"""from whole comparisons none of which counts to the next one, at least"""
WHOLE_SHARE = 0.5
"""of the time, at most, in which tables are compared as a whole again"""
RETRY_SECONDS = 10.0
MOST_RETRY_SECONDS = 300.0
"""from an error that ends an attempt to the next one; doubled each time"""
RENEWED_AT = 0.5
"""of the age that a comparison may have (`max_comparison_age`): then the table is compared again"""
LOOKING_SHARE = 0.1
"""of the time, at most, in which the log is read for why rows differ that it wrote, and such rows are repaired"""
HURRIED_SHARE = 0.5
"""while rows may hold edits that the source has lost, and the gate is shut. Whole comparisons have no rest then"""
MOST_LOG_BYTES = 1 << 40
"""that are read for it"""


@contextmanager
def compared_ahead(run: Run, spark: Callable[[], SparkSession], standstill: Standstill) -> Iterator[None]:
    """Compare in another thread until the block ends; nothing depends on its success. Rows that differ are repaired
    while the replay stands still.

    Until each table has been compared as a whole, and then what was touched meanwhile, the gate to the cutover is shut;
    not again for a process that goes on with a run for which this was done.
    """
    if run.ledger.phases.facts("write_stop") is not None:
        end_comparing(run.ledger)  # a killed process may have left it
        yield
        return
    if run.spec.compare_ahead:
        before = left_to_compare(run.ledger)  # to a process that was killed
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
    """The thread's work with `compare_ahead: false`: repair what somebody asks for."""
    while not over.wait(LOOK_SECONDS):
        try:
            answer_asked(run, standstill, over.is_set)
        except (WalferryError, OSError) as error:
            log.warning("whether somebody asks for a repair is not known now: %s", error)


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
        """no log is read for why rows differ that it wrote until then"""
        self._read_for: dict[str, float] = {}
        """when it was read last for rows of a table (`_turns`)"""
        self._marked = False
        """whether rows may hold edits that the source has lost, when that was looked at last"""
        self._pace = _Pace()
        self._waits = tuple(waits)
        """the tables for which the gate is shut until they were looked at once"""
        self._new = True
        """nothing was looked at yet"""
        self._looked = steady_s()
        """when all tables were, while another one was compared as a whole"""
        self._told = ""

    def work(self) -> None:
        """Compare until it is over. An error ends an attempt, and the next one begins after a while."""
        seconds, failed = RETRY_SECONDS, 0
        while not self._over.is_set():
            began = steady_s()
            try:
                self._collect()
                self._work()
                break
            except RunEndedError:
                break
            except Exception as error:  # whatever it is, the comparisons after the drain will meet it
                if steady_s() - began > MOST_RETRY_SECONDS:  # it went well for long
                    seconds, failed = RETRY_SECONDS, 0
                failed += 1
                log.warning("nothing is compared for %.0f s, and the write stop may take longer: %s", seconds, error)
                with suppress(Exception):  # it may be the ledger that fails
                    note_failing(self._run.ledger, str(error))
                    if failed >= ATTEMPTS:  # nobody knows for how long: the cutover does not wait for it
                        end_comparing(self._run.ledger)
            self._over.wait(seconds)
            seconds = min(2 * seconds, MOST_RETRY_SECONDS)
        try:
            end_comparing(self._run.ledger)
            note_failing(self._run.ledger, "")
        except WalferryError as error:  # the replay has ended, perhaps by the same one
            log.warning("that nothing is compared ahead any more is not recorded: %s", error)

    def _collect(self) -> None:
        """Have the rows collected of tables that were compared by a process before this one."""
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
        """Wait until it is time for the next look. Once the cutover is approved it is: what is compared now need not be
        in the write stop. False if there is to be none."""
        until = steady_s() + BETWEEN_SECONDS
        while not self._over.wait(LOOK_SECONDS):
            answer_asked(self._run, self._standstill, self._over.is_set)
            if steady_s() >= until or self._run.ledger.phases.facts("approve") is not None:
                return True
        return False

    def _compare_whole(self) -> None:
        """Compare each table as a whole that is due, and then what was touched meanwhile, until the last look at each
        table began after the last whole comparison."""
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
        if self._new and not compared:  # by a process before this one
            self._first(others)
        self._new, self._waits = False, ()
        end_comparing(run.ledger)
        self._pace.took(steady_s() - began)

    def _note(self, left: list[str], compared: list[str]) -> None:
        if left:
            note_comparing_ahead(self._run.ledger, left, [table for table in compared if table in left])

    def _compare_one(self, table: str) -> bool:
        """Compare a table as a whole, some times if need be. False if it is over."""
        for attempt in range(1, ATTEMPTS + 1):
            if not self._followed():
                return False
            if not self._pace.of(self._run, table):
                return True
            try:
                oldest_ms = self._pace.oldest_ms(self._run)
                parts = Parts(self._run, table, lambda: self._between(table), oldest_ms, keeps_equality=True)
                compare(self._run, self._spark, table, parts=parts)  # the look that follows repairs what still differs
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
        """Between two parts of a table's whole comparison: wait until the log is followed, and look at what was touched
        of other tables. False if it is over."""
        if not self._followed():
            return False
        try:
            answer_asked(self._run, self._standstill, self._over.is_set)
        except RunEndedError:
            raise
        except (WalferryError, OSError) as error:  # it is asked again after the comparison
            self._tell(f"whether somebody asks for a repair is not known now: {error}")
        if steady_s() - self._looked >= MOST_BETWEEN_SECONDS:
            for other in self._turns(self._tables) if self._see() else ():
                if other != table:  # of this one, what was touched is read with its parts
                    self.at(other)
            self._looked = steady_s()
        return not self._over.is_set()

    def _turns(self, tables: Sequence[str]) -> list[str]:
        """Tables in the order of their turns at having the log read: the one for which it was read last is the last."""
        return sorted(tables, key=lambda table: self._read_for.get(table, -math.inf))

    def _followed(self) -> bool:
        """Wait until the log is followed closely. False if nothing is to be compared ahead any more."""
        while not (caught_up(self._run.ledger) and not self._run.ledger.record.paused):
            if self._over.wait(LOOK_SECONDS):
                return False
        return not self._over.is_set()

    def _first(self, tables: Sequence[str]) -> None:
        """Look at tables at once, some times if need be."""
        left = self._turns(tables)
        for _ in range(ATTEMPTS):
            if not left or not self._followed():
                return
            left = [table for table in left if not self.at(table)] if self._see() else left
            if left and self._over.wait(LOOK_SECONDS):
                return

    def _see(self) -> bool:
        """See what others than the log touched, of all tables. False if that failed."""
        try:
            touched.look(self._run)
            self._void_marked()
        except (WalferryError, OSError) as error:
            self._tell(f"what others than the log touched is not known now: {error}")
            return False
        return True

    def _void_marked(self) -> None:
        """Have a table of dirty rows compared as a whole: at first, and once what differed was repaired. The comparison
        that finds it equal removes the marks."""
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
        """Look at what was touched of a table. False if that failed: the next look reads the same."""
        try:
            took = look(
                self._run, self._spark, table, self._standstill, self._over, looks=steady_s() >= self._rests_until
            )
        except (WalferryError, OSError) as error:
            self._tell(f"what was touched of {table} cannot be compared now: {error}")
            return False
        if took:
            self._read_for[table] = now = steady_s()
            share = HURRIED_SHARE if self._marked else LOOKING_SHARE
            self._rests_until = max(self._rests_until, now + took * (1 / share - 1))
        return True


class _Pace:
    """When tables are compared as a whole. In between, the clusters have a rest from it."""

    def __init__(self) -> None:
        self._rests_until = -math.inf
        self._failed: dict[str, float] = {}

    def is_due(self, run: Run, tables: list[str], *, rests: bool = True) -> bool:
        """Whether a table is due now. The clusters have no rest without `rests`."""
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
        """A comparison that began before this moment is made again."""
        age = run.spec.max_comparison_age
        return -math.inf if age is None else now_ms() - age * 1000 * RENEWED_AT

    def failed(self, table: str) -> None:
        """None of a table's comparisons counts: too many rows differ, say. The next one comes later."""
        self._failed[table] = steady_s() + AGAIN_SECONDS

    def took(self, seconds: float) -> None:
        """So long were tables compared just now."""
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
    """Compare what was touched since; what was under way is read again, and what then differs is repaired if `looks`
    finds out why. The next one begins there. Returns how many seconds it took to find out and to repair; 0 if the log
    was not read for any row."""
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
        log.warning("%s: it is compared as a whole again", found.why)
        end_equality(run, table, found.why)
        return 0.0
    began, waited = steady_s(), standstill.waited_s
    before = last_look(run.ledger, table)
    looks = looks or before is None or before.at_ms < since.ended_ms  # the comparison's own rows are looked at
    looks = looks or (found.also is not None and any(map(found.also.has, rows)))  # those are not under way
    means = RepairMeans(
        spark, standstill, lambda some: differing(run, table, some), MOST_LOG_BYTES if looks else 0, ANY_REGION_BYTES,
        lambda: over.is_set() or not standstill.replays,
        under_way=lambda row: found.also is None or not found.also.has(row),
    )  # fmt: skip
    try:
        settled = repair_differing(run, table, rows, means)
    except NoStandstillError:  # the next look begins where this one did
        return 0.0
    left = settled.left
    found.keep(run, table, left if len(left) > MOST_ROWS else ())  # a few are read again in any case
    note_look(
        run.ledger, table, at_ms, found.rows, found.read_bytes, left,
        suspected=settled.suspected, unexamined=settled.unexamined,
    )  # fmt: skip
    return steady_s() - began - (standstill.waited_s - waited) if looks and rows else 0.0
