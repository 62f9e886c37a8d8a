"""What is known of a process that gave a sign of life, and what it tells."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from walferry.ledger import Ledger, RunLedger
from walferry.request_meter import Meter, RequestRates, Service
from walferry.run import heartbeat
from walferry.run.heartbeat import NOTE, RunBusyError, alive, beating, gone, this_process
from walferry.run.progress.requests import RequestRate, requests_of

SPEC = {
    "name": "move",
    "source": {"zookeeper": "zk:1", "webhdfs": "http://nn:1", "rootdir": "hdfs://nn:2/hbase"},
    "target": {"zookeeper": "zk:2", "webhdfs": "http://nn:3", "rootdir": "hdfs://nn:4/hbase"},
    "tables": ["a", "b"],
    "source_requests": {"namenode": 40},
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunLedger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield ledger.of(ledger.open_run("move", "test", SPEC, "test").run_id)


@pytest.fixture
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_of_this_machine_is_gone_once_it_has_ended(ended: int) -> None:
    assert gone(this_process() | {"pid": ended})
    assert not gone(this_process())


def test_a_process_is_gone_once_it_has_ended_though_nobody_waits_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not gone(this_process() | {"pid": process.pid})
        process.kill()
        deadline = time.monotonic() + 60
        while not gone(this_process() | {"pid": process.pid}) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gone(this_process() | {"pid": process.pid})
        assert process.returncode is None, "it is a zombie"


def test_nothing_is_known_of_a_machine_with_the_same_host_name_and_namespace(
    ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another = this_process() | {"pid": ended}
    read = Path.read_text

    def other_boot(path: Path, *args: str) -> str:
        return "another boot" if path.name == "boot_id" else read(path, *args)

    monkeypatch.setattr(Path, "read_text", other_boot)
    assert not gone(of_another)


def test_nothing_is_known_where_machines_cannot_be_told_apart(ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_proc(_: str) -> str:
        raise OSError

    monkeypatch.setattr(os, "readlink", no_proc)
    assert not gone(this_process() | {"pid": ended})


def test_requests_of_all_live_processes_of_a_run_are_added_and_of_each_once(run: RunLedger) -> None:
    mine = this_process() | {"requests": {"zk:1/hbase": {"namenode": 1.5, "zookeeper": 1.0}}}
    others = {"zk:1/hbase": {"namenode": 2.0}, "zk:2/hbase": {"namenode": 9}}
    other = {"machine": "another", "pid": 7, "requests": others}
    for label, facts in (("copy a", mine), ("", mine), ("copy b", other)):
        run.notes.keep(NOTE, facts, label)
    asked = requests_of(run)
    assert asked["source"]["namenode"] == RequestRate(per_second=3.5, limit=40)
    assert asked["source"]["zookeeper"] == RequestRate(per_second=1.0, limit=None)
    assert asked["target"]["namenode"] == RequestRate(per_second=9.0, limit=None)


def test_what_a_process_sends_shows_while_it_works_and_no_longer(
    run: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    meter = Meter("zk:1/hbase", RequestRates())
    with beating(run, "replay", "me"):
        deadline = time.monotonic() + 30
        while not (rate := requests_of(run)["source"]["namenode"].per_second) and time.monotonic() < deadline:
            meter.request(Service.NAMENODE)
            time.sleep(0.05)
        assert rate
    assert requests_of(run)["source"]["namenode"].per_second == 0.0


def test_of_two_processes_that_want_a_run_alone_one_gets_it(run: RunLedger, ended: int) -> None:
    run.notes.keep(NOTE, this_process() | {"pid": ended, "by": "killed"}, "replay")
    with beating(run, "", "kim", alone=True):
        with (
            pytest.raises(RunBusyError, match=r"kim .* has been working on move-1") as busy,
            beating(run, "", "lee", alone=True),
        ):
            raise AssertionError("both work on it")
        assert busy.value.facts["by"] == "kim"
        assert alive(run) == {""}
    with beating(run, "", "lee", alone=True):
        assert alive(run) == {""}


def working(run: RunLedger, label: str) -> str | None:
    """Who works on it, by the note."""
    note = run.notes.get(NOTE, label)
    return None if note is None else str(note["by"])


def test_a_process_that_was_overtaken_leaves_the_note_to_its_successor(
    run: RunLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    with beating(run, "stream", "overtaken"):
        run.notes.keep(NOTE, {"machine": "another", "pid": 7, "by": "successor", "since_ms": 1}, "stream")
        time.sleep(0.2)
        assert working(run, "stream") == "successor"
    assert working(run, "stream") == "successor"


def test_the_process_that_began_last_has_the_note_and_ends_with_it_alone(run: RunLedger) -> None:
    overtaken = ExitStack()
    with beating(run, "copy a", "beside"):
        overtaken.enter_context(beating(run, "stream", "overtaken"))
        with beating(run, "stream", "successor"):
            overtaken.close()
            assert working(run, "stream") == "successor"
        assert working(run, "stream") is None
        assert working(run, "copy a") == "beside"


def test_a_process_that_was_overtaken_takes_the_note_again_once_its_successor_is_gone(
    run: RunLedger, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    with beating(run, "stream", "overtaken"):
        run.notes.keep(NOTE, this_process() | {"pid": ended, "by": "killed", "since_ms": 1}, "stream")
        deadline = time.monotonic() + 30
        while working(run, "stream") != "overtaken":
            assert time.monotonic() < deadline, "it is at work, and no note tells it"
            time.sleep(0.01)
    assert working(run, "stream") is None
