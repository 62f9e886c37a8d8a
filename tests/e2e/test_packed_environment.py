"""The packed environment, as Spark's executors get it."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from walferry.embedded.spark import SparkCluster

pytestmark = pytest.mark.cluster

SCRIPT = """
import happybase, pyarrow
from walferry.formats.proto import hbase_pb2
from walferry.formats import __main__, _wal_kernels

__main__.main()
import walferry
print(walferry.__file__)
print(sum(_wal_kernels.scan_entries.stats.cache_misses.values()))
"""


def test_it_runs_anywhere_with_numbas_kernels_compiled_and_is_unpacked_once_for_all_executors(
    spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    environments = tmp_path / "environments"

    def run(number: int) -> tuple[str, str]:
        folder = tmp_path / f"executor-{number}"
        with zipfile.ZipFile(spark_cluster.archives) as archive:  # as Spark does: permissions, but no times
            archive.extractall(folder)
            mode = archive.getinfo("bin/python").external_attr >> 16
        python = folder / "bin" / "python"
        python.chmod(mode)
        variables = {"PATH": "/usr/bin:/bin", "WALFERRY_ENVIRONMENTS": str(environments)}
        answer = subprocess.run(
            [str(python), "-c", SCRIPT], capture_output=True, text=True, check=True, cwd=tmp_path, env=variables
        )
        place, misses = answer.stdout.splitlines()
        return place, misses

    with ThreadPoolExecutor(2) as executors:
        (place, misses), other = executors.map(run, range(2))
    assert place.startswith(str(environments))
    assert misses == "0"
    assert other == (place, misses)
    assert len([folder for folder in environments.iterdir() if folder.is_dir()]) == 1
    for folder in tmp_path.iterdir():  # hundreds of megabytes each
        shutil.rmtree(folder)
