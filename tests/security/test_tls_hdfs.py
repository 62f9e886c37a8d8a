"""WebHDFS through HTTPS: name node and data node, with Kerberos, and with certificates of the client."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from walferry.embedded import processes
from walferry.embedded.certificates import Authority
from walferry.embedded.cluster import Ports
from walferry.embedded.encrypted import of_hdfs
from walferry.embedded.kdc import HOST, Kdc
from walferry.embedded.kerberized import Secured
from walferry.embedded.plain_hdfs import DATANODE, PlainHdfs
from walferry.security import Tls
from walferry.security.tls import TlsError
from walferry.storage import WebHdfs, open_hdfs
from walferry.watch.listing import list_wals
from written import write_anew

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONTENT = os.urandom(3 << 20)


@dataclass(frozen=True)
class Https:
    """An HDFS with HTTPS only, and a client's identity there."""

    url: str
    cluster: PlainHdfs
    tls: Tls

    def files(self, tls: Tls | None = None) -> WebHdfs:
        return open_hdfs(self.url, "nobody", security=self.cluster.address.security, tls=tls or self.tls)


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
    listing = asyncio.run(list_wals(https.url, "nobody", "/hbase", https.cluster.address.security, https.tls))
    assert list(listing.files) == [name]


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
