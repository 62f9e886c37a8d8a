"""Sends cells unchanged to the regions that hold their rows: ClientService.Multi with a cell block.

HBase's own replication sink does the same with the entries it receives; here the sink is not involved. Timestamps,
types and tags are kept (`KeyValueCodecWithTags`), and so are the clusters that the cells come from (Mutation's
attribute `_cs.id`), so that replication from the target does not send the cells back.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from walferry.formats.cells import gather
from walferry.formats.mutations import Mutations, cut_mutations
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RegionNotServedError, remote_error
from walferry.hbase.rpc import CODEC_WITH_TAGS, Buffer, encode_field

_CLUSTERS = "_cs.id"  # Mutation.CONSUMED_CLUSTER_IDS
_REGION_ACTION = 1  # of MultiRequest
_ATTRIBUTE = 5  # of MutationProto


@dataclass(frozen=True)
class Multi:
    """One request to one server, with its cells in the order of its mutations."""

    server: str
    message: bytes
    """MultiRequest"""
    cells: tuple[Buffer, ...]


def multis(
    client: Calls, runs: Sequence[tuple[str, int]], cells: Buffer, clusters: Sequence[tuple[int, int]]
) -> list[Multi]:
    """Cut consecutive runs of cells (table and number of cells each) into one request for each server.

    Each of `cells` is int32 length + KeyValue, as in an uncompressed WAL, and already validated. `clusters` are the ids
    (most, least significant bits) of the clusters that the cells come from. A server applies a region's mutations of
    one request in their order (HRegion.batchMutate). So the edits of a row, equal keys included, stay in order if the
    next request is sent after the answer. Raises RegionNotServedError (transient) if a row has no region now, and
    TableNotFoundError.
    """
    buffer = np.frombuffer(cells, np.uint8)
    attributes = _attributes(tuple(clusters))
    messages: defaultdict[str, list[bytes]] = defaultdict(list)
    blocks: defaultdict[str, list[Buffer]] = defaultdict(list)
    at = 0
    for table, count in runs:
        mutations = cut_mutations(buffer, at, count)
        at = int(mutations.end[-1])
        located = client.located(table)
        places = located.borders.ranges_of(buffer, mutations.start)
        for place in np.unique(places).tolist():
            region = located.regions[place]
            if region.server is None:
                message = f"region {region.encoded} of {table} is not open on any server now; is the table enabled?"
                raise RegionNotServedError(message, table=table, region=region.encoded)
            picked = np.flatnonzero(places == place)
            server = region.server.address
            messages[server].append(_region_action(region, mutations, picked, attributes))
            blocks[server].append(_cells(mutations, picked))
    return [Multi(server, b"".join(parts), tuple(blocks[server])) for server, parts in messages.items()]


def send(
    client: Calls,
    multi: Multi,
    *,
    timeout_s: float = 60,
    since: float | None = None,
    may_send: Callable[[], None] = lambda: None,
) -> None:
    """Send one request; returns when the server has all of it in its log.

    `timeout_s`, `since` and `may_send` are those of `RpcConnection.call`. One attempt, no retries. If mutations failed,
    raises the error of one of them: send the whole request again, in its order, since mutations after a failed one may
    have been applied.
    """
    response, _ = client.pool.call(
        multi.server, "ClientService", "Multi", multi.message, pb.MultiResponse, multi.cells,
        codec=CODEC_WITH_TAGS, timeout_s=timeout_s, since=since, may_send=may_send,
    )  # fmt: skip
    for answer in response.regionActionResult:
        failed = [answer] if answer.HasField("exception") else _failed(answer)
        if failed:
            error = failed[0].exception
            trace = error.value.decode(errors="replace")
            raise remote_error(error.name, trace, server=multi.server, method="ClientService.Multi")


def _failed(answer: pb.RegionActionResult) -> list[pb.ResultOrException]:
    return [single for single in answer.resultOrException if single.HasField("exception")]


def _region_action(region: Region, mutations: Mutations, picked: np.ndarray, attributes: bytes) -> bytes:
    start = pb.RegionAction(region=region.specifier).SerializeToString()
    return encode_field(_REGION_ACTION, start + mutations.actions(picked, attributes))


def _cells(mutations: Mutations, picked: np.ndarray) -> Buffer:
    if len(picked) == len(mutations):
        return mutations.buffer[mutations.start[0] : mutations.end[-1]].data
    return gather(mutations.buffer, mutations.start[picked], mutations.end[picked]).data


@lru_cache
def _attributes(clusters: tuple[tuple[int, int], ...]) -> bytes:
    """MutationProto's attribute as Mutation.setClusterIds writes it: int32 number, then 16 bytes each, big-endian."""
    ids = b"".join(struct.pack(">QQ", most, least) for most, least in clusters)
    pair = pb.NameBytesPair(name=_CLUSTERS, value=struct.pack(">i", len(clusters)) + ids)
    return encode_field(_ATTRIBUTE, pair.SerializeToString())
