"""Which differing rows are repaired, and which of them without being asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from walferry.ledger import Difference
from walferry.ledger.comparisons import Decision, decision
from walferry.migration.explaining.difference_classes import (
    CHANGED_SINCE,
    IN_FLIGHT,
    LEFT_OUT,
    NOT_IN_LOG,
    UNEXPLAINED,
    WRITTEN_SINCE,
)
from walferry.run.run import Run

MOST_UNEXPLAINED = 1_000
"""if more rows of a table are unexplained, none is repaired without a request: something unknown is wrong"""


def repairable(item: Difference, accepted: Collection[Decision]) -> bool:
    """Whether a row may be repaired. It may not if it is under way, if a person left its edit out or accepted the
    difference, if it was equal at the opening and changed by itself, or if a client wrote it at the open target."""
    left = (IN_FLIGHT, LEFT_OUT, CHANGED_SINCE, WRITTEN_SINCE)
    return item.kind not in left and decision(item) not in accepted


def why_not(run: Run, table: str, kinds: Mapping[bytes, str]) -> str:
    """Why rows are not repaired without a request; "" if they are. Reasons: the spec says so, a late bulk load was
    rejected, or too many rows are unexplained."""
    if run.spec.repair != "auto":
        return f"its repair was not requested (`repair: ask`): `walferry repair {run.record.name} --table {table}`"
    if NOT_IN_LOG in kinds.values() and table in run.ledger.late.rejected_loads():
        return (
            f"a late bulk load into {table} was rejected, and its cells cannot be told from other unlogged cells: "
            f"`walferry accept {run.record.name} --table {table} --all --reason …` leaves them out, `walferry "
            f"repair {run.record.name} --table {table} --row …` copies a row"
        )
    unexplained = sum(kind == UNEXPLAINED for kind in kinds.values())
    if unexplained <= MOST_UNEXPLAINED:
        return ""
    return (
        f"{unexplained} rows of {table} differ without an explanation, so no row is repaired without a request: "
        f"find out why, then run `walferry repair {run.record.name} --table {table}`, or `walferry copy-again "
        f"{run.record.name} --table {table} --reason …`"
    )
