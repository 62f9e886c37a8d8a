"""`walferry receive` and the verbs about its runs, with a double in place of what serves calls."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from unit.receive.two_clusters import KEYS
from unit.run.progress.received_ledger import come, receiver
from unit.test_cli import Answer, refused, walferry
from walferry.cli import receive as module
from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import ConnectionFailedError
from walferry.ledger import Ledger
from walferry.receive import ending, receive_plan
from walferry.receive import service as serving
from walferry.receive.ending import AtSource
from walferry.receive.presence import StillShownError
from walferry.receive.receive_plan import ReceivePlan
from walferry.replication.finding import Finding
from walferry.run.heartbeat import alive
from walferry.run.receive_spec import DEFAULT_PORT, ResolvedReceiveSpec
from walferry.run.run import Run, RunEndedError

NODE = "sink /walferry/receive/east at the target"
Serve = Callable[[Run, ResolvedReceiveSpec, threading.Event], None]
DEADLINE_S = 20.0
KEY = "east:2181:/walferry/receive/east"
ADD_PEER = f'add_peer \'east\', CLUSTER_KEY => "{KEY}", TABLE_CFS => {{ "shop:orders" => [], "shop:items" => [] }}'


@dataclass
class Aborting:
    """Doubles of both clusters."""

    source: AtSource = field(default_factory=AtSource)
    fault: WalferryError | None = None
    """why nothing can be removed"""
    removed: list[str] = field(default_factory=list)

    def remove(self, address: ClusterAddress, path: str) -> None:
        if self.fault is not None:
            raise self.fault
        self.removed.append(path)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "receive.yaml"
    path.write_text(json.dumps(KEYS))  # which is YAML, too
    return str(path)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What is found of both clusters."""
    findings = list[Finding]()

    def examine(spec: ResolvedReceiveSpec, copied: object = ()) -> ReceivePlan:
        return ReceivePlan("2.6.3", "w", "2.2.3", "e", spec.cluster_key, None, findings)

    monkeypatch.setattr(receive_plan, "examine", examine)
    return findings


def served_by(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "serve", serve)


def book(tmp_path: Path) -> Ledger:
    return Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="kim")


