"""Watch what a source replicates by itself, in a run of kind `replication`: look, say what is wrong, and record it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from walferry.amounts import first_of
from walferry.clock import duration, now_ms
from walferry.errors import WalferryError
from walferry.ledger import Ledger, PeerLook, RunLedger
from walferry.replication.canary import fly_all
from walferry.replication.finding import Finding
from walferry.replication.plan import ReplicationPlan, make_plan, stopped_peers
from walferry.replication.spec import (
    ResolvedReplicateSpec,
    parse_replicate_spec,
    recorded_replicate_spec,
    resolve_replicate,
)
from walferry.replication.status import PeerStatus, QueueStatus, ReplicationStatus, look
from walferry.replication.status_lines import summary, word
from walferry.run.given_spec import Connections
from walferry.run.notes.watched_replication import (
    Unseen,
    Watched,
    keep_canary,
    keep_plan,
    keep_unseen,
    keep_watched,
    kept_canary,
    kept_plan,
    unseen,
    watched,
)
from walferry.run.start import open_or_take_over

APART_S = 5.0
"""between the two looks at the queues, which show whether they move"""
CANARY_S = 60.0
"""that the last row of a canary may take"""
LATE_MS = 60_000
"""an edit that is not shipped for longer is told as catching up"""
MOST_QUEUES = 100
"""of a peer that the ledger keeps, the worst"""
MOST_FINDINGS = 500
SHOWN = 3
"""troubles that the cause of a state names"""

Event = Literal["gap", "replication"]


@dataclass(frozen=True)
class Trouble:
    """Something for which edits do not arrive. `key`: the same as long as it is the same trouble."""

    event: Event
    key: str
    text: str


@dataclass(frozen=True)
class Seen:
    """What one look has found. `looks`: nothing if the look failed."""

    troubles: tuple[Trouble, ...]
    looks: tuple[PeerLook, ...] = ()
    stops: int = 0
    """findings of the newest plan that stop edits"""
    canary_seconds: float | None = None
    """after which the last row of the newest canaries arrived; None: none was flown, or one has not arrived"""


def open_watch(ledger: Ledger, params: Mapping[str, Any], connections: Connections, owner: str) -> str:
    """Open a run for a spec given as a mapping, or give the unfinished run of that name to this owner. Returns its id.

    A key without a value (None) has its default. Raises UsageError for a spec that cannot be used, or that names other
    clusters than the unfinished run.
    """
    given = {key: value for key, value in params.items() if value is not None}
    spec = resolve_replicate(parse_replicate_spec(given, origin="params"), connections)
    return open_or_take_over(ledger, spec.name, spec.as_recorded(), owner, "replication")


def watch_once(ledger: RunLedger) -> Seen:
    """Look once at the queues and, when it is due, at the settings; record what is there. What cannot be looked at is
    told as a trouble. Raises UsageError for a spec that cannot be read, and the ledger's errors."""
    spec = recorded_replicate_spec(ledger.record)
    fault = ""
    try:
        _settings_and_canaries(ledger, spec)
    except WalferryError as error:
        fault = f"the settings cannot be looked at: {error}"
    try:
        status = look(spec, APART_S)
    except WalferryError as error:
        keep_unseen(ledger, str(error))
        found = unseen(ledger)
        assert found is not None
        return Seen((_unseen(found),))
    looks = tuple(peer_look(peer, status.looked_ms) for peer in status.peers)
    stops, flown = _stops(kept_plan(ledger)), kept_canary(ledger) if spec.canary else None
    blind = (Trouble("replication", "settings", fault),) if fault else ()
    troubles = (*troubles_of(status.peers, stops, flown, spec.max_lag), *blind)
    ledger.peer_looks.record(looks)
    keep_watched(ledger, watched_now(status, looks, troubles, spec, watched(ledger)), _plain(status.peers))
    return Seen(troubles, looks, len(stops), canary_seconds(flown))


def look_at_settings(ledger: RunLedger, spec: ResolvedReplicateSpec) -> ReplicationPlan:
    """Make a plan, and keep what it has found. Raises the errors of `make_plan`."""
    plan = make_plan(spec)
    keep_plan(
        ledger,
        {
            "at_ms": now_ms(), "source_version": plan.source_version, "source_cluster_id": plan.source_cluster_id,
            "peers": [asdict(peer) for peer in plan.peers],
            "findings": [asdict(one) for one in sorted(plan.findings, key=_worst_first)[:MOST_FINDINGS]],
            "better_replayed": plan.better_replayed,
        },
    )  # fmt: skip
    return plan


def _settings_and_canaries(ledger: RunLedger, spec: ResolvedReplicateSpec) -> None:
    """Do what is due: both each `plan_minutes`, and a plan with each look as long as something stops edits."""
    before = kept_plan(ledger)
    flies = spec.canary and _is_due(kept_canary(ledger), spec)
    if not (flies or _is_due(before, spec) or _stops(before)):
        return
    plan = look_at_settings(ledger, spec)
    if flies:
        flown = list(fly_all(spec, stopped_peers(plan), CANARY_S))
        keep_canary(ledger, {"at_ms": now_ms(), "flown": [asdict(one) for one in flown]})


def _is_due(kept: Mapping[str, Any] | None, spec: ResolvedReplicateSpec) -> bool:
    return kept is None or now_ms() - kept["at_ms"] >= spec.plan_minutes * 60_000


