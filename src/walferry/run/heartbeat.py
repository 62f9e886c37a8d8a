"""A sign of life: whoever works on a run renews a note in the ledger, so that a kill -9 shows within seconds."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from walferry.errors import WalferryError
from walferry.ledger import RunLedger

log = logging.getLogger(__name__)

NOTE = "at work"
BEAT_SECONDS = 3.0
SILENT_SECONDS = 15.0
"""without a beat for so long, a process counts as gone"""


@contextmanager
def beating(ledger: RunLedger, label: str, actor: str) -> Iterator[None]:
    """Renew the note of `label` (a phase with its table, or "" for a whole command) until the block ends.

    A beat that the ledger does not take is skipped: a sign of life must not stop the work.
    """
    ended = threading.Event()
    facts = {"by": actor, "pid": os.getpid(), "machine": _machine()}

    def beat() -> None:
        try:
            ledger.notes.keep(NOTE, facts, label)
        except WalferryError as error:
            log.debug("no sign of life was kept: %s", error)

    def go_on() -> None:
        while not ended.wait(BEAT_SECONDS):
            beat()

    beat()
    thread = threading.Thread(target=go_on, name=f"heartbeat {label}".strip(), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            ledger.notes.drop(NOTE, label)
        except WalferryError as error:
            log.debug("the sign of life was not taken back: %s", error)


def alive(ledger: RunLedger, now_ms: int) -> set[str]:
    """Labels of those who are at work; "" is a whole command.

    Their last beat is younger than `SILENT_SECONDS`. One of this machine must also be there still: after a kill -9 it
    counts as gone at once.
    """
    signs = ledger.notes.named(NOTE)
    return {
        label for label, (facts, at_ms) in signs.items()
        if now_ms - at_ms < SILENT_SECONDS * 1000 and not _gone(facts)
    }  # fmt: skip


def _gone(facts: Mapping[str, Any]) -> bool:
    """Whether a process that gave a sign of life was on this machine and ended since; of others nothing is known."""
    if facts.get("machine") != _machine():
        return False
    try:
        os.kill(int(facts["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is another user's, so it is there
    return False


def _machine() -> str:
    """Where the number of a process means something: containers have numbers of their own, and may share a name."""
    try:
        numbers = os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux
        numbers = ""
    return f"{socket.gethostname()} {numbers}".strip()
