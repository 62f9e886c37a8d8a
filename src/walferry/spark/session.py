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
"""of records in one batch for a Python worker; a larger record makes a batch of its own"""

_JVM = (f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", "-XX:TieredStopAtLevel=1")
"""The JVM only moves bytes between Python workers: a better compiler costs seconds at each start and gains little."""

_WATCHER = """
if read -r java; then
  read -r _ || kill -9 "$java"
  while kill -0 "$java" 2>/dev/null; do sleep 0.2; done
else
  sleep "$2"
fi
rm -rf "$1"
"""
"""Reads the JVM's pid from its parent. Then it reads a line if the parent exits normally, or the end of the pipe if the
parent is killed."""

START_GRACE_S = 15.0
"""If the Python process is killed while its JVM starts, the watcher does not get the pid; the JVM then ends by itself
within this time."""

REDACTED = "(?i)secret|password|token|access[.]?key|wal_key"
"""settings that Spark's page and event log hide, by name and value: Spark's own default, and keys of encrypted WALs
that somebody sets in `spark.executorEnv`"""


def open_session(app_name: str, jvm: Sequence[str] = ()) -> SparkSession:
    """Start (or join) a Spark session; `local[*]` unless spark-submit or SPARK_MASTER says otherwise.

    `jvm`: more JVM options, used only if this process starts the JVM.

    The executors run this process's interpreter. Filter pushdown into Python sources stays off: in Spark 4.2 and 4.3 it
    leaks filters between queries over one DataFrame. Speculation stays off too: a second copy of a task would send
    older edits beside newer ones. Spark must not restart a stage after losing an executor either, since tasks of the
    old stage could live on and do the same: the job fails instead, and its round is repeated under a new lease.

    Raises UsageError if another package has overwritten files of PySpark, and SparkGoneError if the JVM ends during its
    start.
    """
    require_one_pyspark()
    # Spark's workers are `python -m pyspark.daemon`, which would import from the current folder first: a file hdfs.py
    # there would shadow the package. This variable is for the JVM's own workers (planning); a property is for the
    # executors' workers.
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
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets the master itself
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
            f"Spark did not start: its JVM has ended ({error}). Find out what ended it (the JVM's output is above), "
            "and run it again in a new process", job="start Spark",
        ) from error  # fmt: skip
    spark.sparkContext.setLogLevel("ERROR")
    # Spark sends these to the Python worker with each task. A setting would be on the JVM's command line, which
    # everybody can read.
    keys = {name: os.environ[name] for name in KEY_VARIABLES if name in os.environ}
    spark.sparkContext.environment.update(keys)
    # If the JVM is killed, this server's thread would print a traceback; the thread that waits for a job reports it.
    spark.sparkContext._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    if tell_jvm is not None:
        tell_jvm(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    return spark


def _builder(app_name: str) -> SparkSession.Builder:
    """The settings common to all sessions, whoever starts them."""
    from walferry.settings import SparkJobs  # imported here: Spark's workers import this module but need no settings

    return (
        SparkSession.builder.appName(app_name)
        .config("spark.executorEnv.PYTHONSAFEPATH", "1")
        # Spark sets this for DataFrames' workers; with the same value RDDs reuse them, and save a second per worker.
        .config("spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK", "1")
        # By default each thread of a worker has its own malloc arena, in which glibc keeps freed large buffers.
        .config("spark.executorEnv.MALLOC_ARENA_MAX", "2")
        .config("spark.redaction.regex", REDACTED)
        .config("spark.sql.python.filterPushdown.enabled", "false")
        # Limits what a Python worker and a window sort hold of large cells. Spark also limits both by records: a window
        # keeps 4,096 records in memory before it spills, whatever their size.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(BATCH_BYTES))
        .config("spark.sql.windowExec.buffer.in.memory.threshold", "16")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", SparkJobs.read().shuffle_partitions)
        .config("spark.sql.adaptive.enabled", "false")
        # `by_row` ranks cells within its own partitions: Spark must not shuffle them again in between.
        .config("spark.sql.requireAllClusterKeysForDistribution", "false")
        .config("spark.speculation", "false")
        .config("spark.stage.maxConsecutiveAttempts", "1")
    )


def opened_once(app_name: str) -> Callable[[], SparkSession]:
    """A function that opens the session on its first call, in the calling thread; other callers wait for it."""
    return made_once(partial(open_session, app_name))


class LateSession:
    """Opens a session on its first call, or earlier in another thread with `begin`: starting Spark takes seconds."""

    def __init__(self, open_it: Callable[[], SparkSession]) -> None:
        self._open = open_it
        self._opened: Future[SparkSession] | None = None

    def begin(self) -> None:
        """Start to open the session in another thread."""
        if self._opened is None:
            self._opened = begun(self._open, "open Spark")

    def __call__(self) -> SparkSession:
        """The session, once it is open. Raises what opening raised."""
        self.begin()
        assert self._opened is not None
        return self._opened.result()


def must_open() -> bool:
    """Whether spark-submit started this process. In some modes, spark-submit counts a process that opens no session as
    failed."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class NoSparkError(WalferryError):
    """A process that has no Spark has work that is too large to do without it; fact `phase`."""


def session_for(spark: Callable[[], SparkSession], size: int, here: int) -> SparkSession | None:
    """The session for work on `size` bytes; None if `size` is at most `here`: such small work needs no Spark. Under
    spark-submit the session is opened in any case."""
    opened = spark() if size > here or must_open() else None
    return opened if size > here else None


def require_one_pyspark() -> None:
    """Raise UsageError if pyspark-client of another version, which owns the same files, was installed over PySpark.

    Spark itself does not check this: a job fails at the first constructor that one of the two lacks.
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
    """Make this process's JVM end with the process, even after a kill -9, and remove the JVM's folder.

    Otherwise the JVM ends seconds after its Python process, and its tasks print stack traces until then. Call this
    before the JVM starts, and call the returned function with the JVM's pid.
    """
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER, "sh", str(folder), str(START_GRACE_S)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach only this process
    )  # fmt: skip
    assert watcher.stdin is not None
    pipe = watcher.stdin

    def tell(java: int) -> None:
        pipe.write(b"%d\n" % java)
        pipe.flush()
        atexit.register(lambda: (pipe.write(b"\n"), pipe.close()))

    return tell
