"""The status of replication as people read it."""

from __future__ import annotations

from collections.abc import Iterator

from walferry.amounts import amount, first_of
from walferry.clock import duration, iso
from walferry.replication.finding import families_text
from walferry.replication.status import PeerStatus, QueueStatus, ReplicationStatus


def lines(status: ReplicationStatus) -> list[str]:
    """A line for each peer, the worst first, and below it those of its queues."""
    found = [f"source {status.source}: HBase {status.version}, cluster {status.cluster_id}"]
    if not status.peers:
        found.append("no replication peer leads to a cluster")
    return found + [line for peer in status.peers for line in _peer(peer)]


def _peer(peer: PeerStatus) -> Iterator[str]:
    serial = ", serial" if peer.serial else ""
    yield f"peer {peer.peer} to {peer.sink.address}{serial}: {summary(peer)}"
    if peer.sink.fault is not None:
        yield f"  its cluster: {peer.sink.fault}"
    elif peer.sink.servers is not None:
        version = f"HBase {peer.sink.version}, " if peer.sink.version else ""
        silent = f"; its master does not answer: {peer.sink.master_fault}" if peer.sink.master_fault else ""
        servers = amount(peer.sink.servers, "region server")
        yield f"  its cluster: {version}{peer.sink.cluster_id}, {servers}{silent}"
    if peer.pinned_bytes:
        yield f"  only this peer keeps {_size(peer.pinned_bytes)} in oldWALs"
    if peer.servers_without_queue:
        where = first_of(peer.servers_without_queue)
        yield f"  no queue at {where}: hbase.replication may be off there, or it has written no log yet"
    for queue in peer.queues:
        yield from _queue(queue, peer)


def summary(peer: PeerStatus) -> str:
    """A peer in one clause: what is wrong, or that it ships, or that nothing waits."""
    facts = list(_troubles(peer))
    files = [f"{amount(peer.waiting_files, 'file')} of bulk loads not shipped"] if peer.waiting_files else []
    if not peer.enabled:
        facts.append(f"disabled: keeps {amount(peer.logs, 'log')}, {_size(peer.log_bytes)}")
    elif facts:
        facts.append(_waiting(peer))
    elif any(queue.oldest or not queue.read_whole for queue in peer.queues):
        still = all(queue.moving is False for queue in peer.queues if queue.oldest or not queue.read_whole)
        facts += ["nothing shipped between the looks" if still else "ships", _waiting(peer)]
    elif not peer.queues and peer.servers_without_queue:
        facts.append("no queue")
    elif not files:
        facts.append("nothing waits")
    return "; ".join([*facts, *files])


def _troubles(peer: PeerStatus) -> Iterator[str]:
    """How many queues are not as they should be; each counts once, as the worst of its groups."""
    lost = sum(len(queue.lost_logs) for queue in peer.queues)
    stuck = {_whole(queue) for queue in peer.queues if queue.stuck}
    perhaps = {_whole(queue) for queue in peer.queues if queue.perhaps_stuck} - stuck
    unjudged = {_whole(queue) for queue in peer.queues if queue.unjudged} - stuck - perhaps
    every = amount(len(set(map(_whole, peer.queues))), "queue")
    if lost:
        yield f"{amount(lost, 'log')} lost"
    if stuck:
        yield f"{len(stuck)} of {every} stuck or slow"
    if perhaps:
        yield f"{len(perhaps)} of {every} perhaps stuck"
    if unjudged:
        yield f"{amount(len(unjudged), 'queue')} could not be judged"


def _whole(queue: QueueStatus) -> tuple[str, str]:
    """The queue of which this is a group."""
    return queue.server, queue.writer


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
    yield f"  {f'{word(queue)} {place(queue, peer)}'.strip()}: {'; '.join(facts)}"
    if (edit := queue.oldest) is not None and (queue.stuck or not peer.enabled):
        what = "a bulk load into" if edit.row is None else f"row '{edit.row}' of"
        yield (
            f"    waits: {what} {edit.table}, {families_text(edit.families)}, written {iso(edit.write_ms)}: "
            f"{edit.file} at byte {edit.offset}"
        )  # fmt: skip
    for cause in queue.causes:
        yield f"    cause: {cause}"


def word(queue: QueueStatus) -> str:
    """What is wrong with a queue; "" if nothing is."""
    words = ["LOG LOST"] if queue.lost_logs else []
    if queue.stuck:
        words.append({None: "STUCK OR SLOW", True: "SLOW", False: "STUCK"}[queue.moving])
    elif queue.perhaps_stuck:
        words.append("PERHAPS STUCK")
    elif queue.unjudged:
        words.append("NOT JUDGED")
    return ", ".join(words)


def place(queue: QueueStatus, peer: PeerStatus) -> str:
    """Whose logs a queue has: the region server that ships them, the dead one that wrote them, and their group if the
    queue has several."""
    where = queue.server
    if queue.state == "recovered":
        where += f", for {queue.writer}, which is dead"
    elif queue.state == "unclaimed":
        where += ", which is dead"
    several = sum(_whole(one) == _whole(queue) for one in peer.queues) > 1
    return f"{where}, group {queue.group}" if several else where


def _age(queue: QueueStatus) -> str:
    if queue.age_ms is not None:
        known = f"oldest edit {duration(queue.age_ms / 1000)} old"
    elif not queue.read_whole:
        known = "no edit to ship in what was read"
    else:
        known = "no edit waits in the logs that are there" if queue.lost_logs else "no edit waits"
    if queue.read_whole:
        return known
    if queue.younger_than_ms is None:
        return f"{known}; how old what follows is, is not known"
    return f"{known}; what follows is at most {duration(queue.younger_than_ms / 1000)} old"


def _size(count: int) -> str:
    return f"{count} bytes" if count < 100_000 else f"{count / 1e6:.1f} MB"
