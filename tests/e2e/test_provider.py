"""The provider in a real Airflow: the connection's test, and an example DAG."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.readers import content
from walferry.airflow import example_dags
from walferry.embedded.environment import Environment
from walferry.hbase.address import ClusterAddress
from walferry.hbase.client import HBaseClient
from walferry.hbase.thrift import connect

pytestmark = [pytest.mark.cluster, pytest.mark.airflow]

FAMILIES = {"d": {"VERSIONS": "3"}, "e": {"VERSIONS": "1"}}


def write(address: ClusterAddress, table: str, first: int, count: int) -> None:
    with connect(address).table(table).batch() as batch:
        for i in range(first, first + count):
            batch.put(b"%05d" % (i * 7919 % 100_000), {b"d:q": b"value %d" % i, b"e:n": b"%d" % i})
            if i % 10 == 0:
                batch.delete(b"%05d" % ((i - 5) * 7919 % 100_000), [b"e:n"])


@pytest.mark.timeout(600)
def test_the_button_in_the_form_tells_version_and_cluster_id_or_what_does_not_answer(environment: Environment) -> None:
    connection = environment.connections()["hbase_source"]

    def press(**changes: Any) -> dict[str, Any]:
        body = connection | {"connection_id": "tried", "extra": json.dumps(connection["extra"])} | changes
        answer = airflow.post("/api/v2/connections/test", json=body)
        answer.raise_for_status()
        return dict(answer.json())

    with environment.airflow.client() as airflow:
        with HBaseClient(environment.source.address) as client:
            expected = f"HBase {client.version()}, cluster {client.cluster_id()}"
        assert press() == {"status": True, "message": expected}
        began = time.monotonic()
        assert press(port=1) == {
            "status": False, "message": "ZooKeeper at 127.0.0.1:1 did not answer within 10 s; is it up?",
        }  # fmt: skip
        assert time.monotonic() - began < 15


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_example_dag_copies_a_table_and_leaves_nothing_else(environment: Environment) -> None:
    source, target = environment.source.address, environment.target.address
    with HBaseClient(source) as client:
        client.create_table("original", FAMILIES, [b"50000"])
    write(source, "original", 0, 500)
    conf = {"tables": [{"source": "original", "target": "copies:one"}]}
    with_examples = replace(environment.airflow, dags=Path(str(example_dags.__file__)).parent)
    said = with_examples.command("dags", "test", "example_hbase_copy", "--conf", json.dumps(conf))
    with HBaseClient(source) as here, HBaseClient(target) as there:
        assert there.table_exists("copies:one"), said
        assert not [name for name in here.peers() if "copy" in name]
        assert not [s.name for client in (here, there) for s in client.snapshots() if "copy" in s.name]
    before = content(source, "original")
    assert len(before) > 400
    assert content(target, "copies:one") == before
