"""Tickets are renewed long before they end, and whoever could not renew one says so while it is still good.

With a keytab MIT Kerberos logs in again once half of a ticket's life is over (see `tickets`). A ticket cache belongs to
somebody else; where its ticket is renewable and half of its life is over, it is renewed here, as `kinit -R` does.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from walferry.errors import WalferryError
from walferry.security.kerberos import Kerberos
from walferry.security.tickets import advice, credentials, identity, keytab_refusal, memory_cache, used

LATE = 0.4
"""part of a ticket's life that is left when it should have been renewed"""
RETRY_SECONDS = 30.0
"""pause between two questions why a ticket was not renewed"""
_FILE = "FILE:"
_faults: dict[str, str] = {}
_asked: dict[Kerberos, float] = {}
_looking = threading.Lock()


@dataclass(frozen=True)
class Ticket:
    """A ticket for tickets: from when to when it is good, and until when it can be renewed; seconds since 1970."""

    start: float
    end: float
    renewable_until: float

    @property
    def part_left(self) -> float:
        """The part of its life that is left."""
        return (self.end - time.time()) / max(1.0, self.end - self.start)


def faults() -> dict[str, str]:
    """By identity: which of this process's tickets were not renewed in time, and what to do; as of the last `look`."""
    return dict(_faults)


def look() -> None:
    """Look at the tickets of all identities that this process has used, and renew what is due. It may ask a KDC."""
    if not _looking.acquire(blocking=False):
        return
    try:
        for kerberos in used():
            try:
                fault = _fault(kerberos)
            except Exception as error:  # whatever krb5.conf or a cache is at the moment: look again next time
                fault = f"the ticket of {identity(kerberos)} cannot be looked at: {error}"
            if fault is None:
                _faults.pop(identity(kerberos), None)
            else:
                _faults[identity(kerberos)] = fault
    finally:
        _looking.release()


def ticket_of(kerberos: Kerberos) -> Ticket | None:
    """The identity's ticket, renewed if it is due; None if there is none."""
    if kerberos.keytab is not None:
        with suppress(WalferryError):
            credentials(kerberos, "the KDC", "its ticket")  # logs in, if that is due
        return _ticket_in(memory_cache(kerberos))
    found = _ticket_in(str(kerberos.ccache))
    if found is None or found.part_left > 0.5 or found.renewable_until <= found.end + 1:
        return found
    return _renewed(str(kerberos.ccache)) or found


def _fault(kerberos: Kerberos) -> str | None:
    ticket = ticket_of(kerberos)
    if ticket is not None and ticket.part_left > LATE:
        _asked.pop(kerberos, None)
        return None
    known = _faults.get(identity(kerberos))
    if known is not None and time.monotonic() < _asked.get(kerberos, 0.0) + RETRY_SECONDS:
        return known
    _asked[kerberos] = time.monotonic()
    if ticket is None:
        state = f"there is no ticket of {identity(kerberos)}"
    else:
        at = datetime.fromtimestamp(ticket.end, UTC)
        verb = "ends" if ticket.part_left > 0 else "ended"
        state = f"the ticket of {identity(kerberos)} {verb} at {at:%Y-%m-%d %H:%M:%S} UTC and was not renewed"
    if kerberos.keytab is None:
        return f"{state}: let something renew the ticket cache {kerberos.ccache} (kinit, k5start, airflow kerberos)"
    code, reason = keytab_refusal(kerberos) or (0, "no reason is known")
    return f"{state}: {reason}; {advice(code, kerberos)}"


def _ticket_in(cache: str) -> Ticket | None:
    import krb5

    with suppress(krb5.Krb5Error):
        context = krb5.init_context()
        tickets = [one.times for one in krb5.cc_resolve(context, cache.encode()) if _for_tickets(one)]
        if tickets:
            last = max(tickets, key=lambda times: times.endtime)
            return Ticket(last.starttime or last.authtime, last.endtime, last.renew_till)
    return None


def _for_tickets(one: Any) -> bool:
    """Whether it is for tickets, not for a service, and not one of the cache's own notes."""
    return str(one.server).startswith("krbtgt/")


def _renewed(cache: str) -> Ticket | None:
    """Renew the ticket in a cache that is a file, which other processes always see whole; None if that fails."""
    path = cache.removeprefix(_FILE)
    if ":" in path:
        return None
    import krb5

    new = Path(f"{path}.{os.getpid()}")
    try:
        before = os.stat(path)
        if before.st_uid != os.geteuid():
            return None  # whose it is could not read what replaces it
        context = krb5.init_context()
        old = krb5.cc_resolve(context, f"{_FILE}{path}".encode())
        ticket = krb5.get_renewed_creds(context, old.principal, old)
        beside = krb5.cc_resolve(context, f"{_FILE}{new}".encode())
        krb5.cc_initialize(context, beside, old.principal)
        krb5.cc_store_cred(context, beside, ticket)
        new.chmod(before.st_mode & 0o777)
        now = os.stat(path)
        if (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):  # nobody else has just filled it
            new.replace(path)
    except (krb5.Krb5Error, OSError):
        return None
    finally:
        new.unlink(missing_ok=True)
    return _ticket_in(cache)
