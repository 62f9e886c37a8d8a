"""Errors that reach the user: what happened, to which thing, and what to do.

Every error carries its facts as attributes (`facts`), can be pickled (Spark and Airflow send errors between
processes), and belongs to one of two families: a `TransientError` may pass by itself and is retried a bounded number
of times; every other `WalferryError` is final.
"""

from __future__ import annotations

import builtins
import re
from typing import Any


class WalferryError(Exception):
    """Something failed for good; the message names it and says what to do."""

    exit_code = 1

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.facts))

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)


def _rebuild(kind: type[WalferryError], message: str, facts: dict[str, Any]) -> WalferryError:
    return kind(message, **facts)


class TransientError(WalferryError):
    """May pass by itself: a server restarts, a region moves, a connection breaks."""


def is_transient(error: BaseException) -> bool:
    """Whether another attempt may succeed. An error that is not walferry's own (a bug, a kill) may also pass."""
    return isinstance(error, TransientError) or not isinstance(error, WalferryError)


def causes(error: BaseException) -> list[BaseException]:
    """The error and the chain of its causes; one that is its own cause, somehow, comes once."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) and cause not in found:
        found.append(cause)
    return found


class UsageError(WalferryError):
    """The user's input cannot be used as it is: a spec, a parameter, a connection."""

    exit_code = 2


class UnfinishedInputError(WalferryError):
    """A file ends inside an entry, or before its header is complete."""

    exit_code = 3


class DamagedInputError(WalferryError):
    """Bytes that no HBase writes: facts `file`, `offset`, `reason`."""

    exit_code = 4


class UnreadableInputError(DamagedInputError):
    """A whole file of a kind that walferry cannot read yet, refused by its name (codec, compression, encryption)."""


class WalKeyError(UsageError):
    """An encrypted WAL cannot be opened because its key is missing or wrong; the file itself may be whole."""


class WrongWalKeyError(WalKeyError):
    """None of the keys opens a WAL: another key wrapped the file's own key, or the header is damaged."""


class SidesDifferError(WalferryError):
    """The comparison found an unexplained difference."""

    exit_code = 5


class DecisionNeededError(SidesDifferError):
    """Only a person's decision about named rows is missing: `walferry accept`; facts `regions`, `rows`."""


class GapError(WalferryError):
    """A byte range of the log is missing: facts `file`, `start`, `end`."""

    exit_code = 6


class GateShutError(WalferryError):
    """A gate of the run is shut: the next step is not allowed yet; fact `reasons`."""


def as_printed(error: WalferryError) -> str:
    """An error for a terminal: its message, with several `refusals` (a fact, which ends it) on lines of their own."""
    refusals = error.facts.get("refusals", ())
    if len(refusals) < 2:
        return error.message
    return "\n  ".join((error.message.removesuffix("; ".join(refusals)).rstrip(), *refusals))


_RECORDED = re.compile(r"([A-Z]\w*): ?(.*)", re.DOTALL)


def as_recorded(error: BaseException) -> str:
    """An error as the ledger has it: its class, and what it says."""
    return f"{type(error).__name__}: {error}"


def class_of(recorded: str) -> str:
    """The class of a recorded error; "" for any other text, such as why a phase is to be done again."""
    found = _RECORDED.match(recorded)
    return found[1] if found else ""


def message_of(recorded: str) -> str:
    """A recorded error as people read it, without its class."""
    found = _RECORDED.match(recorded)
    if found is None:
        return recorded
    name, text = found.groups()
    if name == KeyboardInterrupt.__name__:
        return "interrupted"
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and not issubclass(kind, OSError):  # a bug: its text may be a single word
        return f"unexpected error (the log of its process has the details): {text}".removesuffix(": ")
    return text or "the log of its process says why"
