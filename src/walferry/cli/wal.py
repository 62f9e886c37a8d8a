"""`walferry wal …`: look into WAL files."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def wal_cat(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="local path or webhdfs://host:port/path")],
) -> None:
    """Print every cell of WAL files as JSON, one object a line; exit 3 for an unfinished file, 4 for a damaged one."""
    from walferry.wal.cat import cat

    raise typer.Exit(cat(files, sys.stdout, sys.stderr))
