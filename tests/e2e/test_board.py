"""The board in a real Chromium, behind the login of the real Airflow. Its ledger is filled by hand, which is quick.

With WALFERRY_PICTURES=<folder> the pictures of docs/board.md are taken on the way.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from e2e.conftest import READER
from unit.airflow.board_ledger import EVIL, fill
from unit.migration.filled_ledger import CLUSTER
from unit.moments.keep_ledger import keep
from unit.moments.keep_ledger import opened as opened_keep
from unit.replication.watch_ledger import OTHER, STOP, Clusters, waiting
from unit.replication.watch_ledger import ROW as WAITING_ROW
from unit.replication.watch_ledger import opened as opened_watch
from unit.run.progress.received_ledger import OTHER as OTHER_RECEIVER
from unit.run.progress.received_ledger import come, receiver, refuses
from unit.streams.stream_ledger import follow as follow_stream
from unit.streams.stream_ledger import opened as opened_stream
from walferry.embedded.airflow import USERNAME
from walferry.embedded.environment import Environment
from walferry.ledger import Difference, Ledger, QuarantineItem
from walferry.run.heartbeat import beating
from walferry.run.notes.history import History
from walferry.settings import OwnTests

pytestmark = [pytest.mark.cluster, pytest.mark.airflow, pytest.mark.timeout(1200)]

WIDTH = 1280
LIVE_MS = 15_000
"""the pages ask every two seconds; a busy machine may take longer"""
PATHS = ("/", "/runs/orders-1", "/api/runs", "/api/runs/orders-1", "/api/audit-check", "/static/run.js",
         "/static/plotly.min.js")  # fmt: skip


@pytest.fixture(scope="module")
def book(environment: Environment) -> Iterator[Ledger]:
    """The environment's ledger with runs of all kinds."""
    with Ledger.open(environment.ledger, actor="airflow") as ledger:
        fill(ledger)
        stream = opened_stream(ledger)
        follow_stream(stream, 1)
        kept = opened_keep(ledger)
        keep(kept, 1)
        clusters = {"source": CLUSTER, "target": CLUSTER}
        spec = {"name": "restored", **clusters, "tables": [{"source": "orders", "target": "orders_before"}]}
        ledger.open_run("restored", "tester", spec, "tester", "restore")
        with (
            beating(ledger.of("orders-1"), "replay", "test"), beating(stream, "stream", "test"),
            beating(kept, "keep", "test"),
        ):  # fmt: skip
            yield ledger


def watch_replication(ledger: Ledger) -> None:
    """A run that watches HBase's own replication, which is stuck."""
    with pytest.MonkeyPatch.context() as patch:
        seen = Clusters(patch)
        seen.findings = [STOP]
        run = opened_watch(ledger)
        seen.seen(run, waiting(30), OTHER)
        seen.seen(run, waiting(301, f"table shop:orders refuses it: {EVIL}"), OTHER)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no Chromium: install the Debian package chromium")
    with sync_playwright() as playwright:
        # root, as in a container, has to do without the browser's sandbox
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        with playwright.chromium.launch(executable_path=path, args=arguments) as browser:
            yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": WIDTH, "height": 900}, color_scheme="light") as context:
        yield context


@pytest.fixture(scope="module")
def person(browser: Browser, environment: Environment, book: Ledger) -> Iterator[BrowserContext]:
    """The browser of a person who has logged in."""
    with browser.new_context(viewport={"width": WIDTH, "height": 900}, color_scheme="light") as context:
        with context.new_page() as page:
            log_in(page, environment, "/walferry/")
        yield context


@pytest.fixture
def page(person: BrowserContext, environment: Environment) -> Iterator[Page]:
    """A tab of that person. Whatever it asks of another host, or says to the console, is a failure."""
    page = person.new_page()
    faults: list[str] = []
    page.on("request", lambda request: faults.append(request.url) if elsewhere(request.url, environment) else None)
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    page.close()
    assert faults == []


def elsewhere(url: str, environment: Environment) -> bool:
    return not url.startswith((environment.airflow.url + "/", "data:", "blob:"))


def log_in(page: Page, environment: Environment, path: str, user: str = USERNAME) -> None:
    passwords = json.loads((environment.airflow.directory / "passwords.json").read_text())
    page.goto(environment.airflow.url + path)
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", passwords[user])
    page.press("input[name=password]", "Enter")
    page.wait_for_url(f"**{path}")


