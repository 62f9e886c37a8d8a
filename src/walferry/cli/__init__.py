"""The `walferry` command: the same pipeline as the DAG, without Airflow.

Exit codes: 0 done, 1 failed, 2 usage, 3 unfinished input, 4 damaged input, 5 sides differ, 6 gap.
"""

from __future__ import annotations

import sys

import typer

from walferry.cli import (
    comparisons,
    keep,
    late,
    pairs,
    quarantine,
    receive,
    repairs,
    replay,
    replicate,
    restore,
    runs,
    setup,
    snapshot,
    streams,
    wal,
)  # fmt: skip
from walferry.errors import WalferryError, as_printed
from walferry.process import set_up_logging, warn_of_unknown_variables

app = typer.Typer(
    help="Move live HBase tables between clusters, replay the write-ahead log, and prove that nothing was lost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for verb in (
    runs.plan, runs.start, runs.status, runs.ready, runs.pause, runs.resume, runs.throttle,
    runs.abort, replay.replay, pairs.verify, comparisons.accept, comparisons.accept_numbers, late.late,
    repairs.repair, repairs.copy_again, repairs.withdraw, streams.stream, streams.send_again,
    keep.keep, restore.restore, receive.receive,
    runs.report,
):  # fmt: skip
    app.command()(verb)
wal_app = typer.Typer(help="Inspect WAL files.", no_args_is_help=True)
wal_app.command("cat")(wal.wal_cat)
wal_app.command("stat")(wal.wal_stat)
app.add_typer(wal_app, name="wal")
snapshot_app = typer.Typer(help="Look into snapshots.", no_args_is_help=True)
snapshot_app.command("stat")(snapshot.snapshot_stat)
app.add_typer(snapshot_app, name="snapshot")
replicate_app = typer.Typer(help="Plan, set up and watch HBase's own replication.", no_args_is_help=True)
replicate_app.command("plan")(replicate.plan)
replicate_app.command("status")(replicate.status)
replicate_app.command("shipped")(replicate.shipped)
app.add_typer(replicate_app, name="replicate")
replicate_app.command("setup")(setup.setup)
replicate_app.command("teardown")(setup.teardown)
quarantine_app = typer.Typer(help="List and release edits that could not be applied.", no_args_is_help=True)
quarantine_app.command("list")(quarantine.quarantine_list)
quarantine_app.command("show")(quarantine.quarantine_show)
quarantine_app.command("release")(quarantine.quarantine_release)
app.add_typer(quarantine_app, name="quarantine")


def main() -> None:
    """Run the command; every error that the user can fix is one line on stderr, of a plan one for each refusal."""
    set_up_logging()
    if "--help" not in sys.argv:
        warn_of_unknown_variables()
    try:
        app()
    except WalferryError as error:
        print(f"error: {as_printed(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is missing: install walferry with its extras spark, checks and, for a "
              "ledger on PostgreSQL, postgres", file=sys.stderr)  # fmt: skip
        sys.exit(1)
    except OSError as error:  # a folder that cannot be written to
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
