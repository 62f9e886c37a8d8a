"""The board's routes: two pages, their data as JSON, and the files that they need. All are read-only."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException as StarletteHTTPException

from walferry.airflow.board.data import Pages, check_audit, overview, run_page
from walferry.airflow.board.hidden import without_rows
from walferry.airflow.board.ledger_cache import LedgerCache
from walferry.errors import TransientError, WalferryError
from walferry.migration.report import render, summary

HERE = Path(__file__).parent
STATIC = {path.name: path for path in (HERE / "static").iterdir() if path.suffix in (".js", ".css")}
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""The pages load nothing from other hosts. Plotly writes its styles into the page."""
DOCS_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Data Docs have inline scripts and styles. They also refer to files on other hosts, which are not loaded."""
REPAIR_DAG = "hbase_repair"
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

Page = Annotated[int, Query(ge=0, le=10_000_000)]


class NotLoggedInError(WalferryError):
    """Nobody is logged in; facts `login` (the login page) and `by_token` (whether a Bearer token was given)."""


def create_app(guard: Callable[..., Any], source: LedgerCache | None = None) -> FastAPI:
    """The board as an app. `guard` is a dependency of every route and raises if the caller has no access; it sets
    `request.state.sees_rows` if the caller may see rows that differ."""
    ledgers = source or LedgerCache()
    # FastAPI would serve its docs and its schema without the guard, so both are switched off.
    app = FastAPI(title="walferry", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(guard)])
    _add_pages(app, ledgers)
    _add_data(app, ledgers)
    _add_files(app)
    _add_errors(app)
    return app


def _add_pages(app: FastAPI, source: LedgerCache) -> None:
    @app.get("/")
    def overview_page(request: Request) -> Response:
        """All runs."""
        return _page(request, "overview.html")

    @app.get("/runs/{run_id}")
    def page_of_a_run(request: Request, run_id: str) -> Response:
        """The run with this id, or the newest run of this name."""
        run = source.ledger().find(run_id)
        return _page(request, "run.html", run=run, repair=f"{_airflow(request)}/dags/{REPAIR_DAG}")

    @app.get("/runs/{run_id}/report")
    def report_of_a_run(request: Request, run_id: str) -> Response:
        """The report that `walferry report` prints."""
        ledger = source.ledger()
        report = summary(ledger.of(ledger.find(run_id).run_id))
        shown = report if _sees_rows(request) else without_rows(report)
        return Response(f"{render(shown)}\n", media_type="text/plain; charset=utf-8")

    @app.get("/runs/{run_id}/docs/{path:path}")
    def data_docs_of_a_run(run_id: str, path: str) -> Response:
        """A file of a run's Data Docs (Great Expectations); the API server needs access to the reports folder."""
        ledger = source.ledger()
        run = ledger.find(run_id)
        known = [ledger.of(run.run_id).phases.facts(phase) for phase in ("check_drain", "check_copy")]
        index = next((facts["data_docs"] for facts in known if facts), None)
        if index is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"run {run.run_id} has no Data Docs yet")
        site = Path(index).parent.resolve()
        file = (site / path).resolve()
        if not file.is_relative_to(site) or not file.is_file():
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no {path} in the Data Docs of run {run.run_id} here")
        return FileResponse(file, headers=PAGE_HEADERS | {"Content-Security-Policy": DOCS_POLICY})


def _add_data(app: FastAPI, source: LedgerCache) -> None:
    @app.get("/api/runs")
    def runs(page: Page = 0) -> Response:
        """The status of each run, newest first."""
        return _json(source.kept(("runs", page), lambda ledger: overview(ledger, page, source.old_run)))

    @app.get("/api/runs/{run_id}")
    def one_run(
        request: Request,
        run_id: str,
        tables: Page = 0,
        lanes: Page = 0,
        gaps: Page = 0,
        comparison: Page = 0,
        differences: Page = 0,
        quarantine: Page = 0,
        audit: Page = 0,
        passes: Page = 0,
        queues: Page = 0,
        findings: Page = 0,
        processes: Page = 0,
    ) -> Response:
        """Everything about one run; the numbers select the pages of its long lists, from 0."""
        pages = Pages(
            tables, lanes, gaps, comparison, differences, quarantine, audit, passes, queues, findings, processes
        )
        rows = _sees_rows(request)
        return _json(
            source.kept((run_id, pages, rows), lambda ledger: run_page(ledger, ledger.find(run_id), pages, rows=rows))
        )

    @app.get("/api/audit-check")
    def audit_check() -> Response:
        """Walk the audit chain of the whole ledger."""
        return _json(source.kept(("audit",), check_audit))


def _add_files(app: FastAPI) -> None:
    @cache
    def packed() -> bytes:
        return gzip.compress((resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes(), 6)

    @app.get("/static/plotly.min.js")
    def plotly_js() -> Response:
        """The chart library from its installed package, compressed once. Pages add its version to the URL."""
        headers = {"Cache-Control": "private, max-age=604800", "Content-Encoding": "gzip"}
        return Response(packed(), media_type="text/javascript", headers=headers)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        """One of our own scripts or style sheets."""
        if name not in STATIC:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no {name}")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return FileResponse(STATIC[name], media_type=kind, headers={"Cache-Control": "no-cache"})


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(NotLoggedInError)
    def not_logged_in(request: Request, error: NotLoggedInError) -> Response:
        if _wants_page(request) and not error.facts["by_token"]:
            return RedirectResponse(error.facts["login"], HTTPStatus.SEE_OTHER)
        answer = {"error": f"not logged in ({error}): log in to Airflow", "login": error.facts["login"]}
        return JSONResponse(answer, HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})

    @app.exception_handler(WalferryError)
    def failed(request: Request, error: WalferryError) -> Response:
        if isinstance(error, TransientError):
            return _error(request, HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        unknown_run = "run" in error.facts
        return _error(request, HTTPStatus.NOT_FOUND if unknown_run else HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    @app.exception_handler(StarletteHTTPException)
    def refused(request: Request, error: StarletteHTTPException) -> Response:
        return _error(request, HTTPStatus(error.status_code), str(error.detail))

    @app.exception_handler(RequestValidationError)
    def unusable(request: Request, error: RequestValidationError) -> Response:
        names = sorted({str(fault["loc"][-1]) for fault in error.errors()})
        return _error(
            request, HTTPStatus.UNPROCESSABLE_ENTITY, f"{', '.join(names)}: give a page number, counted from 0"
        )


def _wants_page(request: Request) -> bool:
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return not path.startswith(("/api/", "/static/"))


def _sees_rows(request: Request) -> bool:
    return bool(getattr(request.state, "sees_rows", False))


def _airflow(request: Request) -> str:
    """The path of Airflow's own pages."""
    return str(request.scope.get("app_root_path", ""))


def _error(request: Request, status: HTTPStatus, message: str) -> Response:
    if _wants_page(request):
        return _page(request, "error.html", status, title=status.phrase, message=message)
    return JSONResponse({"error": message}, status)


def _page(request: Request, template: str, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
    root = request.scope.get("root_path", "")
    return TEMPLATES.TemplateResponse(
        request, template, {"root": root, "plotly": version("plotly"), **values}, status, headers=PAGE_HEADERS
    )


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json", headers={"Cache-Control": "no-store"})


TEMPLATES = Jinja2Templates(HERE / "templates")

assert TEMPLATES.env.autoescape, "names in pages come from users"
