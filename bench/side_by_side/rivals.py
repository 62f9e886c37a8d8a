"""HBase's own programs, with what their documentation advises for speed.

MapReduce jobs run within their own process (LocalJobRunner), with as many map and reduce tasks at once as walferry's
Spark has cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.side_by_side.clusters import HEAP, Clusters
from bench.side_by_side.timing import Timed, timed

from walferry.embedded import jars
from walferry.embedded.cluster import JVM_FLAGS, Cluster

TASKS = 2
_SEPARATOR = ";"
"""of input files: names of folders have commas"""
_MAPREDUCE = {
    "mapreduce.local.map.tasks.maximum": str(TASKS),
    "mapreduce.local.reduce.tasks.maximum": str(TASKS),
    "mapreduce.map.speculative": "false",
    "mapreduce.reduce.speculative": "false",
    "mapreduce.task.io.sort.mb": "256",  # instead of 100: fewer spills
    "wal.input.separator": _SEPARATOR,
}


class Rivals:
    """The programs, run on a pair of clusters."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._temporary = clusters.folder / "mapreduce"
        self._temporary.mkdir(exist_ok=True)

    def play_wal(self, paths: Sequence[str], table: str) -> Timed:
        """WALPlayer, live: every edit is put into the target's table."""
        return self._job(self._clusters.target, "mapreduce.WALPlayer", {}, [self._inputs(paths), table, table])

    def play_wal_in_bulk(self, paths: Sequence[str], table: str, output: str) -> Timed:
        """WALPlayer into HFiles of the target's HDFS, and BulkLoadHFilesTool."""
        folder = f"{self._clusters.target_hdfs}{output}"
        settings = {"wal.bulk.output": folder}
        target = self._clusters.target
        sorting = self._job(target, "mapreduce.WALPlayer", settings, [self._inputs(paths), table, table])
        loading = self._job(target, "tool.BulkLoadHFilesTool", {}, [folder, table])
        return Timed(sorting.seconds + loading.seconds, sorting.cpu_seconds + loading.cpu_seconds, 0, loading.output)

    def _inputs(self, paths: Sequence[str]) -> str:
        return _SEPARATOR.join(f"{self._clusters.source_hdfs}{path}" for path in paths)

    def _job(self, cluster: Cluster, name: str, settings: dict[str, str], arguments: Sequence[str]) -> Timed:
        given = _MAPREDUCE | {"hadoop.tmp.dir": str(self._temporary)} | settings
        options = [f"-D{key}={value}" for key, value in given.items()]
        command = [*java(self._temporary), "-cp", cluster.mapreduce_classpath, f"org.apache.hadoop.hbase.{name}"]
        log = self._clusters.folder / "logs" / f"{name}.log"
        return timed([*command, *options, *arguments], log, self._clusters.servers)


def java(temporary: Path) -> list[str]:
    """The JVM of a rival."""
    return [jars.java(), *JVM_FLAGS, f"-Xmx{HEAP}", f"-Djava.io.tmpdir={temporary}"]
