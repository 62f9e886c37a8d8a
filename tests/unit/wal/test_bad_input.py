"""WAL files and keys that cannot be used, through every way to read a file: one line that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from unit.formats.compressed_builder import Compressor
from unit.formats.wal_builder import TRAILER, entry, header
from unit.test_cli import walferry
from walferry.errors import WalferryError
from walferry.formats.cells import encode_cell
from walferry.formats.wal_header import PHOENIX_CODEC
from walferry.spark.handing_over import from_driver
from walferry.spark.wal_query import WalQuery
from walferry.spark.wal_source import HBaseWalReader, WalPartition
from walferry.wal.keys import KEY_DAMAGED, KEY_HEX, KEY_NAME, KEY_STORE, KEY_VARIABLES

FIXTURES = Path(__file__).parents[2] / "fixtures" / "wal"
STORE = f"jceks://{FIXTURES}/keys.jceks?password=fixture"
CELL = encode_cell(b"a row", b"f", b"q", 1, 4, b"value")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def refused(path: Path, code: int, named: str, cells: int = 0) -> None:
    """Every way to read the file tells why not, after the same cells, and leaves the folder as it is."""
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    printed = walferry(path.parent, "wal", "cat", path.name)
    assert (printed.returncode, printed.stdout.count("\n")) == (code, cells)
    (line,) = printed.stderr.splitlines()
    assert line.startswith("error: ")
    assert named in line
    counted = walferry(path.parent, "wal", "stat", path.name)
    assert counted.returncode == code
    assert sum(named in line for line in counted.stderr.splitlines()) == 1
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before
    reader = HBaseWalReader(WalQuery.parse({"path": str(path), "on_unfinished": "fail"}))
    batches: list[pa.RecordBatch] = []
    with pytest.raises(WalferryError) as raised:
        batches.extend(reader.read(WalPartition(str(path), from_driver(tokens=False))))
    assert (raised.value.exit_code, sum(batch.num_rows for batch in batches)) == (code, cells)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({}, 2, "no key is configured: set WALFERRY_WAL_KEY_STORE"),
        ({KEY_STORE: "jceks:///no/such/store"}, 2, "/no/such/store: No such file or directory; WALFERRY_WAL_KEY_STORE"),
        ({KEY_STORE: f"jceks://{FIXTURES}"}, 2, "Is a directory; WALFERRY_WAL_KEY_STORE must name files"),
        ({KEY_STORE: STORE + "s"}, 2, "the password does not open the key store"),
        (
            {KEY_STORE: STORE, KEY_NAME: "prod"},
            2,
            f"open no key prod in the key store {FIXTURES}/keys.jceks, only hbase: set",
        ),
        ({KEY_HEX: "00" * 16}, 2, "add its name to WALFERRY_WAL_KEY_DAMAGED"),
        ({KEY_HEX: "00" * 15}, 2, "has 15 bytes: set it to the 32, 48 or 64 digits"),
        ({KEY_HEX: "00" * 16, KEY_DAMAGED: "other.wal"}, 2, "add its name to WALFERRY_WAL_KEY_DAMAGED"),
        ({KEY_HEX: "00" * 16, KEY_DAMAGED: "other.wal, some.wal"}, 4, "is damaged at byte 4: the key in its header"),
    ],
)
def test_an_encrypted_log_whose_key_cannot_be_had(
    settings: Mapping[str, str], code: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "some.wal"
    path.write_bytes((FIXTURES / "encrypted.wal").read_bytes())
    refused(path, code, named)


def test_a_log_that_its_key_opens_is_read_whatever_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_STORE, STORE)
    monkeypatch.setenv(KEY_DAMAGED, "encrypted.wal")
    assert walferry(FIXTURES, "wal", "stat", "encrypted.wal").returncode == 0


@pytest.mark.parametrize(
    ("begin", "named"),
    [
        (
            header(cell_codec_cls_name=PHOENIX_CODEC),
            f"codec of Phoenix, {PHOENIX_CODEC}: only logs",
        ),
        (header(cell_codec_cls_name="org.example.Codec"), "unknown codec, org.example.Codec"),
        (header(writer_cls_name="ExampleWriter"), "unknown writer, ExampleWriter: only those of Async"),
        (Compressor(value=bytes, algorithm=0).header, "values compressed by LZO: set hbase.regionserver.wal.value"),
        (b"PAR1", "it does not begin with PWAL"),
    ],
)
def test_a_log_of_an_unknown_kind(begin: bytes, named: str, tmp_path: Path) -> None:
    path = tmp_path / "some.wal"
    path.write_bytes(begin + entry([CELL]) + TRAILER)
    refused(path, 4, named)


@pytest.mark.parametrize(
    ("trailer", "code", "named"),
    [(TRAILER, 4, "an entry runs into the trailer"), (b"", 3, "the file ends inside an entry")],
)
def test_a_compressed_log_that_ends_inside_a_name(trailer: bytes, code: int, named: str, tmp_path: Path) -> None:
    compressor = Compressor()
    first, second = compressor.entry([CELL]), compressor.entry([encode_cell(b"another row", b"f", b"q", 1, 4)])
    path = tmp_path / "some.wal"
    path.write_bytes(compressor.header + first + second[: second.index(b"another") + 4] + trailer)
    refused(path, code, named, cells=1)
