"""Watch what a source replicates by itself, in a run of kind `replication`: look, say what is wrong, and record it."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from walferry.amounts import amount, first_of
from walferry.clock import duration, now_ms, steady_s
from walferry.errors import WalferryError
from walferry.ledger import Ledger, PeerLook, RunLedger
from walferry.replication.canary import Flown, fly_all
from walferry.replication.finding import NO_PEER, Finding, disabled, peer_subject
from walferry.replication.plan import ReplicationPlan, make_plan, stopped_peers
from walferry.replication.spec import (
    ResolvedReplicateSpec,
    parse_replicate_spec,
    recorded_replicate_spec,
    resolve_replicate,
)
from walferry.replication.status import PeerStatus, QueueStatus, look
from walferry.replication.status_lines import place, summary, word
from walferry.run.given_spec import Connections
from walferry.run.notes.watched_replication import (
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

log = logging.getLogger(__name__)

APART_S = 5.0
"""between the two looks at the queues, which show whether they move"""
CANARY_S = 60.0
"""that the last row of a canary may take"""
LATE_MS = 60_000
"""an edit that is not shipped for longer is told as catching up"""
AGAIN_S = 60.0
"""from a plan that has found something that stops edits to the next one, or 20 times as long as it took; from canaries
that were not flown to the next ones"""
MOST_QUEUES = 100
"""of a peer that the ledger keeps, the worst"""
MOST_FINDINGS = 500
MOST_NAMES = 20
"""of logs that the ledger keeps of a queue, or of servers of a peer"""
SHOWN = 3
"""troubles that the cause of a state names"""

Event = Literal["gap", "replication", "unwatched"]
State = Literal["gap", "stuck", "catching up", "following"]


@dataclass(frozen=True)
class Trouble:
    """Something for which edits do not arrive, or that nobody can see whether they do. `key`: the same as long as it is
    the same trouble."""

    event: Event
    key: str
    text: str


@dataclass(frozen=True)
class Seen:
    """What one look has found."""

    troubles: tuple[Trouble, ...]
    looked: bool = True
    """whether the queues could be looked at; if not, the troubles that they had are not known to be over"""
    looks: tuple[PeerLook, ...] = ()
    stops: int | None = None
    """findings of the newest plan that stop edits; None: the look failed"""
    canary_seconds: float | None = None
    """after which the last row of the newest canaries arrived; None: none was flown, or not all have arrived"""


def begin(ledger: Ledger, params: Mapping[str, Any], connections: Connections, owner: str) -> str:
    """Look at the settings of both clusters, then open a run for a spec given as a mapping, or give the unfinished run
    of that name to this owner. Returns its id.

    A key without a value (None) has its default. Raises UsageError for a spec that cannot be used, or that names other
    clusters than the unfinished run, RunBusyError while a process looks for another owner, and the errors of the
    source's client. An unfinished run is then left as it is.
    """
    given = {key: value for key, value in params.items() if value is not None}
    spec = resolve_replicate(parse_replicate_spec(given, origin="params"), connections)
    began = steady_s()
    plan = make_plan(spec)
    run_id = open_or_take_over(ledger, spec.name, spec.as_recorded(), owner, "replication")
    _keep_plan(ledger.of(run_id), plan, steady_s() - began)
    return run_id


def watch_once(ledger: RunLedger) -> Seen:
    """Look once at the queues and, when it is due, at the settings; record what is there. What cannot be looked at is
    told as a trouble. Raises UsageError for a spec that cannot be read, and the ledger's errors."""
    spec = recorded_replicate_spec(ledger.record)
    blind = _settings_and_canaries(ledger, spec)
    try:
        status = look(spec, APART_S)
    except Exception as error:  # whatever it is, the watch must not end by it
        keep_unseen(ledger, _told(error))
        found = unseen(ledger)
        assert found is not None
        return Seen((Trouble("unwatched", "queues", found.describe()),), looked=False)
    looks = tuple(peer_look(peer, status.looked_ms) for peer in status.peers)
    stops, flown = _stops(kept_plan(ledger)), kept_canary(ledger) if spec.canary else None
    troubles = (*troubles_of(status.peers, stops, flown, spec.max_lag), *blind)
    ledger.peer_looks.record(looks)
    now = watched_now(status.looked_ms, status.peers, looks, troubles, spec, watched(ledger))
    keep_watched(ledger, now, _plain(status.peers))
    return Seen(troubles, True, looks, len(stops), canary_seconds(flown))


