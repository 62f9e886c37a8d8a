"""TLS: whom a client trusts, what it shows of itself, and what is said when a server and it do not come together."""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

from walferry.security.kerberos import AuthenticationError

LEAST = ssl.TLSVersion.TLSv1_2
PROBE_SECONDS = 1.0
PROBES_SECONDS = 3 * PROBE_SECONDS
"""the most that `wants_tls` takes"""
EXPIRED, NOT_YET_VALID = 10, 9  # X509_V_ERR_*
OTHER_NAME = (62, 63, 64)  # host, e-mail, IP
UNTRUSTED = (2, 7, 18, 19, 20, 21)
_NO_TLS = {
    "WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE", "BAD_RECORD_TYPE", "UNEXPECTED_MESSAGE",
}  # fmt: skip
"""what OpenSSL says of bytes that are no TLS"""
TOO_OLD = {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "VERSION_TOO_LOW"}
OF_CERTIFICATES = re.compile(r"ALERT_(\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR)$")
"""alerts of a server that wants another certificate of its client, or wants one at all"""
_EVERYWHERE = "it must be there on every machine that connects, Spark's workers too"
Stamp = tuple[str, int, int]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tls:
    """How a cluster's services are reached by TLS; small and picklable.

    The files are read on every machine that connects, Spark's workers too. WebHDFS uses TLS if its URL is https.
    """

    ca: str | None = None
    """path of a PEM file with the certificates of the only authorities that are trusted; None: the machine's"""
    certificate: str | None = None
    """path of a PEM file with the client's certificate, for servers that want one"""
    key: str | None = None
    """path of a PEM file with its private key, which is not encrypted"""
    rpc: bool = False
    """HBase's RPC uses TLS (hbase.server.netty.tls.enabled, 2.6)"""
    zookeeper: bool = False
    """ZooKeeper uses TLS (secureClientPort)"""


class TlsError(AuthenticationError):
    """A server and this client do not come together by TLS; facts `server`, `reason`."""


_contexts: dict[Hashable, tuple[tuple[Stamp, ...], ssl.SSLContext]] = {}
"""the newest of each key, with the stamps of its files"""


def context(tls: Tls, library: str = "") -> ssl.SSLContext:
    """What checks a server's certificate and host name, and has the client's certificate.

    `library`: the one that it is for, since some change what they are given. Raises TlsError for a file that cannot be
    used.
    """
    return newest((tls, library), (tls.ca or ssl.get_default_verify_paths().cafile, tls.certificate, tls.key),
                  lambda: _made(tls))  # fmt: skip


def newest(
    key: Hashable, paths: Iterable[str | None], make: Callable[[], ssl.SSLContext], advice: str = _EVERYWHERE
) -> ssl.SSLContext:
    """What `make` makes of files, kept under `key`. Once a file was replaced, the next call has the new one; while
    files do not fit together, it has what was made before. Raises TlsError for a file that cannot be used, with
    `advice`."""
    before = _contexts.get(key)
    try:
        stamps = tuple(_stamp(path, advice) for path in paths if path is not None)
        if before is None or before[0] != stamps:
            before = _contexts[key] = stamps, make()
    except TlsError as error:
        if before is None:
            raise
        _log.warning("the files from before are used: %s", error.message)
    return before[1]


def encrypted(sock: socket.socket, tls: Tls, host: str) -> ssl.SSLSocket:
    """The connection with TLS from now on, after a handshake within the time-out of `sock`, which is closed if that
    fails. `host` is what the certificate must name. Raises TlsError, OSError."""
    try:
        made = context(tls)
        return made.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def refusal(error: BaseException, server: str, plain: str = "", *, established: bool = False) -> TlsError | None:
    """The error to raise for one that a TLS connection to `server` raised; None if it may pass by itself.

    `plain`: what to do if it is right that the server speaks no TLS. `established`: the handshake is over. Afterwards
    only a refused client certificate counts, which TLS 1.3 tells then; anything else is damage on the way.
    """
    if not isinstance(error, ssl.SSLError) or (established and not OF_CERTIFICATES.search(error.reason or "")):
        return None
    told = _told(error, plain)
    if told is None:
        return None
    reason, to_do = told
    return TlsError(f"no TLS connection to {server}: {reason}; {to_do}", server=server, reason=reason, principal=None)


