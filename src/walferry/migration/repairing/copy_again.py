"""Copy a target table again if its rows cannot be repaired one by one; the run and its other tables go on.

walferry empties the target table. Then it reads the source's cells raw and sends them, several regions in parallel, for
some seconds at a time while the replay stands still (`replay.rights.standstill`). The cells read are at least as new as
all edits applied so far, and newer edits are applied afterwards. So, as with the repair of a row, no fence is needed.
The ledger records the progress, so that the next process that replays continues from there. No gate opens until the
copying is done; then the table is compared as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from walferry.amounts import amount
from walferry.apply.recopy import send_cells
from walferry.apply.route import Route
from walferry.apply.writers import writer_to
from walferry.background import beside
from walferry.clock import now_ms, shown_utc, steady_s
from walferry.errors import TransientError, UsageError, WalferryError, is_transient
from walferry.hbase.descriptors import Range
from walferry.hbase.errors import RemoteError
from walferry.hbase.procedures import new_nonce
from walferry.hbase.scan import last_row
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger.batches import Change
from walferry.migration.copying.copy import await_open
from walferry.migration.touching.touched import end_equality
from walferry.refusals import ANY_TABLE
from walferry.replay.quarantine import held_regions
from walferry.replay.rights.applying import is_paused, lease_check_of
from walferry.replay.rights.standstill import NoStandstillError, Standstill
from walferry.run.facts import opened_ms
from walferry.run.heartbeat import alive
from walferry.run.notes.copying_again import (
    Copied,
    Copying,
    GivenUpError,
    copied,
    copying,
    end_copying,
    give_up_copying,
    is_given_up,
    note_replaced,
)
from walferry.run.progress.lag import caught_up
from walferry.run.progress.repair_times import expected_copy_again
from walferry.run.run import Run, RunEndedError

log = logging.getLogger(__name__)

WINDOW_SECONDS = 2.0
"""how long the replay stands still at a time"""
AT_ONCE = 4
"""how many regions are read and sent in parallel"""
LOOK_SECONDS = 1.0
END_SECONDS = 2 * WINDOW_SECONDS
"""how long requests under way may take when the replay ends; without its leases nothing more is sent"""
RETRY_SECONDS = 10.0
PROGRESS_SECONDS = 10.0
OPEN_SECONDS = 300.0
"""how long the regions of the emptied table may take to open"""


def check_copy_again(run: Run, table: str) -> None:
    """Raise UsageError if a table cannot be copied again now, or if its copying cannot continue."""
    ledger = run.ledger
    record, name = ledger.record, ledger.record.name
    if record.kind != "migration" or record.state != "running":
        raise UsageError(f"only tables of an unfinished migration are copied again, and {run.run_id} is not one")
    if table not in {pair.source for pair in run.tables}:
        known = ", ".join(pair.source for pair in run.tables)
        raise UsageError(f"run {run.run_id} has no table {table!r}; its tables: {known}", table=table)
    if ledger.phases.facts("check_copy") is None:
        raise UsageError(
            f"{table} is still being copied for the first time: wait for the phase check_copy", table=table
        )
    if opened_ms(ledger) is not None:
        raise UsageError(
            f"the target of {run.run_id} is open: copying {table} again would lose what clients have written to it. "
            f"`walferry repair {name}` repairs the rows that no client has written to",
            table=table,
        )
    if ledger.phases.facts("approve") is not None:
        raise UsageError(
            f"the cutover of {run.run_id} has begun, but a table that is copied again must be followed for a while: "
            f"run `walferry withdraw {name}` first",
            table=table,
        )
    if record.paused:
        raise UsageError(f"run {run.run_id} is paused: run `walferry resume {name}` first", table=table)
    if table in copying(ledger):
        return
    if run.spec.writer_kind is WriterKind.THRIFT:
        raise UsageError("Thrift (`apply: thrift`) cannot express delete markers and tags, so no table is copied again")
    if table in held_regions(run):
        raise UsageError(
            f"quarantine holds edits of {table}: `walferry quarantine list {name}` shows them; decide about them first",
            table=table,
        )


def plan_copy_again(run: Run, table: str) -> dict[str, Any]:
    """The effects of copying a table again, as plain values. Raises as `check_copy_again`; changes nothing."""
    check_copy_again(run, table)
    target = run.pair(table).target
    source_bytes = run.source.held_bytes().get(table, 0)
    expected = expected_copy_again(run.ledger, table, source_bytes)
    accepted = {row for of, row, _ in run.ledger.comparisons.accepted() if of == table}
    left_out = [item.table for item in run.ledger.quarantine.items("released") if item.resolution == "accept"]
    left_out += [edit.table for edit in run.ledger.late.all() if edit.decision == "reject"]
    return {
        "table": table, "target": target, "regions": len(run.source.regions(table)),
        "source_bytes": source_bytes, "target_bytes": run.target.held_bytes().get(target, 0),
        "seconds": expected.seconds, "time": expected.describe(),
        "accepted_rows": len(accepted),
        "left_out_edits": sum(of in (table, ANY_TABLE) for of in left_out),
    }  # fmt: skip


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """A plan for people."""
    here, there = plan["source_bytes"] / 1e6, plan["target_bytes"] / 1e6
    lines = [
        f"would empty {plan['target']} at the target: all {there:.0f} MB there are deleted, whoever wrote them",
        f"would copy {amount(plan['regions'], 'region')} of {plan['table']} again: {here:.0f} MB as they are stored, "
        f"{plan['time']}",
    ]
    if decided := plan["accepted_rows"] + plan["left_out_edits"]:
        lines.append(
            f"would undo {amount(decided, 'decision')} about rows and edits: all that the source has is copied"
        )
    return lines


def ask_copy_again(run: Run, table: str, reason: str, request: str = "") -> Copying:
    """Record that a table is to be copied again; copying that has already started goes on. Raises as
    `check_copy_again`."""
    check_copy_again(run, table)
    if (begun := copying(run.ledger).get(table)) is not None:
        return begun
    asked = Copying(run.actor, reason, now_ms(), new_nonce(), request=request)
    asked.begin(run.ledger, table)
    run.ledger.audit(run.actor, "copy again", {"table": table, "reason": reason})
    end_equality(run, table, f"{table} is copied again")
    return asked


def give_up(run: Run, table: str, reason: str, *, dry_run: bool = False) -> Copying:
    """Stop copying a table and leave it as it is. The table counts as not compared; the next comparison finds what it
    lacks.

    Raises UsageError for a table that is not being copied again.
    """
    now = copying(run.ledger).get(table)
    if now is None:
        raise UsageError(f"{table} is not being copied again by run {run.run_id}", table=table)
    if dry_run:
        return now
    give_up_copying(run.ledger, table)
    run.ledger.audit(run.actor, "give up copying again", {"table": table, "reason": reason}, now.describe())
    end_equality(run, table, f"the copying of {table} was stopped before its end ({now.describe()})")
    return now


def copy_again(run: Run, table: str, reason: str, request: str = "") -> Copying:
    """Copy a table again: in this process, or in the one that replays, which has the leases. Returns how much was
    copied.

    `request` names a caller that may repeat its request: work already done for that request is not done twice. Raises
    as `check_copy_again`, GivenUpError, and TransientError if the replaying process ends first: a repeated call
    continues the copying.
    """
    done = copied(run.ledger).get(table)
    if request and table not in copying(run.ledger):
        if done is not None and done.request == request:
            log.info("%s was %s for this request already", table, done.describe())
            return _whole(done)
        if is_given_up(run.ledger, table, request):
            raise GivenUpError(f"somebody stopped the copying of {table} that this request had started", table=table)
    known = ask_copy_again(run, table, reason, request)
    with suppress(NoStandstillError):  # a process has started to replay: it continues the copying
        return go_on(run, Standstill(), table, lambda: "replay" in alive(run.ledger))
    log.info(
        "the process that replays has the leases and copies %s again; it goes on even if you press Ctrl-C here", table
    )
    told = steady_s()
    while (now := copying(run.ledger).get(table)) is not None and now.asked_ms == known.asked_ms:
        known = now
        if "replay" not in alive(run.ledger):
            raise TransientError(
                f"the process that replays ended before {table} was copied ({known.describe()}). The next process "
                "that replays continues; while there is none, repeat this command",
                table=table,
            )
        if steady_s() - told >= PROGRESS_SECONDS:
            told = steady_s()
            log.info("%s: %s", table, known.describe())
        time.sleep(LOOK_SECONDS)
    done = copied(run.ledger).get(table)
    if done is None or done.at_ms < known.asked_ms:
        raise GivenUpError(f"somebody stopped the copying of {table}: {known.describe()}", table=table)
    return replace(known, open=(), rest=None, regions=known.of, cells=done.cells, size=done.size)


def _whole(done: Copied) -> Copying:
    return Copying(done.by, done.reason, done.at_ms, (0, 0), emptied=True, rest=None, cells=done.cells, size=done.size)


@contextmanager
def copied_again(run: Run, standstill: Standstill) -> Iterator[None]:
    """Copy tables again when somebody asks for it, in another thread beside this process's replay."""
    _open_again(run, standstill)
    with beside(partial(_copy_as_asked, run, standstill), "copy again", END_SECONDS):
        yield


