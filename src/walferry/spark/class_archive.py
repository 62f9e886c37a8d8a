"""An archive of Spark's classes, which the JVM maps instead of loading and verifying 20,000 classes at each start.

This is Java's class-data sharing (`-XX:SharedArchiveFile`). An archive fits one JVM and one set of jars; a JVM ignores
an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from walferry.errors import WalferryError

_WORK = """
import sys
from pathlib import Path
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from walferry.spark import session

class WarmUp(DataSource):
    @classmethod
    def name(cls):
        return "warm_up"
    def schema(self):
        return "part int, data binary"
    def reader(self, schema):
        return Reader()

class Reader(DataSourceReader):
    def partitions(self):
        return [InputPartition(number) for number in range(2)]
    def read(self, partition):
        data = [pa.array([partition.value] * 9, pa.int32()), pa.array([bytes(9)] * 9, pa.binary())]
        yield pa.RecordBatch.from_arrays(data, names=["part", "data"])

spark = session.open_session("warm up", sys.argv[1:])
spark.dataSource.register(WarmUp)
cells = spark.read.format("warm_up").load()
cells.agg(F.count("*"), F.max("part")).collect()
placed = cells.mapInArrow(lambda batches: batches, cells.schema).repartitionById(2, "part").sortWithinPartitions("data")
done = placed.mapInArrow(lambda batches: batches, cells.schema).rdd
spark.sparkContext.runJob(done, list, [0])
spark.sparkContext.parallelize([1, 2], 2).map(lambda number: number + 1).collect()
spark.stop()
"""
"""a program that uses the same parts of Spark as walferry's jobs"""


def archive() -> Path:
    """The path of the archive for this Python's Spark and the current `java`, beside Spark's jars; it may not exist."""
    java = Path(shutil.which("java", path=_java_folder()) or "java").resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    known = [pyspark.__version__, str(jars), str(java), *(str(path.stat().st_mtime_ns) for path in (java, jars))]
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    return jars.parent / f"walferry-{digest}.jsa"


def jvm_options() -> list[str]:
    """The JVM options to use the archive; none if there is no archive."""
    try:
        path = archive()
    except OSError:  # no java: Spark will report it
        return []
    # Logging is off because a JVM that cannot use the archive warns on stdout.
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if path.exists() else []


def make() -> Path:
    """Create the archive unless it exists: half a minute, 160 MB. Raises WalferryError if Spark does not start."""
    path = archive()
    if path.exists():
        return path
    if not os.access(path.parent, os.W_OK):
        raise WalferryError(f"no archive of Spark's classes: {path.parent} belongs to somebody else", file=str(path))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="walferry-") as folder:
        unfinished, program = Path(folder) / "classes.jsa", Path(folder) / "warm_up.py"
        program.write_text(_WORK)
        command = [sys.executable, str(program), f"-XX:ArchiveClassesAtExit={unfinished}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # A JVM writes its classes when it exits, and a JVM that maps half an archive crashes.
        whole = done.returncode == 0 and unfinished.exists() and _starts(unfinished)
        if not whole:
            raise WalferryError(f"Spark's classes could not be archived: {done.stderr.strip()[-2000:]}")
        unfinished.replace(path)
    return path


def _starts(path: Path) -> bool:
    """Whether a JVM starts with this archive."""
    command = ["java", f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces", "-version"]
    environment = os.environ | {"PATH": os.pathsep.join(filter(None, [_java_folder(), os.environ.get("PATH")]))}
    done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, check=False)
    return done.returncode == 0


def _java_folder() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else None
