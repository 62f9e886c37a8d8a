"""`walferry replay`: apply the log of an unfinished run, or of one window."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from walferry.amounts import amount
from walferry.cli.options import (
    AsJson,
    DryRun,
    LedgerUrl,
    existing,
    owner,
    print_json,
)
from walferry.errors import UsageError
from walferry.process import open_ledger


def replay(
    name: Annotated[
        str, typer.Argument(metavar="NAME|SPEC", help="an unfinished run; with --from and --to, a YAML spec")
    ],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="start of a window, ISO 8601, UTC")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="end of the window, not included")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Apply the log: everything sealed now for an unfinished run, or one window to existing tables.

    Without a window it stops when the lag is small. With one, exit 3: the window is not complete yet; exit 6: part of
    its log no longer exists.
    """
    if (from_ is None) != (to is None):
        raise UsageError("a window needs both --from and --to")
    if from_ is not None and to is not None:
        _replay_window(Path(name), {"from": from_, "to": to}, dry_run, as_json, ledger)
    else:
        _replay_run(name, dry_run, as_json, ledger)


def _replay_run(name: str, dry_run: bool, as_json: bool, ledger: str | None) -> None:
    from walferry.replay.rounds import follower
    from walferry.run.progress.backlog import unapplied
    from walferry.run.progress.lag import caught_up
    from walferry.run.run import Run
    from walferry.spark.handing_over import with_new_tokens
    from walferry.spark.session import open_session

    with existing(ledger) as book:
        record = book.find(name)
        if dry_run:
            waiting = unapplied(book.of(record.run_id))
            size = sum(file.length for file in waiting)
            if as_json:
                print_json({"run": record.run_id, "files": len(waiting), "bytes": size})
            else:
                print(
                    f"would apply the {len(waiting)} files ({size / 1e6:.1f} MB) known now, and what the next cut seals"
                )
            return
        with Run(book, record.run_id) as run:
            spark = open_session(record.run_id)
            with_new_tokens(lambda: follower.replay(run, spark, until=lambda: caught_up(run.ledger)))
        rounds, last = book.of(record.run_id).rounds.totals().rounds, book.of(record.run_id).rounds.latest(1)[0]
    if as_json:
        print_json({"run": record.run_id, "rounds": rounds, "lag_seconds": last.lag_ms / 1000})
    else:
        print(f"{record.run_id}: {rounds} rounds, lag {last.lag_ms / 1000:.1f} s")


def _replay_window(path: Path, window: dict[str, str], dry_run: bool, as_json: bool, ledger: str | None) -> None:
    from walferry.replay.windows.window import (
        open_window,
        plan_window,
        planned,
        replay_window,
        require_targets,
        window_plan_facts,
    )
    from walferry.run.given_spec import environment_connection, load_spec, resolve, with_window
    from walferry.run.run import Run
    from walferry.spark.handing_over import with_new_tokens
    from walferry.spark.session import open_session

    spec = resolve(with_window(load_spec(path), window), environment_connection)
    with open_ledger(ledger) as book:
        if dry_run:
            with Run(book, planned(spec)) as run:
                require_targets(run)
                facts = window_plan_facts(plan_window(run))
            if as_json:
                print_json(facts)
            else:
                print("\n".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items()))
            return
        record = open_window(book, spec, owner())
        with Run(book, record.run_id) as run:
            done = with_new_tokens(lambda: replay_window(run, lambda: open_session(record.run_id)))
    if as_json:
        print_json({"run": record.run_id, **done})
    else:
        print(
            f"{record.run_id}: {amount(done['cells'], 'cell')} of {amount(done['files'], 'file')} applied; "
            f"{done['outranked']} left out, "
            "because the target has later edits of them"
        )
