"""The trigger against a real ledger; the listing is replaced, since test_watch.py has it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.serde import deserialize, serialize

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.airflow import triggers
from walferry.airflow.triggers import NextLookTrigger, WalTrigger
from walferry.errors import TransientError
from walferry.formats.cells import encode_cell
from walferry.ledger import Ledger
from walferry.run.spec import Cluster
from walferry.security import OPEN, Kerberos, Security, Tls
from walferry.storage import Local
from walferry.wal.files import Place, WalFile
from walferry.watch import watch as log_watch
from walferry.watch.listing import Listing

CLUSTER = Cluster(zookeeper="zk:2181", webhdfs="http://nn:9870", rootdir="hdfs://nn:8020/hbase", user="hbase")
SERVER = "rs.example,16020,1700000000000"
GROUP = SERVER.replace(",", "%2C")


def wal(number: int, place: Place = Place.LIVE, length: int = 0) -> WalFile:
    folder = "oldWALs" if place is Place.ARCHIVED else f"WALs/{SERVER}"
    name = f"{GROUP}.{number}"
    return WalFile(name, GROUP, SERVER, number, f"/hbase/{folder}/{name}", place, length)


def listing(*files: WalFile) -> Listing:
    return Listing({file.name: file for file in files}, {file.name: 0 for file in files})


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("WALFERRY_LEDGER", url)
    with Ledger.open(url) as ledger:
        yield ledger


@pytest.fixture
def run_id(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> str:
    """The watch's run, which has seen one sealed file and one open one."""
    monkeypatch.setattr(log_watch, "_holds_edits", lambda *_: False)  # small files are not read: there is no cluster
    run = log_watch.watch_run(ledger, "hbase_source", CLUSTER)
    log_watch.record(ledger, run.run_id, listing(wal(1, length=10), wal(2)))
    return run.run_id


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Let the NameNode show these answers one after the other, the last for ever; returns the count of requests."""

    def show(*answers: Listing | Exception) -> list[int]:
        asked = [0]

        async def list_wals(*_: Any) -> Listing:
            answer = answers[min(asked[0], len(answers) - 1)]
            asked[0] += 1
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr("walferry.watch.watch.list_wals", list_wals)
        return asked

    return show


def fire(run_id: str, *, beat_seconds: float = 30, poll_seconds: float = 0.01) -> dict[str, int]:
    """What the trigger's one event says."""

    async def events() -> list[Any]:
        trigger = WalTrigger(run_id, "http://nn:9870", "hbase", "/hbase", poll_seconds, beat_seconds)
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(asyncio.wait_for(events(), 20))
    return dict(event.payload)


BEFORE = listing(wal(1, length=10), wal(2))


def test_it_waits_until_a_file_is_new_or_sealed(run_id: str, shown: Callable[..., list[int]]) -> None:
    asked = shown(BEFORE, BEFORE, listing(wal(1, length=10), wal(2, length=99), wal(3)))
    assert fire(run_id) == {"new": 1, "sealed": 1, "moved": 0, "grown": 1, "gone": 0}
    assert asked == [3]


def test_a_file_that_vanished_fires_at_once(run_id: str, shown: Callable[..., list[int]]) -> None:
    asked = shown(listing(wal(2)))
    assert fire(run_id)["gone"] == 1
    assert asked == [1]


def test_growth_and_moves_wait_for_something_else_or_for_the_beat(run_id: str, shown: Callable[..., list[int]]) -> None:
    later = (wal(1, Place.ARCHIVED, 10), wal(2, length=5))
    asked = shown(listing(*later), listing(*later), listing(*later[:1], wal(3), wal(2)))
    assert fire(run_id)["new"] == 1
    assert asked == [3]
    shown(listing(*later))
    assert fire(run_id, beat_seconds=0) == {"new": 0, "sealed": 0, "moved": 1, "grown": 1, "gone": 0}


def test_it_fires_after_the_beat_though_nothing_happened(run_id: str, shown: Callable[..., list[int]]) -> None:
    shown(BEFORE)
    assert fire(run_id, beat_seconds=0.1) == {"new": 0, "sealed": 0, "moved": 0, "grown": 0, "gone": 0}


def test_a_name_node_that_does_not_answer_for_a_while_is_asked_again(
    run_id: str, shown: Callable[..., list[int]]
) -> None:
    asked = shown(TransientError("no answer"), TransientError("no answer"), listing(wal(2), wal(3)))
    assert fire(run_id)["new"] == 1
    assert asked == [3]


def test_a_triggerer_that_takes_it_over_finds_what_was_sealed_meanwhile(
    run_id: str, shown: Callable[..., list[int]]
) -> None:
    shown(listing(wal(1, length=10), wal(2, length=99), wal(3)))
    path, kwargs = WalTrigger(run_id, "http://nn:9870", "hbase", "/hbase", 0.01, 30).serialize()
    assert path == "walferry.airflow.triggers.WalTrigger"
    again = WalTrigger(**kwargs)

    async def first_event() -> Any:
        return await anext(again.run())

    assert asyncio.run(first_event()).payload["sealed"] == 1


