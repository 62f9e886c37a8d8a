"""A folder as the destination of a stream: examined without a change, and refused if it is not the stream's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from unit.streams.test_stream_spec import HISTORY, unknown
from walferry.errors import UsageError
from walferry.storage import Local
from walferry.streams.destination import examine_destination
from walferry.streams.history.commits import Owner
from walferry.streams.history.sink import HistorySink, Limits
from walferry.streams.stream_spec import ResolvedStreamSpec, environment_secrets, parse_stream_spec, resolve_stream


def spec_of(folder: Path) -> ResolvedStreamSpec:
    return resolve_stream(parse_stream_spec(HISTORY | {"parquet": {"folder": f"{folder}/"}}, origin="x"), unknown)


def test_a_folder_is_examined_without_kafkas_client_and_without_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    folder = tmp_path / "history"
    found = examine_destination(spec_of(folder), "c", environment_secrets)
    assert found == {"folder": f"{folder}/", "commits": 0}
    assert not folder.exists()
    HistorySink.open(Local(), str(folder), Owner("c", "changes"), 1, Limits(1, 1))
    assert examine_destination(spec_of(folder), "c", environment_secrets)["commits"] == 1


def test_iceberg_tables_are_examined_too_and_need_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"extra": {"uri": f"sqlite:///{tmp_path}/c.db"}}))
    parquet = {"folder": str(tmp_path / "history"), "iceberg": {"namespace": "shop"}}
    spec = resolve_stream(parse_stream_spec(HISTORY | {"parquet": parquet}, origin="x"), unknown)
    found = examine_destination(spec, "c", environment_secrets)
    assert found["iceberg"] == {"shop.changes": None, "shop.changes_events": None}
    assert not (tmp_path / "history").exists()
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    monkeypatch.delitem(sys.modules, "walferry.streams.history.iceberg")
    with pytest.raises(UsageError, match=r"pyiceberg\.catalog is not installed: install walferry with its extra"):
        examine_destination(spec, "c", environment_secrets)


def test_a_folder_of_another_cluster_is_refused_before_the_stream_begins(tmp_path: Path) -> None:
    HistorySink.open(Local(), str(tmp_path), Owner("c", "changes"), 1, Limits(1, 1))
    with pytest.raises(UsageError, match="it belongs to stream changes of cluster c"):
        examine_destination(spec_of(tmp_path), "other", environment_secrets)
