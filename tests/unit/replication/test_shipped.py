"""The fence: which logs must have left which queues before all that was written is shipped."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.peers import PeerConfig
from walferry.hbase.replication_queues import QueueNode
from walferry.hbase.zookeeper import Server
from walferry.replication import shipped
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Fence, Shipped, line, unqueued, written
from walferry.wal.files import Place, WalFile

ONE, TWO, DEAD = (Server(f"rs{n}", 16020, n) for n in (1, 2, 3))
ALL = pb.ReplicationPeer(clusterkey="zk:2181:/hbase", replicate_all=True)


def name(server: Server, number: int, wal: str = "") -> str:
    return f"{server.name.replace(',', '%2C')}{wal}.{number}"


def node(server: Server, *logs: str, holder: Server | None = None, created: int = 1) -> QueueNode:
    """The queue of a server, or what another one has claimed of it."""
    if holder is None:
        return QueueNode("p", server.name, "p", created, logs)
    return QueueNode("p", holder.name, f"p-{server.name}", created, logs)


BEFORE = [node(ONE, name(ONE, 7), name(ONE, 10)), node(TWO, name(TWO, 9))]
FENCE = Fence.of("p", 0, BEFORE, ())


def left(*nodes: QueueNode) -> list[str]:
    return [log for logs in FENCE.left(nodes).values() for log in logs]


def test_what_was_in_the_queues_is_left_and_what_was_begun_since_is_not() -> None:
    assert left(*BEFORE) == [name(ONE, 7), name(ONE, 10), name(TWO, 9)]
    assert left(node(ONE, name(ONE, 10), name(ONE, 11)), node(TWO, name(TWO, 12))) == [name(ONE, 10)]
    assert left(node(ONE, name(ONE, 11)), node(TWO, name(TWO, 12))) == []


def test_the_log_that_was_written_at_the_roll_is_before_the_fence() -> None:
    assert left(node(ONE, name(ONE, 11)), node(TWO, name(TWO, 9), name(TWO, 12))) == [name(TWO, 9)]


def test_a_log_is_left_under_whichever_server_its_queue_is_now() -> None:
    claimed = node(TWO, name(TWO, 9), name(TWO, 12), holder=ONE)
    assert list(FENCE.left([node(ONE, name(ONE, 11)), claimed])) == [claimed]
    assert left(node(ONE, name(ONE, 11)), node(TWO, name(TWO, 12), holder=ONE)) == []


@pytest.mark.parametrize("holder", [None, TWO], ids=["unclaimed", "claimed"])
def test_the_queue_of_a_server_that_was_dead_at_the_roll_is_waited_for(holder: Server | None) -> None:
    dead = Server("rs3", 16020, 3)
    fence = Fence.of("p", 0, [*BEFORE, node(dead, name(dead, 4), holder=holder)], ())
    assert list(fence.left([node(dead, name(dead, 4), holder=ONE)]).values()) == [[name(dead, 4)]]


def test_each_wal_of_a_server_has_its_own_logs() -> None:
    first, second = ".regiongroup-0", ".regiongroup-1"
    fence = Fence.of("p", 0, [node(ONE, name(ONE, 5, first), name(ONE, 8, second))], ())
    rolled = node(ONE, name(ONE, 9, first), name(ONE, 8, second))
    assert fence.left([rolled]) == {rolled: [name(ONE, 8, second)]}


def test_a_server_may_write_before_the_fence_while_the_newest_log_of_any_of_its_groups_is_left() -> None:
    first, second = ".regiongroup-0", ".regiongroup-1"
    half = node(ONE, name(ONE, 5, first), name(ONE, 9, first), name(ONE, 8, second))
    assert written(half, [name(ONE, 5, first), name(ONE, 8, second)])
    assert not written(half, [name(ONE, 5, first)])
    assert not written(node(DEAD, name(DEAD, 4), holder=ONE), [name(DEAD, 4)]), "nobody writes to a dead server's log"


def test_other_peers_queues_do_not_count() -> None:
    other = QueueNode("q", ONE.name, "q", 1, (name(ONE, 7),))
    assert left(other) == []
    assert Fence.of("q", 0, [*BEFORE, other], ()).logs == {name(ONE, 7)}


def test_a_live_servers_queue_that_is_gone_or_another_one_is_told() -> None:
    both = {ONE.name, TWO.name}
    assert FENCE.removed(BEFORE, both) == []
    assert FENCE.removed([node(ONE, name(ONE, 11), created=2), node(TWO, name(TWO, 9))], both) == [ONE.name]
    assert FENCE.removed([node(ONE, name(ONE, 11))], both) == [TWO.name]


def test_a_queue_that_goes_since_it_is_claimed_or_was_a_claimed_one_is_not() -> None:
    assert FENCE.removed([node(ONE, name(ONE, 11)), node(TWO, name(TWO, 9), holder=ONE)], {ONE.name}) == []
    claimed = Fence.of("p", 0, [node(ONE, name(ONE, 7)), node(TWO, name(TWO, 9), holder=ONE)], ())
    assert claimed.removed([node(ONE, name(ONE, 11))], {ONE.name}) == []


def wal(server: Server, number: int, place: Place = Place.LIVE) -> WalFile:
    text = name(server, number)
    return WalFile(text, text.rpartition(".")[0], server.name, number, text, place, 0)


@pytest.mark.parametrize(
    ("listed", "missing"),
    [
        ([wal(ONE, 10), wal(TWO, 9)], []),
        ([wal(ONE, 8), wal(TWO, 9)], []),  # it has rolled since
        ([wal(ONE, 11)], [name(ONE, 11)]),
        ([wal(Server("rs3", 16020, 3), 1)], [name(Server("rs3", 16020, 3), 1)]),
        ([wal(Server("rs4", 16020, 4), 1)], []),  # it is dead
        ([wal(ONE, 11, Place.ARCHIVED)], []),
    ],
)
def test_a_live_servers_log_that_is_in_no_queue_is_told(listed: list[WalFile], missing: list[str]) -> None:
    found = unqueued("p", BEFORE, listed, [ONE, TWO, Server("rs3", 16020, 3)])
    assert [one.split(" has its log ")[1].split(":")[0] for one in found] == missing


class Cluster:
    """A source whose queues and logs are what a test says at each look, or that fails; with one peer, or several."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *looks: list[QueueNode] | TransientError, lost: Collection[str] = ()
    ) -> None:
        self.looks, self.asked, self.refusal = list(looks), list[str](), ""
        self.lost, self.peers, self.told = set(lost), ["p"], list[str]()
        self.now: list[QueueNode] = []
        for name, value in (
            ("require_readable_queues", lambda source: None),
            ("peer_configs", lambda source: [PeerConfig.of(one, True, ALL) for one in self.peers]),
            ("queue_nodes", lambda source, peers: self.next()), ("waiting_files", lambda source, peer: []),
            ("list_wals", lambda files, root: self.wals()), ("look", self.no_causes), ("LOOK_SECONDS", 0),
            ("SETTLE_SECONDS", 0.05), ("ROLL_AGAIN_SECONDS", 0.05),
        ):  # fmt: skip
            monkeypatch.setattr(shipped, name, value)

    def next(self) -> list[QueueNode]:
        seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(seen, TransientError):
            raise seen
        self.now = seen
        return seen

    def wals(self) -> list[WalFile]:
        names = {log for node in self.now for log in node.logs} - self.lost
        return [WalFile(one, one.rpartition(".")[0], "", 1, one, Place.ARCHIVED, 0) for one in names]

    def no_causes(self, spec: Any, stuck_ms: int) -> Any:
        raise TransientError("the name node is away")

    def servers(self) -> list[Server]:
        return [ONE, TWO]

    def roll_wal(self, server: Server, *, attempts: int) -> None:
        self.asked.append(server.name)
        if self.refusal:
            raise TransientError(self.refusal)

    def ship(self, wait_s: float) -> list[Shipped]:
        spec = cast(Any, SimpleNamespace(peer=None))
        return shipped.ship(spec, cast(Any, self), cast(Any, None), "", wait_s, told=self.told.append)


