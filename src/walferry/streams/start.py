"""Start a stream: validate its spec and open its run in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.ledger import Ledger
from walferry.run.given_spec import Connections
from walferry.run.moved import accept_moved
from walferry.run.start import open_or_take_over
from walferry.streams.stream_spec import ResolvedStreamSpec, parse_stream_spec, resolve_stream


def start_stream(ledger: Ledger, params: Mapping[str, Any], connections: Connections, owner: str) -> str:
    """Open a run for a stream's spec given as a mapping, or go on with the unfinished run of that name, which then
    belongs to this owner. Returns its id.

    A key without a value (None) has its default. Raises UsageError for a spec that cannot be used, also with the
    unfinished run, and RunBusyError while a live process works on that run for another owner.
    """
    given = {key: value for key, value in params.items() if value is not None}
    spec = resolve_stream(parse_stream_spec(given, origin="params"), connections)
    return open_or_take_over(ledger, spec.name, spec.as_recorded(), owner, "stream")


def open_stream(ledger: Ledger, spec: ResolvedStreamSpec, owner: str) -> str:
    """Open a run for a spec, or find the owner's unfinished one. Returns its id. Raises the errors of
    `accept_moved` and `open_run`."""
    accept_moved(ledger, spec.name, owner, spec.as_recorded(), owner, "stream")
    return ledger.open_run(spec.name, owner, spec.as_recorded(), owner, "stream").run_id
