"""What is known of each version, and which way is taken."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from walferry.embedded import jars
from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import peers, table_states
from walferry.hbase.address import ClusterAddress
from walferry.hbase.calls import Calls
from walferry.hbase.errors import TableNotFoundError, ZooKeeperError
from walferry.hbase.versions import RELEASES, TRIED, By, Release, knows, release_of
from walferry.hbase.zookeeper import parse_znode

ENDPOINT = peers.PINNING_ENDPOINT


def address(zookeeper: str) -> ClusterAddress:
    return ClusterAddress(zookeeper=zookeeper, znode="/hbase", webhdfs="http://nn:9870", rootdir="hdfs://nn/hbase")


@dataclass
class Znodes:
    """HBase's znodes in this process."""

    values: dict[str, bytes] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        return self.values.get(path)

    def children(self, path: str) -> list[str]:
        return sorted({p.removeprefix(f"{path}/").split("/")[0] for p in self.values if p.startswith(f"{path}/")})

    def create(self, values: Mapping[str, bytes]) -> None:
        if self.values.keys() & values:
            raise ZooKeeperError("it exists")
        self.values |= values

    def delete(self, path: str) -> None:
        self.values = {p: value for p, value in self.values.items() if p != path and not p.startswith(f"{path}/")}


@dataclass
class Old:
    """A client of a cluster of 1.x, which asks its master nothing."""

    release: Release = field(default_factory=lambda: release_of("1.7.2"))
    zookeeper: Znodes = field(default_factory=Znodes)
    address: ClusterAddress = field(default_factory=lambda: address("zk1:2181"))

    def describe(self, table: str) -> Any:
        raise TableNotFoundError(f"there is no table {table}")


@pytest.fixture
def old() -> Calls:
    return cast(Calls, Old())


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("1.7.2", (1, 5)),
        ("1.2.0-cdh5.16.2", (1, 4)),
        ("2.0.2.3.1.5.0-152", (2, 0)),
        ("2.2.3", (2, 2)),
        ("2.5.7-hadoop3", (2, 2)),
        ("2.6.3-hadoop3", (2, 6)),
        ("2.10.1", (2, 6)),
        ("3.0.0-beta-1", (3, 0)),
        ("Unknown", (2, 6)),
    ],
)
def test_a_version_has_what_the_newest_row_before_it_says(version: str, since: tuple[int, int]) -> None:
    assert release_of(version).since == since


def test_only_what_the_tests_boot_counts_as_tried() -> None:
    assert release_of("2.6.3").tried
    assert release_of("1.7.1").tried
    assert release_of("2.5.7-hadoop3").tried
    others = ("1.4.13", "2.3.7", "3.0.0", "Unknown", "2.2.3.7.1.7.0-551", "1.7.1-cdh9")
    assert not any(release_of(version).tried for version in others)


@pytest.mark.parametrize(
    ("attribute", "since", "last"),
    [("INDEX_BLOCK_ENCODING", "2.6.3", "3.0.0"), ("DATA_BLOCK_ENCODING", "1.4.13", "1.7.2")],
)
def test_an_encoding_is_known_from_one_version_to_another(attribute: str, since: str, last: str) -> None:
    versions = ["1.4.13", "1.7.2", "2.2.3", "2.5.7", "2.6.3", "3.0.0"]
    read = [version for version in versions if knows(release_of(version), attribute, "PREFIX_TREE")]
    assert (read[0], read[-1]) == (since, last)
    assert all(knows(release_of(version), attribute, "NONE") for version in versions)


def test_the_rows_are_in_order() -> None:
    assert list(RELEASES) == sorted(RELEASES, key=lambda release: release.since)


def test_before_2_0_a_peer_is_two_znodes_as_hbase_writes_them(old: Calls) -> None:
    peers.add_peer(old, "P")
    znodes = cast(Old, old).zookeeper.values
    assert list(znodes) == ["replication/peers/P", "replication/peers/P/peer-state"]
    assert znodes["replication/peers/P/peer-state"] == bytes.fromhex("504255460801")
    assert peers.peers(old) == {"P": (False, ENDPOINT)}
    peers.add_peer(old, "P")  # the same again is no error
    with pytest.raises(UsageError, match="replication peer P already exists, disabled"):
        peers.add_peer(old, "P", enabled=True)