def _told(error: Exception) -> str:
    """An error as people read it; one that nobody expected is also logged."""
    if isinstance(error, WalferryError):
        return str(error)
    log.exception("an unexpected error ended a look")
    return f"{type(error).__name__}: {error}"


# ------------------------------------------------------------------ settings and canaries


def _settings_and_canaries(ledger: RunLedger, spec: ResolvedReplicateSpec) -> list[Trouble]:
    """Do what is due: a plan and canaries each `plan_minutes`, sooner as long as something stops edits or canaries.
    Returns why something could not be done."""
    before = kept_plan(ledger)
    before_canary = kept_canary(ledger)
    kept_back = before_canary is not None and any(one["kept_back"] for one in before_canary["flown"])
    flies = spec.canary and _is_due(before_canary, AGAIN_S if kept_back else spec.plan_minutes * 60)
    soon = before is not None and _stops(before) and _is_due(before, max(AGAIN_S, 20 * before["took_s"]))
    if not (flies or soon or _is_due(before, spec.plan_minutes * 60)):
        return []
    began = steady_s()
    try:
        plan = make_plan(spec)
    except Exception as error:  # as in `watch_once`
        return [Trouble("unwatched", "settings", f"the settings cannot be looked at: {_told(error)}")]
    _keep_plan(ledger, plan, steady_s() - began)
    if not flies:
        return []
    flown: list[Flown] = []
    try:
        flown += fly_all(spec, stopped_peers(plan), CANARY_S)
    except Exception as error:  # likewise
        return [Trouble("unwatched", "canary", f"the canaries cannot be flown: {_told(error)}")]
    finally:
        keep_canary(ledger, {"at_ms": now_ms(), "flown": [asdict(one) for one in flown]})
    return []


def _is_due(kept: Mapping[str, Any] | None, seconds: float) -> bool:
    return kept is None or now_ms() - kept["at_ms"] >= seconds * 1000


def _keep_plan(ledger: RunLedger, plan: ReplicationPlan, took_s: float) -> None:
    keep_plan(
        ledger,
        {
            "at_ms": now_ms(), "took_s": took_s, "source_version": plan.source_version,
            "source_cluster_id": plan.source_cluster_id, "peers": [asdict(peer) for peer in plan.peers],
            "findings": [asdict(one) for one in sorted(plan.findings, key=_worst_first)[:MOST_FINDINGS]],
            "better_replayed": plan.better_replayed,
        },
    )  # fmt: skip


def _worst_first(finding: Finding) -> int:
    return ("stop", "warn", "note").index(finding.level)


def _stops(plan: Mapping[str, Any] | None) -> list[Finding]:
    return [] if plan is None else [Finding(**one) for one in plan["findings"] if one["level"] == "stop"]


def canary_seconds(kept: Mapping[str, Any] | None) -> float | None:
    """After how many seconds the last row of the newest canaries arrived; None: none was flown, or not all arrived."""
    flown = [] if kept is None else kept["flown"]
    times = [row["seconds"] for one in flown for row in one["arrivals"]]
    if not times or None in times or any(one["kept_back"] for one in flown):
        return None
    return float(max(times))


# ------------------------------------------------------------------ what a look has seen


