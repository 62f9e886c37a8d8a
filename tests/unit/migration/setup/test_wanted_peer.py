"""A peer is what was recorded of it, or somebody has changed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from unit.migration.setup.conftest import TABLE, setup_run
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.peers import add_disabled_peer, enable_peer, peer_message
from walferry.hbase.zookeeper import parse_znode, znode
from walferry.ledger import Ledger
from walferry.migration.setup import wanted_peer
from walferry.migration.setup.wanted_peer import (
    PeerDiffersError,
    WantedPeer,
    as_added,
    decided,
    described,
    differences,
    peer_to_add,
    recorded,
)
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.run import Run

NODE = "replication/peers/east"


def added(run: Run) -> WantedPeer:
    wanted = decided(run, "source")
    add_disabled_peer(run.source, wanted.id, pb.ReplicationPeer.FromString(bytes.fromhex(wanted.message)))
    return as_added(run.source, wanted).keep(run.ledger, "source")


def test_the_peer_of_a_setup_names_its_tables_families_and_limits(ledger: Ledger) -> None:
    run = setup_run(ledger, families={TABLE: ["d"]}, serial=True)
    told = described(peer_to_add(setup_spec_of(run.record), "source"))
    assert told["CLUSTER_KEY"] == "there:2181:/hbase"
    assert (told["TABLE_CFS"], told["NAMESPACES"], told["REPLICATE_ALL"]) == ({TABLE: ["d"]}, [], False)
    assert (told["SERIAL"], told["BANDWIDTH"]) == (True, 1000)


def test_the_peer_of_namespaces_names_them_alone_and_the_one_back_leads_to_the_source(ledger: Ledger) -> None:
    run = setup_run(ledger, namespaces=True, tables=[TABLE, "plain"], peer_back="west")
    told = described(peer_to_add(setup_spec_of(run.record), "target"))
    assert told["CLUSTER_KEY"] == "127.0.0.1:1:/hbase"
    assert (told["TABLE_CFS"], told["NAMESPACES"]) == ({}, ["default", "shop"])


def test_a_decision_stays_although_the_spec_changes(run: Run) -> None:
    before = decided(run, "source")
    run.record = replace(run.record, spec=run.record.spec | {"bandwidth": 7})
    assert decided(run, "source") == before == recorded(run.ledger, "source")


def test_what_1_x_keeps_of_a_peer_is_read_back_as_it_was_written(run: Run) -> None:
    added(run)
    kept = parse_znode(run.source.zookeeper.read(NODE) or b"", pb.ReplicationPeerOf1x)
    assert kept.bandwidth == 1000, "the sixth field, which newer versions use for namespaces"
    there = peer_message(run.source, "east")
    assert there is not None
    assert described(there[1]) == dict(decided(run, "source").config)


def changed(**values: Any) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        kept = parse_znode(run.source.zookeeper.read(NODE) or b"", pb.ReplicationPeerOf1x)
        kept.MergeFrom(pb.ReplicationPeerOf1x(**values))
        run.source.zookeeper.write(NODE, znode(kept))

    return change


def removed(run: Run) -> None:
    run.source.remove_peer("east")


def added_again(run: Run) -> None:
    removed(run)
    add_disabled_peer(run.source, "east", peer_to_add(setup_spec_of(run.record), "source"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: None, []),
        (lambda run: enable_peer(run.source, "east"), ["it was enabled"]),
        (removed, ["it was removed"]),
        (added_again, ["it was removed and added again"]),
        (changed(bandwidth=5), ["BANDWIDTH is 5, not 1000"]),
        (changed(clusterkey="x:1:/h"), ["CLUSTER_KEY is 'x:1:/h', not 'there:2181:/hbase'"]),
        (changed(replicationEndpointImpl="a.B"), ["ENDPOINT_CLASSNAME is 'a.B', not ''"]),
        (changed(data=[pb.BytesBytesPair(first=b"a", second=b"b")]), ["DATA is {'61': '62'}, not {}"]),
        (changed(configuration=[pb.NameStringPair(name="a", value="b")]), ["CONFIG is {'a': 'b'}, not {}"]),
        (
            changed(table_cfs=[pb.TableCF(table_name=pb.TableName(namespace=b"default", qualifier=b"t"))]),
            ["TABLE_CFS is {'shop:orders': [], 't': []}, not {'shop:orders': []}"],
        ),
    ],
)
def test_whatever_somebody_changes_is_named(run: Run, change: Callable[[Run], None], told: list[str]) -> None:
    wanted = added(run)
    change(run)
    assert differences(run.source, wanted) == told


@pytest.mark.parametrize(("enabled", "told"), [("no", "it was enabled"), ("perhaps", ""), ("yes", "")])
def test_a_peer_that_a_process_was_about_to_enable_may_be_enabled(run: Run, enabled: Any, told: str) -> None:
    wanted = replace(added(run), enabled=enabled)
    enable_peer(run.source, "east")
    assert differences(run.source, wanted) == ([told] if told else [])


def test_a_peer_that_is_another_one_from_the_beginning_is_not_taken_for_ours(run: Run) -> None:
    wanted = decided(run, "source")
    add_disabled_peer(run.source, "east", pb.ReplicationPeer(clusterkey="x:1:/h"))
    with pytest.raises(PeerDiffersError, match="CLUSTER_KEY is 'x:1:/h'"):
        as_added(run.source, wanted)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"rs,1,2": 5}, []),
        ({"rs,1,2": 6}, ["it was removed and added again"]),
        ({}, ["it was removed and added again"]),
    ],
)
def test_where_zookeeper_has_no_peers_their_queues_tell_that_one_was_added_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, now: dict[str, int], told: list[str]
) -> None:
    """A server that is dead has no queue of its own any more."""
    wanted = replace(added(run), created=None, queues={"rs,1,2": 5, "dead,1,2": 4})
    monkeypatch.setattr(wanted_peer, "queues_of", lambda client, peer: now)
    assert differences(run.source, wanted) == told


def test_what_hbase_adds_to_the_configuration_of_a_new_peer_is_no_change_by_a_person(run: Run) -> None:
    """As after a kill between adding the peer and reading it back."""
    wanted = decided(run, "source")
    message = pb.ReplicationPeer.FromString(bytes.fromhex(wanted.message))
    message.configuration.add(name="a.base", value="1")
    add_disabled_peer(run.source, wanted.id, message)
    assert differences(run.source, wanted) == []
    assert differences(run.source, replace(wanted, added=True)) != []