def _open_again(run: Run, standstill: Standstill) -> None:
    """Enable tables before anything is replayed: a process that was killed while it emptied a table left it
    disabled."""
    for table in copying(run.ledger):
        work = _Work(run, standstill, table, lambda: False)
        try:
            if not run.target.table_enabled(work.target):
                with standstill.held(run) as route:
                    _empty(work, route)
        except (GivenUpError, TransientError) as error:  # another process may be copying it, or the target is down
            log.warning("cannot enable target table %s again now: %s", work.target, error)


def _copy_as_asked(run: Run, standstill: Standstill, over: threading.Event) -> None:
    """The thread's work."""

    def is_over() -> bool:
        return over.is_set() or not standstill.replays

    while not over.wait(LOOK_SECONDS):
        tables: Collection[str] = ()
        with suppress(WalferryError):  # for example, the ledger does not answer now
            tables = copying(run.ledger)
        for table in tables:
            if is_over():
                break
            try:
                go_on(run, standstill, table, is_over)
            except RunEndedError:
                return
            except (GivenUpError, NoStandstillError):
                continue
            except Exception as error:  # whatever the error, the table stays as it is, and no gate opens
                log.warning("copying %s again failed; trying again in %.0f s: %s", table, RETRY_SECONDS, error)
                with suppress(WalferryError):
                    _note_fault(run, table, str(error))
                over.wait(RETRY_SECONDS)


