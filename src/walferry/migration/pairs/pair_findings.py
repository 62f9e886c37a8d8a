"""The findings of the passes over a pair, for people; and which differing rows nobody has been notified of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

from walferry.amounts import amount, rows_differ
from walferry.hbase.rowkey import shown_row
from walferry.ledger import PassRecord, RunLedger
from walferry.migration.pairs.pair_shipping import shipping_text
from walferry.replication.finding import NotReplicatedError

_NOTE, _NOT_JUDGED = "told difference", "told not judged"


def pass_facts(made: PassRecord) -> dict[str, Any]:
    """A pass as plain values."""
    seconds = None if made.ended_ms is None else round((made.ended_ms - made.started_ms) / 1000, 1)
    return asdict(made) | {"seconds": seconds, "not_judged": made.not_judged}


def pass_line(facts: Mapping[str, Any]) -> str:
    """A finished pass as a line."""
    shipped = facts["shipped"]
    told = shipped and (facts["not_judged"] or not shipped["why"])
    second = f"; second reader: {facts['second_reader']['text']}" if facts["second_reader"] else ""
    return (
        f"pass {facts['number']}: {_result(facts)}; {facts['whole_regions']} of {amount(facts['regions'], 'region')} "
        f"read whole, {amount(facts['rows_read'], 'row')} and {facts['bytes_read'] / 1e6:.1f} MB of cells, "
        f"{facts['log_bytes'] / 1e6:.1f} MB of log with {amount(facts['written_rows'], 'row')}, "
        f"in {facts['seconds']:.0f} s{second}{f'; {shipping_text(shipped)}' if told else ''}"
    )


def _result(facts: Mapping[str, Any]) -> str:
    differing, under_way = facts["differing_rows"], facts["under_way_rows"]
    if facts["not_judged"] and not differing:
        return f"not judged: {rows_differ(under_way)}"
    result = differing_rows(differing) or "equal"
    if facts["not_judged"]:
        return f"{result}, {amount(under_way, 'other is', 'others are')} not judged"
    return f"{result}, {under_way} more under way" if under_way else result


def require_judged(name: str, facts: Mapping[str, Any]) -> None:
    """Raise NotReplicatedError if rows differ in a finished pass over the pair of this name, and nobody can tell
    whether they are only not shipped yet."""
    if facts["not_judged"]:
        rows = amount(facts["under_way_rows"], "row differs and is", "rows differ and are")
        raise NotReplicatedError(f"pair {name}: {rows} not judged: {facts['not_judged']}", findings=[])


def differing_rows(count: int) -> str:
    """How many rows differ; "" if none does."""
    return rows_differ(count) if count else ""


def findings(ledger: RunLedger, most: int) -> dict[str, Any]:
    """What is known about each table since the last pass: differing rows, regions read whole, the oldest knowledge.

    `most`: how many rows and regions are named.
    """
    regions = ledger.passes.regions()
    differences = ledger.passes.differences()
    unclean = {(item.table, item.region) for item in differences} | {
        (region.table, region.region) for region in regions if region.unnamed
    }
    tables = []
    for table, group in groupby(regions, key=lambda region: region.table):
        of = list(group)
        clean = [region.clean_ms for region in of if region.clean_ms is not None]
        tables.append(
            {
                "table": table,
                "regions": len(of),
                "clean": sum((region.table, region.region) not in unclean for region in of),
                "oldest_clean_ms": min(clean) if len(clean) == len(of) else None,
                "oldest_whole_ms": min(region.whole_ms for region in of),
            }
        )
    shown = [
        {"table": d.table, "row": shown_row(d.row), "state": d.state, "detail": d.detail, "found_ms": d.found_ms}
        for d in differences[:most]
    ]
    whole = [
        {"table": region.table, "region": region.region, "from": shown_row(region.start), "why": region.why}
        for region in regions
        if region.whole
    ]
    return {"tables": tables, "differences": shown, "whole": whole[:most]}


# ------------------------------------------------------------------ what is news


def new_differences(ledger: RunLedger) -> bool:
    """Whether rows differ that did not differ at the last notification, or whether more unnamed rows differ than did
    then."""
    before = ledger.notes.get(_NOTE) or {"rows": [], "unnamed": 0}
    now = _differing(ledger)
    return bool(set(now["rows"]) - set(before["rows"])) or now["unnamed"] > before["unnamed"]


def news_of_judging(ledger: RunLedger, facts: Mapping[str, Any]) -> bool:
    """Whether rows are not judged in a finished pass, and nobody has been notified since they last were."""
    return bool(facts["not_judged"]) and not ledger.notes.text(_NOT_JUDGED)


def told_judging(ledger: RunLedger, facts: Mapping[str, Any]) -> None:
    """Record that people know whether rows are judged."""
    ledger.notes.keep_text(_NOT_JUDGED, facts["not_judged"])


def told(ledger: RunLedger) -> None:
    """Record that somebody was notified of the rows that differ now; a row that becomes equal and then differs again is
    new."""
    now = _differing(ledger)
    if now != ledger.notes.get(_NOTE):
        ledger.notes.keep(_NOTE, now)


def _differing(ledger: RunLedger) -> dict[str, Any]:
    rows = [f"{d.table} {d.row.hex()}" for d in ledger.passes.differences() if d.state == "differs"]
    differing = sum(made.differing_rows for made in ledger.passes.latest(1))
    return {"rows": sorted(rows), "unnamed": max(0, differing - len(rows))}
