"""The fence: which logs must have left which queues before all that was written is shipped."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from walferry.errors import TransientError
from walferry.hbase.replication_queues import QueueNode
from walferry.hbase.zookeeper import Server
from walferry.replication import shipped
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Fence, Shipped, line, unqueued
from walferry.wal.files import Place, WalFile

ONE, TWO = Server("rs1", 16020, 1), Server("rs2", 16020, 2)


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
    """A source with one peer, whose queues and logs are what a test says at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: list[QueueNode], lost: Collection[str] = ()) -> None:
        self.looks, self.asked, self.refusal = list(looks), list[str](), ""
        self.lost = set(lost)
        self.now: list[QueueNode] = []
        for name, value in (
            ("require_readable_queues", lambda source: None), ("_enabled", lambda spec, source: ["p"]),
            ("queue_nodes", lambda source, peers: self.next()), ("waiting_files", lambda source, peer: []),
            ("list_wals", lambda files, root: self.wals()), ("look", self.no_causes), ("LOOK_SECONDS", 0),
            ("SETTLE_SECONDS", 0.05), ("ROLL_AGAIN_SECONDS", 0.05),
        ):  # fmt: skip
            monkeypatch.setattr(shipped, name, value)

    def next(self) -> list[QueueNode]:
        self.now = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return self.now

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
        return shipped.ship(cast(Any, None), cast(Any, self), cast(Any, None), "", wait_s)


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


def test_a_log_whose_file_is_lost_proves_nothing_even_if_it_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cluster(monkeypatch, BEFORE, lost=[name(ONE, 7)])
    with pytest.raises(NotReplicatedError, match=f"log lost: HDFS has no such file: {name(ONE, 7)}"):
        source.ship(60)
    assert source.asked == [], "nothing is rolled"


def test_a_peer_whose_queues_were_removed_has_not_shipped_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Cluster(monkeypatch, BEFORE, BEFORE, [])
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
