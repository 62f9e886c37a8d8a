"""Opens the ledger's database, brings its schema up to date, and provides transactions.

Both databases have one writer at a time. SQLite uses BEGIN IMMEDIATE. PostgreSQL uses an advisory lock, held to the end
of the transaction. That transaction is READ COMMITTED, because a snapshot from before the lock would not show what the
last writer wrote. So nothing that a write transaction reads can change before the commit, and the audit chain never
forks.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from tenacity import retry, retry_if_exception_message, stop_after_delay, wait_random_exponential

from walferry.clock import now_ms
from walferry.errors import TransientError, UsageError, WalferryError

BUSY_TIMEOUT_S = 30
IDLE_TIMEOUT_S = 30
_IDLED = "25P03"
"""PostgreSQL's code for a session that it has ended for that"""
TABLES = (
    "schema_versions",
    "runs",
    "run_tables",
    "phases",
    "objects",
    "leases",
    "fences",
    "applied_groups",
    "verified_groups",
    "wal_files",
    "known_regions",
    "staged_files",
    "bases",
    "region_numbers",
    "number_gaps",
    "counted_numbers",
    "late_edits",
    "repaired_rows",
    "looked_differences",
    "wal_ranges",
    "quarantine",
    "held_regions",
    "comparisons",
    "compared_tables",
    "accepted_differences",
    "differences",
    "rounds",
    "round_totals",
    "batches",
    "pieces",
    "audit",
    "notes",
    "passes",
    "peer_looks",
    "received_calls",
    "received_floors",
    "received_totals",
    "receivers",
    "pass_positions",
    "pass_regions",
    "pass_differences",
    "coverage",
    "gaps",
)

_WRITER_LOCK = 0x77616C66  # "walf": our key for PostgreSQL's advisory lock
_WRITERS_TURN = text(
    "SELECT set_config('idle_in_transaction_session_timeout', :idle, true), pg_advisory_xact_lock(:key)"
)
"""PostgreSQL ends the session of a writer that has its turn and is suspended: else all others would wait for it"""
_REFLECTED: dict[str, dict[str, Table]] = {}
_NO_TRUST = re.compile(r".*(certificate|private key|does not support SSL).*")
"""matches the line in which libpq says that the server or a file is not as the URL's sslmode wants it"""
_MIGRATION_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class NoLedgerError(UsageError):
    """There is no ledger yet; fact `ledger`."""


class Database:
    """An open ledger database: `url` without its password, `tables` by name, `read()` and `write()` transactions."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Open `url` and migrate it; without `create` only open it.

        Raises UsageError for a URL that is not a SQLite file or a PostgreSQL database, for a schema newer than this
        walferry, for a ledger from before 0.1.0 and, without `create`, for a missing ledger or an older schema;
        TransientError when the database does not answer.
        """
        parsed = _parse_url(url)
        self.url = parsed.render_as_string(hide_password=True)
        if not create and parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
            raise NoLedgerError(f"there is no ledger at {self.url}: the first run creates it", ledger=self.url)
        self._engine = _engine(parsed)
        self._moment = threading.local()
        """`connection`: this thread's, within `one_moment`"""
        self._migrate(create)
        with self.read() as connection:
            self.tables = _tables(connection)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read-only transaction, which never waits for a writer. On SQLite the transaction sees one snapshot."""
        shared: Connection | None = getattr(self._moment, "connection", None)
        if shared is not None:
            with self._errors():
                yield shared
            return
        with self._errors(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Until the block ends, all `read()` of this thread are one transaction, which sees one snapshot.

        The block does not see what it writes itself. An error in a read must end it: PostgreSQL refuses further reads.
        """
        if getattr(self._moment, "connection", None) is not None:
            yield
            return
        with self._errors(), self._engine.connect() as plain:
            postgresql = plain.dialect.name == "postgresql"
            connection = plain.execution_options(isolation_level="REPEATABLE READ") if postgresql else plain
            with connection.begin():
                self._moment.connection = connection
                try:
                    yield
                finally:
                    self._moment.connection = None

    @contextmanager
    def now(self) -> Iterator[None]:
        """Until the block ends, each `read()` of this thread sees what is committed by then, even in `one_moment`."""
        shared: Connection | None = getattr(self._moment, "connection", None)
        self._moment.connection = None
        try:
            yield
        finally:
            self._moment.connection = shared

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """An exclusive transaction: commit everything, or nothing when the block raises."""
        with self._errors(), self._engine.connect() as plain:
            connection = plain.execution_options(walferry_write=True)
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(_WRITERS_TURN, {"key": _WRITER_LOCK, "idle": f"{IDLE_TIMEOUT_S}s"})
                yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OperationalError as error:
            distrust = _NO_TRUST.search(str(error.orig))
            if distrust is not None:
                raise UsageError(
                    f"the ledger {self.url} is not used: {distrust[0]}; see sslmode, sslrootcert, sslcert and sslkey "
                    "in its URL",
                    ledger=self.url,
                ) from error
            raise TransientError(
                f"the ledger {self.url} did not answer: {_first_line(error)}; check that it can be reached",
                ledger=self.url,
            ) from error
        except PoolTimeoutError as error:
            raise TransientError(
                f"the ledger {self.url}: all connections of this process were busy for too long", ledger=self.url
            ) from error
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) == _IDLED:
                raise TransientError(
                    f"the ledger {self.url} did not wait: this process was suspended for more than {IDLE_TIMEOUT_S} s "
                    "while it wrote, and nothing of that is recorded",
                    ledger=self.url,
                ) from error
            raise WalferryError(f"the ledger {self.url} refused: {_first_line(error)}", ledger=self.url) from error

    # Several processes may open a new SQLite file at once; the switch to WAL mode does not wait for a lock.
    @retry(
        retry=retry_if_exception_message(match=".*database is locked"),
        stop=stop_after_delay(BUSY_TIMEOUT_S),
        wait=wait_random_exponential(multiplier=0.05, max=1),
        reraise=True,
    )
    def _migrate(self, create: bool) -> None:
        known = _migrations()
        with self.read() as connection:
            current, name = _schema_version(connection)
            unreleased = current > 0 and _is_unreleased(connection)
        if unreleased:
            raise UsageError(
                f"a walferry from before 0.1.0 made the ledger {self.url} (schema {current}, {name}), and this one "
                "cannot read it: end its unfinished runs with the walferry that made it, keep it as the record of its "
                "runs, and name another ledger for new runs (WALFERRY_LEDGER)",
                ledger=self.url,
                schema=current,
            )
        if current > max(known):
            raise UsageError(
                f"the ledger {self.url} has schema {current} ({name}), newer than the {max(known)} that this walferry "
                "knows: install the newer walferry, or use another ledger",
                ledger=self.url,
                schema=current,
            )
        if current == max(known):
            return
        if not create:
            what = f"has schema {current}, but this walferry reads {max(known)}" if current else "is empty"
            raise (UsageError if current else NoLedgerError)(
                f"the ledger {self.url} {what}: the next run brings it up to date", ledger=self.url, schema=current
            )
        with self.write() as connection:
            current, _ = _schema_version(connection)  # another process may have been faster
            for version in sorted(version for version in known if version > current):
                _apply(connection, version, known[version])


