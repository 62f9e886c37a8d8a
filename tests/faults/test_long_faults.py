"""Migrations under load, in each of which something that walferry needs is away for long, or a person is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.run import ChaosRun
from chaos.schedule import Fault, Moving, Schedule, schedule
from chaos.world import World, booted
from faults.apart import Apart

RUN_SECONDS = 1200.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with booted(tmp_path_factory.mktemp("servers"), "postgresql", Apart) as world:
        yield world


def fault(act: str, victim: str, seconds: float, moment: str = "round") -> Fault:
    return Fault(moment, 2.0, act, victim, seconds, 0.0)  # type: ignore[arg-type]


def with_approval_after(plan: Schedule, seconds: float) -> Moving:
    assert isinstance(plan.own, Moving)
    return replace(plan.own, approve_after_s=seconds)


FAULTS = {
    "a source region server is suspended for two minutes": fault("suspend", "source server", 120.0),
    "the source's name node is started again": fault("kill", "source hdfs", 5.0),
    "the source's name node is suspended for a minute": fault("suspend", "source hdfs", 60.0),
    "the source's data node is started again": fault("kill", "source datanode", 15.0),
    "the source's ZooKeeper is started again": fault("kill", "source zookeeper", 15.0),
    "the source loses the end of a log that was shown and followed": fault("lose", "source server", 3.0),
    "the target's ZooKeeper is started again": fault("kill", "target zookeeper", 15.0),
    "the target's name node is started again": fault("kill", "target hdfs", 5.0),
    "the ledger is away for a minute": fault("kill", "postgresql", 60.0),
    "the ledger is away while the rest is drained": fault("kill", "postgresql", 60.0, "drain"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_migration_under_load_loses_nothing_while(what: str, world: World, tmp_path: Path) -> None:
    seed = list(FAULTS).index(what)
    plan = replace(schedule(seed, "mild", "postgresql"), faults=(FAULTS[what],))
    if FAULTS[what].act == "lose":
        # A log that has lost the marker of a compaction or a split shows a new history, about which a person would have
        # to decide; a move flushes, and a flush may compact. And a log has to grow between two rounds.
        plan = replace(plan, operations=(), own=with_approval_after(plan, 60.0))
    run = ChaosRun(plan, world, tmp_path / "run", print, RUN_SECONDS)
    result = run.do()
    assert (result.wrong, result.faults) == ([], 1)
    run.drop_tables()


def test_a_migration_under_load_loses_nothing_while_a_person_takes_five_minutes_to_answer(
    world: World, tmp_path: Path
) -> None:
    plan = schedule(len(FAULTS), "mild", "postgresql")
    plan = replace(plan, faults=(), own=with_approval_after(plan, 300.0))
    run = ChaosRun(plan, world, tmp_path / "run", print, RUN_SECONDS)
    assert run.do().wrong == []
    run.drop_tables()