def _worst_first(finding: Finding) -> int:
    return ("stop", "warn", "note").index(finding.level)


def _stops(plan: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return [] if plan is None else [one for one in plan["findings"] if one["level"] == "stop"]


def canary_seconds(kept: Mapping[str, Any] | None) -> float | None:
    """After how many seconds the last row of the newest canaries arrived; None: none was flown, or one did not."""
    times = [row["seconds"] for one in (kept or {"flown": ()})["flown"] for row in one["arrivals"]]
    return None if not times or None in times else float(max(times))


def peer_look(peer: PeerStatus, looked_ms: int) -> PeerLook:
    """A peer's numbers. The age of its oldest edit is the most that it can be, if its logs were not read whole."""
    ages = [_oldest_ms(queue) for queue in peer.queues]
    known = [age for age in ages if age is not None]
    return PeerLook(
        peer.peer, looked_ms, max(known, default=0) if len(known) == len(ages) else None, peer.bytes,
        peer.pinned_bytes, peer.waiting_files, sum(len(queue.lost_logs) for queue in peer.queues),
        sum(queue.stuck for queue in peer.queues),
    )  # fmt: skip


def _oldest_ms(queue: QueueStatus) -> int | None:
    if queue.read_whole:
        return queue.age_ms or 0
    return None if queue.younger_than_ms is None else max(queue.age_ms or 0, queue.younger_than_ms)


def troubles_of(
    peers: Sequence[PeerStatus],
    stops: Sequence[Mapping[str, Any]],
    flown: Mapping[str, Any] | None,
    max_lag: int,
) -> Iterator[Trouble]:
    """For what edits do not arrive, the worst first: lost logs, queues that have not shipped an edit for `max_lag`
    seconds, findings of a plan, canaries. Rows are not named: not everybody who reads this may see them."""
    for peer in peers:
        for queue in peer.queues:
            for log in queue.lost_logs:
                yield Trouble("gap", f"peer {peer.peer}: {log}", f"peer {peer.peer}: log lost: HDFS has no {log}")
    for peer in peers:
        for queue in peer.queues:
            if queue.stuck and (queue.age_ms or 0) > max_lag * 1000:
                yield Trouble("replication", f"peer {peer.peer}: {queue.server} {queue.writer}", _of_queue(peer, queue))
    for stop in stops:
        text = f"{stop['subject']}: {stop['message']}"
        yield Trouble("replication", re.sub(r"\d+", "#", text), text)  # numbers differ from plan to plan
    for one in (flown or {"flown": ()})["flown"]:
        for row in one["arrivals"]:
            if row["seconds"] is None:
                where = f"canary of peer {one['peer']} from {row['server']}"
                yield Trouble("replication", where, f"the {where} {_why(row)}")


def _why(row: Mapping[str, Any]) -> str:
    return f"could not be written: {row['why']}" if row["why"] else f"has not arrived in {CANARY_S:g} s"


def _of_queue(peer: PeerStatus, queue: QueueStatus) -> str:
    edit = queue.oldest
    assert edit is not None
    writer = "" if queue.writer == queue.server else f" for {queue.writer}, which is dead,"
    causes = f": {'; '.join(queue.causes)}" if queue.causes else ""
    return (
        f"peer {peer.peer}: {queue.server}{writer} has not shipped an edit of {edit.table} for "
        f"{duration((queue.age_ms or 0) / 1000)} ({edit.file} at byte {edit.offset}){causes}"
    )


def _unseen(found: Unseen) -> Trouble:
    return Trouble("replication", "not looked at", found.describe())


def watched_now(
    status: ReplicationStatus,
    looks: Sequence[PeerLook],
    troubles: Collection[Trouble],
    spec: ResolvedReplicateSpec,
    before: Watched | None,
) -> Watched:
    """Whether edits arrive now."""
    ages = [one.oldest_age_ms for one in looks]
    known = [age for age in ages if age is not None]
    age = max(known, default=0) if len(known) == len(ages) else None
    state: Literal["gap", "stuck", "catching up", "following"] = "following"
    if any(one.event == "gap" for one in troubles):
        state = "gap"
    elif troubles:
        state = "stuck"
    elif age is None or age > LATE_MS:
        state = "catching up"
    since_ms = before.since_ms if before is not None and before.state == state else status.looked_ms
    cause = first_of([one.text for one in troubles], "; ", SHOWN) if troubles else _without_trouble(status, age)
    return Watched(
        status.looked_ms, spec.look_seconds, state, since_ms, cause, age, sum(one.unshipped_bytes for one in looks)
    )


def _without_trouble(status: ReplicationStatus, age_ms: int | None) -> str:
    ids = first_of([peer.peer for peer in status.peers])
    who = f"peer {ids} ships" if len(status.peers) == 1 else f"peers {ids} ship"
    if age_ms is None:
        return f"{who}; how old the oldest edit is that waits, could not be told: not all of the logs could be read"
    return f"{who}; {'nothing waits' if not age_ms else f'the oldest edit that waits is {duration(age_ms / 1000)} old'}"


def _plain(peers: Sequence[PeerStatus]) -> list[dict[str, Any]]:
    """The peers for the ledger, with the worst of their queues."""
    return [
        asdict(peer)
        | {
            "summary": summary(peer),
            "all_queues": len(peer.queues),
            "queues": [asdict(one) | {"word": word(one)} for one in peer.queues[:MOST_QUEUES]],
        }
        for peer in peers
    ]
