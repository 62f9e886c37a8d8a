"""`walferry repair`, `copy-again` and `withdraw`: make rows or a whole table equal, or take a cutover back."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.amounts import amount
from walferry.cli.options import AsJson, DryRun, LedgerUrl, RunName, existing, owner, print_json
from walferry.errors import UsageError

SHOWN = 20
"""rows that are listed"""


def repair(
    name: RunName,
    table: Annotated[str | None, typer.Option(help="source table; default: all of the run")] = None,
    row: Annotated[list[str] | None, typer.Option(help=r"row key as in the report, with \xNN escapes")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Make rows of the target equal that differ from the source, of any class; exit 5 if some cannot be.

    Without --row, all rows that differed when they were last compared and that nobody has accepted. --dry-run says what
    that and copying the table again would cost: bytes, and the time by what the run has measured. While the log is
    followed, the process that replays does it; after the drain this command, and then the tables are compared again:
    resume the run, or clear `compare` and everything after it.

    NAME may be a pair that HBase's own replication feeds (`peer` in its spec). Then only rows are repaired that still
    differ once that peer has shipped, for which the source's logs are rolled.
    """
    from walferry.migration.pairs.pair_repair import ask
    from walferry.run.run import Run

    if row and table is None:
        raise UsageError("name the --table of the rows")
    with existing(ledger) as book, Run(book, book.find(name).run_id) as run:
        found = ask(run, table, row or (), dry_run=dry_run)
    if as_json:
        print_json(found.facts())
    else:
        print("\n".join(found.lines()))
    found.require_all()


def copy_again(
    name: RunName,
    table: Annotated[str, typer.Option(help="source table")],
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    give_up: Annotated[
        bool, typer.Option("--give-up", help="end it as it is; the comparison finds what is missing")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Empty one table of the target and copy it again from the source, while the run and its other tables go on.

    For a table of which too many rows differ, or rows that `repair` cannot make equal. While the log is followed, the
    process that replays does it; otherwise this command. Until it is done no gate opens; interrupted, it goes on. Not
    once the cutover has begun.
    """
    from walferry.migration.repairing import copy_again as again
    from walferry.run.run import Run

    with existing(ledger) as book:
        record = book.find(name)
        with Run(book, record.run_id) as run:
            if give_up:
                left = again.give_up(run, table, reason, dry_run=dry_run)
                said = f"the copying of {table} {'would be' if dry_run else 'is'} ended: {left.describe()}"
                if as_json:
                    print_json({"run": record.run_id, "dry_run": dry_run, "text": said})
                else:
                    print(said)
                return
            plan = again.plan_copy_again(run, table)
            done = None if dry_run else again.copy_again(run, table, reason)
    if as_json:
        print_json({"run": record.run_id, "dry_run": dry_run, **plan} | (
            {} if done is None else {"cells": done.cells, "bytes": done.size}
        ))  # fmt: skip
    elif done is not None:
        print(f"{table} is copied again: {amount(done.cells, 'cell')}, {done.size / 1e6:.1f} MB")
        print(f"the process that follows the log compares it next, or `walferry verify {record.name}`")
    else:
        print("\n".join(again.plan_lines(plan)))


def withdraw(
    name: RunName,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Take a cutover back: READONLY is lifted, the writers go on, and the log is followed again.

    Only the end fence is withdrawn; rejected late edits stay left out. Afterwards resume the run, or clear `replay` and
    everything after it: the cutover is offered again. Not once the target is open to clients.
    """
    from walferry.cutover import late_edits
    from walferry.cutover.ways_out import withdraw as withdraw_cutover
    from walferry.run.run import Run

    with existing(ledger) as book:
        record = book.find(name)
        with Run(book, record.run_id) as run:
            lifted = withdraw_cutover(run, reason, owner(), dry_run=dry_run)
            rejected = [edit for edit in run.ledger.late.all() if edit.decision == "reject"]
    if as_json:
        facts = {"run": record.run_id, "dry_run": dry_run, "read_only_lifted": lifted}
        print_json(facts | {"left_out": late_edits.facts(rejected)})
        return
    print(f"the cutover of {record.run_id} {'would be' if dry_run else 'is'} withdrawn")
    for one in lifted:
        print(f"{one} {'would be' if dry_run else 'is'} writable again")
    for edit in rejected[:SHOWN]:
        print(f"stays left out, as it was rejected: {late_edits.late_edit_text(edit)}")
    if len(rejected) > SHOWN:
        print(f"and {len(rejected) - SHOWN} more rejected edits: `walferry late {record.name}`")
    if not dry_run:
        print(f"now let the writers go on, and continue: `walferry resume {record.name}`, or clear `replay` in Airflow")
