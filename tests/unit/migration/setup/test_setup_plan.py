"""What a setup refuses, all at once, and what it would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from unit.migration.setup.conftest import KEYS, TABLE, setup_run
from unit.migration.setup.memory_cluster import MemoryCluster
from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.descriptors import table_name
from walferry.hbase.peers import PINNING_ENDPOINT, add_disabled_peer
from walferry.hbase.versions import release_of
from walferry.ledger import Ledger
from walferry.migration.plan import Plan, TablePlan
from walferry.migration.planning.finding import Finding
from walferry.migration.setup import setup_plan
from walferry.migration.setup.put_back import put_back
from walferry.migration.setup.setting import set_scopes
from walferry.migration.setup.setup_plan import SetupPlan, examine, require
from walferry.run.setup_spec import ResolvedSetupSpec

KEPT = Finding("refuse", "protect", "no peer can keep the log. `protect: stage` needs no peer")


@dataclass
class Two:
    """Source and target, and what is found of them."""

    source: MemoryCluster
    target: MemoryCluster

    def examine(self, ledger: Ledger | None = None, **keys: Any) -> SetupPlan:
        return examine(ResolvedSetupSpec.model_validate(KEYS | keys), ledger, 24)

    def refusals(self, ledger: Ledger | None = None, **keys: Any) -> list[str]:
        found = self.examine(ledger, **keys)
        return [f"{one.subject}: {one.message}" for one in found.found.findings if one.level == "refuse"]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Two:
    both = Two(MemoryCluster("here"), MemoryCluster("there"))
    both.source.add(TABLE, d="0", e="1")
    plan = Plan("1.7.2", "1.7.2", "here", "there", [], [TablePlan(TABLE, TABLE, 2, 5_000_000, 0, ["d", "e"], [])], 0, 0,
                [KEPT])  # fmt: skip
    monkeypatch.setattr(setup_plan, "make_plan", lambda spec, keep_hours: plan)
    clusters = {"127.0.0.1:1": both.source, "there:2181": both.target}
    monkeypatch.setattr(setup_plan, "HBaseClient", lambda address: clusters[address.zookeeper])
    return both


def add(cluster: MemoryCluster, peer: str, *tables: str, endpoint: str = "") -> None:
    config = pb.ReplicationPeer(clusterkey="x:1:/h", replicationEndpointImpl=endpoint)
    config.table_cfs.extend(pb.TableCF(table_name=table_name(name)) for name in tables)
    add_disabled_peer(cluster, peer, config)  # type: ignore[arg-type]


def test_the_steps_are_told_in_order_and_what_it_costs(two: Two) -> None:
    found = two.examine(bandwidth=7)
    require(found)
    assert [step.partition(" ")[0] for step in found.steps] == ["set", "add", "roll", "take", "enable", "compare"]
    assert found.steps[0].startswith(f"set REPLICATION_SCOPE 1 of d, e of {TABLE} (now 0 in 1 of them)")
    notes = " ".join(found.notes)
    assert "not SERIAL" in notes
    assert "at most 7 bytes per second" in notes
    assert "hbase.replication.bulkload.enabled is not true" in notes


def test_a_peer_back_and_serial_are_told_too(two: Two) -> None:
    assert any("add peer west at the target" in step for step in two.examine(peer_back="west").steps)
    assert [text for text in two.refusals(serial=True) if "knows no SERIAL" in text]


def test_all_that_is_wrong_is_refused_at_once(two: Two) -> None:
    two.source.site = {"hbase.replication": "false"}
    two.source.may_change = False
    add(two.source, "east", "other")
    refused = two.refusals(families={TABLE: ["d", "x"]})
    assert [text.partition(": ")[0] for text in refused] == ["source", "source", "source", TABLE]
    told = " ".join(refused)
    for part in ("hbase.replication is false", "cannot be changed now", "has a peer east already", "no family x"):
        assert part in told
    with pytest.raises(UsageError) as error:
        require(two.examine(families={TABLE: ["x"]}))
    assert len(error.value.facts["refusals"]) == 4


@pytest.mark.parametrize(
    ("endpoint", "tables", "refused"),
    [
        ("", [], True),
        ("an.Indexer", [], True),
        ("", [TABLE], True),
        ("", ["other"], False),
        (PINNING_ENDPOINT, [], True),
    ],
)
def test_any_other_peer_that_would_begin_to_ship_a_table_is_refused(
    two: Two, endpoint: str, tables: list[str], refused: bool
) -> None:
    add(two.source, "other", *tables, endpoint=endpoint)
    told = [text for text in two.refusals() if "would begin to ship d as well" in text]
    assert bool(told) == refused, "e has its scope already"


def test_only_recorded_peers_that_keep_the_log_are_left_out(two: Two, ledger: Ledger) -> None:
    add(two.source, "walferry_x_1", endpoint=PINNING_ENDPOINT)
    assert two.refusals(ledger)
    run = ledger.open_run("x", "me", {"name": "x", "tables": []}, "me").run_id
    ledger.of(run).objects.plan("source", "peer", "walferry_x_1")
    assert two.refusals(ledger) == []


def test_a_peer_of_the_target_that_would_ship_the_new_tables_is_refused_too(two: Two) -> None:
    add(two.target, "onwards")
    assert two.refusals() == []
    assert len(two.refusals(peer_back="west")) == 1


def test_other_tables_of_a_namespace_must_be_at_the_other_cluster(two: Two) -> None:
    for cluster in (two.source, two.target):
        cluster.release = release_of("2.6.3")
    spec = ResolvedSetupSpec.model_validate(KEYS | {"namespaces": True})

    def told() -> list[str]:
        here: Any = two.source
        there: Any = two.target
        found = setup_plan._namespace_findings(spec, here, there, "the source", "the target")
        return [f"{one.subject}: {one.message}" for one in found]

    two.source.add("shop:quiet", d="0")
    two.source.add("elsewhere", d="1")
    assert told() == []
    two.source.add("shop:other", d="1", e="1")
    assert "a table that the target has not" in told()[0]
    two.target.add("shop:other", d="0")
    assert "whose family e the target has not" in told()[0]
    two.target.add("shop:other", d="0", e="0")
    assert told() == []


def test_1_x_knows_no_peer_of_a_namespace(two: Two) -> None:
    assert any("know no namespaces" in text for text in two.refusals(namespaces=True))


def test_another_setup_of_the_same_table_or_peer_is_refused_until_it_is_torn_down(two: Two, ledger: Ledger) -> None:
    other = setup_run(ledger, name="other")
    refused = two.refusals(ledger)
    assert len(refused) == 2
    assert all("`walferry replicate teardown other` ends it" in text for text in refused)
    other.ledger.end("done", "test", "set up")
    assert two.refusals(ledger) == refused
    assert len(two.refusals(ledger, peer="north")) == 1


def test_a_setup_is_not_in_its_own_way(two: Two, ledger: Ledger) -> None:
    setup_run(ledger)
    assert two.refusals(ledger) == []


def test_what_an_aborted_setup_has_left_is_put_back_first(two: Two, ledger: Ledger) -> None:
    other = setup_run(ledger, name="other", peer="north")
    set_scopes(other, TABLE)
    other.ledger.end("aborted", "test", "no")
    (told,) = two.refusals(ledger)
    assert "scope was left at the source by other-1" in told
    put_back(other)
    assert two.refusals(ledger) == []


def test_an_unfinished_pair_of_the_same_name_is_refused(two: Two, ledger: Ledger) -> None:
    ledger.open_run("both_pair", "me", {"tables": []}, "me", "pair")
    (told,) = two.refusals(ledger)
    assert "an unfinished pair has the name both_pair" in told
    assert two.refusals(ledger, families={TABLE: ["d"]}) == []
