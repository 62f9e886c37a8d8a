"""docker/: what can be checked without an engine, above all that nothing in it drifts away from the rest."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

import walferry
from walferry.embedded import jars, tools
from walferry.run.given_spec import cluster_from_connection

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE_TEXT = (DOCKER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docker_{name}", DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def stages() -> dict[str, list[str]]:
    """Instructions by stage, continued lines joined."""
    found: dict[str, list[str]] = {"": []}
    stage = ""
    plain = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    for line in plain.replace("\\\n", " ").splitlines():
        if line.startswith("FROM "):
            stage = line.split()[-1]
            found[stage] = []
        if line.strip():
            found[stage].append(line)
    return found


def one(pattern: str, text: str = DOCKERFILE) -> str:
    (found,) = set(re.findall(pattern, text))
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_or_a_reason(name: str) -> None:
    service = SERVICES[name]
    assert service.get("healthcheck", {}).get("test") or service.get("x-no-healthcheck")


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_the_loopback_address_only(name: str) -> None:
    assert all(str(port).startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))
    assert "network_mode" not in SERVICES[name]


def test_no_two_services_publish_the_same_port() -> None:
    published = [port.rpartition(":")[0] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(set(published)) == len(published)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_runs_as_root_or_with_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert [line for line in stages()[service["build"]["target"]] if line.startswith("USER ")] == [
            "USER 10001:10001"
        ]
    else:
        assert service["user"] not in ("root", "0")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


def test_foreign_images_are_pinned_to_a_version() -> None:
    foreign = [service["image"] for service in SERVICES.values() if "build" not in service]
    foreign.append(one(r"(?m)^ARG PYTHON_IMAGE=(\S+)"))
    for image in foreign:
        assert re.fullmatch(r"[a-z/]+:\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", image), image
    built_from = {line.split()[1] for lines in stages().values() for line in lines if line.startswith("FROM ")}
    assert built_from - stages().keys() == {"${PYTHON_IMAGE}"}


def test_own_images_carry_the_version_of_the_package_and_are_stages_of_the_dockerfile() -> None:
    for service in SERVICES.values():
        if "build" in service:
            assert service["image"] == f"walferry-{service['build']['target']}:{walferry.__version__}"
            assert (
                DOCKER / service["build"]["context"] / service["build"]["dockerfile"]
            ).resolve() == DOCKER / "Dockerfile"
            assert service["build"]["target"] in stages()


def test_versions_agree_with_the_lock_and_the_makefile() -> None:
    python = one(r"(?m)^ARG PYTHON_IMAGE=python:(\d+\.\d+)")
    assert python == one(r"SPARK_HOME=/opt/venv/lib/python([\d.]+)/")
    assert f"--python-version {python} " in (ROOT / "Makefile").read_text(), "the lock is resolved for another Python"
    assert one(r"(uv==[\d.]+)") == one(r"(?m)^UV := (\S+)", (ROOT / "Makefile").read_text())
    assert one(r"openjdk-(\d+)-jre") == str(jars.OLDEST_JAVA)
    assert set(re.findall(r"--extra (\S+)", DOCKERFILE)) <= PROJECT["optional-dependencies"].keys()


def test_every_python_package_of_an_image_is_pinned_by_the_lock() -> None:
    installs = re.findall(r"uv pip install [^\n]*", DOCKERFILE)
    assert installs
    assert all("--no-deps" in command for command in installs)
    compiles = re.findall(r"uv pip compile (?:[^\n]|\\\n)*", DOCKERFILE)
    assert compiles
    assert all("--constraints requirements.lock" in command for command in compiles)


def test_what_the_lock_lacks_is_pinned_beside_the_dockerfile_and_leaves_when_the_lock_has_it() -> None:
    lines = (DOCKER / "requirements-postgres.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins
    assert not pins.keys() & LOCK.keys()


def test_every_jar_has_a_checksum() -> None:
    names = {line.split()[1] for line in (DOCKER / "jars.sha256").read_text().splitlines()}
    assert names == {"{1}-{2}.jar".format(*coordinate.split(":")) for coordinate in jars.COORDINATES}


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    ignore = [
        line for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    for line in (line for lines in stages().values() for line in lines if line.startswith("COPY ")):
        if "--from=" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
                assert Path(name).parts[0] in allowed, name
    assert "docker/.env" in ignore


def test_depends_on_names_services_and_waits_only_for_health_that_is_checked() -> None:
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            wanted = "service_healthy" if "healthcheck" in SERVICES[name] else "service_completed_successfully"
            assert how["condition"] == wanted


def test_every_named_volume_is_declared_and_its_folder_is_made_for_the_images_user() -> None:
    used = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == COMPOSE["volumes"].keys()
    for service in SERVICES.values():
        if "build" in service:
            made = " ".join(line for line in stages()[service["build"]["target"]] if "install -d" in line).split()
            named = [mount for mount in service.get("volumes", []) if not mount.startswith(".")]
            assert all(mount.split(":")[1] in made for mount in named)


def test_no_secret_is_committed_and_every_one_has_its_place_in_the_example() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", COMPOSE_TEXT))
    assert not re.findall(r"\$\{\w+(?!\w*:\?)", COMPOSE_TEXT), "a secret that may be missing without a word"
    example = (DOCKER / ".env.example").read_text()
    names = dict(re.findall(r"(?m)^(\w+)=(.*)$", example))
    assert names.keys() == wanted
    assert not any(names.values())
    assert ".env" in (DOCKER / ".gitignore").read_text().split()
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if name.endswith(("PASSWORD", "SECRET", "KEY")):
                assert value.startswith("${"), name


def test_make_env_fills_every_name_for_the_owner_only_and_never_overwrites(tmp_path: Path) -> None:
    make_env = load("make_env")
    file = tmp_path / ".env"
    assert make_env.write(file)
    values = dict(re.findall(r"(?m)^(\w+)=(.*)$", file.read_text()))
    assert values.keys() == set(re.findall(r"\$\{(\w+)", COMPOSE_TEXT))
    assert len(set(values.values())) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32,}=?", value) for value in values.values())
    assert len(values["AIRFLOW_JWT_SECRET"]) >= 64
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_text()
    assert not make_env.write(file)
    assert file.read_text() == before


@pytest.mark.parametrize("side", ["source", "target"])
def test_airflows_connections_lead_to_where_the_clusters_listen(side: str, tmp_path: Path) -> None:
    service = SERVICES[f"hbase-{side}"]
    name, host, region_servers = (part.split("=")[-1] for part in service["command"])
    assert (name, host, service["hostname"]) == (side, f"hbase-{side}", f"hbase-{side}")
    address = load("cluster").lay_out(tmp_path, host, int(region_servers)).address
    for airflow in (name for name in SERVICES if name.startswith("airflow-")):
        connection = json.loads(SERVICES[airflow]["environment"][f"AIRFLOW_CONN_HBASE_{side.upper()}"])
        assert connection["conn_type"] == "hbase"
        cluster = cluster_from_connection(side, connection["host"], connection["port"], connection["extra"], None)
        found = cluster.address()
        assert (found.zookeeper, found.znode, found.webhdfs, found.rootdir, found.thrift) == (
            address.zookeeper, address.znode, address.webhdfs, address.rootdir, address.thrift,
        )  # fmt: skip
        assert found.user in DOCKERFILE.split("useradd")[1].split("\n")[0], "not who runs HDFS"


def test_a_cluster_in_a_container_ties_nothing_to_the_loopback_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("cluster")
    launched: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(tools, "run", lambda *_, **_more: "")
    monkeypatch.setattr(
        module.HostCluster, "_launch", lambda _, name, main, arguments, **_more: launched.append((name, arguments))
    )
    cluster = module.lay_out(tmp_path, "hbase-source", 2)
    cluster.start_hdfs()
    cluster.start_hbase()
    cluster.start_thrift()

    assert [name for name, _ in launched] == ["hdfs", "datanode", "hbase", "regionserver-1", "thrift"]
    site = ElementTree.parse(tmp_path / "conf" / "hbase-site.xml").getroot()
    properties = {element.findtext("name"): element.findtext("value") for element in site}
    assert properties["dfs.datanode.hostname"] == properties["hbase.zookeeper.quorum"] == "hbase-source"
    assert not [name for name, value in properties.items() if value and ("127.0.0.1" in value or "localhost" in value)]
    assert not [arguments for _, arguments in launched if "127.0.0.1" in arguments]


@contextmanager
def answering(answer: object) -> Iterator[str]:
    """The URL of a server that answers every GET with `answer` as JSON."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_health_checks_tell_what_is_wrong(tmp_path: Path) -> None:
    check = load("healthcheck").main
    with answering({"scheduler": {"status": "healthy"}, "triggerer": {"status": "unhealthy"}}) as url:
        assert check(["airflow", url, "scheduler"]) is None
        assert check(["airflow", url, "triggerer"]) == "triggerer is unhealthy"
        assert check(["airflow", url, "dag_processor"]) == "dag_processor is None"
    with answering({"status": "STANDBY"}) as url:
        assert check(["spark", url]) == "the master is STANDBY"
        assert check(["port", url.removeprefix("http://")]) is None
    assert "ConnectionRefusedError" in str(check(["port", url.removeprefix("http://")]))
    assert "URLError" in str(check(["spark", url]))
    assert "FileNotFoundError" in str(check(["cluster", str(tmp_path / "endpoints.json")]))


