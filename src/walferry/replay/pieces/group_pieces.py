"""Apply the pieces that are files of WAL groups, for windows and rounds, and keep each piece's outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

from walferry.apply.by_group import GroupTask, apply_groups
from walferry.apply.outcomes import FileReport
from walferry.apply.route import Route
from walferry.ledger import Piece
from walferry.ledger.batches import Change
from walferry.replay.pieces.pieces import apply_pieces
from walferry.run.run import Run
from walferry.wal.files import WalFile


class Holds(Protocol):
    """What the outcome of a piece must have."""

    @property
    def held(self) -> frozenset[str]:
        """Regions that later pieces must leave out."""
        ...


Shown = TypeVar("Shown", bound=Holds)


def apply_group_pieces(
    run: Run,
    spark: SparkSession | None,
    route: Route,
    lease_check: Change,
    files: Iterable[WalFile],
    shown_in: Callable[[str], Shown],
    task_of: Callable[[Piece, tuple[WalFile, ...], frozenset[str]], GroupTask | None],
    record: Callable[[Piece, tuple[WalFile, ...], list[FileReport], Mapping[int, Shown]], Shown],
) -> dict[int, Shown]:
    """Apply the batch's group pieces that are not done. Returns the outcomes of all group pieces by number: those done
    earlier come first, the others in the order in which they ended.

    `shown_in` reads the outcome that an earlier process recorded. `task_of` gets a piece, its files, and the regions
    held by earlier pieces; if it returns None, nothing of the piece is applied. `record` records a piece as done; it
    also gets the other pieces' outcomes so far.
    """
    pieces = run.ledger.batches.pieces("group")
    named = {file.name: file for file in files}
    shown = {piece.number: shown_in(piece.outcome) for piece in pieces if piece.state == "done"}

    def files_of(piece: Piece) -> tuple[WalFile, ...]:
        return tuple(named[name] for name in json.loads(piece.plan))

    def begin(piece: Piece) -> Callable[[], list[FileReport]]:
        # A region that stood still is in one group only, and the group's pieces run one after the other.
        held = frozenset[str]().union(*(one.held for one in shown.values()))
        task = task_of(piece, files_of(piece), held)
        if task is None:
            return list
        what = f"apply edits, piece {piece.number - pieces[0].number + 1} of {len(pieces)}"
        return partial(apply_groups, spark, [task], what)

    def done(piece: Piece, reports: list[FileReport]) -> None:
        shown[piece.number] = record(piece, files_of(piece), reports, shown)

    apply_pieces(run, spark, route, lease_check, pieces, begin, done)
    return shown
