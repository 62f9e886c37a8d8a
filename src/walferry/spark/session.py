"""The Spark session of walferry's own jobs."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pyspark
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from walferry.background import begun, made_once
from walferry.errors import UsageError, WalferryError
from walferry.spark.class_archive import jvm_options
from walferry.spark.fan_out import SparkGoneError
from walferry.spark.worker_python import worker_python
from walferry.wal.keys import KEY_VARIABLES

_LOGGING = Path(__file__).with_name("log4j2.properties")

BATCH_BYTES = 16 << 20
"""of records handed to a Python worker at a time, or a single larger one"""

_JVM = (f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", "-XX:TieredStopAtLevel=1")
"""It moves bytes between Python's workers: a better compiler costs seconds at each start, and gains little later."""

_WATCHER = """
if read -r java; then
  read -r _ || kill -9 "$java"
  while kill -0 "$java" 2>/dev/null; do sleep 0.2; done
else
  sleep "$2"
fi
rm -rf "$1"
"""
"""Reads the JVM's pid, and a line when its parent exits normally; when the parent is killed, the pipe is closed."""

START_GRACE_S = 15.0
"""A JVM that was starting when its Python process was killed has no pid here. It ends by itself within this time."""

REDACTED = "(?i)secret|password|token|access[.]?key|wal_key"
"""names and values of settings that Spark's page and event log do not show: Spark's own, and the keys of encrypted WALs
that somebody sets in `spark.executorEnv`"""


