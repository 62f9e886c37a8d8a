"""The log as HBase's own WALPrettyPrinter shows it: what was written to the tables of a run, in which order.

https://github.com/apache/hbase/blob/rel/2.6.3/hbase-server/src/main/java/org/apache/hadoop/hbase/wal/WALPrettyPrinter.java
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos import hdfs
from walferry.embedded import jars
from walferry.embedded.cluster import JVM_FLAGS, MiniCluster, more_jvm_flags

_FILE = "Writer Classes: "
_ENTRY = re.compile(r'^,?(?=\{"sequence")')
_ESCAPED = re.compile(r"\\x([0-9A-F]{2})")
OWN_FAMILY = "METAFAMILY"
"""of HBase's marks in the log: a region was opened, flushed, compacted"""


@dataclass(frozen=True)
class Logged:
    """A cell of the log. `kind`: HBase's name of its type."""

    table: str
    region: str
    sequence: int
    row: bytes
    family: str
    qualifier: bytes
    kind: str
    timestamp: int
    value: bytes


def source_log(cluster: MiniCluster, folder: Path, since_ms: int, tables: Collection[str]) -> list[Logged]:
    """All that a cluster's log has of these tables, of the files that were written since a moment."""
    folder.mkdir(exist_ok=True)
    servers = [f"/hbase/WALs/{one['pathSuffix']}" for one in hdfs.listed(cluster, "/hbase/WALs")]
    for place in [*servers, "/hbase/oldWALs"]:  # in this order: a file that is archived meanwhile is found there
        for one in hdfs.listed(cluster, place):
            name = one["pathSuffix"]
            if one["modificationTime"] < since_ms or name.endswith(".meta"):
                continue
            if (found := hdfs.content(cluster, f"{place}/{name}")) is not None:
                (folder / name).write_bytes(found)
    return list(logged(sorted(folder.iterdir()), tables))


def logged(files: Sequence[Path], tables: Collection[str]) -> Iterator[Logged]:
    """The cells of these tables in these files: of a file without an end, such as an open log, up to its last whole
    entry."""
    left = [file for file in files if file.stat().st_size]
    while left:
        printed = _printed(left)
        count = 0
        for line in printed.splitlines():
            count += _FILE in line
            if _ENTRY.match(line):
                entry, _ = json.JSONDecoder().raw_decode(_ENTRY.sub("", line))
                if (table := entry["table"]["nameAsString"]) in tables:
                    yield from _cells(table, entry)
        if count >= len(left):
            return
        left = left[max(1, count) :]  # it ends at the end of a file that has no trailer


def _printed(files: Iterable[Path]) -> str:
    """What it prints up to the first file that it cannot read to its end."""
    flags = [*JVM_FLAGS, *more_jvm_flags(), "-Xmx512m"]
    main = "org.apache.hadoop.hbase.wal.WALPrettyPrinter"
    command = [jars.java(), *flags, "-cp", jars.classpath(), main, "-j", "-p", *(f"file://{file}" for file in files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout


def _cells(table: str, entry: Any) -> Iterator[Logged]:
    for cell in entry["actions"]:
        if cell["family"] != OWN_FAMILY:
            yield Logged(
                table, entry["region"], int(entry["sequence"]), _bytes(cell["row"]), cell["family"],
                _bytes(cell["qualifier"]), cell["type"], int(cell["timestamp"]), _bytes(cell["value"]),
            )  # fmt: skip


def _bytes(text: str) -> bytes:
    """The bytes that Bytes.toStringBinary has shown."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1")
