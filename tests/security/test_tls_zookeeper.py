"""ZooKeeper's secure port: a real server that asks for a client's certificate, as it does by default."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from kazoo.security import CREATOR_ALL_ACL

from walferry.embedded import jars, processes
from walferry.embedded.certificates import Authority, Certificate
from walferry.embedded.cluster import JVM_FLAGS, LOG4J
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured
from walferry.hbase.errors import ZooKeeperError
from walferry.hbase.zookeeper import ZooKeeper
from walferry.security import Security, Tls
from walferry.security.tls import TlsError

pytestmark = pytest.mark.cluster

SHADED = "org.apache.hadoop.hbase.shaded.org.apache.zookeeper"  # in HBase's jars
PROTOCOLS = ["TLSv1.2", "TLSv1.3"]


@dataclass
class Ensemble:
    """One ZooKeeper with a secure port and a plain one."""

    folder: Path
    authority: Authority
    protocol: str
    secure: int
    plain: int
    security: Secured | None = None
    """with Kerberos inside"""
    server: processes.ServerProcess | None = None

    def boot(self, certificate: Certificate) -> None:
        """Start it with this certificate; its data stays."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "log4j.properties").write_text(LOG4J)
        settings = {
            "dataDir": str(self.folder / "data"),
            "clientPort": self.plain,
            "clientPortAddress": "127.0.0.1",
            "secureClientPort": self.secure,
            "secureClientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "ssl.keyStore.location": str(certificate.both),
            "ssl.trustStore.location": str(self.authority.bundle),
            "ssl.protocol": self.protocol,
            "ssl.enabledProtocols": self.protocol,
            **({"ssl.ciphersuites": "TLS_AES_128_GCM_SHA256"} if self.protocol == "TLSv1.3" else {}),
        }
        (self.folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        flags = [*JVM_FLAGS, "-Xmx128m", f"-Dzookeeper.serverCnxnFactory={SHADED}.server.NettyServerCnxnFactory"]
        if self.security is not None:
            self.security.write_keys(self.folder)
            flags += self.security.server_flags(self.folder)
        command = [jars.java(), *flags, "-cp", f"{self.folder}:{jars.classpath(jars.NEWEST)}"]
        main = [f"{SHADED}.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]
        self.server = processes.start("zookeeper", [*command, *main], self.folder / "zookeeper.log", folder=self.folder)
        for port in (self.plain, self.secure):
            self.server.await_line(rf"bound to port {port}", time.monotonic() + 60)

    def end(self) -> None:
        if self.server is not None:
            processes.stop([self.server])


@pytest.fixture(scope="module", params=PROTOCOLS)
def ensemble(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    folder = tmp_path_factory.mktemp("zookeeper")
    secure, plain = processes.free_ports(2)
    started = Ensemble(folder / "server", Authority(folder), request.param, secure, plain)
    try:
        started.boot(started.authority.issue("zookeeper", host="localhost"))
        yield started
    finally:
        started.end()


@pytest.fixture
def tls(ensemble: Ensemble) -> Tls:
    mine = ensemble.authority.issue("ferry", "127.0.0.1", host="localhost")
    return Tls(ca=str(ensemble.authority.bundle), certificate=str(mine.certificate), key=str(mine.key), zookeeper=True)


def opened(ensemble: Ensemble, tls: Tls | None, port: int | None = None, host: str = "localhost") -> ZooKeeper:
    return ZooKeeper(f"{host}:{port or ensemble.secure}", "/hbase", security=Security(tls=tls))


def test_znodes_are_written_and_read_through_tls_by_many_threads(ensemble: Ensemble, tls: Tls) -> None:
    """Requests are on their way together, so that answers come in one piece."""
    zookeeper = opened(ensemble, tls)
    zookeeper.create({"large": b"x" * 500_000})
    asked = [zookeeper.client.get_async("/hbase/large") for _ in range(50)]
    asked += [zookeeper.client.exists_async("/hbase/none") for _ in range(500)]
    assert [len(one.get(30)[0]) for one in asked[:50]] == [500_000] * 50
    assert {one.get(30) for one in asked[50:]} == {None}
    readers = [threading.Thread(target=zookeeper.read, args=("large",)) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)
        assert not reader.is_alive()
    zookeeper.delete("large")
    zookeeper.close()


def test_a_session_lives_on_in_another_connection(ensemble: Ensemble, tls: Tls) -> None:
    zookeeper = opened(ensemble, tls)
    client = zookeeper.client
    client.create("/mine", ephemeral=True)
    session, before = client.client_id, client._connection._socket
    before.shutdown(socket.SHUT_RDWR)
    deadline = time.monotonic() + 20
    while client._connection._socket in (before, None) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.retry(client.exists, "/mine")
    assert client.client_id == session
    zookeeper.close()


def test_a_login_by_kerberos_goes_through_tls(kdc: Kdc, tmp_path: Path) -> None:
    secure, plain = processes.free_ports(2)
    ensemble = Ensemble(tmp_path / "server", Authority(tmp_path), "TLSv1.2", secure, plain, Secured(kdc))
    mine = ensemble.authority.issue("ferry")
    assert ensemble.security is not None
    try:
        ensemble.boot(ensemble.authority.issue("zookeeper", host="localhost"))
        tls = Tls(str(ensemble.authority.bundle), str(mine.certificate), str(mine.key), zookeeper=True)
        zookeeper = ZooKeeper(f"localhost:{secure}", "/hbase", security=Security(ensemble.security.identity(), tls))
        zookeeper.client.create("/mine", acl=CREATOR_ALL_ACL)
        acls, _ = zookeeper.client.get_acls("/mine")
        assert {(acl.id.scheme, acl.id.id) for acl in acls} == {("sasl", "ferry"), ("x509", "CN=ferry")}
        zookeeper.close()
    finally:
        ensemble.end()


def refused(zookeeper: ZooKeeper) -> str:
    with pytest.raises(TlsError) as raised:
        zookeeper.read("master")
    assert "\n" not in raised.value.message
    return raised.value.message


def test_what_is_not_trusted_is_refused_with_its_reason(ensemble: Ensemble, tls: Tls, tmp_path: Path) -> None:
    strangers = Authority(tmp_path, "strangers")
    stranger = strangers.issue("stranger", host="localhost")
    for wrong, said in (
        (replace(tls, ca=str(strangers.bundle)), "its certificate is not of an authority that is trusted here"),
        (replace(tls, ca=None), "its certificate is not of an authority that is trusted here"),
        (replace(tls, certificate=None, key=None), "it wants a client certificate, or another one than it got"),
        (replace(tls, certificate=str(stranger.certificate), key=str(stranger.key)), "it wants a client certificate"),
        (replace(tls, ca="/nowhere/ca.pem"), "/nowhere/ca.pem, which is named for TLS, cannot be used"),
    ):
        assert said in refused(opened(ensemble, wrong))
    assert "its certificate is for another host" in refused(opened(ensemble, tls, host="127.0.0.1"))


def test_a_certificate_that_has_expired_is_refused(ensemble: Ensemble, tls: Tls) -> None:
    ensemble.end()
    ensemble.boot(ensemble.authority.issue("old", host="localhost", valid=timedelta(minutes=-1)))
    try:
        assert "its certificate has expired" in refused(opened(ensemble, tls))
    finally:
        ensemble.end()
        ensemble.boot(ensemble.authority.issue("zookeeper", host="localhost"))


def test_tls_is_never_left_out_and_each_port_is_told_apart(ensemble: Ensemble, tls: Tls) -> None:
    with pytest.raises((ZooKeeperError, TlsError), match=r"does that port speak TLS|it speaks no TLS"):
        opened(ensemble, tls, ensemble.plain).read("master")
    assert "speaks TLS only; set `zookeeper: true`" in refused(opened(ensemble, None))
