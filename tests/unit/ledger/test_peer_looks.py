"""Looks at replication peers, in both databases."""

from __future__ import annotations

import pytest

from walferry.errors import UsageError
from walferry.ledger import Ledger, PeerLook
from walferry.ledger.peer_looks import KEPT_MS

SPEC = {"name": "east", "tables": []}


def look(peer: str, at_ms: int, age_ms: int | None = 0) -> PeerLook:
    return PeerLook(peer, at_ms, age_ms, 5, 4, 3, 2, 1)


def test_looks_are_found_again_from_a_moment_on_and_forgotten_after_a_month(ledger: Ledger) -> None:
    run = ledger.of(ledger.open_run("east", "me", SPEC, "me", "replication").run_id)
    other = ledger.of(ledger.open_run("west", "me", SPEC | {"name": "west"}, "me", "replication").run_id)
    other.peer_looks.record([look("2", 1)])
    run.peer_looks.record([look("2", 10, None), look("1", 10)])
    run.peer_looks.record([])
    run.peer_looks.record([look("1", 20)])
    assert run.peer_looks.since(10) == [look("1", 10), look("2", 10, None), look("1", 20)]
    assert run.peer_looks.since(11) == [look("1", 20)]
    run.peer_looks.record([look("1", KEPT_MS + 11)])
    assert [one.looked_ms for one in run.peer_looks.since(0)] == [20, KEPT_MS + 11]
    assert other.peer_looks.since(0) == [look("2", 1)]
    run.end("aborted", "me")
    with pytest.raises(UsageError, match="has ended"):
        run.peer_looks.record([look("1", 30)])
