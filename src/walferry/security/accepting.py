"""The server's half of a SASL login by GSSAPI (RFC 4752), for clients of a service that walferry poses as."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from walferry.errors import UsageError
from walferry.security.kerberos import AuthenticationError, Kerberos, Qop
from walferry.security.sasl import QOP_BITS
from walferry.security.tickets import library

MOST_REASON = 300
"""characters of a reason"""
_MOST_BYTES = 0xFFFFFF
"""of a wrapped message, as it is offered; nobody keeps to it"""


@dataclass(frozen=True)
class Service:
    """A service principal, "name/host@REALM", with the keytab that has its key, and whose logins are accepted."""

    principal: str
    keytab: str
    clients: frozenset[str]
    """principals without their hosts, "name@REALM" """

    def check(self) -> None:
        """Raise UsageError if the keytab cannot be read, or lacks the principal's key."""
        self._credentials()

    def login(self) -> ServerLogin:
        """The login of one client."""
        return ServerLogin(self, self._credentials())

    def accepts(self, client: str) -> bool:
        """Whether calls of a principal are taken, whatever its host."""
        return without_host(client) in self.clients

    @property
    def own(self) -> str:
        """The service's own principal without its host: its processes call each other."""
        return without_host(self.principal)

    def is_own(self, client: str) -> bool:
        """Whether a principal is a process of this service, whatever its host."""
        return without_host(client) == self.own

    def as_client(self) -> Kerberos:
        """Who a process of the service is to another one, on another host. What it sends there is encrypted, since its
        own clients may want that."""
        name, _, realm = self.principal.partition("@")
        return Kerberos(self.principal, self.keytab, service=f"{name.partition('/')[0]}/_HOST@{realm}", qop="auth-conf")

    def _credentials(self) -> Any:
        gss = library()
        name = gss.Name(self.principal, gss.NameType.kerberos_principal)
        try:
            return gss.Credentials(
                usage="accept", name=name, mechs=[gss.MechType.kerberos], store={"keytab": self.keytab}
            )
        except gss.exceptions.GSSError as error:
            raise UsageError(
                f"the keytab {self.keytab} is of no use for {self.principal}: {error}. Name a file that has the "
                "principal's key (`klist -k` lists them) and that this process can read",
                keytab=self.keytab, principal=self.principal,
            ) from error  # fmt: skip


class ServerLogin:
    """One client's login; afterwards, what it sends is unwrapped, and what it gets is wrapped, if it wants that.

    `step` takes what the client sent and returns what to send, None for nothing, until `complete`.
    """

    def __init__(self, service: Service, credentials: Any) -> None:
        self.complete = False
        self.client = ""
        """the principal, once it has proved that it is"""
        self._service = service
        self._gss = library()
        self._context = self._gss.SecurityContext(creds=credentials, usage="accept")
        self._offered = False
        self._qop: Qop = "auth"
        self._one = threading.Lock()
        """a context is for one thread at a time"""

    @property
    def wraps(self) -> bool:
        """Whether what follows is wrapped."""
        return self._qop != "auth"

    @property
    def encrypts(self) -> bool:
        """Whether it is encrypted, too."""
        return self._qop == "auth-conf"

    def step(self, token: bytes) -> bytes | None:
        """The answer to a token. Raises AuthenticationError."""
        try:
            if not self._context.complete:
                answer: bytes | None = self._context.step(token)
                self.client = str(self._context.initiator_name) if self._context.complete else ""
                return answer or b""
            if not self._offered:
                self._offered = True
                offer = bytes([sum(QOP_BITS.values())]) + _MOST_BYTES.to_bytes(3, "big")
                wrapped: bytes = self._context.wrap(offer, False).message
                return wrapped
            self._choose(self._context.unwrap(token).message)
        except self._gss.exceptions.GSSError as error:
            raise self._refused(str(error)) from error
        return None

    def wrap(self, message: bytes) -> bytes:
        """A message as it is sent. Order counts: each message is numbered."""
        with self._one:
            wrapped: bytes = self._context.wrap(message, self.encrypts).message
        return wrapped

    def unwrap(self, token: bytes) -> bytes:
        """A message of the client. Raises AuthenticationError if it was changed, repeated or left out on the way."""
        try:
            with self._one:
                unwrapped = self._context.unwrap(token)
        except self._gss.exceptions.GSSError as error:
            raise self._refused(f"what it sent was changed on the way, or is not its own ({error})") from error
        if self.encrypts and not unwrapped.encrypted:
            raise self._refused("it sent a message that is not encrypted")
        message: bytes = unwrapped.message
        return message

    def _choose(self, choice: bytes) -> None:
        """Take the client's choice: one octet with a bit, three of its maximal size, and perhaps another identity."""
        chosen: list[Qop] = [qop for qop, bit in QOP_BITS.items() if choice[:1] == bytes([bit])]
        if not chosen or len(choice) < 4:
            raise self._refused(f"its choice of a security layer is {choice[:4].hex()}")
        (self._qop,) = chosen
        self.complete = True

    def _refused(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            f"{self.client or 'a client'} cannot log in to {self._service.principal}: {_plain(reason)}",
            server="", service_principal=self._service.principal, principal=self.client, reason=_plain(reason),
        )  # fmt: skip


def without_host(principal: str) -> str:
    """ "name@REALM" of "name/host@REALM" or "name@REALM"; "" for other principals."""
    name, _, realm = principal.rpartition("@")
    parts = name.split("/")
    return f"{parts[0]}@{realm}" if len(parts) <= 2 else ""


def _plain(reason: str) -> str:
    """A reason for people. GSSAPI quotes what the client has sent, whatever that is."""
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:MOST_REASON])