ROLLED = [node(ONE, name(ONE, 11)), node(TWO, name(TWO, 12))]


def test_it_is_shipped_once_no_queue_has_a_log_from_before_the_roll(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cluster(monkeypatch, BEFORE, BEFORE, [ROLLED[0], BEFORE[1]], ROLLED)
    (one,) = source.ship(60)
    assert (one.queues, one.logs) == (2, 3)
    assert source.asked[:2] == [ONE.name, TWO.name]


def test_a_server_that_does_not_roll_is_asked_again_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cluster(monkeypatch, BEFORE, BEFORE, [ROLLED[0], BEFORE[1]])
    source.refusal = "it does not answer"
    with pytest.raises(NotReplicatedError) as refused:
        source.ship(0.5)
    assert str(refused.value) == (
        f"not shipped in 0.5 s: peer p: {TWO.name} has not shipped {name(TWO, 9)}: its log is not rolled: it does not "
        "answer; its cause could not be looked for: the name node is away"
    )
    assert source.asked.count(TWO.name) > 1


def test_a_server_that_has_gone_on_is_not_asked_again_while_its_older_logs_or_a_dead_ones_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claimed = node(DEAD, name(DEAD, 4), holder=ONE)
    stuck = [node(ONE, name(ONE, 7), name(ONE, 10), name(ONE, 11)), BEFORE[1], claimed]
    source = Cluster(monkeypatch, [*BEFORE, claimed], [*BEFORE, claimed], stuck)
    with pytest.raises(NotReplicatedError):
        source.ship(0.5)
    assert source.asked.count(ONE.name) == 1
    assert source.asked.count(TWO.name) > 1


@pytest.mark.parametrize(("stays_s", "again_s"), [(0.06, 0.05), (0.01, 0.15)])
def test_a_server_of_which_the_same_logs_stay_for_long_is_asked_a_few_times_more(
    monkeypatch: pytest.MonkeyPatch, stays_s: float, again_s: float
) -> None:
    """An idle one may keep its older log in the queue until it reads something of the next one."""
    idle = [node(ONE, name(ONE, 7), name(ONE, 11)), ROLLED[1]]
    source = Cluster(monkeypatch, BEFORE, BEFORE, idle)
    monkeypatch.setattr(shipped, "STAYS_SECONDS", stays_s)
    monkeypatch.setattr(shipped, "ROLL_AGAIN_SECONDS", again_s)
    with pytest.raises(NotReplicatedError, match="not shipped in 1 s"):
        source.ship(1)
    assert source.asked.count(ONE.name) == 1 + shipped.STAYS_ROLLS
    assert source.asked.count(TWO.name) == 1


def test_causes_are_those_of_the_groups_whose_logs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (f".regiongroup-{n}" for n in range(3))
    logs = [name(ONE, 5, first), name(ONE, 8, second), name(ONE, 9, third)]
    queue = node(ONE, *logs)
    new = node(ONE, *logs[:2], *(name(ONE, 20, group) for group in (first, second, third)))
    source = Cluster(monkeypatch, [queue], [queue], [new])
    causes = {first: ("table t is missing",), second: ("table t is missing", "log lost"), third: ("unknown",)}
    queues = [
        SimpleNamespace(server=ONE.name, writer=ONE.name, group=name(ONE, 1, group).rpartition(".")[0], causes=why)
        for group, why in causes.items()
    ]
    found = SimpleNamespace(peers=[SimpleNamespace(peer="p", queues=queues)])
    monkeypatch.setattr(shipped, "look", lambda spec, stuck_ms: found)
    with pytest.raises(NotReplicatedError) as refused:
        source.ship(0.2)
    assert str(refused.value).endswith(f"{logs[0]} (and 1 more): table t is missing; log lost")


def test_what_is_left_is_told_once_for_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [*BEFORE, QueueNode("q", ONE.name, "q", 1, (name(ONE, 10),)), QueueNode("q", TWO.name, "q", 1, ())]
    rolled = [*ROLLED, QueueNode("q", ONE.name, "q", 1, ()), both[-1]]
    source = Cluster(monkeypatch, both, both, both, both, rolled)
    source.peers = ["p", "q"]
    source.ship(60)
    assert source.told == [
        "peer p: 2 of 2 queues left, 3 logs", "peer q: 1 of 2 queues left, 1 log",
        "peer p: 0 of 2 queues left, 0 logs", "peer q: 0 of 2 queues left, 0 logs",
    ]  # fmt: skip


def test_looks_that_fail_see_nothing_and_the_next_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    election = TransientError("ZooKeeper elects its leader")
    source = Cluster(monkeypatch, BEFORE, election, election, BEFORE, election, ROLLED)
    assert len(source.ship(60)) == 1
    assert source.told.count("the queues cannot be looked at: ZooKeeper elects its leader") == 1


def test_looks_that_fail_until_the_time_is_over_end_with_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cluster(monkeypatch, BEFORE, BEFORE, TransientError("ZooKeeper elects its leader"))
    with pytest.raises(TransientError, match="elects its leader"):
        source.ship(0.2)


def test_a_log_whose_file_is_lost_proves_nothing_even_if_it_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cluster(monkeypatch, BEFORE, lost=[name(ONE, 7)])
    with pytest.raises(NotReplicatedError, match=f"log lost: HDFS has no such file: {name(ONE, 7)}"):
        source.ship(60)
    assert source.asked == [], "nothing is rolled"


def test_a_peer_whose_queues_were_removed_has_not_shipped_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cluster(monkeypatch, BEFORE, BEFORE, [])
    with pytest.raises(NotReplicatedError, match="peer p was removed meanwhile"):
        source.ship(60)


@pytest.mark.parametrize("others", [[], ["q"]], ids=["the only one", "beside another"])
def test_a_peer_that_is_removed_meanwhile_has_not_shipped_what_its_queues_had(
    monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    """HBase removes the peer first, and its queues one server after another."""
    source = Cluster(monkeypatch, BEFORE, BEFORE, ROLLED)
    source.peers = ["p", *others]
    monkeypatch.setattr(source, "roll_wal", lambda server, attempts: setattr(source, "peers", others))
    with pytest.raises(NotReplicatedError, match="peer p was removed meanwhile"):
        source.ship(60)


def test_people_read_what_was_waited_for() -> None:
    one = Shipped("east", 1_700_000_000_000, 1_700_000_004_200, 2, 3, 0)
    assert line(one) == (
        "peer east: all that was written before 2023-11-14T22:13:20Z is shipped: 3 logs in 2 queues, after 4.2 s"
    )
    assert line(Shipped("east", 0, None, 1, 1, 2)) == (
        "peer east: the log of each region server would be rolled, and 1 log in 1 queue and 2 files of bulk loads "
        "waited for"
    )
