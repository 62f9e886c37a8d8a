"""Findings about what belongs to the tables and stays at the source: grants, quotas, ACLs and zones of HDFS."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from walferry.amounts import amount
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.hbase.errors import RemoteError
from walferry.hbase.rights import grants_on
from walferry.migration.planning.finding import Finding
from walferry.run.run import data_folder
from walferry.run.spec import ResolvedSpec
from walferry.wal.copies import hdfs_of

_QUOTAS = "hbase:quota"
_UNTOLD = (RemoteError, TransientError)
"""a right that is missing, or a system table that cannot be read now: no reason to refuse a run"""

_log = logging.getLogger(__name__)


def left_behind(spec: ResolvedSpec, source: HBaseClient, target: HBaseClient) -> Iterator[Finding]:
    """What the target has to be given by hand, as far as the user may see it. (Visibility labels are refused:
    `planning.tables`.)"""
    for pair in spec.tables:
        yield from _grants(source, pair.source)
    yield from _quotas(source, [pair.source for pair in spec.tables])
    yield from _on_hdfs("source", source, [pair.source for pair in spec.tables])
    yield from _on_hdfs("target", target, [])


def _grants(source: HBaseClient, table: str) -> Iterator[Finding]:
    try:
        number = grants_on(source, table) if source.table_exists("hbase:acl") else 0
    except _UNTOLD as error:
        _log.info("the grants on %s: %s", table, error)
        number = None
    if number is None:
        yield Finding("warn", table, "HBase's grants are not carried over; whether the table has some is unknown")
    elif number:
        yield Finding(
            "warn", table, f"{amount(number, 'grant')} on it {'is' if number == 1 else 'are'} not carried over "
            f"(in HBase's shell: user_permission '{table}')",
        )  # fmt: skip


def _quotas(source: HBaseClient, tables: list[str]) -> Iterator[Finding]:
    """Quotas of tables and their namespaces (rows of QuotaTableUtil)."""
    namespaces = {table.rpartition(":")[0] or "default" for table in tables}
    rows = sorted({f"t.{table}" for table in tables} | {f"n.{name}" for name in namespaces})
    try:
        if not source.table_exists(_QUOTAS):
            return
        found = [row[2:] for row in rows if any(source.scan(_QUOTAS, row.encode(), f"{row}\0".encode()))]
    except _UNTOLD as error:
        yield Finding("warn", "source", f"quotas are not carried over; whether there are some is unknown: {error}")
        return
    if found:
        yield Finding(
            "warn", "source", f"quotas are not carried over: {', '.join(found)} (list_quotas in HBase's shell)"
        )


def _on_hdfs(side: str, client: HBaseClient, tables: list[str]) -> Iterator[Finding]:
    files, root = hdfs_of(client.address), client.address.root_path
    own = [data_folder(root, table) for table in tables]
    places = [status for path in (root, *own) if (status := files.status(path)) is not None]
    if encrypted := [status.path for status in places if status.encrypted]:
        yield Finding(
            "warn", side, f"{', '.join(encrypted)} {'is' if len(encrypted) == 1 else 'are'} in an encryption zone "
            "of HDFS, which was never tried: the KMS must let the user read and write there, and copies of WALs "
            "and files are encrypted only where their folder is in a zone, too",
        )  # fmt: skip
    if side == "source" and (listed := [status.path for status in places if status.has_acl]):
        yield Finding("warn", side, f"HDFS's ACLs are not carried over: {', '.join(listed)}")
