"""A Spark session for tests that run no job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from pyspark.sql import SparkSession

SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))
"""knows how many workers it has, and nothing else"""
