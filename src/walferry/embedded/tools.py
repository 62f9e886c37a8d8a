"""Runs HBase's own programs from the jars: independent readers for tests to compare with."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Sequence
from typing import Any

import tenacity

from walferry.embedded import jars, processes
from walferry.embedded.cluster import JVM_FLAGS, MiniCluster, more_jvm_flags
from walferry.errors import WalferryError

WAL_PRETTY_PRINTER = "org.apache.hadoop.hbase.wal.WALPrettyPrinter"
CLOSE_SECONDS = 60


def run(
    cluster: MiniCluster,
    main: str,
    arguments: Sequence[str],
    *,
    timeout_s: float = 120,
    version: str | None = None,
    user: str | None = None,
) -> str:
    """Run the Java class `main` with the configuration of `cluster` and return its stdout. `main` may also be the path
    of a Java program in one file.

    Paths among the arguments are Hadoop paths: "/hbase/…" on the cluster's HDFS, "file:///…" on this machine. The
    class is that of HBase `version`, by default the cluster's. On a secured cluster it has a ticket of `user`, by
    default of the address's. If the program fails, raises WalferryError with the end of stderr.
    """
    answer = subprocess.run(
        command(cluster, main, arguments, version=version),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        env=None if cluster.security is None else processes.variables(cluster.security.logged_in(user)),
    )
    if answer.returncode != 0:
        tail = "\n".join(answer.stderr.splitlines()[-15:])
        raise WalferryError(f"{main} {' '.join(arguments)} failed with {answer.returncode}:\n{tail}")
    return answer.stdout


def command(cluster: MiniCluster, main: str, arguments: Sequence[str], version: str | None = None) -> list[str]:
    """The command line of `run`."""
    # The servers' log4j.properties sends the program's log to stderr.
    flags = [*JVM_FLAGS, *more_jvm_flags(), "-Xmx512m", f"-Djava.io.tmpdir={cluster.directory / 'tmp'}"]
    if cluster.security is not None:
        flags += cluster.security.client_flags(cluster.directory / "conf")
    return [jars.java(), *flags, "-cp", cluster.classpath_of(version or cluster.version), main, *arguments]


def print_wal(cluster: MiniCluster, path: str) -> list[dict[str, Any]]:
    """The entries of a WAL file, as HBase's WALPrettyPrinter prints them in JSON.

    It must have been rolled. Its region server closes and archives it some time later: that is waited for.
    """
    places = itertools.cycle((path, f"/hbase/oldWALs/{path.rpartition('/')[2]}"))
    closing = tenacity.retry_if_exception_message(match=r"(?s).*(EOFException|FileNotFoundException)")
    stop, wait = tenacity.stop_after_delay(CLOSE_SECONDS), tenacity.wait_fixed(0.5)
    retry = tenacity.Retrying(retry=closing, stop=stop, wait=wait, reraise=True)
    output = retry(lambda: run(cluster, WAL_PRETTY_PRINTER, ["--json", next(places)]))
    # The printer's "JSON" has plain lines between entries; each entry starts a line, possibly after a comma.
    decoder = json.JSONDecoder()
    return [decoder.raw_decode(output, start.end())[0] for start in re.finditer(r"^,?(?=\{)", output, re.MULTILINE)]
