"""A certificate authority for one test or demo, whose certificates and keys are PEM files."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

_VALID = timedelta(days=30)


@dataclass(frozen=True)
class Certificate:
    """PEM files: the certificate, its private key (PKCS #8), and both in one, as Kafka's key stores of type PEM."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority whose key is gone with this object. `bundle`: the file that its clients trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        """Make its certificate as `folder`/`name`.pem; an existing one is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        built = _begun(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self.bundle = folder / f"{name}.pem"
        self.bundle.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        address: str | None = None,
        password: str | None = None,
        *,
        host: str | None = None,
        valid: timedelta = _VALID,
    ) -> Certificate:
        """A certificate for the common name `name`: of a server at the IP `address` or of the name `host`, or else of a
        client.

        `password` encrypts the key's file. It began an hour ago, and ends after `valid`, which may be negative. The
        files are `folder`/`name`.pem, -key.pem and -both.pem.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _begun(_named(name), self._name, key, valid)
        names: list[x509.GeneralName] = [] if host is None else [x509.DNSName(host)]
        if address is not None:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        encryption: KeySerializationEncryption = (
            NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        )
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        made = Certificate(*(self._folder / f"{name}{suffix}.pem" for suffix in ("", "-key", "-both")))
        for path, content in ((made.certificate, certificate), (made.key, private), (made.both, private + certificate)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return made


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta = _VALID
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - timedelta(hours=1), now + valid
    )
