"""HBase's own programs, with what their documentation advises for speed.

MapReduce jobs run within their own process (LocalJobRunner), with as many map and reduce tasks at once as walferry's
Spark has cores.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.side_by_side.clusters import Clusters
from bench.side_by_side.timing import Timed, timed

from walferry.embedded import jars
from walferry.embedded.cluster import JVM_FLAGS, MiniCluster
from walferry.errors import WalferryError

TASKS = 2
_HEAP = "6g"
"""of each program: with 2 GB, WALPlayer's sorting in bulk ran out of memory over 40M cells"""
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
_SCANS = {"hbase.client.scanner.caching": "1000"}


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
        return self._job(target, "tool.BulkLoadHFilesTool", {}, [folder, table]).after(sorting)

    def restore(self, snapshot: str, paths: Sequence[str], table: str, new: str, output: str | None = None) -> Timed:
        """A clone of a snapshot at the source, and WALPlayer into it: live or, with a folder for HFiles, in bulk."""
        source, begun = self._clusters.source, time.perf_counter()
        self._clusters.source_client.clone_snapshot(snapshot, new)
        cloned = time.perf_counter() - begun
        if output is None:
            played = self._job(source, "mapreduce.WALPlayer", {}, [self._inputs(paths), table, new])
        else:
            folder = f"{self._clusters.source_hdfs}{output}"
            sorting = self._job(
                source, "mapreduce.WALPlayer", {"wal.bulk.output": folder}, [self._inputs(paths), table, new]
            )
            played = self._job(source, "tool.BulkLoadHFilesTool", {}, [folder, new]).after(sorting)
        return replace(played, seconds=played.seconds + cloned)

    def print_wal(self, paths: Sequence[Path]) -> Timed:
        """WALPrettyPrinter on files of this machine, keys and values, to nowhere."""
        arguments = ["-p", *(path.as_uri() for path in paths)]
        cluster = self._clusters.source
        return self._program(cluster.mapreduce_classpath, "wal.WALPrettyPrinter", arguments, keep_output=False)

    def copy_and_open(self, table: str, snapshot: str) -> Timed:
        """ExportSnapshot from HDFS to HDFS, which compares checksums, and a clone of the snapshot."""
        source, target = self._clusters.source.rootdir, self._clusters.target.rootdir
        arguments = ["--snapshot", snapshot, "--copy-from", source, "--copy-to", target, "--mappers", str(TASKS)]
        copying = self._job(self._clusters.source, "snapshot.ExportSnapshot", {}, arguments)
        begun = time.perf_counter()
        self._clusters.target_client.clone_snapshot(snapshot, table)
        return replace(copying, seconds=copying.seconds + time.perf_counter() - begun)

    def copy_table(self, table: str) -> Timed:
        """CopyTable: all cells, with deletes, are put into the target's table of that name."""
        address = self._clusters.target.address
        peer = f"--peer.adr={address.zookeeper}:{address.znode}"
        return self._job(self._clusters.source, "mapreduce.CopyTable", _SCANS, [peer, "--all.cells", table])

    def compare(self, table: str, output: str) -> Timed:
        """HashTable on the source, then SyncTable without changes; `output` is the number of rows that differ."""
        source, target = self._clusters.source, self._clusters.target
        folder = f"{self._clusters.source_hdfs}{output}"
        # Larger batches than 8,000 bytes, as in the example of its usage, and as many files as maps that can work.
        options = ["--batchsize=32000", f"--numhashfiles={2 * TASKS}"]
        hashing = self._job(source, "mapreduce.HashTable", _SCANS, [*options, table, folder])
        keys = [f"--sourcezkcluster={source.address.zookeeper}:{source.address.znode}", "--dryrun=true"]
        syncing = self._job(target, "mapreduce.SyncTable", _SCANS, [*keys, folder, table, table])
        counters = dict(re.findall(r"^\s+(\w+)=(\d+)$", syncing.errors, re.MULTILINE))
        if "BATCHES" not in counters:
            raise WalferryError(f"SyncTable compared nothing: {counters}")
        both = syncing.after(hashing)
        return replace(both, output=str(int(counters.get("ROWSWITHDIFFS", 0))))

    def verify_replication(self, table: str, peer: str | None = None) -> Timed:
        """VerifyReplication, from the source; `output` is the number of rows that differ. `peer`: leads to the target;
        without one, the target is named by its cluster key."""
        address = self._clusters.target.address
        arguments = [peer or f"{address.zookeeper}:{address.znode}", table]
        settings = {"hbase.mapreduce.scan.cachedrows": "1000"}  # of this program; it is 1 by default
        done = self._job(self._clusters.source, "mapreduce.replication.VerifyReplication", settings, arguments)
        counters: dict[str, int] = {}
        for name, rows in re.findall(r"^\s+(GOODROWS|BADROWS)=(\d+)$", done.errors, re.MULTILINE):
            counters[name] = int(rows)  # each map tells its own, the job the sum of them at the end
        if not counters:
            raise WalferryError("VerifyReplication compared nothing")
        return replace(done, output=str(counters.get("BADROWS", 0)))

    def count_rows(self, table: str) -> Timed:
        """RowCounter; `output` is the number of rows."""
        done = self._job(self._clusters.source, "mapreduce.RowCounter", _SCANS, [table])
        # Each map tells its own, the job the sum of them at the end.
        counted = re.findall(r"^\s+ROWS=(\d+)$", done.errors, re.MULTILINE)
        if not counted:
            raise WalferryError("RowCounter told no number of rows")
        return replace(done, output=counted[-1])

    def _inputs(self, paths: Sequence[str]) -> str:
        return _SEPARATOR.join(f"{self._clusters.source_hdfs}{path}" for path in paths)

    def _job(self, cluster: MiniCluster, name: str, settings: dict[str, str], arguments: Sequence[str]) -> Timed:
        given = _MAPREDUCE | {"hadoop.tmp.dir": str(self._temporary)} | settings
        options = [f"-D{key}={value}" for key, value in given.items()]
        return self._program(cluster.mapreduce_classpath, name, [*options, *arguments])

    def _program(self, classpath: str, name: str, arguments: Sequence[str], *, keep_output: bool = True) -> Timed:
        flags = [*JVM_FLAGS, f"-Xmx{_HEAP}", f"-Djava.io.tmpdir={self._temporary}"]
        command = [jars.java(), *flags, "-cp", classpath, f"org.apache.hadoop.hbase.{name}", *arguments]
        log = self._clusters.log(name)
        return timed(command, log, self._clusters.servers, keep_output=keep_output)
