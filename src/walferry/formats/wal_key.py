"""The key of an encrypted WAL. The WAL's header holds it, wrapped by a key of the cluster (HBase: EncryptionUtil)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from google.protobuf.message import DecodeError

from walferry.formats import _protobuf_kernels as protobuf
from walferry.formats._cell_kernels import OK
from walferry.formats.proto import hbase_pb2

MasterKeys = Callable[[], Mapping[str, bytes]]
"""returns the keys that may have wrapped a WAL's key, by name; called only for encrypted WALs"""


class WrongKeyError(Exception):
    """Another key wrapped the WAL's key."""


def unwrap(field: bytes, key: bytes) -> bytes:
    """Unwrap the file's key from WALHeader.encryption_key, a delimited WrappedKey.

    Raises WrongKeyError if another key wrapped it, and ValueError if the field is not a WrappedKey or if the key is
    wrapped in an unknown way.
    """
    status, size, start = protobuf.varint_at(np.frombuffer(field, np.uint8), 0, len(field))
    if status != OK or start + size != len(field):
        raise ValueError("the encryption key in the header is not a delimited message")
    try:
        wrapped = hbase_pb2.WrappedKey.FromString(field[start:])
    except DecodeError:
        raise ValueError("the encryption key in the header is not a WrappedKey") from None
    if wrapped.algorithm != "AES" or len(wrapped.iv) != 16:
        raise ValueError(f"its key is wrapped in an unknown way, by {wrapped.algorithm or 'nothing'}")
    if len(key) not in (16, 24, 32):
        raise WrongKeyError
    file_key = Cipher(algorithms.AES(key), modes.CTR(wrapped.iv)).decryptor().update(wrapped.data[: wrapped.length])
    if wrapped.HasField("hash"):
        try:
            digest = hashlib.new(wrapped.hash_algorithm.replace("-", ""), file_key).digest()
        except (ValueError, TypeError):  # the name is not UTF-8, or its digest has no fixed length
            raise ValueError(f"its key is hashed by {wrapped.hash_algorithm}, which is not known") from None
        if digest != wrapped.hash:
            raise WrongKeyError
    if len(file_key) not in (16, 24, 32):
        raise ValueError(f"its key has {len(file_key)} bytes")
    return file_key


def aes_blocks(key: bytes, blocks: memoryview) -> bytes:
    """Encrypt each 16-byte block with AES."""
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)  # the counters of CTR
