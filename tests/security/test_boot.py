"""The secured clusters of the tests refuse whom they should, and serve whom HBase's own programs log in."""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path

import pytest
import requests
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from booting import quick
from security.each import EACH
from walferry.embedded import tools
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured
from walferry.embedded.two_name_nodes import TwoNameNodes

pytestmark = pytest.mark.cluster

PROGRAMS = Path(__file__).parent


def exchanged(address: str, sent: bytes) -> bytes:
    """The first bytes that a server answers; none if it closes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(sent)
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""


def write_a_table(cluster: MiniCluster, name: str) -> None:
    tools.run(cluster, str(PROGRAMS / "WriteRow.java"), [name])


def tables(cluster: MiniCluster) -> list[str]:
    return tools.run(cluster, str(PROGRAMS / "ListTables.java"), []).split()


@EACH
def test_a_connection_without_login_is_told_that_authentication_is_required(secured: MiniCluster) -> None:
    simple = b"HBas\x00\x50"
    header = b"\x0a\x06\x0a\x04root"  # ConnectionHeader.user_info.effective_user
    answer = exchanged(secured.master, simple + struct.pack(">I", len(header)) + header)
    assert b"AccessDeniedException" in answer
    assert b"Authentication is required" in answer


@EACH
def test_hbases_own_client_with_a_ticket_writes_and_lists_tables(secured: MiniCluster) -> None:
    write_a_table(secured, "written")
    assert tables(secured) == ["written"]


@EACH
def test_zookeeper_shows_only_to_hbase_what_only_hbase_may_see(secured: MiniCluster) -> None:
    client = KazooClient(secured.address.zookeeper)
    client.start()
    try:
        assert client.get("/hbase/hbaseid")
        with pytest.raises(NoAuthError):
            client.get("/hbase/running")
    finally:
        client.stop()
        client.close()


@EACH
def test_thrift_refuses_who_does_not_log_in(secured: MiniCluster) -> None:
    plain = b"\x80\x01\x00\x01" + struct.pack(">I", 13) + b"getTableNames" + struct.pack(">I", 0) + b"\x00"
    host, _, port = str(secured.address.thrift).rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(plain)
        # It neither answers nor closes.
        secured.servers["thrift"].await_line("Invalid status -128", time.monotonic() + 60)
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
    start = b"\x01" + struct.pack(">I", 6) + b"GSSAPI"
    no_ticket = b"\x02" + struct.pack(">I", 4) + b"none"
    assert exchanged(str(secured.address.thrift), start + no_ticket).startswith(b"\x03")  # BAD


@EACH
def test_webhdfs_wants_a_ticket(secured: MiniCluster) -> None:
    answer = requests.get(f"{secured.address.webhdfs}/webhdfs/v1/?op=LISTSTATUS", timeout=60)
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Negotiate")


@pytest.mark.long
def test_names_of_realm_and_services_may_be_others_and_zookeeper_may_ask_for_no_login(tmp_path: Path, kdc: Kdc) -> None:
    with quick(), Kdc.start(tmp_path / "kdc", "OTHER.ORG") as other:
        security = Secured(other, service="hbprod", zookeeper=None, acls=False, user="anna", superusers=())
        with MiniCluster.start(tmp_path / "cluster", thrift=False, security=security) as cluster:
            identity = security.identity()
            assert identity.principal == "anna@OTHER.ORG"
            assert identity.service_principal(security.service, "localhost") == "hbprod/localhost@OTHER.ORG"
            write_a_table(cluster, "t")
            assert tables(cluster) == ["t"]
            client = KazooClient(cluster.address.zookeeper)
            client.start()
            assert client.get_acls("/hbase/running")[0] == OPEN_ACL_UNSAFE
            client.stop()
            client.close()
            (root,) = security.ask_webhdfs(str(cluster.address.webhdfs), ["GET /hbase?op=GETFILESTATUS"], user="anna")
            assert json.loads(root)["FileStatus"]["owner"] == "hbprod"


@pytest.mark.long
def test_hbase_writes_on_after_the_active_name_node_died(two_name_nodes: TwoNameNodes) -> None:
    write_a_table(two_name_nodes, "before")
    two_name_nodes.kill("nn1")
    two_name_nodes.activate("nn2")
    write_a_table(two_name_nodes, "after")
    assert tables(two_name_nodes) == ["after", "before"]
    two_name_nodes.start_server("nn1")
    two_name_nodes.await_ready("nn1")
    two_name_nodes.activate("nn1")
