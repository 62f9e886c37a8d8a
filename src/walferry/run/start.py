"""Start a run: validate its spec and open it in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walferry.ledger import Ledger
from walferry.ledger.rows import RunKind
from walferry.run.spec import Connections, parse_spec, refuse_window, resolve


def start_run(params: Mapping[str, Any], connections: Connections, owner: str, kind: RunKind = "migration") -> str:
    """Open the run of a spec given as a mapping, or find the owner's unfinished one. Returns its id."""
    given = parse_spec(params, origin="params")
    refuse_window(given, "params")
    spec = resolve(given, connections)
    with Ledger.open() as ledger:
        return ledger.open_run(spec.name, owner, spec.as_recorded(), owner, kind).run_id
