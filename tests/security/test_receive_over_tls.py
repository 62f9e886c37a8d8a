"""A source whose servers speak TLS only, to each other and to their sinks, replicates to receivers that do, too."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from booting import QUICK_SITE, quick
from integration.migration.command import COMMAND, environment
from integration.receive.receivers import receivers
from integration.replication.writing import writer
from security.test_receive import kill_one_of_both, login
from walferry.background import beside
from walferry.embedded.certificates import Authority
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.encrypted import of_rpc
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.security import Tls

pytestmark = pytest.mark.cluster


@dataclass
class World:
    """Both clusters; the source's servers have certificates of the authority, and demand such of their clients."""

    source: MiniCluster
    sink: MiniCluster
    authority: Authority
    keys: dict[str, object]
    """of `receive`, but for `tls`"""

    def tls(self, host: str | None = None) -> dict[str, object]:
        """The key of the spec; for processes of another host than the sink's."""
        address = None if host else "127.0.0.1"
        made = self.authority.issue("receiver", address, host=host or "localhost")
        files = {"certificate": made.certificate, "key": made.key, "ca": self.authority.bundle}
        return {"receive": {**self.keys, "tls": {name: str(path) for name, path in files.items()}}}


@pytest.fixture(scope="module", params=["TLSv1.2", pytest.param("TLSv1.3-kerberos", marks=pytest.mark.matrix)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    version, _, kerberos = request.param.partition("-")
    folder = tmp_path_factory.mktemp("world")
    authority = Authority(folder / "certificates")
    mine = authority.issue("ferry", host="localhost")
    tls = Tls(str(authority.bundle), str(mine.certificate), str(mine.key), rpc=True)
    site = {**QUICK_SITE, **of_rpc(authority), "hbase.rpc.tls.protocol": version}
    security, keys = None, {}
    if kerberos:
        kdc: Kdc = request.getfixturevalue("kdc")
        security, receive = Secured(kdc, qop="privacy"), login(kdc)["receive"]
        assert isinstance(receive, dict)
        keys = receive
    with (
        quick(),
        MiniCluster.start(folder / "source", region_servers=2, hbase_site=site, security=security, tls=tls) as source,
        MiniCluster.start(folder / "sink", hbase_site=QUICK_SITE, security=security) as sink,
    ):
        yield World(source, sink, authority, keys)


def test_edits_arrive_by_tls_while_a_receiver_is_killed(world: World, tmp_path: Path) -> None:
    with receivers(world.source, world.sink, tmp_path, more=world.tls()) as two:
        with HBaseClient(world.source.address) as here, beside(writer(here, two.tables), "writer"):
            kill_one_of_both(two)
        two.ship()
        two.equal()
        assert all(total.entries > 100 for total in two.totals().values())
        assert "has logged in as" in two.said() or not world.keys


def test_a_receiver_without_tls_says_in_its_status_that_the_source_speaks_it(world: World, tmp_path: Path) -> None:
    with (
        receivers(world.source, world.sink, tmp_path, 1, 1, more={"receive": world.keys}) as one,
        HBaseClient(world.source.address) as here,
    ):
        here.put(one.tables[0], [Cell(b"row", b"d", b"q", b"v")])
        deadline = time.monotonic() + 60
        while "it speaks TLS, and this receiver does not: set `receive.tls`" not in one.serving()[0].last_refusal:
            assert time.monotonic() < deadline, one.said()
            time.sleep(0.5)


def test_a_source_that_does_not_accept_the_name_of_the_receiver_is_shown_before_anything_begins(
    world: World, tmp_path: Path
) -> None:
    with receivers(world.source, world.sink, tmp_path, 0, 1, more=world.tls("elsewhere.example")):
        for more in (["--dry-run"], []):
            done = subprocess.run(
                [*COMMAND, "receive", "receive.yaml", "--host", world.sink.host, "--port", "0", *more],
                cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 2, done.stderr
            assert f"receiver.pem does not name {world.sink.host}, by which the source's servers" in done.stderr
