"""Work items in a real local Spark."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from walferry.errors import GapError, TransientError
from walferry.pipeline import retry_work
from walferry.request_meter import RequestRates, Service, counted, meter_of
from walferry.security import Kerberos, Security, handed, held_token
from walferry.security.handed import Purpose, WorkerLoginError
from walferry.security.held_token import HeldToken
from walferry.security.token import Token
from walferry.spark import fan_out as items
from walferry.spark.byte_counts import count_bytes
from walferry.spark.fan_out import WorkerLostError, fan_out
from walferry.spark.handing_over import with_new_tokens


def test_results_come_in_the_order_of_the_items_however_many_tasks_there_are(spark: SparkSession) -> None:
    def work(number: int) -> Iterator[str]:
        for copy in range(number % 3):
            yield f"{number}.{copy}"

    wanted = [f"{number}.{copy}" for number in range(7) for copy in range(number % 3)]
    for tasks in (None, 1, 3, 100):
        assert fan_out(spark, work, range(7), tasks, what="count") == wanted


def test_requests_of_the_workers_are_added_to_the_drivers(spark: SparkSession) -> None:
    meter = meter_of("somewhere/hbase", RequestRates())

    def work(number: int) -> list[int]:
        for _ in range(number):
            meter_of("somewhere/hbase", RequestRates()).request(Service.NAMENODE)
        return []

    meter.request(Service.NAMENODE)
    fan_out(spark, work, range(5), tasks=3, what="ask")
    fan_out(spark, work, range(3), what="ask")
    assert counted()["somewhere/hbase", Service.NAMENODE] == 1 + sum(range(5)) + sum(range(3))


KIM = Purpose("HBase at zk:2181/hbase", Security(Kerberos("kim@EXAMPLE.COM", "/none")))


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[Token]:
    """Those that this process, a driver, has made for KIM."""
    made: list[Token] = []

    def make() -> tuple[Token, float]:
        made.append(Token(f"{len(made)}".encode(), b"a secret", "kind", "service"))
        return made[-1], 3600.0

    monkeypatch.setattr(held_token, "_known", {})
    held_token.register(HeldToken(KIM, make))
    return made


def test_workers_have_the_drivers_tokens_and_work_is_repeated_once_with_new_ones(
    spark: SparkSession, tokens: list[Token]
) -> None:
    def work(good: int) -> list[bytes]:
        mine = handed.mine()
        assert mine is not None
        if int(mine.token(KIM).identifier) < good:
            raise handed.refused(KIM, mine.token(KIM), "Token has expired")
        return [mine.token(KIM).identifier]

    assert fan_out(spark, work, [0, 0], what="log in") == [b"0", b"0"]
    assert with_new_tokens(lambda: fan_out(spark, work, [1, 1], what="log in")) == [b"1", b"1"]
    assert len(tokens) == 2
    with pytest.raises(WorkerLoginError, match=r"does not take the token of a Spark worker: Token has expired"):
        with_new_tokens(lambda: fan_out(spark, work, [9], what="log in"))
    assert len(tokens) == 3
    assert handed.mine() is None


def test_a_task_gets_its_own_items_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    said = str(tmp_path / "said")

    def unpickle(number: int) -> int:
        with open(said, "a") as file:
            file.write(f"{number}\n")
        return number

    class Item:
        def __init__(self, number: int) -> None:
            self.number = number

        def __reduce__(self) -> tuple[Callable[[int], int], tuple[int]]:
            return unpickle, (self.number,)

    assert (
        len(fan_out(spark, lambda item: [str(item)], [Item(number) for number in range(9)], tasks=3, what="get")) == 9
    )
    assert sorted(map(int, Path(said).read_text().split())) == list(range(9))


def test_of_jobs_that_run_at_the_same_time_each_tells_of_its_own_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(items, "PROGRESS_SECONDS", 0.1)
    caplog.set_level(logging.INFO)

    def work(seconds: float) -> list[float]:
        time.sleep(seconds)
        return [seconds]

    jobs = [threading.Thread(target=fan_out, args=(spark, work, [1.0] * count), kwargs={"what": f"job of {count}"})
            for count in (2, 3)]  # fmt: skip
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    told = set(re.findall(r"(job of \d): \d of (\d) tasks", caplog.text))
    assert told == {("job of 2", "2"), ("job of 3", "3")}


def test_no_item_is_no_work(spark: SparkSession) -> None:
    assert fan_out(spark, lambda number: [number], [], what="nothing") == []


def test_an_error_of_ours_arrives_with_its_kind_and_facts(spark: SparkSession) -> None:
    def work(number: int) -> list[int]:
        if number == 2:
            raise GapError("bytes are missing", file="a.wal", start=3, end=9)
        return [number]

    with pytest.raises(GapError, match="bytes are missing") as caught:
        fan_out(spark, work, range(4), what="fail")
    assert (caught.value.file, caught.value.start, caught.value.end) == ("a.wal", 3, 9)


@pytest.fixture
def die_once(tmp_path: Path) -> Callable[[], None]:
    """Kills the process that calls it, as the kernel does when memory runs out, but only the first of them."""
    flag = tmp_path / "killed"

    def die() -> None:
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def test_a_job_whose_worker_is_killed_is_repeated(
    spark: SparkSession, die_once: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(number: int) -> list[int]:
        if number == 2:
            die_once()
        return [number]

    with pytest.raises(WorkerLostError, match=r"^add: Spark lost an executor or a Python worker \(Lost task"):
        fan_out(spark, work, range(4), what="add")
    (tmp_path / "killed").unlink()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    sums: list[int] = []
    retry_work(lambda: sums.append(sum(fan_out(spark, work, range(4), what="add"))))
    assert sums == [6]


def test_a_job_is_repeated_after_all_of_sparks_python_processes_were_killed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = fan_out(spark, lambda _: [os.getpid(), os.getppid()], [1, 2], what="ask")
    processes = [psutil.Process(pid) for pid in set(idle)]
    for process in processes:
        process.kill()
    _, left = psutil.wait_procs(processes, timeout=60)
    assert left == []
    monkeypatch.setattr(time, "sleep", lambda _: None)
    sums: list[int] = []
    retry_work(lambda: sums.append(sum(fan_out(spark, lambda number: [number], range(4), what="add"))))
    assert sums == [6]


def test_a_worker_that_is_killed_past_a_shuffle_is_lost_too(spark: SparkSession, die_once: Callable[[], None]) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        die_once()
        yield from batches

    numbers = spark.range(0, 10, 1, 3).repartition(2, "id").mapInArrow(work, "id long")
    with pytest.raises(WorkerLostError), items.job(spark, "add"):
        numbers.collect()


@pytest.mark.parametrize("says", ["ten is too many", "Python worker exited unexpectedly (ExecutorLostFailure)"])
def test_an_error_that_is_none_of_ours_stays_what_it_is_and_is_final(spark: SparkSession, says: str) -> None:
    def work(number: int) -> list[int]:
        raise ValueError(says)

    with pytest.raises(PythonException, match="ValueError"):
        fan_out(spark, work, [10], what="count")


def test_a_transient_error_of_ours_stays_transient(spark: SparkSession) -> None:
    def work(number: int) -> list[int]:
        raise TransientError("the region moved", region="r1")

    with pytest.raises(TransientError, match="the region moved") as caught:
        fan_out(spark, work, [1], what="fail")
    assert (type(caught.value), caught.value.region) == (TransientError, "r1")


def test_a_job_whose_jvm_is_killed_is_nothing_for_this_process_to_repeat(tmp_path: Path) -> None:
    """In a process of its own: a session does not come back."""
    answer = subprocess.run([sys.executable, "-c", KILLED_JVM], capture_output=True, text=True, cwd=tmp_path)
    assert answer.stdout.splitlines() == ["SparkGoneError", "1 attempt"]
    assert "Traceback" not in answer.stderr


KILLED_JVM = """
import threading, time
from walferry.request_meter import RequestRates, Service, counted, meter_of
from walferry.pipeline import retry_work
from walferry.process import set_up_logging
from walferry.spark import fan_out as items
from walferry.spark.session import open_session

