"""Listings against a local HTTP server that answers as a NameNode did: the answers below were recorded from Hadoop
3.4, names and numbers replaced."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from walferry.errors import TransientError
from walferry.storage import PermissionDeniedError
from walferry.wal.files import Place, WalFile
from walferry.watch.listing import CONNECTIONS, KnownWal, Listing, compare, list_wals

SERVER = "127.0.0.1,22363,1795246849244"
GROUP = "127.0.0.1%2C22363%2C1795246849244"
DIRECTORY = (
    '{"accessTime":0,"blockSize":0,"childrenNum":1,"fileId":16432,"group":"supergroup","length":0,'
    '"modificationTime":1795246893690,"owner":"root","pathSuffix":"%s","permission":"755","replication":0,'
    '"storagePolicy":0,"type":"DIRECTORY"}'
)
FILE = (
    '{"accessTime":1795246893690,"blockSize":268435456,"childrenNum":0,"fileId":16435,"group":"supergroup",'
    '"length":%d,"modificationTime":1795246893690,"owner":"root","pathSuffix":"%s","permission":"644",'
    '"replication":1,"storagePolicy":0,"type":"FILE"}'
)
MISSING = (
    '{"RemoteException":{"exception":"FileNotFoundException","javaClassName":"java.io.FileNotFoundException",'
    '"message":"File %s does not exist."}}'
)
REFUSED = (
    '{"RemoteException":{"exception":"%s","javaClassName":"org.apache.hadoop.ipc.%s","message":"Operation '
    'category READ is not supported in state standby."}}'
)

Answer = tuple[int, str]
Folders = dict[str, list[str]]


def directory(name: str) -> str:
    return DIRECTORY % name


def file(number: int, length: int = 0, group: str = GROUP) -> str:
    return FILE % (length, f"{group}.{number}")


def statuses(entries: list[str]) -> Answer:
    return 200, '{"FileStatuses":{"FileStatus":[\n' + ",\n".join(entries) + "\n]}}"


def tree(folders: Folders) -> Callable[[str], Answer]:
    return lambda path: statuses(folders[path]) if path in folders else (404, MISSING % path)


@contextmanager
def name_node(answer: Callable[[str], Answer]) -> Iterator[str]:
    """The URL of a server that answers LISTSTATUS of a path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            assert query["op"] == ["LISTSTATUS"]
            assert query["user.name"] == ["hbase"]
            code, text = answer(unquote(url.path.removeprefix("/webhdfs/v1")))
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def listed(answer: Callable[[str], Answer]) -> Listing:
    with name_node(answer) as url:
        return asyncio.run(list_wals(url, "hbase", "/hbase"))


def places(listing: Listing) -> dict[int, tuple[Place, int]]:
    return {f.number: (f.place, f.length) for f in listing.files.values()}


def wal(number: int, place: Place = Place.LIVE, length: int = 0) -> WalFile:
    folder = "oldWALs" if place is Place.ARCHIVED else f"WALs/{SERVER}"
    name = f"{GROUP}.{number}"
    return WalFile(name, GROUP, SERVER, number, f"/hbase/{folder}/{name}", place, length)


def listing_of(*files: WalFile) -> Listing:
    return Listing({file.name: file for file in files})


def test_live_splitting_and_archived_files_are_listed_in_whichever_layout_the_archive_has() -> None:
    listing = listed(
        tree(
            {
                "/hbase/WALs": [directory(SERVER), directory(f"{SERVER}-splitting")],
                f"/hbase/WALs/{SERVER}": [file(5), FILE % (9, f"{GROUP}.meta.6.meta")],
                f"/hbase/WALs/{SERVER}-splitting": [file(4, 40)],
                "/hbase/oldWALs": [file(1, 10), directory(SERVER)],
                f"/hbase/oldWALs/{SERVER}": [file(2, 20)],
            }
        )
    )
    assert places(listing) == {
        5: (Place.LIVE, 0),
        4: (Place.SPLITTING, 40),
        1: (Place.ARCHIVED, 10),
        2: (Place.ARCHIVED, 20),
    }
    name = f"{GROUP}.2"
    assert listing.files[name].path == f"/hbase/oldWALs/{SERVER}/{name}"
    assert listing.modified_ms[name] == 1795246893690


