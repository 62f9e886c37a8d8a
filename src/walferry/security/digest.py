"""The client's half of SASL's mechanism DIGEST-MD5 (RFC 2831), with which a delegation token logs in to HBase's RPC.

Java's server (com.sun.security.sasl.digest.DigestMD5Server) expects the token's identifier and password, each in base64
(HBaseSaslRpcClient, SaslUtil), as name and password of a user. Numbers are big-endian. A wrapped message is

    auth-int    message | mac | 00 01 | sequence number int32
    auth-conf   RC4(message | mac) | 00 01 | sequence number int32
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.decrepit.ciphers.algorithms import ARC4
from cryptography.hazmat.primitives.ciphers import Cipher

from walferry.security.kerberos import AuthenticationError, Kerberos, Qop
from walferry.security.sasl import agreed
from walferry.security.tickets import identity
from walferry.security.token import Token

_URI = b"null/default"  # what HBase's servers are named: no protocol, and SaslUtil.SASL_DEFAULT_REALM
_COUNT = b"00000001"  # how often the nonce was used
_ALGORITHM = b"md5-sess"
_CIPHER = b"rc4"  # RFC 2831's other ones are weaker, or slower
_OWN_MAXIMUM = 0xFFFFFF
"""bytes of a wrapped message that the server may send; the greatest that fits"""
_MAC_BYTES = 10
_MESSAGE_TYPE = b"\0\1"
_TAIL_BYTES = len(_MESSAGE_TYPE) + 4
Buffer = bytes | memoryview
_QOPS: dict[Qop, bytes] = {"auth": b"auth", "auth-int": b"auth-int", "auth-conf": b"auth-conf"}
_DIRECTIVE = re.compile(rb'[\s,]*([^\s,="]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?=,|\Z)', re.DOTALL)
_END = re.compile(rb"[\s,]*\Z")


class DigestExchange:
    """A login with a token at `server`; then wraps what is sent, if that was agreed. It has GssapiExchange's surface.

    The token proves who the server is, too. Whoever changes the server's offer of protections on the way cannot bring
    the two to agree on one that the server does not offer: the choice is part of the proof.
    """

    def __init__(self, kerberos: Kerberos, token: Token, server: str) -> None:
        """`kerberos` is the identity that the token was made for; nothing but its `qop` is used, and its name told."""
        self.complete = False
        self.qop: Qop | None = None
        self._kerberos = kerberos
        self._token = token
        self._server = server
        self._proof: bytes | None = None
        self._sent: _Layer
        self._received: _Layer

    @property
    def wraps(self) -> bool:
        """Whether what is sent after the login is wrapped."""
        return self.qop in ("auth-int", "auth-conf")

    def step(self, challenge: bytes | None) -> bytes | None:
        """The answer to what the server sent (None at first); None if nothing follows. Raises AuthenticationError."""
        if challenge is None:
            return b""
        if self._proof is None:
            return self._response(self._directives(challenge))
        proof = self._directives(challenge).get(b"rspauth", b"")
        if not hmac.compare_digest(proof, self._proof):
            raise self._refused("it does not prove that it knows the token, so it is not the server it should be")
        self.complete = True
        return None

    def wrap(self, message: Buffer) -> bytes:
        """A message as it is sent. Order counts: each message is numbered. (Java's server ignores its own maxbuf.)"""
        return self._sent.wrap(message)

    def unwrap(self, token: bytes) -> bytes:
        """A message of the server. Raises AuthenticationError if it was changed, repeated or left out on the way."""
        message = self._received.unwrap(token)
        if message is None:
            raise self._refused("what it sent was changed on the way, or is not its own")
        return message

    def _response(self, challenge: Mapping[bytes, bytes]) -> bytes:
        """The answer to the server's challenge (RFC 2831, 2.1.2)."""
        for name in (b"realm", b"nonce", b"algorithm"):
            if not challenge.get(name):
                raise self._refused(f"its challenge has no {name.decode()}")
        if challenge[b"algorithm"] != _ALGORITHM:
            raise self._refused(f"it wants the algorithm {_shown(challenge[b'algorithm'])}, not md5-sess")
        offered = _listed(challenge.get(b"qop", b"auth"))
        qop = agreed([one for one, name in _QOPS.items() if name in offered], self._kerberos.qop, self._refused)
        ciphers = challenge.get(b"cipher", b"")
        if qop == "auth-conf" and _CIPHER not in _listed(ciphers):
            raise self._refused(f"it offers the ciphers {_shown(ciphers) or 'none'}, not rc4")
        user, password = (base64.b64encode(part) for part in (self._token.identifier, self._token.password))
        nonce, own = challenge[b"nonce"], secrets.token_hex(16).encode()
        secret = _md5(b":".join((_md5(b":".join((user, challenge[b"realm"], password))), nonce, own)))

        def proof(what: bytes) -> bytes:
            end = b":" + 32 * b"0" if qop != "auth" else b""
            parts = (secret.hex().encode(), nonce, _COUNT, own, _QOPS[qop], _hex(what + b":" + _URI + end))
            return _hex(b":".join(parts))

        self.qop, self._proof = qop, proof(b"")
        try:
            self._sent = _Layer(secret, b"client-to-server", private=qop == "auth-conf")
            self._received = _Layer(secret, b"server-to-client", private=qop == "auth-conf")
        except (UnsupportedAlgorithm, ValueError):
            raise self._refused(
                f"{qop} needs MD5{' and RC4' if qop == 'auth-conf' else ''}, which the OpenSSL of this machine is told "
                "not to have"
            ) from None
        parts = [
            *([b"charset=utf-8"] if b"charset" in challenge else []),
            b"username=" + _quoted(user), b"realm=" + _quoted(challenge[b"realm"]),
            b"nonce=" + _quoted(nonce), b"nc=" + _COUNT, b"cnonce=" + _quoted(own), b"digest-uri=" + _quoted(_URI),
            b"maxbuf=%d" % _OWN_MAXIMUM, b"response=" + proof(b"AUTHENTICATE"), b"qop=" + _QOPS[qop],
            *([b"cipher=" + _quoted(_CIPHER)] if qop == "auth-conf" else []),
        ]  # fmt: skip
        return b",".join(parts)

    def _directives(self, text: bytes) -> dict[bytes, bytes]:
        """The names, in lower case, and values of a challenge."""
        found: dict[bytes, bytes] = {}
        position = 0
        while not _END.match(text, position):
            match = _DIRECTIVE.match(text, position)
            if match is None:
                raise self._refused("its challenge is not one of DIGEST-MD5")
            quoted, plain = match[2], match[3]
            value = plain if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL)
            found.setdefault(match[1].lower(), value)
            position = match.end()
        return found

    def _refused(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            f"{self._server} and the token of {identity(self._kerberos)} do not come together: {reason}",
            server=self._server,
            principal=self._kerberos.principal,
            reason=reason,
            sent=False,
        )


