"""`walferry repair` and `reopen`: make rows equal that differ; let the writers go on."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.cli.options import AsJson, DryRun, LedgerUrl, RunName, existing, owner, print_json
from walferry.errors import SidesDifferError, UsageError

SHOWN = 20
"""rows"""


def repair(
    name: RunName,
    table: Annotated[str | None, typer.Option(help="source table; default: all of the run")] = None,
    row: Annotated[list[str] | None, typer.Option(help=r"row key as in the report, with \xNN escapes")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Make rows of the target equal that differ from the source, of any class; exit 5 if some cannot be.

    Without --row, all rows that differed when they were last compared and that nobody has accepted. While the log is
    followed, the process that replays does it; after the drain this command, and then the tables are compared again:
    resume the run, or clear `compare` and everything after it.
    """
    from walferry.migration import asked_repairs
    from walferry.run.run import Run

    if row and table is None:
        raise UsageError("say of which --table the rows are")
    with existing(ledger) as book:
        record = book.find(name)
        if record.kind != "migration" or record.state != "running":
            raise UsageError(f"run {record.run_id} is no migration that goes on: it has no copy to repair")
        with Run(book, record.run_id) as run:
            tables = [table] if table else [pair.source for pair in run.tables]
            wanted = {one: asked_repairs.candidates(run, one, row or ()) for one in tables}
            found = asked_repairs.plans(run, wanted) if dry_run else asked_repairs.repair_now(run, wanted)
    if as_json:
        print_json({"run": record.run_id, "dry_run": dry_run, "rows": [asked_repairs.facts(item) for item in found]})
    else:
        for item in found[:SHOWN]:
            print(f"{'would repair ' if dry_run else ''}{asked_repairs.describe(item)}")
        if len(found) > SHOWN:
            print(f"and {len(found) - SHOWN} more rows; all of them with --json")
        if not found:
            print(f"no row of {record.run_id} is known to differ")
    if faults := sum(bool(item.fault) for item in found):
        raise SidesDifferError(f"{faults} rows of {record.run_id} cannot be repaired as things are")


def reopen(
    name: RunName,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Let the writers go on after a write stop whose checks did not pass: READONLY is lifted, and the log is followed.

    Afterwards resume the run, or clear `replay` and everything after it: the cutover is offered again, with fences set
    anew. Not once the target is open to clients.
    """
    from walferry.migration.cutover import reopen as reopen_run
    from walferry.run.run import Run

    with existing(ledger) as book:
        record = book.find(name)
        with Run(book, record.run_id) as run:
            lifted = reopen_run(run, reason, owner(), dry_run=dry_run)
    if as_json:
        print_json({"run": record.run_id, "dry_run": dry_run, "read_only_lifted": lifted})
        return
    print(f"{'would let' if dry_run else 'let'} the writers of {record.run_id} go on")
    for one in lifted:
        print(f"{one} {'would be' if dry_run else 'is'} writable again")
    if not dry_run:
        print(f"now let them write, and continue: `walferry resume {record.name}`, or clear `replay` in Airflow")
