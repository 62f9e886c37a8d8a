"""Which process may work on a phase that lasts until a person ends the run: the one that began it last."""

from __future__ import annotations

from walferry.errors import WalferryError
from walferry.run.run import LogRun, RunEndedError


class TakenOverError(WalferryError):
    """Another process of the ledger has begun the phase, and this one ends; fact `run`."""


class Turn:
    """This attempt's right to work on a phase, which it loses once the run has ended or another process has begun the
    phase."""

    def __init__(self, run: LogRun, phase: str) -> None:
        self._run, self._phase = run, phase
        self._attempt = self._attempts()

    def require(self) -> None:
        """Raise TakenOverError or RunEndedError if it is lost."""
        run = self._run
        if self._attempts() != self._attempt:
            raise TakenOverError(
                f"another process has taken over {run.run_id}: this one ends, and what it had not finished is left to "
                "that one",
                run=run.run_id,
            )
        state = run.ledger.record.state
        if state != "running":
            raise RunEndedError(f"run {run.run_id} has ended as {state}", run=run.run_id)

    def _attempts(self) -> int:
        found = self._run.ledger.phases.find(self._phase)
        return found.attempts if found else 0
