"""The cluster's keys that open encrypted WALs. The environment says where they are.

    WALFERRY_WAL_KEY_HEX        one key as hex digits, whatever its name
    WALFERRY_WAL_KEY_STORE      a key store, as HBase's KeyStoreKeyProvider takes it: a URI of a file
    WALFERRY_WAL_KEY_NAME       the key's name in it, or several; default: all keys
    WALFERRY_WAL_KEY_DAMAGED    names of WAL files whose own key is damaged: such a file counts as damaged from its
                                start. Only an operator who knows that the keys above are right may set this

`settings.WalKeys` has their formats. Each process that opens an encrypted WAL reads them for itself, also the Python
workers of Spark: so no argument of a task holds a key, and other people's jobs can read `hbase_wal`. `spark.session`
hands them on to the workers of its own jobs. No message shows a key or a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from walferry.errors import WalKeyError
from walferry.formats.key_stores import WrongPasswordError, secret_keys

if TYPE_CHECKING:
    from walferry.settings import WalKeys

KEY_HEX = "WALFERRY_WAL_KEY_HEX"
KEY_STORE = "WALFERRY_WAL_KEY_STORE"
KEY_NAME = "WALFERRY_WAL_KEY_NAME"
KEY_DAMAGED = "WALFERRY_WAL_KEY_DAMAGED"
KEY_VARIABLES = (KEY_HEX, KEY_STORE, KEY_NAME, KEY_DAMAGED)


def master_keys() -> Mapping[str, bytes]:
    """The keys by name. Raises WalKeyError if no key is configured, and if keys cannot be read."""
    given = _given()
    if given.wal_key_hex is not None:
        try:
            key = bytes.fromhex(given.wal_key_hex.get_secret_value())
        except ValueError:
            raise WalKeyError(
                f"{KEY_HEX} is not a hex number: set it to the 32, 48 or 64 digits of an AES key"
            ) from None
        if len(key) not in (16, 24, 32):
            raise WalKeyError(f"{KEY_HEX} has {len(key)} bytes: set it to the 32, 48 or 64 digits of an AES key")
        return {KEY_HEX: key}
    if given.wal_key_store is None:
        raise WalKeyError(
            f"no key is configured: set {KEY_STORE} to the source's hbase.crypto.keyprovider.parameters, with a path "
            f"on this machine, or {KEY_HEX} to the key"
        )
    return _of_store(given.wal_key_store.get_secret_value(), given.wal_key_name)


def is_damaged(name: str) -> bool:
    """Whether the operator says of a WAL file that its own key is damaged."""
    return name in (named.strip() for named in _given().wal_key_damaged.split(","))


def _given() -> WalKeys:
    from walferry.settings import WalKeys  # here: most processes open no encrypted WAL

    return WalKeys.read()


@lru_cache(maxsize=4)
def _of_store(store: str, names: str) -> Mapping[str, bytes]:
    uri = urlsplit(store)
    if uri.scheme not in ("jceks", "pkcs12"):
        raise WalKeyError(f"{KEY_STORE} must begin with jceks:// or pkcs12://")
    # HBase unescapes the query once as part of a URI and once more as a form's.
    options = {name.lower(): values[0] for name, values in parse_qs(unquote(uri.query)).items()}
    try:
        if "passwordfile" in options:
            passwords = _passwords(Path(options["passwordfile"]).read_text())
        else:
            passwords = [options.get("password", "")]
        keys = secret_keys(Path(unquote(uri.path)).read_bytes(), *passwords)
    except OSError as error:
        raise WalKeyError(
            f"{error.filename}: {error.strerror}; {KEY_STORE} must name files that this process can read"
        ) from error
    except WrongPasswordError:
        raise WalKeyError(
            f"the password does not open the key store {uri.path}, or the store is damaged: set `password` or "
            f"`passwordFile` in {KEY_STORE}"
        ) from None
    except ValueError as error:
        raise WalKeyError(f"the key store {uri.path} cannot be read: {error}") from None
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    chosen = {name: keys[name] for name in wanted if name in keys} if wanted else keys
    if not chosen:
        named, others = f" {names}" if names else "", f", only {', '.join(sorted(keys))}" if keys else ""
        raise WalKeyError(
            f"the passwords open no key{named} in the key store {uri.path}{others}: set {KEY_NAME} to the source's "
            "hbase.crypto.master.key.name or hbase.crypto.wal.key.name"
        )
    return chosen


def _passwords(text: str) -> list[str]:
    """The passwords in a file of `alias=password` lines, and the whole text, which may be a single password."""
    lines = [line.strip() for line in text.splitlines()]
    values = [line.partition("=")[2].strip() for line in lines if "=" in line and not line.startswith(("#", "!"))]
    return list(dict.fromkeys([*values, text.strip()]))
