"""Iceberg tables of a history in a catalogue on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from integration.ledger.conftest import postgresql as postgresql
from unit.streams.history.iceberg_tables import Lake, lake_in, race
from unit.streams.history.test_sink import put
from walferry.errors import TransientError


@pytest.fixture
def lake(postgresql: str, tmp_path: Path) -> Iterator[Lake]:
    url = make_url(postgresql).set(drivername="postgresql+psycopg2")
    with lake_in(tmp_path) as made:
        made.uri = url.render_as_string(hide_password=False)
        yield made
        for name in ("orders", "orders_events"):
            made.catalog().drop_table(f"shop.{name}")


def test_two_processes_that_add_the_same_commits_add_each_once(lake: Lake) -> None:
    race(lake)


def test_a_connection_that_was_cut_lets_the_stream_try_again(lake: Lake) -> None:
    sink = lake.opened()
    put(sink, 1)
    engine = create_engine(lake.uri)
    others = "pid != pg_backend_pid() AND datname IS NOT NULL"
    with engine.begin() as connection:
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
    engine.dispose()
    with pytest.raises(TransientError, match="the Iceberg catalogue of connection lake does not answer as it should"):
        put(sink, 2)
    put(lake.opened(), 3)
    assert lake.numbers() == [1, 2, 3]
