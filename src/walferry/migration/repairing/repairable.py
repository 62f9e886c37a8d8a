"""Which rows that differ are repaired, and which unasked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from walferry.ledger import Difference
from walferry.ledger.comparisons import Decision, decision
from walferry.migration.explaining.explain import (
    CHANGED_SINCE,
    IN_FLIGHT,
    LEFT_OUT,
    NOT_IN_LOG,
    UNEXPLAINED,
    WRITTEN_SINCE,
)
from walferry.run.run import Run

MOST_UNEXPLAINED = 1_000
"""of a table, beyond which nothing is repaired unasked: something is wrong that nobody knows of"""


def repairable(item: Difference, accepted: Collection[Decision]) -> bool:
    """Whether a row is to be repaired: it is not under way, no person left its edit out or accepted the difference, it
    was not equal at the opening, and no client wrote it at the open target."""
    left = (IN_FLIGHT, LEFT_OUT, CHANGED_SINCE, WRITTEN_SINCE)
    return item.kind not in left and decision(item) not in accepted


def why_not(run: Run, table: str, kinds: Mapping[bytes, str]) -> str:
    """Why rows are not repaired unasked: the spec says so, or too many have no explanation; "" if they are."""
    if run.spec.repair != "auto":
        return f"nobody has asked to repair it (`repair: ask`): `walferry repair {run.record.name} --table {table}`"
    if NOT_IN_LOG in kinds.values() and table in run.ledger.late.rejected_loads():
        return (
            f"a late bulk load into {table} was rejected, whose cells nobody can tell from other unlogged ones: "
            f"`walferry accept {run.record.name} --table {table} --all --reason …` leaves them out, `walferry repair "
            f"{run.record.name} --table {table} --row …` copies a row"
        )
    unexplained = sum(kind == UNEXPLAINED for kind in kinds.values())
    if unexplained <= MOST_UNEXPLAINED:
        return ""
    return (
        f"{unexplained} rows of {table} differ without an explanation, so nothing is repaired unasked: find out why, "
        f"then `walferry repair {run.record.name} --table {table}`, or `walferry copy-again {run.record.name} --table "
        f"{table} --reason …`"
    )