class _Layer:
    """One direction of a connection whose messages are protected (RFC 2831, 2.3 and 2.4)."""

    def __init__(self, secret: bytes, direction: bytes, *, private: bool) -> None:
        self._key = _md5(secret + b"Digest session key to " + direction + b" signing key magic constant")
        self._mac(b"", b"")  # so that a machine without HMAC-MD5 says so now
        self._number = 0
        self._crypted: Callable[[Buffer], bytes] | None = None
        if private:
            key = _md5(secret + b"Digest H(A1) to " + direction + b" sealing key magic constant")
            self._crypted = Cipher(ARC4(key), mode=None).encryptor().update  # which also decrypts

    def wrap(self, message: Buffer) -> bytes:
        number = self._next()
        content = b"".join((message, self._mac(number, message)))
        return b"".join((self._crypted(content) if self._crypted else content, _MESSAGE_TYPE, number))

    def unwrap(self, token: bytes) -> bytes | None:
        """The message; None if it is not the next one."""
        number = self._next()
        content, tail = memoryview(token)[:-_TAIL_BYTES], token[-_TAIL_BYTES:]
        if self._crypted:
            content = memoryview(self._crypted(content))
        message, mac = content[:-_MAC_BYTES], content[-_MAC_BYTES:]
        genuine = hmac.compare_digest(mac, self._mac(number, message)) and tail == _MESSAGE_TYPE + number
        return bytes(message) if genuine else None

    def _next(self) -> bytes:
        number = self._number
        self._number = (number + 1) % (1 << 32)
        return number.to_bytes(4, "big")

    def _mac(self, number: bytes, message: Buffer) -> bytes:
        mac = hmac.new(self._key, number, "md5")
        mac.update(message)
        return mac.digest()[:_MAC_BYTES]


def _md5(text: bytes) -> bytes:
    return hashlib.md5(text, usedforsecurity=False).digest()


def _hex(text: bytes) -> bytes:
    return _md5(text).hex().encode()


def _listed(text: bytes) -> list[bytes]:
    return [one.strip() for one in text.split(b",")]


def _quoted(text: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", text) + b'"'


def _shown(text: bytes) -> str:
    return text[:100].decode(errors="replace")
