"""`walferry stream` and `send-again`: every change of tables to Kafka, and the rows that they have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walferry.cli.options import (
    AsJson,
    DryRun,
    LedgerUrl,
    RunName,
    existing,
    owner,
    print_json,
    require_idle_name,
    until_ended,
)
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.ledger import Ledger


def stream(
    spec: Annotated[Path, typer.Argument(help="the stream's YAML file; see stream.example.yaml")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Send every change of tables to Kafka, or into Parquet files, until `walferry abort`; or continue the unfinished
    stream of that name."""
    from walferry.run.given_spec import environment_connection
    from walferry.streams.start import open_stream
    from walferry.streams.stream_spec import load_stream_spec, resolve_stream

    wanted = resolve_stream(load_stream_spec(spec), environment_connection)
    if dry_run:
        from walferry.streams.plan import examine

        found = examine(wanted)
        if as_json:
            print_json(found)
        else:
            print(f"source: HBase {found['version']}, cluster {found['cluster_id']}")
            for table in wanted.tables:
                size = found["rows_first"].get(table)
                rows = "" if size is None else f", first its rows: about {size / 1e6:.0f} MB as stored"
                print(f"{table} -> {found['topics'][table] if 'topics' in found else found['folder']}{rows}")
            for name, commit in found.get("iceberg", {}).items():
                print(f"Iceberg table {name}: {'to be made' if commit is None else f'has commit {commit}'}")
            print(f"positions: {found['positions'] if 'positions' in found else found['folder']}")
        return
    with open_ledger(ledger) as book:
        require_idle_name(book, wanted.name)
        go_on_streaming(book, open_stream(book, wanted, owner()))


def send_again(
    name: RunName,
    table: Annotated[str, typer.Option(help="table of the stream")],
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Send all rows that a table of a stream has once more, from a snapshot, then its changes since; others go on.

    The process that streams does it, at its next start if there is none. Until its rows are sent, the table's changes
    wait.
    """
    from walferry.streams.asking import ask_rows_again, examine_rows_again

    with existing(ledger) as book:
        run = book.find(name)
        size = examine_rows_again(book.of(run.run_id), table)
        if not dry_run:
            ask_rows_again(book.of(run.run_id), table, reason, owner())
    if as_json:
        print_json({"run": run.run_id, "dry_run": dry_run, "table": table, "bytes": size})
    else:
        much = "its size is not known now" if size is None else f"about {size / 1e6:.0f} MB as stored"
        print(f"{run.run_id} {'would send' if dry_run else 'sends'} all rows of {table} again, {much}")


def go_on_streaming(book: Ledger, run_id: str) -> None:
    """Do the phases of a stream that are not done, and follow the log until the run is ended."""
    from walferry.streams.stream import stream as follow
    from walferry.streams.stream_run import StreamRun

    until_ended(StreamRun(book, run_id), follow)
