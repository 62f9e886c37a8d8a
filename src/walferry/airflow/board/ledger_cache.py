"""The ledger for the pages: opened once per process, read-only, and queried at a limited rate."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from walferry.errors import UsageError, WalferryError
from walferry.ledger import Ledger
from walferry.process import ledger_url, open_ledger

KEPT_SECONDS = 1.0
ENDED_SECONDS = 30.0
_MOST_KEPT = 256


@dataclass
class _Answer:
    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    value: Any = None


class LedgerCache:
    """The ledger at $WALFERRY_LEDGER, and a cache of its answers.

    However many people watch, each query runs at most once a second, and its answer is kept for twice the time that
    the query took. So a large ledger slows the pages down, but not the migration.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._ledger: Ledger | None = None
        self._file: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()

    def ledger(self) -> Ledger:
        """The open ledger. Raises UsageError if there is no ledger or it cannot be used, and TransientError if it does
        not answer."""
        with self._lock:
            file = _file_of(self._url)
            if self._ledger is None or file != self._file:  # the file was replaced
                if self._ledger is not None:
                    self._ledger.close()
                self._ledger = None
                self._ledger = _open(self._url)
                self._file = _file_of(self._url)
                self._answers.clear()
            return self._ledger

    def kept(self, question: Hashable, work: Callable[[Ledger], dict[str, Any]]) -> bytes:
        """The answer to `question` as JSON, from the cache or from `work`. Errors are not cached."""
        ledger = self.ledger()
        answer: bytes = self._fresh(question, KEPT_SECONDS, lambda: json.dumps(work(ledger), default=str).encode())
        return answer

    def old_run(self, question: Hashable, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The overview's line for a run that has ended. Such a line hardly changes, so it is cached for longer."""
        facts: dict[str, Any] = self._fresh(("ended", question), ENDED_SECONDS, work)
        return facts

    def _fresh(self, question: Hashable, seconds: float, work: Callable[[], Any]) -> Any:
        with self._lock:
            answer = self._answers.setdefault(question, _Answer())
            self._answers.move_to_end(question)
            while len(self._answers) > _MOST_KEPT:
                self._answers.popitem(last=False)
        with answer.lock:
            began = time.monotonic()
            if began >= answer.until:
                answer.value = work()
                took = time.monotonic() - began
                answer.until = began + took + max(seconds, 2 * took)
            return answer.value


def _open(url: str | None) -> Ledger:
    try:
        return open_ledger(url, actor="board", create=False)
    except WalferryError:
        raise
    except SQLAlchemyError as error:
        raise UsageError("the database at $WALFERRY_LEDGER is not a ledger: its tables are missing") from error


def _file_of(url: str | None) -> tuple[int, int] | None:
    """Device and inode of a SQLite ledger; None if it does not exist, and for other databases."""
    try:
        parsed = make_url(url or ledger_url())
        if parsed.get_backend_name() != "sqlite" or not parsed.database:
            return None
        status = os.stat(parsed.database)
    except (OSError, SQLAlchemyError):
        return None
    return status.st_dev, status.st_ino
