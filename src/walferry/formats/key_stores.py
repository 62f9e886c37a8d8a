"""Secret keys in Java's key stores: JCEKS (com.sun.crypto.provider.JceKeyStore) and PKCS12 (RFC 7292).

    JCEKS = int32 0xCECECECE | int32 2 | int32 n | entry* | SHA-1 of the password, a constant and what precedes
    entry = int32 3 | UTF alias | int64 creation time | a serialized SealedObject

The SealedObject holds the serialized key, encrypted by PBEWithMD5AndTripleDES. In PKCS12, as keytool writes it, a
secret key is the private key of a PKCS8ShroudedKeyBag in a SecretBag; bags and key are encrypted by PBES2.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.padding import PKCS7

Opened = TypeVar("Opened")

JCEKS_MAGIC = b"\xce\xce\xce\xce"


class WrongPasswordError(Exception):
    """The password does not open the key store."""


def secret_keys(store: bytes, *passwords: str) -> dict[str, bytes]:
    """The secret keys in a key store by alias; aliases are lower case, as Java compares them.

    A single password must be the store's own. With several, each key takes whichever opens it: in JCEKS each key may
    have its own password, and the store's need not be given. Keys that no password opens are left out.
    Raises WrongPasswordError if no password fits, and ValueError for other files and unsupported encryption.
    """
    try:
        if store.startswith(JCEKS_MAGIC):
            return _of_jceks(store, passwords)
        if store.startswith(b"\x30"):
            return _opened(passwords, partial(_of_pkcs12, store))
    except (IndexError, KeyError, TypeError, StopIteration, struct.error) as error:
        raise ValueError("it is damaged") from error
    raise ValueError("it is neither a JCEKS nor a PKCS12 key store")


def _opened(passwords: Sequence[str], by: Callable[[str], Opened]) -> Opened:
    """The result of `by` for the first password that is right."""
    for password in passwords:
        try:
            return by(password)
        except WrongPasswordError:
            continue
    raise WrongPasswordError


# ------------------------------------------------------------------ JCEKS


def _of_jceks(store: bytes, passwords: Sequence[str]) -> dict[str, bytes]:
    # The store's own password comes first: it usually opens every key.
    passwords = sorted(passwords, key=lambda password: not _is_of_store(store, password))
    if len(passwords) == 1 and not _is_of_store(store, passwords[0]):
        raise WrongPasswordError
    version, count = struct.unpack_from(">ii", store, 4)
    if version != 2:
        raise ValueError(f"its version is {version}")
    found = {}
    at = 12
    for _ in range(count):
        (kind,) = struct.unpack_from(">i", store, at)
        if kind != 3:
            raise ValueError("it has entries besides secret keys; put the key into a key store of its own")
        (length,) = struct.unpack_from(">H", store, at + 4)
        alias = store[at + 6 : at + 6 + length].decode()
        stream = _Serialized(store, at + 6 + length + 8)
        sealed = stream.read()
        at = stream.at
        with suppress(WrongPasswordError):
            found[alias.lower()] = _opened(passwords, partial(_unsealed, sealed))
    if count and not found:
        raise WrongPasswordError
    return found


def _is_of_store(store: bytes, password: str) -> bool:
    salted = password.encode("utf-16-be") + b"Mighty Aphrodite"
    return hashlib.sha1(salted + store[:-20], usedforsecurity=False).digest() == store[-20:]


def _unsealed(sealed: dict[str, Any], password: str) -> bytes:
    if sealed["sealAlg"] != "PBEWithMD5AndTripleDES":
        raise ValueError(f"its keys are encrypted by {sealed['sealAlg']}")
    salt, iterations = (content for _, content in _der(next(_der(sealed["encodedParams"]))[1]))
    material = b""
    for half in (salt[:4], salt[4:]):
        for _ in range(int.from_bytes(iterations, "big")):
            half = hashlib.md5(half + password.encode(), usedforsecurity=False).digest()
        material += half
    cipher = Cipher(TripleDES(material[:24]), modes.CBC(material[24:]))
    plain = _unpadded(cipher, sealed["encryptedContent"])
    if plain[:2] != b"\xac\xed":
        raise WrongPasswordError
    key = _Serialized(plain, 0).read()
    encoded: bytes = key.get("key") or key["encoded"]  # SecretKeySpec or KeyRep
    return encoded


class _Serialized:
    """Reads Java's serialization, as far as keys need it: an object's fields by name, including its superclasses'."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self.at = at + 4  # 0xACED, version
        self._handles: list[Any] = []

    def read(self) -> Any:
        kind = self._bytes(1)[0]
        if kind == 0x70:  # null
            return None
        if kind == 0x71:  # a reference to an earlier object
            return self._handles[self._number(4) - 0x7E0000]
        if kind == 0x74:
            return self._kept(self._text())
        if kind == 0x72:
            return self._class()
        if kind == 0x7E:  # enum: its class, its name
            self.read()
            self._handles.append(None)
            return self.read()
        described = self.read()
        number = len(self._handles)
        self._handles.append(None)
        if kind == 0x75 and described[0][0] == "[B":
            self._handles[number] = self._bytes(self._number(4))
        elif kind == 0x73:
            self._handles[number] = self._fields(described)
        else:
            raise ValueError("its keys are Java objects of an unknown kind")
        return self._handles[number]

    def _class(self) -> list[Any]:
        """[(name, flags, fields)] of a class and its superclasses."""
        name = self._text()
        self._bytes(8)
        described: list[Any] = self._kept([])
        flags = self._number(1)
        fields = []
        for _ in range(self._number(2)):
            kind, field = chr(self._number(1)), self._text()
            if kind in "[L":
                self.read()
            fields.append((kind, field))
        if self._bytes(1) != b"\x78":
            raise ValueError("its keys are Java objects of an unknown kind")
        described.append((name, flags, fields))
        described.extend(self.read() or [])
        return described

    def _fields(self, described: list[Any]) -> dict[str, Any]:
        sizes = {"B": 1, "C": 2, "D": 8, "F": 4, "I": 4, "J": 8, "S": 2, "Z": 1}
        values: dict[str, Any] = {}
        for _, flags, fields in reversed(described):
            if flags != 2:
                raise ValueError("its keys are Java objects of an unknown kind")
            for kind, name in fields:
                values[name] = self.read() if kind in "[L" else self._bytes(sizes[kind])
        return values

    def _kept(self, value: Any) -> Any:
        self._handles.append(value)
        return value

    def _bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self._data):
            raise ValueError("it ends inside a key")
        return self._data[self.at - size : self.at]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._bytes(size), "big")

    def _text(self) -> str:
        return self._bytes(self._number(2)).decode()


