"""spark-submit for a task: a command line from the Spark connection, the app's output in the task's log.

Airflow's own Spark provider is not used: it requires pyspark-client, which installs the same files as PySpark and
breaks PySpark if their versions differ. The provider's connections of type `spark` work unchanged.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook

from walferry.errors import UsageError

log = logging.getLogger(__name__)

CLUSTER_CONF = {"spark.executor.cores": "1", "spark.executor.memory": "1g", "spark.cores.max": "2"}
"""properties of an app on a cluster, unless the connection's extra `conf` or the operator overrides them"""
ENVIRONMENT = "environment"
"""the folder in which an executor unpacks the connection's extra `archives`"""

_APP_ID = re.compile(r"\b(app-\d{14}-\d+|application_\d+_\d+)\b")
_ERROR = "error: "


class SparkHook(BaseHook):
    """Reads a connection of type `spark` and submits apps to its master, in deploy mode `client`."""

    conn_name_attr = "conn_id"
    default_conn_name = "spark_default"
    conn_type = "spark"
    hook_name = "Spark"

    def __init__(self, conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.conn_id = conn_id
        self._process: subprocess.Popen[str] | None = None

    def get_conn(self) -> tuple[str, dict[str, Any]]:
        """The master's URL and the connection's extras. Raises UsageError for a connection that cannot be used."""
        connection = self.get_connection(self.conn_id)
        host, extra = connection.host or "", dict(connection.extra_dejson)
        if not host:
            raise UsageError(f"connection {self.conn_id}: set its host to the master, such as local[*]")
        # A URI's scheme becomes the connection's type: spark://master:7077.
        whole = connection.conn_type == self.conn_type and ("://" in host or not connection.port)
        master = host if whole else f"{connection.conn_type}://{host}"
        if connection.port:
            master += f":{connection.port}"
        if extra.get("deploy-mode") == "cluster" and not master.startswith("local"):
            raise UsageError(
                f"connection {self.conn_id}: set deploy-mode to client; walferry's drivers run on their task's host"
            )
        return master, extra

    def command(self, application: str, arguments: Sequence[str], *, name: str, conf: Mapping[str, str]) -> list[str]:
        """The command line for an app; properties in `conf` override those of the connection."""
        master, extra = self.get_conn()
        options = ["--master", master, "--name", name]
        if not master.startswith("local"):
            options += ["--deploy-mode", "client"]
            conf = {**cluster_conf(extra), **conf}
            if archives := extra.get("archives"):
                options += ["--archives", f"{archives}#{ENVIRONMENT}"]
            if queue := extra.get("queue"):
                options += ["--queue", str(queue)]
        for key, value in conf.items():
            options += ["--conf", f"{key}={value}"]
        return [str(spark_home() / "bin" / "spark-submit"), *options, application, *arguments]

    def run(self, command: Sequence[str], show: Callable[[str], None]) -> tuple[int, str]:
        """Run a `command` and log its output. Returns its exit code and the error that it printed, or "".

        `show` is called with the URL of the app's page once it is known, if the connection has the extra `ui`.
        """
        master, extra = self.get_conn()
        ui, error = extra.get("ui"), ""
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=_environment()
        ) as self._process:
            assert self._process.stdout is not None
            try:
                for line in map(str.rstrip, self._process.stdout):
                    log.info("%s", line)
                    if line.startswith(_ERROR):
                        error = line.removeprefix(_ERROR)
                    if ui and (found := _APP_ID.search(line)):
                        show(app_page(ui, master, found[1]))
                        ui = None
            except BaseException:
                self._process.kill()
                raise
        return self._process.returncode, error

    def kill(self) -> None:
        """Kill spark-submit if it runs; the app's driver ends with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def cluster_conf(extra: Mapping[str, Any]) -> dict[str, str]:
    """Spark's properties for an app on a cluster, from the extras of its connection."""
    conf = dict(CLUSTER_CONF)
    if extra.get("archives"):
        conf |= {"spark.pyspark.python": f"./{ENVIRONMENT}/bin/python", "spark.pyspark.driver.python": sys.executable}
    if namespace := extra.get("namespace"):
        conf["spark.kubernetes.namespace"] = str(namespace)
    return conf | {key: str(value) for key, value in (extra.get("conf") or {}).items()}


def app_page(ui: str, master: str, app_id: str) -> str:
    """The URL of an app's page: at a standalone master or at YARN's resource manager; otherwise `ui` itself."""
    if master.startswith("spark://"):
        return f"{ui.rstrip('/')}/app/?appId={app_id}"
    if master.startswith("yarn"):
        return f"{ui.rstrip('/')}/cluster/app/{app_id}"
    return ui


def spark_home() -> Path:
    """$SPARK_HOME, or the installed PySpark, which is a complete Spark. Raises UsageError if there is neither."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError("PySpark is not installed: install walferry with its extra spark")
    return Path(found.origin).parent


def _environment() -> dict[str, str]:
    """The environment in which the driver runs this interpreter. With PYTHONSAFEPATH, Python does not import files of
    the app's folder or of the current folder in place of packages."""
    return os.environ | {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
    }
