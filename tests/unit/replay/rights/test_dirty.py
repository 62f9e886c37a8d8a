"""What was sent too late stands in the target's ZooKeeper until both sides were compared (R13)."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from unit.replay.memory_zookeeper import MemoryZooKeeper
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import ZooKeeperError
from walferry.replay.rights import dirty
from walferry.replay.rights.dirty import ATTEMPTS, MOST_MARKS, DirtyRows, UnmarkedRowsError, mark, marks

TARGET = ClusterAddress("zk:1")


def rows(at_ms: int = 1_700_000_000_000, table: str = "shop:orders") -> DirtyRows:
    return DirtyRows.of(table, b"a", b"b", "move-1", 7, at_ms)


class Ensemble:
    """A ZooKeeper that fails so many times before it takes a mark, and once more after it took it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int = 0, answers_lost: int = 0) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.sessions = self.closed = 0
        self.waited = 0.0
        ensemble = self

        class Own:
            def __init__(self) -> None:
                ensemble.sessions += 1

            @classmethod
            def of(cls, address: ClusterAddress) -> Own:
                return cls()

            @property
            def client(self) -> KazooClient:
                if ensemble.sessions <= failures:
                    raise ZooKeeperError("no answer", zookeeper="zk:1")
                client = ensemble.zookeeper.session()
                if ensemble.sessions <= failures + answers_lost:
                    create = client.create

                    def lose(path: str, data: bytes, acl: None) -> None:
                        create(path, data)
                        raise ConnectionLoss

                    client.create = lose
                return client

            def close(self) -> None:
                ensemble.closed += 1

        monkeypatch.setattr(dirty, "ZooKeeper", Own)
        monkeypatch.setattr(time, "sleep", self._wait)

    def _wait(self, seconds: float) -> None:
        self.waited += seconds

    def marks(self, table: str = "shop:orders") -> list[DirtyRows]:
        return marks(self.zookeeper.session(), table)


def test_a_mark_reads_back_and_says_whose_request_changed_which_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, first, second = Ensemble(monkeypatch), rows(), rows(1_600_000_000_000)
    mark(TARGET, first)
    mark(TARGET, second)
    assert ensemble.marks() == [second, first]
    assert ensemble.marks("shop:users") == []
    assert "rows 'a' to 'b' of target table shop:orders" in first.describe()
    assert "2023-11-14T22:13:20+00:00 a process of run move-1" in first.describe()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"at_ms": "x"}'])
def test_a_mark_that_cannot_be_read_is_one_of_unknown_rows(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble(monkeypatch)
    mark(TARGET, rows())
    ensemble.zookeeper.session().create("/walferry/dirty/shop%3Aorders/x", content)
    unreadable, readable = ensemble.marks()
    assert readable.at_ms == rows().at_ms
    assert unreadable.name == "x"
    assert "rows of target table shop:orders may hold anything: the mark" in unreadable.describe()


def test_a_mark_is_tried_for_minutes_each_time_by_a_new_session_and_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensemble = Ensemble(monkeypatch, failures=3, answers_lost=1)
    mark(TARGET, rows())
    assert len(ensemble.marks()) == 1
    assert ensemble.sessions == ensemble.closed == 5


def test_rows_that_cannot_be_marked_end_the_work_for_good_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble(monkeypatch, failures=999)
    with pytest.raises(UnmarkedRowsError, match=r"rows 'a' to 'b' .* could not be marked .* Compare the table"):
        mark(TARGET, rows())
    assert ensemble.closed == ATTEMPTS
    assert 60 < ensemble.waited < 180


def test_the_marks_of_a_table_are_bounded_and_each_new_one_has_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensemble = Ensemble(monkeypatch)
    found: list[DirtyRows] = []
    for number in range(MOST_MARKS + 5):
        mark(TARGET, rows(number))
        before, found = found, ensemble.marks()
        assert {item.name for item in found} - {item.name for item in before}, "no comparison has seen it"
    assert len(found) == MOST_MARKS + 1
    assert found[-1].at_ms == MOST_MARKS + 4
    assert "many rows" in found[-1].describe()
    assert replace(found[-1], name="x").describe().startswith("rows 'a'")
