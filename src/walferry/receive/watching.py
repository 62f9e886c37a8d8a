"""Watch a run to which a source replicates, without serving it: what a person must know is told as troubles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from walferry.clock import duration, now_ms
from walferry.ledger import RunLedger
from walferry.run.progress.lag import lag_of
from walferry.run.progress.receiving import pending_histories
from walferry.run.progress.state import state_of
from walferry.run.progress.states import State, StateName
from walferry.run.recorded_spec import options_of

LONGEST_WAIT_MS = 600_000
"""a source that is refused waits longer and longer before it tries again, up to five minutes: a process that has
refused nothing for this long has mended"""
_FIRST_REFUSAL = "first refusal"

Event = Literal["receive", "lag"]


@dataclass(frozen=True)
class Trouble:
    """Something for which edits do not arrive in time. `key`: the same as long as it is the same trouble."""

    event: Event
    key: str
    text: str


@dataclass(frozen=True)
class Seen:
    """What one look has found."""

    state: StateName
    cause: str
    troubles: tuple[Trouble, ...]
    lag_seconds: float | None
    """None: no edit came within the last minute"""
    processes: int
    """that serve the run"""
    refused: int
    """calls, by all processes that are not forgotten"""


def look(ledger: RunLedger, tolerated_seconds: float) -> Seen:
    """Look once. Nobody serving, and refusals, are troubles once they have lasted for `tolerated_seconds`.

    Which refusal was the first one is kept in the ledger, so that another process can go on with the watch.
    """
    now, state, lag = now_ms(), state_of(ledger), lag_of(ledger)
    known = ledger.received.receivers()
    refusals = [one.last_refusal_ms for one in known if one.last_refusal_ms is not None]
    found = [
        *_nobody(state, now, tolerated_seconds * 1000),
        *_waiting(ledger, now, tolerated_seconds * 1000),
        *_refusing(ledger, state, max(refusals, default=0), now, tolerated_seconds * 1000),
    ]
    most = options_of(ledger.record).max_lag
    if lag.seconds is not None and lag.seconds > most:
        text = f"the newest edits were {duration(lag.seconds)} old when they were applied; max_lag is {most} s"
        found.append(Trouble("lag", "lag", text))
    serving, refused = sum(one.serves(now) for one in known), sum(one.refused for one in known)
    return Seen(state.name, state.cause, tuple(found), lag.seconds, serving, refused)


def _nobody(state: State, now: int, tolerated_ms: float) -> list[Trouble]:
    if state.name != "no receiver" or now - state.since_ms < tolerated_ms:
        return []
    text = f"{state.cause}; the source keeps its log meanwhile: {state.next_step}"
    return [Trouble("receive", "no receiver", text)]


def _waiting(ledger: RunLedger, now: int, tolerated_ms: float) -> list[Trouble]:
    """The troubles that copies of what tables had already cannot go on."""
    return [
        Trouble("receive", f"history of {table}", f"{table}: {one.describe()}")
        for table, one in pending_histories(ledger).items()
        if one.waits and now - one.waits_ms >= tolerated_ms
    ]


def _refusing(ledger: RunLedger, state: State, newest_ms: int, now: int, tolerated_ms: float) -> list[Trouble]:
    """The trouble that a process refuses, from the first refusal that was seen until none has come for a while."""
    kept = ledger.notes.get(_FIRST_REFUSAL)
    if now - newest_ms >= LONGEST_WAIT_MS:
        if kept is not None:
            ledger.notes.drop(_FIRST_REFUSAL)
        return []
    if kept is None:
        kept = {"at_ms": newest_ms}
        ledger.notes.keep(_FIRST_REFUSAL, kept)
    lasted_ms = newest_ms - kept["at_ms"]
    if lasted_ms < tolerated_ms:
        return []
    text = f"calls of the source have been refused for {duration(lasted_ms / 1000)}"
    return [Trouble("receive", "refusing", f"{text}: {state.cause}" if state.name == "refusing" else text)]
