"""Where a replication peer leads, and what is there."""

from __future__ import annotations

from collections.abc import Iterator

from walferry.errors import UsageError, WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import ServerGoneError
from walferry.hbase.peers import PeerConfig, peer_configs
from walferry.replication.finding import Finding, peer_subject
from walferry.replication.sink import PlaceOrWhy, Sink, cluster_id_at, keyed_address, open_sink
from walferry.replication.spec import ResolvedReplicateSpec


def sink_findings(
    spec: ResolvedReplicateSpec, source_id: str, peer: PeerConfig, place: PlaceOrWhy, sink: Sink
) -> Iterator[Finding]:
    """What is wrong at the place that the peer leads to, and what it costs."""
    subject = peer_subject(peer.id)
    if sink.fault is not None:
        what = "takes no changes" if sink.proved else "was not examined"
        stops = sink.proved or sink.silent
        yield Finding("stop" if stops else "warn", subject, f"its sink {what}: {sink.fault}")
    yield from _cost(peer, subject)
    if sink.servers is None or isinstance(place, str):
        return
    if spec.target is not None:
        yield from _keyed(spec, sink, peer, subject)
    if sink.version is None:
        yield Finding("warn", subject, f"the tables of its sink were not compared: {sink.master_fault}")
        return
    try:
        yield from _onwards(source_id, place, subject)
    except WalferryError as error:
        yield Finding("note", subject, f"whether its sink replicates onwards is not known: {error}")


def _keyed(spec: ResolvedReplicateSpec, sink: Sink, peer: PeerConfig, subject: str) -> Iterator[Finding]:
    """Whether the peer's key leads to the target."""
    try:
        with open_sink(keyed_address(peer.cluster_key, spec.source.address())) as keyed:
            keyed_id = keyed.cluster_id()
    except WalferryError as error:
        yield Finding(
            "stop" if isinstance(error, ServerGoneError) else "warn", subject, f"where its key leads: {error}"
        )
        return
    if keyed_id != sink.cluster_id:
        yield Finding(
            "stop", subject, f"its key {peer.cluster_key} leads to another cluster ({keyed_id}) than the target "
            f"({sink.cluster_id})",
        )  # fmt: skip


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


def _onwards(source_id: str, place: ClusterAddress, subject: str) -> Iterator[Finding]:
    """Where the sink itself replicates to."""
    with open_sink(place) as sink:
        peers = [peer for peer in peer_configs(sink) if peer.is_hbase]
    for peer in peers:
        try:
            third_id = cluster_id_at(keyed_address(peer.cluster_key, place))
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
