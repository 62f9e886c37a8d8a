"""A real Airflow on this machine: scheduler, DAG processor, API server and triggerer, with SQLite and LocalExecutor."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from walferry.embedded import processes
from walferry.embedded.processes import ServerProcess, Servers
from walferry.errors import TransientError, WalferryError

HOST = "127.0.0.1"
USERNAME = "admin"
COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
BOOT_DEADLINE_S = 180.0


@dataclass
class Airflow(Servers):
    """One Airflow: its home `directory` (database, logs, secrets; mode 700), its DAGs folder, and its port.

    `config` is the airflow.cfg; `environment` adds variables to those of the servers and their tasks.
    """

    directory: Path
    config: Path
    dags: Path
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    servers: dict[str, ServerProcess] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address of the UI and the API."""
        return f"http://{HOST}:{self.port}"

    @property
    def password(self) -> str:
        """The password of the user `admin`, which is generated on first use."""
        return str(self._secrets()["password"])

    def start(self, connections: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Migrate the database, add `connections` (in the format of `airflow connections import`) and start COMPONENTS.

        Returns when the API answers and every component has sent a heartbeat. Raises WalferryError if a component ends,
        and TransientError if the start takes longer than three minutes.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.command("db", "migrate")
        if connections:
            file = self.directory / "connections.json"
            write_private(file, json.dumps(connections))
            self.command("connections", "import", "--overwrite", str(file))
            file.unlink()
        for component in COMPONENTS:
            self.start_component(component)
        self._await_healthy(time.monotonic() + BOOT_DEADLINE_S)

    def start_component(self, component: str) -> None:
        """Start one of COMPONENTS without waiting for it."""
        log = self.directory / "logs" / f"{component}.log"
        port = ["--port", str(self.port), "--host", HOST] if component == "api-server" else []
        self.servers[component] = processes.start(
            f"airflow {component}",
            [_airflow(), component, *port],
            log,
            folder=self.directory,
            environment=self.variables(),
        )

    def kill(self, component: str) -> None:
        """kill -9 one of COMPONENTS and the tasks it runs."""
        processes.kill(self.servers.pop(component))

    def stop(self) -> None:
        """End all components and the tasks they run. Repeating it does nothing."""
        servers, self.servers = list(self.servers.values()), {}
        processes.stop(servers)

    def command(self, *arguments: str) -> str:
        """Run the `airflow` command and return its stdout. Raises WalferryError with the end of the output."""
        answer = subprocess.run(
            [_airflow(), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=self.directory,
            env={**os.environ, **self.variables()},
        )
        if answer.returncode != 0:
            tail = "\n".join((answer.stdout + answer.stderr).splitlines()[-15:])
            raise WalferryError(f"`airflow {' '.join(arguments)}` failed with {answer.returncode}:\n{tail}")
        return answer.stdout

    @contextlib.contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A logged-in client of the REST API; paths begin with "/api/v2/…"."""
        # The server closes idle connections, and could close a kept one just as the next request is sent.
        with httpx.Client(base_url=self.url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)) as client:
            answer = client.post("/auth/token", json={"username": USERNAME, "password": self.password})
            answer.raise_for_status()
            client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
            yield client

    def unpause(self, dag_id: str, deadline_s: float = 90) -> None:
        """Unpause a DAG once Airflow has parsed it. Raises WalferryError with the import errors if it never appears."""
        deadline = time.monotonic() + deadline_s
        with self.client() as client:
            while True:
                answer = client.patch(f"/api/v2/dags/{dag_id}", json={"is_paused": False})
                if answer.is_success:
                    return
                if time.monotonic() > deadline:
                    errors = client.get("/api/v2/importErrors").json().get("import_errors", [])
                    said = "\n".join(str(error["stack_trace"]) for error in errors) or "no import error is known"
                    raise WalferryError(f"the DAG {dag_id} of {self.dags} does not appear in Airflow: {said}")
                time.sleep(1)

    def _await_healthy(self, deadline: float) -> None:
        unhealthy = list(COMPONENTS)
        while unhealthy:
            for server in self.servers.values():
                if not server.is_alive():
                    end = f"the end of {server.log}:\n{server.tail()}"
                    raise WalferryError(f"{server.name} ended while it was starting; {end}")
            if time.monotonic() > deadline:
                late = ", ".join(unhealthy)
                raise TransientError(f"Airflow is not ready in time: {late}; see {self.directory / 'logs'}")

            time.sleep(0.5)
            with contextlib.suppress(httpx.TransportError):
                health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=10)
                if health.is_success:
                    parts = health.json()
                    names = {"metadatabase", "scheduler", "triggerer", "dag_processor"}
                    unhealthy = [name for name in sorted(names) if (parts.get(name) or {}).get("status") != "healthy"]

    def variables(self) -> dict[str, str]:
        """The environment variables of the components and of the `airflow` command; they contain secrets."""
        secret = self._secrets()
        passwords = self.directory / "passwords.json"
        if not passwords.exists():
            write_private(passwords, json.dumps({USERNAME: secret["password"]}))
        return {
            "AIRFLOW_HOME": str(self.directory),
            "AIRFLOW_CONFIG": str(self.config),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__FERNET_KEY": secret["fernet_key"],
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USERNAME}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            # Seconds to wait for another process's transaction; SQLite's own five are too few on a busy machine.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.directory / 'airflow.db'}?timeout=60",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.directory / "logs"),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__SECRET_KEY": secret["session_key"],
            "AIRFLOW__API_AUTH__JWT_SECRET": secret["jwt_secret"],
            # Enables the test button in the connection form, for connections of type `hbase`.
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            # Otherwise two Airflows on one machine use the same port for the log files of running tasks.
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": "0",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "0",
            # Otherwise Spark's workers use `python3` from PATH, which lacks walferry's packages.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "GX_ANALYTICS_ENABLED": "false",
            **self.environment,
        }

    def _secrets(self) -> dict[str, str]:
        """The generated secrets, kept in a file that only its owner can read."""
        file = self.directory / "secrets.json"
        if not file.exists():
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = {
                "password": secrets.token_urlsafe(12),
                "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "session_key": secrets.token_urlsafe(32),
                "jwt_secret": secrets.token_urlsafe(64),
            }
            write_private(file, json.dumps(made))
        stored: dict[str, str] = json.loads(file.read_text())
        return stored


def write_private(path: Path, text: str) -> None:
    """Write a file that is private from the moment it is created."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _airflow() -> str:
    return str(Path(sys.executable).parent / "airflow")
