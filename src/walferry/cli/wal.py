"""`walferry wal …`: inspect WAL files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

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
from walferry.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from walferry.wal.stat import RegionStat


LEGEND = (
    "deletes: of versions/columns/families/family versions; ties: puts that replace an earlier one of the same "
    "timestamp; old: cells with a timestamp more than a minute before they were written"
)


class Format(StrEnum):
    """How cells are printed."""

    json = "json"
    arrow = "arrow"
    parquet = "parquet"


def wal_cat(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="local path or webhdfs://host:port/path (HTTPS: swebhdfs://)")
    ],
    format: Annotated[
        Format, typer.Option(help="json: an object per line; arrow: an IPC stream; parquet: one file, to be redirected")
    ] = Format.json,
    principal: Principal = None,
    keytab: Keytab = None,
    ccache: TicketCache = None,
    tls_ca: TlsAuthorities = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Print every cell of WAL files; exit 3: a file is unfinished, 4: damaged."""
    if format is not Format.json and sys.stdout.isatty():
        raise UsageError(f"{format} is not text: redirect the output to a file or a pipe")
    from walferry.wal.cat import Columns, cat, cat_columns

    security = given_security(files, principal, keytab, ccache, tls_ca, tls_certificate, tls_key)
    if format is Format.json:
        raise typer.Exit(cat(files, sys.stdout, sys.stderr, security))
    raise typer.Exit(cat_columns(files, sys.stdout.buffer, sys.stderr, Columns(format), security))


def wal_stat(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH…", help="file or folder, local or webhdfs://host:port/path (HTTPS: swebhdfs://)"),
    ],
    regions: Annotated[bool, typer.Option("--regions", help="a line for each region")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON: files, tables and regions")] = False,
    principal: Principal = None,
    keytab: Keytab = None,
    ccache: TicketCache = None,
    tls_ca: TlsAuthorities = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
) -> None:
    """Count what WAL files hold, by table: entries, cells, bytes, deletes, ties, old timestamps, bulk loads, markers,
    times and sequence numbers. Exit 3: a file is unfinished, 4: damaged; what precedes that is counted."""
    from walferry.cli.options import console, print_json, tracked
    from walferry.wal.stat import stat

    security = given_security(paths, principal, keytab, ccache, tls_ca, tls_certificate, tls_key)
    try:
        found = stat(paths, lambda files: tracked(files, "reading WALs"), security)
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    if as_json:
        print_json(found.as_json())
    else:
        out = console()
        out.print(_table(found.regions if regions else found.tables, of_regions=regions))
        print(LEGEND)
        print(f"{amount(len(found.files), 'file')}, {sum(file.bytes for file in found.files) / 1e6:.1f} MB")
    for file in found.files:
        if file.problem:
            print(f"error: {file.problem if file.path in file.problem else f'{file.path}: {file.problem}'}",
                  file=sys.stderr)  # fmt: skip
    raise typer.Exit(found.exit_code)


def _table(rows: Sequence[RegionStat], *, of_regions: bool) -> Table:
    from rich.table import Table

    names = ("table", *(["region"] if of_regions else []), "entries", "cells", "MB", "puts", "deletes v/c/f/fv", "ties",
             "old", "bulk loads", "first write", "last write", "sequence")  # fmt: skip
    table = Table(*names)
    for row in rows:
        deletes = (row.deletes, row.delete_columns, row.delete_families, row.delete_family_versions)
        table.add_row(
            row.table, *([row.region] if of_regions else []), f"{row.entries}", f"{row.cells}",
            f"{row.bytes / 1e6:.1f}", f"{row.puts}", "/".join(map(str, deletes)), f"{row.ties}", f"{row.old}",
            f"{row.markers.get('bulk_load', 0)}", iso(row.first_write_ms), iso(row.last_write_ms),
            f"{row.first_sequence} to {row.last_sequence}",
        )  # fmt: skip
    return table
