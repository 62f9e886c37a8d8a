"""`walferry restore`: a table as it was at a moment, as a new table."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walferry.amounts import amount
from walferry.cli.options import AsJson, DryRun, LedgerUrl, existing, owner, print_json, require_idle_name
from walferry.clock import iso, now_ms
from walferry.errors import UsageError

if TYPE_CHECKING:
    from walferry.ledger import Ledger


def restore(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="of which a run of `walferry keep` keeps bases")],
    at: Annotated[
        str, typer.Option(metavar="TIME", help="the moment, included, ISO 8601, UTC; latest: with --from-folder")
    ],
    as_: Annotated[str, typer.Option("--as", metavar="TABLE", help="the new table")],
    to: Annotated[
        str | None, typer.Option(metavar="CONNECTION", help="the new table's cluster; default: the source")
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="SNAPSHOT", help="from this base; default: the newest one before the moment")
    ] = None,
    from_folder: Annotated[
        bool, typer.Option("--from-folder", help="read base and log in the keeper's folder alone: the source is lost")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Make a table as another one was at a moment, from a kept base and the log since; the other one stays as it is.

    Restore several tables side by side with a command for each. Exit 3: the log up to the moment is not complete yet;
    exit 5: the new table is not what base and log say; exit 6: part of the log no longer exists.
    """
    from walferry.moments.restoring.restore import LATEST, examine, require_past, require_whole
    from walferry.moments.restoring.restore_run import (
        RestoreRun,
        chosen,
        moment_of_unfinished,
        open_restore,
        planned,
    )
    from walferry.run.given_spec import environment_connection

    if from_folder and to is None:
        raise UsageError("with --from-folder the source is lost: name the new table's cluster by --to CONNECTION")
    if at == LATEST and not from_folder:
        raise UsageError("--at latest is for a lost source, with --from-folder: give a time")
    target = None if to is None else environment_connection(to)
    given_ms = None if at == LATEST else moment_ms(at)
    with existing(ledger) as book:
        kept, at_ms = chosen(book, table, given_ms, base, alone=from_folder)
        record = planned(book, table, at_ms, as_, kept, target)
        if kept.latest and (begun_ms := moment_of_unfinished(book, record.name)) is not None:
            record = planned(book, table, begun_ms, as_, kept, target)
        if dry_run:
            with RestoreRun(book, record, given=kept) as run:
                facts = examine(run)
                _say_plan(facts, table, as_, as_json)
                require_whole(run, facts["missing"])
            return
        require_idle_name(book, record.name)
        with RestoreRun(book, record, given=kept) as run:
            require_past(run)
        go_on_restoring(book, open_restore(book, record, kept, owner()), as_json)


def moment_ms(text: str) -> int:
    """A moment given as ISO 8601, in ms since 1970 UTC. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time: give ISO 8601, such as 2026-11-28T14:30:00Z") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    at_ms = round(moment.timestamp() * 1000)
    if at_ms > now_ms():
        raise UsageError(f"{text} is in the future: give a moment that has passed", at_ms=at_ms)
    return at_ms


def go_on_restoring(book: Ledger, run_id: str, as_json: bool = False) -> None:
    """Do the phases of a restore that are not done, and say what came of it."""
    from walferry.moments.restoring.restore import outcome
    from walferry.moments.restoring.restore import restore as do
    from walferry.moments.restoring.restore_run import RestoreRun
    from walferry.spark.handing_over import with_new_tokens
    from walferry.spark.session import opened_once

    with RestoreRun(book, run_id) as run:
        with_new_tokens(partial(do, run, opened_once(run_id)))
        base, end, verified = run.done("plan")["base"], run.done("end"), run.done("verify")
        facts = {"run": run_id, "at": iso(run.at_ms), "table": run.table, "new_table": run.new_table, "base": base}
        made = outcome(run)
    if as_json:
        print_json({**facts, "regions": len(end["regions"]), "doubts": end["doubts"], **verified})
        return
    print(f"{run_id}: {made}; from base {base} and {amount(len(end['files']), 'log file')}")
    for doubt in end["doubts"]:
        print(f"doubtful: {doubt}")


def _say_plan(facts: dict[str, Any], table: str, new_table: str, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    print(f"would restore {table} to {facts['at']} as {new_table}")
    print(f"base: {facts['base']}, complete at {facts['base_complete']}, {facts['base_bytes'] / 1e6:.1f} MB")
    print(f"log: {amount(len(facts['files']), 'file')}, {facts['bytes'] / 1e6:.1f} MB")
    for name in facts["to_be_rolled"]:
        print(f"to be rolled first: {name}")
    for name in facts["missing"]:
        print(f"missing: {name}")
