"""Executors of a Spark cluster, as on other machines: they have the packed environment, without python-gssapi."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.spark import SparkCluster

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SCRIPT = """
import json, os, pickle, sys
from walferry.hbase.client import HBaseClient
from walferry.spark.fan_out import fan_out
from walferry.spark.session import open_session
from walferry.wal.copies import files_of

address = pickle.loads(bytes.fromhex(sys.argv[1]))


def asked(_):
    from importlib.util import find_spec

    with HBaseClient(address) as client:
        user, tables = client.who_am_i(), client.tables()
    names = [status.name for status in files_of(address).list(address.root_path + "/WALs")]
    return [(os.getpid(), find_spec("gssapi") is not None, user, tables, names)]


with HBaseClient(address) as client:
    tables = client.tables()
files = files_of(address)
names = [status.name for status in files.list(address.root_path + "/WALs")]
spark = open_session("standalone")
there = fan_out(spark, asked, [0], what="ask")
print(json.dumps({"here": (os.getpid(), True, "ferry", tables, names), "there": there}))
"""


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and a worker."""
    folder = tmp_path_factory.mktemp("spark")
    with SparkCluster.lay_out(folder, workers=1) as cluster:
        yield cluster
    shutil.rmtree(folder)  # holds half a gigabyte of unpacked packages


def test_executors_of_a_spark_cluster_use_hbase_and_hdfs(secured: MiniCluster, spark_cluster: SparkCluster) -> None:
    arguments = [
        "--archives", f"{spark_cluster.archives}#environment", "--conf", "spark.driver.host=127.0.0.1", "pyspark-shell",
    ]  # fmt: skip
    variables = {
        "SPARK_MASTER": spark_cluster.master,
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join(arguments),
    }
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, pickle.dumps(secured.address).hex()],
        cwd=spark_cluster.directory, env=processes.variables(variables), capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    found = json.loads(answer.stdout)
    process, _, *here = found["here"]
    [(worker, has_kerberos, *there)] = found["there"]
    assert worker != process
    assert not has_kerberos
    assert there == here
