"""Is this container's service healthy? Exit 0 if so, else 1 with a line that says why. Needs nothing but Python.

healthcheck.py cluster FILE             every port of the cluster answers, and HDFS lists HBase's root folder
healthcheck.py airflow URL COMPONENT    Airflow at URL says that a component sends heartbeats
healthcheck.py port HOST:PORT           a process listens there
healthcheck.py spark URL                Spark's master or worker at URL says that it is alive
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 5


def get(url: str) -> Any:
    """The JSON at `url`; OSError or ValueError when there is none."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def listens(address: str) -> None:
    """Return if a process listens at "host:port"; OSError if none does."""
    host, _, number = address.rpartition(":")
    socket.create_connection((host, int(number)), TIMEOUT_S).close()


def cluster(file: str) -> str | None:
    """What is wrong with the cluster whose addresses cluster.py wrote to `file` once it was up."""
    (addresses,) = json.loads(Path(file).read_text(encoding="utf-8")).values()
    for address in (addresses["zookeeper"], addresses["thrift"], addresses["master"], *addresses["region_servers"]):
        listens(address)
    folder = urlsplit(addresses["rootdir"]).path
    listing = get(f"{addresses['webhdfs']}/webhdfs/v1{folder}?op=LISTSTATUS&user.name={addresses['user']}")
    return None if listing["FileStatuses"]["FileStatus"] else f"{folder} is empty"


def airflow(url: str, component: str) -> str | None:
    """What is wrong with a component: scheduler, triggerer, dag_processor or metadatabase."""
    status = (get(f"{url}/api/v2/monitor/health").get(component) or {}).get("status")
    return None if status == "healthy" else f"{component} is {status}"


def port(address: str) -> str | None:
    """Nothing is wrong with a process that takes a connection; OSError if none does."""
    listens(address)
    return None


def spark(url: str) -> str | None:
    """What is wrong with a master or a worker. A worker that lost its master has none in its answer."""
    state = get(f"{url}/json/")
    if state.get("status", "ALIVE") != "ALIVE":
        return f"the master is {state['status']}"
    return "the worker has no master" if "masterwebuiurl" in state and not state["masterwebuiurl"] else None


def main(arguments: list[str]) -> str | None:
    """Run one check and return what is wrong, or None."""
    checks: dict[str, Callable[..., str | None]] = {
        "cluster": cluster, "airflow": airflow, "port": port, "spark": spark,
    }  # fmt: skip
    try:
        return checks[arguments[0]](*arguments[1:])
    except (OSError, ValueError, KeyError) as error:
        return f"{' '.join(arguments)}: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
