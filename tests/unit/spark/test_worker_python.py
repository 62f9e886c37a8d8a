"""Spark's Python workers import PySpark as it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from walferry.spark.worker_python import COMMAND, without_archive, worker_python


def test_only_the_archive_of_pyspark_leaves_the_path() -> None:
    parts = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9-src.zip", "/mine"]
    assert without_archive(os.pathsep.join(parts)) == os.pathsep.join(parts[1:])


def test_the_command_is_this_python_without_the_archive() -> None:
    archive = Path(str(pyspark.__file__)).parent / "python" / "lib" / "pyspark.zip"
    assert archive.exists()
    program = "import sys, pyspark; print(sys.executable, pyspark.__file__)"
    assert Path(worker_python()).name == COMMAND
    environment = os.environ | {"PYTHONPATH": str(archive)}
    found = subprocess.check_output([worker_python(), "-c", program], env=environment, text=True).split()
    assert found == [sys.executable, str(pyspark.__file__)]
