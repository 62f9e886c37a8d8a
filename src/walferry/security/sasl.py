"""The client's half of a SASL login, and of its mechanism GSSAPI (RFC 4752), which HBase's RPC, ZooKeeper and Thrift
share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

from walferry.security.kerberos import AuthenticationError, Kerberos, Qop
from walferry.security.tickets import credentials, identity, library, told

QOP_BITS: dict[Qop, int] = {"auth": 1, "auth-int": 2, "auth-conf": 4}
"""security layers, by their bit in the server's offer"""
_OWN_MAXIMUM = 0xFFFFFF
"""bytes of a wrapped message that the server may send; the greatest that fits"""


class Exchange(Protocol):
    """One login, by whichever mechanism; then wraps what is sent, if that was agreed."""

    complete: bool
    """whether each side has proved who it is"""
    qop: Qop | None

    @property
    def wraps(self) -> bool:
        """Whether what is sent after the login is wrapped."""
        ...

    def step(self, challenge: bytes | None) -> bytes | None:
        """What to send, which may be empty, after what the server sent (None at first); None if nothing is to be
        sent."""
        ...

    def wrap(self, message: bytes | memoryview) -> bytes:
        """A message as it is sent."""
        ...

    def unwrap(self, token: bytes) -> bytes:
        """A message of the server. Raises AuthenticationError if it is not its next one."""
        ...


class GssapiExchange:
    """Tokens for one connection to `server`, a host's service; then wraps what is sent, if that was agreed.

    `step` takes what the server sent (None at first) and returns what to send, which may be empty, until `complete`.
    Without a `qop` of its own the identity takes the least that the server asks for; the offer is protected by the
    session's key.
    """

    def __init__(self, kerberos: Kerberos, service: str, host: str, server: str, *, layers: bool = True) -> None:
        """`layers` is False where nothing is wrapped after the login, whatever the identity wants: ZooKeeper."""
        self.complete = False
        self.qop: Qop | None = None
        self._kerberos = kerberos
        self._server = server
        self._layers = layers
        self._service_principal = kerberos.service_principal(service, host)
        self._gss = library()
        self._told = partial(told, kerberos, server, self._service_principal)
        self._context = self._initiated()

    @property
    def wraps(self) -> bool:
        """Whether what is sent after the login is wrapped."""
        return self.qop in ("auth-int", "auth-conf")

    @property
    def _private(self) -> bool:
        return self.qop == "auth-conf"

    def step(self, challenge: bytes | None) -> bytes:
        """The next token. Raises AuthenticationError, KerberosUnavailableError."""
        with self._told():
            if not self._context.complete:
                token: bytes | None = self._context.step(challenge)
                return token or b""
            return self._chosen(challenge or b"")

    def wrap(self, message: bytes | memoryview) -> bytes:
        """A message as it is sent. Order counts: each message is numbered."""
        with self._told():
            wrapped: bytes = self._context.wrap(bytes(message), self._private).message
            return wrapped

    def unwrap(self, token: bytes) -> bytes:
        """A message of the server. Raises AuthenticationError if it was changed, repeated or left out on the way."""
        try:
            unwrapped = self._context.unwrap(token)
        except self._gss.exceptions.GSSError as error:
            raise self._refused(f"what it sent was changed on the way, or is not its own ({error})") from error
        if self._private and not unwrapped.encrypted:
            raise self._refused("it sent a message that is not encrypted")
        message: bytes = unwrapped.message
        return message

    def _initiated(self) -> Any:
        gss, flag = self._gss, self._gss.RequirementFlag
        with self._told():
            return gss.SecurityContext(
                name=named(self._service_principal),
                creds=credentials(self._kerberos, self._server, self._service_principal),
                usage="initiate",
                mech=gss.MechType.kerberos,
                flags=[
                    flag.mutual_authentication,
                    flag.replay_detection,
                    flag.out_of_sequence_detection,
                    flag.confidentiality,
                    flag.integrity,
                ],
            )

    def _chosen(self, challenge: bytes) -> bytes:
        """The answer to the server's offer of security layers: one octet of bits and three of its maximal size."""
        offer = self._context.unwrap(challenge).message
        if len(offer) != 4:
            raise self._refused(f"its offer of security layers has {len(offer)} bytes instead of 4")
        wanted = self._kerberos.qop if self._layers else "auth"
        offered = [qop for qop, bit in QOP_BITS.items() if offer[0] & bit]
        self.qop = qop = agreed(offered, wanted, self._refused)
        self.complete = True
        maximum = _OWN_MAXIMUM if self.wraps else 0
        answer: bytes = self._context.wrap(bytes([QOP_BITS[qop]]) + maximum.to_bytes(3, "big"), False).message
        return answer

    def _refused(self, reason: str) -> AuthenticationError:
        who = identity(self._kerberos)
        return AuthenticationError(
            f"{self._server} ({self._service_principal}) and {who} do not come together: {reason}",
            server=self._server,
            service_principal=self._service_principal,
            principal=self._kerberos.principal,
            reason=reason,
            sent=False,
        )


def agreed(offered: Collection[Qop], wanted: Qop | None, refused: Callable[[str], AuthenticationError]) -> Qop:
    """The protection of a connection: the wanted one, or the first that the server offers. Raises `refused` if it does
    not offer it."""
    qop = wanted or next(iter(offered), None)
    if qop is None or qop not in offered:
        raise refused(f"it offers the protection {' or '.join(offered) or 'none'}, not {qop}; set `qop`")
    return qop


def named(service_principal: str) -> Any:
    """The gssapi.Name of "hbase/host@REALM", or of "hbase/host", whose realm krb5.conf knows."""
    gss = library()
    if "@" in service_principal:
        return gss.Name(service_principal, gss.NameType.kerberos_principal)
    return gss.Name(service_principal.replace("/", "@", 1), gss.NameType.hostbased_service)
