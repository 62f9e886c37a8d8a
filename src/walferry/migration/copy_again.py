"""Copy a table of the target again, where rows cannot be repaired one by one; the run and its other tables go on.

The target table is emptied. Then the source's cells are read raw and sent, regions side by side, some seconds at a
time while the replay stands still (`replay.standstill`): what is read is at least as new as all that was applied, and
what is newer is applied afterwards. So no fence is needed, as with the repair of a row. How far it is, the ledger
knows: whoever replays next goes on there. Until it is done no gate opens; then the table is compared as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from walferry.apply.recopy import send_cells
from walferry.apply.route import Route
from walferry.apply.writers import writer_to
from walferry.clock import now_ms, shown_utc, steady_s
from walferry.errors import TransientError, UsageError
from walferry.formats.cells import index_cells
from walferry.hbase.procedures import new_nonce
from walferry.hbase.writer_kind import WriterKind
from walferry.migration.asked_repairs import compare_again
from walferry.migration.touched import end_claim
from walferry.refusals import ANY_TABLE
from walferry.replay.applying import is_paused
from walferry.replay.quarantine import held_regions
from walferry.replay.standstill import NoStandstillError, Standstill
from walferry.run.copying_again import Copying, Range, copying, end_copying
from walferry.run.heartbeat import alive
from walferry.run.lag import caught_up
from walferry.run.run import Run, RunEndedError

log = logging.getLogger(__name__)

WINDOW_SECONDS = 2.0
"""in which the replay stands still"""
AT_ONCE = 4
"""regions that are read and sent side by side"""
LOOK_SECONDS = 1.0
END_SECONDS = 2 * WINDOW_SECONDS
"""for what is under way when the replay ends; without its leases nothing more is sent"""
RETRY_SECONDS = 10.0
PROGRESS_SECONDS = 10.0
EMPTY_SECONDS = 300.0
"""for the regions of the emptied table to open"""


def check_copy_again(run: Run, table: str) -> None:
    """Raise UsageError where a table cannot be copied again now."""
    ledger = run.ledger
    record, name = ledger.record, ledger.record.name
    if record.kind != "migration" or record.state != "running":
        raise UsageError(f"run {run.run_id} is no migration that goes on: it has no copy to make again")
    if table not in {pair.source for pair in run.tables}:
        known = ", ".join(pair.source for pair in run.tables)
        raise UsageError(f"run {run.run_id} has no table {table!r}; its tables: {known}", table=table)
    if ledger.phases.facts("check_copy") is None:
        raise UsageError(
            f"{table} is still being copied for the first time: wait for the phase check_copy", table=table
        )
    if ledger.phases.facts("approve") is not None:
        raise UsageError(
            f"the cutover of {run.run_id} has begun, and what is copied again is to be followed for a while: "
            f"`walferry withdraw {name}` first; not possible once the target is open",
            table=table,
        )
    if run.spec.writer_kind is WriterKind.THRIFT:
        raise UsageError(
            "Thrift cannot express delete markers and tags (`apply: thrift`), so that nothing is copied again"
        )
    if table in held_regions(run):
        raise UsageError(
            f"quarantine holds edits of {table}: `walferry quarantine list {name}` shows them; decide about them first",
            table=table,
        )


def plan_copy_again(run: Run, table: str) -> dict[str, Any]:
    """What copying a table again would do, as plain values. Raises as `check_copy_again`; changes nothing."""
    check_copy_again(run, table)
    target = run.pair(table).target
    accepted = {row for of, row, _ in run.ledger.comparisons.accepted() if of == table}
    left_out = [item.table for item in run.ledger.quarantine.items("released") if item.resolution == "accept"]
    left_out += [edit.table for edit in run.ledger.late.all() if edit.decision == "reject"]
    return {
        "table": table, "target": target, "regions": len(run.source.regions(table)),
        "source_bytes": run.source.held_bytes().get(table, 0), "target_bytes": run.target.held_bytes().get(target, 0),
        "accepted_rows": len(accepted),
        "left_out_edits": sum(of in (table, ANY_TABLE) for of in left_out),
    }  # fmt: skip


def ask_copy_again(run: Run, table: str, reason: str) -> Copying:
    """Note that a table is to be copied again; one that is being copied goes on. Raises as `check_copy_again`."""
    if (begun := copying(run.ledger).get(table)) is not None:
        return begun
    check_copy_again(run, table)
    asked = Copying(run.actor, reason, now_ms(), new_nonce())
    asked.keep(run.ledger, table)
    run.ledger.audit(run.actor, "copy again", {"table": table, "reason": reason})
    end_claim(run, table, f"{table} is copied again")
    return asked


def copy_again(run: Run, table: str, reason: str) -> Copying:
    """Copy a table again: here, or by the process that replays, which has the leases. Returns how much was copied.

    Raises as `check_copy_again`, and TransientError if that process ends first: repeated, it goes on.
    """
    known = ask_copy_again(run, table, reason)
    if "replay" not in alive(run.ledger):
        return go_on(run, Standstill(), table, lambda: False)
    log.info("the process that replays has the leases, and copies %s again; Ctrl-C leaves it to it", table)
    told = steady_s()
    while (now := copying(run.ledger).get(table)) is not None:
        known = now
        if "replay" not in alive(run.ledger):
            raise TransientError(
                f"the process that replays has ended before {table} was copied ({known.describe()}): the next one goes "
                "on, or this command if you repeat it while there is none",
                table=table,
            )
        if steady_s() - told >= PROGRESS_SECONDS:
            told = steady_s()
            log.info("%s: %s", table, known.describe())
        time.sleep(LOOK_SECONDS)
    return replace(known, open=(), rest=None, regions=known.of)


@contextmanager
def copied_again(run: Run, standstill: Standstill) -> Iterator[None]:
    """Copy tables again, as somebody asks for it, in another thread beside the replay of this process."""
    over = threading.Event()
    thread = threading.Thread(target=_work, args=(run, standstill, over), name="copy again", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=END_SECONDS)


def _work(run: Run, standstill: Standstill, over: threading.Event) -> None:
    while not over.wait(LOOK_SECONDS):
        if not standstill.replays:
            continue
        for table in copying(run.ledger):
            try:
                go_on(run, standstill, table, lambda: over.is_set() or not standstill.replays)
            except RunEndedError:
                return
            except NoStandstillError:
                break
            except Exception as error:  # whatever it is: the table stays as it is, and no gate opens
                log.warning("%s is not copied on for %.0f s: %s", table, RETRY_SECONDS, error)
                with suppress(Exception):  # it may be the ledger that fails
                    replace(copying(run.ledger)[table], fault=str(error)).keep(run.ledger, table)
                over.wait(RETRY_SECONDS)


def go_on(run: Run, standstill: Standstill, table: str, over: Callable[[], bool]) -> Copying:
    """Copy what is left of a table that is to be copied again. Returns how much was copied in all.

    Raises NoStandstillError once `over` is true, LeaseHeldError while another process replays, RunEndedError when the
    run was ended, and the errors of both sides.
    """
    work = _Work(run, standstill, table, over)
    if not work.now.emptied:
        with standstill.held(run, over) as route:
            _empty(work, route)
    while not work.now.is_done:
        _await_turn(work)
        with standstill.held(run, over) as route:
            _copy_some(work, route)
            while not (standstill.replays or work.now.is_done or over()):  # nobody waits for it to end
                _copy_some(work, route)
        if over() and not work.now.is_done:
            raise NoStandstillError(f"{table} is no longer copied: {work.now.describe()}", table=table)
    done = work.now
    # Of this moment, so that no comparison that began before it makes the claim good again.
    end_claim(run, table, f"{table} was copied again at {shown_utc(now_ms())}")
    if run.ledger.phases.facts("drain") is not None:
        compare_again(run, table, "the table is copied again")
    end_copying(run.ledger, table, done)
    run.ledger.audit(run.actor, "copied again", {"table": table, "cells": done.cells, "bytes": done.size})
    log.info("%s is copied again: %d cells, %.1f MB; it is compared as a whole now", table, done.cells, done.size / 1e6)
    return done


@dataclass
class _Work:
    """A table that is copied again."""

    run: Run
    standstill: Standstill
    table: str
    over: Callable[[], bool]
    told_s: float = 0.0
    began_s: float = 0.0
    began_with: int = 0

    @property
    def target(self) -> str:
        """The target table."""
        return self.run.pair(self.table).target

    @property
    def now(self) -> Copying:
        """How far it is."""
        return copying(self.run.ledger)[self.table]


def _empty(work: _Work, route: Route) -> None:
    """Empty the target table. Repeated after a kill, the master does it once; what was applied to it in between is
    copied, too."""
    run, name = work.run, work.target
    route.guard([name])
    if run.target.table_enabled(name):
        run.target.disable_table(name)
    route.guard([name])
    run.target.truncate_table(name, nonce=work.now.nonce)
    if not run.target.table_enabled(name):  # the master remembers that it was emptied, and enabled, before
        run.target.enable_table(name)
    deadline = steady_s() + EMPTY_SECONDS
    while not all(region.server for region in run.target.regions(name)):
        if steady_s() > deadline:
            raise TransientError(f"regions of {name} do not open at the target once it is emptied", table=name)
        time.sleep(0.2)
    replace(work.now, emptied=True).keep(run.ledger, work.table)
    log.info("target table %s is emptied, and copied again: %s", name, work.now.reason or "no reason given")


def _await_turn(work: _Work) -> None:
    """Wait until the replay is not behind, and the run is not paused."""
    while not work.over():
        if not is_paused(work.run) and (not work.standstill.replays or caught_up(work.run.ledger)):
            return
        time.sleep(LOOK_SECONDS)


def _copy_some(work: _Work, route: Route) -> None:
    """Copy for some seconds, and keep how far it is."""
    now, borders = work.now, sorted((r.start, r.end) for r in work.run.source.regions(work.table))
    left, rest = list(now.open), now.rest
    for start, stop in borders:
        if rest is not None and len(left) < AT_ONCE and (not stop or rest < stop):
            left.append((max(start, rest), stop))
            rest = stop or None
    until = steady_s() + WINDOW_SECONDS
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy again") as lanes:
        parts = list(lanes.map(partial(_copy_part, work, route, until), left))
    ended = sum(part.left is None for part in parts)
    after = replace(
        now, open=tuple(part.left for part in parts if part.left is not None), rest=rest, regions=now.regions + ended,
        of=max(len(borders), now.regions + len(left)), cells=now.cells + sum(part.cells for part in parts),
        size=now.size + sum(part.size for part in parts), fault="",
    )  # fmt: skip
    after.keep(work.run.ledger, work.table)
    _tell(work, after)


@dataclass(frozen=True)
class _Part:
    """What was copied of a range, and what is left of it."""

    left: Range | None
    cells: int
    size: int


def _copy_part(work: _Work, route: Route, until_s: float, part: Range) -> _Part:
    at, stop = part
    writer, cells, size = writer_to(route), 0, 0
    for block in work.run.source.scan_raw(work.table, at, stop):
        cells += send_cells(writer, route, work.table, block)
        size += len(block)
        index = index_cells(np.frombuffer(block, np.uint8))
        at = index.row(len(index) - 1) + b"\0"
        if steady_s() >= until_s or work.over():
            return _Part((at, stop), cells, size)
    return _Part(None, cells, size)


def _tell(work: _Work, now: Copying) -> None:
    moment = steady_s()
    if not work.began_s:
        work.began_s, work.began_with, work.told_s = moment, now.regions, moment
    elif moment - work.told_s >= PROGRESS_SECONDS:
        work.told_s = moment
        made = now.regions - work.began_with
        eta = f"{(moment - work.began_s) / made * (now.of - now.regions):.0f}s" if made else "unknown"
        log.info(
            "Copy %s again: %d/%d %.1f%%; %.1f MB; Time: %.0fs; ETA: %s", work.table, now.regions, now.of,
            100 * now.regions / max(1, now.of), now.size / 1e6, moment - work.began_s, eta,
        )  # fmt: skip
