"""Hands finished HFiles to a region: ClientService.BulkLoadHFile, as SecureBulkLoadManager takes them.

`HBaseClient` documents the functions that take the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import Region
from walferry.hbase.errors import RegionNotServedError
from walferry.hbase.zookeeper import Server


def bulk_load(
    client: Calls,
    region: Region,
    files: Sequence[tuple[bytes, str]],
    cluster_ids: Sequence[str],
    *,
    timeout_s: float = 60,
    since: float | None = None,
    may_send: Callable[[], None] = lambda: None,
) -> bool:
    server = _server(region)
    request = pb.BulkLoadHFileRequest(
        region=region.specifier,
        family_path=[pb.BulkLoadHFileRequest.FamilyPath(family=family, path=path) for family, path in files],
        assign_seq_num=True,
        cluster_ids=list(cluster_ids),
    )
    answer, _ = client.pool.call(
        server.address, "ClientService", "BulkLoadHFile", request, pb.BulkLoadHFileResponse,
        timeout_s=timeout_s, since=since, may_send=may_send,
    )  # fmt: skip
    return answer.loaded


def store_files(client: Calls, region: Region, *families: bytes) -> list[str]:
    server = _server(region)
    request = pb.GetStoreFileRequest(region=region.specifier, family=families)
    answer, _ = client.pool.call(
        server.address, "AdminService", "GetStoreFile", request, pb.GetStoreFileResponse,
        timeout_s=client.timeout_s,
    )  # fmt: skip
    return list(answer.store_file)


def _server(region: Region) -> Server:
    if region.server is None:
        raise RegionNotServedError(
            f"region {region.encoded} of {region.table} is not open on any server now",
            table=region.table, region=region.encoded, sent=False,
        )  # fmt: skip
    return region.server
