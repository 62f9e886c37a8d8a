"""What a pass says of a pair that a replication peer feeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from unit.migration.pair_ledger import REGION, differs, one_pass, region
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import new_table
from walferry.hbase.peers import PeerConfig
from walferry.hbase.versions import release_of
from walferry.ledger import Ledger, PassDifference
from walferry.migration.pairs import pair_regions, pair_shipping
from walferry.migration.pairs.pair_findings import new_differences, pass_facts, pass_line, require_judged, told
from walferry.migration.pairs.pair_pass import open_pair
from walferry.migration.pairs.pair_rows import PairRead
from walferry.migration.pairs.pair_shipping import (
    LEAST_SECONDS,
    NOT_LOOKED_AT,
    Shipping,
    peer_faults,
    proved_before,
    proved_now,
    unnamed_back,
)
from walferry.migration.sides.digest import RangePair
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Shipped
from walferry.run.notes.last_pass import verdict
from walferry.run.pair_spec import ResolvedPairSpec
from walferry.run.progress.state import state_of
from walferry.run.run import Run

TARGET = SPEC["target"] | {"zookeeper": "127.0.0.1:2", "rootdir": "hdfs://127.0.0.1:2/there"}
ROLLED_MS = 1_700_000_000_000
STUCK = "not shipped in 60 s: peer east: rs1 has not shipped log.7: table t is disabled at the sink: enable it"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    spec = ResolvedPairSpec.model_validate(SPEC | {"peer": "east", "max_lag": 30})
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        with_clusters = Run(ledger, open_pair(ledger, spec, "test", 7).run_id)
        with_clusters.__dict__.update(source=None, wal_files=None, wal_root="/hbase")
        yield with_clusters


@pytest.fixture
def both_ways(tmp_path: Path) -> Iterator[Run]:
    """The same, and the target feeds the source by its peer `west`."""
    keys = {"target": TARGET, "peer": "east", "peer_back": "west", "max_lag": 30}
    with Ledger.open(f"sqlite:///{tmp_path / 'both.db'}", actor="test") as ledger:
        opened = Run(ledger, open_pair(ledger, ResolvedPairSpec.model_validate(SPEC | keys), "test", 7).run_id)
        opened.__dict__.update(source=None, wal_files=None, target=None, target_wal_files=None)
        yield opened


class Ships:
    """What `ship` was asked for, and does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> None:
        self.outcomes, self.waits = list(outcomes), list[float]()
        monkeypatch.setattr(pair_shipping, "ship", self.ship)

    def ship(self, spec: Any, source: Any, files: Any, root: str, wait_s: float) -> Sequence[Shipped]:
        """The target's peer rolls a second later."""
        assert root == {"east": "/hbase", "west": "/there"}[spec.peer]
        assert spec.source.zookeeper == (SPEC["source"] if spec.peer == "east" else TARGET)["zookeeper"]
        self.waits.append(wait_s)
        if why := self.outcomes.pop(0):
            raise NotReplicatedError(why)
        rolled_ms = ROLLED_MS + (1000 if spec.peer == "west" else 0)
        return [Shipped(spec.peer, rolled_ms, rolled_ms + 1000, 2, 2, 0)]


def test_a_pass_tells_what_its_peer_had_shipped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ships = Ships(monkeypatch, "")
    shipping = Shipping(run, {})
    assert shipping.facts() == {}, "nothing had to be shipped"
    shipping.ship()
    assert ships.waits == [LEAST_SECONDS]
    facts = shipping.facts()
    assert facts == {
        "peer": "east", "rolled_ms": ROLLED_MS, "shipped_ms": ROLLED_MS + 1000, "queues": 2, "logs": 2, "files": 0,
        "peer_back": None, "back": None, "why": "",
    }  # fmt: skip
    assert told_line(run, facts).endswith("; peer east had shipped all that was written before 2023-11-14T22:13:20Z")


