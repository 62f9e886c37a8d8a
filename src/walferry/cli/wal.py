"""`walferry wal …`: inspect WAL files."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def wal_cat(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="local path or webhdfs://host:port/path")],
) -> None:
    """Print every cell of WAL files as JSON, one object per line; exit 3: a file is unfinished, 4: damaged."""
    from walferry.wal.cat import cat

    raise typer.Exit(cat(files, sys.stdout, sys.stderr))
