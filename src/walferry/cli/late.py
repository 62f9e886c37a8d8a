"""`walferry late`: list edits past the end fence, and decide about them."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.cli.options import AsJson, DryRun, LedgerUrl, RunName, existing, owner, print_json
from walferry.errors import UsageError

SHOWN = 20
"""late edits that are listed"""


def late(
    name: RunName,
    apply: Annotated[bool, typer.Option("--apply", help="set the end fence again after them, and apply them")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="leave them out for good")] = False,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail; needed with --reject")] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """List edits that came after writes were declared stopped; with --apply or --reject decide about those that wait.

    Stop the writer first. Afterwards resume the run, or clear `end_fence` (--apply) or `compare` (--reject) and
    everything after it.
    """
    from walferry.cutover import late_edits
    from walferry.run.run import Run

    if apply and reject:
        raise UsageError("say either --apply or --reject")
    with existing(ledger) as book:
        record = book.find(name)
        with Run(book, record.run_id) as run:
            if apply or reject:
                decide = late_edits.apply if apply else late_edits.reject
                edits = decide(run, reason, owner(), dry_run=dry_run)
            else:
                if record.state == "running" and run.ledger.phases.facts("drain") is not None:
                    late_edits.look(run)
                edits = run.ledger.late.all()
    if as_json:
        print_json({"run": record.run_id, "dry_run": dry_run, "edits": late_edits.facts(edits)})
        return
    verb = f"{'would be ' if dry_run else ''}{'applied after a new end fence' if apply else 'rejected'}"
    for edit in edits[:SHOWN]:
        said = f"{edit.decision} by {edit.decided_by}" if edit.decision else "waits for a decision"
        print(f"{late_edits.late_edit_text(edit)}: {verb if apply or reject else said}")
    if len(edits) > SHOWN:
        print(f"and {len(edits) - SHOWN} more; all of them with --json")
    if not edits:
        print(f"no late edits of {record.run_id} are known")
    elif not (apply or reject) and any(not edit.decision for edit in edits):
        print(late_edits.verbs(record.name))
