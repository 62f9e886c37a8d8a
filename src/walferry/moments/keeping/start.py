"""Start a run of kind `keep`: validate its spec and open its run in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.ledger import Ledger
from walferry.moments.keeping.keep_spec import ResolvedKeepSpec, parse_keep_spec, resolve_keep
from walferry.run.given_spec import Connections
from walferry.run.moved import accept_moved
from walferry.run.start import open_or_take_over


def start_keep(ledger: Ledger, params: Mapping[str, Any], connections: Connections, owner: str) -> str:
    """Open a run for a spec given as a mapping, or go on with the unfinished run of that name, which then belongs to
    this owner. Returns its id.

    A key without a value (None) has its default. Raises UsageError for a spec that cannot be used, also with the
    unfinished run, and RunBusyError while a live process works on that run for another owner.
    """
    given = {key: value for key, value in params.items() if value is not None}
    spec = resolve_keep(parse_keep_spec(given, origin="params"), connections)
    return open_or_take_over(ledger, spec.name, spec.as_recorded(), owner, "keep")


def open_keep(ledger: Ledger, spec: ResolvedKeepSpec, owner: str) -> str:
    """Open a run for a spec, or find the owner's unfinished one. Returns its id. Raises the errors of
    `accept_moved` and `open_run`."""
    accept_moved(ledger, spec.name, owner, spec.as_recorded(), owner, "keep")
    return ledger.open_run(spec.name, owner, spec.as_recorded(), owner, "keep").run_id
