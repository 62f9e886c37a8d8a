"""The `walferry` command: the same engine as the DAG, without Airflow.

Exit codes: 0 done, 1 failed, 2 usage, 3 unfinished input, 4 damaged input, 5 sides differ, 6 gap.
"""

from __future__ import annotations

import json
import logging
import select
import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from walferry.errors import SidesDifferError, UsageError, WalferryError
from walferry.ledger import Ledger, user_name
from walferry.process import DEFAULT_REPORTS, REPORTS_VARIABLE, set_up_logging
from walferry.run.spec import ResolvedSpec, environment_connection, load_spec, refuse_window, resolve

app = typer.Typer(
    help="Move live HBase tables between clusters, replay the write-ahead log, and prove that nothing was lost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
wal_app = typer.Typer(help="Look into WAL files.", no_args_is_help=True)
quarantine_app = typer.Typer(help="Edits that could not be applied, and the way out.", no_args_is_help=True)
app.add_typer(wal_app, name="wal")
app.add_typer(quarantine_app, name="quarantine")

SpecFile = Annotated[Path, typer.Argument(help="the migration's YAML file, see migration.example.yaml")]
RunName = Annotated[str, typer.Argument(metavar="NAME", help="name of the migration, or id of a run")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done; change nothing")]
Folder = Annotated[Path, typer.Option(envvar=REPORTS_VARIABLE, help="where reports and Data Docs go")]
LedgerUrl = Annotated[
    str | None, typer.Option("--ledger", envvar="WALFERRY_LEDGER", help="sqlite:///… or postgresql+psycopg2://…")
]


class Resolution(StrEnum):
    """Ways out of the quarantine."""

    retry = "retry"
    rpc = "rpc"
    reread = "reread"
    accept = "accept"


def main() -> None:
    """Run the command; every error that the user can mend is one line on stderr."""
    set_up_logging()
    try:
        app()
    except WalferryError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is missing: install walferry with its extras spark, checks and, for a "
              "ledger on PostgreSQL, postgres", file=sys.stderr)  # fmt: skip
        sys.exit(1)
    except OSError as error:  # a folder that cannot be written to
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)


def _existing(url: str | None) -> Ledger:
    """The ledger for a verb about a run that is in it: nothing is made where there is none."""
    return Ledger.open(url, create=False)


def _resolved(spec: Path) -> ResolvedSpec:
    given = load_spec(spec)
    refuse_window(given, str(spec))
    return resolve(given, environment_connection)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True, default=str))


@app.command()
def plan(spec: SpecFile, as_json: AsJson = False) -> None:
    """Examine both clusters and say what a run would meet. Changes nothing."""
    from walferry.migration.plan import make_plan, require

    found = make_plan(_resolved(spec))
    if as_json:
        _print_json(asdict(found))
    else:
        print(f"source: HBase {found.source_version}, cluster {found.source_cluster_id}")
        print(f"target: HBase {found.target_version}, cluster {found.target_cluster_id}")
        for table in found.tables:
            print(
                f"{table.source} -> {table.target}: {table.regions} regions, {table.bytes / 1e6:.1f} MB in files, "
                f"at least {table.memstore_bytes / 1e6:.1f} MB in memory, "
                f"families {', '.join(table.families)}"
            )
        print(f"write-ahead log: {found.wal_files} files, {found.wal_bytes / 1e6:.1f} MB")
        for finding in found.findings:
            print(f"{finding.level}: {finding.subject}: {finding.message}")
    require(found)