def open_session(app_name: str, jvm: Sequence[str] = ()) -> SparkSession:
    """Start (or join) a Spark session; `local[*]` unless spark-submit or SPARK_MASTER says otherwise.

    `jvm`: more options of the JVM, if this process starts it.

    The executors run the interpreter of this process. Filter pushdown into Python sources stays off: in Spark 4.2 and
    4.3 it leaks filters between queries over one DataFrame. Speculation stays off too: a second copy of a task would
    send older edits beside newer ones. So would tasks that outlive their stage when Spark restarts it after losing an
    executor: such a job fails instead, and its round is repeated under a new lease.

    Raises UsageError when another package has overwritten files of PySpark, SparkGoneError when the JVM ends while it
    starts.
    """
    require_one_pyspark()
    # Spark's workers are `python -m pyspark.daemon`, which would import from the current folder first: a file hdfs.py
    # there would shadow the package. The variable is for the JVM's own workers (planning), the property for the
    # executors'.
    os.environ["PYTHONSAFEPATH"] = "1"
    starts_jvm = not {"SPARK_MASTER", "PYSPARK_GATEWAY_PORT"} & os.environ.keys() and SparkContext._gateway is None
    python = worker_python() if starts_jvm else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    builder = _builder(app_name)
    folder: Path | None = None
    tell_jvm: Callable[[int], None] | None = None
    if "SPARK_MASTER" in os.environ:
        builder = builder.master(os.environ["SPARK_MASTER"])
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit, which brings a master
        if starts_jvm:
            folder = Path(tempfile.mkdtemp(prefix="walferry-spark-"))
            tell_jvm = die_together(folder)
            builder = builder.config("spark.local.dir", str(folder))
        builder = (
            builder.master("local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", " ".join((*_JVM, *(jvm or jvm_options()))))
        )
    try:
        spark = builder.getOrCreate()
    except (PySparkRuntimeError, Py4JNetworkError, ConnectionError) as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise SparkGoneError(
            f"Spark does not start, its JVM has ended ({error}); run it again in a new process, and find out what "
            "ended it: what the JVM said is above", job="start Spark",
        ) from error  # fmt: skip
    spark.sparkContext.setLogLevel("ERROR")
    # With each task, to its Python worker. A setting would be in the command line of the JVM, which everybody can read.
    keys = {name: os.environ[name] for name in KEY_VARIABLES if name in os.environ}
    spark.sparkContext.environment.update(keys)
    # Its thread meets the end of a JVM that is killed, and would print a traceback: who waits for a job says it.
    spark.sparkContext._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    if tell_jvm is not None:
        tell_jvm(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    return spark


def _builder(app_name: str) -> SparkSession.Builder:
    """What is set of every session, whoever starts it."""
    from walferry.settings import SparkJobs  # here: Spark's workers import this module and need no settings

    return (
        SparkSession.builder.appName(app_name)
        .config("spark.executorEnv.PYTHONSAFEPATH", "1")
        # As Spark sets it for workers of data frames: those of its RDDs would be others, a second for each to start.
        .config("spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK", "1")
        # Each thread of a worker would have an arena of its own, in which glibc keeps what is free of large buffers.
        .config("spark.executorEnv.MALLOC_ARENA_MAX", "2")
        .config("spark.redaction.regex", REDACTED)
        .config("spark.sql.python.filterPushdown.enabled", "false")
        # What a Python worker, and a sort by window, hold of large cells. Spark counts both in records as well, and
        # keeps 4,096 records of a window's row in memory before it begins to spill, whatever their size.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(BATCH_BYTES))
        .config("spark.sql.windowExec.buffer.in.memory.threshold", "16")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", SparkJobs.read().shuffle_partitions)
        .config("spark.sql.adaptive.enabled", "false")
        # `by_row` ranks cells within the pieces that it has placed: no other shuffle may come between.
        .config("spark.sql.requireAllClusterKeysForDistribution", "false")
        .config("spark.speculation", "false")
        .config("spark.stage.maxConsecutiveAttempts", "1")
    )


def opened_once(app_name: str) -> Callable[[], SparkSession]:
    """Opens the session when it is first called, in that thread; other threads that ask then wait for it."""
    return made_once(partial(open_session, app_name))


class LateSession:
    """Opens a session when it is first called, or before that in another thread: starting Spark takes seconds."""

    def __init__(self, open_it: Callable[[], SparkSession]) -> None:
        self._open = open_it
        self._opened: Future[SparkSession] | None = None

    def begin(self) -> None:
        """Open it in another thread."""
        if self._opened is None:
            self._opened = begun(self._open, "open Spark")

    def __call__(self) -> SparkSession:
        """The session. Raises what opening it raised."""
        self.begin()
        assert self._opened is not None
        return self._opened.result()


def must_open() -> bool:
    """Whether this process was started by spark-submit, which in some modes takes it for failed without Spark."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class NoSparkError(WalferryError):
    """Work that is too large to be done without Spark came up in a process that has none; fact `phase`."""


def session_for(spark: Callable[[], SparkSession], size: int, here: int) -> SparkSession | None:
    """The session for work on so many bytes; None if at most `here`: that is done before Spark has begun, and
    where there is none."""
    opened = spark() if size > here or must_open() else None
    return opened if size > here else None


def require_one_pyspark() -> None:
    """Raise UsageError when pyspark-client, which owns the same files, was installed over PySpark in another version.

    Spark itself does not say so; a job fails at the first constructor that one of the sides lacks.
    """
    try:
        installed = distribution("pyspark")
    except PackageNotFoundError:
        return  # PySpark is part of a Spark distribution, on PYTHONPATH
    ours = Path(str(installed.locate_file("pyspark"))).resolve() == Path(str(pyspark.__file__)).resolve().parent
    if ours and pyspark.__version__ != installed.version:
        raise UsageError(
            f"pyspark-client {pyspark.__version__} has overwritten files of PySpark {installed.version}. Repair it: "
            f"pip install --force-reinstall --no-deps pyspark=={installed.version}",
            installed=installed.version, found=pyspark.__version__,
        )  # fmt: skip


def die_together(folder: Path) -> Callable[[int], None]:
    """Make a JVM of this process end with it, even after a kill -9, and remove its folder.

    On its own, a JVM ends seconds after its Python process, and its tasks print stack traces until then. Call this
    before the JVM starts, and the result with its pid.
    """
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER, "sh", str(folder), str(START_GRACE_S)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach only us
    )  # fmt: skip
    assert watcher.stdin is not None
    pipe = watcher.stdin

    def tell(java: int) -> None:
        pipe.write(b"%d\n" % java)
        pipe.flush()
        atexit.register(lambda: (pipe.write(b"\n"), pipe.close()))

    return tell
