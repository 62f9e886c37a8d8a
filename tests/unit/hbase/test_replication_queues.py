from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import replication_queues as queues_module
from walferry.hbase.calls import Calls
from walferry.hbase.replication_queues import (
    Queue,
    SourceLoad,
    queue_nodes,
    replication_queues,
    source_loads,
    waiting_files,
)
from walferry.hbase.zookeeper import Children, znode

QUEUES = "replication/rs"
LIVE, DEAD, DEADER = "rs-1,16020,1", "rs-2.x-y,16020,2", "rs-3,16020,3"


class Znodes:
    """Values of znodes by path; "" for one that only has children."""

    hosts = "zk:2181"

    def __init__(self, values: dict[str, bytes], then: Callable[[str, int], None] = lambda path, count: None) -> None:
        self.values = values
        self.asked: list[str] = []
        self.listed: list[str] = []
        self.changes: dict[str, int] = {}
        self.then = then
        """called after each listing with its path, and how many there were"""

    def catch_up(self, path: str) -> None:
        assert not self.listed

    def children(self, path: str) -> list[str]:
        below = [one.removeprefix(f"{path}/") for one in self.values if one.startswith(f"{path}/")]
        names = sorted({one.partition("/")[0] for one in below})
        self.listed.append(path)
        self.then(path, len(self.listed))
        return names

    def children_at(self, path: str) -> Children | None:
        changes = self.changes.get(path, 0)
        names = self.children(path)
        return Children(tuple(names), 7, (changes, changes)) if names else None

    def read(self, path: str) -> bytes | None:
        self.asked.append(path)
        return self.values.get(path)

    def move(self, holder: str, queue_id: str, claimer: str) -> None:
        """As HBase claims a queue."""
        old, new = f"{QUEUES}/{holder}/{queue_id}", f"{QUEUES}/{claimer}/{queue_id}-{holder}"
        for path in [one for one in self.values if one.startswith(f"{old}/")]:
            self.values[path.replace(old, new)] = self.values.pop(path)
        for server in (holder, claimer):
            path = f"{QUEUES}/{server}"
            self.changes[path] = self.changes.get(path, 0) + 1


def client_of(values: dict[str, bytes], **more: Any) -> tuple[Calls, Znodes]:
    nodes = Znodes(values)
    return cast(Calls, cast(Any, SimpleNamespace(zookeeper=nodes, **more))), nodes


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues_module, "PAUSE_SECONDS", 0)


@pytest.mark.parametrize("when", range(1, 12))
@pytest.mark.parametrize(("dead", "claimer"), [(LIVE, DEADER), (DEADER, LIVE)])
def test_a_queue_that_is_claimed_while_the_queues_are_read_is_found_whenever_that_is(
    when: int, dead: str, claimer: str
) -> None:
    """Servers are read by name, so a queue may move from one that is read later to one that was read before. Nothing
    happens to the list of servers, as long as other queues of the dead one wait to be claimed."""
    client, nodes = client_of({f"{QUEUES}/{one}/{peer}/{one}.1": b"" for one in (LIVE, DEADER) for peer in "pq"})
    nodes.then = lambda path, count: nodes.move(dead, "p", claimer) if count == when else None
    found = queue_nodes(client, ["p"])
    assert sorted(name for node in found for name in node.logs) == [f"{LIVE}.1", f"{DEADER}.1"]
    assert {node.writer for node in found} == {LIVE, DEADER}


def test_a_queue_that_is_copied_and_not_moved_is_waited_for() -> None:
    """1.x without `useMulti` locks the dead server, copies log by log, then deletes."""
    client, nodes = client_of({f"{QUEUES}/{DEADER}/p/d.1": b"", f"{QUEUES}/{DEADER}/lock": b""})

    def unlock(path: str, count: int) -> None:
        if count == 10:
            nodes.move(DEADER, "p", LIVE)
            del nodes.values[f"{QUEUES}/{DEADER}/lock"]

    nodes.then = unlock
    (node,) = queue_nodes(client, ["p"])
    assert (node.holder, node.writer, node.logs) == (LIVE, DEADER, ("d.1",))


