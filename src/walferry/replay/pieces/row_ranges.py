"""Cut rows into ranges of bounded size, and apply the ranges as pieces, by row or in bulk, for windows and rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession

from walferry.apply.outcomes import SAMPLE_BYTES, MovedEdits
from walferry.apply.route import Route
from walferry.ledger import Piece
from walferry.ledger.batches import Change
from walferry.replay.pieces.pieces import apply_pieces
from walferry.run.run import Run

WRITERS = 4
"""least number of ranges, so that as many requests can be under way"""


Result = TypeVar("Result")
Shown = TypeVar("Shown", bound=BaseModel)


class RowRange(BaseModel):
    """A piece: the rows from `start` up to the next range's start; the first range's `start` is None."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    number: int
    start: tuple[str, bytes] | None
    """table and row"""
    size: int
    """approximate bytes of cells"""
    tables: frozenset[str]
    """the tables of all ranges"""
    held: frozenset[str]
    """regions that all ranges leave out"""

    @property
    def subject(self) -> str:
        """The range's description for people."""
        return "rows from the first" if self.start is None else f"rows of {self.start[0]} from {self.start[1]!r}"


def cut_rows(
    moved: Iterable[MovedEdits], tables: frozenset[str], held: frozenset[str], piece_bytes: int
) -> list[RowRange]:
    """Cut the edits into ranges of at most about `piece_bytes` of cells; none if there are no edits.

    A row is never cut, so a range is larger where one row has more than `SAMPLE_BYTES` of edits.
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
    """At most `count` - 1 different samples at even distances, without the first sample."""
    chosen = (samples[len(samples) * number // count] for number in range(1, count) if samples)
    return sorted(set(chosen) - set(samples[:1]))


def as_pieces(ranges: Iterable[RowRange], first: int = 0) -> list[Piece]:
    """The ranges as the ledger keeps them, numbered from `first`."""
    return [Piece(first + part.number, "rows", part.subject, part.model_dump_json(), part.size) for part in ranges]


def ranges_of(pieces: Iterable[Piece]) -> list[RowRange]:
    """The inverse of `as_pieces`."""
    return [RowRange.model_validate_json(piece.plan) for piece in pieces]


def unfinished(pieces: Iterable[Piece]) -> frozenset[int]:
    """Numbers of the ranges that are not done."""
    return frozenset(part.number for part in ranges_of(piece for piece in pieces if piece.state != "done"))


def borders_between(ranges: Iterable[RowRange]) -> tuple[tuple[str, bytes], ...]:
    """Table and first row of each range except the first, for `RowTask.borders`."""
    return tuple(part.start for part in ranges if part.start is not None)


def shown_earlier(pieces: Iterable[Piece], kind: type[Shown]) -> list[Shown]:
    """The outcomes of the pieces that are done."""
    return [kind.model_validate_json(piece.outcome) for piece in pieces if piece.state == "done"]


def apply_ranges(
    run: Run,
    spark: SparkSession | None,
    route: Route,
    lease_check: Change,
    pieces: Sequence[Piece],
    apply: Callable[[int, str], Result],
    what: str,
    kind: type[Shown],
    shown_by: Callable[[Piece, Result], Shown],
) -> list[Shown]:
    """Apply the ranges that are not done, and record each with its outcome. Returns the outcomes of all pieces: those
    done earlier come first, the others in the order in which they ended.

    `apply` gets a range's number and a description for people, which begins with `what`.
    """
    outcomes = shown_earlier(pieces, kind)

    def begin(piece: Piece) -> Callable[[], Result]:
        number = RowRange.model_validate_json(piece.plan).number
        return partial(apply, number, f"{what}, piece {number + 1} of {len(pieces)}")

    def done(piece: Piece, result: Result) -> None:
        outcome = shown_by(piece, result)
        run.ledger.batches.finish(piece.number, outcome.model_dump_json(), lease_check)
        outcomes.append(outcome)

    apply_pieces(run, spark, route, lease_check, pieces, begin, done)
    return outcomes
