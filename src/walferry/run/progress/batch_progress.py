"""The progress of the batch that a replay applies now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from walferry import clock
from walferry.ledger import RunLedger


@dataclass(frozen=True)
class BatchProgress:
    """The pieces of a batch, and the bytes of their files or cells."""

    pieces: Annotated[int, Field(description="all pieces of the batch")]
    done: Annotated[int, Field(description="pieces that are applied and recorded")]
    repeated: Annotated[tuple[str, ...], Field(description="pieces that were started more than once, in words")]
    bytes: Annotated[int, Field(description="bytes of all pieces")]
    bytes_done: Annotated[int, Field(description="bytes of the pieces that are done")]
    eta_seconds: Annotated[
        int | None, Field(description="until the rest is done, at the rate so far; null before the first piece is done")
    ]


def batch_progress(ledger: RunLedger) -> BatchProgress | None:
    """The progress of the batch under way; None if no batch is under way."""
    pieces = ledger.batches.pieces()
    if not pieces:
        return None
    done = [piece for piece in pieces if piece.state == "done"]
    total, applied = sum(piece.bytes for piece in pieces), sum(piece.bytes for piece in done)
    # Do not count from the start of the batch, which may have been interrupted for hours.
    now = clock.now_ms()
    spent = sum((piece.finished_ms or now) - (piece.started_ms or now) for piece in done)
    at_once = max(1, sum(1 for piece in pieces if piece.state == "running"))
    eta = round((total - applied) * spent / applied / at_once / 1000) if applied else None
    return BatchProgress(
        len(pieces),
        len(done),
        tuple(f"{piece.subject}: attempt {piece.attempts}" for piece in pieces if piece.attempts > 1),
        total,
        applied,
        eta,
    )
