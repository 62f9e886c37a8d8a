from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.replication_queues import Queue, SourceLoad, replication_queues, source_loads, waiting_files
from walferry.hbase.zookeeper import znode

LIVE, DEAD, DEADER = "rs-1,16020,1", "rs-2.x-y,16020,2", "rs-3,16020,3"


class Znodes:
    """Values of znodes by path; "" for one that only has children."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values
        self.asked: list[str] = []

    def children(self, path: str) -> list[str]:
        below = [one.removeprefix(f"{path}/") for one in self.values if one.startswith(f"{path}/")]
        return sorted({one.partition("/")[0] for one in below})

    def read(self, path: str) -> bytes | None:
        self.asked.append(path)
        return self.values.get(path)


def client_of(values: dict[str, bytes], **more: Any) -> tuple[Calls, Znodes]:
    nodes = Znodes(values)
    return cast(Calls, cast(Any, SimpleNamespace(zookeeper=nodes, **more))), nodes


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
    assert [queue.recovered for queue in replication_queues(client, ["p"])] == [False, True, False]


def test_files_of_bulk_loads_that_wait_are_counted_by_peer() -> None:
    client, _ = client_of({"replication/hfile-refs/p/one": b"", "replication/hfile-refs/p/two": b""})
    assert (waiting_files(client, "p"), waiting_files(client, "q")) == (2, 0)


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