def open_run(page: Page, environment: Environment, run: str) -> None:
    page.goto(f"{environment.airflow.url}/walferry/runs/{run}")
    page.wait_for_selector("#audit-rows tr")
    page.wait_for_selector("#chart-lag .main-svg")


def picture(page: Page, name: str, **options: Any) -> None:
    folder = OwnTests.read().pictures
    if folder:
        page.wait_for_timeout(800)
        page.screenshot(path=folder / f"{name}.png", **options)


def expired_token(environment: Environment) -> str:
    """A token that was good until a minute ago."""
    with environment.airflow.client() as client:
        token = client.headers["Authorization"].removeprefix("Bearer ")
    claims = jwt.decode(token, options={"verify_signature": False}) | {"exp": int(time.time()) - 60}
    secret = json.loads((environment.airflow.directory / "secrets.json").read_text())["jwt_secret"]
    return jwt.encode(claims, secret, algorithm=jwt.get_unverified_header(token)["alg"])


# ---- who may look


@pytest.mark.parametrize("path", PATHS)
def test_nobody_sees_anything_without_a_login(environment: Environment, path: str) -> None:
    answer = httpx.get(f"{environment.airflow.url}/walferry{path}", timeout=60)
    if path.startswith(("/api", "/static")):
        assert answer.status_code == 401
        assert answer.json()["error"] == "not logged in (Not authenticated): log in to Airflow"
    else:
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/api/v2/auth/login?next=%2Fwalferry%2F")
        assert "orders" not in answer.text


def test_a_wrong_and_an_expired_token_are_one_clear_line(environment: Environment) -> None:
    lines = {}
    for name, token in (("wrong", "junk"), ("expired", expired_token(environment))):
        for send in ({"headers": {"Authorization": f"Bearer {token}"}}, {"cookies": {"_token": token}}):
            answer = httpx.get(f"{environment.airflow.url}/walferry/api/runs", timeout=60, **send)  # type: ignore[arg-type]
            assert answer.status_code == 401
            lines[name] = answer.json()["error"]
    assert lines == {
        "wrong": "not logged in (Invalid JWT token): log in to Airflow",
        "expired": "not logged in (Token Expired): log in to Airflow",
    }


def test_a_token_opens_pages_and_data(environment: Environment, book: Ledger) -> None:
    with environment.airflow.client() as client:
        for path in PATHS:
            assert client.get(f"/walferry{path}").status_code == 200, path
        assert client.post("/walferry/api/runs").status_code == 405
        unknown = client.get("/walferry/api/runs/nope-1")
        assert unknown.status_code == 404
        assert "knows no run 'nope-1'" in unknown.json()["error"]


# ---- what one sees


def test_the_overview_lists_all_runs_and_leads_to_each(page: Page, environment: Environment) -> None:
    page.goto(f"{environment.airflow.url}/walferry/")
    row = page.locator("#runs tbody tr", has_text="accounts-1")
    expect(row).to_contain_text("✗ gap")
    expect(row).to_contain_text("1 ▲")
    expect(page.locator("#runs tbody tr", has_text="visits-1")).to_contain_text("100 %")
    expect(page.locator("#runs tbody tr", has_text="trial-1")).to_contain_text("aborted")
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    picture(page, "overview", clip={"x": 0, "y": 0, "width": WIDTH, "height": 500})
    page.get_by_role("link", name="visits-1").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("visits-1 ✓ done", timeout=LIVE_MS)


def test_a_gap_stands_out_and_names_its_file(page: Page, environment: Environment) -> None:
    open_run(page, environment, "accounts-1")
    gap = page.locator("#lanes-rows .block.gap")
    expect(gap).to_have_count(1)
    expect(gap).to_have_text("gap")
    expect(page.locator("#lanes-rows tr").first).to_contain_text("rs3.old.example")
    height = "(block) => block.getBoundingClientRect().height"
    assert gap.evaluate(height) > page.locator("#lanes-rows .block.applied").first.evaluate(height)
    name = str(gap.get_attribute("aria-label"))
    assert "rs3.old.example,16020" in name
    expect(page.locator("#alarms")).to_contain_text("Gap in the log, rs3.old.example")
    expect(page.locator("#gaps-rows")).to_contain_text("missing: the file is gone from the source")
    expect(page.locator("#phases-rows tr[data-key=replay]")).to_contain_text("failed")
    page.evaluate("document.querySelector('#coverage').scrollIntoView()")
    picture(page, "coverage")