set_up_logging()
items.PROGRESS_SECONDS = 0.2
spark = open_session("to be killed")
attempts = []

def work(number):
    time.sleep(5)
    return [number]

def add():
    attempts.append(1)
    items.fan_out(spark, work, [1], what="add")

threading.Timer(1.5, spark.sparkContext._gateway.proc.kill).start()
try:
    retry_work(add)
except Exception as error:
    print(type(error).__name__)
print(len(attempts), "attempt")
"""


def test_a_long_job_tells_how_far_it_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(number: int) -> list[int]:
        time.sleep(0.5)
        return [number]

    monkeypatch.setattr(items, "PROGRESS_SECONDS", 0.2)
    with caplog.at_level(logging.INFO):
        fan_out(spark, work, range(6), what="sleep")
    assert re.search(r"sleep: [1-5] of 6 tasks; Time: \d+s; ETA: \d+s", caplog.text)


def test_a_job_tells_its_bytes_while_its_first_task_still_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work(size: int) -> list[int]:
        for _ in range(4):
            count_bytes(size // 4)
            time.sleep(1.1)
        return [size]

    monkeypatch.setattr(items, "PROGRESS_SECONDS", 0.2)
    with caplog.at_level(logging.INFO):
        fan_out(spark, work, [4_000_000], what="read", sizes=[4_000_000])
    assert re.search(r"read: [123]\.0/4\.0MB (25|50|75)\.0%; Time: \d+s; ETA: \d+s", caplog.text)
