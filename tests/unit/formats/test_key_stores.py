"""Key stores that keytool of Java 17 made (tests/fixtures/wal/make_encoded.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from walferry.formats.key_stores import WrongPasswordError, secret_keys

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
KINDS = ["jceks", "pkcs12"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_kinds_hold_the_same_key(kind: str) -> None:
    keys = secret_keys((FIXTURES / f"keys.{kind}").read_bytes(), "fixture")
    assert list(keys) == ["hbase"]
    assert len(keys["hbase"]) == 16
    assert keys == secret_keys((FIXTURES / "keys.jceks").read_bytes(), "fixture")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_is_told(kind: str) -> None:
    for password in ("", "other", "fixture "):
        with pytest.raises(WrongPasswordError):
            secret_keys((FIXTURES / f"keys.{kind}").read_bytes(), password)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_store_raises_only_the_defined_errors_and_names_no_class_to_people(kind: str) -> None:
    store = (FIXTURES / f"keys.{kind}").read_bytes()
    said = set[str]()
    for at in range(len(store)):
        damaged = bytearray(store)
        damaged[at] ^= 0x81
        for content in (bytes(damaged), store[:at]):
            try:
                secret_keys(content, "fixture")
            except (WrongPasswordError, ValueError) as error:
                said.add(str(error))
    assert not [text for text in said if "Error" in text]


def test_something_else_is_named() -> None:
    with pytest.raises(ValueError, match="neither a JCEKS nor a PKCS12"):
        secret_keys(b"PWAL", "fixture")