def _note_fault(run: Run, table: str, fault: str) -> None:
    if (now := copying(run.ledger).get(table)) is not None:
        replace(now, fault=fault).advance(run.ledger, table)


def go_on(run: Run, standstill: Standstill, table: str, over: Callable[[], bool]) -> Copying:
    """Copy the rest of a table that is to be copied again. Returns how much was copied in all.

    Raises NoStandstillError once `over` returns True, GivenUpError if somebody stopped the copying, LeaseHeldError
    while another process replays, RunEndedError if the run was ended, and the errors of both sides.
    """
    work = _Work(run, standstill, table, over)
    while True:
        _await_turn(work)
        with standstill.held(run, over) as route:
            if not work.now.emptied or not run.target.table_enabled(work.target):
                _empty(work, route)
            now = _copy_some(work, route)
            while not (standstill.replays or now.is_done or over()):  # nobody waits for the copying to end
                now = _copy_some(work, route)
            if now.is_done:
                return _finish(work, now, lease_check_of(run, route))
        if over():
            raise NoStandstillError(f"{table} is no longer being copied: {now.describe()}", table=table)


def _finish(work: _Work, done: Copying, lease_check: Change) -> Copying:
    run, table = work.run, work.table
    # With this moment: no comparison that started earlier may make the table count as equal again.
    end_equality(run, table, f"{table} was copied again at {shown_utc(now_ms())}")
    end_copying(run.ledger, table, done, lease_check)
    run.ledger.audit(run.actor, "copied again", {"table": table, "cells": done.cells, "bytes": done.size})
    log.info(
        "%s was copied again: %s, %.1f MB; it must be compared now", table, amount(done.cells, "cell"), done.size / 1e6
    )
    return done


@dataclass
class _Work:
    """A table that is being copied again."""

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
        """The progress. Raises GivenUpError if somebody stopped the copying."""
        now = copying(self.run.ledger).get(self.table)
        if now is None:
            raise GivenUpError(f"{self.table} is no longer being copied again", table=self.table)
        return now


