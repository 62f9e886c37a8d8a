from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.testclient import TestClient

from unit.airflow.board_ledger import TABLES, aborted, done, spec
from unit.migration.filled_ledger import compared
from unit.migration.pair_ledger import differs, one_pass
from walferry.airflow.board.app import HERE, REPAIR_DAG, NotLoggedInError, create_app
from walferry.airflow.board.hidden import HIDDEN
from walferry.airflow.board.ledger_cache import LedgerCache
from walferry.airflow.dags import hbase_repair
from walferry.ledger import Difference, Ledger, RangeComparison


def anybody() -> None:
    """Lets everybody in."""


def mounted(source: LedgerCache, guard: Callable[..., None] = anybody) -> TestClient:
    """The board below /walferry, as Airflow mounts it."""
    airflow = FastAPI()
    airflow.mount("/walferry", create_app(guard, source))
    return TestClient(airflow, follow_redirects=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    url = f"sqlite:///{tmp_path_factory.mktemp('board') / 'ledger.db'}"
    with Ledger.open(url, actor="tester") as ledger:
        aborted(ledger)
        done(ledger)
    return mounted(LedgerCache(url))


ROOT = Path(__file__).parents[3]
PAGES = ("/walferry/", "/walferry/runs/visits-1", "/walferry/runs/visits-1/report")
DATA = ("/walferry/api/runs", "/walferry/api/runs/visits-1", "/walferry/api/audit-check")
FILES = ("/walferry/static/run.js", "/walferry/static/board.css", "/walferry/static/plotly.min.js")


@pytest.mark.parametrize("path", PAGES + DATA + FILES)
def test_every_route_answers(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


def test_every_route_only_reads(client: TestClient) -> None:
    assert {method for route in client.app.routes[-1].app.routes for method in route.methods} == {"GET"}  # type: ignore[attr-defined]
    assert client.post("/walferry/api/runs").status_code == 405


@pytest.mark.parametrize("path", PAGES + DATA + FILES)
def test_every_route_is_behind_the_guard(url: str, path: str) -> None:
    def nobody() -> None:
        raise NotLoggedInError("Token Expired", login="/login?next=here", by_token=False)

    answer = mounted(LedgerCache(url), nobody).get(path)
    if path in PAGES:
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=here")
    else:
        assert answer.status_code == 401
        assert answer.json() == {
            "error": "not logged in (Token Expired): log in to Airflow",
            "login": "/login?next=here",
        }


def test_there_are_no_routes_beside_the_guarded_ones(client: TestClient) -> None:
    for path in ("docs", "redoc", "openapi.json"):
        assert client.get(f"/walferry/{path}").status_code == 404


def test_a_page_asked_for_with_a_bad_token_is_refused_in_one_line(url: str) -> None:
    def bad_token() -> None:
        raise NotLoggedInError("Invalid JWT token", login="/login", by_token=True)

    answer = mounted(LedgerCache(url), bad_token).get("/walferry/")
    assert answer.status_code == 401
    assert answer.json()["error"] == "not logged in (Invalid JWT token): log in to Airflow"


def test_a_user_without_the_right_is_told_so(url: str) -> None:
    def may_not() -> None:
        raise HTTPException(403, "Airflow does not let you read")

    client = mounted(LedgerCache(url), may_not)
    assert client.get("/walferry/api/runs").json() == {"error": "Airflow does not let you read"}
    page = client.get("/walferry/")
    assert page.status_code == 403
    assert "Airflow does not let you read" in page.text


def test_an_unknown_run_is_one_line(client: TestClient) -> None:
    answer = client.get("/walferry/api/runs/nope-7")
    assert answer.status_code == 404
    assert "knows no run 'nope-7'" in answer.json()["error"]
    page = client.get("/walferry/runs/nope-7")
    assert page.status_code == 404
    assert "knows no run" in page.text


def test_a_name_stands_for_its_newest_run(client: TestClient) -> None:
    assert client.get("/walferry/api/runs/visits").json()["run"]["run"] == "visits-1"


@pytest.mark.parametrize("query", ["page=-1", "page=x"])
def test_a_page_number_that_is_none_is_named(client: TestClient, query: str) -> None:
    answer = client.get(f"/walferry/api/runs?{query}")
    assert (answer.status_code, answer.json()) == (422, {"error": "page: give a page number, counted from 0"})


@pytest.mark.parametrize("name", ["nope.js", "..%2Fapp.py", "%2e%2e/app.py"])
def test_only_files_meant_for_browsers_are_given_out(client: TestClient, name: str) -> None:
    assert client.get(f"/walferry/static/{name}").status_code == 404


def test_no_ledger_is_one_line_and_none_is_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.db"
    client = mounted(LedgerCache(f"sqlite:///{path}"))
    answer = client.get("/walferry/api/runs")
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("there is no ledger at sqlite:///")
    assert "there is no ledger" in client.get("/walferry/runs/a").text
    assert not path.parent.exists()


@pytest.mark.parametrize("content", [b"", b"no database at all " * 100])
def test_a_file_that_is_no_ledger_is_one_line_and_stays_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    answer = mounted(LedgerCache(f"sqlite:///{path}")).get("/walferry/api/runs")
    assert answer.status_code == 503
    assert "Traceback" not in answer.text
    assert "ledger" in answer.json()["error"]
    assert b"runs" not in path.read_bytes()


def test_a_database_that_is_away_is_one_line_without_its_password() -> None:
    answer = mounted(LedgerCache("postgresql://me:secret@127.0.0.1:1/x")).get("/walferry/api/runs")
    assert answer.status_code == 503
    assert "did not answer" in answer.json()["error"]
    assert "secret" not in answer.text


def test_a_ledger_that_comes_later_or_anew_is_found(url: str, tmp_path: Path) -> None:
    client = mounted(LedgerCache(url))
    assert client.get("/walferry/api/runs").status_code == 503
    with Ledger.open(url, actor="tester") as ledger:
        aborted(ledger)
    assert client.get("/walferry/api/runs").json()["runs"]["total"] == 1
    for file in tmp_path.glob("ledger.db*"):
        file.rename(tmp_path / f"old-{file.name}")
    with Ledger.open(url, actor="tester"):
        pass
    assert client.get("/walferry/api/runs").json()["runs"]["total"] == 0


def test_the_ledger_is_asked_once_however_many_look(url: str) -> None:
    with Ledger.open(url, actor="tester"):
        pass
    source, asked = LedgerCache(url), []

    def work(_: Ledger) -> dict[str, int]:
        asked.append(1)
        return {"n": len(asked)}

    assert {source.kept("question", work) for _ in range(20)} == {b'{"n": 1}'}
    assert source.kept("another", work) == b'{"n": 2}'


def test_names_are_text_in_the_page(url: str) -> None:
    name = "<script>alert(1)</script>"
    with Ledger.open(url, actor="tester") as ledger:
        run = ledger.open_run(name, "tester", spec("x"), "tester")
    client = mounted(LedgerCache(url))
    assert "<script>alert" not in client.get("/walferry/runs/%3Cb%3Enope").text
    assert "<b>nope" not in client.get("/walferry/runs/%3Cb%3Enope").text
    assert run.name == name


def test_pages_may_load_from_their_own_server_only(client: TestClient) -> None:
    page = client.get("/walferry/runs/visits-1")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    for script in (HERE / "static").iterdir():
        assert "://" not in script.read_text(encoding="utf-8"), script
        assert "innerHTML" not in script.read_text(encoding="utf-8"), script


def test_pages_hold_below_a_base_path(url: str) -> None:
    with Ledger.open(url, actor="tester") as ledger:
        ledger.open_run("move", "tester", spec("move"), "tester")
    airflow = FastAPI(root_path="/airflow")
    airflow.mount("/walferry", create_app(anybody, LedgerCache(url)))
    client = TestClient(airflow, root_path="/airflow")
    assert 'href="/airflow/walferry/static/board.css"' in client.get("/airflow/walferry/").text
    assert 'data-repair="/airflow/dags/hbase_repair"' in client.get("/airflow/walferry/runs/move-1").text


def test_the_repair_of_a_table_is_a_link_to_airflows_page_of_its_dag(client: TestClient) -> None:
    assert 'data-repair="/dags/hbase_repair"' in client.get("/walferry/runs/visits-1").text
    assert hbase_repair().dag_id == REPAIR_DAG


def test_the_wheel_carries_pages_scripts_and_styles() -> None:
    from hatchling.builders.wheel import WheelBuilder

    names = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    files = [path for folder in ("templates", "static") for path in (HERE / folder).iterdir() if path.is_file()]
    assert files
    assert {f"walferry/airflow/board/{path.parent.name}/{path.name}" for path in files} <= names


def test_a_process_that_only_loads_plugins_loads_nothing_heavy() -> None:
    script = "import sys, walferry.airflow.board; print(sorted({'pyspark', 'numba', 'fastapi'} & sys.modules.keys()))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_report_is_what_the_command_prints(client: TestClient) -> None:
    answer = client.get("/walferry/runs/visits/report")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("Run visits-1: done")


def who_sees_rows(request: Request) -> None:
    request.state.sees_rows = True


@pytest.fixture
def secretive(url: str) -> LedgerCache:
    """A migration in which a row was accepted, and a pair: what differs in both has a row key and a value to hide."""
    row, detail = b"kept-key", "f:q at the source is kept-value"
    with Ledger.open(url, actor="tester") as ledger:
        moved = ledger.of(ledger.open_run("moved", "tester", spec("moved", TABLES), "tester").run_id)
        found = Difference("customers", row, "unexplained", detail, "fingerprint")
        region = RangeComparison("customers", "r1", b"", b"", 1, 1, "a", 1, 1, "b", {})
        moved.comparisons.record(compared("customers", 1), [region], [found])
        moved.comparisons.accept([found], "it is known", "kim")
        pair = ledger.of(ledger.open_run("shop", "pair", spec("shop"), "tester", "pair").run_id)
        one_pass(pair, replace(differs(row), detail=detail))
    return LedgerCache(url)


@pytest.mark.parametrize(
    ("path", "hides"),
    [
        ("/walferry/api/runs/moved-1", 3),  # the difference in two lists, and the line of the audit trail
        ("/walferry/runs/moved-1/report", 1),
        ("/walferry/api/runs/shop-1", 1),
        ("/walferry/api/runs", 0),
    ],
)
def test_rows_that_differ_are_shown_to_nobody_who_only_reads(secretive: LedgerCache, path: str, hides: int) -> None:
    seen = mounted(secretive, who_sees_rows).get(path).text
    for what in ("kept-value", "kept-key"):
        assert (what in seen) == bool(hides)
    reader = mounted(secretive).get(path).text  # after an answer with all of it
    assert "kept-" not in reader
    assert reader.count(HIDDEN) == hides


def test_data_docs_are_served_from_their_folder_and_from_nowhere_else(url: str, tmp_path: Path) -> None:
    site = tmp_path / "docs" / "local_site"
    (site / "static").mkdir(parents=True)
    (site / "index.html").write_text("the checks")
    (tmp_path / "docs" / "secret.html").write_text("not yours")
    with Ledger.open(url, actor="tester") as ledger:
        run = ledger.open_run("checked", "tester", spec("checked"), "tester").run_id
        pages = mounted(LedgerCache(url))
        assert pages.get(f"/walferry/runs/{run}/docs/index.html").status_code == 404
        ledger.of(run).phases.start("check_copy")
        ledger.of(run).phases.finish("check_copy", {"data_docs": str(site / "index.html")})
    assert pages.get(f"/walferry/runs/{run}/docs/index.html").text == "the checks"
    for path in (
        "static",
        "none.html",
        "..%2fsecret.html",
        "%2e%2e/secret.html",
        str(tmp_path / "docs" / "secret.html"),
    ):
        assert pages.get(f"/walferry/runs/{run}/docs/{path}").status_code == 404, path