def test_a_lock_of_a_claimer_that_died_is_named_with_what_to_do() -> None:
    client, _ = client_of({f"{QUEUES}/{DEADER}/p/d.1": b"", f"{QUEUES}/{DEADER}/lock": b""})
    with pytest.raises(TransientError, match=f"{QUEUES}/{DEADER}/lock, .* If that is dead, delete the lock"):
        queue_nodes(client, ["p"])


def test_a_lock_of_a_server_without_a_queue_of_these_peers_does_not_count() -> None:
    client, _ = client_of({f"{QUEUES}/{one}": b"" for one in (f"{DEADER}/q/d.1", f"{DEADER}/lock", f"{LIVE}/p/a.1")})
    assert [node.logs for node in queue_nodes(client, ["p"])] == [("a.1",)]


def test_queues_that_move_all_the_time_are_an_error() -> None:
    """One lock after another is no lock that stays."""
    client, nodes = client_of({f"{QUEUES}/{one}/p/d.1": b"" for one in (LIVE, DEADER)} | {f"{QUEUES}/{LIVE}/lock": b""})

    def next_lock(path: str, count: int) -> None:
        if path == QUEUES:
            locked, free = (LIVE, DEADER) if f"{QUEUES}/{LIVE}/lock" in nodes.values else (DEADER, LIVE)
            nodes.values[f"{QUEUES}/{free}/lock"] = nodes.values.pop(f"{QUEUES}/{locked}/lock")

    nodes.then = next_lock
    with pytest.raises(TransientError, match="move from server to server"):
        queue_nodes(client, ["p"])


def test_queues_tell_writer_and_holder_and_how_far_the_oldest_log_of_each_group_is_shipped() -> None:
    own, taken = f"replication/rs/{LIVE}/p", f"replication/rs/{LIVE}/p-{DEAD}-{DEADER}"
    position = znode(pb.ReplicationHLogPosition(position=77))
    client, nodes = client_of(
        {
            f"{own}/a.9": position, f"{own}/a.10": b"", f"{own}/b.5": b"", f"{taken}/c.1": position,
            f"replication/rs/{LIVE}/other/a.9": position, f"replication/rs/{DEADER}/p/d.7": b"",
        }
    )  # fmt: skip
    assert replication_queues(client, ["p"]) == [
        Queue("p", LIVE, LIVE, {"a": ("a.9", "a.10"), "b": ("b.5",)}, {"a": 77, "b": 0}),
        Queue("p", LIVE, DEAD, {"c": ("c.1",)}, {"c": 77}),
        Queue("p", DEADER, DEADER, {"d": ("d.7",)}, {"d": 0}),
    ]
    assert not any("a.10" in path or "other" in path for path in nodes.asked)
    nodes.listed.clear()
    assert [queue.recovered for queue in replication_queues(client, ["p"])] == [False, True, False]


def test_files_of_bulk_loads_that_wait_are_named_by_peer() -> None:
    client, _ = client_of({"replication/hfile-refs/p/one": b"", "replication/hfile-refs/p/two": b""})
    assert (waiting_files(client, "p"), waiting_files(client, "q")) == (["one", "two"], [])


def test_a_server_of_before_2_5_reports_no_queue() -> None:
    server = pb.ServerName(host_name="rs-1", port=16020, start_code=1)

    def load(peer: str, **more: Any) -> pb.ReplicationLoadSource:
        return pb.ReplicationLoadSource(
            peerID=peer, ageOfLastShippedOp=1, sizeOfLogQueue=2, timeStampOfLastShippedOp=0, replicationLag=9, **more
        )

    loads = [load("p"), load("p-rs-2,1,1", queueId="p-rs-2,1,1", running=False)]
    live = pb.LiveServerInfo(server=server, server_load=pb.ServerLoad(replLoadSource=loads))
    status = pb.ClusterStatus(live_servers=[live])
    client, _ = client_of({}, master_call=lambda *_: pb.GetClusterStatusResponse(cluster_status=status))
    assert source_loads(client) == [
        SourceLoad(LIVE, "p", None, 9),
        SourceLoad(LIVE, "p", "p-rs-2,1,1", 9),
    ]