def test_the_default_port_is_the_specs() -> None:
    assert module.PORT == DEFAULT_PORT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_the_run_goes_on(
    number: signal.Signals, spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = dict[str, object]()
    before = signal.getsignal(number)

    def serve(run: Run, wanted: ResolvedReceiveSpec, stop: threading.Event) -> None:
        seen.update(run=run.run_id, at=(wanted.host, wanted.port), path=wanted.path, alive=alive(run.ledger))
        os.kill(os.getpid(), number)
        assert stop.wait(DEADLINE_S)

    served_by(serve, monkeypatch)
    answer = walferry(tmp_path, "receive", spec, "--host", "east-1.example", "--port", "0")
    assert answer.returncode == 0, answer.stderr
    assert seen == {
        "run": "east-1", "at": ("east-1.example", 0), "path": "/walferry/receive/east",
        "alive": {f"receive east-1.example {os.getpid()}"},
    }  # fmt: skip
    lines = answer.stdout.splitlines()
    assert f"  {ADD_PEER}" in lines
    assert "REPLICATION_SCOPE of each family must be 1 there" in answer.stdout
    assert lines[-1] == "east-1: serves as east-1.example, port (a free one)"
    assert (
        answer.stderr.splitlines()[-1] == "east-1: has stopped; the source keeps its log until a process serves again"
    )
    assert signal.getsignal(number) == before
    with book(tmp_path) as ledger:
        assert (ledger.run("east-1").state, alive(ledger.of("east-1"))) == ("running", set())


def test_processes_serve_one_run_beside_each_other(
    spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, beside = list[str](), list[Answer]()

    def serve(run: Run, wanted: ResolvedReceiveSpec, stop: threading.Event) -> None:
        served.append(run.run_id)
        if len(served) == 1:
            beside.append(walferry(tmp_path, "receive", spec, "--host", "east-2.example"))

    served_by(serve, monkeypatch)
    assert walferry(tmp_path, "receive", spec, "--host", "east-1.example").returncode == 0
    assert ([one.returncode for one in beside], served) == ([0], ["east-1", "east-1"])


def test_an_end_of_the_run_is_no_error(
    spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(run: Run, wanted: ResolvedReceiveSpec, stop: threading.Event) -> None:
        run.ledger.end("aborted", "kim", "moved on")
        raise RunEndedError("run east-1 was aborted: moved on")

    served_by(serve, monkeypatch)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    answer = walferry(tmp_path, "receive", spec)
    assert (answer.returncode, answer.stderr.splitlines()[-1]) == (0, "run east-1 was aborted: moved on")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_with_json_each_line_is_json(
    spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_by(lambda run, wanted, stop: None, monkeypatch)
    (line,) = walferry(tmp_path, "receive", spec, "--json").stdout.splitlines()
    facts = json.loads(line)
    assert (facts["run"], facts["cluster_key"], facts["add_peer"]) == ("east-1", KEY, ADD_PEER)


def test_a_refusal_begins_no_run(spec: str, found: list[Finding], tmp_path: Path) -> None:
    found.append(Finding("stop", "shop:orders", "it is missing at the target"))
    line = refused(walferry(tmp_path, "receive", spec), 2)
    assert line == "the run cannot receive: shop:orders: it is missing at the target"
    assert not (tmp_path / "ledger.db").exists()


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(spec: str, found: list[Finding], tmp_path: Path) -> None:
    found.append(Finding("warn", "shop:items", "its scope is 0"))
    answer = walferry(tmp_path, "receive", spec, "--dry-run")
    assert (answer.returncode, answer.stdout.splitlines()) == (
        0,
        [
            "source: HBase 2.6.3, cluster w",
            "target: HBase 2.2.3, cluster e",
            "warn: shop:items: its scope is 0",
            "the source replicates here once it has this peer, in HBase's shell:",
            f"  {ADD_PEER}",
            "REPLICATION_SCOPE of each family must be 1 there; what was written before that must be copied",
            "would begin the run east",
        ],
    )
    assert not (tmp_path / "ledger.db").exists()
    found.append(Finding("stop", "target", "is the source"))
    assert walferry(tmp_path, "receive", spec, "--dry-run").returncode == 2
    facts = json.loads(walferry(tmp_path, "receive", spec, "--dry-run", "--json").stdout)
    assert (facts["source_version"], facts["run"], len(facts["findings"])) == ("2.6.3", None, 2)


def test_a_dry_run_beside_a_run_names_it_and_refuses_the_name_of_another_kind(
    spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_by(lambda run, wanted, stop: None, monkeypatch)
    assert walferry(tmp_path, "receive", spec).returncode == 0
    assert walferry(tmp_path, "receive", spec, "--dry-run").stdout.splitlines()[-1] == "would serve east-1"
    with book(tmp_path) as ledger:
        ledger.of("east-1").end("aborted", "kim")
        ledger.open_run("east", "kim", KEYS, "kim")
    for more in ((), ("--dry-run",)):
        assert "run east-2, of kind migration, has that name" in refused_by(walferry(tmp_path, "receive", spec, *more))


def refused_by(answer: Answer) -> str:
    assert answer.returncode == 2
    return answer.stderr.splitlines()[-1]


def test_a_cluster_that_does_not_answer_is_one_line(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(spec: ResolvedReceiveSpec, copied: object = ()) -> ReceivePlan:
        raise ConnectionFailedError("west:2181 does not answer")

    monkeypatch.setattr(receive_plan, "examine", examine)
    assert refused(walferry(tmp_path, "receive", spec), 1) == "west:2181 does not answer"


def test_status_abort_and_the_verbs_that_do_not_fit(
    spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_by(lambda run, wanted, stop: None, monkeypatch)
    walferry(tmp_path, "receive", spec)
    with book(tmp_path) as ledger:
        ledger.of("east-1").received.beat(receiver())
        come(ledger.of("east-1"))
    lines = walferry(tmp_path, "status", "east").stdout.splitlines()
    assert lines[0].startswith("east-1: Applied: 6, 0.0/s; Time: ")
    assert lines[1].startswith("receiving: 1 process serves; the newest edits were 1 s old when applied")
    assert lines[2] == "next step: none: it goes on until `walferry abort east --reason …`"
    assert lines[3].startswith("shop:items -> east:items: 0 entries")
    assert lines[5].startswith("east-1.example:16040: serves since")
    assert "shop:orders -> shop:orders: 2 entries" in walferry(tmp_path, "report", "east").stdout
    assert "disable_peer" in refused(walferry(tmp_path, "pause", "east"), 2)
    assert "`walferry receive SPEC`" in refused(walferry(tmp_path, "resume", "east"), 2)


@pytest.fixture
def aborting(monkeypatch: pytest.MonkeyPatch) -> Aborting:
    """What an abort meets at both clusters."""
    made = Aborting()
    monkeypatch.setattr(ending, "look_at_source", lambda run: made.source)
    monkeypatch.setattr(ending, "remove", made.remove)
    monkeypatch.setattr(ending, "LEAVING_S", 0)
    return made


def test_an_abort_removes_the_place_of_the_processes_and_names_the_peer_that_keeps_the_log(
    spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aborting: Aborting
) -> None:
    served_by(lambda run, wanted, stop: None, monkeypatch)
    walferry(tmp_path, "receive", spec)
    aborting.source = AtSource(["7"])
    dry = walferry(tmp_path, "abort", "east", "--reason", "r", "--dry-run")
    assert dry.stdout == f"would abort east-1 and remove: {NODE}\n"
    assert "remove_peer '7' in HBase's shell" in dry.stderr
    assert aborting.removed == []
    with book(tmp_path) as ledger:
        assert ledger.run("east-1").state == "running"
    answer = walferry(tmp_path, "abort", "east", "--reason", "r")
    assert (answer.returncode, answer.stdout) == (0, f"east-1 aborted; removed: {NODE}\n")
    assert "warning: the source's peer 7 leads to this run" in answer.stderr
    assert aborting.removed == ["/walferry/receive/east"]
    with book(tmp_path) as ledger:
        assert ledger.run("east-1").state == "aborted"


def test_what_an_abort_could_not_remove_is_named_by_it_and_by_status_until_another_one_has_removed_it(
    spec: str, found: list[Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aborting: Aborting
) -> None:
    served_by(lambda run, wanted, stop: None, monkeypatch)
    walferry(tmp_path, "receive", spec)
    aborting.fault = StillShownError("east-1,16040,1 may still receive")
    answer = walferry(tmp_path, "abort", "east", "--reason", "r")
    assert answer.returncode == 1
    assert answer.stdout.splitlines() == [
        "east-1 aborted; removed: nothing",
        f"not removed: {NODE}: east-1,16040,1 may still receive. Then call `walferry abort east-1` again",
    ]
    left = "not removed: /walferry/receive/east in ZooKeeper"
    assert left in walferry(tmp_path, "status", "east").stdout
    aborting.fault = None
    facts = json.loads(walferry(tmp_path, "abort", "east-1", "--reason", "again", "--json").stdout)
    assert (facts["removed"], facts["left"], facts["peers"]) == ([NODE], [], [])
    assert left not in walferry(tmp_path, "status", "east").stdout
    assert walferry(tmp_path, "abort", "east-1", "--reason", "again").stdout == "east-1 aborted; removed: nothing\n"
