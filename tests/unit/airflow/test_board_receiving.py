"""What the board shows of a run to which a source replicates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from unit.airflow.board_ledger import EVIL
from unit.receive.two_clusters import KEYS
from unit.run.progress.received_ledger import OTHER, SERVER, come, receive, receiver, refuses
from walferry.airflow.board.app import create_app
from walferry.airflow.board.data import ROWS_PER_PAGE, Pages, overview, run_page
from walferry.airflow.board.ledger_cache import LedgerCache
from walferry.ledger import Ledger, RunLedger
from walferry.run.notes.left_out import leave_out
from walferry.run.progress.states import StateName

FIRST = Pages()
STATES: tuple[StateName, ...] = ("copying", "receiving", "idle", "refusing", "no receiver")


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as ledger:
        yield ledger


@pytest.fixture
def run(book: Ledger) -> RunLedger:
    return book.of(book.open_run("east", "kim", KEYS, "kim", "receive").run_id)


@pytest.fixture
def with_history(book: Ledger) -> RunLedger:
    keys = KEYS | {"receive": {"path": None, "history": "scan"}}
    return book.of(book.open_run("east", "kim", keys, "kim", "receive").run_id)


def page_of(run: RunLedger, pages: Pages = FIRST, *, rows: bool = True) -> dict[str, Any]:
    return run_page(run.whole, run.record, pages, rows=rows)


@pytest.mark.parametrize("name", STATES)
def test_each_state_has_its_page_and_its_line(request: pytest.FixtureRequest, book: Ledger, name: StateName) -> None:
    run: RunLedger = request.getfixturevalue("with_history" if name == "copying" else "run")
    receive(run, name)
    facts = page_of(run)
    assert (facts["run"]["state"], facts["run"]["kind"], facts["phases"], facts["gaps"]["files"]) == (
        name, "receive", [], 0,
    )  # fmt: skip
    (line,) = overview(book)["runs"]["rows"]
    assert (line["state"], line["tables"], "receiving" in line) == (name, 2, False)
    answer = TestClient(create_app(lambda: None, LedgerCache(book.url))).get("/runs/east")
    shown = {
        section: f'id="{section}"' in answer.text for section in ("processes-rows", "received-rows", "phases-rows")
    }
    assert (answer.status_code, shown) == (
        200, {"processes-rows": True, "received-rows": True, "phases-rows": False},
    )  # fmt: skip


def test_processes_that_serve_come_first_with_what_they_refuse_and_when_they_were_heard(run: RunLedger) -> None:
    run.received.beat(receiver("a.example,1,2", state="left"))
    run.received.beat(receiver("b.example,1,2", ago_s=61))
    run.received.beat(receiver(OTHER))
    run.received.beat(refuses(SERVER, why=EVIL))
    found = page_of(run)["receiving"]
    assert [(one["server"], one["state"]) for one in found["processes"]["rows"]] == [
        (SERVER, "serving"), (OTHER, "serving"), ("b.example,1,2", "gone"), ("a.example,1,2", "left"),
    ]  # fmt: skip
    first = found["processes"]["rows"][0]
    assert (first["tables"], first["calls"], first["refused"], first["last_refusal"]) == (("shop:orders",), 12, 2, EVIL)
    assert first["since_ms"] < first["last_refusal_ms"] < first["at_ms"]
    assert (found["serving"], found["refused"]) == (2, 2)


def test_each_table_has_what_came_of_it_also_one_of_which_nothing_came(run: RunLedger) -> None:
    come(run, late=1)
    come(run)
    leave_out(run, "shop:orders", 7)
    found = page_of(run)["receiving"]
    items, orders = found["tables"]["rows"]
    assert (items["table"], items["target"], items["entries"], items["newest_ms"]) == (
        "shop:items", "east:items", 0, None,
    )  # fmt: skip
    counts = ("entries", "cells", "bytes", "calls", "repeated", "late", "left_out")
    assert [orders[key] for key in counts] == [4, 12, 200, 2, 2, 1, 7]
    assert found["newest_ms"] == orders["newest_ms"]
    assert found["late"] == 1


def test_long_lists_are_paged_and_the_sums_are_of_all(book: Ledger) -> None:
    tables = [f"t{number:02}" for number in range(ROWS_PER_PAGE + 1)]
    run = book.of(book.open_run("east", "kim", KEYS | {"tables": tables}, "kim", "receive").run_id)
    for number in range(ROWS_PER_PAGE + 2):
        run.received.beat(receiver(f"h{number:02},1,2", refused=1))
    found = page_of(run, Pages(tables=1, processes=1))["receiving"]
    assert [one["table"] for one in found["tables"]["rows"]] == [tables[-1]]
    assert (len(found["processes"]["rows"]), found["serving"], found["refused"]) == (
        2, ROWS_PER_PAGE + 2, ROWS_PER_PAGE + 2,
    )  # fmt: skip
    answer = TestClient(create_app(lambda: None, LedgerCache(book.url))).get("/api/runs/east?processes=1&tables=1")
    assert answer.json()["receiving"]["processes"]["page"] == 1


def test_who_may_not_see_rows_sees_the_same_processes_and_tables_which_name_none(run: RunLedger) -> None:
    run.received.beat(refuses())
    come(run)
    hidden = page_of(run, rows=False)["receiving"]
    assert hidden == page_of(run)["receiving"]
    assert hidden["processes"]["rows"][0].keys() == {
        "server", "state", "since_ms", "at_ms", "tables", "calls", "refused", "held_bytes", "last_refusal",
        "last_refusal_ms",
    }  # fmt: skip
    assert hidden["tables"]["rows"][0].keys() == {
        "table", "target", "calls", "entries", "cells", "bytes", "repeated", "late", "left_out", "newest_ms",
        "last_call_ms", "history",
    }  # fmt: skip


def test_what_an_abort_has_left_is_named_until_it_is_removed(run: RunLedger) -> None:
    run.objects.plan("target", "sink", "/walferry/receive/east")
    assert page_of(run)["receiving"]["left"] == []
    run.end("aborted", "kim")
    assert page_of(run)["receiving"]["left"] == ["/walferry/receive/east"]
    run.objects.removed("target", "sink", "/walferry/receive/east")
    assert page_of(run)["receiving"]["left"] == []


def test_other_runs_have_none(book: Ledger) -> None:
    run = book.of(book.open_run("west", "kim", KEYS | {"name": "west"}, "kim").run_id)
    assert page_of(run)["receiving"] is None
