"""A standalone Spark cluster on this machine: a master and workers, from PySpark's own jars."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from walferry.embedded import processes
from walferry.embedded.cluster import more_jvm_flags
from walferry.embedded.processes import ServerProcess, Servers
from walferry.errors import UsageError, WalferryError

HOST = "127.0.0.1"
BOOT_DEADLINE_S = 120.0
_DEPLOY = "org.apache.spark.deploy"
# An app's folder on a worker holds the packed environment, which is large.
_CLEANUP = {"enabled": "true", "interval": 30, "appDataTtl": 120}
_FORGET_APPS = " ".join(f"-Dspark.worker.cleanup.{key}={value}" for key, value in _CLEANUP.items())


@dataclass
class SparkCluster(Servers):
    """A master and `workers` workers with one core and 1 GiB each; keeps all their files below `directory`."""

    directory: Path
    port: int
    ui_port: int
    workers: int = 2
    servers: dict[str, ServerProcess] = field(default_factory=dict)

    @classmethod
    def lay_out(cls, directory: Path, workers: int = 2) -> SparkCluster:
        """Choose free ports without starting anything."""
        port, ui_port = processes.free_ports(2)
        return cls(directory, port, ui_port, workers)

    @property
    def master(self) -> str:
        """The master's URL, for spark-submit."""
        return f"spark://{HOST}:{self.port}"

    @property
    def ui(self) -> str:
        """The master's web page; `/json/` below it is the same as JSON."""
        return f"http://{HOST}:{self.ui_port}"

    @property
    def archives(self) -> Path:
        """The packed environment for the executors."""
        return self.directory / "environment.zip"

    def connection(self) -> dict[str, Any]:
        """The Airflow connection through which walferry's operators submit to this cluster."""
        extra = {"deploy-mode": "client", "archives": str(self.archives), "ui": self.ui}
        return {"conn_type": "spark", "host": self.master, "extra": extra}

    def start(self) -> None:
        """Pack the environment unless it is packed, start everything and return when the workers have registered.

        If a process does not start, raises WalferryError with the end of its log.
        """
        deadline = time.monotonic() + BOOT_DEADLINE_S
        try:
            master = self._start("master", "master.Master", "--port", str(self.port), "--webui-port", str(self.ui_port))
            self._pack()
            master.await_line("I have been elected leader", deadline)
            for number in range(1, self.workers + 1):
                folder = str(self.directory / f"worker-{number}")
                self._start(
                    f"worker-{number}", "worker.Worker", "--webui-port", "0", "--cores", "1", "--memory", "1g",
                    "--work-dir", folder, self.master,
                )  # fmt: skip
            for number in range(1, self.workers + 1):
                self.servers[f"worker-{number}"].await_line("Successfully registered with master", deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, including executors. A second call does nothing."""
        servers, self.servers = list(self.servers.values()), {}
        processes.stop(reversed(servers))

    def __enter__(self) -> Self:
        self.start()
        return self

    def _start(self, name: str, kind: str, *arguments: str) -> ServerProcess:
        home = spark_home()
        command = [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{kind}", "--host", HOST, *arguments]
        log = self.directory / "logs" / f"{name}.log"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.servers[name] = processes.start(
            f"spark {name}", command, log, folder=self.directory, environment=self._variables(home)
        )
        return self.servers[name]

    def _variables(self, home: Path) -> Mapping[str, str]:
        return {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            # Also applies to executors, which the workers start.
            **({"JDK_JAVA_OPTIONS": " ".join(flags)} if (flags := more_jvm_flags()) else {}),
            "SPARK_WORKER_OPTS": _FORGET_APPS,
            "WALFERRY_ENVIRONMENTS": str(self.directory / "environments"),
            # The workers have only the packed environment, like workers on other machines.
            "PATH": os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != _scripts()),
            "PYTHONPATH": "",
        }

    def _pack(self) -> None:
        if self.archives.exists():
            return
        command = [sys.executable, "-m", "walferry.spark", "pack", str(self.archives)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise WalferryError(f"the environment for Spark's executors cannot be packed: {answer.stderr.strip()}")


def spark_home() -> Path:
    """The folder of the installed PySpark, a complete Spark. Raises UsageError if there is none."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError("PySpark is not installed: install walferry[spark]")
    return Path(found.origin).parent


def _scripts() -> str:
    return str(Path(sys.executable).parent)
