"""What HBase's own Java client shows of rows, and which of them differ for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thriftpy2.transport import TTransportException

from unit.migration.filled_ledger import CLUSTER, SPEC
from unit.migration.two_readers import OTHERS, SHOWN, Clusters
from walferry.ledger import Ledger
from walferry.migration.comparing import second_reader
from walferry.migration.comparing.second_reader import READS, RowsToRead, SecondReading, read_both, still_differ
from walferry.run.run import Run

TABLE = "shop:orders"
NEWER = {b"f:q": (b"x", 7)}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    spec = SPEC | dict.fromkeys(("source", "target"), CLUSTER | {"thrift": "127.0.0.1:1"})
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", spec, "test").run_id)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(monkeypatch)


def read(run: Run, clusters: Clusters, seconds: float = 0.0, rows: tuple[bytes, ...] = (b"b",)) -> SecondReading:
    return read_both(run, {TABLE: RowsToRead(exactly=rows)}, seconds, clusters.pause)[TABLE]


def test_a_row_that_differs_is_read_again_and_counts_only_if_it_differs_each_time(run: Run, clusters: Clusters) -> None:
    clusters.there[b"b"] = OTHERS
    assert read(run, clusters).differing == {b"b": (SHOWN, OTHERS)}
    clusters.asked.clear()
    clusters.at_look = {1 + READS: {b"b": SHOWN}}  # the first one is around no key
    found = read(run, clusters)
    assert found == SecondReading(frozenset([b"b"]))


def test_what_is_late_has_its_time_to_arrive(run: Run, clusters: Clusters) -> None:
    clusters.there[b"b"] = OTHERS
    clusters.at_look = {6: {b"b": SHOWN}}
    assert read(run, clusters, seconds=30).differing == {}
    clusters.there[b"b"] = OTHERS
    clusters.asked.clear()
    clusters.at_look, clusters.now = {}, 0.0
    assert read(run, clusters, seconds=30).differing == {b"b": (SHOWN, OTHERS)}
    assert 30 <= clusters.now < 31


def test_a_row_in_which_other_cells_differ_each_time_is_under_way_if_both_sides_are_written_to(
    run: Run, clusters: Clusters
) -> None:
    def written(seconds: float) -> None:
        clusters.pause(seconds)
        clusters.here[b"b"], clusters.there[b"b"] = NEWER, OTHERS

    clusters.here[b"b"], clusters.there[b"b"] = OTHERS, SHOWN
    found = read_both(run, {TABLE: RowsToRead(exactly=[b"b"])}, 10, written)[TABLE]
    assert found == SecondReading(frozenset([b"b"]), {}, frozenset([b"b"]))
    clusters.here[b"b"], clusters.there[b"b"] = OTHERS, SHOWN
    found = read_both(run, {TABLE: RowsToRead(exactly=[b"b"])}, 0, written)[TABLE]
    assert found.differing == {b"b": (NEWER, OTHERS)}, "nobody writes, so it differs whatever it shows"


def test_a_row_that_one_side_lacks_differs_by_each_of_its_cells(run: Run, clusters: Clusters) -> None:
    del clusters.there[b"b"]
    assert read(run, clusters, seconds=2).differing == {b"b": (SHOWN, {})}
    assert still_differ(run, TABLE, {b"b": (SHOWN, {})}) == {b"b"}
    assert still_differ(run, TABLE, {b"b": ({}, OTHERS)}) == set(), "it differs, but not by that cell"


def test_a_thrift_server_that_fails_leaves_the_other_tables_alone_and_refutes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, clusters: Clusters
) -> None:
    class Fails:
        def around(self, *_: Any) -> Any:
            raise TTransportException(message="no answer")

        exactly = around

    monkeypatch.setattr(second_reader, "_ThriftReader", lambda run, table: Fails() if table == "bad" else clusters)
    found = read_both(run, {"bad": RowsToRead([b"a"]), TABLE: RowsToRead([b"a"])})
    assert found["bad"].why.startswith("reading by Thrift failed: ")
    assert found[TABLE] == SecondReading(frozenset([b"a", b"b"]))
    assert still_differ(run, "bad", {b"b": (SHOWN, OTHERS)}) == {b"b"}