def sql_directory() -> Path:
    """The folder of the numbered SQL files: inside the package in a wheel, at the top of a source tree."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "sql", here.parents[3] / "sql"):
        if folder.is_dir():
            return folder
    raise WalferryError(f"the ledger's SQL files are missing beside {here}: reinstall walferry")


def _migrations() -> dict[int, Path]:
    """The portable file of each version."""
    found = {}
    for path in sql_directory().iterdir():
        match = _MIGRATION_FILE.fullmatch(path.name)
        if match:
            found[int(match[1])] = path
    return found


def _schema_version(connection: Connection) -> tuple[int, str]:
    if not inspect(connection).has_table("schema_versions"):
        return 0, ""
    row = connection.execute(
        text("SELECT version, name FROM schema_versions ORDER BY version DESC LIMIT 1")
    ).one_or_none()
    return (int(row.version), str(row.name)) if row else (0, "")


def _is_unreleased(connection: Connection) -> bool:
    """Whether a walferry from before 0.1.0 made the ledger: its files 1 to 30 were different ones.

    File 2 was 0002_run_kinds and created `notes`. So a ledger that stopped at file 1 lacks that table.
    """
    run_kinds = text("SELECT COUNT(*) FROM schema_versions WHERE name = '0002_run_kinds'")
    return bool(connection.execute(run_kinds).scalar_one()) or not inspect(connection).has_table("notes")


def _tables(connection: Connection) -> dict[str, Table]:
    """Tables and views of the schema, reflected once: every open ledger has the newest schema."""
    dialect = connection.dialect.name
    if dialect not in _REFLECTED:
        metadata = MetaData()
        metadata.reflect(connection, views=True, only=TABLES)
        _REFLECTED[dialect] = dict(metadata.tables)
    return _REFLECTED[dialect]


def _apply(connection: Connection, version: int, path: Path) -> None:
    dialect_part = path.with_suffix(f".{connection.dialect.name}.sql")
    for part in (path, dialect_part):
        if part.exists():
            _run_script(connection, part.read_text(encoding="utf-8"))
    connection.execute(
        text("INSERT INTO schema_versions (version, name, applied_ms) VALUES (:version, :name, :now)"),
        {"version": version, "name": path.stem, "now": now_ms()},
    )


def _run_script(connection: Connection, script: str) -> None:
    """Run every statement of `script` in the open transaction."""
    cursor = connection.connection.cursor()
    if connection.dialect.name == "postgresql":
        cursor.execute(script)  # accepts several statements at once
        return
    # sqlite3's own executescript would commit first; complete_statement handles the semicolons inside a trigger.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            cursor.execute(statement)
            statement = ""


def _parse_url(given: str) -> URL:
    try:
        url = make_url(given)
    except ArgumentError as error:
        raise UsageError(
            "the ledger's URL cannot be read: give sqlite:////path/of/ledger.db or postgresql+psycopg2://..."
        ) from error
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UsageError(f"the ledger cannot be kept in {backend}: give a sqlite or postgresql URL")
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg2") if url.drivername == backend else url
    if url.database in (None, "", ":memory:"):
        raise UsageError("a ledger in memory would not outlive the process: give sqlite:////path/of/ledger.db")
    return url.set(database=str(Path(str(url.database)).absolute()))


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return create_engine(url, pool_pre_ping=True, pool_size=2, isolation_level="READ COMMITTED")
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # sqlite3 opens no transaction by itself: `_begin` does
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("walferry_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).strip().split("\n", 1)[0]
