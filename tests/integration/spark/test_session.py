"""The Spark session, in processes of its own: what a folder holds must not matter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from walferry import process
from walferry.errors import UsageError
from walferry.spark.class_archive import archive
from walferry.spark.fan_out import fan_out
from walferry.spark.session import require_one_pyspark
from walferry.wal.keys import KEY_NAME

FIXTURE = Path(__file__).parents[2] / "fixtures" / "wal" / "closed.wal"

JOB = f"""
import os
from pathlib import Path

from walferry.spark.fan_out import fan_out
from walferry.spark.session import open_session

def places(number):
    import hdfs
    import walferry.storage.webhdfs

    yield hdfs.__file__, walferry.__file__

def key_names(number):
    import os

    yield os.environ["WALFERRY_WAL_KEY_NAME"]

spark = open_session("a folder with files of all names")
print(fan_out(spark, places, [1], what="ask")[0])
jvm = spark.sparkContext._gateway.proc.pid
print("zzz" in Path("/proc", str(jvm), "cmdline").read_text())
os.environ["WALFERRY_WAL_KEY_NAME"] = "another"
open_session("which joins the session")
print(fan_out(spark, key_names, [1], what="ask")[0])
print(spark.read.format("hbase_wal").load({str(FIXTURE)!r}).count() > 0)
"""


def test_files_of_the_current_folder_take_no_packages_place_in_sparks_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hdfs", "walferry", "kazoo", "requests"):
        (tmp_path / f"{name}.py").write_text('raise RuntimeError("imported from the current folder")\n')
    monkeypatch.setenv(KEY_NAME, "zzz")
    (tmp_path / "pyspark_mine").mkdir()
    (tmp_path / "pyspark_mine" / "__init__.py").write_text('raise RuntimeError("imported from the current folder")\n')
    # -P: this driver as an installed command starts, without the current folder on its path.
    job = subprocess.run([sys.executable, "-P", "-c", JOB], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert job.returncode == 0, job.stderr
    places, shown, key_name, found = job.stdout.splitlines()[-4:]
    # What encrypted logs need reaches workers anywhere, and stands in no command line.
    assert (shown, key_name) == ("False", "another")
    assert str(tmp_path) not in places
    assert str(Path(str(process.__file__)).parent / "__init__.py") in places
    assert found == "True"


def test_files_of_another_packages_version_over_pysparks_are_told_before_a_job_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_one_pyspark()
    installed = pyspark.__version__
    monkeypatch.setattr(pyspark, "__version__", "4.0.0")
    with pytest.raises(UsageError, match=r"pyspark-client 4\.0\.0 has overwritten files of PySpark") as caught:
        require_one_pyspark()
    assert str(caught.value).endswith(f"pip install --force-reinstall --no-deps pyspark=={installed}")
    monkeypatch.setattr(pyspark, "__file__", "/opt/spark/python/pyspark/__init__.py")  # a Spark distribution's own
    require_one_pyspark()


def test_the_jvm_maps_the_archive_of_sparks_classes_that_the_setup_has_made(spark: SparkSession) -> None:
    assert spark.sparkContext._gateway is not None
    jvm = spark.sparkContext._gateway.proc.pid
    assert str(archive()) in Path(f"/proc/{jvm}/maps").read_text()


def test_data_frames_and_rdds_have_the_same_workers(spark: SparkSession) -> None:
    def daemons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()]})

    of_frames = {row.daemon for row in spark.range(0, 2, 1, 2).mapInArrow(daemons, "daemon long").collect()}
    of_rdds = set(fan_out(spark, lambda number: [os.getppid()], [1, 2], what="ask"))
    assert of_frames == of_rdds
    assert len(of_rdds) == 1