@pytest.mark.parametrize(
    ("zookeeper", "key"),
    [
        ("zk1:2181", "zk1:2181:/hbase"),
        ("zk1:2181,zk2:2181", "zk1,zk2:2181:/hbase"),
        ("zk1:2181,zk2:2182", "zk1:2181,zk2:2182:2181:/hbase"),
    ],
)
def test_before_2_0_a_peer_names_its_own_cluster_without_which_no_server_can_read_it(zookeeper: str, key: str) -> None:
    client = Old(address=address(zookeeper))
    peers.add_peer(cast(Calls, client), "P")
    config = parse_znode(client.zookeeper.values["replication/peers/P"], pb.ReplicationPeer)
    assert (config.clusterkey, config.replicationEndpointImpl) == (key, ENDPOINT)


def test_before_2_0_a_peer_is_enabled_by_its_znode(old: Calls) -> None:
    peers.add_peer(old, "P")
    cast(Old, old).zookeeper.values["replication/peers/P/peer-state"] = bytes.fromhex("504255460800")
    assert peers.peers(old) == {"P": (True, ENDPOINT)}


def test_before_2_0_a_peer_goes_with_all_its_znodes_and_only_once(old: Calls) -> None:
    peers.add_peer(old, "P")
    peers.add_peer(old, "PP")
    assert peers.remove_peer(old, "P")
    assert not peers.remove_peer(old, "P")
    assert list(peers.peers(old)) == ["PP"]


@pytest.mark.parametrize(("state", "enabled"), [("00", True), ("01", False), ("02", False), ("03", False)])
def test_before_2_0_a_tables_state_is_its_znodes(old: Calls, state: str, enabled: bool) -> None:
    cast(Old, old).zookeeper.values["table/shop:orders"] = bytes.fromhex(f"5042554608{state}")
    assert table_states.table_enabled(old, "shop:orders") is enabled


def test_a_table_without_a_state_is_looked_up(old: Calls) -> None:
    with pytest.raises(TableNotFoundError):
        table_states.table_enabled(old, "none")


def test_a_switch_that_a_version_lacks_is_not_asked_for(old: Calls) -> None:
    assert peers.peers_may_change(old) is None


@dataclass
class New:
    """A client whose master answers with what a test gives it."""

    answers: Mapping[str, Any]
    release: Release = field(default_factory=lambda: release_of("2.6.3"))

    def master_call(self, method: str, *_: Any, **__: Any) -> Any:
        return self.answers[method]


def test_since_2_0_the_master_knows_peers_and_table_states() -> None:
    disabled = pb.ReplicationPeerDescription(
        id="P",
        state=pb.ReplicationState(state=pb.ReplicationState.DISABLED),
        config=pb.ReplicationPeer(replicationEndpointImpl=ENDPOINT),
    )
    state = pb.TableState(state=pb.TableState.DISABLING)
    answers = {
        "ListReplicationPeers": pb.ListReplicationPeersResponse(peer_desc=[disabled]),
        "GetTableState": pb.GetTableStateResponse(table_state=state),
    }
    client = cast(Calls, New(answers))
    assert release_of("2.6.3").peers is By.MASTER
    assert peers.peers(client) == {"P": (False, ENDPOINT)}
    assert not table_states.table_enabled(client, "t")


def test_the_table_of_the_documentation_is_this_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "versions.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    yes = {True: "yes", False: "no"}
    assert [[cell.split(":")[0] for cell in row] for row in rows] == [
        [
            release.name,
            release.peers.value,
            yes[release.has_endpoint],
            release.table_states.value,
            yes[release.changes_are_procedures],
            yes[release.counts_writes],
            yes[release.tells_rights],
            yes[release.opens_past_closing],
            yes[release.switches_peers],
            "ZooKeeper" if release.queues is By.ZOOKEEPER else "a table",
            yes[release.replication_may_be_off],
            yes[release.skips_numbers],
        ]
        for release in RELEASES
    ]


def test_the_versions_that_can_be_booted_are_those_that_count_as_tried() -> None:
    assert {tuple(map(int, version.split(".")[:2])) for version in jars.VERSIONS} == TRIED
