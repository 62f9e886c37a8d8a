"""A target table that acknowledges too early is durable while a run writes to it, and as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.ledger import Ledger
from walferry.replay.durability import make_durable, restore
from walferry.run.run import Run

TABLE = "shop:orders"


class Target:
    """A target of one table, whose schema can be read and changed."""

    def __init__(self) -> None:
        self.table: TableDescriptor | None = new_table(TABLE, {"f": {}})

    def describe(self, name: str) -> TableDescriptor:
        assert self.table is not None
        return self.table

    def table_exists(self, name: str) -> bool:
        return self.table is not None

    def modify_table(self, descriptor: TableDescriptor) -> None:
        self.table = descriptor

    def set(self, durability: str) -> None:
        self.table = self.describe(TABLE).with_attribute("DURABILITY", durability)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
def run(tmp_path: Path, target: Target) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, ledger.open_run("move", "test", SPEC, "test").run_id)
        run.__dict__["target"] = target
        yield run


@pytest.mark.parametrize("durability", ["SKIP_WAL", "ASYNC_WAL"])
def test_it_is_durable_meanwhile_and_as_before_at_the_end(run: Run, target: Target, durability: str) -> None:
    target.set(durability)
    make_durable(run)
    make_durable(run)
    assert target.describe(TABLE).durability == "USE_DEFAULT"
    (item,) = run.ledger.objects.all()
    assert (item.cluster, item.kind, item.name, item.state) == ("target", "durability", f"{TABLE}={durability}", "made")
    assert restore(run) == [f"target durability {TABLE}={durability}"]
    assert restore(run) == []
    assert target.describe(TABLE).durability == durability


@pytest.mark.parametrize("durability", ["USE_DEFAULT", "SYNC_WAL", "FSYNC_WAL"])
def test_a_durable_table_is_left_as_it_is(run: Run, target: Target, durability: str) -> None:
    target.set(durability)
    make_durable(run)
    restore(run)
    assert target.describe(TABLE).durability == durability
    assert run.ledger.objects.all() == []


def test_a_kill_between_plan_and_change_costs_nothing(
    run: Run, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.set("SKIP_WAL")

    def killed(descriptor: TableDescriptor) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target, "modify_table", killed)
        with pytest.raises(KeyboardInterrupt):
            make_durable(run)
    restore(run)
    assert target.describe(TABLE).durability == "SKIP_WAL"
    make_durable(run)
    restore(run)
    assert target.describe(TABLE).durability == "SKIP_WAL"


def test_what_somebody_set_meanwhile_stays_and_a_table_that_was_dropped_is_no_error(run: Run, target: Target) -> None:
    target.set("SKIP_WAL")
    make_durable(run)
    target.set("FSYNC_WAL")
    restore(run)
    assert target.describe(TABLE).durability == "FSYNC_WAL"
    target.set("ASYNC_WAL")
    make_durable(run)
    target.table = None
    restore(run)
    assert {item.state for item in run.ledger.objects.all()} == {"removed"}


def test_a_change_that_was_cut_off_is_made_again_though_the_schema_shows_it(
    run: Run, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema changes at once, each region when it has been reopened: until then it acknowledges early."""
    target.set("ASYNC_WAL")
    changed: list[str] = []

    def cut_off(descriptor: TableDescriptor) -> None:
        target.table = descriptor
        changed.append(descriptor.durability)
        if len(changed) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(target, "modify_table", cut_off)
    with pytest.raises(KeyboardInterrupt):
        make_durable(run)
    assert target.describe(TABLE).durability == "USE_DEFAULT"
    make_durable(run)
    assert changed == ["USE_DEFAULT", "USE_DEFAULT"]
    restore(run)
    assert target.describe(TABLE).durability == "ASYNC_WAL"
