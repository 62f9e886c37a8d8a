"""`walferry verify`: compare the tables of a run now, or do a pass over a pair that something else keeps equal."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from walferry.amounts import amount
from walferry.cli import comparisons
from walferry.cli.options import AsJson, DryRun, LedgerUrl, owner, print_json, resolved
from walferry.errors import SidesDifferError, UsageError
from walferry.process import open_ledger

SHOWN = 20
"""rows and regions that are listed"""
NAMED = 1_000
"""rows and regions that are listed with --json"""


def verify(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="name of the run, or its id")] = None,
    pair: Annotated[
        Path | None, typer.Option(metavar="SPEC", help="a YAML spec: its tables, which something else keeps equal")
    ] = None,
    whole_every: Annotated[
        float | None, typer.Option(metavar="DAYS", help="read each region of a pair whole at least so often  [7]")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Compare both sides of a run's tables now, or of a pair's; exit 5 if they differ.

    Reads both clusters and changes no data. Of a run, exit 5 means that something found would shut the last gate; the
    result is recorded, but the gate uses the run's own comparison. A pair needs no run: each call is a pass, which
    reads regions whole or only what was written on either side since the last pass. If its spec names a `peer`, rows
    differ only if that peer has shipped them: the source's logs are rolled for that. Some of the rows are then read by
    a second reader, if the spec names the Thrift servers of both clusters (`thrift`, `spot_check`).
    """
    if (name is None) == (pair is None):
        raise UsageError("say what to verify: the NAME of a run, or --pair with a spec")
    if pair is not None:
        _verify_pair(pair, whole_every, dry_run, as_json, ledger)
        return
    if dry_run or whole_every is not None:
        raise UsageError("--dry-run and --whole-every are for --pair: a run's tables are always compared whole")
    assert name is not None
    comparisons.verify(name, as_json, ledger)


def _verify_pair(path: Path, whole_every: float | None, dry_run: bool, as_json: bool, ledger: str | None) -> None:
    from walferry.migration.pairs.pair_findings import differing_rows, findings, pass_line, require_judged
    from walferry.migration.pairs.pair_pass import (
        WHOLE_EVERY_DAYS,
        describe_plan,
        open_pair,
        pair_in_memory,
        plan_pass,
        verify_pair,
    )
    from walferry.run.run import Run
    from walferry.spark.handing_over import with_new_tokens
    from walferry.spark.session import opened_once

    days = WHOLE_EVERY_DAYS if whole_every is None else whole_every
    spec = resolved(path, pair=True)
    with open_ledger(ledger) as book:
        if dry_run:
            with Run(book, pair_in_memory(book, spec)) as run:
                _print_plan(describe_plan(run, plan_pass(run, days)), as_json)
            return
        record = open_pair(book, spec, owner(), days)
        with Run(book, record.run_id) as run:
            facts = with_new_tokens(partial(verify_pair, run, opened_once(f"{record.run_id} verify")))
            found = findings(run.ledger, NAMED if as_json else SHOWN)
    if as_json:
        print_json({"run": record.run_id, **facts, **found})
    else:
        print(f"{record.run_id}: {pass_line(facts)}")
        _print_findings(facts, found)
    if facts["differing_rows"]:
        raise SidesDifferError(f"pair {record.name}: {differing_rows(facts['differing_rows'])}", run=record.run_id)
    require_judged(record.name, facts)


def _print_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    print(f"would read {amount(plan['log_files'], 'file')} of both logs, at least {plan['log_bytes'] / 1e6:.1f} MB")
    for table in plan["tables"]:
        left = table["regions"] - table["whole"]
        print(
            f"{table['table']}: {table['whole']} of {amount(table['regions'], 'region')} whole, about "
            f"{table['whole_bytes'] / 1e6:.1f} MB on each side; of the other {left}, what the logs name"
        )
        for why, count in table["reasons"].items():
            print(f"  {count} whole: {why}")
    second = plan["second_reader"]
    if second["why"]:
        print(f"no row would be read by a second reader: {second['why']}")
    else:
        print(f"up to {second['rows']} of these rows of each table would be read by HBase's own Java client, too")


def _print_findings(facts: dict[str, Any], found: dict[str, Any]) -> None:
    for why, count in facts["reasons"].items():
        print(f"  {amount(count, 'region')} read whole: {why}")
    for table in found["tables"]:
        print(
            f"{table['table']}: {table['clean']} of {amount(table['regions'], 'region')} equal; each was found so at "
            f"{_time(table['oldest_clean_ms'])} or later, and read whole at {_time(table['oldest_whole_ms'])} or later"
        )
    for row in found["differences"]:
        print(f"{row['state']}: {row['row']} of {row['table']}: {row['detail']}")
    if (more := facts["differing_rows"] + facts["under_way_rows"] - len(found["differences"])) > 0:
        print(f"and {more} more rows; up to {NAMED} with --json")


def _time(at_ms: int | None) -> str:
    return "never" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
