"""Passes over a pair, recorded by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from walferry.ledger import PassDifference, PassRecord, PassRegion, RunLedger
from walferry.ledger.passes import RowState

REGION = PassRegion("t", "r1", "t", b"", b"m", "lines", 1, 1, True, "never read before", 10, None, 5, 50, False, 0)


def region(name: str = "r1", **fields: object) -> PassRegion:
    return replace(REGION, region=name, **fields)  # type: ignore[arg-type]


def differs(row: bytes, region: str = "r1", state: RowState = "differs", found_ms: int = 7) -> PassDifference:
    return PassDifference("t", row, region, state, "only at the target: put f:q at 5", found_ms)


def one_pass(
    run: RunLedger, *rows: PassDifference, regions: Sequence[PassRegion] = (REGION,), attempt: int = 1,
    shipped: Mapping[str, Any] | None = None,
) -> PassRecord:  # fmt: skip
    """A whole pass that read these regions and found these rows."""
    current = run.passes.begin(attempt)
    position = run.passes.keep_position(current, {}, {}, 1, 100, 3)
    made = [replace(one, number=current.number, position=position) for one in regions]
    run.passes.record(current, made, rows)
    return run.passes.finish(current, {(one.table, one.region) for one in regions}, shipped)
