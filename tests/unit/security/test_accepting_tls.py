"""What a server shows of itself by TLS: files that are of no use, and files that others would not accept."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from walferry.embedded.certificates import Authority, Certificate, _begun, _named
from walferry.errors import UsageError
from walferry.security.accepting_tls import ServerTls

HOST = "here.example"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shown(made: Certificate, ca: Path | None) -> ServerTls:
    return ServerTls(str(made.certificate), str(made.key), None if ca is None else str(ca))


@pytest.fixture
def good(authority: Authority) -> ServerTls:
    return shown(authority.issue("good", host=HOST), authority.bundle)


def of_an_unusual_curve(authority: Authority, folder: Path) -> ServerTls:
    return for_servers_only(authority, folder, ec.SECP256K1())


def for_servers_only(authority: Authority, folder: Path, curve: ec.EllipticCurve | None = None) -> ServerTls:
    """As a company's authority signs it that keeps servers and clients apart."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    built = (
        _begun(_named("only"), authority._name, key)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority._key, hashes.SHA256())
    )
    certificate, private = folder / "only.pem", folder / "only-key.pem"
    certificate.write_bytes(built.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return ServerTls(str(certificate), str(private), str(authority.bundle))


def told(tls: ServerTls, host: str = HOST) -> str:
    with pytest.raises(UsageError) as refused:
        tls.check(host)
    assert "\n" not in refused.value.message
    return refused.value.message


def test_files_that_others_accept_are_good(good: ServerTls, monkeypatch: pytest.MonkeyPatch) -> None:
    good.check(HOST)
    good.check("HERE.example")
    assert good.ca is not None
    monkeypatch.setenv("SSL_CERT_FILE", good.ca)
    replace(good, ca=None).check(HOST)


BAD_FILES: dict[str, tuple[Callable[[ServerTls, Path], ServerTls], str]] = {
    "no certificate": (
        lambda good, folder: replace(good, certificate=str(folder / "none")),
        r"none, .* cannot be used: No such file or directory; name a PEM file that this process can read",
    ),
    "no key": (lambda good, folder: replace(good, key=str(folder / "none")), "none, .* No such file or directory"),
    "no authorities": (lambda good, folder: replace(good, ca=str(folder / "none")), "none, .* No such file"),
    "a folder": (lambda good, folder: replace(good, key=str(folder)), "Is a directory; name a PEM file"),
    "a certificate that is text": (
        lambda good, folder: replace(good, certificate=text(folder)),
        "text or .*, .* they are no PEM files of a certificate and its key",
    ),
    "authorities that are text": (
        lambda good, folder: replace(good, ca=text(folder)), "text, .* it has no certificate in PEM form",
    ),
    "a key of another certificate": (
        lambda good, folder: replace(good, key=str(Authority(folder / "b").issue("x", host=HOST).key)),
        r"x-key.pem, .* it is not the key of \S+good.pem; name the files of one pair",
    ),
    "a key with a password": (
        lambda good, folder: replace(good, key=str(Authority(folder / "b").issue("x", password="p", host=HOST).key)),
        "a certificate and its key without a password",
    ),
}  # fmt: skip


def text(folder: Path) -> str:
    made = folder / "text"
    made.write_text("no PEM")
    return str(made)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_is_of_no_use_is_named_with_what_to_do(kind: str, good: ServerTls, tmp_path: Path) -> None:
    bad, said = BAD_FILES[kind]
    assert re.search(said, told(bad(good, tmp_path)))


def test_a_file_that_may_not_be_read_is_named(good: ServerTls, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert "Permission denied; name a PEM file that this process can read" in told(good)


NOT_ACCEPTED: dict[str, tuple[Callable[[Authority, Path], ServerTls], str]] = {
    "another host": (
        lambda authority, folder: shown(authority.issue("other", host="there.example"), authority.bundle),
        r"the certificate \S+other.pem does not name here.example, .* give one of its names as --host",
    ),
    "no name but its own": (
        lambda authority, folder: shown(authority.issue(HOST), authority.bundle), "does not name here.example",
    ),
    "expired": (
        lambda authority, folder: shown(
            authority.issue("old", host=HOST, valid=timedelta(minutes=-1)), authority.bundle
        ),
        r"the certificate \S+old.pem has expired, or its authority's: renew it",
    ),
    "another authority": (
        lambda authority, folder: shown(Authority(folder / "b").issue("x", host=HOST), authority.bundle),
        r"x.pem is not of an authority that the processes of the run trust, one of those in \S+authority.pem",
    ),
    "an authority that the machine does not know": (
        lambda authority, folder: shown(authority.issue("good", host=HOST), None), "trust, one of this machine's",
    ),
    "a curve that clients do not offer": (of_an_unusual_curve, "only.pem is of no use for TLS 1.2 and later .*P-256"),
    "for servers only": (for_servers_only, "only.pem is of no use to a client .* for servers and for clients"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_ACCEPTED)
def test_a_certificate_that_others_would_refuse_is_told_before_anything_begins(
    kind: str, authority: Authority, tmp_path: Path
) -> None:
    bad, said = NOT_ACCEPTED[kind]
    assert re.search(said, told(bad(authority, tmp_path)))


def test_for_servers_only_is_enough_where_clients_show_nothing(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))
    replace(for_servers_only(authority, tmp_path), ca=None).check(HOST)


def test_an_address_is_a_name_if_the_certificate_has_it(authority: Authority) -> None:
    tls = shown(authority.issue("address", "127.0.0.1"), authority.bundle)
    tls.check("127.0.0.1")
    assert "does not name 127.0.0.2" in told(tls, "127.0.0.2")


def test_neither_old_versions_nor_compression_nor_renegotiation_nor_tickets(good: ServerTls) -> None:
    made = good.context()
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2
    for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_TICKET):
        assert made.options & option
    assert made.num_tickets == 0
    assert made.verify_mode == ssl.CERT_REQUIRED
    assert replace(good, ca=None).context().verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("host", ["", ".example"])
def test_what_is_no_name_of_a_host_is_told(good: ServerTls, host: str) -> None:
    assert f"{host!r} is no name of a host: give one as --host" in told(good, host)


def test_a_name_that_the_machine_has_without_its_domain_is_not_enough(good: ServerTls) -> None:
    assert "does not name here," in told(good, "here")
    assert socket.gethostname() != HOST
