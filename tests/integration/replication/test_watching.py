"""A run that watches HBase's own replication between two real clusters: what it records, as things break and mend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.migration.moves import cluster_keys
from integration.replication.native import await_row, make_both, native_peer
from walferry.embedded.cluster import MiniCluster
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.ledger import Ledger, RunLedger
from walferry.replication import status, watching
from walferry.replication.canary import table_of
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.replication.watching import Seen, begin, watch_once
from walferry.run.progress.state import state_of
from walferry.run.spec import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield ledger


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two looks at the queues follow each other at once, and an edit is stuck as soon as it is not shipped."""
    monkeypatch.setattr(watching, "APART_S", 0.2)
    monkeypatch.setattr(status, "STUCK_MS", 0)


def watch(book: Ledger, source: MiniCluster, target: MiniCluster, **keys: Any) -> RunLedger:
    clusters = {"source": cluster_keys(source), "target": cluster_keys(target)}
    run = begin(book, {"name": "watched", **clusters, **keys}, lambda name: pytest.fail(name), "tester")
    return book.of(run)


def texts(seen: Seen) -> str:
    return "; ".join(trouble.text for trouble in seen.troubles)


def later(run: RunLedger) -> None:
    """A quarter of an hour later, as far as the newest plan goes."""
    plan = run.notes.get("replication plan")
    assert plan is not None
    run.notes.keep("replication plan", plan | {"at_ms": plan["at_ms"] - 15 * 60_000})


@pytest.mark.usefixtures("brief")
def test_what_stops_edits_is_red_until_it_is_mended(
    book: Ledger, source: MiniCluster, target: MiniCluster, at_source: HBaseClient
) -> None:
    with HBaseClient(target.address) as sink:
        table = make_both(at_source, sink)
        with native_peer(source, target, [table]) as peer:
            run = watch(book, source, target, peer=peer, tables=[table])
            at_source.put(table, [Cell(b"a", b"f", b"q", b"1")])
            await_row(target, table, b"a")
            assert texts(watch_once(run)) == ""
            assert state_of(run).name == "following"

            sink.disable_table(table)
            at_source.put(table, [Cell(b"b", b"f", b"q", b"2")])
            assert texts(watch_once(run)) == "", "max_lag has not passed, and the settings are as last seen"
            later(run)
            seen = watch_once(run)
            assert f"{table}: it is disabled at the sink of peer {peer}" in texts(seen)
            assert (state_of(run).name, seen.stops) == ("stuck", 1)
            assert seen.looks[0].stuck_queues >= 1
            assert (seen.looks[0].oldest_age_ms or 0) > 0

            sink.enable_table(table)
            await_row(target, table, b"b")
            later(run)
            assert texts(watch_once(run)) == ""
            assert state_of(run).name == "following"
            assert len(run.peer_looks.since(0)) == 4
        (trouble,) = watch_once(run).troubles
        assert f"no replication peer {peer}" in trouble.text
        assert state_of(run).name == "failed"


@pytest.mark.usefixtures("brief")
def test_a_canary_is_flown_with_the_settings_and_its_time_is_told(
    book: Ledger, source: MiniCluster, target: MiniCluster, at_source: HBaseClient
) -> None:
    with HBaseClient(target.address) as sink:
        table = make_both(at_source, sink)
    with native_peer(source, target, [table, table_of(at_source.cluster_id())]) as peer:
        run = watch(book, source, target, peer=peer, tables=[table], canary=True)
        seen = watch_once(run)
        assert seen.canary_seconds is not None
        assert seen.canary_seconds < 60
        assert watch_once(run).canary_seconds == seen.canary_seconds


@pytest.mark.long
def test_a_sink_that_is_away_is_told_and_a_source_that_is_away_is_a_look_that_failed(
    book: Ledger, source: MiniCluster, target: MiniCluster, at_source: HBaseClient
) -> None:
    key = f"{target.host}:{target.ports.zookeeper}:/nothing"
    with HBaseClient(target.address) as sink:
        table = make_both(at_source, sink)
    with native_peer(source, target, [table], key=key) as peer:
        clusters = {"source": cluster_keys(source)}
        spec = {"name": "astray", **clusters, "peer": peer, "tables": [table]}
        run = book.of(begin(book, spec, lambda name: pytest.fail(name), "tester"))
        assert "there is no HBase below /nothing" in texts(watch_once(run))
        assert state_of(run).name == "stuck"
    away = Cluster.model_validate(cluster_keys(source) | {"zookeeper": "127.0.0.1:1"})
    spec = {"name": "away", "source": away.model_dump(), "tables": ["t"]}
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"):
        begin(book, spec, lambda name: pytest.fail(name), "tester")
    recorded = ResolvedReplicateSpec.model_validate(spec | {"target": None}).as_recorded()
    gone = book.of(book.open_run("away", "tester", recorded, "tester", "replication").run_id)
    (trouble,) = watch_once(gone).troubles
    assert (trouble.event, "127.0.0.1:1" in trouble.text, state_of(gone).name) == ("unwatched", True, "failed")
