"""`walferry wal cat` against HBase's own reader, WALPrettyPrinter, on live and on closed logs."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from walferry.embedded import jars
from walferry.embedded.cluster import JVM_FLAGS, MiniCluster
from walferry.hbase import mutate
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.storage import WebHdfs
from walferry.wal.cat import cat

pytestmark = pytest.mark.cluster
FIXTURES = Path(__file__).parents[1] / "fixtures" / "wal"
TYPES = {"Put": 4, "Delete": 8, "DeleteFamilyVersion": 10, "DeleteColumn": 12, "DeleteFamily": 14}


def printed(path: str) -> tuple[int, list[dict[str, Any]]]:
    out = io.StringIO()
    code = cat([path], out, io.StringIO())
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def unescaped(text: str) -> bytes:
    """The bytes behind Bytes.toStringBinary."""
    return re.sub(rb"\\x([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode("latin-1"))


def by_hbase(cluster: MiniCluster, path: str) -> list[tuple[Any, ...]]:
    """The cells that WALPrettyPrinter reads. It prints no tags, and fails at the end of files without a trailer."""
    main = "org.apache.hadoop.hbase.wal.WALPrettyPrinter"
    command = [jars.java(), *JVM_FLAGS, "-cp", cluster.classpath, main, "-j", "-p", path]
    output = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
    decoder = json.JSONDecoder()
    entries = [decoder.raw_decode(output, found.start())[0] for found in re.finditer(r'\{"sequence"', output)]
    assert len(entries) == output.count("\nposition: ") > 0
    return [
        (
            entry["region"],
            entry["table"]["nameAsString"],
            int(entry["sequence"]),
            unescaped(action["row"]).hex(),
            action["family"],
            unescaped(action["qualifier"]).hex(),
            int(action["timestamp"]),
            TYPES[action["type"]],
            unescaped(action["value"]).hex() if "value" in action else "",
        )
        for entry in entries
        for action in entry["actions"]
    ]


def comparable(cell: dict[str, Any]) -> tuple[Any, ...]:
    family = bytes.fromhex(cell["family"]).decode()
    names = ("region", "table", "seq", "row")
    return (*(cell[name] for name in names), family, *(cell[n] for n in ("qualifier", "timestamp", "type", "value")))


@pytest.mark.parametrize(("name", "code"), [("closed.wal", 0), ("killed.wal", 3)])
def test_a_kept_file_reads_as_hbase_reads_it(source: MiniCluster, name: str, code: int) -> None:
    path = FIXTURES / name
    exit_code, cells = printed(str(path))
    assert exit_code == code
    assert [comparable(cell) for cell in cells] == by_hbase(source, f"file://{path}")


@pytest.fixture
def client(source: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(source.address) as client:
        yield client


def test_a_log_reads_the_same_while_it_is_written_and_when_it_is_closed(
    source: MiniCluster, client: HBaseClient
) -> None:
    table = "wal_cat"
    client.create_table(table, {"f": {"VERSIONS": "3"}, "g": {}}, [])
    server = client.regions(table)[0].server
    assert server is not None
    write(client, table)
    files = WebHdfs(source.address.webhdfs or "", "root")
    host = (source.address.webhdfs or "").removeprefix("http://")
    folder = f"/hbase/WALs/{server.name}"
    logs = [status.path for status in files.list(folder) if not status.path.endswith(".meta")]
    path = max(logs, key=lambda log: int(log.rpartition(".")[2]))

    code, open_cells = printed(f"webhdfs://{host}{path}")
    assert code == 3
    assert sum(cell["table"] == table for cell in open_cells) > 300

    client.roll_wal(server)
    deadline = time.monotonic() + 60
    while files.status(path) is not None and not b"".join(files.read(path)).endswith(b"LAWP"):
        assert time.monotonic() < deadline, f"{path} was not closed"
        time.sleep(0.2)
    if files.status(path) is None:
        path = f"/hbase/oldWALs/{path.rpartition('/')[2]}"
    code, cells = printed(f"webhdfs://{host}{path}")
    assert code == 0
    assert cells[: len(open_cells)] == open_cells
    assert [comparable(cell) for cell in cells] == by_hbase(source, source.rootdir.removesuffix("/hbase") + path)


def write(client: HBaseClient, table: str) -> None:
    dice = random.Random(7)
    for _ in range(30):
        batch = []
        for _ in range(12):
            row = bytes([dice.randrange(256) for _ in range(dice.randint(1, 5))])
            family, qualifier = dice.choice([b"f", b"g"]), dice.choice([b"", b"q", b"\0\xff"])
            at = 1_700_000_000_000 + dice.randrange(5)
            batch.append(
                dice.choice(
                    [
                        mutate.put(row, [Cell(row, family, qualifier, dice.randbytes(dice.randrange(50)), at)]),
                        mutate.put(row, [Cell(row, family, qualifier, b"brief")], ttl_ms=dice.randint(1, 10**6)),
                        mutate.delete_version(row, family, qualifier, at),
                        mutate.delete_column(row, family, qualifier, at),
                        mutate.delete_family(row, family, at),
                        mutate.delete_family_version(row, family, at),
                        mutate.increment(row, family, b"counter", 3),
                        mutate.append(row, family, b"log", b"more"),
                    ]
                )
            )
        client.mutate(table, batch)