def peer_look(peer: PeerStatus, looked_ms: int) -> PeerLook:
    """A peer's numbers. The age of its oldest edit is the most that it can be, if its logs were not read whole."""
    ages = [_oldest_ms(queue) for queue in peer.queues]
    known = [age for age in ages if age is not None]
    return PeerLook(
        peer.peer, looked_ms, max(known, default=0) if len(known) == len(ages) else None, peer.bytes,
        peer.pinned_bytes, peer.waiting_files, sum(len(queue.lost_logs) for queue in peer.queues),
        len({(queue.server, queue.writer) for queue in peer.queues if queue.stuck}),
    )  # fmt: skip


def _oldest_ms(queue: QueueStatus) -> int | None:
    if queue.read_whole:
        return queue.age_ms or 0
    return None if queue.younger_than_ms is None else max(queue.age_ms or 0, queue.younger_than_ms)


def troubles_of(
    peers: Sequence[PeerStatus], stops: Sequence[Finding], flown: Mapping[str, Any] | None, max_lag: int
) -> list[Trouble]:
    """For what edits do not arrive, the worst first: lost logs, queues that have not shipped an edit for `max_lag`
    seconds or may not have, settings, canaries. Rows are not named: not everybody who reads this may see them."""
    found = [
        *(trouble for peer in peers for queue in peer.queues for trouble in _of_logs(peer, queue)),
        *(trouble for peer in peers for queue in peer.queues for trouble in _of_queue(peer, queue, max_lag * 1000)),
        *(_of_finding(finding) for finding in _seen_settings(peers)),
        *(_of_finding(finding) for finding in stops if not _each_look_shows(finding)),
        *_of_canaries(flown, {stop.subject for stop in stops}),
    ]
    return list({(one.event, one.key): one for one in reversed(found)}.values())[::-1]


def _of_logs(peer: PeerStatus, queue: QueueStatus) -> Iterator[Trouble]:
    if lost := queue.lost_logs:
        text = f"{_where(peer, queue)}: {amount(len(lost), 'log')} lost: HDFS has no {first_of(lost)}"
        yield Trouble("gap", f"{_key(peer, queue)}: {lost[-1]}", text)


def _of_queue(peer: PeerStatus, queue: QueueStatus, max_ms: int) -> Iterator[Trouble]:
    key, where = _key(peer, queue), _where(peer, queue)
    causes = f": {'; '.join(queue.causes)}" if queue.causes else ""
    edit, age, bound = queue.oldest, queue.age_ms or 0, queue.younger_than_ms
    if edit is not None and queue.stuck and age > max_ms:
        at = f"{edit.file} at byte {edit.offset}"
        text = f"{where}: an edit of {edit.table} has not been shipped for {duration(age / 1000)} ({at}){causes}"
        yield Trouble("replication", key, text)
    elif peer.enabled and (queue.unjudged or (queue.perhaps_stuck and (bound is None or bound > max_ms))):
        yield Trouble("replication", key, f"{where}: perhaps nothing is shipped{causes}")


def _key(peer: PeerStatus, queue: QueueStatus) -> str:
    """With the group in any case: how a queue is shown depends on how many it has now."""
    return f"peer {peer.peer}: {queue.server} {queue.writer} {queue.group}"


def _where(peer: PeerStatus, queue: QueueStatus) -> str:
    return f"peer {peer.peer} at {place(queue, peer)}"


def _seen_settings(peers: Sequence[PeerStatus]) -> Iterator[Finding]:
    """What stops edits and each look shows, although a plan is due only later."""
    if not peers:
        yield NO_PEER
    for peer in peers:
        if peer.sink.fault is not None and peer.sink.proved:
            yield Finding("stop", peer_subject(peer.peer), f"its sink takes no changes: {peer.sink.fault}")
        if not peer.enabled:
            yield disabled(peer.peer)
        elif not peer.queues and peer.servers_without_queue:
            servers = first_of(peer.servers_without_queue)
            message = f"it has no queue: at {servers} hbase.replication may be off, or no log has been written yet"
            yield Finding("stop", peer_subject(peer.peer), message)


