"""Whether a setup that is done is still as it was set up, by a look at both clusters. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from walferry.amounts import first_of
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import TableNotFoundError
from walferry.ledger.rows import ClusterSide
from walferry.migration.setup.scopes import changed_tables, parsed, scopes_of, unscoped
from walferry.migration.setup.setup import sides_of
from walferry.migration.setup.wanted_peer import differences, recorded
from walferry.replication.table_findings import SCOPE, is_replicated
from walferry.run.cluster_ids import planned_id
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.run import Run
from walferry.run.sides import SIDES, client_at, elsewhere


@dataclass(frozen=True)
class Seen:
    """One thing that was looked at."""

    what: str
    wrong: str
    """what is wrong with it; "" if nothing is"""


def look(run: Run) -> list[Seen]:
    """Everything that replication by a setup needs, each as it is now."""
    found: list[Seen] = []
    for side in SIDES:
        try:
            found += _at_side(run, side)
        except WalferryError as error:
            found.append(Seen(side, f"it cannot be looked at: {error}"))
    return found


def _at_side(run: Run, side: ClusterSide) -> Iterator[Seen]:
    client = client_at(run, side)
    other = elsewhere(run, side)
    yield Seen(f"{side}: cluster {planned_id(run.ledger, side)}", other)
    if other:
        return
    if side in sides_of(run):
        wanted = recorded(run.ledger, side)
        wrong = ["it was never added"] if wanted is None else differences(client, wanted)
        yield Seen(f"{side}: peer {wanted.id if wanted else ''}, enabled", first_of(wrong))
    yield from _scopes(run, side, client)
    if side == "target":
        yield from _tables(run)


def _scopes(run: Run, side: ClusterSide, client: HBaseClient) -> Iterator[Seen]:
    spec = setup_spec_of(run.record)
    for table, item in sorted(changed_tables(run.ledger, side).items()):
        before = parsed(item.name)[1]
        what = f"{side}: {SCOPE} of {first_of(sorted(before))} of {table}"
        yield Seen(what, _unless_gone(partial(_off, client, table, before, spec.names_of(table) is None)))


def _off(client: HBaseClient, table: str, before: dict[str, str], whole: bool) -> str:
    """Which families are not replicated, of the recorded ones, or (`whole`) of all that the table has by now."""
    descriptor = client.describe(table)
    families = unscoped(descriptor, scopes_of(descriptor) if whole else before)
    return f"it is 0 in {first_of(families)}" if families else ""


def _tables(run: Run) -> Iterator[Seen]:
    spec = setup_spec_of(run.record)
    for pair in run.tables:
        wrong = _unless_gone(partial(_lacking, run, pair.source, spec.names_of(pair.source)))
        yield Seen(f"target: table {pair.target}", wrong)


def _lacking(run: Run, table: str, named: list[str] | None) -> str:
    here, there = run.source.describe(table), run.target.describe(table)
    needed = here.shown_families.keys() if named is None else here.shown_families.keys() & set(named)
    lacking = sorted(needed - there.shown_families.keys())
    if stopping := [name for name in lacking if is_replicated(here.shown_families[name])]:
        return f"it lacks the family {stopping[0]}, whose first edit stops all others"
    if lacking:
        return f"it lacks the family {lacking[0]}"
    return "" if run.target.table_enabled(table) else "it is disabled"


def _unless_gone(look_at: Callable[[], str]) -> str:
    try:
        return look_at()
    except TableNotFoundError as error:
        return str(error)