def test_a_file_seen_twice_while_it_moves_stands_at_its_later_place() -> None:
    listing = listed(
        tree(
            {
                "/hbase/WALs": [directory(SERVER)],
                f"/hbase/WALs/{SERVER}": [file(1, 10)],
                "/hbase/oldWALs": [file(1, 10)],
            }
        )
    )
    assert places(listing) == {1: (Place.ARCHIVED, 10)}


def test_a_source_without_an_archive_yet_has_its_live_files() -> None:
    listing = listed(tree({"/hbase/WALs": [directory(SERVER)], f"/hbase/WALs/{SERVER}": [file(1)]}))
    assert places(listing) == {1: (Place.LIVE, 0)}


def test_a_folder_that_is_renamed_between_two_listings_is_found_by_its_new_name() -> None:
    before: Folders = {"/hbase/WALs": [directory(SERVER)], "/hbase/oldWALs": []}
    after: Folders = {
        "/hbase/WALs": [directory(f"{SERVER}-splitting")],
        f"/hbase/WALs/{SERVER}-splitting": [file(3, 30)],
        "/hbase/oldWALs": [],
    }
    asked: list[str] = []

    def answer(path: str) -> Answer:
        asked.append(path)
        return tree(before if asked.count("/hbase/WALs") < 2 else after)(path)

    assert places(listed(answer)) == {3: (Place.SPLITTING, 30)}


def test_a_folder_of_the_archive_that_the_cleaner_removes_meanwhile_is_no_error() -> None:
    folders: Folders = {"/hbase/WALs": [], "/hbase/oldWALs": [directory(SERVER), file(1, 10)]}
    assert places(listed(tree(folders))) == {1: (Place.ARCHIVED, 10)}


def test_a_root_that_is_not_there_ends_in_an_error_that_names_it() -> None:
    with pytest.raises(TransientError, match="/hbase/WALs"):
        listed(tree({}))


def test_the_active_one_of_two_name_nodes_is_asked() -> None:
    active = tree({"/hbase/WALs": [directory(SERVER)], f"/hbase/WALs/{SERVER}": [file(1)], "/hbase/oldWALs": []})
    refusals: list[str] = []

    def standby(path: str) -> Answer:
        refusals.append(path)
        return 403, REFUSED % ("StandbyException", "StandbyException")

    with name_node(standby) as first, name_node(active) as second:
        listing = asyncio.run(list_wals(f"{first};{second}", "hbase", "/hbase"))
    assert places(listing) == {1: (Place.LIVE, 0)}
    assert refusals == ["/hbase/WALs"]


def test_a_user_without_the_right_is_told_so() -> None:
    with pytest.raises(PermissionDeniedError, match="as user hbase"):
        listed(lambda _: (403, REFUSED % ("AccessControlException", "AccessControlException")))


@pytest.mark.parametrize("answer", [(503, "<html>starting</html>"), (200, "not JSON")])
def test_an_answer_that_is_not_webhdfs_own_may_pass(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_: float) -> None:
        pass

    monkeypatch.setattr("walferry.watch.listing.asyncio.sleep", at_once)
    with pytest.raises(TransientError, match="does not answer"):
        listed(lambda _: answer)


def test_a_file_is_sealed_when_it_is_archived_or_a_newer_one_of_its_group_exists() -> None:
    listing = listing_of(wal(1, Place.ARCHIVED), wal(2, length=20), wal(3, length=7))
    assert listing.sealed() == {f"{GROUP}.1", f"{GROUP}.2"}