def test_a_quarantined_item_is_shown_as_text_whatever_it_says(page: Page, environment: Environment) -> None:
    open_run(page, environment, "orders-1")
    expect(page.locator("#quarantine-rows")).to_contain_text(EVIL)
    expect(page.locator("#state")).to_have_text("‖ held")
    expect(page.locator("#cause")).to_contain_text("1 item waits in quarantine")
    expect(page.locator("#next")).to_contain_text("walferry quarantine list orders")
    expect(page.locator("#lanes-rows .block.held")).to_have_count(1)
    expect(page.locator("#may-begin")).to_contain_text("Not now. Expected length of the write stop: ")
    expect(page.locator("#cutover-rows tr[data-key=quarantine]")).to_contain_text(EVIL)
    expect(page.locator("#cutover-rows tr[data-key=quarantine] .badge")).to_have_text("✗ no")
    expect(page.locator("#cutover-rows tr[data-key=pause] .badge")).to_have_text("✓ yes")
    assert page.locator("main d").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    picture(page, "run")


def test_a_finished_run_shows_every_region_and_its_whole_chain(page: Page, environment: Environment) -> None:
    open_run(page, environment, "visits-1")
    expect(page.locator("#comparison-rows tr")).to_have_count(8)
    expect(page.locator("#comparison-rows tr").first).to_contain_text("differs")
    expect(page.locator("#differences-rows")).to_contain_text(r"04\x00\xFE")
    expect(page.locator("#cutover")).to_be_hidden()
    expect(page.locator("#lanes-rows .block.verified")).to_have_count(2)
    page.get_by_role("button", name="Check the chain").click()
    expect(page.locator("#checked")).to_contain_text("intact")
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    page.evaluate("document.querySelector('#comparison').scrollIntoView()")
    picture(page, "comparison", clip={"x": 0, "y": 0, "width": WIDTH, "height": 640})


def test_a_table_with_rows_that_differ_leads_to_the_dag_that_repairs_them(
    page: Page, environment: Environment, book: Ledger
) -> None:
    of_run = book.of("orders-1").comparisons
    of_run.record_look("customers", [Difference("customers", EVIL.encode(), "unexplained", EVIL, "1f")])
    try:
        open_run(page, environment, "orders-1")
        link = page.locator("#tables-rows").get_by_role("link", name="repair…")
        expect(link).to_have_count(1)
        expect(link).to_have_attribute("href", "/dags/hbase_repair")
        expect(page.locator("#differences-rows")).to_contain_text(EVIL)
    finally:
        of_run.record_look("customers", [])


