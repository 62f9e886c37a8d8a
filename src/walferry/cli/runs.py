"""The verbs that plan, start, watch, pause, resume and end a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walferry.amounts import amount
from walferry.cli.ask import ask as ask_at_terminal
from walferry.cli.keep import go_on_keeping
from walferry.cli.options import (
    DEFAULT_REPORTS,
    AsJson,
    DryRun,
    Folder,
    LedgerUrl,
    RunName,
    SpecFile,
    Yes,
    existing,
    owner,
    print_findings,
    print_json,
    print_versions,
    require_idle_name,
    resolved,
)
from walferry.cli.restore import go_on_restoring
from walferry.cli.setup import go_on_setting_up
from walferry.cli.streams import go_on_streaming
from walferry.errors import UsageError, WalferryError
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.ledger import Ledger, RunRecord
    from walferry.ledger.rows import RunKind


def plan(spec: SpecFile, as_json: AsJson = False) -> None:
    """Examine both clusters and report what stands in the way of a run. Changes nothing."""
    from walferry.migration.plan import make_plan, require
    from walferry.settings import LogTimes

    found = make_plan(resolved(spec), LogTimes.read().keep_hours)
    if as_json:
        print_json(asdict(found))
    else:
        print_versions(found)
        for identity in found.identities:
            print(identity)
        for table in found.tables:
            print(
                f"{table.source} -> {table.target}: {amount(table.regions, 'region')}, "
                f"{table.bytes / 1e6:.1f} MB in files, at least {table.memstore_bytes / 1e6:.1f} MB in memory, "
                f"families {', '.join(table.families)}"
            )
        print(f"write-ahead log: {amount(found.wal_files, 'file')}, {found.wal_bytes / 1e6:.1f} MB")
        print_findings(found.findings, "refuse")
    require(found)


def start(
    spec: SpecFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    reports: Folder = DEFAULT_REPORTS,
    ledger: LedgerUrl = None,
) -> None:
    """Run a migration from plan to release, or continue the unfinished one of that name, unless a process does."""
    from walferry.run.moved import accept_moved

    wanted = resolved(spec)
    if dry_run:
        plan(spec, as_json)
        if not as_json:
            print(f"would run: {', '.join(_phases())}")
        return
    with open_ledger(ledger) as book:
        require_idle_name(book, wanted.name)
        accept_moved(book, wanted.name, owner(), wanted.as_recorded(), owner())
        run = book.open_run(wanted.name, owner(), wanted.as_recorded(), owner())
        _go(book, run.run_id, yes, reports, as_json)


def _phases() -> tuple[str, ...]:
    from walferry.run.phases import phases_of

    return tuple(phase.name for phase in phases_of("migration"))


def _go(book: Ledger, run_id: str, yes: bool, reports: Path, as_json: bool) -> None:
    from walferry.pipeline import PhaseContext, migrate, write_report
    from walferry.run.heartbeat import beating
    from walferry.run.run import Run
    from walferry.spark.session import opened_once

    def ask(question: str, at_work: Callable[[], None]) -> bool:
        return yes or ask_at_terminal(question, at_work)

    with Run(book, run_id) as run, beating(run.ledger, "", run.actor, alone=True):
        try:
            migrate(run, ask, PhaseContext(opened_once(f"walferry {run_id}"), reports / "data_docs"))
        except BaseException as error:
            try:
                write_report(run, reports)
            except WalferryError as second:  # this error must not hide the first one
                print(f"no report was written: {second}", file=sys.stderr)
            if isinstance(error, KeyboardInterrupt):
                print(f"interrupted; `walferry resume {run.record.name}` continues from here", file=sys.stderr)
            raise
        path = write_report(run, reports)
    print(path.with_suffix(".json" if as_json else ".txt").read_text(), end="")


def status(name: RunName, as_json: AsJson = False, ledger: LedgerUrl = None) -> None:
    """Show a run's state with cause and next step, its phase, edits applied, backlog, lag and ETA."""
    from walferry.run.progress.status import status as status_of
    from walferry.run.progress.status import status_line

    with existing(ledger) as book:
        now = status_of(book.of(book.find(name).run_id))
    if as_json:
        print_json(now.model_dump())
    else:
        print(f"{now.run}: {status_line(now)}")
        print(f"{now.state}: {now.cause}")
        print(f"next step: {now.next_step}")
        if now.lag_split is not None:
            print(now.lag_split.text)
        if now.not_followed:
            print(now.not_followed)
        if now.late_edits:
            print(f"LATE EDITS: {now.late_edits} wait for a decision: `walferry late {name}`")
        if now.moments is not None:
            print(f"{'WARNING: ' if now.moments.too_much or now.moments.troubles else ''}{now.moments.text}")
        if now.receiving is not None:
            for line in now.receiving.lines():
                print(line)
        if now.throttle.text:
            print(f"throttle: {now.throttle.text}")
        if now.log is not None:
            print(f"{'WARNING: ' if now.log.late else ''}{now.log.text}")
        for standstill in now.standstills:
            print(f"WARNING: {standstill.text}")
        for row in now.counted_numbers:
            print(f"{'' if row.accepted_by else 'WARNING: '}{row.text}")


