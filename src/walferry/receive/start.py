"""Opens the run that processes serve together."""

from __future__ import annotations

from walferry.clock import now_ms
from walferry.errors import UsageError
from walferry.ledger import Ledger, RunRecord
from walferry.receive.given import AnyReceiveSpec
from walferry.receive.place import side_of

FORGET_MS = 86_400_000
"""a process whose last heartbeat is older is no longer shown"""


def open_receive(ledger: Ledger, spec: AnyReceiveSpec, owner: str) -> RunRecord:
    """The unfinished run of the spec's name, which other processes may serve, or a new one of this owner.

    Processes that are long gone are forgotten, and what this one is about to make in ZooKeeper is recorded. Raises
    UsageError if an unfinished run of another kind has that name, or its spec is another one.
    """
    known = unfinished(ledger, spec.name)
    run = ledger.open_run(spec.name, known.owner if known else owner, spec.as_recorded(), owner, "receive")
    ledger.of(run.run_id).received.forget_receivers(now_ms() - FORGET_MS)
    ledger.of(run.run_id).objects.plan(side_of(spec), "sink", spec.path)
    return run


def unfinished(ledger: Ledger, name: str) -> RunRecord | None:
    """The unfinished run of that name; None if there is none. Raises UsageError if it is of another kind."""
    for run in ledger.runs():
        if (run.name, run.state) == (name, "running"):
            if run.kind != "receive":
                raise UsageError(
                    f"run {run.run_id}, of kind {run.kind}, has that name and is unfinished: choose another name, or "
                    f"end that run",
                    run=run.run_id,
                )
            return run
    return None
