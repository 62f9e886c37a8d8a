"""The command on real clusters, as processes of their own: a whole move with its cutover, and an abort."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.migration.command import COMMAND, environment, walferry
from integration.migration.moves import begin, copy_tables, fill, make_spec, spec_keys, unique, visible
from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell, delete_column
from walferry.ledger import Ledger
from walferry.run.run import Run

pytestmark = pytest.mark.cluster

OUR_LINE = re.compile(r"\d\d:\d\d:\d\d (?!Spark )")
FROM_JAVA = "WARNING: Using incubator modules: jdk.incubator.vector"  # of the JVM itself, for an option of Spark's


def status(folder: Path, name: str) -> dict[str, Any]:
    """What `status --json` says; {} while there is no such run."""
    answer = walferry(folder, "status", name, "--json")
    facts: dict[str, Any] = json.loads(answer.stdout) if answer.returncode == 0 else {}
    return facts


def answers(folder: Path, name: str) -> set[str]:
    """The conditions that do not hold, by `ready --json`."""
    answer = walferry(folder, "ready", name, "--json")
    facts = json.loads(answer.stdout)
    noes = {one["name"] for one in facts["conditions"] if one["answer"] == "no"}
    assert (answer.returncode, facts["may_begin"]) == ((1, False) if noes else (0, True))
    assert {one["answer"] for one in facts["conditions"]} <= {"yes", "no"}, "the clusters were looked at"
    return noes


@contextmanager
def writing(source: MiniCluster, table: str) -> Iterator[list[str]]:
    """Puts rows one after the other until it is stopped or refused; the list gets the refusal."""
    refusals: list[str] = []
    stop = threading.Event()

    def write() -> None:
        with HBaseClient(source.address) as client:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    client.put(table, [Cell(b"w%06d" % number, b"f", b"q", b"%d" % number)])
                except WalferryError as error:
                    refusals.append(str(error))
                    return
                time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield refusals
    finally:
        stop.set()
        writer.join()


def left_behind(client: HBaseClient, run_id: str) -> list[str]:
    """Peers and snapshots of a run on a cluster."""
    peer = run_id.replace("-", "_")
    return [name for name in client.peers() if peer in name] + [
        snapshot.name for snapshot in client.snapshots() if run_id in snapshot.name
    ]


def nodes_of(client: HBaseClient, path: str = "/walferry") -> set[str]:
    """All nodes at and below a path, whoever has made them."""
    if not client.zk.exists(path):
        return set()
    return {path}.union(*(nodes_of(client, f"{path}/{child}") for child in client.zk.get_children(path)))


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own, what it says in `out` and `err`; killed -9 at the end if need be."""
    with (
        (folder / "out").open("w") as out,
        (folder / "err").open("w") as err,
        subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder, env=environment(folder), stdout=out, stderr=err, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of the command with its Java and its Python workers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def test_a_move_with_a_writer_is_paused_killed_resumed_and_cut_over_read_only(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    keys = spec_keys(source, target, [table], write_stop="readonly", max_lag=60)
    name = keys["name"]
    (tmp_path / "move.yaml").write_text(yaml.safe_dump(keys))
    with HBaseClient(source.address) as here, HBaseClient(target.address) as there:
        here.create_table(table, {"f": {}}, [b"r10"])
        fill(here, table)
        of_others = nodes_of(here)

        dry = walferry(tmp_path, "start", "move.yaml", "--dry-run")
        assert dry.returncode == 0, dry.stderr
        assert dry.stdout.splitlines()[-1].startswith("would run: plan, protect, fence, ")
        assert not (tmp_path / "ledger.db").exists()
        assert json.loads(walferry(tmp_path, "plan", "move.yaml", "--json").stdout)["findings"] == []

        with writing(source, table) as refusals:
            with running(tmp_path, "start", "move.yaml", "--yes") as process:
                before = (None, "plan", "protect", "fence", "snapshot")
                wait_until(lambda: phase_of(tmp_path, name) not in before, process)
            assert process.returncode == -signal.SIGKILL

            with running(tmp_path, "resume", name, "--yes") as process:
                wait_until(lambda: phase_of(tmp_path, name) in ("clone", "check_copy"), process)
                assert walferry(tmp_path, "pause", name, "--reason", "a look").returncode == 0
                wait_until(lambda: phase_of(tmp_path, name) == "replay", process)
                assert status(tmp_path, name)["state"] == "paused"
                assert not here.describe(table).read_only
                time.sleep(3)
                assert phase_of(tmp_path, name) == "replay"
                assert answers(tmp_path, name) == {"pause", "lag", "comparison"}, "nothing has been applied yet"
                resumed = walferry(tmp_path, "resume", name, "--yes")
                assert resumed.stdout == f"{name}-1 continues in the process that runs it\n", resumed.stderr
                kill(process)  # it holds the lease, whose successor has to wait
                process.wait()

            with running(tmp_path, "resume", name, "--yes") as process:
                process.wait(timeout=600)
                errors = (tmp_path / "err").read_text()
                assert process.returncode == 0, errors
        assert [line for line in errors.splitlines() if not OUR_LINE.match(line)] in ([], [FROM_JAVA])

        assert len(refusals) == 1
        assert here.describe(table).read_only
        assert not there.describe(table).read_only
        seen = visible(target, table)
        assert len(seen) > 20
        assert seen == visible(source, table)
        there.put(table, [Cell(b"zz", b"f", b"q", b"written after the move")])
        assert left_behind(here, f"{name}-1") == left_behind(there, f"{name}-1") == []
        assert nodes_of(here) == of_others
        ended = walferry(tmp_path, "ready", name)
        assert (ended.returncode, ended.stderr) == (2, f"error: run {name}-1 has ended as done\n")

        require_good_report(tmp_path, name, table)
        require_one_difference(tmp_path, name, table)
        there.mutate(table, [delete_column(b"zz", b"f", b"q")])
        assert walferry(tmp_path, "verify", name).returncode == 0


def require_good_report(folder: Path, name: str, table: str) -> None:
    """The run has ended well, by what it printed and by its report."""
    printed = (folder / "out").read_text()
    assert f"Run {name}-1: done" in printed
    assert f"{table} is read-only at the source" in printed
    facts = json.loads(walferry(folder, "report", name, "--json").stdout)
    assert (facts["gaps"], facts["quarantine"], facts["unexplained"]) == (0, 0, 0)
    assert facts["write_stop_seconds"] > 0


def require_one_difference(folder: Path, name: str, table: str) -> None:
    """`walferry verify` finds one row that differs, which nothing explains."""
    differs = walferry(folder, "verify", name, "--json")
    assert differs.returncode == 5
    [found] = json.loads(differs.stdout)
    second = found.pop("second_reader")
    assert (second["why"], second["differing"], second["rows"] > 20) == ("", 0, True)
    assert [found] == [
        {"table": table, "regions": 2, "differing_rows": 1, "unexplained": 1, "undecided": 0, "uncompared_cells": 0}
    ]
    assert differs.stderr.splitlines()[-1].startswith(f"error: run {name}-1: source and target differ")


def phase_of(folder: Path, name: str) -> str | None:
    """The newest phase that the ledger knows of."""
    if not (folder / "ledger.db").exists():
        return None
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        if all(run.name != name for run in ledger.runs()):
            return None
        phases = ledger.of(ledger.find(name).run_id).phases.all()
    return phases[-1].phase if phases else None


def wait_until(done: Any, process: subprocess.Popen[bytes], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert process.poll() is None, "the command ended early"
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_an_aborted_run_leaves_nothing_but_its_target_table(
    source: MiniCluster, target: MiniCluster, tmp_path: Path
) -> None:
    table = unique()
    spec = make_spec(source, target, [table])
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        record = ledger.open_run(spec.name, "tester", spec.model_dump(), "tester")
        with Run(ledger, record.run_id) as run:
            run.source.create_table(table, {"f": {}})
            fill(run.source, table)
            of_others = nodes_of(run.source)
            begin(run)
            copy_tables(run)
            made = left_behind(run.source, record.run_id), left_behind(run.target, record.run_id)
            assert [len(names) for names in made] == [2, 1]

            aborted = walferry(tmp_path, "abort", spec.name, "--reason", "second thoughts")
            assert aborted.returncode == 0, aborted.stderr
            assert aborted.stdout.startswith(f"{record.run_id} aborted; removed: peer ")
            assert left_behind(run.source, record.run_id) == left_behind(run.target, record.run_id) == []
            assert nodes_of(run.source) == of_others
            assert run.target.table_exists(table)
            assert len(visible(target, table)) == 20
            again = walferry(tmp_path, "resume", spec.name)
            assert again.returncode == 2
            assert "aborted" in again.stderr
        assert ledger.run(record.run_id).outcome == "second thoughts"