def _empty(work: _Work, route: Route) -> None:
    """Empty the target table, or open it again if it was emptied.

    If this is repeated after a kill, the master still empties the table only once; edits applied in between are copied,
    too. Whatever fails, the table is enabled again before the replay goes on.
    """
    run, name, now, lease_check = work.run, work.target, work.now, lease_check_of(work.run, route)
    if not now.emptied and run.ledger.phases.facts("approve") is not None:
        _enable(run, name)
        give_up(run, work.table, "the cutover had begun before the table was emptied")
        raise GivenUpError(f"the cutover has begun: {work.table} is not copied again", table=work.table)
    try:
        if not now.emptied:
            route.guard([name])
            if run.target.table_enabled(name):
                run.target.disable_table(name)
            route.guard([name])
            run.target.truncate_table(name, nonce=now.nonce)
    except RemoteError as error:
        if not is_transient(error):  # the master would repeat its answer to the same nonce
            replace(now, nonce=new_nonce()).advance(run.ledger, work.table, lease_check)
        raise
    finally:
        _enable(run, name)
    if not now.emptied:
        emptied = replace(now, emptied=True, open=(), rest=b"", regions=0, cells=0, size=0, seconds=0.0, fault="")
        emptied.advance(run.ledger, work.table, lease_check)
        note_replaced(run.ledger, work.table)
        end_equality(run, work.table, f"{work.table} was emptied and is copied again")
        log.info("target table %s was emptied and is copied again: %s", name, now.reason or "no reason given")


def _enable(run: Run, name: str) -> None:
    """Enable a target table unless it is enabled, and wait until its regions are open."""
    if not run.target.table_enabled(name):
        run.target.enable_table(name)
    await_open(run, name, OPEN_SECONDS)


def _await_turn(work: _Work) -> None:
    """Wait until the replay has caught up and the run is not paused."""
    told = False
    while not work.over():
        paused = is_paused(work.run)
        if not paused and (not work.standstill.replays or caught_up(work.run.ledger)):
            return
        if paused and not told:
            told = True
            log.info("paused; `walferry resume %s` continues", work.run.record.name)
        time.sleep(LOOK_SECONDS)


def _copy_some(work: _Work, route: Route) -> Copying:
    """Copy for some seconds and record the progress. Then raises the first error of a lane, if there was one."""
    now, borders = work.now, sorted((r.start, r.end) for r in work.run.source.regions(work.table))
    left, rest = list(now.open), now.rest
    for _, stop in borders:
        if rest is not None and len(left) < AT_ONCE and (not stop or rest < stop):
            left.append((rest, stop))
            rest = stop or None
    lease_check, began = lease_check_of(work.run, route), steady_s()
    until = began + WINDOW_SECONDS
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy again") as lanes:
        parts = list(lanes.map(partial(_copy_part, work, route, until), left))
    ended = sum(part.left is None for part in parts)
    after = replace(
        now, open=tuple(part.left for part in parts if part.left is not None), rest=rest, regions=now.regions + ended,
        of=max(len(borders), now.regions + len(left)), cells=now.cells + sum(part.cells for part in parts),
        size=now.size + sum(part.size for part in parts), seconds=now.seconds + steady_s() - began, fault="",
    )  # fmt: skip
    after.advance(work.run.ledger, work.table, lease_check)
    _tell(work, after)
    for part in parts:
        if part.error is not None:
            raise part.error
    return after


@dataclass(frozen=True)
class _Part:
    """How much of a range was copied, and which part is left."""

    left: Range | None
    cells: int
    size: int
    error: Exception | None = None
    """why the copying of the range stopped"""


def _copy_part(work: _Work, route: Route, until_s: float, part: Range) -> _Part:
    at, stop = part
    writer, cells, size = writer_to(route), 0, 0
    try:
        for block in work.run.source.scan_raw(work.table, at, stop):
            cells += send_cells(writer, route, work.table, block)
            size += len(block)
            at = last_row(block) + b"\0"
            if steady_s() >= until_s or work.over():
                return _Part((at, stop), cells, size)
    except Exception as error:  # the progress of the other lanes is still recorded
        return _Part((at, stop), cells, size, error)
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
