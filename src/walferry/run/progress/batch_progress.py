"""How far the batch is that a replay applies now."""

from __future__ import annotations

from dataclasses import dataclass

from walferry import clock
from walferry.ledger import RunLedger


@dataclass(frozen=True)
class BatchProgress:
    """The pieces of a batch, and the bytes of their files or cells."""

    pieces: int
    done: int
    repeated: tuple[str, ...]
    """those that were begun more than once"""
    bytes: int
    bytes_done: int
    eta_seconds: int | None
    """at the rate of the pieces that are done; None before the first"""


def batch_progress(ledger: RunLedger) -> BatchProgress | None:
    """The progress of the batch under way; None while there is none."""
    pieces = ledger.batches.pieces()
    if not pieces:
        return None
    done = [piece for piece in pieces if piece.state == "done"]
    total, applied = sum(piece.bytes for piece in pieces), sum(piece.bytes for piece in done)
    # Not since the batch began: it may have been interrupted for hours.
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
