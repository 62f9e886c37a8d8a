"""`walferry snapshot …`: look into snapshots."""

from __future__ import annotations

from typing import Annotated

import typer

from walferry.amounts import amount
from walferry.cli.options import (
    Keytab,
    Principal,
    TicketCache,
    TlsAuthorities,
    TlsCertificate,
    TlsKey,
    given_security,
)
from walferry.clock import iso


def snapshot_stat(
    root: Annotated[
        str,
        typer.Argument(
            metavar="ROOT",
            help="HBase's root folder, or one that a snapshot was exported to: a local path, webhdfs://host:port/path "
            "(HTTPS: swebhdfs://), or, with --webhdfs, hdfs://host:port/path, which is faster",
        ),
    ],
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="its name")],
    webhdfs: Annotated[str | None, typer.Option(help="the name node's HTTP address, if ROOT is hdfs://")] = None,
    user: Annotated[str | None, typer.Option(help="user name for HDFS; default: the user of this process")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="count all that is stored, markers and hidden cells too")] = False,
    regions: Annotated[bool, typer.Option("--regions", help="a line for each region")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: the table and its regions")] = False,
    principal: Principal = None,
    keytab: Keytab = None,
    ccache: TicketCache = None,
    tls_ca: TlsAuthorities = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Count the rows and cells that a scan of a snapshot would show, all versions. Reads files: no region server is
    asked."""
    from rich.table import Table

    from walferry.cli.options import console, print_json, tracked
    from walferry.snapshots.reading import SnapshotQuery
    from walferry.snapshots.stat import PART_BYTES, stat

    query = SnapshotQuery(
        root.rstrip("/"), snapshot, raw=raw, versions=None, webhdfs=webhdfs, user=user, partition_bytes=PART_BYTES,
        security=given_security([root, webhdfs], principal, keytab, ccache, tls_ca, tls_certificate, tls_key),
    )  # fmt: skip
    found = stat(query, lambda done, parts: tracked(done, "counting parts", parts))
    if as_json:
        print_json(found.as_json())
        return
    names = ("region", "first row") if regions else ("table",)
    table = Table(*names, "files", "MB", "rows", "cells", "oldest", "newest")
    for one in found.regions if regions else (found.total,):
        who = (one.region, one.start_row) if regions else (found.table,)
        table.add_row(
            *who, f"{one.files}", f"{one.bytes / 1e6:.1f}", f"{one.rows}", f"{one.cells}", _moment(one.oldest),
            _moment(one.newest),
        )  # fmt: skip
    console().print(table)
    shown = "stored" if raw else "that a scan shows"
    print(f"{amount(found.total.rows, 'row')}, {amount(found.total.cells, 'cell')} {shown}")


def _moment(at_ms: int | None) -> str:
    """A timestamp as a date, if it is one: a client may use any number as a timestamp."""
    if at_ms is None:
        return ""
    try:
        return iso(at_ms)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
