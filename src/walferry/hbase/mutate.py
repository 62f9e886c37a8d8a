"""Puts, deletes of every kind, increments and appends, as an ordinary client sends them.

`HBaseClient.mutate` documents `mutate`, and `HBaseClient.put` documents `put_cells`.
"""

from __future__ import annotations

import logging
import random
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from walferry.errors import TransientError, WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RegionNotServedError, remote_error
from walferry.hbase.retry import REGION_ATTEMPTS, pause_s, repeatable

MAX_ACTIONS = 5_000
MAX_REQUEST_BYTES = 4 << 20
_log = logging.getLogger(__name__)
_TTL = "_ttl"  # Mutation's attribute; the server turns it into a tag of type 8
_LATEST = (1 << 63) - 1  # HConstants.LATEST_TIMESTAMP: the server sets its own
_NOT_IDEMPOTENT = (pb.MutationProto.INCREMENT, pb.MutationProto.APPEND)


class Cell(NamedTuple):
    """A value to put; without a `timestamp` (ms) the server sets its own."""

    row: bytes
    family: bytes
    qualifier: bytes
    value: bytes
    timestamp: int | None = None


def put(row: bytes, cells: Iterable[Cell], *, ttl_ms: int | None = None) -> pb.MutationProto:
    """Put cells of one row; they expire after `ttl_ms`, if given."""
    mutation = _mutation(row, pb.MutationProto.PUT)
    for family, run in groupby(cells, key=lambda cell: cell.family):
        values = [_value(cell.qualifier, cell.value, cell.timestamp) for cell in run]
        mutation.column_value.append(pb.MutationProto.ColumnValue(family=family, qualifier_value=values))
    if ttl_ms is not None:
        mutation.attribute.append(pb.NameBytesPair(name=_TTL, value=struct.pack(">q", ttl_ms)))
    return mutation


def delete_version(row: bytes, family: bytes, qualifier: bytes, timestamp: int | None = None) -> pb.MutationProto:
    """Delete one version of a column (Delete, 8): the one at `timestamp`, or the newest."""
    return _delete(row, family, qualifier, timestamp, pb.MutationProto.DELETE_ONE_VERSION)


def delete_column(row: bytes, family: bytes, qualifier: bytes, timestamp: int | None = None) -> pb.MutationProto:
    """Delete all versions of a column up to `timestamp` (DeleteColumn, 12)."""
    return _delete(row, family, qualifier, timestamp, pb.MutationProto.DELETE_MULTIPLE_VERSIONS)


def delete_family(row: bytes, family: bytes, timestamp: int | None = None) -> pb.MutationProto:
    """Delete all columns of a family up to `timestamp` (DeleteFamily, 14)."""
    return _delete(row, family, b"", timestamp, pb.MutationProto.DELETE_FAMILY)


def delete_family_version(row: bytes, family: bytes, timestamp: int) -> pb.MutationProto:
    """Delete all columns of a family at exactly `timestamp` (DeleteFamilyVersion, 10)."""
    return _delete(row, family, b"", timestamp, pb.MutationProto.DELETE_FAMILY_VERSION)


def delete_row(row: bytes) -> pb.MutationProto:
    """Delete all families of a row; the WAL has one DeleteFamily for each."""
    return _mutation(row, pb.MutationProto.DELETE)


def increment(row: bytes, family: bytes, qualifier: bytes, amount: int = 1) -> pb.MutationProto:
    """Add to a column that holds an int64 big-endian."""
    return _change(row, family, qualifier, struct.pack(">q", amount), pb.MutationProto.INCREMENT)


def append(row: bytes, family: bytes, qualifier: bytes, value: bytes) -> pb.MutationProto:
    """Append bytes to a column's value."""
    return _change(row, family, qualifier, value, pb.MutationProto.APPEND)


def put_cells(client: Calls, table: str, cells: Sequence[Cell]) -> None:
    rows = groupby(cells, key=lambda cell: cell.row)
    mutate(client, table, [put(row, run) for row, run in rows])


def mutate(client: Calls, table: str, mutations: Sequence[pb.MutationProto]) -> list[pb.Result]:
    group = random.getrandbits(63)
    for mutation in mutations:
        if mutation.mutate_type in _NOT_IDEMPOTENT:
            mutation.nonce = random.getrandbits(63)
    results: dict[int, pb.Result] = {}
    refused: list[WalferryError] = []
    pending = list(range(len(mutations)))
    attempt = 0
    while pending:
        attempt += 1
        transient: dict[int, TransientError] = {}
        for chunk in _chunks(mutations, pending):
            for index, outcome in _attempt(client, table, mutations, chunk, group).items():
                if isinstance(outcome, TransientError):
                    transient[index] = outcome
                elif isinstance(outcome, WalferryError):
                    refused.append(outcome)
                else:
                    results[index] = outcome
        pending = sorted(transient)
        if pending:
            error = transient[pending[0]]
            if attempt == REGION_ATTEMPTS or not repeatable(error):
                raise error
            left = len(pending)
            _log.warning("%d mutations of %s left: attempt %d of %d: %s", left, table, attempt, REGION_ATTEMPTS, error)
            client.location_failed(table, error, attempt)
            time.sleep(pause_s(error, attempt))
    if refused:
        refused[0].facts["failed"] = len(refused)
        raise refused[0]
    return [results[index] for index in range(len(mutations))]


