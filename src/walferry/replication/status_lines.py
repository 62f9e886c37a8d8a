"""The status of replication as people read it."""

from __future__ import annotations

from collections.abc import Iterator

from walferry.amounts import amount
from walferry.clock import duration, iso
from walferry.replication.status import PeerStatus, QueueStatus, ReplicationStatus


def lines(status: ReplicationStatus) -> list[str]:
    """A line for each peer, the worst first, and below it those of its queues."""
    found = [f"source {status.source}: HBase {status.version}, cluster {status.cluster_id}"]
    if not status.peers:
        found.append("no replication peer leads to a cluster")
    return found + [line for peer in status.peers for line in _peer(peer)]


def _peer(peer: PeerStatus) -> Iterator[str]:
    serial = ", serial" if peer.serial else ""
    yield f"peer {peer.peer} to {peer.sink.address}{serial}: {_summary(peer)}"
    if peer.sink.fault is not None:
        yield f"  its cluster: {peer.sink.fault}"
    elif peer.sink.servers is not None:
        yield f"  its cluster: {peer.sink.cluster_id}, {amount(peer.sink.servers, 'region server')}"
    if peer.waiting_files:
        yield f"  {amount(peer.waiting_files, 'file')} of bulk loads not shipped"
    if peer.pinned_bytes:
        yield f"  only this peer keeps {_size(peer.pinned_bytes)} in oldWALs"
    for queue in peer.queues:
        yield from _queue(queue, peer)


def _summary(peer: PeerStatus) -> str:
    if not peer.enabled:
        return f"disabled: keeps {amount(peer.logs, 'log')}, {_size(peer.log_bytes)}"
    stuck = sum(queue.stuck for queue in peer.queues)
    if stuck:
        return f"{stuck} of {amount(len(peer.queues), 'queue')} stuck or slow; {_waiting(peer)}"
    if any(queue.oldest or not queue.read_whole for queue in peer.queues):
        return f"ships; {_waiting(peer)}"
    return "nothing waits" if peer.queues else "no queue"


def _waiting(one: PeerStatus | QueueStatus) -> str:
    least = "at least " if one.bytes_at_least else ""
    return f"{amount(one.logs, 'log')}, {least}{_size(one.bytes)} not shipped"


def _queue(queue: QueueStatus, peer: PeerStatus) -> Iterator[str]:
    facts = [_waiting(queue), _age(queue)]
    if queue.reported_lag_ms is not None:
        facts.append(f"lag by the server's own count {duration(queue.reported_lag_ms / 1000)}")
    if queue.moving is False:
        facts.append("not moving")
    elif queue.shipped_bytes:
        facts.append(f"{_size(queue.shipped_bytes)} shipped between the looks")
    if queue.catch_up_s is not None:
        facts.append(f"caught up in about {duration(queue.catch_up_s)} if nothing else is written")
    yield f"  {_state(queue, peer)}: {'; '.join(facts)}"
    for name in queue.missing_logs:
        yield f"    log missing: {name}"
    if queue.unreadable is not None:
        yield f"    log unreadable: {queue.unreadable}"
    if (edit := queue.oldest) is not None and (queue.stuck or not peer.enabled):
        families = f"{'family' if len(edit.families) == 1 else 'families'} {', '.join(edit.families)}"
        what = "a bulk load into" if edit.row is None else f"row '{edit.row}' of"
        yield (
            f"    waits: {what} {edit.table}, {families}, written {iso(edit.write_ms)}: "
            f"{edit.file} at byte {edit.offset}"
        )  # fmt: skip
    for cause in queue.causes:
        yield f"    cause: {cause}"


def _state(queue: QueueStatus, peer: PeerStatus) -> str:
    stuck = {None: "STUCK OR SLOW ", True: "SLOW ", False: "STUCK "}[queue.moving] if queue.stuck else ""
    if queue.state == "recovered":
        return f"{stuck}{queue.server}, for {queue.writer}, which is dead"
    return f"{stuck}{queue.server}{', which is dead' if queue.state == 'unclaimed' else ''}"


def _age(queue: QueueStatus) -> str:
    if queue.age_ms is not None:
        return f"oldest edit {duration(queue.age_ms / 1000)} old"
    if queue.read_whole:
        return "no edit waits"
    if queue.younger_than_ms is None:
        return "its oldest edit is not known"
    return f"no edit to ship in what was read; what follows is at most {duration(queue.younger_than_ms / 1000)} old"


def _size(count: int) -> str:
    return f"{count} bytes" if count < 100_000 else f"{count / 1e6:.1f} MB"