def test_a_file_is_not_sealed_while_it_is_being_closed() -> None:
    assert listing_of(wal(2), wal(3)).sealed() == set()


def test_new_grown_moved_sealed_and_vanished_files_are_told_apart() -> None:
    known = {
        f"{GROUP}.{number}": KnownWal(wal(number).path, length, sealed)
        for number, length, sealed in ((1, 10, True), (2, 20, True), (3, 0, False), (4, 0, False))
    }
    changes = compare(
        known, listing_of(wal(2, Place.ARCHIVED, 20), wal(3, length=30), wal(4, length=4), wal(5, length=0))
    )
    assert changes.new == (f"{GROUP}.5",)
    assert changes.moved == (f"{GROUP}.2",)
    assert changes.grown == changes.sealed == (f"{GROUP}.3", f"{GROUP}.4")
    assert changes.gone == (f"{GROUP}.1",)
    assert changes.pressing
    assert changes.counts() == {"new": 1, "sealed": 2, "moved": 1, "grown": 2, "gone": 1}


def test_growth_and_moves_alone_do_not_press() -> None:
    known = {f"{GROUP}.{n}": KnownWal(wal(n).path, 0, n == 1) for n in (1, 2)}
    changes = compare(known, listing_of(wal(1, Place.ARCHIVED), wal(2, length=5)))
    assert changes.moved
    assert changes.grown
    assert not changes.pressing


def test_a_file_that_is_new_and_sealed_at_once_is_both() -> None:
    changes = compare({}, listing_of(wal(1, Place.ARCHIVED, 5)))
    assert changes.new == changes.sealed == (f"{GROUP}.1",)


def test_ten_thousand_files_are_listed_and_compared_soon(capsys: pytest.CaptureFixture[str]) -> None:
    servers = [f"rs-{n}.example,16020,17952468492{n:02}" for n in range(20)]
    groups = [server.replace(",", "%2C") for server in servers]
    folders: Folders = {
        "/hbase/WALs": [directory(server) for server in servers],
        "/hbase/oldWALs": [file(n, 1000, group) for group in groups for n in range(450)],
    }
    folders |= {
        f"/hbase/WALs/{server}": [file(n, 1000, group) for n in range(450, 500)]
        for server, group in zip(servers, groups, strict=True)
    }
    answers = {path: statuses(entries) for path, entries in folders.items()}
    with name_node(answers.__getitem__) as url:
        wall, own = time.perf_counter(), time.thread_time()
        listing = asyncio.run(list_wals(url, "hbase", "/hbase"))
        changes = compare({}, listing)
        wall, own = time.perf_counter() - wall, time.thread_time() - own
    assert len(changes.new) == 10_000
    with capsys.disabled():
        print(json.dumps({"files": 10_000, "own seconds": round(own, 3), "seconds in all": round(wall, 3)}))


def test_a_listing_asks_the_name_node_first_that_has_answered_the_one_before() -> None:
    """Hole: each listing began with the first address, and waited while that one hung."""
    asked: list[str] = []

    def standby(path: str) -> Answer:
        asked.append(path)
        return 403, REFUSED % ("StandbyException", "StandbyException")

    with name_node(standby) as first, name_node(tree({"/hbase/WALs": [], "/hbase/oldWALs": []})) as other:
        for _ in range(3):
            assert asyncio.run(list_wals(f"{first};{other}", "hbase", "/hbase")).files == {}
    assert asked == ["/hbase/WALs"]


def test_a_name_node_is_asked_for_few_folders_at_a_time() -> None:
    names = [f"{number},{SERVER}" for number in range(5 * CONNECTIONS)]
    folders = tree({"/hbase/WALs": list(map(directory, names)), **{f"/hbase/WALs/{name}": [] for name in names}})
    now, most, lock = 0, 0, threading.Lock()

    def answer(path: str) -> Answer:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return folders(path)

    listed(answer)
    assert 1 < most <= CONNECTIONS
