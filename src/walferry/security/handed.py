"""Tokens that a driver hands to its workers, which then need neither a keytab nor a ticket.

A worker takes, before each of its tasks, the tokens that its driver had when the job began. Of two tokens for the same
purpose it uses the newer one, whichever it took last.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from walferry.errors import TransientError
from walferry.security import AuthenticationError, Kerberos, Security
from walferry.security.token import Token


@dataclass(frozen=True)
class Purpose:
    """What a token is for: one identity at one service."""

    service: str
    """as it is told: "HBase at zk:2181/hbase", "HDFS at http://nn:9870" """
    security: Security
    """who logs in, and how the driver reaches the service"""

    @property
    def kerberos(self) -> Kerberos:
        """The identity."""
        assert self.security.kerberos is not None, "a token is for a login"
        return self.security.kerberos


@dataclass(frozen=True)
class Issued:
    """A driver's token for one purpose, or why it has none."""

    number: int
    """a later one has a higher number"""
    token: Token | None = field(default=None, repr=False)
    lack: str = ""
    """what the driver's login says"""
    may_pass: bool = False
    """of a lack"""


@dataclass(frozen=True)
class Handed:
    """What a driver hands to its workers; picklable. Spark carries it in the code of a task, which no page shows."""

    issued: Mapping[Purpose, Issued]

    def token(self, purpose: Purpose) -> Token:
        """The token for a purpose. Raises WorkerLoginError if the driver has none now, AuthenticationError if its login
        is refused or it has not used the service."""
        found = self.issued.get(purpose, Issued(0, lack="its driver has not used that service"))
        if found.token is not None:
            return found.token
        message = f"a Spark worker has no token for {purpose.service}: {found.lack}"
        if found.may_pass:
            raise WorkerLoginError(message, purpose=purpose, token=None, reason=found.lack, sent=False)
        principal = purpose.kerberos.principal
        raise AuthenticationError(message, server=purpose.service, principal=principal, reason=found.lack, sent=False)


NOTHING = Handed({})
"""for tasks that need no token"""


class WorkerLoginError(TransientError):
    """A worker cannot log in with what its driver has handed over; work that is begun again gets another token.

    Facts `purpose`, `token` (the `fingerprint` of one that was refused, else None), `reason`; `sent` is False: no
    request was carried out.
    """


def refused(purpose: Purpose, token: Token, reason: str) -> WorkerLoginError:
    """The error for a token that a service does not take."""
    return WorkerLoginError(
        f"{purpose.service} does not take the token of a Spark worker: {reason}; work begun again gets a new one",
        purpose=purpose,
        token=fingerprint(token),
        reason=reason,
        sent=False,
    )


def fingerprint(token: Token) -> str:
    """What tells tokens apart, and is no secret."""
    return hashlib.sha256(token.identifier).hexdigest()[:16]


_mine: Handed | None = None
_taking = threading.Lock()


def take(handed: Handed) -> None:
    """Use these tokens in this process, which then is a worker; of those it has, the older ones are replaced. NOTHING
    changes nothing."""
    global _mine
    if not handed.issued:
        return
    with _taking:
        known = dict(_mine.issued) if _mine is not None else {}
        for purpose, one in handed.issued.items():
            if purpose not in known or known[purpose].number < one.number:
                known[purpose] = one
        _mine = Handed(known)


def mine() -> Handed | None:
    """This worker's tokens; None in a process that logs in itself."""
    return _mine