def test_a_stream_shows_topics_lag_and_rate_and_nothing_of_a_migration(page: Page, environment: Environment) -> None:
    open_run(page, environment, "changes-1")
    expect(page.locator("#tables-rows tr").first).to_have_text("ordersdefault.orders1.0 kB sent")
    expect(page.locator("#lanes-rows .block.applied")).to_have_text("sent")
    tiles = page.locator("#tiles")
    expect(tiles).to_contain_text("Edits sent70")
    expect(tiles).to_contain_text("a second")
    for name in ("Done", "Writes stopped for"):
        expect(tiles).not_to_contain_text(name)
    expect(page.locator("#comparison")).to_have_count(0)
    expect(page.locator("#cutover")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    picture(page, "stream")


def test_a_run_that_keeps_moments_shows_what_a_loss_costs_and_nothing_of_a_migration(
    page: Page, environment: Environment
) -> None:
    page.goto(f"{environment.airflow.url}/walferry/runs/moments-1")
    expect(page.locator("#tables-rows tr")).to_have_count(2, timeout=LIVE_MS)
    expect(page.locator("#tiles")).to_contain_text("of changes, if it were lost now")
    expect(page.locator("#alarms")).to_be_empty()
    expect(page.locator("#coverage")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    picture(page, "keep")


def test_a_restore_shows_its_new_table(page: Page, environment: Environment) -> None:
    page.goto(f"{environment.airflow.url}/walferry/runs/restored-1")
    expect(page.locator("#tables-rows tr")).to_contain_text("orders_before", timeout=LIVE_MS)
    expect(page.locator("#tiles")).to_contain_text("Done")
    expect(page.locator("#tiles")).not_to_contain_text("Lag")
    picture(page, "restore")


def test_replication_that_is_stuck_shows_what_waits_and_why_and_nothing_of_a_migration(
    page: Page, environment: Environment, book: Ledger
) -> None:
    watch_replication(book)  # here: a look is too old after three minutes
    page.goto(f"{environment.airflow.url}/walferry/runs/east-1")
    expect(page.locator("#state")).to_have_text("✗ stuck", timeout=LIVE_MS)
    expect(page.locator("#tiles")).to_contain_text("Settings that stop edits1 ▲")
    worst = page.locator("#queues-rows tr").first
    expect(worst).to_contain_text("stuck or slow")
    expect(worst).to_contain_text(f"row '{WAITING_ROW}' of shop:orders, family d")
    expect(worst).to_contain_text(EVIL)
    expect(page.locator("#queues-rows tr")).to_have_count(2)
    expect(page.locator("#findings-rows tr").first).to_contain_text("shop:orders")
    expect(page.locator("#peers-age svg").first).to_be_visible(timeout=LIVE_MS)
    for section in ("#phases", "#tables", "#coverage", "#comparison", "#quarantine"):
        expect(page.locator(section)).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    picture(page, "replication")


def test_receivers_that_refuse_show_why_and_what_came_of_each_table(
    page: Page, environment: Environment, book: Ledger
) -> None:
    spec = {
        "name": "west", "source": CLUSTER, "target": CLUSTER, "tables": ["shop:orders", "shop:items"],
        "receive": {"path": None, "history": "scan"},
    }  # fmt: skip
    run = book.of(book.open_run("west", "tester", spec, "tester", "receive").run_id)
    come(run, late=1)
    History("east", 7, 0, (), 3, 10, 2_000_000, 60.0).keep(run, "shop:orders")
    run.received.beat(receiver(ago_s=70))
    run.received.beat(refuses(OTHER_RECEIVER, why=EVIL))  # here: a process is gone after a minute
    page.goto(f"{environment.airflow.url}/walferry/runs/west-1")
    expect(page.locator("#state")).to_have_text("✗ refusing", timeout=LIVE_MS)
    expect(page.locator("#tiles")).to_contain_text("Processes1and 1 that ended or are gone")
    first, second = page.locator("#processes-rows tr").all()
    expect(first).to_contain_text("east-2.example:16040")
    expect(first).to_contain_text(EVIL)
    expect(second).to_contain_text("gone")
    expect(page.locator("#received-rows tr")).to_have_count(2)
    expect(page.locator("#received-rows tr").first).to_contain_text("what it has already is not copied yet")
    expect(page.locator("#received-rows tr").last).to_contain_text("shop:orders")
    expect(page.locator("#received-rows tr").last).to_contain_text("what it had already is copied, 10 cells, 2.0 MB")
    for section in ("#phases", "#coverage", "#comparison", "#quarantine"):
        expect(page.locator(section)).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    picture(page, "receive")


def test_the_login_leads_back_to_a_page_that_knows_no_such_run(
    context: BrowserContext, environment: Environment, book: Ledger
) -> None:
    page = context.new_page()
    log_in(page, environment, "/walferry/runs/nope-1")
    expect(page.locator("main")).to_contain_text("knows no run 'nope-1'")
    expect(page.get_by_role("link", name="Migrations")).to_be_visible()


def test_changes_show_up_without_a_reload_and_leave_focus_and_place(
    page: Page, environment: Environment, book: Ledger
) -> None:
    open_run(page, environment, "orders-1")
    block = page.locator("#lanes-rows .block.held")
    block.focus()
    top = "document.activeElement.getBoundingClientRect().top"
    page.evaluate("window.before = 1; scrollTo(0, 700)")
    before = page.evaluate(top)
    held = book.of("orders-1").quarantine.items("held")
    book.of("orders-1").quarantine.put(
        [QuarantineItem(held[0].file, 9, 12, "customers", "r9", 5, "another one", b"\x01")]
    )
    book.set_paused("orders-1", True, "kim", "to see it")
    try:
        expect(page.locator("#quarantine-rows")).to_contain_text("another one", timeout=LIVE_MS)
        expect(page.locator("#state")).to_have_text("‖ paused", timeout=LIVE_MS)
        expect(page.locator("#alarms")).to_contain_text("2 items wait in quarantine")
        expect(page.locator("#status")).to_contain_text("orders-1 is paused")
        expect(page.locator("#audit-rows tr").first).to_contain_text("pause run")
        assert page.evaluate("window.before") == 1
        assert page.evaluate("document.activeElement.classList.contains('held')")
        assert page.evaluate(top) == pytest.approx(before, abs=3)  # a new line above does not push it away
    finally:
        book.set_paused("orders-1", False, "kim")
        book.of("orders-1").quarantine.release(2, "accept", "it was a test", "kim")


def test_everything_can_be_reached_by_the_keyboard(page: Page, environment: Environment) -> None:
    open_run(page, environment, "orders-1")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#lanes-rows') !== null"):
            break
    seen = [page.locator("#block").text_content()]
    for key in ("ArrowRight", "ArrowDown", "End"):
        page.keyboard.press(key)
        seen.append(page.locator("#block").text_content())
    assert len(set(seen)) == 4, seen
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Tab")  # one stop for all lanes
    assert page.evaluate("document.activeElement.closest('#lanes-rows') === null")
    before = page.locator("#audit-rows tr").first.text_content()
    page.locator("#audit-pages button").last.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#audit-rows tr").first).not_to_have_text(str(before))
    expect(page.locator("#audit-pages button").last).to_be_focused()


def test_no_table_is_wider_than_its_place_and_every_table_has_heads(page: Page, environment: Environment) -> None:
    for run in ("orders-1", "accounts-1", "visits-1"):
        open_run(page, environment, run)
        wide = "[...document.querySelectorAll('.wide')].filter((box) => box.scrollWidth > box.clientWidth).length"
        assert page.evaluate(wide) == 0, run
        assert page.evaluate("document.querySelectorAll('th:not([scope])').length") == 0


def test_a_login_that_has_ended_is_said_and_leads_back(
    context: BrowserContext, environment: Environment, book: Ledger
) -> None:
    page = context.new_page()
    log_in(page, environment, "/walferry/")
    page.wait_for_selector("#runs tbody tr")
    context.clear_cookies()
    expect(page.locator("#trouble")).to_contain_text("Your login has expired", timeout=LIVE_MS)
    expect(page.locator("#runs tbody tr").first).to_be_visible()  # what was known stays
    page.get_by_role("link", name="Log in again").click()
    page.wait_for_selector("input[name=password]")


def test_who_only_reads_in_airflow_sees_no_row_that_differs(
    context: BrowserContext, environment: Environment, book: Ledger
) -> None:
    page = context.new_page()
    log_in(page, environment, "/walferry/", READER)
    page.goto(f"{environment.airflow.url}/walferry/runs/visits-1")
    row = page.locator("#differences-rows tr").first
    expect(row).to_contain_text("hidden: Airflow does not let you trigger the DAG hbase_migrate")
    expect(row).to_contain_text("history-dependent")
    assert "4 versions" not in page.content()
    page.goto(f"{environment.airflow.url}/walferry/runs/visits-1/report")
    assert "hidden" in page.content()
    assert "4 versions" not in page.content()
    watch_replication(book)
    page.goto(f"{environment.airflow.url}/walferry/runs/east-1")
    expect(page.locator("#queues-rows tr").first).to_contain_text("row '(hidden)' of shop:orders", timeout=LIVE_MS)
    assert WAITING_ROW not in page.content()
    dag_runs = f"{environment.airflow.url}/api/v2/dags/hbase_migrate/dagRuns"
    assert page.request.post(dag_runs, data={"logical_date": None}).status == 403


def test_airflows_navigation_leads_to_the_board(
    context: BrowserContext, environment: Environment, book: Ledger
) -> None:
    page = context.new_page()
    log_in(page, environment, "/")
    page.get_by_text("Migrations").click()
    board = page.frame_locator("iframe")
    board.get_by_role("link", name="orders-1").click()
    expect(board.get_by_role("heading", level=1)).to_contain_text("orders-1")
    expect(board.locator("#lanes-rows .block.held")).to_have_count(1, timeout=LIVE_MS)
    picture(page, "airflow")