def test_where_both_clusters_have_clients_both_peers_ship(both_ways: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ships = Ships(monkeypatch, "", "")
    shipping = Shipping(both_ways, {})
    shipping.ship()
    assert len(ships.waits) == 2
    assert told_line(both_ways, shipping.facts()).endswith(
        "; peer east had shipped all that was written before 2023-11-14T22:13:20Z, and peer west back before "
        "2023-11-14T22:13:21Z"
    )


def test_what_waits_at_the_target_alone_leaves_rows_unjudged_too(
    both_ways: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ships(monkeypatch, "", STUCK)
    shipping = Shipping(both_ways, {})
    shipping.ship()
    assert shipping.facts() == {"peer": "east", "peer_back": "west", "why": f"back to the source: {STUCK}"}
    assert shipping.proofs == []


def test_a_pass_that_cannot_judge_says_so_and_why_and_waits_only_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ships = Ships(monkeypatch, STUCK)
    shipping = Shipping(run, {})
    shipping.ship()
    shipping.ship()
    assert len(ships.waits) == 1
    line = told_line(run, shipping.facts(), replace(differs(b"a"), state="under way"))
    assert line.startswith("pass 1: not judged: 1 row differs; ")
    assert line.endswith(f"; NOT JUDGED: {STUCK}")
    line = told_line(run, shipping.facts(), differs(b"a"), replace(differs(b"b"), state="under way"))
    assert line.startswith("pass 2: 1 row differs, 1 other is not judged; ")
    (made,) = run.ledger.passes.latest(1)
    assert verdict(made) == f"pass 2: 1 row differs, 1 other is not judged: {STUCK}"
    line = told_line(run, shipping.facts())  # all rows were equal in the end
    assert line.startswith("pass 3: equal; ")
    assert "JUDGED" not in line


def test_a_peer_that_stops_after_it_was_seen_to_ship_is_no_proof(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reader needs rows shipped that were written after the first proof."""
    Ships(monkeypatch, "", STUCK)
    shipping = Shipping(run, {})
    shipping.ship()
    shipping.ship()
    assert shipping.facts() == {"peer": "east", "peer_back": None, "why": STUCK}


def test_rows_that_differ_although_all_is_shipped_can_be_repaired_by_a_command(run: Run) -> None:
    one_pass(run.ledger, differs(b"a"), shipped=PROOF)
    run.ledger.phases.start("pass")
    run.ledger.phases.finish("pass", {})
    state = state_of(run.ledger)
    assert (state.name, state.cause) == ("differing", "pass 1: 1 row differs")
    assert state.next_step.endswith("`walferry repair move` makes the target's rows equal")


def told_line(run: Run, shipped: dict[str, Any], *rows: PassDifference) -> str:
    return pass_line(pass_facts(one_pass(run.ledger, *rows, shipped=shipped)))


def test_rows_that_no_list_has_are_under_way_and_no_news_until_a_pass_can_judge_them(run: Run) -> None:
    for judged, differing, under_way in ((False, 0, 7), (True, 7, 0)):
        current = run.ledger.passes.begin(1)
        position = run.ledger.passes.keep_position(current, {}, {}, 1, 100, 3)
        crowded = region(unnamed=7, number=current.number, position=position)
        run.ledger.passes.record(current, [crowded], [])
        done = run.ledger.passes.finish(current, {(REGION.table, REGION.region)}, {} if judged else {"why": STUCK})
        assert (done.differing_rows, done.under_way_rows) == (differing, under_way)
        assert new_differences(run.ledger) is judged
        told(run.ledger)
    assert not new_differences(run.ledger)


def test_the_peer_of_a_recorded_pair_is_read_with_its_spec(run: Run) -> None:
    assert Shipping(run, {}).peer == "east"
    assert run.spec.as_recorded()["peer"] == "east"


def test_rows_of_a_region_that_are_only_counted_are_not_judged_even_once_all_is_shipped(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether they are the same rows as before the roll."""
    Ships(monkeypatch, "")
    current = run.ledger.passes.begin(1)
    position = run.ledger.passes.keep_position(current, {}, {}, 1, 100, 3)
    crowded = region(unnamed=9, number=current.number, position=position)
    run.ledger.passes.record(current, [crowded], [])
    read = PairRead(SimpleNamespace(rows=(), differing=7), 7, 70, False)  # type: ignore[arg-type]
    address = ClusterAddress("zk:1")
    whole = RangePair(address, address, "t", "t", "", b"", b"", {})
    monkeypatch.setattr(pair_regions, "_table_pair", lambda *_: (whole, False))
    monkeypatch.setattr(pair_regions, "fan_out", lambda *_, what: [read])
    shipping = Shipping(run, {})
    pair_regions.settle(run, None, current, shipping)
    done = run.ledger.passes.finish(current, {(REGION.table, REGION.region)}, shipping.facts())
    assert (done.differing_rows, done.under_way_rows) == (0, 7)
    facts = pass_facts(done)
    assert pass_line(facts).endswith(
        "; peer east had shipped all that was written before 2023-11-14T22:13:20Z; NOT JUDGED: more than 1,000 rows "
        "of a region of t differ, and only so many are followed cell by cell"
    )
    with pytest.raises(NotReplicatedError, match="pair move: 7 rows differ and are not judged: more than 1,000 rows"):
        require_judged("move", facts)
    state = state_of(run.ledger)
    assert (state.name, state.next_step[:22]) == ("stuck", "let the peer catch up,")


# ---- what earlier passes have proved


PROOF = {"peer": "east", "rolled_ms": ROLLED_MS, "why": ""}


def test_a_pass_that_is_resumed_knows_which_rows_were_proved_before_it(run: Run) -> None:
    """Its first attempt has replaced them in the ledger."""
    under_way, unknown = replace(differs(b"w"), state="under way"), replace(differs(b"u"), detail=NOT_LOOKED_AT)
    one_pass(run.ledger, differs(b"a"), under_way, unknown, shipped=PROOF)
    current = run.ledger.passes.begin(1)
    proved = {("t", b"a"): differs(b"a").detail}
    assert proved_before(run, current) == proved
    run.ledger.passes.record(current, [replace(REGION, number=current.number)], [replace(under_way, row=b"a")])
    current = run.ledger.passes.begin(2)
    assert proved_before(run, current) == proved
    run.ledger.passes.finish(current, {(REGION.table, REGION.region)}, {})
    assert proved_before(run, run.ledger.passes.begin(1)) == {}, "the pass has found the row under way"


def test_rows_that_differed_before_a_peer_was_named_are_not_proved(run: Run) -> None:
    one_pass(run.ledger, differs(b"a"))
    assert proved_before(run, run.ledger.passes.begin(1)) == {}


def test_what_one_peer_has_proved_is_not_proved_for_two(run: Run, both_ways: Run) -> None:
    """With the first alone, what waited at the target was taken for a difference."""
    for of, proved in ((run, {("t", b"a"): differs(b"a").detail}), (both_ways, {})):
        one_pass(of.ledger, differs(b"a"), shipped=PROOF)
        assert proved_now(of) == proved


# ---- peers that do not feed the pair


@pytest.mark.parametrize(
    ("scope", "leads_to", "found"),
    [("1", "here", "west"), ("1", None, "west"), ("1", "elsewhere", None), ("0", "here", None)],
)
def test_a_peer_of_the_target_that_may_feed_the_source_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, scope: str, leads_to: str | None, found: str | None
) -> None:
    every = PeerConfig.of("west", False, pb.ReplicationPeer(clusterkey="zk:1:/hbase", replicate_all=True))
    monkeypatch.setattr(pair_shipping, "peer_configs", lambda _: [every])
    monkeypatch.setattr(pair_shipping, "cluster_id_at", lambda _: leads_to)
    here = source()
    here.cluster_id = lambda: "here"
    run.__dict__.update(source=here, target=source(scope=scope))
    assert unnamed_back(run) == found


@pytest.mark.parametrize(
    ("scope", "version", "faults"),
    [
        ("1", "2.5.10", []),
        (
            "0",
            "2.5.10",
            ["the family f of shop:orders has REPLICATION_SCOPE 0 at the target, so no peer replicates it"],
        ),
        ("1", "3.0.0", ["nobody can tell what peer west has shipped: the target is HBase 3.0.0, which keeps"]),
    ],
)
def test_the_peer_back_to_the_source_must_replicate_the_same(
    both_ways: Run, monkeypatch: pytest.MonkeyPatch, scope: str, version: str, faults: list[str]
) -> None:
    every = pb.ReplicationPeer(clusterkey="zk:1:/hbase", replicate_all=True)
    monkeypatch.setattr(pair_shipping, "peer_configs", lambda _: [PeerConfig.of(of, True, every) for of in PEERS])
    monkeypatch.setattr(pair_shipping, "cluster_id_at", lambda address: address)
    monkeypatch.setattr(pair_shipping, "keyed_address", lambda key, near: OTHER[near.zookeeper])
    here, there = source(), source(version, scope)
    here.cluster_id, there.cluster_id = lambda: "here", lambda: "there"
    both_ways.__dict__.update(source=here, target=there)
    found = peer_faults(both_ways)
    assert [one[: len(fault)] for one, fault in zip(found, faults, strict=True)] == faults


PEERS = ("east", "west")
OTHER = {SPEC["source"]["zookeeper"]: "there", TARGET["zookeeper"]: "here"}
"""the id of the cluster that each one's peers lead to"""


def source(version: str = "2.5.10", scope: str = "1") -> Any:
    return SimpleNamespace(
        version=lambda: version, release=release_of(version), address=lambda: None,
        describe=lambda name: new_table(name, {"f": {"REPLICATION_SCOPE": scope}}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("client", "fault"),
    [
        (source(), None),
        (source(scope="0"), "the family f of shop:orders has REPLICATION_SCOPE 0 at the source, so no peer replicates"),
        (source("3.0.0"), "nobody can tell what peer east has shipped: the source is HBase 3.0.0, "),
    ],
)
def test_a_pair_is_refused_whose_source_does_not_replicate_a_family_or_hides_its_queues(
    run: Run, monkeypatch: pytest.MonkeyPatch, client: Any, fault: str | None
) -> None:
    peer = PeerConfig.of("east", True, pb.ReplicationPeer(clusterkey="zk:1:/hbase", replicate_all=True))
    monkeypatch.setattr(pair_shipping, "peer_configs", lambda _: [peer])
    monkeypatch.setattr(pair_shipping, "cluster_id_at", lambda _: "there")
    monkeypatch.setattr(pair_shipping, "keyed_address", lambda *_: None)
    run.__dict__.update(source=client, target=SimpleNamespace(cluster_id=lambda: "there"))
    faults = peer_faults(run)
    assert [one[: len(fault or "")] for one in faults] == ([fault] if fault else [])
