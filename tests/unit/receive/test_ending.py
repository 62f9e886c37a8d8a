"""After the end of a run that receives: what is removed in ZooKeeper, and what is said of the source's peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unit.migration.setup.memory_cluster import MemoryCluster
from unit.receive.two_clusters import KAFKA_KEYS
from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import ConnectionFailedError
from walferry.hbase.peers import add_disabled_peer
from walferry.ledger import Ledger
from walferry.receive import ending, receive_plan
from walferry.receive.ending import clear, look_at_source
from walferry.receive.kafka_spec import ResolvedKafkaReceiveSpec
from walferry.receive.place import receive_run
from walferry.receive.presence import ForeignPathError, StillShownError
from walferry.receive.start import open_receive
from walferry.run.receive_spec import ResolvedReceiveSpec
from walferry.run.run import Run

PATH = "/walferry/receive/east"
NAME = f"sink {PATH} at the target"
ELSEWHERE = {"zookeeper": "north:2181", "webhdfs": "http://north:1", "rootdir": "hdfs://north:1/hbase"}
MakeSpec = Callable[..., ResolvedReceiveSpec]


class Nodes:
    """The target's ZooKeeper: what happens to each attempt to remove the nodes; afterwards, they are gone."""

    def __init__(self) -> None:
        self.attempts: list[Any] = []
        self.tried = 0

    def remove(self, address: ClusterAddress, path: str) -> None:
        self.tried += 1
        assert (address.zookeeper, path) == ("east:2181", PATH)
        if self.attempts:
            raise self.attempts.pop(0)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes()
    monkeypatch.setattr(ending, "remove", made.remove)
    monkeypatch.setattr(ending, "LOOK_S", 0.01)
    return made


@pytest.fixture
def run(ledger: Ledger, spec: ResolvedReceiveSpec) -> Iterator[Run]:
    with Run(ledger, open_receive(ledger, spec, "kim").run_id) as opened:
        yield opened


def ended(run: Run) -> Run:
    run.ledger.end("aborted", "kim")
    return run


def states(run: Run) -> list[str]:
    return [item.state for item in run.ledger.objects.all()]


def test_it_waits_until_the_processes_have_left(run: Run, nodes: Nodes) -> None:
    nodes.attempts = [StillShownError("rs1 may still receive")] * 3
    assert clear(ended(run)).removed == [NAME]
    assert (nodes.tried, states(run)) == (4, ["removed"])


def test_after_some_seconds_it_names_who_is_left_and_what_to_call(
    run: Run, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LEAVING_S", 0.05)
    nodes.attempts = [StillShownError("rs1 may still receive")] * 1000
    done = clear(ended(run))
    assert (done.removed, done.left) == (
        [], [f"{NAME}: rs1 may still receive. Then call `walferry abort east-1` again"],
    )  # fmt: skip
    assert states(run) == ["planned"]
    nodes.attempts = []
    assert clear(run).removed == [NAME]


def test_a_zookeeper_that_does_not_answer_is_not_asked_twice(run: Run, nodes: Nodes) -> None:
    nodes.attempts = [TransientError("east:2181 does not answer")]
    done = clear(ended(run))
    assert done.left == [f"{NAME}: east:2181 does not answer. Once that is mended, call `walferry abort east-1` again"]
    assert nodes.tried == 1


def test_what_is_removed_is_not_looked_for_again(run: Run, nodes: Nodes) -> None:
    clear(ended(run))
    assert (clear(run).removed, nodes.tried) == ([], 1)


def test_a_path_of_somebody_else_is_named_only_if_a_process_had_its_place_there(run: Run, nodes: Nodes) -> None:
    nodes.attempts = [ForeignPathError("not made by walferry")]
    run.ledger.objects.made("target", "sink", PATH)
    assert clear(ended(run)).left == [f"{NAME}: not made by walferry"]


def test_a_path_at_which_the_run_was_refused_is_none_of_its_own(run: Run, nodes: Nodes) -> None:
    nodes.attempts = [ForeignPathError("not made by walferry")]
    assert clear(ended(run)).left == []
    assert states(run) == ["removed"]


def test_a_dry_run_removes_nothing(run: Run, nodes: Nodes) -> None:
    assert clear(run, dry_run=True).removed == [NAME]
    assert (nodes.tried, states(run)) == (0, ["planned"])


def test_what_another_run_receives_at_stays(
    run: Run, nodes: Nodes, ledger: Ledger, spec: ResolvedReceiveSpec, make_spec: MakeSpec
) -> None:
    ended(run)
    elsewhere = make_spec(name="other", receive={"path": PATH}, target=ELSEWHERE)
    assert open_receive(ledger, elsewhere, "kim").run_id == "other-1"
    assert clear(run, dry_run=True).removed == [NAME]
    assert open_receive(ledger, spec, "kim").run_id == "east-2"
    done = clear(run)
    assert (done.removed, done.stays, nodes.tried) == ([], [f"{NAME}: run east-2 receives there"], 0)
    ledger.of("east-2").end("aborted", "kim")
    assert clear(run).removed == [NAME]


def test_each_peer_that_leads_to_the_run_has_its_command(
    run: Run, source: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "HBaseClient", lambda address: source)
    assert look_at_source(run).warnings() == []
    for name, key in (("other", "east:2181:/hbase"), ("mine", f"east:2181:{PATH}")):
        add_disabled_peer(source, name, pb.ReplicationPeer(clusterkey=key))  # type: ignore[arg-type]
    (warning,) = look_at_source(run).warnings()
    assert "peer mine leads to this run" in warning
    assert "remove_peer 'mine'" in warning


def test_a_silent_source_is_told_and_stops_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(client: object) -> list[object]:
        raise ConnectionFailedError("west does not answer")

    monkeypatch.setattr(receive_plan, "peer_configs", silent)
    (warning,) = look_at_source(run).warnings()
    assert "is not known: west does not answer" in warning
    assert "remove_peer 'ID'" in warning


def test_each_process_records_its_place_before_it_makes_it(ledger: Ledger, spec: ResolvedReceiveSpec) -> None:
    run = ledger.of(open_receive(ledger, spec, "kim").run_id)
    run.objects.made("target", "sink", PATH)
    run.objects.removed("target", "sink", PATH)
    open_receive(ledger, spec, "kim")
    assert [(item.name, item.state) for item in run.objects.all()] == [(PATH, "planned")]


def test_of_a_run_without_a_target_the_nodes_are_removed_where_its_spec_says(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[tuple[str, str]] = []
    monkeypatch.setattr(ending, "remove", lambda address, path: removed.append((address.zookeeper, path)))
    for zookeeper, place in ((None, "west:2181"), ("zk:1", "zk:1")):
        spec = ResolvedKafkaReceiveSpec.model_validate(KAFKA_KEYS | {"receive": {"zookeeper": zookeeper}})
        with receive_run(ledger, open_receive(ledger, spec, "kim")) as run:
            run.ledger.end("aborted", "kim")
            name = f"sink /walferry/receive/topics in ZooKeeper at {place}"
            assert (clear(run, dry_run=True).removed, removed) == ([name], [])
            assert clear(run).removed == [name]
            assert removed.pop() == (place, "/walferry/receive/topics")
            assert [item.state for item in run.ledger.objects.all()] == ["removed"]
