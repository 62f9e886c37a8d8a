"""Where a replication peer leads, and what is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import ServerGoneError
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.hbase.zookeeper import ZooKeeper
from walferry.replication.finding import Finding, peer_subject
from walferry.replication.sink import cluster_id_at, keyed_address, open_sink
from walferry.replication.spec import ResolvedReplicateSpec

HBASE_ID = "hbaseid"


@dataclass(frozen=True)
class Sink:
    """A sink that answers in ZooKeeper. `version`: None if its master does not answer."""

    cluster_id: str
    version: str | None


def sink_findings(
    spec: ResolvedReplicateSpec, source_id: str, peer: PeerConfig, sink: HBaseClient
) -> tuple[Sink | None, list[Finding]]:
    """What is at the place that the peer names; None if nothing is, or it does not answer."""
    subject = peer_subject(peer.id)
    place = f"ZooKeeper at {sink.address.zookeeper}, {sink.address.znode}"
    try:
        sink_id, servers = sink.cluster_id(), sink.servers()
    except ServerGoneError:
        return None, [
            Finding("stop", subject, f"{place} has no HBase{_others(sink.zookeeper)}. Its key: {peer.cluster_key}")
        ]
    except TransientError as error:
        return None, [Finding("stop", subject, f"its sink does not answer from here: {error}")]
    except WalferryError as error:  # a login that is refused, for example
        return None, [Finding("warn", subject, f"its sink was not examined: {error}")]
    found = [
        *_identity(spec, source_id, sink_id, peer, subject),
        *_cost(peer, subject),
    ]
    if not servers:
        found.append(Finding("stop", subject, f"{place} has an HBase without a live region server"))
    try:
        version = sink.version()
    except WalferryError as error:
        found.append(Finding("warn", subject, f"the tables of its sink were not compared: {error}"))
        return Sink(sink_id, None), found
    try:
        found += _onwards(source_id, sink, subject)
    except WalferryError as error:
        found.append(Finding("note", subject, f"whether its sink replicates onwards is not known: {error}"))
    return Sink(sink_id, version), found


def _identity(
    spec: ResolvedReplicateSpec, source_id: str, sink_id: str, peer: PeerConfig, subject: str
) -> Iterator[Finding]:
    if sink_id == source_id:
        yield Finding(
            "stop", subject, f"source and sink have the same cluster id ({source_id}), so HBase takes the sink for the "
            "source itself and ships nothing (ReplicationSource)",
        )  # fmt: skip
    if spec.target is None:
        return
    try:
        with open_sink(keyed_address(peer.cluster_key, spec.source.address())) as keyed:
            keyed_id = keyed.cluster_id()
    except WalferryError as error:
        yield Finding(
            "stop" if isinstance(error, ServerGoneError) else "warn", subject, f"where its key leads: {error}"
        )
        return
    if keyed_id != sink_id:
        yield Finding(
            "stop", subject, f"its key {peer.cluster_key} leads to another cluster ({keyed_id}) than the target "
            f"({sink_id})",
        )  # fmt: skip


def _others(zookeeper: ZooKeeper) -> str:
    """Where else in this ensemble there is an HBase."""
    try:
        top = ZooKeeper(zookeeper.hosts, "")
        try:
            found = [name for name in top.children("") if top.read(f"{name}/{HBASE_ID}") is not None]
        finally:
            top.close()
    except WalferryError:
        return ""
    return f", but {' and '.join(f'/{name}' for name in found)} has" if found else ""


def _cost(peer: PeerConfig, subject: str) -> Iterator[Finding]:
    if peer.serial:
        yield Finding(
            "note", subject, "it is SERIAL: a region's edits wait until its earlier ones, at other servers, are "
            "shipped, and with them all that is behind them in the same log. To set SERIAL reopens the regions of its "
            "tables. It may block for good (HBASE-29463, HBASE-29499)",
        )  # fmt: skip
    else:
        yield Finding(
            "note", subject, "it is not SERIAL: when a region moves or its server dies, edits of a row may arrive in "
            "another order. Timestamps put most of that right, but a put that arrives once its delete was compacted "
            "away stays",
        )  # fmt: skip
    if peer.bandwidth:
        yield Finding("note", subject, f"each region server ships at most {peer.bandwidth} bytes per second to it")


def _onwards(source_id: str, sink: HBaseClient, subject: str) -> Iterator[Finding]:
    """Where the sink itself replicates to."""
    for peer in peer_configs(sink):
        if not peer.is_hbase:
            continue
        try:
            third_id = cluster_id_at(keyed_address(peer.cluster_key, sink.address))
        except UsageError:
            third_id = None
        if third_id == source_id:
            yield Finding(
                "warn", subject, f"a loop: its sink replicates back to the source (peer {peer.id} there). HBase does "
                "not send an edit to a cluster that it has been on, but who copies rows from one side to the other "
                "makes new edits",
            )  # fmt: skip
        else:
            yield Finding("note", subject, f"its sink replicates onwards to {peer.cluster_key} (peer {peer.id} there)")