def wants_tls(host: str, port: int, beginning: bytes) -> bool:
    """Whether a server that has closed a connection speaks TLS only: it closes on who sends `beginning`, the first
    bytes of the protocol without TLS, and answers a handshake. It takes up to PROBES_SECONDS."""
    try:
        with socket.create_connection((host, port), timeout=PROBE_SECONDS) as plain:
            plain.sendall(beginning)
            if plain.recv(1):
                return False
    except ConnectionError:
        pass  # a reset is an end, too; a port without a server is found out below
    except OSError:
        return False  # it goes on waiting: it takes both
    try:
        encrypted(socket.create_connection((host, port), timeout=PROBE_SECONDS), Tls(), host).close()
    except ssl.SSLCertVerificationError:
        return True  # it came with a certificate
    except ssl.SSLError as error:
        said = error.reason or ""
        return bool(OF_CERTIFICATES.search(said)) or said.endswith("ALERT_HANDSHAKE_FAILURE")
    except OSError:
        return False
    return True


def _told(error: ssl.SSLError, plain: str) -> tuple[str, str] | None:
    """The reason, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_its_certificate(error)
    said = error.reason or ""
    if said in _NO_TLS:
        return "it speaks no TLS at that port", plain
    if said in TOO_OLD:
        return "it speaks only TLS older than 1.2", "let it speak TLS 1.2 or 1.3"
    if said.endswith("ALERT_HANDSHAKE_FAILURE"):
        return (
            "it refuses the handshake: it wants a client certificate, or has no cipher in common",
            "its log says which; set `certificate` and `key` in the cluster's `tls` (`tls_certificate`, `tls_key`) if "
            "it wants them",
        )
    if said.endswith("UNRECOGNIZED_NAME"):
        return "it has no certificate for that name", "use one of its names in the cluster's address"
    if OF_CERTIFICATES.search(said):
        alert = said.partition("ALERT_")[2].replace("_", " ").lower()
        return (
            f"it wants a client certificate, or another one than it got ({alert})",
            "set `certificate` and `key` in the cluster's `tls` (`tls_certificate`, `tls_key`) to one that its "
            "authorities have signed for this host",
        )
    return None


def _of_its_certificate(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    code, said = error.verify_code, error.verify_message.rstrip(".")
    if code == EXPIRED:
        return "its certificate has expired, or its authority's", "renew it"
    if code == NOT_YET_VALID:
        return "its certificate is not valid yet", "compare the clocks, or renew it at the server"
    if code in OTHER_NAME:
        return f"its certificate is for another host ({said})", "it must name the server as the cluster's address does"
    if code in UNTRUSTED:
        return (
            f"its certificate is not of an authority that is trusted here ({said})",
            "set `ca` in the cluster's `tls` (`tls_ca`) to a PEM file with its authority",
        )
    return f"its certificate is not good ({said})", "renew it at the server"


def _stamp(path: str, advice: str) -> Stamp:
    """What changes when a file is replaced."""
    try:
        found = Path(path).stat()
    except OSError as error:
        raise unusable(path, error.strerror or str(error), advice) from None
    return path, found.st_mtime_ns, found.st_ino


def _made(tls: Tls) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks certificate and host name
    made.minimum_version = LEAST
    made.hostname_checks_common_name = False
    if tls.ca is None:
        made.load_default_certs()
    else:
        try:
            made.load_verify_locations(tls.ca)
        except OSError as error:  # ssl.SSLError is one
            raise unusable(tls.ca, f"it has no certificate in PEM form ({error.strerror})") from None
    if tls.certificate is not None:
        try:
            # Without this OpenSSL asks the terminal for the password of an encrypted key.
            made.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
        except OSError as error:
            raise unusable(
                f"{tls.certificate} or {tls.key}",
                f"they are no PEM files of a certificate and its key without a password ({error.strerror})",
            ) from None
    return made


def unusable(path: str, reason: str, advice: str = _EVERYWHERE) -> TlsError:
    """The error for files that are named for TLS."""
    return TlsError(
        f"{path}, which is named for TLS, cannot be used: {reason}; {advice}",
        server=None,
        reason=reason,
        principal=None,
        path=path,
    )
