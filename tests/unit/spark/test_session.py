"""A JVM ends with the Python that started it, whatever ended that."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from unit.spark_stand_in import SPARK
from walferry.errors import UsageError
from walferry.spark.session import REDACTED, LateSession, session_for
from walferry.wal.keys import KEY_HEX, KEY_STORE

STARTER = """
import subprocess, sys, time
from pathlib import Path
from walferry.spark import session
session.START_GRACE_S = 1
tell = session.die_together(Path(sys.argv[1]))
java = subprocess.Popen(["sleep", "60"], start_new_session=True)
if sys.argv[2] != "killed early":
    tell(java.pid)
print(java.pid, flush=True)
if sys.argv[2] != "ended":
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_a_jvm_does_not_outlive_a_kill_of_its_python_and_ends_by_itself_after_an_orderly_end(
    tmp_path: Path, end: str
) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    command = [sys.executable, "-c", STARTER, str(folder), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as python:
        assert python.stdout is not None
        java = psutil.Process(int(python.stdout.readline()))
        if end == "killed":
            python.send_signal(signal.SIGKILL)
            java.wait(timeout=10)
        else:
            python.wait(timeout=30)
            time.sleep(0.3)
            assert java.is_running()  # it has its own way to end, in order
            java.kill()
    assert is_removed(folder)


def is_removed(folder: Path) -> bool:
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not folder.exists()


def test_the_folder_of_a_jvm_goes_even_if_its_python_was_killed_while_the_jvm_started(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    command = [sys.executable, "-c", STARTER, str(folder), "killed early"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as python:
        assert python.stdout is not None
        java = psutil.Process(int(python.stdout.readline()))
        python.send_signal(signal.SIGKILL)
    assert is_removed(folder)
    java.kill()


def test_a_jvm_that_ends_while_it_starts_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = """
import os
os.environ["JAVA_HOME"] = "/nowhere"  # what it starts ends at once
from walferry.spark.fan_out import SparkGoneError
from walferry.spark.session import open_session
try:
    open_session("test", jvm=["-version"])
except SparkGoneError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.startswith("Spark did not start: its JVM has ended (")
    assert all(is_removed(folder) for folder in tmp_path.iterdir())


@pytest.mark.parametrize("name", [KEY_HEX, KEY_STORE])
def test_sparks_page_does_not_show_the_keys_of_encrypted_logs(name: str) -> None:
    assert re.search(REDACTED, f"spark.executorEnv.{name}")
    assert not re.search(REDACTED, "spark.executorEnv.PYTHONSAFEPATH")


def test_a_session_that_was_begun_is_opened_once_and_beside_what_comes_before_it_is_needed() -> None:
    go_on, opened = threading.Event(), list[str]()

    def open_it() -> SparkSession:
        assert go_on.wait(10)
        opened.append(threading.current_thread().name)
        return SPARK

    session = LateSession(open_it)
    session.begin()
    session.begin()
    go_on.set()
    assert session() is session() is SPARK
    assert opened == ["open Spark"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_session_that_cannot_be_opened_raises_why_where_it_is_needed(begun: bool) -> None:
    def open_it() -> SparkSession:
        raise UsageError("PySpark is broken")

    session = LateSession(open_it)
    if begun:
        session.begin()
    with pytest.raises(UsageError, match="PySpark is broken"):
        session()


@pytest.mark.parametrize(
    ("size", "submitted", "opened", "used"), [(9, False, 1, True), (8, False, 0, False), (8, True, 1, False)]
)
def test_what_is_small_is_done_without_spark_which_is_opened_only_where_spark_submit_must_see_it(
    size: int, submitted: bool, opened: int, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    calls: list[int] = []

    def open_it() -> SparkSession:
        calls.append(1)
        return SPARK

    assert (session_for(open_it, size, 8) is SPARK) is used
    assert len(calls) == opened
