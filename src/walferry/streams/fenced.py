"""The error of a process that another one has displaced where the stream's changes go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from walferry.errors import WalferryError
from walferry.run.turn import Turn


class FencedError(WalferryError):
    """Another process writes to the stream's destination now; this one must end. Fact `stream`; of Kafka also
    `transactional_id`, of a folder `folder`."""


@contextmanager
def explaining_fences(turn: Turn) -> Iterator[None]:
    """Raise the errors of `Turn.require` in place of FencedError: the destination may tell a process first.

    The destination fences an older process only while it has a sink. One that was suspended for long would open another
    one and take the stream back, so the turn counts, too.
    """
    try:
        yield
    except FencedError as fenced:
        turn.require()
        raise WalferryError(
            f"{fenced}. No process of this ledger has: another ledger has a stream of this name and source. End one of "
            "the two, or give it another name",
            **fenced.facts,
        ) from None
