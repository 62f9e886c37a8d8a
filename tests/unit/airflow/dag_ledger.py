"""The ledger of tasks that are called by hand, and the connection of their source, at which nobody answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from walferry.ledger import Ledger
from walferry.process import open_ledger

HBASE = {
    "conn_type": "hbase", "host": "127.0.0.1", "port": 1,
    "extra": {"webhdfs": "http://127.0.0.1:1", "rootdir": "hdfs://127.0.0.1:1/hbase"},
}  # fmt: skip


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("WALFERRY_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("AIRFLOW_CONN_HBASE_SOURCE", json.dumps(HBASE))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "host": "127.0.0.1"}))
    with open_ledger(actor="test") as ledger:
        yield ledger
