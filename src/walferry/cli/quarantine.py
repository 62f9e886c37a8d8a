"""`walferry quarantine …`: list and release edits that could not be applied."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from walferry.cli.options import (
    AsJson,
    DryRun,
    LedgerUrl,
    RunName,
    console,
    existing,
    owner,
    print_json,
)

if TYPE_CHECKING:
    from walferry.ledger import RunLedger


class Resolution(StrEnum):
    """How an item is released."""

    retry = "retry"
    rpc = "rpc"
    reread = "reread"
    accept = "accept"


def quarantine_list(name: RunName, as_json: AsJson = False, ledger: LedgerUrl = None) -> None:
    """List the edits that could not be applied."""
    from walferry.replay.quarantine import quarantined_facts

    with existing(ledger) as book:
        items = [quarantined_facts(item) for item in book.of(book.find(name).run_id).quarantine.items()]
    if as_json:
        print_json(items)
        return
    table = Table("id", "state", "table", "region", "file", "start", "reason")
    for item in items:
        table.add_row(*(str(item[key]) for key in ("id", "state", "table", "region", "file", "start", "reason")))
    console().print(table if items else "the quarantine is empty")


def quarantine_show(name: RunName, item: int, ledger: LedgerUrl = None) -> None:
    """Show one item, with its bytes in hex and the cells in them."""
    from walferry.replay.quarantine import find_item, quarantined_facts
    from walferry.wal.cat import cells_of_entry

    with existing(ledger) as book:
        found = find_item(book.of(book.find(name).run_id), item)
    print_json(quarantined_facts(found) | {"data": found.data.hex(), "cells": cells_of_entry(found.data)})


def quarantine_release(
    name: RunName,
    item: int,
    how: Annotated[
        Resolution,
        typer.Option(help="retry: apply again; rpc: bypass Thrift; reread: copy the rows again; accept: leave out"),
    ],
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    dry_run: DryRun = False,
    ledger: LedgerUrl = None,
) -> None:
    """Release an item; the next replay round, or the stream, applies the decision."""
    with existing(ledger) as book:
        record = book.find(name)
        if record.kind == "stream":
            _release_of_stream(book.of(record.run_id), item, how, reason, dry_run=dry_run)
            return
        from walferry.replay.quarantine import check_release, release
        from walferry.run.run import Run

        with Run(book, record.run_id) as run:
            if dry_run:
                check_release(run, item, how.value)
                print(_would_release(run.run_id, item, how, reason))
                return
            release(run, item, how.value, reason)
            window = run.spec.window is not None
    print(f"item {item} released by {how.value}; " + (
        "replay the window again to apply this" if window else "the next round applies this"))  # fmt: skip


def _release_of_stream(of_run: RunLedger, item: int, how: Resolution, reason: str, *, dry_run: bool) -> None:
    from walferry.streams.releasing import check_release, release

    if dry_run:
        check_release(of_run, item, how.value)
        print(_would_release(of_run.run_id, item, how, reason))
        return
    release(of_run, item, how.value, reason, owner())
    print(f"item {item} released by {how.value}; a stream at work goes on with its region within seconds")


def _would_release(run_id: str, item: int, how: Resolution, reason: str) -> str:
    return f"would release item {item} of {run_id} by {how.value}: {reason}"