def test_a_clusters_health_check_asks_every_port(tmp_path: Path) -> None:
    module = load("cluster")
    check = load("healthcheck").main
    file = tmp_path / "endpoints.json"
    with answering({"FileStatuses": {"FileStatus": [{}]}}) as url:
        here = url.removeprefix("http://")
        endpoints = module.lay_out(tmp_path, "nowhere.invalid", 1).endpoints() | {
            "webhdfs": url, "zookeeper": here, "thrift": here, "master": here, "region_servers": [here],
        }  # fmt: skip
        file.write_text(json.dumps({"source": endpoints}))
        assert check(["cluster", str(file)]) is None
    file.write_text(json.dumps({"source": endpoints}))
    assert "ConnectionRefusedError" in str(check(["cluster", str(file)]))


def test_the_health_checks_name_components_that_airflow_knows() -> None:
    components = {
        service["healthcheck"]["test"][-1]
        for name, service in SERVICES.items()
        if name.startswith("airflow-") and "healthcheck" in service
    }
    assert components == {"metadatabase", "scheduler", "dag_processor", "triggerer"}


def test_the_entry_point_hides_the_admins_password_in_a_file(tmp_path: Path) -> None:
    airflow = tmp_path / "airflow"
    airflow.write_text('#!/bin/sh\necho "$@"; cat "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"; env\n')
    airflow.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["/bin/sh", str(DOCKER / "entrypoint.sh"), "airflow", "api-server", "--port", "8080"]
    environment = {"PATH": path, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW_ADMIN_PASSWORD": 'a"b'}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    said, passwords, *variables = answer.stdout.splitlines()
    assert said == "api-server --port 8080"
    assert json.loads(passwords) == {"admin": 'a"b'}
    assert (tmp_path / "passwords.json").stat().st_mode & 0o777 == 0o600
    assert not [variable for variable in variables if variable.startswith("AIRFLOW_ADMIN_PASSWORD")]

    del environment["AIRFLOW_ADMIN_PASSWORD"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert refused.returncode != 0
    assert "AIRFLOW_ADMIN_PASSWORD: the API server needs a password for admin" in refused.stderr
