"""A migration: the command moves the tables, its questions are answered, and both sides must be equal at the end."""

from __future__ import annotations

import time
from typing import Any

import yaml

from chaos import journal
from chaos.command import CUTOVER, WRITES_STOPPED, Command
from chaos.moments import audited, progress
from chaos.scene import HEAL_SECONDS, Scene, cluster_keys
from chaos.schedule import SIDES, Moving
from chaos.verdict import Verdict, judge

RENAMED = {"c": "_moved"}
"""what the names of target tables have besides, by the last letters of the source tables' names"""
COPIED_AGAIN = "copied again"
"""in the audit trail"""


def move(scene: Scene) -> Verdict:
    """Move the tables. Raises StuckError if the run does not end."""
    tables = {table: f"{table}{RENAMED.get(table[-1], '')}" for table in scene.tables}
    (scene.folder / "move.yaml").write_text(yaml.safe_dump(_spec(scene, tables)))
    scene.create_tables()
    scene.load()
    with scene.at_work({"source": list(tables), "target": list(tables.values())}):
        scene.start_writer()
        _follow(scene)
    return _judged(scene, tables)


def _spec(scene: Scene, tables: dict[str, str]) -> dict[str, Any]:
    own = scene.schedule.own
    assert isinstance(own, Moving)
    named = [{"source": here, "target": there} for here, there in tables.items()]
    sides: dict[str, Any] = {side: cluster_keys(scene.world.cluster(side)) for side in SIDES}
    keep: dict[str, Any] = {"protect": own.protect}
    if own.protect == "stage":
        keep["stage"] = str(scene.folder / "staged")
        (scene.folder / "staged").mkdir()
    return {"name": scene.name, **sides, "tables": named, "write_stop": "confirm", "max_lag": 60, **keep}


def _follow(scene: Scene) -> None:
    """Give the command and answer its questions, until the run is done."""
    own, asked, due = scene.schedule.own, None, 0.0
    assert isinstance(own, Moving)

    def arguments() -> list[str]:
        return ["start", "move.yaml"] if scene.state() is None else ["resume", scene.name]

    moving = scene.attempt("walferry", arguments, lambda ended: scene.state() == "done", lambda: progress(scene.ledger))
    asker: Command | None = None
    while not moving.done:
        time.sleep(0.1)
        scene.attend()
        command = moving.command
        if command is None or not moving.is_running:
            continue
        if command is not asker:
            asker, asked = command, None
        if (question := command.question()) is not None and question != asked:
            asked = question
            scene.moments.has_come("asked" if asked == CUTOVER else "stop asked")
            due = time.monotonic() + (own.approve_after_s if asked == CUTOVER else own.stop_after_s)
        if scene.schedule.mode == "again" and not _copies_again(scene):
            continue  # the cutover waits
        if asked is not None and time.monotonic() >= due:
            if asked == WRITES_STOPPED:
                scene.stop_writing()
            if moving.command is command:
                command.answer(asked)
            asked = None


def _copies_again(scene: Scene) -> bool:
    """Ask for a copy of one table again once a round is over, as often as that command ends; whether it is done."""
    if COPIED_AGAIN in audited(scene.ledger):
        scene.attempts.pop("copy-again", None)
        return True
    if "copy-again" not in scene.attempts and progress(scene.ledger)[1]:
        table = scene.tables[scene.schedule.seed % len(scene.tables)]
        arguments = ["copy-again", scene.name, "--table", table, "--reason", "chaos"]
        scene.attempt("copy-again", lambda: arguments, lambda ended: False, lambda: time.monotonic())
    return False


def _judged(scene: Scene, tables: dict[str, str]) -> Verdict:
    for side in SIDES:
        scene.world.await_healthy(side, time.monotonic() + HEAL_SECONDS)
    wrong = scene.processes_left() + scene.tracebacks()
    lost = any(fault.act == "lose" for fault in scene.schedule.faults)
    verdict = judge(scene.world.source, scene.world.target, tables, scene.folder, scene.ledger, lost)
    verdict.wrong = wrong + verdict.wrong
    if not any(journal.read(scene.folder)):
        verdict.wrong.append("the writer wrote nothing")
    return verdict
