"""New ledgers at the cost of a copied file: most tests make one, and a hundred statements of schema each time."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from walferry.ledger import Ledger
from walferry.ledger.database import Database


@pytest.fixture(scope="session")
def new_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that nobody has written to."""
    path = tmp_path_factory.mktemp("ledger") / "new.db"
    Ledger.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture(autouse=True)
def quick_ledgers(new_ledger: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a test creates as its ledger is a copy; but the ledger's own tests see how it comes to be."""
    if request.path.parent.name == "ledger":
        return
    migrate = Database._migrate

    def copy(self: Database, create: bool) -> None:
        url = self._engine.url
        if create and url.get_backend_name() == "sqlite" and not (path := Path(str(url.database))).exists():
            mine = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
            shutil.copyfile(new_ledger, mine)
            with suppress(FileExistsError):  # another thread was faster
                os.link(mine, path)
            mine.unlink()
        migrate(self, create)

    monkeypatch.setattr(Database, "_migrate", copy)


@pytest.fixture
def quick_data_docs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing their pages takes as long as all else that a gate does, and reading the variables of a configuration
    that has none a fifth of the rest."""
    if "data_docs" not in request.node.name:
        context = "great_expectations.data_context.data_context.abstract_data_context.AbstractDataContext"
        monkeypatch.setattr(f"{context}.build_data_docs", lambda *_, **__: {})
        variables = "great_expectations.core.config_provider._ConfigurationVariablesConfigurationProvider"
        monkeypatch.setattr(f"{variables}.get_values", lambda _: {})
