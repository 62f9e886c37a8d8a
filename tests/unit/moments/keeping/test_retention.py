"""What is deleted: by a model of a cluster that rolls, loses servers and has snapshots taken, whatever the settings."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from walferry.ledger.rows import Base
from walferry.moments.keeping.retention import KeptLog, expired, needs, too_large, unneeded

TABLES = ("a", "b", "c")


@dataclass
class Log:
    """A WAL of the model: who writes it when. An edit of each table is in it at each moment that it is open."""

    group: str
    number: int
    opened_ms: int
    closed_ms: int | None = None


@dataclass
class Cluster:
    """Servers that roll their logs, die and come up at random moments, and a process that keeps."""

    dice: random.Random
    clock: int = 0
    logs: list[Log] = field(default_factory=list)
    bases: list[Base] = field(default_factory=list)

    def alive(self) -> list[Log]:
        return [log for log in self.logs if log.closed_ms is None]

    def step(self) -> None:
        self.clock += self.dice.randint(1, 50)
        alive = self.alive()
        if not alive or self.dice.random() < 0.1:
            self.logs.append(Log(f"g{len(self.logs)}", self.clock, self.clock))
        elif self.dice.random() < 0.2:
            self.dice.choice(alive).closed_ms = self.clock
        else:
            old = self.dice.choice(alive)
            old.closed_ms = self.clock
            self.logs.append(Log(old.group, self.clock, self.clock))
        if self.dice.random() < 0.4:
            self.take(self.dice.choice(TABLES))

    def take(self, table: str) -> None:
        """A base; meanwhile logs are rolled. The snapshot has what was written before it began."""
        fence = {log.group: log.number for log in self.alive()}
        begun = self.clock + 1
        for _ in range(self.dice.randint(0, 2)):
            self.clock += 1
            for log in self.alive():
                if self.dice.random() < 0.5:
                    log.closed_ms = self.clock
                    self.logs.append(Log(log.group, self.clock, self.clock))
        self.clock += self.dice.randint(2, 9)
        name = f"{table}{len(self.bases)}"
        self.bases.append(Base(name, table, fence, begun, self.clock, self.dice.randint(1, 100)))
        self.clock += 1

    def closed(self) -> list[KeptLog]:
        """The copies, each made some time after its log was closed."""
        return [
            KeptLog(f"{log.group}.{log.number}", log.group, log.number, 10, log.closed_ms + log.number % 7)
            for log in self.logs if log.closed_ms is not None
        ]  # fmt: skip


def later_edits(cluster: Cluster, base: Base) -> set[str]:
    """The closed logs with an edit that was written after a base's snapshot began."""
    return {
        f"{log.group}.{log.number}"
        for log in cluster.logs if log.closed_ms is not None and log.closed_ms >= base.begun_ms
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(150))
def test_each_promised_moment_keeps_a_base_before_it_and_all_of_the_log_since(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster(dice)
    for _ in range(dice.randint(3, 60)):
        cluster.step()
    keep_ms, files = dice.choice([0, 30, 200, 5_000]), cluster.closed()
    before_ms = cluster.clock - keep_ms
    left = list(cluster.bases)
    for base in expired(left, {}, before_ms):
        left.remove(base)
    kept = {file.name for file in files} - unneeded(left, files)
    for table in {base.table for base in cluster.bases}:
        first = min(base.complete_ms for base in cluster.bases if base.table == table)
        for moment in (max(first, before_ms), cluster.clock, *range(max(first, before_ms), cluster.clock, 37)):
            begins = [base for base in left if base.table == table and base.complete_ms <= moment]
            assert begins, f"no base of {table} is left for the moment {moment}"
            assert later_edits(cluster, begins[-1]) <= kept
    assert any(base.complete_ms == max(b.complete_ms for b in cluster.bases) for base in left) or not cluster.bases


@pytest.mark.parametrize("seed", range(50))
def test_a_folder_that_is_too_large_loses_its_oldest_moments_and_never_the_newest_base_of_a_table(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster(dice)
    for _ in range(40):
        cluster.step()
    files, sizes = cluster.closed(), {base.snapshot: base.bytes for base in cluster.bases}
    dropped = too_large(cluster.bases, files, sizes, dice.choice([0, 300, 10_000_000]))
    left = [base for base in cluster.bases if base not in dropped]
    assert {base.table for base in left} == {base.table for base in cluster.bases}
    kept = {file.name for file in files} - unneeded(left, files)
    for base in left:
        assert later_edits(cluster, base) <= kept
        assert all(other.complete_ms <= max(b.complete_ms for b in left if b.table == other.table) for other in dropped)
    if sum(file.bytes for file in files) + sum(sizes.values()) < 10_000:
        assert too_large(cluster.bases, files, sizes, 10_000) == []


def base(table: str, fence: dict[str, int], begun: int, complete: int) -> Base:
    return Base(f"{table}{begun}", table, fence, begun, complete, 1)


def test_nothing_of_the_log_goes_before_there_is_a_base() -> None:
    assert unneeded([], [KeptLog("g.1", "g", 1, 1, 5)]) == set()


def test_a_table_that_is_gone_keeps_its_moments_as_long_as_others_and_no_longer() -> None:
    one = base("a", {"g": 1}, 10, 20)
    assert expired([one], {}, 1_000) == []
    assert expired([one], {"a": 500}, 499) == []
    assert expired([one], {"a": 500}, 500) == [one]


def test_the_log_of_a_group_that_a_base_did_not_see_is_needed_if_it_was_closed_since() -> None:
    one = base("a", {"g": 7}, 100, 120)
    assert [needs(one, KeptLog("", "g", number, 1, 50)) for number in (6, 7, 8)] == [False, True, True]
    assert [needs(one, KeptLog("", "h", 1, 1, copied)) for copied in (99, 100)] == [False, True]
