"""The spec of a run that receives: its keys, those that mean nothing here, and what the ledger has of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.errors import UsageError
from walferry.hbase.writer_kind import WriterKind
from walferry.ledger import Ledger
from walferry.receive.given import load_receive_spec
from walferry.run.given_spec import parse_keys, resolve_receive
from walferry.run.receive_spec import DEFAULT_PORT, ReceiveSpec, Receiving, ResolvedReceiveSpec
from walferry.run.recorded_spec import spec_of
from walferry.run.spec import Cluster, Options
from walferry.security import Tls

EXAMPLE = Path(__file__).parents[3] / "receive.example.yaml"
OF_A_RUN = ("name", "source", "target", "tables", "max_lag", "source_requests", "receive")


def resolved(**keys: Any) -> ResolvedReceiveSpec:
    def unknown(connection: str) -> Cluster:
        raise AssertionError(connection)

    return resolve_receive(parse_keys(ReceiveSpec, SPEC | keys, origin="receive.yaml"), unknown)


@pytest.mark.parametrize("key", sorted(Options.model_fields.keys() - set(OF_A_RUN)))
def test_a_migrations_key_that_does_nothing_here_is_refused_even_with_its_default(key: str) -> None:
    default = Options().model_dump(mode="json")[key]
    with pytest.raises(UsageError, match=f"{key}: a run that receives has no use for it: leave it out"):
        parse_keys(ReceiveSpec, SPEC | {key: default}, origin="receive.yaml")


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"receive": {"path": "walferry/receive/x"}}, "receive.path: give a whole path"),
        ({"receive": {"path": "/a//b"}}, "receive.path: give a whole path"),
        ({"receive": {"path": "/a/"}}, "receive.path: give a whole path"),
        ({"receive": {"path": "/a:b"}}, "receive.path: give a whole path"),
        ({"receive": {"path": "/walferry"}}, "receive.path: walferry has other nodes there"),
        ({"receive": {"path": "/walferry/leases/orders"}}, "receive.path: walferry has other nodes there"),
        ({"receive": {"path": "/hbase"}}, "receive.path: /hbase is the target's own node"),
        ({"receive": {"path": "/hbase/rs"}}, "receive.path: /hbase/rs is the target's own node"),
        ({"receive": {"login": {"principal": "hbase", "keytab": "/k"}}}, "receive.login.principal: "),
        ({"receive": {"login": {"principal": "hbase@R", "keytab": "/k"}}}, "receive.login.principal: "),
        ({"receive": {"login": {"principal": "hbase/_HOST@R", "keytab": "k"}}}, "receive.login.keytab: "),
        (
            {"receive": {"login": {"principal": "hbase/_HOST@R", "keytab": "/k", "senders": ["hbase"]}}},
            "receive.login.senders",
        ),
        ({"receive": {"tls": {"certificate": "/c"}}}, "receive.tls.key: "),
        ({"receive": {"tls": {"key": "/k"}}}, "receive.tls.certificate: "),
        ({"receive": {"tls": {"certificate": "c", "key": "/k"}}}, "receive.tls.certificate: "),
        ({"receive": {"tls": {"certificate": "/c", "key": "-----BEGIN PRIVATE KEY-----"}}}, "receive.tls.key: "),
        ({"receive": {"tls": {"certificate": "/c", "key": "/k", "ca": "ca.pem"}}}, "receive.tls.ca: "),
        ({"receive": {"tls": {"certificate": "/c", "key": "/k", "rpc": True}}}, "receive.tls.rpc: unknown key"),
        ({"receive": {"history": "scan", "start": "2026-01-01T00:00:00Z"}}, "start: with `history` the copy says"),
        ({"receive": {"memory": "63MiB"}}, "receive.memory: "),
        ({"receive": {"memory": "much"}}, "receive.memory: "),
        ({"receive": {"host": "a"}}, "receive.host: unknown key"),
        ({"host": "a"}, "host: unknown key"),
        ({"tables": []}, "tables: "),
    ],
)
def test_a_key_that_does_not_fit_is_named(keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolved(**keys)
    assert fault in str(refused.value)


def test_the_example_has_every_key() -> None:
    spec = load_receive_spec(EXAMPLE)
    assert spec.model_fields_set == set(OF_A_RUN)
    assert spec.receive.model_fields_set == set(Receiving.model_fields)


def test_what_is_not_given_has_its_default() -> None:
    spec = resolved()
    assert (spec.path, spec.receive.memory) == ("/walferry/receive/move", 512 << 20)
    assert (spec.host, spec.port, spec.writer_kind) == (
        "", DEFAULT_PORT, WriterKind.RPC,
    )  # fmt: skip


def test_the_peer_finds_the_run_below_its_path_in_the_targets_zookeeper() -> None:
    target = CLUSTER | {"zookeeper": "z1:2181,z2:2181", "znode": "/hbase-east"}
    assert resolved(target=target).cluster_key == "z1,z2:2181:/walferry/receive/move"
    spec = resolved(target=target | {"zookeeper": "z1:2181,z2:2182"}, receive={"path": "/other"})
    assert spec.cluster_key == "z1:2181,z2:2182:2181:/other"


def test_each_process_is_a_service_of_its_own_host_which_is_not_recorded() -> None:
    login = {"principal": "hb/_HOST@EXAMPLE.COM", "keytab": "/etc/hb.keytab"}
    spec = resolved(receive={"login": login})
    assert spec.receive.login is not None
    service = spec.receive.login.service("A.Example")
    assert (service.principal, service.keytab) == ("hb/a.example@EXAMPLE.COM", "/etc/hb.keytab")
    assert "login" not in spec.as_recorded()["receive"]
    clients = ("hb/source@EXAMPLE.COM", "hb@EXAMPLE.COM", "hb/source@OTHER", "hbase/a@EXAMPLE.COM")
    assert [service.accepts(client) for client in clients] == [True, True, False, False]
    other = resolved(receive={"login": login | {"senders": ["hbase@OTHER"]}}).receive.login
    assert other is not None
    known = [other.service("a").accepts(one) for one in ("hbase/x@OTHER", "hb/a@EXAMPLE.COM", "hbase/x@EXAMPLE.COM")]
    assert known == [True, False, False]
    assert other.service("a").is_own("hb/a@EXAMPLE.COM")
    assert (service.as_client().principal, service.as_client().service) == (service.principal, "hb/_HOST@EXAMPLE.COM")


def test_each_process_has_its_own_files_for_tls_which_are_not_recorded() -> None:
    files = {"certificate": "/etc/here.pem", "key": "/etc/here.key"}
    for more, ca in (({}, None), ({"ca": "/etc/ca.pem"}, "/etc/ca.pem")):
        spec = resolved(receive={"tls": files | more})
        assert spec.receive.tls is not None
        tls = spec.receive.tls.server()
        assert (tls.certificate, tls.key, tls.ca) == ("/etc/here.pem", "/etc/here.key", ca)
        assert tls.as_client() == Tls(ca, "/etc/here.pem", "/etc/here.key", rpc=True)
        assert spec.as_recorded() == resolved().as_recorded()


def test_what_is_recorded_is_what_all_processes_share(tmp_path: Path) -> None:
    tables = [{"source": "a", "target": "b"}]
    spec = resolved(tables=tables, max_lag=9, receive={"memory": "64MiB"}).at("here.example", 0)
    recorded = spec.as_recorded()
    assert recorded.keys() == set(OF_A_RUN)
    assert recorded["receive"] == {"path": "/walferry/receive/move"}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = ledger.open_run(spec.name, "me", recorded, "me", "receive")
        read = spec_of(run)
        assert isinstance(read, ResolvedReceiveSpec)
        assert (read.tables, read.max_lag, read.path) == (spec.tables, 9, spec.path)
        assert (read.host, read.receive.memory) == ("", 512 << 20)
        other = resolved(tables=tables, max_lag=10, receive={"memory": "1GiB"}).at("there.example", 7)
        assert ledger.open_run(spec.name, "me", other.as_recorded(), "me", "receive").run_id == run.run_id
        moved = resolved(tables=tables, receive={"path": "/other"}).as_recorded()
        with pytest.raises(UsageError, match=r"another spec \(receive.path\)"):
            ledger.open_run(spec.name, "me", moved, "me", "receive")


def test_a_process_listens_where_its_options_say() -> None:
    here = resolved().at("here.example", 0)
    assert (here.host, here.port, here.path) == ("here.example", 0, "/walferry/receive/move")