# ------------------------------------------------------------------ PKCS12

_DATA, _ENCRYPTED_DATA = "1.2.840.113549.1.7.1", "1.2.840.113549.1.7.6"
_SECRET_BAG, _SHROUDED_KEY_BAG = "1.2.840.113549.1.12.10.1.5", "1.2.840.113549.1.12.10.1.2"
_FRIENDLY_NAME = "1.2.840.113549.1.9.20"
_PBES2 = "1.2.840.113549.1.5.13"
_PRFS: dict[str, Callable[[], hashes.HashAlgorithm]] = {
    "1.2.840.113549.2.7": hashes.SHA1,
    "1.2.840.113549.2.9": hashes.SHA256,
    "1.2.840.113549.2.11": hashes.SHA512,
}
_AES_KEY_BYTES = {"2.16.840.1.101.3.4.1.2": 16, "2.16.840.1.101.3.4.1.42": 32}


def _of_pkcs12(store: bytes, password: str) -> dict[str, bytes]:
    _, info, *_ = (content for _, content in _der(next(_der(store))[1]))
    found: dict[str, bytes] = {}
    for _, part in _der(next(_der(_content(info, _DATA)))[1]):
        (_, oid), (_, content) = _der(part)
        if _oid(oid) == _ENCRYPTED_DATA:
            _, encrypted = (item for _, item in _der(next(_der(content))[1]))
            (_, _), (_, algorithm), (_, data) = _der(encrypted)
            bags = _decrypted(algorithm, data, password)
        else:
            bags = next(_der(content))[1]
        for _, bag in _der(next(_der(bags))[1]):
            (_, kind), (_, value), *attributes = _der(bag)
            if _oid(kind) == _SECRET_BAG:
                found[_alias(attributes)] = _secret(next(_der(value))[1], password)
    return found


def _content(info: bytes, expected: str) -> bytes:
    (_, oid), (_, content) = _der(info)
    if _oid(oid) != expected:
        raise ValueError("it is signed by a certificate, which is not read")
    return next(_der(content))[1]


def _secret(bag: bytes, password: str) -> bytes:
    (_, kind), (_, content) = _der(bag)
    if _oid(kind) != _SHROUDED_KEY_BAG:
        raise ValueError("it has a secret key of an unknown kind")
    (_, algorithm), (_, data) = _der(next(_der(next(_der(content))[1]))[1])
    _, _, (_, key) = list(_der(next(_der(_decrypted(algorithm, data, password)))[1]))[:3]
    return key


def _alias(attributes: list[tuple[int, bytes]]) -> str:
    for _, item in _der(attributes[0][1]) if attributes else ():
        (_, oid), (_, values) = _der(item)
        if _oid(oid) == _FRIENDLY_NAME:
            return next(_der(values))[1].decode("utf-16-be").lower()
    return ""


def _decrypted(algorithm: bytes, data: bytes, password: str) -> bytes:
    (_, oid), (_, parameters) = _der(algorithm)
    if _oid(oid) != _PBES2:
        raise ValueError("it uses an old encryption; copy it with `keytool -importkeystore` of Java 17 or newer")
    (_, derivation), (_, scheme) = _der(parameters)
    (_, _), (_, settings) = _der(derivation)
    (_, salt), (_, iterations), *rest = _der(settings)
    prf = next((_oid(next(_der(item))[1]) for tag, item in rest if tag == 0x30), "1.2.840.113549.2.7")
    (_, cipher), (_, iv) = _der(scheme)
    size = _AES_KEY_BYTES[_oid(cipher)]
    derived = PBKDF2HMAC(_PRFS[prf](), size, salt, int.from_bytes(iterations, "big")).derive(password.encode())
    plain = _unpadded(Cipher(algorithms.AES(derived), modes.CBC(iv)), data)
    if plain[:1] != b"\x30":
        raise WrongPasswordError
    return plain


def _unpadded(cipher: Cipher[modes.CBC], data: bytes) -> bytes:
    block = 8 * len(cipher.mode.initialization_vector)
    unpadder = PKCS7(block).unpadder()
    try:
        return unpadder.update(cipher.decryptor().update(data)) + unpadder.finalize()
    except ValueError:
        raise WrongPasswordError from None


def _der(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each DER element. Raises IndexError if an element exceeds `data`."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size > 127:
            digits = size & 0x7F
            size, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        if size > len(data) - at:
            raise IndexError
        yield tag, data[at : at + size]
        at += size


def _oid(content: bytes) -> str:
    numbers = []
    value = 0
    for byte in content:
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
