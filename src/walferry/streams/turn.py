"""Which process may stream: the one that began the phase last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from walferry.errors import WalferryError
from walferry.run.run import RunEndedError
from walferry.streams.fenced import FencedError
from walferry.streams.stream_run import StreamRun


class StreamTakenOverError(WalferryError):
    """Another process of the ledger has begun the phase `stream`, and this one ends; fact `run`."""


class Turn:
    """This attempt's right to stream, which it loses once the run has ended or another process has begun the phase.

    The destination fences an older process only while it has a sink. One that was suspended for long would open
    another one and take the stream back.
    """

    def __init__(self, run: StreamRun) -> None:
        self._run = run
        self._attempt = self._attempts()

    def require(self) -> None:
        """Raise StreamTakenOverError or RunEndedError if it is lost."""
        if self._attempts() != self._attempt:
            raise StreamTakenOverError(
                f"another process has taken over stream {self._run.run_id}: this one ends, and what it had not "
                "committed is not visible",
                run=self._run.run_id,
            )
        state = self._run.ledger.record.state
        if state != "running":
            raise RunEndedError(f"run {self._run.run_id} has ended as {state}", run=self._run.run_id)

    @contextmanager
    def explaining_fences(self) -> Iterator[None]:
        """Raise the errors of `require` in place of FencedError: the destination may tell a process first."""
        try:
            yield
        except FencedError as fenced:
            self.require()
            raise WalferryError(
                f"{fenced}. No process of this ledger has: another ledger has a stream of this name and source. End "
                "one of the two, or give it another name",
                **fenced.facts,
            ) from None

    def _attempts(self) -> int:
        phase = self._run.ledger.phases.find("stream")
        return phase.attempts if phase else 0
