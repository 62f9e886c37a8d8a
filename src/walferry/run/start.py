"""Start a run: validate its spec and open it in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.errors import UsageError
from walferry.ledger import Ledger, RunRecord
from walferry.ledger.rows import RunKind
from walferry.run.given_spec import Connections, parse_spec, refuse_window, resolve
from walferry.run.heartbeat import require_idle
from walferry.run.moved import accept_moved
from walferry.run.spec import ResolvedSpec


def start_run(
    ledger: Ledger, params: Mapping[str, Any], connections: Connections, owner: str, kind: RunKind = "migration"
) -> str:
    """Open a run for a spec given as a mapping, or find the owner's unfinished run. Returns its id."""
    spec = _resolved(params, connections)
    accept_moved(ledger, spec.name, owner, spec.as_recorded(), owner, kind)
    return ledger.open_run(spec.name, owner, spec.as_recorded(), owner, kind).run_id


def continue_run(ledger: Ledger, run_id: str, params: Mapping[str, Any], connections: Connections, owner: str) -> str:
    """Hand an unfinished run over to another owner. Returns its id.

    Raises UsageError if the run has ended or its spec differs, and RunBusyError while a live process works on it.
    """
    spec = _resolved(params, connections)
    found = ledger.run(run_id)
    if found.name != spec.name or found.state != "running":
        raise UsageError(
            f"run {run_id} ({found.state}) cannot be continued as {spec.name!r}: give an unfinished run, and the "
            "fields that it was started with",
            run=run_id,
        )
    return hand_over(ledger, found, spec.as_recorded(), owner)


def open_or_take_over(ledger: Ledger, name: str, spec: Mapping[str, Any], owner: str, kind: RunKind) -> str:
    """Open a run for a spec as recorded, or give the unfinished run of that name and kind to this owner. Returns its
    id. Raises the errors of `hand_over`."""
    for run in ledger.runs():
        if (run.name, run.state, run.kind) == (name, "running", kind):
            return hand_over(ledger, run, spec, owner)
    return ledger.open_run(name, owner, spec, owner, kind).run_id


def hand_over(ledger: Ledger, run: RunRecord, spec: Mapping[str, Any], owner: str) -> str:
    """Give an unfinished run to an owner, with the spec as recorded. Returns its id.

    Raises UsageError if its spec differs in what a run keeps, and RunBusyError while a live process works on it for
    another owner.
    """
    if run.owner != owner:
        require_idle(ledger.of(run.run_id))
    accept_moved(ledger, run.name, run.owner, spec, owner, run.kind)
    found = ledger.open_run(run.name, run.owner, spec, owner, run.kind)
    ledger.adopt_run(found.run_id, owner, owner)
    return found.run_id


def _resolved(params: Mapping[str, Any], connections: Connections) -> ResolvedSpec:
    given = parse_spec(params, origin="params")
    refuse_window(given, "params")
    return resolve(given, connections)
