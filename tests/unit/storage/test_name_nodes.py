"""Where a nameservice's name nodes are: what is taken from whom, and who asks."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from walferry.errors import WalferryError
from walferry.security import handed
from walferry.security.handed import Handed
from walferry.storage import name_nodes, open_hdfs
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


@pytest.fixture
def showing() -> Iterator[Showing]:
    """Starts a server with a page /conf, and returns its address."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int = 200, page: object = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert (self.path, self.headers["Accept"]) == ("/conf?user.name=kim", "application/json")
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


def test_a_worker_learns_of_its_driver_and_asks_nobody(showing: Showing, monkeypatch: pytest.MonkeyPatch) -> None:
    url = showing(page=page(CONFIGURATION))
    open_hdfs(url, "kim", "hdfs://here")
    found = pickle.loads(pickle.dumps(name_nodes.known()))
    service = Nameservice("here", (url,), "kim")
    assert found == {service: ("a.example:8020", "b.example:8020")}
    monkeypatch.setattr(name_nodes, "_known", {})
    monkeypatch.setattr(handed, "_mine", Handed({}))  # as in a worker
    with pytest.raises(WalferryError, match="its driver does not know the name nodes of here"):
        service.name_nodes()
    name_nodes.learn(found)
    assert service.name_nodes() == ("a.example:8020", "b.example:8020")
