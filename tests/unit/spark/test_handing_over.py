"""What a task does beside its work."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from walferry.security import handed
from walferry.spark import handing_over


def test_what_a_worker_warns_of_has_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the lines of a command, all of which have one."""
    monkeypatch.setattr(handing_over, "_accumulator", lambda _: SimpleNamespace(add=lambda counts: None))
    monkeypatch.setattr(logging.root, "handlers", [])  # nobody has set up logging in a worker
    monkeypatch.setattr(handed, "_mine", None)  # which this process is only here

    def work(numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            logging.getLogger("walferry.apply").warning("row %d may be lost", number)
            yield number

    spark: Any = SimpleNamespace(sparkContext=None)
    assert list(handing_over.handing_over(spark, work)([1, 2])) == [1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "TIME ", line) for line in lines] == [
        "TIME row 1 may be lost", "TIME row 2 may be lost",
    ]  # fmt: skip
