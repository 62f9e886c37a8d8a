"""A cluster whose servers speak TLS only: HBase's RPC with Kerberos inside, with a certificate of the client."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from booting import QUICK_SITE, quick
from security.test_worker_login import WITHOUT_KERBEROS, WORKER
from security.worker import worked
from walferry.embedded.certificates import Authority
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.encrypted import of_rpc
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured
from walferry.hbase import Cell, ClusterAddress, HBaseClient
from walferry.security import Tls, held_token
from walferry.security.tls import TlsError

pytestmark = pytest.mark.cluster

VALUE = b"x" * 3_000_000
SCRIPT = """
import pickle, sys
from walferry.hbase.client import HBaseClient
from walferry.spark.fan_out import fan_out
from walferry.spark.session import open_session

address = pickle.loads(bytes.fromhex(sys.argv[1]))
spark = open_session("workers")


def asked(_):
    with HBaseClient(address) as client:
        return [client.who_am_i()]


with HBaseClient(address) as client:
    client.version()
    print(*fan_out(spark, asked, [0, 1], what="ask"))
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    mine = authority.issue("ferry", host="localhost")  # HBase asks who is at the address that it sees
    return Tls(ca=str(authority.bundle), certificate=str(mine.certificate), key=str(mine.key), rpc=True)


@pytest.fixture(scope="module", params=["TLSv1.2", pytest.param("TLSv1.3", marks=pytest.mark.matrix)])
def cluster(
    request: pytest.FixtureRequest, kdc: Kdc, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MiniCluster]:
    site = {**QUICK_SITE, **of_rpc(authority), "hbase.rpc.tls.protocol": request.param}
    folder, security = tmp_path_factory.mktemp("encrypted"), Secured(kdc)
    with (
        quick(),
        MiniCluster.start(folder, region_servers=2, thrift=False, hbase_site=site, security=security) as started,
    ):
        yield started


def with_tls(address: ClusterAddress, tls: Tls | None) -> ClusterAddress:
    return replace(address, security=replace(address.security, tls=tls))


@pytest.fixture
def address(cluster: MiniCluster, tls: Tls) -> ClusterAddress:
    return with_tls(cluster.address, tls)


@pytest.fixture
def table(address: ClusterAddress) -> Iterator[str]:
    with HBaseClient(address) as client:
        client.create_table("kept", {"d": {"VERSIONS": "1"}})
        yield "kept"
        client.disable_table("kept")
        client.delete_table("kept")


def test_rows_are_written_and_read_wherever_their_region_is(address: ClusterAddress, table: str) -> None:
    with HBaseClient(address) as client:
        servers = client.servers()
        assert len(servers) == 2
        for server in (*servers, servers[0]):
            (region,) = client.regions(table)
            client.move_region(region, server)
            assert worked(address, table, VALUE) == {"user": "ferry", "got": [True], "scanned": True, "qop": "auth"}
            client.put(table, [Cell(b"row", b"d", b"q", VALUE)])
            assert VALUE in b"".join(client.scan(table))


def test_an_idle_connection_is_used_again(address: ClusterAddress) -> None:
    with HBaseClient(address) as client:
        sockets = set()
        for _ in range(3):
            assert client.version()
            sockets |= {one._channel.sock for idle in client.pool._idle.values() for one in idle if one._channel}
            time.sleep(0.5)
        assert len(sockets) == 1


def test_a_worker_logs_in_by_its_token_inside_tls(address: ClusterAddress, table: str) -> None:
    with HBaseClient(address) as client:
        client.version()
        answer = subprocess.run(
            [sys.executable, "-c", WITHOUT_KERBEROS, WORKER],
            input=pickle.dumps((held_token.to_hand_over(), address, table, VALUE)),
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert answer.returncode == 0, answer.stderr.decode()
    assert pickle.loads(answer.stdout) == {"user": "ferry", "got": [True], "scanned": True, "qop": "auth"}


@pytest.mark.long
def test_sparks_workers_reach_the_cluster_through_tls_too(address: ClusterAddress) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, pickle.dumps(address).hex()],
        capture_output=True, text=True, timeout=200, check=False,
        env=dict(os.environ),  # without what `TokenFile` tells the libraries of this process alone
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert answer.stdout.split() == ["ferry", "ferry"]


def refused(address: ClusterAddress, tls: Tls | None) -> str:
    with HBaseClient(with_tls(address, tls)) as client, pytest.raises(TlsError) as raised:
        client.version()
    assert "\n" not in raised.value.message
    return raised.value.message


def test_hbase_takes_no_client_without_a_certificate_that_it_trusts(
    address: ClusterAddress, tls: Tls, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "strangers").issue("stranger", host="localhost")
    for certificate, key in ((None, None), (str(stranger.certificate), str(stranger.key))):
        said = refused(address, replace(tls, certificate=certificate, key=key))
        assert "it wants a client certificate, or another one than it got" in said


def test_hbase_of_another_authority_is_not_trusted(address: ClusterAddress, tls: Tls, tmp_path: Path) -> None:
    assert "set `ca`" in refused(address, replace(tls, ca=str(Authority(tmp_path, "strangers").bundle)))
    assert "set `ca`" in refused(address, replace(tls, ca=None))


def test_who_names_no_tls_is_told_to(address: ClusterAddress, tls: Tls) -> None:
    for plain in (None, replace(tls, rpc=False)):
        assert "speaks TLS only; set `rpc: true`" in refused(address, plain)


def test_hbase_without_tls_is_refused(secured: MiniCluster, tls: Tls) -> None:
    assert "it speaks no TLS at that port" in refused(secured.address, tls)
