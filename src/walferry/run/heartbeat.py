"""Heartbeats: a process that works on a run renews a note in the ledger, so that a kill -9 shows within seconds.

The note also has the rate at which the process sends requests to the clusters, and which of its Kerberos tickets were
not renewed in time.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from walferry import clock
from walferry.background import beside
from walferry.errors import UsageError, WalferryError
from walferry.ledger import RunLedger
from walferry.request_meter import Rates, counted
from walferry.security import renewal

log = logging.getLogger(__name__)

NOTE = "at work"
BEAT_SECONDS = 3.0
LOOK_SECONDS = 10.0
"""between two looks at the tickets"""
SUBMITTED = "submitted"
LONGEST_START_SECONDS = 600.0
"""an app that has not started its phase after this long is not expected to start it any more"""
SILENT_SECONDS = 15.0
"""a process without a heartbeat for this long counts as dead"""


class RunBusyError(UsageError):
    """Another live process works on the run; facts `run`, `by`, `since_ms`."""


@contextmanager
def beating(ledger: RunLedger, label: str, actor: str, *, alone: bool = False) -> Iterator[None]:
    """Renew the note of `label` (a phase with its table, or "" for a whole command) until the block ends.

    The process that begins last has the note: one that was suspended, and overtaken meanwhile, leaves its successor's
    as it is. With `alone`, raises RunBusyError if another live process works on the run. A heartbeat that cannot be
    recorded is skipped: it must not stop the work.
    """
    me = {"since_ms": clock.now_ms()} | this_process()
    facts = {"by": actor} | me
    rates = Rates()

    def now() -> dict[str, Any]:
        return {"requests": rates(counted()), "tickets": renewal.faults()}

    def is_mine(note: Mapping[str, Any]) -> bool:
        return me.items() <= note.items()

    def is_anothers(subject: str, note: Mapping[str, Any], at_ms: int) -> bool:
        return subject == label and not is_mine(note) and _lives(note, at_ms)

    def beat() -> None:
        with _logged("a heartbeat was not recorded"):
            ledger.notes.keep_unless(NOTE, facts | now(), label, is_anothers)

    def go_on(ended: threading.Event) -> None:
        while not ended.wait(BEAT_SECONDS):
            beat()

    def look(ended: threading.Event) -> None:
        while not ended.wait(LOOK_SECONDS):
            renewal.look()  # which may wait for a KDC, as a heartbeat must not

    begun = facts | now()
    if alone:
        if other := ledger.notes.keep_unless(NOTE, begun, label, lambda _, note, at_ms: _lives(note, at_ms)):
            raise _busy(ledger, *other)
    else:
        with _logged("the first heartbeat was not recorded"):
            ledger.notes.keep(NOTE, begun, label)
    try:
        with beside(go_on, f"heartbeat {label}".strip()), beside(look, "tickets", end_seconds=0):
            yield
    finally:
        with _logged("the heartbeat was not removed"):
            ledger.notes.drop_if(NOTE, label, is_mine)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Only log an error of the ledger."""
    try:
        yield
    except WalferryError as error:
        log.debug("%s: %s", what, error)


def alive(ledger: RunLedger) -> set[str]:
    """Labels of what live processes are working on; "" is a whole command.

    A process lives while its last heartbeat is younger than `SILENT_SECONDS`. A process of this machine must also
    exist, so after a kill -9 it counts as dead at once.
    """
    return set(_signs(ledger))


def require_idle(ledger: RunLedger) -> None:
    """Raise RunBusyError if a live process works on the run."""
    notes = ledger.notes.named(NOTE)
    for label in sorted(_signs(ledger)):  # "", the whole command, comes first
        raise _busy(ledger, *notes[label])


def _busy(ledger: RunLedger, facts: Mapping[str, Any], at_ms: int) -> RunBusyError:
    run, silent_s = ledger.record, (clock.now_ms() - at_ms) / 1000
    by, since_ms = facts.get("by", "somebody"), facts.get("since_ms", at_ms)
    since = datetime.fromtimestamp(since_ms / 1000, UTC)
    return RunBusyError(
        f"{by} (process {facts.get('pid')}) has been working on {run.run_id} since {since:%Y-%m-%d %H:%M:%S} UTC, and "
        f"sent its last heartbeat {max(0.0, silent_s):.0f} s ago. `walferry status {run.name}` shows how far it is. To "
        f"continue the run here, end that process, then `walferry resume {run.name}`; if it was killed, it counts as "
        f"dead {SILENT_SECONDS:.0f} s after its last heartbeat",
        run=run.run_id, by=by, since_ms=since_ms,
    )  # fmt: skip


def command_since(ledger: RunLedger) -> int | None:
    """When the command that is working on the run began; None if there is no such command."""
    return _signs(ledger).get("", {}).get("since_ms")


def note_submitted(ledger: RunLedger, label: str) -> None:
    """Record that this process submits a Spark app for a phase; Spark takes a while to start."""
    ledger.notes.keep(SUBMITTED, {"since_ms": clock.now_ms()} | this_process(), label)


def submitted(ledger: RunLedger) -> dict[str, int]:
    """The phases (by label) for which a live process has submitted an app, and when; also phases that have started."""
    oldest = clock.now_ms() - LONGEST_START_SECONDS * 1000
    return {
        label: facts["since_ms"] for label, (facts, at_ms) in ledger.notes.named(SUBMITTED).items()
        if at_ms > oldest and not gone(facts)
    }  # fmt: skip


def requests_per_second(ledger: RunLedger) -> dict[str, dict[str, float]]:
    """The rates at which live processes of the run sent requests over the last minute, by cluster and service."""
    by_process = {(sign.get("machine"), sign.get("pid")): sign.get("requests", {}) for sign in _signs(ledger).values()}
    total: dict[str, dict[str, float]] = {}
    for clusters in by_process.values():
        for cluster, rates in clusters.items():
            for service, rate in rates.items():
                of = total.setdefault(cluster, {})
                of[service] = of.get(service, 0.0) + rate
    return total


def ticket_faults(ledger: RunLedger) -> list[str]:
    """What live processes of the run say of tickets that were not renewed in time, each once."""
    found = (text for sign in _signs(ledger).values() for text in sign.get("tickets", {}).values())
    return list(dict.fromkeys(found))


def _signs(ledger: RunLedger) -> dict[str, dict[str, Any]]:
    """The notes of live processes, by label."""
    return {label: facts for label, (facts, at_ms) in ledger.notes.named(NOTE).items() if _lives(facts, at_ms)}


def _lives(process: Mapping[str, Any], at_ms: int) -> bool:
    """Whether the process that wrote a note at `at_ms` is alive."""
    return clock.now_ms() - at_ms < SILENT_SECONDS * 1000 and not gone(process)


def this_process() -> dict[str, Any]:
    """The facts by which `gone` recognizes this process later."""
    return {"pid": os.getpid(), "machine": _machine()}


def gone(process: Mapping[str, Any]) -> bool:
    """Whether a process, given as its own `this_process()`, ran on this machine and has ended since.

    False for a process of another machine, which this one cannot see.
    """
    machine = _machine()
    if machine is None or process.get("machine") != machine:
        return False
    try:
        os.kill(pid := int(process["pid"]), 0)
        # The state follows the command in parentheses. A zombie has ended; its parent has not waited for it yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's process: it exists


def _machine() -> str | None:
    """The scope of a process id; None where it is unknown (not Linux).

    Neither host names nor pid namespaces identify a machine: every machine's first namespace has the same number. The
    boot id does, and the namespace distinguishes its containers.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
