"""Asks a stream to send the rows of a table once more."""

from __future__ import annotations

from walferry.errors import TransientError, UsageError
from walferry.hbase.client import HBaseClient
from walferry.ledger import RunLedger
from walferry.run.notes.table_snapshots import ask_again
from walferry.streams.snapshot.taking import require_readable
from walferry.streams.stream_spec import recorded_stream_spec


def examine_rows_again(ledger: RunLedger, table: str) -> int | None:
    """The bytes of a table's store files; None if the source does not answer now. Changes nothing.

    Raises UsageError if its rows cannot be sent again.
    """
    run = ledger.record
    if run.kind != "stream" or run.state != "running":
        what = f"is a {run.kind}" if run.kind != "stream" else f"has ended as {run.state}"
        raise UsageError(f"run {run.run_id} {what}: rows are sent again by a stream that runs", run=run.run_id)
    spec = recorded_stream_spec(run)
    if table not in spec.tables:
        raise UsageError(f"{table} is not a table of {run.run_id}: it streams {', '.join(spec.tables)}", table=table)
    if table in {hold.table for hold in ledger.quarantine.holds()}:
        raise UsageError(
            f"changes of {table} are in quarantine: release them first (`walferry quarantine list {run.name}`)",
            table=table,
        )
    try:
        with HBaseClient(spec.log_address()) as source:
            require_readable(source.describe(table))
            return source.held_bytes().get(table, 0)
    except TransientError:
        return None


def ask_rows_again(ledger: RunLedger, table: str, reason: str, actor: str) -> None:
    """Ask for the rows of a table, which `examine_rows_again` has let pass."""
    ask_again(ledger, table, actor, reason)
    ledger.audit(actor, "send again", {"table": table, "reason": reason})
