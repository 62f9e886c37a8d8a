"""One mild seed of `make chaos` on the clusters that the tests share: a migration under load, with its faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.run import ChaosRun
from chaos.schedule import schedule
from chaos.world import kept, victims_of
from walferry.embedded.cluster import Cluster

pytestmark = pytest.mark.cluster

SEED = 95


def test_a_move_under_load_whose_processes_are_killed_and_suspended_ends_with_equal_sides(
    source: Cluster, target: Cluster, tmp_path: Path
) -> None:
    plan = schedule(SEED, "mild", victims_of(source, target))
    with kept(source, target, shared=True) as world:
        run = ChaosRun(plan, world, tmp_path / "run", print, letters="bc")
        result = run.do()
        run.drop_tables()
    assert result.wrong == []
    assert result.passed
    assert result.faults == len(plan.faults) == 3
    assert result.starts > 1
    assert result.decided > 100
