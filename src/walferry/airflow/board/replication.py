"""What is known about a source's own replication, as plain values for the page of its run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from walferry.airflow.board.hidden import ROW
from walferry.airflow.board.paging import page_of
from walferry.clock import now_ms
from walferry.ledger import PeerLook, RunLedger, RunRecord
from walferry.run.notes.watched_replication import kept_canary, kept_plan, watched, watched_peers

TREND_MS = 86_400_000
MOST_POINTS = 300
"""of a peer in the trend; more looks are combined to their worst"""
MOST_PEERS = 8
"""in the trend, those whose edits wait longest"""


def replication(
    ledger: RunLedger, run: RunRecord, queues: int, findings: int, size: int, *, rows: bool
) -> dict[str, Any] | None:
    """The peers and their trend, and a page each of their queues and of what the newest plan has found; None for a run
    of another kind. Without `rows`, the row that a queue waits at is hidden."""
    if run.kind != "replication":
        return None
    now, plan, peers = watched(ledger), kept_plan(ledger), watched_peers(ledger)
    every = [_queue(peer, queue, rows) for peer in peers for queue in peer["queues"]]
    found = [] if plan is None else plan["findings"]
    return {
        "looked_ms": None if now is None else now.looked_ms,
        "peers": [_peer(peer, plan) for peer in peers],
        "queues": page_of(every, queues, size) | {"not_listed": sum(p["not_listed"] for p in peers)},
        "plan_ms": None if plan is None else plan["at_ms"],
        "findings": page_of(found, findings, size) | {"stops": sum(one["level"] == "stop" for one in found)},
        "canary": _canary(kept_canary(ledger)),
        "trend": _trend(ledger.peer_looks.since(now_ms() - TREND_MS)),
    }


def _peer(peer: Mapping[str, Any], plan: Mapping[str, Any] | None) -> dict[str, Any]:
    planned = next((one for one in (plan or {"peers": ()})["peers"] if one["id"] == peer["peer"]), None)
    keys = (
        "peer", "serial", "summary", "bytes", "bytes_at_least", "pinned_bytes", "waiting_files", "all_queues",
        "servers_without_queue",
    )  # fmt: skip
    return {key: peer[key] for key in keys} | {
        "leads_to": peer["sink"]["address"],
        "fault": peer["sink"]["fault"],
        "replicates": None if planned is None else planned["replicates"],
    }


def _queue(peer: Mapping[str, Any], queue: Mapping[str, Any], rows: bool) -> dict[str, Any]:
    edit = queue["oldest"]
    if edit is not None and edit["row"] is not None and not rows:
        edit = edit | {"row": ROW}
    return {key: queue[key] for key in ("place", "word", "logs", "bytes", "age_ms", "causes")} | {
        "peer": peer["peer"], "oldest": edit, "read_whole": queue["read_whole"],
        "bytes_at_least": queue["bytes_at_least"],
    }  # fmt: skip


def _canary(kept: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if kept is None:
        return None
    return {
        "at_ms": kept["at_ms"],
        "rows": [{"peer": one["peer"], **row} for one in kept["flown"] for row in one["arrivals"]],
        "kept_back": [one["kept_back"] for one in kept["flown"] if one["kept_back"] is not None],
    }


def _trend(looks: Sequence[PeerLook]) -> list[dict[str, Any]]:
    """For each peer the age of its oldest edit and its bytes; of combined looks the most. An age that could not be told
    is a hole."""
    of_peer: dict[str, list[PeerLook]] = defaultdict(list)
    for look in looks:
        of_peer[look.peer].append(look)
    slowest = sorted(of_peer, key=lambda peer: -(of_peer[peer][-1].oldest_age_ms or 0))[:MOST_PEERS]
    return [{"peer": peer, **_points(of_peer[peer])} for peer in sorted(slowest)]


def _points(looks: Sequence[PeerLook]) -> dict[str, Any]:
    step = -(-len(looks) // MOST_POINTS)
    parts = [looks[at : at + step] for at in range(0, len(looks), step)]
    ages = [[one.oldest_age_ms for one in part if one.oldest_age_ms is not None] for part in parts]
    return {
        "at_ms": [part[-1].looked_ms for part in parts],
        "seconds": [max(known) / 1000 if known else None for known in ages],
        "bytes": [max(one.unshipped_bytes for one in part) for part in parts],
    }