KERBEROS, TLS = Kerberos("ferry@A", "/k", realms=(("b", "B"),)), Tls("/ca.pem", rpc=True)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({"security": asdict(Security(KERBEROS, TLS))}, Security(KERBEROS, TLS)),
        ({"security": json.loads(json.dumps(asdict(Security(KERBEROS, TLS))))}, Security(KERBEROS, TLS)),
        ({"security": asdict(OPEN)}, OPEN),
        ({"security": asdict(KERBEROS), "tls": asdict(TLS)}, Security(KERBEROS, TLS)),
        ({"security": asdict(KERBEROS), "tls": None}, Security(KERBEROS)),
        ({"security": asdict(KERBEROS)}, Security(KERBEROS)),
        ({"security": None, "tls": asdict(TLS)}, Security(tls=TLS)),
        ({"security": None, "tls": None}, OPEN),
        ({}, OPEN),
    ],
)
def test_one_that_waited_during_an_upgrade_asks_as_it_would_have(
    waiting: dict[str, Any], expected: Security, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this version and each older one wrote it; a triggerer that takes it over writes it again."""
    asked: list[Security] = []

    async def list_wals(webhdfs: str, user: str, root: str, security: Security) -> Listing:
        asked.append(security)
        return listing(wal(3))

    async def fired(trigger: WalTrigger) -> None:
        await anext(trigger.run())

    monkeypatch.setattr("walferry.watch.watch.list_wals", list_wals)
    fields: dict[str, Any] = {
        "run_id": run_id,
        "webhdfs": "http://nn:9870",
        "user": "hbase",
        "root": "/hbase",
    } | waiting
    for _ in range(2):
        in_its_database = json.dumps(serialize(fields))
        kwargs: Any = deserialize(json.loads(in_its_database))
        trigger = WalTrigger(**kwargs)
        asyncio.run(fired(trigger))
        _, fields = trigger.serialize()
    assert asked == [expected, expected]
    assert "tls" not in fields


def test_what_was_recorded_does_not_fire_again(ledger: Ledger, run_id: str, shown: Callable[..., list[int]]) -> None:
    now = listing(wal(2, length=99), wal(3))
    changes = log_watch.record(ledger, run_id, now)
    assert changes.gone == (wal(1).name,)
    assert changes.sealed == (wal(2).name,)
    shown(now)
    assert not any(fire(run_id, beat_seconds=0.1).values())


def test_what_was_recorded_by_a_task_that_was_killed_is_announced_by_the_next(ledger: Ledger, run_id: str) -> None:
    run = ledger.run(run_id)
    before = log_watch.news(ledger, run, CLUSTER, 0).through_ms
    time.sleep(0.01)  # the ledger counts milliseconds
    now = listing(wal(1, Place.ARCHIVED, 10), wal(2, length=5000), wal(3))
    log_watch.record(ledger, run_id, now)
    assert not log_watch.record(ledger, run_id, now).counts()["sealed"]
    found = log_watch.news(ledger, run, CLUSTER, before)
    assert (found.sealed, found.with_edits, found.new, found.bytes) == (1, 1, 1, 5000)
    assert log_watch.news(ledger, run, CLUSTER, found.through_ms).sealed == 0


def test_a_small_log_is_opened_to_tell_whether_it_holds_edits(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = (Path(__file__).parents[2] / "fixtures" / "wal" / "closed.wal").read_bytes()
    bare = header() + TRAILER
    cell, flush = encode_cell(b"r", b"f", b"q", 1, 4), encode_cell(b"r", b"METAFAMILY", b"HBASE::FLUSH", 1, 4)
    of_hbase = header() + entry([cell], table_name=b"hbase:namespace") + entry([flush]) + TRAILER
    cluster = CLUSTER.model_copy(update={"rootdir": f"hdfs://nn:8020{tmp_path}"})
    monkeypatch.setattr(log_watch, "log_files_of", lambda _: Local())
    monkeypatch.setattr(log_watch, "SMALL_BYTES", len(edits))
    files = {}
    for number, content in ((1, edits), (2, bare), (3, of_hbase)):
        path = tmp_path / "oldWALs" / wal(number).name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        files[path.name] = replace(wal(number, Place.ARCHIVED, len(content)), path=str(path))
    run = log_watch.watch_run(ledger, "hbase_source", cluster)
    log_watch.record(ledger, run.run_id, Listing(files))
    found = log_watch.news(ledger, run, cluster, 0)
    assert (found.sealed, found.with_edits) == (3, 1)


def test_a_connection_that_names_another_cluster_begins_a_run_of_its_own(ledger: Ledger, run_id: str) -> None:
    assert log_watch.watch_run(ledger, "hbase_source", CLUSTER).run_id == run_id
    other = log_watch.watch_run(ledger, "hbase_source", CLUSTER.model_copy(update={"zookeeper": "other:2181"}))
    assert other.run_id != run_id
    assert ledger.run(run_id).state == "done"
    assert log_watch.known_wals(ledger, other.run_id) == {}


class TestNextLook:
    def test_it_waits_for_its_seconds_and_a_triggerer_can_make_it_again(self, run_id: str) -> None:
        _, arguments = NextLookTrigger(run_id, 0.2, False).serialize()
        began = time.monotonic()
        assert event_of(NextLookTrigger(**arguments)).payload == "it is time"
        assert 0.2 <= time.monotonic() - began < 5

    @pytest.mark.parametrize(("change", "why"), [("end", "aborted"), ("pause", "paused")])
    def test_it_fires_once_a_person_has_changed_the_run(
        self, ledger: Ledger, run_id: str, monkeypatch: pytest.MonkeyPatch, change: str, why: str
    ) -> None:
        monkeypatch.setattr(triggers, "CHANGED_SECONDS", 0.05)
        if change == "end":
            ledger.of(run_id).end("aborted", "kim", "no longer needed")
        else:
            ledger.set_paused(run_id, True, "kim")
        assert event_of(NextLookTrigger(run_id, 60, False)).payload == why
        if change == "pause":
            ledger.set_paused(run_id, False, "kim")
            assert event_of(NextLookTrigger(run_id, 60, True)).payload == "resumed"


def event_of(trigger: NextLookTrigger) -> Any:
    return asyncio.run(anext(trigger.run()))  # type: ignore[arg-type]