def _chunks(mutations: Sequence[pb.MutationProto], indexes: list[int]) -> Iterator[list[int]]:
    """Split the indexes so that each request has a bounded size."""
    chunk: list[int] = []
    size = 0
    for index in indexes:
        chunk.append(index)
        size += mutations[index].ByteSize()
        if len(chunk) == MAX_ACTIONS or size >= MAX_REQUEST_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _attempt(
    client: Calls, table: str, mutations: Sequence[pb.MutationProto], chunk: list[int], group: int
) -> dict[int, pb.Result | WalferryError]:
    """Send each mutation once, with one Multi per server. Returns each outcome by the mutation's index."""
    outcomes: dict[int, pb.Result | WalferryError] = {}
    by_server: defaultdict[str, dict[bytes, tuple[Region, list[int]]]] = defaultdict(dict)
    for index in chunk:
        try:
            region = client.locate(table, mutations[index].row)
        except TransientError as error:
            outcomes[index] = error
            continue
        assert region.server is not None
        by_server[region.server.address].setdefault(region.name, (region, []))[1].append(index)
    for server, regions in by_server.items():
        outcomes |= _multi(client, server, list(regions.values()), mutations, group)
    return outcomes


def _multi(
    client: Calls,
    server: str,
    regions: list[tuple[Region, list[int]]],
    mutations: Sequence[pb.MutationProto],
    group: int,
) -> dict[int, pb.Result | WalferryError]:
    request = pb.MultiRequest(nonceGroup=group)
    for region, indexes in regions:
        actions = [pb.Action(index=place, mutation=mutations[i]) for place, i in enumerate(indexes)]
        request.regionAction.append(pb.RegionAction(region=region.specifier, action=actions))
    try:
        # No codec, so that results come as plain messages.
        response, _ = client.pool.call(
            server, "ClientService", "Multi", request, pb.MultiResponse, timeout_s=client.timeout_s
        )
    except TransientError as error:
        return {index: error for _, indexes in regions for index in indexes}
    outcomes: dict[int, pb.Result | WalferryError] = {}
    for (_, indexes), answer in zip(regions, response.regionActionResult, strict=True):
        if answer.HasField("exception"):
            outcomes |= {index: _error(answer.exception, server) for index in indexes}
        for single in answer.resultOrException:
            failed = single.HasField("exception")
            outcomes[indexes[single.index]] = _error(single.exception, server) if failed else single.result
    for _, indexes in regions:
        for index in indexes:
            if index not in outcomes:
                message = f"{server} answered Multi without a result for one of its mutations"
                outcomes[index] = RegionNotServedError(message, server=server)
    return outcomes


def _error(exception: pb.NameBytesPair, server: str) -> WalferryError:
    """A failed action: name = Java class, value = its stack trace (ResponseConverter)."""
    trace = exception.value.decode(errors="replace")
    return remote_error(exception.name, trace, server=server, method="ClientService.Multi")


def _mutation(row: bytes, kind: pb.MutationProto.MutationType) -> pb.MutationProto:
    return pb.MutationProto(row=row, mutate_type=kind, durability=pb.MutationProto.USE_DEFAULT)


def _value(qualifier: bytes, value: bytes, timestamp: int | None) -> pb.MutationProto.ColumnValue.QualifierValue:
    return pb.MutationProto.ColumnValue.QualifierValue(qualifier=qualifier, value=value, timestamp=timestamp)


def _change(
    row: bytes, family: bytes, qualifier: bytes, value: bytes, kind: pb.MutationProto.MutationType
) -> pb.MutationProto:
    mutation = _mutation(row, kind)
    # Without a timestamp, 1.x gives a new cell 0.
    values = [_value(qualifier, value, _LATEST)]
    mutation.column_value.append(pb.MutationProto.ColumnValue(family=family, qualifier_value=values))
    return mutation


def _delete(
    row: bytes, family: bytes, qualifier: bytes, timestamp: int | None, kind: pb.MutationProto.DeleteType
) -> pb.MutationProto:
    mutation = _mutation(row, pb.MutationProto.DELETE)
    value = pb.MutationProto.ColumnValue.QualifierValue(qualifier=qualifier, timestamp=timestamp, delete_type=kind)
    mutation.column_value.append(pb.MutationProto.ColumnValue(family=family, qualifier_value=[value]))
    return mutation
