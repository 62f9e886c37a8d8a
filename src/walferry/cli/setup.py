"""`walferry replicate setup` and `teardown`: HBase's own replication of tables, set up and put back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walferry.cli.options import (
    AsJson,
    DryRun,
    LedgerUrl,
    RunName,
    existing,
    ledger_if_any,
    owner,
    print_findings,
    print_json,
    print_versions,
    require_idle_name,
)
from walferry.errors import WalferryError
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.ledger import Ledger, RunRecord
    from walferry.run.setup_spec import ResolvedSetupSpec


def setup(
    spec: Annotated[Path, typer.Argument(help="the YAML file of the setup; see setup.example.yaml")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Have HBase replicate tables by itself, with all that they hold, or continue the unfinished setup of that name.

    Sets scopes, adds a disabled peer, copies the tables, enables the peer, waits until all is shipped, and compares
    both sides; exit 5 if rows differ. No edit is lost meanwhile, and clients write on. If it is done, this looks
    whether all is still as it was set up; exit 1 if not. `walferry replicate teardown` puts it back.
    """
    wanted = _resolved(spec)
    if dry_run:
        _plan(wanted, ledger, as_json)
        return
    from walferry.migration.setup.setup import open_setup

    with open_ledger(ledger) as book:
        require_idle_name(book, wanted.name)
        record = open_setup(book, wanted, owner())
        if record.state == "done":
            _look(book, record, as_json)
        else:
            go_on_setting_up(book, record.run_id, as_json)


def _resolved(spec: Path) -> ResolvedSetupSpec:
    from walferry.run.given_spec import environment_connection, load_setup_spec, refuse_window, resolve_setup

    given = load_setup_spec(spec)
    refuse_window(given, str(spec))
    return resolve_setup(given, environment_connection)


def _plan(wanted: ResolvedSetupSpec, ledger: str | None, as_json: bool) -> None:
    """Say what would be done. Raises UsageError with all that is refused."""
    from walferry.migration.setup.setup_plan import as_facts, examine, require
    from walferry.settings import LogTimes

    with ledger_if_any(ledger) as book:
        if book is not None and _told_of_known(book, wanted, as_json):
            return
        found = examine(wanted, book, LogTimes.read().keep_hours)
    if as_json:
        print_json(as_facts(found))
    else:
        print_versions(found.found)
        print_findings(found.found.findings, "refuse")
        for note in found.notes:
            print(f"note: {note}")
        for step in found.steps:
            print(f"would {step}" if not step.startswith("(") else step)
    require(found)


def _told_of_known(book: Ledger, wanted: ResolvedSetupSpec, as_json: bool) -> bool:
    """Say what a setup of that name would go on with, if one is unfinished or done."""
    from walferry.migration.setup.setup import require_same_setup
    from walferry.migration.setup.setups import find_setup
    from walferry.run.notes.teardown import torn_down
    from walferry.run.phases import steps
    from walferry.run.recorded_spec import source_tables

    known = find_setup(book, wanted.name)
    if known is None or known.state not in ("running", "done") or torn_down(book.of(known.run_id)) is not None:
        return False
    done = {(phase.phase, phase.subject) for phase in book.of(known.run_id).phases.all() if phase.state == "done"}
    todo = [
        f"{phase.name} {subject}".strip()
        for phase, subject in steps("setup", source_tables(known))
        if (phase.name, subject) not in done
    ]
    if not done:
        return False
    require_same_setup(book, known, wanted)
    if as_json:
        print_json({"run": known.run_id, "state": known.state, "would_do": todo})
    else:
        print(f"{known.run_id} would do: {', '.join(todo)}" if todo else f"{known.run_id} is done: it would look at it")
    return True


def go_on_setting_up(book: Ledger, run_id: str, as_json: bool = False) -> None:
    """Do the phases of a setup that are not done, and say what came of it."""
    from walferry.migration.setup.setups import require_no_teardown
    from walferry.pipeline import PhaseContext, set_up
    from walferry.process import reports_folder
    from walferry.run.heartbeat import beating
    from walferry.run.run import Run
    from walferry.spark.session import opened_once

    with Run(book, run_id) as run, beating(run.ledger, "", run.actor, alone=True):
        require_no_teardown(run.ledger)
        try:
            set_up(run, PhaseContext(opened_once(f"walferry {run_id}"), reports_folder() / "data_docs"))
        except KeyboardInterrupt:
            print("interrupted; `walferry replicate setup SPEC` continues from here", file=sys.stderr)
            raise
        record, verified = run.ledger.record, run.done("verify")
    if as_json:
        print_json({"run": run_id, "outcome": record.outcome, **verified})
    else:
        print(f"{run_id}: {record.outcome}; `walferry replicate teardown {record.name}` puts it back")


def _look(book: Ledger, record: RunRecord, as_json: bool) -> None:
    """Say line by line whether a setup that is done is still as it was set up; exit 1 if not."""
    from walferry.migration.setup.setup_look import look
    from walferry.run.run import Run

    with Run(book, record) as run:
        found = look(run)
    wrong = [one for one in found if one.wrong]
    if as_json:
        print_json({"run": record.run_id, "looked_at": [{"what": one.what, "wrong": one.wrong} for one in found]})
    else:
        for one in found:
            print(f"WRONG  {one.what}: {one.wrong}" if one.wrong else f"ok     {one.what}")
    if wrong:
        raise WalferryError(
            f"{record.run_id} is no longer as it was set up: {'; '.join(f'{one.what}: {one.wrong}' for one in wrong)}",
            run=record.run_id,
        )
    if not as_json:
        print(f"{record.run_id}: {record.outcome}, and is as it was set up")


def teardown(
    name: RunName,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")] = "",
    unshipped: Annotated[
        bool, typer.Option("--unshipped", help="do not wait until all is shipped: the target may lack edits")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Put back what `walferry replicate setup` has set: have all shipped, remove its peers, and put scopes back.

    Tables at the target stay. A peer that a person has changed is not touched, and a scope that another peer needs
    stays; exit 1 if something could not be put back. Repeat it to go on.
    """
    from walferry.migration.setup.put_back import require_whole
    from walferry.migration.setup.setups import require_setup
    from walferry.migration.setup.teardown import tear_down
    from walferry.run.run import Run

    with existing(ledger) as book:
        record = require_setup(book, name)
        with Run(book, record.run_id) as run:
            done = tear_down(run, reason, unshipped=unshipped, dry_run=dry_run)
            if as_json:
                print_json({"run": record.run_id, "dry_run": dry_run, **done.as_facts()})
            else:
                if done.before:
                    print(done.before)
                told = done.foreseen() if dry_run else done.lines()
                print("\n".join(told) or "there is nothing to put back")
                print(f"tables at the target stay: {', '.join(pair.target for pair in run.tables)}")
            if not dry_run:
                require_whole(run, done.put_back)