def _each_look_shows(finding: Finding) -> bool:
    """Whether a look knows better than the last plan."""
    return finding in (NO_PEER, disabled(finding.subject.removeprefix(peer_subject(""))))


def _of_finding(finding: Finding) -> Trouble:
    """The key is what the finding says before the details, which may differ from plan to plan: figures, errors."""
    gist = re.sub(r"\([^)]*\)", "(…)", finding.message.partition(": ")[0])
    return Trouble("replication", f"{finding.subject}: {gist}", f"{finding.subject}: {finding.message}")


def _of_canaries(flown: Mapping[str, Any] | None, stopped: Collection[str]) -> Iterator[Trouble]:
    for one in (flown or {"flown": ()})["flown"]:
        if one["kept_back"] and peer_subject(one["peer"]) not in stopped:
            text = f"no canary was flown: {one['kept_back']}"
            yield Trouble("replication", f"canary of peer {one['peer']}", text)
        for row in one["arrivals"]:
            if row["seconds"] is None:
                where = f"canary of peer {one['peer']} from {row['server']}"
                why = f"could not be written: {row['why']}" if row["why"] else f"has not arrived in {CANARY_S:g} s"
                yield Trouble("replication", where, f"the {where} {why}")


def watched_now(
    looked_ms: int,
    peers: Sequence[PeerStatus],
    looks: Sequence[PeerLook],
    troubles: Collection[Trouble],
    spec: ResolvedReplicateSpec,
    before: Watched | None,
) -> Watched:
    """Whether edits arrive now."""
    ages = [one.oldest_age_ms for one in looks]
    known = [age for age in ages if age is not None]
    age = max(known, default=0) if len(known) == len(ages) else None
    state: State = "following"
    if any(one.event == "gap" for one in troubles):
        state = "gap"
    elif troubles:
        state = "stuck"
    elif age is None or age > LATE_MS:
        state = "catching up"
    since_ms = before.since_ms if before is not None and before.state == state else looked_ms
    cause = first_of([one.text for one in troubles], "; ", SHOWN) if troubles else _without_trouble(peers, age)
    return Watched(looked_ms, spec.look_seconds, state, since_ms, cause, age, sum(one.unshipped_bytes for one in looks))


def _without_trouble(peers: Sequence[PeerStatus], age_ms: int | None) -> str:
    told = first_of([f"peer {peer.peer}: {_with_sink(peer)}" for peer in peers], ". ", SHOWN)
    if age_ms is None:
        return f"{told}; how old the oldest edit is that waits, could not be told"
    return f"{told}; the oldest edit that waits is {duration(age_ms / 1000)} old" if age_ms else told


def _with_sink(peer: PeerStatus) -> str:
    return summary(peer) if peer.sink.fault is None else f"{summary(peer)}; its cluster: {peer.sink.fault}"


def _plain(peers: Sequence[PeerStatus]) -> list[dict[str, Any]]:
    """The peers for the ledger, with the worst of their queues."""
    return [
        asdict(peer)
        | {
            "summary": summary(peer),
            "servers_without_queue": peer.servers_without_queue[:MOST_NAMES],
            "all_queues": len({(queue.server, queue.writer) for queue in peer.queues}),
            "not_listed": max(0, len(peer.queues) - MOST_QUEUES),
            "queues": [_plain_queue(queue, peer) for queue in peer.queues[:MOST_QUEUES]],
        }
        for peer in peers
    ]


def _plain_queue(queue: QueueStatus, peer: PeerStatus) -> dict[str, Any]:
    names = {"lost_logs": queue.lost_logs[:MOST_NAMES], "headless_logs": queue.headless_logs[:MOST_NAMES]}
    return asdict(queue) | names | {"word": word(queue), "place": place(queue, peer)}
