"""WebHDFS through HTTPS: name node and data node, with Kerberos, and with certificates of the client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from integration.migration.command import walferry
from security.secrets_hunt import Hunt
from unit.hfile_snapshot import laid_out, stored
from walferry.embedded import processes
from walferry.embedded.certificates import Authority
from walferry.embedded.cluster import Ports
from walferry.embedded.encrypted import of_hdfs
from walferry.embedded.kdc import HOST, Kdc
from walferry.embedded.kerberized import Secured
from walferry.embedded.plain_hdfs import DATANODE, PlainHdfs
from walferry.security import Security, Tls
from walferry.security.tls import TlsError
from walferry.storage import WebHdfs, open_hdfs
from walferry.wal import read_wal
from walferry.watch.listing import list_wals
from written import write_anew

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONTENT = os.urandom(3 << 20)
WAL = Path(__file__).parents[1] / "fixtures" / "wal" / "closed.wal"
SCRIPT = """
import json, sys
from walferry.spark.session import open_session
from walferry.spark.snapshot_source import read_snapshot

server, options = sys.argv[1], json.loads(sys.argv[2])
root = f"swebhdfs://{server}/frames"
spark = open_session("frames")
frames = {
    "wal": spark.read.format("hbase_wal").options(**options).load(f"{root}/oldWALs"),
    "changes": spark.read.format("hbase_changes").options(**options, webhdfs=f"https://{server}").load("/frames/oldWALs"),
    "stored": spark.read.format("hbase_snapshot").options(**options, snapshot="s", raw="true").load(root),
    "sooner": read_snapshot(spark, root, snapshot="s", raw="true", **options),
}
print(json.dumps({name: frame.count() for name, frame in frames.items()}))
"""


@dataclass(frozen=True)
class Https:
    """An HDFS with HTTPS only, and a client's identity there."""

    url: str
    cluster: PlainHdfs
    tls: Tls

    def security(self, tls: Tls | None = None) -> Security:
        return replace(self.cluster.address.security, tls=tls or self.tls)

    def files(self, tls: Tls | None = None) -> WebHdfs:
        return open_hdfs(self.url, "nobody", security=self.security(tls))


@contextmanager
def hdfs_in(folder: Path, kdc: Kdc, authority: Authority) -> Iterator[Https]:
    """Both servers ask for a client's certificate."""
    (port,), ports = processes.free_ports(1), Ports.free()
    data = folder / "hdfs"
    site = {
        **of_hdfs(authority, folder / "conf", HOST, client_certificate=True),
        "fs.defaultFS": f"hdfs://{HOST}:{ports.namenode}",
        "dfs.namenode.rpc-address": f"{HOST}:{ports.namenode}",
        "dfs.namenode.https-address": f"{HOST}:{port}",
        "dfs.namenode.name.dir": f"file://{data / 'name'}",
        "dfs.namenode.safemode.extension": "0",
        "dfs.datanode.data.dir": f"file://{data / 'data'}",
        **{f"dfs.datanode.{name}": f"{HOST}:0" for name in ("address", "http.address", "https.address", "ipc.address")},
    }
    cluster = PlainHdfs(folder, ports, with_thrift=False, hdfs_site=site, security=Secured(kdc))
    mine = authority.issue("ferry")
    tls = Tls(ca=str(authority.bundle), certificate=str(mine.certificate), key=str(mine.key))
    try:
        cluster.start_hdfs()
        for name in cluster.servers:
            cluster.servers[name].await_line(cluster.started_line(name), time.monotonic() + 90)
        yield Https(f"https://{HOST}:{port}", cluster, tls)
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def https(kdc: Kdc, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Https]:
    with hdfs_in(tmp_path_factory.mktemp("https"), kdc, authority) as started:
        yield started


def test_files_are_written_and_read_by_a_login_and_tokens_inside_tls(https: Https) -> None:
    files = https.files()
    write_anew(files, "/kept/a", [CONTENT[:5], CONTENT[5:]])
    assert b"".join(files.read("/kept/a", 1, len(CONTENT) - 2)) == CONTENT[1:-1]
    assert files.checksum("/kept/a")
    assert [status.name for status in files.list("/kept")] == ["a"]
    assert (files.space_left() or 0) > 0
    assert files.user == "ferry"


def test_the_watch_lists_through_tls(https: Https) -> None:
    name = "rs%2C1%2C2.10"
    write_anew(https.files(), f"/hbase/WALs/rs,1,2/{name}", [CONTENT])
    listing = asyncio.run(list_wals(https.url, "nobody", "/hbase", https.security()))
    assert list(listing.files) == [name]


