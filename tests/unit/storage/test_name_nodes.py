"""Where a nameservice's name nodes are: what is taken from whom, and who asks."""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from walferry.background import begun
from walferry.errors import WalferryError
from walferry.storage import name_nodes, open_hdfs, tokens
from walferry.storage.name_nodes import Nameservice

CONFIGURATION = {
    "dfs.nameservices": "here,there",
    "dfs.ha.namenodes.here": "a, b",
    "dfs.namenode.rpc-address.here.a": "a.example:8020",
    "dfs.namenode.rpc-address.here.b": "b.example:8020",
    "dfs.ha.namenodes.there": "a",
    "dfs.namenode.rpc-address.there.a": "other.example:8020",
}
Showing = Callable[..., str]


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_nodes, "_known", {})
    monkeypatch.setattr(name_nodes, "_wanted", set())
    monkeypatch.setattr(name_nodes, "_silent", {})
    monkeypatch.setattr(name_nodes, "_learned", [])
    for variable in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def asked() -> list[str]:
    """Which servers were asked, by address."""
    return []


@pytest.fixture
def showing(asked: list[str]) -> Iterator[Showing]:
    """Starts a server with a page /conf, and returns its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int = 200, page: object = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                # Hadoop 2.5 looks at the one, later ones at the other.
                wanted = ("/conf?format=json&user.name=kim", "application/json")
                assert (self.path, self.headers["Accept"]) == wanted
                asked.append(f"http://{self.headers['Host']}")
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(page).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def page(configuration: dict[str, str]) -> dict[str, object]:
    return {"properties": [{"key": key, "value": value, "isFinal": False} for key, value in configuration.items()]}


def test_the_first_name_node_that_answers_tells_of_all(showing: Showing) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dead = f"http://127.0.0.1:{listening.getsockname()[1]}"
    service = Nameservice("here", (dead, showing(403), showing(page=[]), showing(page=page(CONFIGURATION))), "kim")
    assert service.name_nodes() == ("a.example:8020", "b.example:8020")
    assert list(service.settings(1).values())[1:] == ["nn0,nn1", "b.example:8020", "a.example:8020"]


def test_a_name_that_is_no_nameservice_is_a_host(showing: Showing) -> None:
    service = Nameservice("nn.example", (showing(page=page(CONFIGURATION)),), "kim")
    assert service.name_nodes() == ("nn.example:8020",)


def test_who_shows_nothing_is_named_with_the_reason(showing: Showing) -> None:
    forbidden = showing(403)
    with pytest.raises(WalferryError, match=f"{forbidden}/conf cannot be read: 403"):
        Nameservice("here", (forbidden,), "kim").name_nodes()
    with pytest.raises(WalferryError, match="does not show the configuration of a name node"):
        Nameservice("here", (showing(page={"beans": []}),), "kim").name_nodes()


def test_two_clusters_may_have_nameservices_of_one_name() -> None:
    one, other = (Nameservice("here", (f"http://{host}:9870",), "kim") for host in ("a", "b"))
    assert one.alias != other.alias


def test_what_the_operator_has_configured_counts_more_than_what_a_name_node_shows(
    showing: Showing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """Hole: an alias of the operator's own, or addresses for clients outside, lost to the servers' own page."""
    properties = [
        ("dfs.ha.namenodes.here", "x,y"),
        ("dfs.namenode.rpc-address.here.x", "\n  x.outside:8020 "),
        ("dfs.namenode.rpc-address.here.y", "y.outside:8020"),
    ]
    text = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties)
    folder = tmp_path / "etc" / "hadoop"
    folder.mkdir(parents=True)
    (folder / "hdfs-site.xml").write_text(f"<?xml version='1.0'?><configuration>{text}</configuration>")
    urls = (showing(page=page(CONFIGURATION)),)
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    assert Nameservice("here", urls, "kim").name_nodes() == ("x.outside:8020", "y.outside:8020")
    assert not asked
    assert Nameservice("there", urls, "kim").name_nodes() == ("other.example:8020",)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))  # which has no files, and counts more
    assert Nameservice("here", (*urls, "http://b:1"), "kim").name_nodes() == ("a.example:8020", "b.example:8020")


def test_who_shows_nothing_is_not_asked_again_for_each_job(
    showing: Showing, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    url = showing(403)
    open_hdfs(url, "kim", "hdfs://here")
    for _ in range(3):
        assert name_nodes.known() == {}
    assert asked == [url]
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + tokens.REST_SECONDS)
    assert name_nodes.known() == {}
    assert asked == [url, url]


def test_what_is_known_waits_for_nobody_who_asks(showing: Showing) -> None:
    service = Nameservice("here", (showing(page=page(CONFIGURATION)),), "kim")
    found = service.name_nodes()
    with name_nodes._asking:  # as while another cluster's name nodes do not answer
        assert begun(service.name_nodes, "known").result(20) == found


def test_name_nodes_are_looked_for_anew_once_they_are_forgotten(showing: Showing, asked: list[str]) -> None:
    service = Nameservice("here", (showing(page=page(CONFIGURATION)),), "kim")
    for _ in range(2):
        service.name_nodes()
        name_nodes.forget(service)
    assert len(asked) == 2


def test_a_worker_learns_of_its_driver_and_asks_nobody(
    showing: Showing, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """Also a worker without tokens, whose clusters are open."""
    url = showing(page=page(CONFIGURATION))
    open_hdfs(url, "kim", "hdfs://here")
    found = pickle.loads(pickle.dumps(name_nodes.known()))
    service = Nameservice("here", (url,), "kim")
    assert found == {service: ("a.example:8020", "b.example:8020")}
    monkeypatch.setattr(name_nodes, "_known", {})
    name_nodes.learn({})
    with pytest.raises(WalferryError, match="its driver does not know the name nodes of here"):
        service.name_nodes()
    name_nodes.learn(found)
    name_nodes.forget(service)
    assert service.name_nodes() == ("a.example:8020", "b.example:8020")
    assert asked == [url]


def test_a_worker_of_another_os_user_takes_what_its_driver_has_found() -> None:
    of_driver, of_worker = (Nameservice("here", ("http://a:9870",), user) for user in ("kim", "yarn"))
    name_nodes.learn({of_driver: ("a.example:8020", "b.example:8020")})
    assert of_worker.name_nodes() == ("a.example:8020", "b.example:8020")


def test_a_nameservice_may_have_one_name_node(showing: Showing) -> None:
    url = showing(page=page({"dfs.nameservices": "alone", "dfs.namenode.rpc-address.alone": "a.example:8021"}))
    assert Nameservice("alone", (url,), "kim").name_nodes() == ("a.example:8021",)


def test_variables_in_the_operators_files_are_left_to_the_name_nodes_page_which_shows_their_values(
    showing: Showing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = [
        ("dfs.ha.namenodes.here", "x"),
        ("dfs.namenode.rpc-address.here.x", "${first.host}:8020"),
        ("dfs.ha.namenodes.there", "${names}"),
    ]
    text = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties)
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{text}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    url = showing(page=page(CONFIGURATION))
    assert Nameservice("here", (url,), "kim").name_nodes() == ("a.example:8020", "b.example:8020")
    assert Nameservice("there", (url,), "kim").name_nodes() == ("other.example:8020",)
