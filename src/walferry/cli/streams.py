"""`walferry stream`: every change of tables to Kafka."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walferry.cli.options import AsJson, DryRun, LedgerUrl, owner, print_json, require_idle_name
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.ledger import Ledger


def stream(
    spec: Annotated[Path, typer.Argument(help="the stream's YAML file; see stream.example.yaml")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Send every change of tables to Kafka, until `walferry abort`; or continue the unfinished stream of that name."""
    from walferry.run.given_spec import environment_connection
    from walferry.streams.start import open_stream
    from walferry.streams.stream_spec import load_stream_spec, resolve_stream

    wanted = resolve_stream(load_stream_spec(spec), environment_connection)
    if dry_run:
        from walferry.streams.stream import examine

        found = examine(wanted)
        if as_json:
            print_json(found)
        else:
            print(f"source: HBase {found['version']}, cluster {found['cluster_id']}")
            for table, topic in found["topics"].items():
                print(f"{table} -> {topic}")
            print(f"positions: {found['positions']}")
        return
    with open_ledger(ledger) as book:
        require_idle_name(book, wanted.name)
        go_on_streaming(book, open_stream(book, wanted, owner()))


def go_on_streaming(book: Ledger, run_id: str) -> None:
    """Do the phases of a stream that are not done, and follow the log until the run is ended."""
    from walferry.run.heartbeat import beating
    from walferry.run.run import RunEndedError
    from walferry.streams.stream import stream as follow
    from walferry.streams.stream_run import StreamRun

    with StreamRun(book, run_id) as run, beating(run.ledger, "", run.actor, alone=True):
        try:
            follow(run)
        except RunEndedError as ended:
            print(ended, file=sys.stderr)
        except KeyboardInterrupt:
            print(f"interrupted; `walferry resume {run.record.name}` continues from here", file=sys.stderr)
            raise