def ready(name: RunName, as_json: AsJson = False, ledger: LedgerUrl = None) -> None:
    """Say whether a cutover may begin: yes or no to each question, with the reason and what to do; exit 1 for a no.

    Looks at the ledger and at both clusters, and changes nothing but what the board shows of it.
    """
    from walferry.cutover.gates import cutover_readiness
    from walferry.run.run import Run

    with existing(ledger) as book:
        record = book.find(name)
        if record.kind != "migration":
            raise UsageError(f"run {record.run_id} is of kind {record.kind}: it has no cutover", run=record.run_id)
        if record.state != "running":
            raise UsageError(f"run {record.run_id} has ended as {record.state}", run=record.run_id)
        with Run(book, record.run_id) as run:
            found = cutover_readiness(run)
    if as_json:
        print_json(found.model_dump())
    else:
        print(f"{record.run_id}: a cutover may {'' if found.may_begin else 'not '}begin")
        for one in found.conditions:
            if one.answer == "no":
                for reason in one.reasons:
                    print(f"no   {one.name:<11} {reason}")
            else:
                print(f"{'yes' if one.answer == 'yes' else '?':<4} {one.name:<11} {one.text}")
        print(f"expected length of the write stop: {found.write_stop.text}")
    if not found.may_begin:
        raise typer.Exit(1)


def pause(
    name: RunName,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")] = "",
    dry_run: DryRun = False,
    ledger: LedgerUrl = None,
) -> None:
    """Send no edits to the target, from within a second until `resume`; copy and comparison go on."""
    from walferry.run.progress.state import state_of

    with existing(ledger) as book:
        run = book.find(name)
        _refuse_setup(run, "cannot be paused: interrupt it, and set up again to continue")
        if run.kind == "receive":
            raise UsageError(
                f"run {run.run_id} cannot be paused: interrupt its processes, and the source keeps its log until one "
                "serves again; or have the source wait (disable_peer)",
                run=run.run_id,
            )
        if dry_run:
            print(f"would pause {run.run_id} ({state_of(book.of(run.run_id)).name} now)")
            return
        book.set_paused(run.run_id, True, owner(), reason)
        what = _PAUSED.get(run.kind, "sends no more edits within a second")
        print(f"{run.run_id} {what}; `walferry resume {run.name}` continues it")


def _refuse_setup(run: RunRecord, why: str) -> None:
    """Raise UsageError for a run that sets up HBase's own replication."""
    if run.kind == "setup":
        raise UsageError(f"run {run.run_id} sets up replication, and {why}", run=run.run_id)


_PAUSED: Mapping[RunKind, str] = {
    "keep": "takes no base and deletes nothing (the log is copied on) within a second",
    "replication": "is no longer looked at (HBase replicates on)",
}
"""what a pause does, by kind of run; others send no more edits"""


