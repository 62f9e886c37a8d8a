"""Parts shared by the verbs: arguments and options, opening the ledger, reading the spec, printing JSON.

Modules of `cli` import the other rooms inside the verbs, because `--help` and usage errors need none of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from walferry.errors import UsageError
from walferry.process import open_ledger

if TYPE_CHECKING:
    from rich.console import Console

    from walferry.ledger import Ledger
    from walferry.run.run import LogRun
    from walferry.run.spec import ResolvedSpec
    from walferry.security import Security

T = TypeVar("T")
AnyRun = TypeVar("AnyRun", bound="LogRun")

DEFAULT_REPORTS = Path(".run/reports")
"""same as in `settings.Places`, which is slow to import for `--help`"""

SpecFile = Annotated[Path, typer.Argument(help="the migration's YAML file; see migration.example.yaml")]
RunName = Annotated[str, typer.Argument(metavar="NAME", help="name of the run, or its id")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done; change nothing")]
Yes = Annotated[bool, typer.Option("--yes", help="approve the cutover and confirm the write stop beforehand")]
Folder = Annotated[Path, typer.Option(envvar="WALFERRY_REPORTS", help="where reports and Data Docs go")]
Principal = Annotated[str | None, typer.Option(help="who to be to a secured HDFS: name@REALM")]
Keytab = Annotated[str | None, typer.Option(help="path of the principal's keytab")]
TicketCache = Annotated[str | None, typer.Option("--ccache", help="instead of a keytab, a ticket cache")]
TlsAuthorities = Annotated[str | None, typer.Option(help="of HTTPS: PEM file with the only authorities to trust")]
TlsCertificate = Annotated[
    str | None, typer.Option(help="of HTTPS: PEM file with a certificate, for servers that want one")
]
TlsKey = Annotated[str | None, typer.Option(help="PEM file with its key, without a password")]
LedgerUrl = Annotated[
    str | None, typer.Option("--ledger", envvar="WALFERRY_LEDGER", help="sqlite:///… or postgresql+psycopg2://…")
]


def existing(url: str | None) -> Ledger:
    """The ledger, for a verb about an existing run. A missing ledger is not created."""
    return open_ledger(url, create=False)


@contextmanager
def ledger_if_any(url: str | None) -> Iterator[Ledger | None]:
    """The ledger, for a dry run that can do without; None if there is none yet."""
    from walferry.ledger import NoLedgerError

    try:
        book = existing(url)
    except NoLedgerError:
        yield None
        return
    with book:
        yield book


def resolved(spec: Path, *, pair: bool = False) -> ResolvedSpec:
    from walferry.run.given_spec import environment_connection, load_pair_spec, load_spec, refuse_window, resolve

    given = load_pair_spec(spec) if pair else load_spec(spec)
    refuse_window(given, str(spec))
    return resolve(given, environment_connection)


def given_security(
    urls: Iterable[str | None],
    principal: str | None,
    keytab: str | None,
    ccache: str | None,
    ca: str | None,
    certificate: str | None,
    key: str | None,
) -> Security:
    """What a verb's options say of the HDFS that its other arguments, `urls`, are of. Raises UsageError that names the
    option."""
    from walferry.security.spec import security_of

    identity = {"principal": principal, "keytab": keytab, "ccache": ccache}
    files = {"tls_ca": ca, "tls_certificate": certificate, "tls_key": key}
    return security_of("", identity | files, urls, lambda name: f"--{name.replace('_', '-')}")


def console() -> Console:
    """The console for tables. Without a terminal the line width is unknown; lines are then 240 wide instead of 80."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 240)


def tracked(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The items. On a terminal, a line shows how many of `total` (default: the number of items) are done, and how long
    the rest takes."""
    from rich.console import Console
    from rich.progress import track

    err = Console(stderr=True)
    return track(items, what, total=total, console=err, disable=not err.is_terminal, transient=True)


def print_versions(plan: Any) -> None:
    """Print version and cluster id of a plan's source and target."""
    print(f"source: HBase {plan.source_version}, cluster {plan.source_cluster_id}")
    print(f"target: HBase {plan.target_version}, cluster {plan.target_cluster_id}")


def print_findings(findings: Iterable[Any], refusal: str) -> None:
    """Print a plan's findings, a line each, but for those of the level `refusal`, which are in the error at the end."""
    for finding in findings:
        if finding.level != refusal:
            print(f"{finding.level}: {finding.subject}: {finding.message}")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True, default=str))


def owner() -> str:
    from walferry.ledger import user_name

    return f"cli {user_name()}"


def until_ended(run: AnyRun, work: Callable[[AnyRun], object]) -> None:
    """Work on a run in this process alone, until a person ends it."""
    from walferry.run.heartbeat import beating
    from walferry.run.run import RunEndedError

    with run, beating(run.ledger, "", run.actor, alone=True):
        try:
            work(run)
        except RunEndedError as ended:
            print(ended, file=sys.stderr)
        except KeyboardInterrupt:
            print(f"interrupted; `walferry resume {run.record.name}` continues from here", file=sys.stderr)
            raise


def require_idle_name(book: Ledger, name: str) -> None:
    """Raise RunBusyError if a live process works on the unfinished run of that name."""
    from walferry.run.heartbeat import require_idle

    try:
        run = book.find(name)
    except UsageError:
        return  # there is no run of that name yet
    if run.state == "running":
        require_idle(book.of(run.run_id))
