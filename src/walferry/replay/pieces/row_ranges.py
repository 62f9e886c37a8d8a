"""Cut the rows of regions that moved into ranges of bounded size: the pieces that are applied in row order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from walferry.apply.outcomes import SAMPLE_BYTES, MovedEdits

WRITERS = 4
"""ranges there should be at least, so that as many requests can be under way"""


class RowRange(BaseModel):
    """A piece: rows from `start` to before the start of the next range; the first has none."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    number: int
    start: tuple[str, bytes] | None
    """table and row"""
    size: int
    """bytes of cells, about"""
    tables: frozenset[str]
    """those of all ranges"""
    held: frozenset[str]
    """regions that no range has"""

    @property
    def subject(self) -> str:
        """The range as people read it."""
        return "rows from the first" if self.start is None else f"rows of {self.start[0]} from {self.start[1]!r}"


def cut_rows(
    moved: Iterable[MovedEdits], tables: frozenset[str], held: frozenset[str], piece_bytes: int
) -> list[RowRange]:
    """Cut the edits into ranges of at most about `piece_bytes` of cells; none if there are no edits.

    A row is never cut, and where `SAMPLE_BYTES` of edits are of one row, a range is larger.
    """
    edits = list(moved)
    total = sum(part.size for part in edits)
    if not total:
        return []
    samples = sorted((part.table, row) for part in edits for row in part.rows)
    count = max(-(-total // piece_bytes), min(WRITERS, total // SAMPLE_BYTES), 1)
    starts: list[tuple[str, bytes] | None] = [None, *_evenly(samples, int(count))]
    return [RowRange(number=n, start=at, size=total // len(starts), tables=tables, held=held)
            for n, at in enumerate(starts)]  # fmt: skip


def _evenly(samples: Sequence[tuple[str, bytes]], count: int) -> list[tuple[str, bytes]]:
    """At most count - 1 different samples at even distances, none of them the first."""
    chosen = (samples[len(samples) * number // count] for number in range(1, count) if samples)
    return sorted(set(chosen) - set(samples[:1]))
