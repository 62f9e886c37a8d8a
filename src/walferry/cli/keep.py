"""`walferry keep`: what is needed to restore any later moment of tables is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walferry.cli.options import AsJson, DryRun, LedgerUrl, owner, print_json, require_idle_name, until_ended
from walferry.clock import duration
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.ledger import Ledger


def keep(
    spec: Annotated[Path, typer.Argument(help="the run's YAML file; see keep.example.yaml")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Keep what restores any later moment of tables, until `walferry abort`; or continue the unfinished run of that
    name."""
    from walferry.moments.keeping.keep_spec import load_keep_spec, resolve_keep
    from walferry.moments.keeping.start import open_keep
    from walferry.run.given_spec import environment_connection

    wanted = resolve_keep(load_keep_spec(spec), environment_connection)
    if dry_run:
        from walferry.moments.keeping.plan import examine

        found = examine(wanted)
        if as_json:
            print_json(found)
        else:
            print(f"source: HBase {found['version']}, cluster {found['cluster_id']}")
            assumed = ", HBase's default, since no server tells its own" if found["ttl_assumed"] else ""
            print(f"the source keeps a closed log for {duration(found['ttl_seconds'])}{assumed}")
            print(f"folder: {found['folder']}")
            for table, size in found["tables"].items():
                where = "copied to the folder" if wanted.copy_bases else "a snapshot at the source"
                print(f"{table}: a base every {wanted.base_hours:g} h, about {size / 1e6:.0f} MB, {where}")
        return
    with open_ledger(ledger) as book:
        require_idle_name(book, wanted.name)
        go_on_keeping(book, open_keep(book, wanted, owner()))


def go_on_keeping(book: Ledger, run_id: str) -> None:
    """Do the phases of a run of kind `keep` that are not done, and keep until the run is ended."""
    from walferry.moments.keeping.keep import keep as keep_all
    from walferry.moments.keeping.keep_run import KeepRun

    until_ended(KeepRun(book, run_id), keep_all)
