"""What every walferry process does at its start and end: set up logging, open its run, report errors in one line."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from walferry.errors import WalferryError, as_printed

if TYPE_CHECKING:
    from walferry.ledger import Ledger
    from walferry.run.run import Run

QUIET = ("kazoo", "py4j", "great_expectations", "hdfs", "numba", "pyiceberg")


def set_up_logging() -> None:
    """Log to stderr, one line per event. Libraries log only at WARNING and above."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    quiet_libraries()


def quiet_libraries() -> None:
    """Let libraries log only at WARNING and above, and drop py4j's tracebacks: `fan_out.job` reports a dead JVM."""
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger().addFilter(_not_of_py4j)  # py4j logs them to the root logger; adding twice is harmless


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def warn_of_unknown_variables() -> None:
    """Log a warning, once, for each WALFERRY_ variable of this process that nothing reads."""
    if any(name.startswith("WALFERRY_") for name in os.environ):  # without any, skip the slow import
        from walferry import settings

        settings.warn_of_unknown_variables()


def reports_folder() -> Path:
    """The folder for reports and Data Docs: $WALFERRY_REPORTS, or else `.run/reports` in the working directory."""
    from walferry.settings import Places

    return Places.read().reports


def ledger_url() -> str:
    """$WALFERRY_LEDGER, or else `.run/ledger.db` in the working directory."""
    from walferry.settings import Places

    return Places.read().ledger.get_secret_value()


def open_ledger(url: str | None = None, *, actor: str | None = None, create: bool = True) -> Ledger:
    """The ledger at `url` (default: `ledger_url`). Raises the errors of `Ledger.open`.

    Also warns of unknown variables, unless this process has done so already.
    """
    from walferry.ledger import Ledger

    warn_of_unknown_variables()
    return Ledger.open(url or ledger_url(), actor=actor, create=create)


@contextmanager
def opened(run_id: str, actor: str | None = None) -> Iterator[Run]:
    """Open a run of the ledger at $WALFERRY_LEDGER. `actor` signs its audit lines (default: the OS user)."""
    # Imported here, so that the command's help does not need it.
    from walferry.run.run import Run

    with open_ledger(actor=actor) as ledger, Run(ledger, run_id, actor) as run:
        yield run


def run_app(work: Callable[[Run], None], run_id: str, parent: int | None, actor: str | None) -> NoReturn:
    """The body of a Spark app: do the work for a run, and exit with the exit code of its error, if any.

    `parent` is the process that submitted the app. If that process dies (kill -9), the app ends itself, so that no work
    continues for a task that Airflow has given up. `actor` signs the audit lines.
    """
    set_up_logging()
    if parent is not None:
        threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    code = 0
    try:
        with opened(run_id, actor) as run:
            work(run)
    except WalferryError as error:
        print(f"error: {as_printed(error)}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def _die_with(parent: int) -> None:
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            print(f"process {parent}, which submitted this app, has ended: the app ends", file=sys.stderr, flush=True)
            java = os.getppid()
            if java > 1:
                os.kill(java, signal.SIGKILL)
            os._exit(1)
        time.sleep(1.0)
