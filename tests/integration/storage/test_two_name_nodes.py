"""An HDFS with two name nodes, of which one is active: failovers in the middle of whatever walferry asks it for."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import requests

from booting import quick
from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.background import begun
from walferry.embedded import jars, tools
from walferry.embedded.cluster import Ports
from walferry.embedded.kerberized import HDFS_SUPERUSER
from walferry.embedded.two_name_nodes import NAME_NODES, TwoNameNodes
from walferry.errors import TransientError
from walferry.ledger import Ledger, LogPosition
from walferry.replay.keeping import by_copies, protect
from walferry.replay.keeping.folder import folder_faults
from walferry.replay.keeping.retention import Retention
from walferry.run.notes.failing import failing
from walferry.run.run import Run
from walferry.storage import Local, WebHdfs, name_nodes, open_file_system, open_hdfs, webhdfs
from walferry.storage.direct import DirectHdfs
from walferry.wal.copies import with_copies
from walferry.watch.listing import list_wals
from written import write_anew

pytestmark = pytest.mark.cluster

CONTENT = os.urandom(5_000_000)
WALS = "/hbase/WALs/rs,1,2"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNameNodes]:
    """The HDFS, without HBase. A test leaves both name nodes running, whichever is active."""
    with quick():
        cluster = TwoNameNodes(tmp_path_factory.mktemp("pair"), Ports.free(), with_thrift=False)
        try:
            cluster.start_hdfs()
            cluster.await_hdfs(time.monotonic() + 120)
            for name in cluster.servers:
                cluster.await_ready(name)
            warm(cluster)
            yield cluster
        finally:
            cluster.stop()


def files_on(pair: TwoNameNodes, *, direct: bool = False, standby_first: bool = False) -> WebHdfs:
    address = pair.address
    urls = str(address.webhdfs).split(";")
    if standby_first == (pair.active == NAME_NODES[0]):
        urls.reverse()
    return open_hdfs(";".join(urls), address.user, address.name_node if direct else None)


def other(pair: TwoNameNodes) -> str:
    return next(name for name in NAME_NODES if name != pair.active)


def restarted(pair: TwoNameNodes, name: str) -> None:
    pair.start_server(name)
    pair.await_ready(name)
    warm(pair)


def warm(pair: TwoNameNodes) -> None:
    """The standby loads its REST classes with its first request: that takes seconds."""
    standby = files_on(pair, standby_first=True).url.split(";")[0]
    assert requests.get(f"{standby}/webhdfs/v1/?op=LISTSTATUS", timeout=60).status_code == 403


def copied(pair: TwoNameNodes, folder: str, to: Path) -> dict[str, bytes]:
    """The files of a folder, as Hadoop's own client reads them."""
    (pair.directory / "conf" / "core-site.xml").write_text("<configuration/>")  # the shell wants one
    places = [f"hdfs://{pair.nameservice}{folder}", f"file://{to}/got"]
    tools.run(pair, "org.apache.hadoop.fs.FsShell", ["-get", *places], version=jars.NEWEST)
    return {path.name: path.read_bytes() for path in (to / "got").iterdir() if path.is_file()}


@contextmanager
def only_directly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> Iterator[bytes]:
        raise AssertionError("WebHDFS was used")

    with monkeypatch.context() as patch:
        patch.setattr(WebHdfs, "write", refuse)
        patch.setattr(WebHdfs, "_open", refuse)
        yield