@app.command()
def start(
    spec: SpecFile,
    yes: Annotated[
        bool, typer.Option("--yes", help="approve the cutover and confirm the write stop beforehand")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    reports: Folder = DEFAULT_REPORTS,
    ledger: LedgerUrl = None,
) -> None:
    """Run a migration from plan to release, or go on with the unfinished one of that name."""
    resolved = _resolved(spec)
    if dry_run:
        plan(spec, as_json)
        if not as_json:
            print(f"would run: {', '.join(_phases())}")
        return
    with Ledger.open(ledger) as book:
        run = book.open_run(resolved.name, _owner(), resolved.as_recorded(), _owner())
        _go(book, run.run_id, yes, reports, as_json)


def _phases() -> tuple[str, ...]:
    from walferry.run.phases import phases_of

    return tuple(phase.name for phase in phases_of("migration"))


def _owner() -> str:
    return f"cli {user_name()}"


def _go(book: Ledger, run_id: str, yes: bool, reports: Path, as_json: bool) -> None:
    from walferry.pipeline import Means, migrate, write_report
    from walferry.run.heartbeat import beating
    from walferry.run.run import Run
    from walferry.spark.session import open_session

    def ask(question: str, at_work: Callable[[], None]) -> bool:
        return yes or _ask(question, at_work)

    with Run(book, run_id) as run, beating(run.ledger, "", run.actor):
        try:
            migrate(run, ask, Means(cache(partial(open_session, f"walferry {run_id}")), reports / "data_docs"))
        except BaseException as error:
            try:
                write_report(run, reports)
            except WalferryError as second:  # it must not hide the first
                print(f"no report was written: {second}", file=sys.stderr)
            if isinstance(error, KeyboardInterrupt):
                print(f"interrupted; `walferry resume {run.record.name}` goes on from here", file=sys.stderr)
            raise
        path = write_report(run, reports)
    print(path.with_suffix(".json" if as_json else ".txt").read_text(), end="")


class _Prompt(logging.Handler):
    """Shows the open question again after each line of the log, so that it is always the last one."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def emit(self, record: logging.LogRecord | None) -> None:
        print(f"{self.question} [y/N]: ", end="", file=sys.stderr, flush=True)


def _ask(question: str, at_work: Callable[[], None]) -> bool:
    """Ask at the terminal and call `at_work` each second until there is an answer. UsageError where nobody can answer.

    The question comes on stderr: stdout is for the report.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can answer here: run in a terminal, or with --yes")
    prompt = _Prompt(question)
    logging.getLogger().addHandler(prompt)
    try:
        while True:
            prompt.emit(None)
            while not select.select([sys.stdin], [], [], 1.0)[0]:
                at_work()
            answer = sys.stdin.readline().strip().lower()
            if answer in ("y", "yes"):
                return True
            if answer in ("", "n", "no"):
                return False
            print("answer y or n", file=sys.stderr)
    finally:
        logging.getLogger().removeHandler(prompt)


@app.command()
def status(name: RunName, as_json: AsJson = False, ledger: LedgerUrl = None) -> None:
    """Say where a run stands: its state with cause and next step, phase, edits applied, backlog, lag, ETA."""
    from walferry.run.status import status as facts_of
    from walferry.run.status import status_line

    with _existing(ledger) as book:
        facts = facts_of(book.of(book.find(name).run_id))
    if as_json:
        _print_json(facts)
    else:
        print(f"{facts['run']}: {status_line(facts)}")
        print(f"{facts['state']}: {facts['cause']}")
        print(f"next step: {facts['next_step']}")


@app.command()
def pause(
    name: RunName,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")] = "",
    dry_run: DryRun = False,
    ledger: LedgerUrl = None,
) -> None:
    """Ask the replay to wait after its present round."""
    from walferry.run.state import state_of

    with _existing(ledger) as book:
        run = book.find(name)
        if dry_run:
            print(f"would pause {run.run_id} ({state_of(book.of(run.run_id)).name} now)")
            return
        book.set_paused(run.run_id, True, _owner(), reason)
        print(f"{run.run_id} pauses after its present round; `walferry resume {run.name}` goes on")


@app.command()
def resume(
    name: RunName,
    yes: Annotated[
        bool, typer.Option("--yes", help="approve the cutover and confirm the write stop beforehand")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    reports: Folder = DEFAULT_REPORTS,
    ledger: LedgerUrl = None,
) -> None:
    """Let a paused run go on; a run started from the shell is taken up here, one in Airflow there."""
    from walferry.run.state import state_of

    with _existing(ledger) as book:
        run = book.find(name)
        if run.spec.get("window"):
            raise UsageError(
                f"run {run.run_id} is that of a window: `walferry replay SPEC --from … --to …` goes on with it",
                run=run.run_id,
            )
        if dry_run:
            print(f"would resume {run.run_id} ({state_of(book.of(run.run_id)).name} now, owner {run.owner})")
            return
        was_paused = run.paused
        book.set_paused(run.run_id, False, _owner())
        if run.owner.startswith("airflow"):
            print(f"{run.run_id} goes on in Airflow ({run.owner})")
        elif was_paused and _at_work(book, run.run_id):
            print(f"{run.run_id} goes on in the process that runs it")
        else:
            book.adopt_run(run.run_id, _owner(), _owner())
            _go(book, run.run_id, yes, reports, as_json)


def _at_work(book: Ledger, run_id: str) -> bool:
    """Whether somebody holds the lease of the run's first target table now."""
    from walferry.replay import lease
    from walferry.run.run import Run

    with Run(book, run_id) as run:
        return lease.holder_of(run.target.zk, run.tables[0].target) is not None


@app.command()
def abort(
    name: RunName,
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """End a run and remove its peer and snapshots. Target tables stay as they are."""
    from walferry.pipeline import abort as abort_run
    from walferry.run.run import Run

    with _existing(ledger) as book:
        record = book.find(name)
        left = [o for o in book.of(record.run_id).objects.all() if o.state != "removed" and o.kind != "table"]
        made = [f"{o.cluster} {o.kind} {o.name}" for o in left]
        if not dry_run:
            with Run(book, record.run_id) as run:
                abort_run(run, reason)
    if as_json:
        _print_json({"run": record.run_id, "dry_run": dry_run, "removed": made})
    elif dry_run:
        print(f"would abort {record.run_id} and remove: {', '.join(made) or 'nothing'}")
    else:
        print(f"{record.run_id} aborted; removed: {', '.join(made) or 'nothing'}")


@app.command()
def replay(
    name: Annotated[str, typer.Argument(metavar="NAME|SPEC", help="an unfinished run; with a window, a YAML spec")],
    from_: Annotated[str | None, typer.Option("--from", metavar="TIME", help="a window's start, ISO 8601, UTC")] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="its end, not included")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Apply the log: all that is sealed now for an unfinished run, or one time window into tables that are there.

    Without a window it stops when the lag is small. With one, exit 3: the window is not over yet; exit 6: a part of
    its log is gone.
    """
    if (from_ is None) != (to is None):
        raise UsageError("a window needs both --from and --to")
    if from_ is not None and to is not None:
        _replay_window(Path(name), {"from": from_, "to": to}, dry_run, as_json, ledger)
    else:
        _replay_run(name, dry_run, as_json, ledger)


def _replay_run(name: str, dry_run: bool, as_json: bool, ledger: str | None) -> None:
    from walferry.replay.follower import replay as follow
    from walferry.run.progress import caught_up, unapplied
    from walferry.run.run import Run
    from walferry.spark.session import open_session

    with _existing(ledger) as book:
        record = book.find(name)
        if dry_run:
            waiting = unapplied(book.of(record.run_id))
            size = sum(file.length for file in waiting)
            if as_json:
                _print_json({"run": record.run_id, "files": len(waiting), "bytes": size})
            else:
                print(
                    f"would apply {len(waiting)} files ({size / 1e6:.1f} MB) known so far, and what the next cut seals"
                )
            return
        with Run(book, record.run_id) as run:
            follow(run, open_session(record.run_id), until=lambda: caught_up(run.ledger))
        rounds = book.of(record.run_id).rounds.all()
    if as_json:
        _print_json({"run": record.run_id, "rounds": len(rounds), "lag_seconds": rounds[-1].lag_ms / 1000})
    else:
        print(f"{record.run_id}: {len(rounds)} rounds, lag {rounds[-1].lag_ms / 1000:.1f} s")


def _replay_window(path: Path, window: dict[str, str], dry_run: bool, as_json: bool, ledger: str | None) -> None:
    from walferry.replay.window import describe, open_window, plan_window, planned, replay_window, require_targets
    from walferry.run.run import Run
    from walferry.run.spec import with_window
    from walferry.spark.session import open_session

    spec = resolve(with_window(load_spec(path), window), environment_connection)
    with Ledger.open(ledger) as book:
        if dry_run:
            with Run(book, planned(spec)) as run:
                require_targets(run)
                facts = describe(plan_window(run))
            if as_json:
                _print_json(facts)
            else:
                print("\n".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items()))
            return
        record = open_window(book, spec, _owner())
        with Run(book, record.run_id) as run:
            done = replay_window(run, lambda: open_session(record.run_id))
    if as_json:
        _print_json({"run": record.run_id, **done})
    else:
        print(
            f"{record.run_id}: {done['cells']} cells of {done['files']} files applied; {done['outranked']} stayed out, "
            "because the target has later edits of them"
        )


@app.command()
def verify(name: RunName, as_json: AsJson = False, ledger: LedgerUrl = None) -> None:
    """Compare both sides of a run's tables now; exit 5 when something would shut the last gate.

    Reads both clusters and changes neither. The ledger keeps the outcome; the gate goes by the run's own comparison.
    """
    from walferry.migration.compare import compare
    from walferry.run.run import Run
    from walferry.spark.session import open_session

    with _existing(ledger) as book:
        record = book.find(name)
        book.verify_audit()
        with Run(book, record.run_id) as run:
            spark = open_session(f"{record.run_id} verify")
            results = [compare(run, spark, pair.source) for pair in run.tables]
    if as_json:
        _print_json([result.facts() for result in results])
    else:
        for result in results:
            facts = result.facts()
            print(f"{facts.pop('table')}: " + ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in facts.items()))
    if any(r.shuts_the_gate for r in results):
        raise SidesDifferError(
            f"run {record.run_id}: source and target differ; `walferry report {record.name}` shows where"
        )


@app.command()
def accept(
    name: RunName,
    table: Annotated[str, typer.Option(help="source table")],
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    row: Annotated[list[str] | None, typer.Option(help=r"row key as the report writes it, with \x.. escapes")] = None,
    all_: Annotated[bool, typer.Option("--all", help="all rows that wait for a decision now")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Decide to live with rows that differ and that the log does not hold (class not-in-log).

    The decision is about exactly the cells that the comparison named. Then resume the run, or clear `check_drain`.
    """
    from walferry.migration import accept as decisions

    if bool(row) == all_:
        raise UsageError("say which rows: either --row, once or several times, or --all")
    with _existing(ledger) as book:
        run = book.of(book.find(name).run_id)
        chosen = decisions.accept(run, table, row, reason, _owner(), dry_run=dry_run)
        items = [decisions.describe(item, run.comparisons.accepted()) for item in chosen]
    if as_json:
        _print_json({"run": run.run_id, "dry_run": dry_run, "accepted": items})
    for item in [] if as_json else items:
        print(f"{'would accept' if dry_run else 'accepted'} {item['row']} of {item['table']}: {item['detail']}")


@app.command()
def report(name: RunName, as_json: AsJson = False, reports: Folder = DEFAULT_REPORTS, ledger: LedgerUrl = None) -> None:
    """Print what a run did and found, and write it beside the audit trail's head."""
    from walferry.migration.report import write

    with _existing(ledger) as book:
        run_id = book.find(name).run_id
        path = write(book.of(run_id), reports / run_id)
    print(path.with_suffix(".json" if as_json else ".txt").read_text(), end="")


@quarantine_app.command("list")
def quarantine_list(name: RunName, as_json: AsJson = False, ledger: LedgerUrl = None) -> None:
    """List what could not be applied."""
    from walferry.replay.quarantine import describe

    with _existing(ledger) as book:
        items = [describe(item) for item in book.of(book.find(name).run_id).quarantine.items()]
    if as_json:
        _print_json(items)
        return
    table = Table("id", "state", "table", "region", "file", "start", "reason")
    for item in items:
        table.add_row(*(str(item[key]) for key in ("id", "state", "table", "region", "file", "start", "reason")))
    Console().print(table if items else "the quarantine is empty")


@quarantine_app.command("show")
def quarantine_show(name: RunName, item: int, ledger: LedgerUrl = None) -> None:
    """Show one item, its bytes in hex."""
    from walferry.replay.quarantine import describe, find_item

    with _existing(ledger) as book:
        found = find_item(book.of(book.find(name).run_id), item)
    _print_json(describe(found) | {"data": found.data.hex()})


@quarantine_app.command("release")
def quarantine_release(
    name: RunName,
    item: int,
    how: Annotated[
        Resolution,
        typer.Option(help="retry: apply again; rpc: past Thrift; reread: copy the rows anew; accept: leave out"),
    ],
    reason: Annotated[str, typer.Option(help="recorded in the audit trail")],
    dry_run: DryRun = False,
    ledger: LedgerUrl = None,
) -> None:
    """Decide about an item; the next replay round carries it out."""
    from walferry.replay.quarantine import check_release, release
    from walferry.run.run import Run

    with _existing(ledger) as book, Run(book, book.find(name).run_id) as run:
        if dry_run:
            check_release(run, item, how.value)
            print(f"would release item {item} of {run.run_id} by {how.value}: {reason}")
            return
        release(run, item, how.value, reason)
        window = run.spec.window is not None
        print(f"item {item} released by {how.value}; " + (
            "run the window again to carry it out" if window else "the next round carries it out"))  # fmt: skip


@wal_app.command("cat")
def wal_cat(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="local path or webhdfs://host:port/path")],
) -> None:
    """Print every cell of WAL files as JSON, one object a line; exit 3 for an unfinished file, 4 for a damaged one."""
    from walferry.wal.cat import cat

    raise typer.Exit(cat(files, sys.stdout, sys.stderr))


if __name__ == "__main__":
    main()
