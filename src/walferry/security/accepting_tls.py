"""The server's half of TLS, for clients of a service that walferry poses as."""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from walferry.errors import UsageError
from walferry.security.tls import (
    EXPIRED,
    LEAST,
    NOT_YET_VALID,
    OF_CERTIFICATES,
    OTHER_NAME,
    TOO_OLD,
    UNTRUSTED,
    Tls,
    TlsError,
    context,
    newest,
    unusable,
)

_READABLE = "name a PEM file that this process can read, on its own machine"
_ROUNDS = 3
"""in which each side of a handshake has said everything"""


@dataclass(frozen=True)
class ServerTls:
    """What a process shows of itself to those that connect to it, and whom it lets in."""

    certificate: str
    """path of a PEM file with its certificate, and those up to its authority"""
    key: str
    """path of a PEM file with its private key, which is not encrypted"""
    ca: str | None = None
    """path of a PEM file with the authorities of which each client must have a certificate; None: clients need none"""

    def context(self) -> ssl.SSLContext:
        """For one more connection: files that were replaced count from then on. Raises TlsError."""
        return newest((self, "accepting"), (self.ca, self.certificate, self.key), self._made, _READABLE)

    def as_client(self) -> Tls:
        """How a process of the service reaches another one, which has the same authorities and `ca`."""
        return Tls(self.ca, self.certificate, self.key, rpc=True)

    def check(self, host: str) -> None:
        """Raise UsageError if the files are of no use, or another process that connects to `host` would not accept
        them."""
        try:
            client, server = _joined(self.context(), context(self.as_client()), host)
        except TlsError as error:
            raise UsageError(error.message, path=error.facts["path"]) from error
        except ValueError as error:
            raise UsageError(f"{host!r} is no name of a host: give one as --host", host=host) from error
        try:
            for _ in range(_ROUNDS):
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                try:
                    with suppress(ssl.SSLWantReadError):
                        server.do_handshake()
                except ssl.SSLCertVerificationError as error:
                    raise UsageError(self._no_client(error, host), host=host) from error
        except ssl.SSLCertVerificationError as error:
            raise UsageError(self._not_accepted(error, host), host=host) from error
        except ssl.SSLError as error:
            raise UsageError(
                f"the certificate {self.certificate} is of no use for TLS 1.2 and later ({error.reason or error}): "
                "let its key be RSA or of a usual curve, such as P-256",
                host=host,
            ) from error

    def refusal(self, error: ssl.SSLError) -> tuple[str, bool]:
        """Why a client's handshake has failed, with what to do at the source, and whether it is a client that speaks
        TLS, but may not come in."""
        said = error.reason or str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {self._of_client(error)}", True
        if said == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return (
                "it shows no certificate, and `receive.tls.ca` demands one: set hbase.rpc.tls.keystore.location at the "
                "source",
                True,
            )
        if OF_CERTIFICATES.search(said):
            alert = said.partition("ALERT_")[2].replace("_", " ").lower()
            return (
                f"it does not accept the certificate of this receiver ({alert}): its hbase.rpc.tls.truststore.location "
                "must have the authority, and the certificate must be valid and name this host as --host does",
                True,
            )
        if said in TOO_OLD or said == "NO_SHARED_CIPHER":
            return (
                f"it has no version of TLS since 1.2, or no cipher, in common with this receiver ({said}): see "
                "hbase.rpc.tls.enabledProtocols and hbase.rpc.tls.ciphersuites at the source",
                True,
            )
        return f"its TLS handshake fails ({said})", "ALERT_" in said  # which only a client that speaks TLS sends

    def _of_client(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code in UNTRUSTED:
            return f"no authority of `receive.tls.ca`, {self.ca}, has signed it ({_said(error)})"
        if error.verify_code in (EXPIRED, NOT_YET_VALID):
            return f"{_said(error)}; renew it at the source, and compare the clocks"
        return _said(error)

    def _no_client(self, error: ssl.SSLCertVerificationError, host: str) -> str:
        """What others find in the certificate when this process calls them."""
        if error.verify_code in UNTRUSTED:
            return self._not_accepted(error, host)
        return (
            f"the certificate {self.certificate} is of no use to a client ({_said(error)}): processes show it to each "
            "other, so let it be one for servers and for clients"
        )

    def _not_accepted(self, error: ssl.SSLCertVerificationError, host: str) -> str:
        """What others find in the certificate."""
        which = f"the certificate {self.certificate}"
        if error.verify_code in OTHER_NAME:
            return (
                f"{which} does not name {host}, by which the source's servers reach this process, and they check it: "
                "let the certificate have that name as a subject alternative name, or give one of its names as --host"
            )
        if error.verify_code == EXPIRED:
            return f"{which} has expired, or its authority's: renew it"
        if error.verify_code == NOT_YET_VALID:
            return f"{which} is not valid yet: compare the clocks"
        if error.verify_code in UNTRUSTED:
            trusted = "one of this machine's" if self.ca is None else f"one of those in {self.ca}"
            return (
                f"{which} is not of an authority that the processes of the run trust, {trusted} ({_said(error)}): let "
                "`ca` name its authority, and `certificate` have all certificates between both"
            )
        return f"{which} is not good ({_said(error)}): renew it"

    def _made(self) -> ssl.SSLContext:
        for path in filter(None, (self.certificate, self.key, self.ca)):
            try:
                Path(path).open("rb").close()
            except OSError as error:
                raise unusable(path, error.strerror or str(error), _READABLE) from None
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = LEAST
        made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
        made.num_tickets = 0  # who comes again shows its certificate again, unless its last connection still lives
        try:
            # Without a password OpenSSL asks the terminal for that of an encrypted key.
            made.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except OSError as error:  # ssl.SSLError is one
            if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                raise unusable(
                    self.key, f"it is not the key of {self.certificate}", "name the files of one pair"
                ) from None
            raise unusable(
                f"{self.certificate} or {self.key}",
                f"they are no PEM files of a certificate and its key without a password ({error.strerror})",
                _READABLE,
            ) from None
        if self.ca is not None:
            try:
                made.load_verify_locations(self.ca)
            except OSError as error:
                raise unusable(self.ca, f"it has no certificate in PEM form ({error.strerror})", _READABLE) from None
            made.verify_mode = ssl.CERT_REQUIRED
        return made


def _joined(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection within this process: the client's and the server's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    return (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )


def _said(error: ssl.SSLCertVerificationError) -> str:
    return error.verify_message.rstrip(".")