@pytest.mark.parametrize("standby_first", [False, True])
def test_a_nameservice_is_read_and_written_directly_and_any_name_node_may_be_named_first(
    pair: TwoNameNodes, standby_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    files, folder = files_on(pair, direct=True, standby_first=standby_first), f"/direct-{standby_first}"
    files.mkdirs(folder)
    with only_directly(monkeypatch):
        files.write(f"{folder}/a", [CONTENT])
        assert b"".join(files.read(f"{folder}/a", 7, len(CONTENT) - 7)) == CONTENT[7:]
    files.rename(f"{folder}/a", f"{folder}/b")
    assert [status.name for status in files.list(folder)] == ["b"]
    assert copied(pair, folder, tmp_path) == {"b": CONTENT}
    assert files.delete(f"{folder}/b") is True


def test_a_url_of_a_nameservice_is_read_directly(pair: TwoNameNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    write_anew(files_on(pair), "/named", [CONTENT])
    addresses = str(pair.address.webhdfs).replace("http://", "")
    files, path = open_file_system("hdfs://mini/named", user=pair.address.user, webhdfs=addresses)
    with only_directly(monkeypatch):
        assert b"".join(files.read(path, 0, len(CONTENT))) == CONTENT


def half_and_half(halfway: threading.Semaphore, go_on: threading.Event) -> Iterator[bytes]:
    """The content, with a pause in its middle."""
    half = len(CONTENT) // 2
    yield CONTENT[:half]
    halfway.release()
    assert go_on.wait(60)
    yield CONTENT[half:]


def read_in_two(files: WebHdfs, path: str, halfway: threading.Semaphore, go_on: threading.Event) -> bytes:
    """What a file has; with a pause after the first chunk."""
    content = files.read(path)
    first = next(content)
    halfway.release()
    assert go_on.wait(60)
    return first + b"".join(content)


def at_work(pair: TwoNameNodes, folder: str, halfway: threading.Semaphore, go_on: threading.Event) -> dict[str, Any]:
    """What is under way, by name, while its name node dies: reading and writing both ways."""
    work: dict[str, Any] = {}
    for way in ("webhdfs", "direct"):
        files = files_on(pair, direct=way == "direct")
        files.write(f"{folder}/read-{way}", [CONTENT])
        work[f"read {way}"] = begun(partial(read_in_two, files, f"{folder}/read-{way}", halfway, go_on), "read")
        work[f"write {way}"] = begun(
            partial(files.write, f"{folder}/write-{way}", half_and_half(halfway, go_on)), "write"
        )
    return work


def afterwards(pair: TwoNameNodes, folder: str) -> dict[str, Any]:
    """What begins while no name node is active, by name. All clients know the dead one as the active one."""
    files, direct = files_on(pair), files_on(pair, direct=True)
    webhdfs = files.url
    return {
        "list": begun(lambda: [status.name for status in files.list(WALS)], "list"),
        "list_wals": begun(lambda: sorted(asyncio.run(listed(webhdfs))), "list_wals"),
        "status": begun(lambda: files.status(f"{folder}/read-direct"), "status"),
        "read anew": begun(lambda: b"".join(direct.read(f"{folder}/read-webhdfs")), "read"),
        "write anew": begun(lambda: direct.write(f"{folder}/anew", [CONTENT]), "write"),
        "rename": begun(lambda: files.rename(f"{folder}/older", f"{folder}/newer"), "rename"),
        "delete": begun(lambda: files.delete(f"{folder}/unwanted"), "delete"),
        "mkdirs": begun(lambda: files.mkdirs(f"{folder}/made"), "mkdirs"),
    }


async def listed(webhdfs: str) -> list[str]:
    """As its callers do: again after a TransientError."""
    while True:
        try:
            return list((await list_wals(webhdfs, "root", "/hbase")).files)
        except TransientError:
            await asyncio.sleep(0.2)


@contextmanager
def losing(url: str, operation: str, lose: Callable[[], None]) -> Iterator[str]:
    """The address of a proxy that hands requests on to a name node; the first answer to `operation` is lost."""
    lost: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _ask(self) -> None:
            answer = requests.request(self.command, f"{url}{self.path}", allow_redirects=False, timeout=30)
            if f"op={operation}" in self.path and not lost:
                lost.append(self.path)
                lose()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(answer.status_code)
            for name in ("Location", "Content-Type"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_PUT = do_DELETE = _ask

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
    assert lost


def test_a_name_node_that_is_killed_costs_no_byte_whatever_it_was_asked(pair: TwoNameNodes, tmp_path: Path) -> None:
    folder, before, after = "/killed", str(pair.active), other(pair)
    files = files_on(pair)
    here, there = files.url.split(";")
    write_anew(files, f"{WALS}/rs%2C1%2C2.10", [b"log"])
    for name in ("old", "older", "unwanted", "unloved"):
        files.write(f"{folder}/{name}", [b"small"])
    with losing(here, "DELETE", lambda: None) as proxy:
        assert WebHdfs(f"{proxy};{there}", pair.address.user).delete(f"{folder}/unloved") is True
    halfway, go_on = threading.Semaphore(0), threading.Event()
    work = at_work(pair, folder, halfway, go_on)
    for _ in work:
        assert halfway.acquire(timeout=60)
    with losing(here, "RENAME", lambda: pair.kill(before)) as proxy:
        renaming = WebHdfs(f"{proxy};{there}", pair.address.user)
        work["rename without an answer"] = begun(lambda: renaming.rename(f"{folder}/old", f"{folder}/new"), "rename")
        while before in pair.servers:
            time.sleep(0.05)
    work |= afterwards(pair, folder)
    go_on.set()
    time.sleep(2)  # none is active, as while a real one fails over
    pair.activate(after)
    failure = work.pop("write direct").exception(120)
    if failure is not None:  # only the caller has the chunks
        assert isinstance(failure, TransientError)
        write_anew(files_on(pair, direct=True), f"{folder}/write-direct", [CONTENT])
    found = {name: one.result(120) for name, one in work.items()}
    assert found["list"] == found["list_wals"] == ["rs%2C1%2C2.10"]
    assert found["status"].length == len(CONTENT)
    assert found["read webhdfs"] == found["read direct"] == found["read anew"] == CONTENT
    assert found["delete"] is True
    whole = dict.fromkeys(("read-webhdfs", "read-direct", "write-webhdfs", "write-direct", "anew"), CONTENT)
    assert copied(pair, folder, tmp_path) == {**whole, "new": b"small", "newer": b"small"}
    restarted(pair, before)


@pytest.mark.long
def test_logs_are_copied_into_a_folder_whose_name_node_is_killed_meanwhile(
    pair: TwoNameNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after, stage = str(pair.active), other(pair), str(pair.address.webhdfs).replace("http://", "")
    halfway, go_on, over = threading.Semaphore(0), threading.Event(), threading.Event()
    monkeypatch.setattr(by_copies, "log_files_of", lambda _: Paused(halfway, go_on))
    monkeypatch.setattr(by_copies, "require_same_source", lambda _: None)
    monkeypatch.setattr(by_copies, "require_whole_log", lambda _: None)
    monkeypatch.setattr(by_copies, "retention_now", lambda _: Retention())
    monkeypatch.setattr(protect, "AGAIN_SECONDS", 0.5)
    monkeypatch.setattr("walferry.run.notes.failing.FEW", 1)
    monkeypatch.setattr(webhdfs, "FAILOVER_SECONDS", 1.0)
    spec = SPEC | {"source": CLUSTER | {"rootdir": f"file://{tmp_path}/hbase"}, "protect": "stage"}
    spec["stage"] = f"webhdfs://root@{stage}/staged"
    Local().mkdirs(f"{tmp_path}/hbase/WALs")
    names = [f"rs%2C1%2C2.{number}" for number in range(10, 16)]
    for name in names:
        Local().write(f"{tmp_path}/hbase/oldWALs/{name}", [CONTENT])
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)
        run.__dict__["source"] = SimpleNamespace(address=pair.address, close=lambda: None)
        run.ledger.phases.start("plan")
        run.ledger.phases.finish("plan", {})
        protect.protect(run)
        run.ledger.log.set_fence("start", [LogPosition("rs%2C1%2C2", names[0], 10, 0)])
        keeping = begun(
            lambda: protect.tend(run, protect.way_of(run), lambda pause: over.wait(min(pause, 0.5))), "keep"
        )
        assert halfway.acquire(timeout=60)
        pair.kill(before)
        go_on.set()
        while (told := failing(run.ledger, "keeping")) is None:  # none is active
            time.sleep(0.2)
        assert "no other one is active now" in told.reason or "does not answer" in told.reason
        pair.activate(after)
        deadline = time.monotonic() + 120
        while by_copies.kept(run) != set(names) and time.monotonic() < deadline:
            time.sleep(0.2)
        over.set()
        keeping.result(120)
        assert by_copies.kept(run) == set(names)
        assert failing(run.ledger, "keeping") is None
        folder = str(run.staged_folder)
        shown = with_copies(Local(), [folder], pair.address)
        assert b"".join(shown.read(f"{folder}/{names[0]}")) == CONTENT, "readers are led to the other one, too"
        found = copied(pair, folder.removeprefix(f"webhdfs://root@{stage}"), tmp_path)
        assert {name: found[name] for name in names} == dict.fromkeys(names, CONTENT)
    restarted(pair, before)


def test_a_folder_that_is_only_examined_leaves_no_folder_above_it(pair: TwoNameNodes) -> None:
    stage = str(pair.address.webhdfs).replace("http://", "")
    assert list(folder_faults(f"webhdfs://{stage}/examined/a/b", pair.address)) == []
    assert files_on(pair).status("/examined") is None
    (fault,) = folder_faults(f"webhdfs://{standby_of(pair)}/examined/a/b", pair.address)
    assert "is that of a standby NameNode" in fault


def standby_of(pair: TwoNameNodes) -> str:
    return files_on(pair, standby_first=True).url.split(";")[0].removeprefix("http://")


class Paused(Local):
    """The source's files, each of which is read with a pause in its middle."""

    def __init__(self, halfway: threading.Semaphore, go_on: threading.Event) -> None:
        self._halfway, self._go_on = halfway, go_on

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        if not path.endswith(tuple("0123456789")):
            return super().read(path, offset, length)
        return half_and_half(self._halfway, self._go_on)


@pytest.mark.long
def test_a_name_node_that_hangs_is_left_for_the_other_one(pair: TwoNameNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("storage.webhdfs", "storage.direct", "storage.tokens", "watch.listing"):
        monkeypatch.setattr(f"walferry.{module}.ANSWER_SECONDS", 6.0)
    monkeypatch.setattr(name_nodes, "_known", {})
    folder, before, after = "/hanging", str(pair.active), other(pair)
    known, new = files_on(pair, direct=True), files_on(pair, direct=True)
    for path, content in ((f"{folder}/a", CONTENT), (f"{folder}/old", b"small"), (f"{WALS}/rs%2C1%2C2.10", b"log")):
        write_anew(known, path, [content])
    with only_directly(monkeypatch):
        assert b"".join(known.read(f"{folder}/a", 0, len(CONTENT))) == CONTENT
    os.kill(pair.pids[before], signal.SIGSTOP)
    try:
        pair.active = None  # it cannot be asked to step down
        pair.activate(after)
        begin = time.monotonic()
        with only_directly(monkeypatch):
            work: dict[str, Future[Any]] = {
                "list": begun(lambda: [status.name for status in known.list(folder)], "list"),
                "list_wals": begun(lambda: asyncio.run(listed(new.url)), "list_wals"),
                "read known": begun(lambda: b"".join(known.read(f"{folder}/a", 0, len(CONTENT))), "read"),
                "read new": begun(lambda: b"".join(new.read(f"{folder}/a", 0, len(CONTENT))), "read"),
            }
            found = {name: one.result(120) for name, one in work.items()}
            new.write(f"{folder}/b", [CONTENT])
        assert time.monotonic() - begin < 45, "nothing waited 60 s for the one that hangs"
        assert found == {
            "list": ["a", "old"], "list_wals": ["rs%2C1%2C2.10"], "read known": CONTENT, "read new": CONTENT
        }  # fmt: skip
        known.rename(f"{folder}/old", f"{folder}/renamed")
        assert known.delete(f"{folder}/a") is True
        assert [status.name for status in new.list(folder)] == ["b", "renamed"]
    finally:
        pair.kill(before)  # it still takes itself for the active one
        restarted(pair, before)


class Losing(socketserver.BaseRequestHandler):
    """Hands a connection's bytes on to a name node's RPC; the connection ends with the first answer to `create`."""

    to: tuple[str, int]
    lost: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        asked = False
        with socket.create_connection(self.to) as name_node:
            while True:
                for ready in select.select([self.request, name_node], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data or (asked and ready is name_node):
                        return
                    if ready is self.request and b"\x06create" in data and not self.lost:
                        asked = True
                        self.lost.append(data)
                    (name_node if ready is self.request else self.request).sendall(data)


def test_a_file_whose_creation_was_not_answered_is_neither_somebody_elses_nor_written_twice(
    pair: TwoNameNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, rpc = pair.address, pair._name_node_ports[str(pair.active)][0]
    files = files_on(pair, direct=True)
    assert isinstance(files, DirectHdfs)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Losing) as server:
        server.daemon_threads, Losing.to = True, ("127.0.0.1", rpc)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxied = (f"127.0.0.1:{server.server_address[1]}", f"127.0.0.1:{pair._name_node_ports[other(pair)][0]}")
        assert files._nameservice is not None
        with monkeypatch.context() as patch:
            patch.setitem(name_nodes._known, files._nameservice, proxied)
            with pytest.raises(TransientError, match="did not say in time whether it created /created"):
                files.write("/created", [CONTENT])
            write_anew(files, "/created", [CONTENT])
        server.shutdown()
    assert Losing.lost
    assert b"".join(WebHdfs(str(address.webhdfs), address.user).read("/created")) == CONTENT
    with pytest.raises(FileExistsError):
        files.write("/created", [CONTENT])


def test_an_observer_is_told(pair: TwoNameNodes) -> None:
    name = other(pair)

    def become(state: str) -> None:
        arguments = [f"-transitionTo{state}", name]
        tools.run(pair, "org.apache.hadoop.hdfs.tools.DFSHAAdmin", arguments, version=jars.NEWEST, user=HDFS_SUPERUSER)

    files = files_on(pair, standby_first=True)
    assert list(files.behind()) == []
    become("Observer")
    try:
        ((url, why),) = files.behind()
    finally:
        become("Standby")
    assert url == files.url.split(";")[0]
    assert "Observer" in why
