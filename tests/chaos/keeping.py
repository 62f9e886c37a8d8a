"""A run that keeps moments: tables are copied by another reader at some moments, and must be so when they are restored.

The claim of a run that keeps moments is judged too: what was acknowledged before the time up to which it says that all
is copied is in its folder, as HBase's own printer of logs reads it.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
import yaml

from chaos import journal
from chaos.book import Reader
from chaos.hdfs import Mirror, listed
from chaos.moments import progress
from chaos.printed import Logged, logged
from chaos.scene import HEAL_SECONDS, Attempts, Scene, StuckError, cluster_keys, seen_by_thrift
from chaos.schedule import SIDES, Keeping
from chaos.verdict import Content, Verdict, audit_faults, differing, left_behind, some
from chaos.world import names_of

SKEW_S = 0.5
"""of the servers' clocks, which are one machine's: WALFERRY_CLOCK_SKEW_SECONDS"""
QUIET_S = 1.0
"""before and after a moment nothing is written for so long"""
RESTORE_S = 400.0
CALM_S = 120.0
"""within so long after the last fault each table must have the bases that are due"""
MARGIN_MS = 5
UNFINISHED = ".copying"
"""at the end of the name of a copy that is being made"""
_PIECE = re.compile(r"\d+-\d+")
AT_TARGET = "chaos_target"
"""the connection of the target"""


@dataclass(frozen=True)
class Copied:
    """What the tables were at a moment."""

    at_ms: int
    tables: dict[str, Content]


def keep(scene: Scene) -> Verdict:
    """Keep moments, and restore the tables to them. Raises StuckError if the run does not end."""
    own, verdict = scene.schedule.own, Verdict()
    assert isinstance(own, Keeping)
    kept = Mirror(scene.world.target, f"/chaos/{scene.folder.name}", scene.folder / "if-the-source-is-lost")
    _prepare(scene, own, kept)
    with scene.at_work({"source": scene.tables}):
        scene.start_writer()
        scene.attempt("walferry", lambda: ["keep", "keep.yaml"], lambda _: scene.state() == "aborted",
                      lambda: _bases(scene))  # fmt: skip
        scene.wait(lambda: {table for table, *_ in _bases(scene)} >= set(scene.tables), "not each table has a base")
        scene.moments.has_come("bases")
        copied = []
        for number, seconds in enumerate(own.writes_s, 1):
            scene.go_on_for(seconds)
            if number == len(own.writes_s):
                verdict.wrong += _folder_faults(scene, kept, verdict)
            copied.append(_copy(scene))
            if number == len(own.writes_s):
                _end(scene, own)
            scene.go_on_writing()
            scene.moments.has_come(f"moment {number}")
        scene.go_on_for(own.writes_s[0])
        scene.stop_writing()
        for number, moment in enumerate(copied, 1):
            verdict.wrong += _restored(scene, own, moment, number, verdict)
        _calm_down(scene)
        scene.abort()
    verdict.bases = len(_bases(scene))
    verdict.wrong += _left(scene, kept)
    return verdict


def _prepare(scene: Scene, own: Keeping, kept: Mirror) -> None:
    source, target = (cluster_keys(scene.world.cluster(side)) for side in SIDES)
    spec = {
        "name": scene.name, "source": source, "tables": list(scene.tables), "folder": kept.url,
        "base_hours": own.base_seconds / 3600, "tail_seconds": own.tail_seconds, "copy_bases": own.copy_bases,
    }  # fmt: skip
    (scene.folder / "keep.yaml").write_text(yaml.safe_dump(spec))
    host, _, port = target["zookeeper"].rpartition(":")
    extra = {name: target[name] for name in ("znode", "webhdfs", "rootdir")}
    connection = {"conn_type": "hbase", "host": host, "port": int(port), "extra": extra}
    scene.environment |= {
        "WALFERRY_CLOCK_SKEW_SECONDS": str(SKEW_S),
        f"AIRFLOW_CONN_{AT_TARGET.upper()}": json.dumps(connection),
    }
    scene.create_tables()
    scene.load()


def _copy(scene: Scene) -> Copied:
    """Copy the tables by another reader while nothing is written."""
    scene.pause_writing()
    scene.go_on_for(QUIET_S)
    at_ms = time.time_ns() // 1_000_000
    scene.go_on_for(QUIET_S)
    return Copied(at_ms, {table: seen_by_thrift(scene, "source", table) for table in scene.tables})


def _kill(scene: Scene) -> None:
    """kill -9 the command; `attend` gives it again."""
    if (command := scene.command_of("walferry")) is not None:
        command.end()


def _end(scene: Scene, own: Keeping) -> None:
    """What happens right after the last moment, before anything else is written."""
    scene.say(f"  after the last moment: {own.end}")
    if own.end == "truncate":
        table = scene.tables[scene.schedule.seed % len(scene.tables)]
        scene.truncate(table)
    elif own.end == "power cut":
        _kill(scene)
        names = names_of("source all", scene.world.source)
        scene.world.kill("source", names)
        time.sleep(1)
        scene.world.go_on("source", names)
        scene.wait(lambda: scene.world.healthy("source"), "the source does not recover")


# ------------------------------------------------------------------ restores


def _restored(scene: Scene, own: Keeping, moment: Copied, number: int, verdict: Verdict) -> list[str]:
    """Restore all tables to a moment, side by side; where they are not what they were then."""
    at = datetime.fromtimestamp(moment.at_ms / 1000, UTC).isoformat()
    at_target = scene.tables[own.elsewhere]
    new = {table: f"{table}_at_{moment.at_ms}" for table in scene.tables}
    scene.made += new.values()

    def restore(table: str) -> Attempts:
        to = ["--to", AT_TARGET] if table == at_target else []
        arguments = ["restore", table, "--at", at, "--as", new[table], *to]
        return scene.attempt(
            f"restore {table}", lambda: arguments, lambda ended: ended.process.returncode == 0,
            lambda: progress(scene.ledger),
        )  # fmt: skip

    going = [restore(table) for table in scene.tables]
    scene.moments.has_come(f"restoring {number}")
    scene.wait(lambda: all(one.done for one in going), f"not each table is restored to {at}", RESTORE_S)
    wrong = []
    for table, then in moment.tables.items():
        now = seen_by_thrift(scene, "target" if table == at_target else "source", new[table])
        verdict.restored += 1
        verdict.cells += sum(map(len, then.values()))
        wrong += some(differing(new[table], then, now, ("at that moment", "as restored")))
    return wrong


# ------------------------------------------------------------------ the claims


def _folder_faults(scene: Scene, kept: Mirror, verdict: Verdict) -> list[str]:
    """Kill the command, and say what its folder lacks of what it says to have; the source is not asked."""
    run = f"{scene.name}-1"
    (begun,) = scene.ledger.asked(f"SELECT finished_ms FROM phases WHERE run_id = '{run}' AND phase = 'protect'") or [
        ()
    ]
    _kill(scene)
    covered_ms = json.loads(_note(scene, "ends of open logs") or "{}").get("covered_ms", 0)
    until = time.monotonic() + HEAL_SECONDS
    while True:  # without `attend`, which would give the command again
        try:
            kept.look()
            break
        except requests.RequestException as error:
            if time.monotonic() > until:
                raise StuckError(f"the target's HDFS does not answer: {error}") from error
            time.sleep(0.5)
    written = list(logged(_logs(kept.local / run), scene.tables))
    shutil.rmtree(kept.local)
    verdict.logged = len(written)
    due = [one for one in journal.read(scene.folder) if one.began_ms > begun[0] + MARGIN_MS]
    sure = [one for one in due if one.outcome == "acked" and one.began_ms + one.took_ms < covered_ms - MARGIN_MS]
    scene.say(f"  kept up to {covered_ms}: {len(sure)} of {len(due)} edits must be in the folder")
    verdict.decided += len(sure)
    there = {_edit(cell) for cell in written}
    missing = [f"acknowledged, and not in the folder: {one}" for one in sure if not there >= set(journal.edits(one))]
    return some([*missing, *([] if sure else ["no edit is old enough to be in the folder"])])


def _logs(folder: Path) -> list[Path]:
    """The logs of a folder of copies; the pieces of an open log are put together."""
    closed = [path for path in folder.iterdir() if path.is_file() and not path.name.endswith(UNFINISHED)]
    for pieces in sorted((folder / "open").glob("*")):
        if not (folder / pieces.name).exists():
            whole = folder / "whole" / pieces.name
            whole.parent.mkdir(exist_ok=True)
            whole.write_bytes(_joined(pieces))
            closed.append(whole)
    return sorted(closed, key=lambda path: path.name)


def _joined(folder: Path) -> bytes:
    """The bytes that the pieces FIRST-END of a log have together."""
    found = bytearray()
    for path in sorted(folder.iterdir()):  # the numbers have leading zeros
        if _PIECE.fullmatch(path.name):
            first, end = map(int, path.name.split("-"))
            if first <= len(found) < end:
                found += path.read_bytes()[len(found) - first :]
    return bytes(found)


def _edit(cell: Logged) -> journal.Edit:
    return journal.Edit.of(cell.table, cell.row, cell.family, cell.qualifier, cell.kind, cell.timestamp, cell.value)


def _calm_down(scene: Scene) -> None:
    """Return once no table lacks a base, and the end of the log is copied, with nothing in the way any more."""
    scene.wait(lambda: scene.world.healthy("source"), "the source does not recover")
    now_ms = time.time_ns() // 1_000_000

    def is_calm() -> bool:
        troubles = scene.ledger.asked("SELECT subject FROM notes WHERE name = 'no base'")
        ends = json.loads(_note(scene, "ends of open logs") or "{}")
        return troubles == [] and ends.get("covered_ms", 0) > now_ms

    scene.wait(is_calm, "troubles do not end, or the ends of the log are not copied", CALM_S)
    if lost := scene.ledger.asked("SELECT subject FROM notes WHERE name = 'lost end'"):
        raise StuckError(f"ends of logs are said to be lost, though the source keeps them: {lost}")


def _left(scene: Scene, kept: Mirror) -> list[str]:
    """What is left, or said, that must not be."""
    for side in SIDES:
        scene.world.await_healthy(side, time.monotonic() + HEAL_SECONDS)
    wrong = scene.processes_left() + scene.tracebacks()
    with scene.ledger.reader() as book:
        wrong += _ledger_faults(book) + audit_faults(book)
    wrong += [
        f"{what} is left at the {side}"
        for side in SIDES
        for what in left_behind(scene.world.cluster(side), written=True)
    ]
    if listed(kept.cluster, kept.path):
        wrong.append("the folder of the copies is left")
    if (words := scene.attempts["walferry"].command) is not None and words.process.returncode != 0:
        wrong.append(f"after the abort, the command ended with {words.process.returncode}")
    return wrong


def _ledger_faults(book: Reader) -> list[str]:
    wrong = []
    runs = book.execute("SELECT run_id, kind, state FROM runs")
    wrong += [f"run {run} is {state}" for run, kind, state in runs if state != {"keep": "aborted"}.get(kind, "done")]
    left = book.execute("SELECT run_id, cluster, kind, name FROM objects WHERE state <> 'removed' AND kind <> 'table'")
    wrong += some(
        [f"in the ledger, {kind} {name} of {run} at the {side} is not removed" for run, side, kind, name in left]
    )
    doubts = book.execute("SELECT run_id, facts FROM phases WHERE phase = 'end'")
    wrong += [f"{run} has doubts: {told}" for run, facts in doubts if (told := json.loads(facts or "{}").get("doubts"))]
    return wrong


# ------------------------------------------------------------------ the ledger


def _bases(scene: Scene) -> Sequence[Any]:
    """(table, snapshot) of all bases so far."""
    return scene.ledger.asked("SELECT table_name, snapshot FROM bases") or []


def _note(scene: Scene, name: str) -> str | None:
    found = scene.ledger.asked(f"SELECT facts FROM notes WHERE name = '{name}'")
    return str(found[0][0]) if found else None
