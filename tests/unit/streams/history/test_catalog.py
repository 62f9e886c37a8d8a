"""The connection of an Iceberg catalogue: whose properties are given on, and whose secrets are seen nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unit.streams.history.test_sink import OWNER
from walferry.errors import TransientError, UsageError
from walferry.run.given_spec import Connection
from walferry.storage import Local
from walferry.streams.history.catalog import TableNames, settings_of_connection
from walferry.streams.history.commits import Commits
from walferry.streams.history.iceberg import HistoryTables
from walferry.streams.history.iceberg_files import Folder
from walferry.streams.stream_spec import environment_secrets

SECRET = "hush/9"


def connection(login: str | None = None, password: str | None = None, **extra: Any) -> Connection:
    return Connection(None, None, login, password, extra)


def test_the_extra_has_pyicebergs_properties_and_the_name_that_the_catalogue_has_for_its_clients() -> None:
    found = settings_of_connection("lake", connection(uri="sqlite:////c.db", echo=True, pool_pre_ping="true"))
    assert (found.name, dict(found.properties)) == (
        "lake", {"uri": "sqlite:////c.db", "echo": "true", "pool_pre_ping": "true"},
    )  # fmt: skip
    assert settings_of_connection("lake", connection(type="glue", name="prod")).name == "prod"


def test_login_and_password_are_those_of_a_database_and_are_in_no_text() -> None:
    found = settings_of_connection("lake", connection("kim", SECRET, uri="postgresql+psycopg2://db:5433/lake"))
    assert found.properties["uri"] == "postgresql+psycopg2://kim:hush%2F9@db:5433/lake"
    assert "hush" not in repr(found)
    assert found.without_secrets(f"{SECRET} and hush%2F9 of kim") == "*** and *** of kim"
    token = settings_of_connection("lake", connection(uri="https://rest/v1", token=SECRET))
    assert token.without_secrets(f"no {SECRET}") == "no ***"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (connection(), "connection lake has no uri in its extra: give pyiceberg's properties of the catalogue"),
        (connection("kim", SECRET, type="glue"), "its uri is no database's, which login and password are for"),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(known: Connection, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        settings_of_connection("lake", known)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_database_that_is_away_may_come_back_and_its_password_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"uri": "postgresql+psycopg2://127.0.0.1:1/lake"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"login": "kim", "password": SECRET, "extra": extra}))
    settings = settings_of_connection("lake", environment_secrets("lake"))
    place = Folder(Local(), str(tmp_path), f"file://{tmp_path}")
    tables = HistoryTables(settings, place, OWNER, TableNames("n", "c", "e"), None)
    with pytest.raises(TransientError, match="the Iceberg catalogue of connection lake does not answer") as raised:
        tables.examine(Commits(Local(), str(tmp_path), OWNER, 1))
    tables.close()
    assert "hush" not in repr(raised.value)
    assert raised.value.__cause__ is None