@pytest.fixture
def server(https: Https, tmp_path: Path) -> str:
    """The name node's host and port; its folder /frames has a log and a snapshot."""
    files, local = https.files(), laid_out(tmp_path / "frames")
    for path in (path for path in local.rglob("*") if path.is_file()):
        write_anew(files, f"/frames/{path.relative_to(local)}", [path.read_bytes()])
    write_anew(files, "/frames/oldWALs/rs%2C1%2C2.10", [WAL.read_bytes()])
    return https.url.removeprefix("https://")


def test_logs_and_snapshots_are_frames_whose_workers_check_the_servers_by_the_named_files(
    https: Https, server: str, tmp_path: Path
) -> None:
    kerberos, tls = https.security().kerberos, https.tls
    assert kerberos is not None
    hunt = Hunt(tmp_path, [Path(str(kerberos.keytab))])
    options = {
        "principal": kerberos.principal, "keytab": kerberos.keytab,
        "tls_ca": tls.ca, "tls_certificate": tls.certificate, "tls_key": tls.key,
    }  # fmt: skip
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, server, json.dumps(options)],
        cwd=hunt.folder, env=processes.variables(hunt.prepared()), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    cells = pa.Table.from_batches(read_wal(str(WAL)))
    edits = pc.sum(pc.not_equal(cells["family"], b"METAFAMILY")).as_py()
    expected = {"wal": len(cells), "changes": edits, "stored": len(stored()), "sooner": len(stored())}
    assert json.loads(answer.stdout) == expected
    assert hunt.found({"what it said": answer.stderr.encode()}) == []


def test_the_verbs_read_logs_and_snapshots_through_tls(https: Https, server: str, tmp_path: Path) -> None:
    kerberos, tls = https.security().kerberos, https.tls
    assert kerberos is not None
    identity = ("--principal", str(kerberos.principal), "--keytab", str(kerberos.keytab))
    files = ("--tls-ca", str(tls.ca), "--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key))
    root = f"swebhdfs://{server}/frames"
    there = walferry(tmp_path, "wal", "stat", f"{root}/oldWALs", *identity, *files, "--json")
    assert there.returncode == 0, there.stderr
    here = walferry(tmp_path, "wal", "stat", str(WAL), "--json")
    assert json.loads(there.stdout)["tables"] == json.loads(here.stdout)["tables"]
    shown = walferry(tmp_path, "wal", "cat", f"{root}/oldWALs/rs%2C1%2C2.10", *identity, *files)
    assert shown.stdout == walferry(tmp_path, "wal", "cat", str(WAL)).stdout
    found = walferry(tmp_path, "snapshot", "stat", root, "s", *identity, *files, "--raw", "--json")
    assert json.loads(found.stdout)["total"]["cells"] == len(stored())
    alone = walferry(tmp_path, "wal", "stat", root, *identity)
    assert alone.returncode == 1
    assert "its certificate is not of an authority that is trusted here" in alone.stderr
    assert "(`tls_ca`)" in alone.stderr


def refused(files: WebHdfs, path: str) -> str:
    with pytest.raises(TlsError) as raised:
        b"".join(files.read(path))
    assert "\n" not in raised.value.message
    return raised.value.message


def test_a_name_node_that_is_not_trusted_gets_no_ticket_and_no_token(
    https: Https, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(https.tls.ca))  # it adds no trust
    for wrong in (None, str(Authority(tmp_path, "strangers").bundle)):
        assert "set `ca`" in refused(https.files(replace(https.tls, ca=wrong)), "/kept/a")


def test_a_name_node_that_wants_a_client_certificate_says_so(https: Https) -> None:
    assert "it wants a client certificate" in refused(https.files(Tls(ca=https.tls.ca)), "/kept/a")


def test_a_data_node_with_a_certificate_for_another_host_gets_no_request(https: Https, authority: Authority) -> None:
    """The name node names it, and would have its token sent along."""
    files, conf = https.files(), https.cluster.directory / "conf"
    write_anew(files, "/kept/b", [CONTENT])
    of_hdfs(authority, conf / "other", "other.example")
    (conf / "other.xml").write_text((conf / "other" / "ssl-server.xml").read_text())
    https.cluster.kill(DATANODE)
    other = ["-Dhadoop.ssl.server.conf=other.xml"]
    https.cluster._launch(DATANODE, "org.apache.hadoop.hdfs.server.datanode.DataNode", other, heap="512m")
    https.cluster.servers[DATANODE].await_line(https.cluster.started_line(DATANODE), time.monotonic() + 90)
    said = refused(files, "/kept/b")
    assert "its certificate is for another host" in said
    assert https.url.partition("//")[2] not in said
    https.cluster.kill(DATANODE)
    https.cluster.start_server(DATANODE)
    https.cluster.servers[DATANODE].await_line(https.cluster.started_line(DATANODE), time.monotonic() + 90)
    assert b"".join(https.files().read("/kept/b", 0, len(CONTENT))) == CONTENT
