"""A pytest plugin: adds a line to the file that WALFERRY_TESTS_OUTCOME names, when a session ends (`again.py`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

OUTCOME = "WALFERRY_TESTS_OUTCOME"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    told = os.environ.get(OUTCOME)
    if told is None or hasattr(
        session.config, "workerinput"
    ):  # a worker of pytest-xdist tells the session's own process
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reports = [report for kind in ("failed", "error") for report in reporter.stats.get(kind, ())]
    failed: dict[str, float] = {}  # by name, when it was known, in seconds since 1970; 0 where it ran no test
    for report in sorted(reports, key=lambda one: one.nodeid):
        failed.setdefault(report.nodeid, getattr(report, "stop", 0.0))
    passed = len(reporter.stats.get("passed", ()))
    with Path(told).open("a") as file:
        file.write(json.dumps({"exit": int(exitstatus), "passed": passed, "failed": failed}) + "\n")
