"""`walferry verify`, `accept` and `accept-numbers`: compare both sides now, accept rows that differ and number gaps."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from walferry.cli.options import (
    AsJson,
    DryRun,
    LedgerUrl,
    RunName,
    existing,
    owner,
    print_json,
)
from walferry.errors import SidesDifferError, UsageError

SHOWN = 20
"""accepted rows that are listed"""


def verify(name: RunName, as_json: AsJson = False, ledger: LedgerUrl = None) -> None:
    """Compare both sides of a run's tables now; exit 5 if something found would shut the last gate.

    Reads both clusters and changes no data; snapshots that it takes are deleted at the end. Some of the rows are then
    read by a second reader (`spot_check` of the spec). The result is recorded, but the gate uses the run's own
    comparison.
    """
    from walferry.migration.comparing.compare_now import compare_now
    from walferry.run.notes.last_comparison import AFTER_THE_RUN, is_after_the_run
    from walferry.run.run import Run
    from walferry.spark.handing_over import with_new_tokens
    from walferry.spark.session import opened_once

    with existing(ledger) as book:
        record = book.find(name)
        book.verify_audit()
        with Run(book, record.run_id) as run:
            spark = opened_once(f"{record.run_id} verify")
            made = [with_new_tokens(partial(compare_now, run, spark, pair.source)) for pair in run.tables]
    if as_json:
        print_json([one.facts() for one in made])
    else:
        for one in made:
            facts = one.result.facts()
            print(f"{facts.pop('table')}: " + ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in facts.items()))
            print(f"  second reader: {one.second.describe()}")
    if any(one.result.shuts_the_gate for one in made):
        after = any(is_after_the_run(book.of(record.run_id), one.result.compared) for one in made)
        raise SidesDifferError(
            f"run {record.run_id}: source and target differ{f' ({AFTER_THE_RUN})' if after else ''}; "
            f"`walferry report {record.name}` shows where"
        )


def accept(
    name: RunName,
    table: Annotated[str, typer.Option(help="source table")],
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    row: Annotated[list[str] | None, typer.Option(help=r"row key as in the report, with \xNN escapes")] = None,
    all_: Annotated[bool, typer.Option("--all", help="all rows that differ for a known reason and wait now")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Accept rows that differ: they stay as they are, and shut no gate. Rows without an explanation need their --row.

    This covers exactly the cells that the comparison found. Afterwards resume the run, or clear `check_drain`.
    """
    from walferry.migration.explaining import accept as decisions

    if bool(row) == all_:
        raise UsageError("name the rows: either --row, one or more times, or --all")
    with existing(ledger) as book:
        run = book.of(book.find(name).run_id)
        chosen = decisions.accept(run, table, row, reason, owner(), dry_run=dry_run)
        items = [decisions.difference_facts(item, run.comparisons.accepted()) for item in chosen]
    if as_json:
        print_json({"run": run.run_id, "dry_run": dry_run, "accepted": [asdict(item) for item in items]})
    for item in [] if as_json else items[:SHOWN]:
        print(f"{'would accept' if dry_run else 'accepted'} {item.row} of {item.table}: {item.detail}")
    if not as_json and len(items) > SHOWN:
        print(f"and {len(items) - SHOWN} more rows of {table}; all of them with --json")


def accept_numbers(
    name: RunName,
    table: Annotated[str, typer.Option(help="source table")],
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Accept that numbers are missing in the log of a table, for instance because its writers skip the log (SKIP_WAL).

    This covers what was found, and what will be found until the run ends: later places are only counted. If you do not
    know the cause, a WAL may have been lost: abort and start over.
    """
    from walferry.replay.log import numbering
    from walferry.run.progress.missing_numbers import number_gap_text

    with existing(ledger) as book:
        run = book.of(book.find(name).run_id)
        gaps = numbering.accept(run, table, reason, owner(), dry_run=dry_run)
    if as_json:
        print_json({"run": run.run_id, "dry_run": dry_run, "accepted": [asdict(gap) for gap in gaps]})
        return
    told = "would be accepted" if dry_run else "are accepted"
    print(f"missing numbers of {table} {told} until {run.run_id} ends; found so far without a decision: {len(gaps)}")
    for gap in gaps[:SHOWN]:
        print(f"  {number_gap_text(gap)}")
    if len(gaps) > SHOWN:
        print(f"and {len(gaps) - SHOWN} more places; all of them with --json")
