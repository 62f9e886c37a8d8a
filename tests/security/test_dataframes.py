"""Logs and snapshots of a secured cluster as DataFrames: the driver logs in, its workers have only tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from integration.migration.command import walferry
from security.secrets_hunt import Hunt
from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster
from walferry.hbase import Cell, HBaseClient

pytestmark = pytest.mark.cluster

SCRIPT = """
import json, sys
from walferry.spark.session import open_session
from walferry.spark.snapshot_source import read_snapshot

asked = json.loads(sys.argv[1])
spark = open_session("frames")
common = {name: asked[name] for name in ("webhdfs", "principal", "keytab")}
folders = f"{asked['root']}/WALs,{asked['root']}/oldWALs"
wal = spark.read.format("hbase_wal").options(**common, tables="frames").load(folders).where("family = 'f'")
stored = spark.read.format("hbase_snapshot").options(**common, snapshot="frames").load(asked["root"])
sooner = read_snapshot(spark, asked["root"], snapshot="frames", **common)
stream = spark.readStream.format("hbase_changes").options(**common, tables="frames").load(asked["root"])
query = stream.writeStream.format("memory").queryName("kept").trigger(availableNow=True).start()
query.awaitTermination()
frames = {"wal": wal, "stored": stored, "sooner": sooner, "stream": spark.table("kept")}
rows = {name: sorted(row[0].hex() for row in frame.select("row").collect()) for name, frame in frames.items()}
print(json.dumps(rows))
"""


@pytest.mark.long
def test_workers_without_kerberos_read_logs_and_snapshots(secured: MiniCluster, tmp_path: Path) -> None:
    kerberos = secured.address.security.kerberos
    assert kerberos is not None
    hunt = Hunt(tmp_path, [Path(str(kerberos.keytab))])
    rows = [b"%d" % number for number in range(5)]
    with HBaseClient(secured.address) as client:
        client.create_table("frames", {"f": {}}, [b"3"])
        client.put("frames", [Cell(row, b"f", b"q", b"value") for row in rows])
        client.snapshot("frames", "frames")
    asked = {
        "webhdfs": secured.address.webhdfs,
        "principal": kerberos.principal,
        "keytab": kerberos.keytab,
        "root": urlsplit(str(secured.address.rootdir)).path,
    }
    # Each task has a worker of its own, which no task before it has given tokens.
    alone = {"PYSPARK_SUBMIT_ARGS": "--conf spark.python.worker.reuse=false pyspark-shell"}
    variables = processes.variables({**hunt.prepared(), **alone})
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(asked)],
        cwd=hunt.folder, env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    expected = [row.hex() for row in rows]
    assert json.loads(answer.stdout) == dict.fromkeys(("wal", "stored", "sooner", "stream"), expected)
    assert hunt.found({"what it said": answer.stderr.encode()}) == []
    folder = f"webhdfs://localhost:{secured.ports.webhdfs}{asked['root']}/WALs"
    identity = ("--principal", str(kerberos.principal), "--keytab", str(kerberos.keytab))
    told = walferry(hunt.folder, "wal", "stat", folder, *identity, "--json")
    assert told.returncode == 3, "its log is still being written"
    assert [table["puts"] for table in json.loads(told.stdout)["tables"] if table["table"] == "frames"] == [len(rows)]