def throttle(
    name: RunName,
    write_bytes: Annotated[str | None, typer.Option(help="per second: 20MB, 512KiB")] = None,
    write_cells: Annotated[str | None, typer.Option(help="per second: 50000, 50k")] = None,
    off: Annotated[bool, typer.Option("--off", help="remove both limits")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Limit what a run writes to the target, also while it runs; without an option, show the limits."""
    from walferry.run.notes.throttle import changed, set_throttle, throttle_of, throttle_text

    given = {"write_bytes": write_bytes, "write_cells": write_cells}
    with existing(ledger) as book:
        run = book.find(name)
        _refuse_setup(run, "sends no edits: its spec has `bandwidth`, for HBase")
        part = book.of(run.run_id)
        now = throttle_of(part)
        wanted = changed(now, given, off)
        if wanted != now and run.state != "running":
            raise UsageError(f"run {run.run_id} has ended as {run.state}", run=run.run_id)
        if wanted != now and not dry_run:
            set_throttle(part, wanted, owner())
    if as_json:
        print_json({"run": run.run_id, "dry_run": dry_run, **wanted.model_dump()})
    else:
        print(f"{run.run_id}: {'would write' if dry_run else 'writes'} {throttle_text(wanted)}")


def resume(
    name: RunName,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    reports: Folder = DEFAULT_REPORTS,
    ledger: LedgerUrl = None,
) -> None:
    """Continue a paused or interrupted run: here if it was started from the shell, otherwise in Airflow.

    An interrupted run that a live process works on is left to that process.
    """
    from walferry.run.heartbeat import require_idle
    from walferry.run.progress.state import state_of

    with existing(ledger) as book:
        run = book.find(name)
        if run.kind == "window":
            raise UsageError(
                f"run {run.run_id} replays a window: `walferry replay SPEC --from … --to …` continues it",
                run=run.run_id,
            )
        if run.kind == "pair":
            raise UsageError(
                f"run {run.run_id} verifies a pair: `walferry verify --pair SPEC` does its next pass", run=run.run_id
            )
        if run.kind == "receive":
            raise UsageError(
                f"run {run.run_id} receives: `walferry receive SPEC` starts another process of it", run=run.run_id
            )
        if dry_run:
            print(f"would resume {run.run_id} ({state_of(book.of(run.run_id)).name} now, owner {run.owner})")
            return
        if not (run.paused or run.owner.startswith("airflow")):
            require_idle(book.of(run.run_id))
        book.set_paused(run.run_id, False, owner())
        if run.owner.startswith("airflow"):
            print(f"{run.run_id} continues in Airflow ({run.owner})")
        elif _at_work(book, run.run_id):
            print(f"{run.run_id} continues in the process that runs it")
        elif run.kind == "stream":
            book.adopt_run(run.run_id, owner(), owner())
            go_on_streaming(book, run.run_id)
        elif run.kind == "keep":
            book.adopt_run(run.run_id, owner(), owner())
            go_on_keeping(book, run.run_id)
        elif run.kind == "restore":
            book.adopt_run(run.run_id, owner(), owner())
            go_on_restoring(book, run.run_id, as_json)
        elif run.kind == "setup":
            book.adopt_run(run.run_id, owner(), owner())
            go_on_setting_up(book, run.run_id, as_json)
        else:
            book.adopt_run(run.run_id, owner(), owner())
            _go(book, run.run_id, yes, reports, as_json)


def _at_work(book: Ledger, run_id: str) -> bool:
    """Whether a process works on the run. The run's lease does not show that: a lease outlives a killed process."""
    from walferry.run.heartbeat import alive

    return bool(alive(book.of(run_id)))


def abort(
    name: RunName,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    target_is_open: Annotated[
        bool, typer.Option("--target-is-open", help="end it although clients may use the target; READONLY stays")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """End a run and remove its peer, snapshots and folder. Target tables stay as they are.

    Source tables that the run has set READONLY are writable again, unless clients may use the target already.
    """
    from walferry.cutover.ways_out import abort as abort_run
    from walferry.cutover.ways_out import require_closed
    from walferry.replay.keeping.objects import named, stays_read_only
    from walferry.run.run import LogRun, Run

    with existing(ledger) as book:
        record = book.find(name)
        if record.kind == "setup":
            _abort_setup(book, record, reason, dry_run, as_json)
            return
        if record.kind == "receive":
            _abort_receive(book, record, reason, dry_run, as_json)
            return
        of_run = book.of(record.run_id)
        require_closed(of_run, target_is_open=target_is_open)
        left = [o for o in of_run.objects.all() if o.state != "removed" and o.kind != "table"]
        kept = [o for o in left if o.kind == "read-only table" and stays_read_only(of_run, aborted=True)]
        facts = {"removed": [named(item) for item in left if item not in kept], "left": []}
        if not dry_run:
            if record.kind == "replication":  # which has made nothing
                of_run.end("aborted", owner(), reason)
            else:
                logs_only = record.kind in ("stream", "keep")
                with LogRun(book, record.run_id) if logs_only else Run(book, record.run_id) as run:
                    facts = abort_run(run, reason, target_is_open=target_is_open)
    removed = ", ".join(facts["removed"]) or "nothing"
    if as_json:
        print_json({"run": record.run_id, "dry_run": dry_run, **facts, "stays_read_only": [item.name for item in kept]})
        return
    stays = f"; stays READONLY at the source: {', '.join(item.name for item in kept)}" if kept else ""
    if dry_run:
        print(f"would abort {record.run_id} and remove: {removed}{stays}{_lost(record.kind, 'could')}")
    else:
        print(f"{record.run_id} aborted; removed: {removed}{stays}{_lost(record.kind, 'can')}")
        if facts["left"]:
            print(
                f"not removed; the log says whether the process at work does it or you must: {', '.join(facts['left'])}"
            )


def _abort_setup(book: Ledger, record: RunRecord, reason: str, dry_run: bool, as_json: bool) -> None:
    """Put back what an unfinished setup has set; exit 1 if something could not be put back."""
    from walferry.migration.setup.teardown import abort, foresee_abort
    from walferry.run.run import Run

    with Run(book, record.run_id) as run:
        facts = foresee_abort(run) if dry_run else abort(run, reason, run.actor)
    if as_json:
        print_json({"run": record.run_id, "dry_run": dry_run, **facts})
    else:
        _print_aborted(record.run_id, dry_run, ("put back", "put back"), facts["removed"], facts["stays"])
        for one in facts["left"]:
            print(f"would not put back: {one}" if dry_run else f"not put back: {one}")
    if facts["left"] and not dry_run:
        raise typer.Exit(1)


def _abort_receive(book: Ledger, record: RunRecord, reason: str, dry_run: bool, as_json: bool) -> None:
    """End a run that receives, and its processes; exit 1 if their place in ZooKeeper could not be removed."""
    from walferry.receive.ending import clear, look_at_source
    from walferry.receive.place import receive_run

    with receive_run(book, record) as run:
        if not dry_run:
            run.ledger.end("aborted", owner(), reason)
        source = look_at_source(run)
        for line in source.warnings():
            print(f"warning: {line}", file=sys.stderr)
        done = clear(run, dry_run=dry_run)
    if as_json:
        facts = asdict(done) | {"peers": source.peers, "peers_unknown": source.unknown}
        print_json({"run": record.run_id, "dry_run": dry_run, **facts})
    else:
        _print_aborted(record.run_id, dry_run, ("remove", "removed"), done.removed, done.stays)
        for one in done.left:
            print(f"not removed: {one}")
    if done.left:
        raise typer.Exit(1)


def _print_aborted(
    run_id: str, dry_run: bool, verb: tuple[str, str], removed: Sequence[str], stays: Sequence[str]
) -> None:
    """Print what became of a run's objects, or would become of them. `verb`: for a dry run, and for what was done."""
    did = f"would abort {run_id} and {verb[0]}" if dry_run else f"{run_id} aborted; {verb[1]}"
    print(f"{did}: {', '.join(removed) or 'nothing'}")
    for one in stays:
        print(f"{'would stay' if dry_run else 'stays'}: {one}")


def _lost(kind: RunKind, can: str) -> str:
    """What an abort takes away beside objects on the clusters."""
    return f"; no moment that it has kept {can} be restored afterwards" if kind == "keep" else ""


def report(name: RunName, as_json: AsJson = False, reports: Folder = DEFAULT_REPORTS, ledger: LedgerUrl = None) -> None:
    """Print a report of what a run did and found; write it and the audit trail's head to the reports folder."""
    from walferry.migration.report import write

    with existing(ledger) as book:
        run_id = book.find(name).run_id
        path = write(book.of(run_id), reports / run_id)
    print(path.with_suffix(".json" if as_json else ".txt").read_text(), end="")
