"""What the board shows of a run that watches HBase's own replication."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from unit.replication.watch_ledger import (
    IDLE,
    LOST_CANARY,
    OTHER,
    ROW,
    SERVER,
    STATES,
    STOP,
    Clusters,
    brought_to,
    opened,
    peer,
    waiting,
)
from unit.replication.watch_ledger import clusters as clusters
from walferry.airflow.board.app import create_app
from walferry.airflow.board.data import Pages, overview, run_page
from walferry.airflow.board.hidden import ROW as HIDDEN_ROW
from walferry.airflow.board.ledger_cache import LedgerCache
from walferry.airflow.board.replication import MOST_POINTS
from walferry.clock import now_ms
from walferry.ledger import Ledger, PeerLook
from walferry.run.progress.states import StateName


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield ledger


FIRST = Pages()


def page_of(book: Ledger, pages: Pages = FIRST, *, rows: bool = True) -> dict[str, Any]:
    return run_page(book, book.find("east"), pages, rows=rows)


@pytest.mark.parametrize("name", STATES)
def test_each_state_has_its_page_and_its_line(book: Ledger, clusters: Clusters, name: StateName) -> None:
    brought_to(opened(book), name, clusters)
    facts = page_of(book)
    assert (facts["run"]["state"], facts["run"]["kind"], facts["phases"]) == (name, "replication", [])
    (line,) = overview(book)["runs"]["rows"]
    assert (line["state"], line["tables"], line["gaps"]) == (name, 0, 0)
    answer = TestClient(create_app(lambda: None, LedgerCache(book.url))).get("/runs/east")
    assert (answer.status_code, 'id="queues-rows"' in answer.text, 'id="phases-rows"' in answer.text) == (
        200, True, False,
    )  # fmt: skip


def test_a_page_has_the_peers_their_queues_and_what_the_settings_stop(book: Ledger, clusters: Clusters) -> None:
    clusters.findings, clusters.flown = [STOP], [LOST_CANARY]
    run = opened(book, canary=True)
    clusters.seen(run, waiting(301, "table shop:orders is missing at the sink"), OTHER)
    found = page_of(book)["replication"]
    (shown,) = found["peers"]
    assert (shown["peer"], shown["leads_to"], shown["replicates"], shown["all_queues"]) == (
        "east", "zk:2181/hbase", "all tables", 2,
    )  # fmt: skip
    assert shown["summary"].startswith("1 of 2 queues stuck or slow")
    assert [(q["place"], q["word"], q["age_ms"], q["causes"]) for q in found["queues"]["rows"]] == [
        (SERVER, "STUCK OR SLOW", 301_000, ["table shop:orders is missing at the sink"]), ("rs2,16020,2", "", None, []),
    ]  # fmt: skip
    assert (found["findings"]["stops"], found["findings"]["rows"][0]["subject"]) == (1, "shop:orders")
    assert [(row["server"], row["seconds"]) for row in found["canary"]["rows"]] == [
        ("rs1:16020", 1.5),
        ("rs2:16020", None),
    ]
    assert page_of(book, Pages(queues=1))["replication"]["queues"]["rows"] == []


def test_who_may_not_see_rows_sees_the_place_of_what_waits_only(book: Ledger, clusters: Clusters) -> None:
    clusters.seen(opened(book), waiting(301))
    shown = page_of(book)["replication"]["queues"]["rows"][0]["oldest"]
    hidden = page_of(book, rows=False)["replication"]["queues"]["rows"][0]["oldest"]
    assert (shown["row"], hidden["row"]) == (ROW, HIDDEN_ROW)
    assert {**shown, "row": ""} == {**hidden, "row": ""}
    assert ROW not in json.dumps(page_of(book, rows=False), default=str)


def test_of_very_many_queues_the_worst_are_kept_and_the_rest_is_counted(book: Ledger, clusters: Clusters) -> None:
    clusters.peers = [peer(waiting(301), *[IDLE] * 199)]
    clusters.seen(opened(book))
    queues = page_of(book)["replication"]["queues"]
    assert (queues["total"], queues["not_listed"], queues["rows"][0]["word"]) == (100, 100, "STUCK OR SLOW")


def test_the_trend_has_the_last_day_of_each_peer_and_its_worst_moments(book: Ledger, clusters: Clusters) -> None:
    run, now = opened(book), now_ms()
    clusters.seen(run)
    day = [PeerLook("east", now - 60_000 * n, 90_000 if n == 700 else 0, n, 0, 0, 0, 0) for n in range(1, 2000)]
    run.peer_looks.record(day)
    run.peer_looks.record([replace(day[0], peer="west", oldest_age_ms=None)])
    east, west = page_of(book)["replication"]["trend"]
    assert len(east["at_ms"]) <= MOST_POINTS
    assert min(east["at_ms"]) > now - 86_400_000
    assert (max(east["seconds"]), west["seconds"]) == (90.0, [None])


def test_other_runs_have_none(book: Ledger) -> None:
    cluster = {"zookeeper": "zk:2181", "webhdfs": "http://nn:9870", "rootdir": "/hbase"}
    book.open_run("east", "me", {"source": cluster, "tables": []}, "me", "watch")
    assert page_of(book)["replication"] is None
