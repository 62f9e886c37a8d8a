"""Where the keys of encrypted WALs come from, and what an operator is told when they do not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from unit.formats.encrypted_builder import MASTER_KEY, encrypted_entry, encrypted_header
from unit.formats.wal_builder import TRAILER
from walferry.errors import WalKeyError
from walferry.formats.cells import encode_cell
from walferry.wal import keys
from walferry.wal.cat import cat
from walferry.wal.keys import KEY_HEX, KEY_NAME, KEY_STORE, master_keys

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
STORE = f"jceks://{FIXTURES}/keys.jceks"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (KEY_HEX, KEY_NAME, KEY_STORE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", ["jceks", "pkcs12"])
def test_a_key_store_is_given_as_hbase_has_it(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone, by_alias = tmp_path / "password", tmp_path / "passwords"
    alone.write_text("fixture\n")
    by_alias.write_text("# of two stores\nother=another\nhbase = fixture\n")
    given = ("password=fixture", f"passwordFile={alone}", f"passwordfile={by_alias}")
    stores = [f"{kind}://{FIXTURES / f'keys.{kind}'}?{one}" for one in given]
    for store in stores:
        monkeypatch.setenv(KEY_STORE, store)
        assert list(master_keys()) == ["hbase"]
    monkeypatch.setenv(KEY_NAME, "other, HBase")
    assert list(master_keys()) == ["hbase"]


def test_keys_of_a_store_may_have_passwords_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As HBase has it: with a password file, it opens each key by its alias's line, and never checks the store."""
    passwords = tmp_path / "passwords"
    monkeypatch.setenv(KEY_STORE, f"jceks://{FIXTURES}/keys-each.jceks?passwordFile={passwords}")
    for lines, opened in (("hbase=of-hbase\nwal=of-wal", ["hbase", "wal"]), ("wal = of-wal", ["wal"])):
        passwords.write_text(lines)
        keys._of_store.cache_clear()
        assert list(master_keys()) == opened
    monkeypatch.setenv(KEY_NAME, "hbase")
    with pytest.raises(WalKeyError, match=r"open no key hbase in .*, only wal:"):
        master_keys()
    passwords.write_text("wal=of-hbase-or-so")
    keys._of_store.cache_clear()
    with pytest.raises(WalKeyError, match="password does not open"):
        master_keys()


def test_what_is_escaped_in_the_parameters_is_read_as_hbase_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """HBase unescapes the query twice, the path once."""
    monkeypatch.setenv(KEY_STORE, f"jceks://{FIXTURES}/key%73.jceks?password=fi%2578t%75re")
    assert list(master_keys()) == ["hbase"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "no key is configured"),
        ({KEY_HEX: "xyz"}, "is not a hex number"),
        ({KEY_STORE: "/keys.jceks"}, "must begin with jceks://"),
        ({KEY_STORE: "jceks:///no/such/file"}, "/no/such/file: No such file"),
        ({KEY_STORE: f"{STORE}?passwordFile=/no/such"}, "/no/such: No such file"),
        ({KEY_STORE: f"{STORE}?password=secret-of-mine"}, "password does not open"),
        ({KEY_STORE: f"jceks://{FIXTURES / 'closed.wal'}"}, "neither a JCEKS nor"),
        ({KEY_STORE: f"{STORE}?password=fixture", KEY_NAME: "prod"}, "open no key prod in .*, only hbase:"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_had_is_one_line_that_says_what_to_do(
    settings: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(WalKeyError, match=named) as raised:
        master_keys()
    assert "\n" not in str(raised.value)
    assert "secret-of-mine" not in str(raised.value)


def test_an_encrypted_log_is_printed_with_the_key_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "some.wal"
    path.write_bytes(encrypted_header() + encrypted_entry([encode_cell(b"r", b"f", b"q", 1, 4, b"v")]) + TRAILER)
    for key, code, said in ((None, 2, "no key is configured"), (bytes(16), 2, "another key"), (MASTER_KEY, 0, "")):
        if key is not None:
            monkeypatch.setenv(KEY_HEX, key.hex())
        out, err = io.StringIO(), io.StringIO()
        assert cat([str(path)], out, err) == code
        assert said in err.getvalue()
        assert out.getvalue().count('"row": "72"') == (code == 0)
