"""Workers of a secured cluster's driver: they log in to HBase's RPC by a token, and have nothing of Kerberos."""

from __future__ import annotations

import base64
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from security.each import EACH
from walferry.embedded.cluster import MiniCluster
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import ClusterAddress, HBaseClient
from walferry.hbase.authentication import purpose_of
from walferry.hbase.errors import may_be_under_way
from walferry.security import AuthenticationError, Security, held_token
from walferry.security.handed import Handed, Issued, Purpose, WorkerLoginError, fingerprint
from walferry.security.token import Token

pytestmark = pytest.mark.cluster

VALUE = b"x" * 3_000_000
WORKER = str(Path(__file__).with_name("worker.py"))
WITHOUT_KERBEROS = (
    "import sys, runpy; sys.modules.update(gssapi=None, krb5=None, puresasl=None); "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)


def address_of(cluster: MiniCluster) -> ClusterAddress:
    """Its ZooKeeper is asked without a login, which takes a ticket."""
    kerberos = cluster.address.security.kerberos
    assert kerberos is not None
    return replace(cluster.address, security=Security(replace(kerberos, zookeeper_service=None)))


@dataclass(frozen=True)
class Driver:
    """A process with a ticket, and a table for its workers."""

    address: ClusterAddress
    table: str

    @property
    def purpose(self) -> Purpose:
        purpose = purpose_of(self.address)
        assert purpose is not None
        return purpose

    def handed_over(self) -> Handed:
        return Handed({self.purpose: held_token.to_hand_over().issued[self.purpose]})

    def work(self, handed: Handed) -> tuple[object, bytes]:
        """What came of a worker's work, and all that it logged."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("KRB5")}
        process = subprocess.run(
            [sys.executable, "-c", WITHOUT_KERBEROS, WORKER],
            input=pickle.dumps((handed, self.address, self.table, VALUE)),
            env=variables,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, process.stderr.decode()
        return pickle.loads(process.stdout), process.stderr


@pytest.fixture
def driver(secured: MiniCluster) -> Iterator[Driver]:
    table = "worked"
    with HBaseClient(address_of(secured)) as client:
        client.create_table(table, {"d": {"VERSIONS": "1"}})
        try:
            yield Driver(client.address, table)
        finally:
            client.disable_table(table)
            client.delete_table(table)


def forms(token: Token) -> list[bytes]:
    """How its password may be written."""
    password = token.password
    return [password, base64.b64encode(password), password.hex().encode(), repr(password)[2:-1].encode()]


@EACH
def test_a_worker_writes_and_reads_by_the_token_that_its_driver_was_given(driver: Driver) -> None:
    handed = driver.handed_over()
    token = handed.token(driver.purpose)
    with HBaseClient(driver.address) as client:
        assert token.service == client.cluster_id()
    found, logged = driver.work(handed)
    assert found == {
        "user": "ferry",
        "got": [True],
        "scanned": True,
        "qop": driver.purpose.kerberos.qop,
    }
    assert not any(form in logged for form in forms(token))
    assert not any(form.decode(errors="replace") in f"{token!r} {handed!r}" for form in forms(token))


def altered(token: Token, change: Callable[[pb.TokenIdentifier], None]) -> Token:
    identifier = pb.TokenIdentifier.FromString(token.identifier[4:])
    change(identifier)
    content = identifier.SerializeToString()
    return replace(token, identifier=struct.pack(">i", len(content)) + content)


def expire(identifier: pb.TokenIdentifier) -> None:
    identifier.expiration_date = identifier.issue_date - 1


def forget_key(identifier: pb.TokenIdentifier) -> None:
    identifier.key_id += 1000


@EACH
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda token: replace(token, password=b"guess"), "Mismatched response"),
        (lambda token: altered(token, expire), "Token has expired"),
        (lambda token: altered(token, forget_key), "Unknown master key"),
    ],
)
def test_a_token_that_hbase_does_not_take_is_told_to_the_driver_and_nothing_is_sent(
    driver: Driver, change: Callable[[Token], Token], said: str
) -> None:
    wrong = change(driver.handed_over().token(driver.purpose))
    error, logged = driver.work(Handed({driver.purpose: Issued(1, wrong)}))
    assert isinstance(error, WorkerLoginError)
    assert said in error.message
    assert (error.purpose, error.token) == (driver.purpose, fingerprint(wrong))
    assert not may_be_under_way(error)
    assert not any(form in logged for form in forms(wrong) if form != b"guess")
    with HBaseClient(driver.address) as client:
        assert b"".join(client.scan(driver.table)) == b""


def test_a_worker_makes_no_token_of_its_own(driver: Driver) -> None:
    elsewhere = replace(driver.purpose, service="HBase elsewhere")
    error, _ = driver.work(Handed({elsewhere: driver.handed_over().issued[driver.purpose]}))
    assert isinstance(error, AuthenticationError)
    assert "its driver has not used that service" in error.message


def test_a_token_is_made_once_and_again_after_a_worker_was_refused_it(driver: Driver) -> None:
    first = driver.handed_over().token(driver.purpose)
    with HBaseClient(driver.address):  # another client of the same cluster
        assert driver.handed_over().token(driver.purpose) == first
    held_token.discard(WorkerLoginError("no longer", purpose=driver.purpose, token=fingerprint(first)))
    assert driver.handed_over().token(driver.purpose) != first
