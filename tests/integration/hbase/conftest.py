"""A client of the source cluster, and tables that go away with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from walferry.embedded.cluster import MiniCluster
from walferry.errors import WalferryError
from walferry.formats.cells import cells_to_arrow, index_cells
from walferry.hbase.client import HBaseClient

MakeTable = Callable[..., str]


@pytest.fixture(scope="session")
def client(source: MiniCluster) -> Iterator[HBaseClient]:
    with HBaseClient(source.address) as client:
        yield client


@pytest.fixture
def make_table(client: HBaseClient) -> Iterator[MakeTable]:
    """Creates a table with a name of its own."""
    made = []

    def make(
        families: Mapping[str, Mapping[str, str]] | None = None, split_keys: Sequence[bytes] = (), prefix: str = ""
    ) -> str:
        name = f"{prefix}t{uuid4().hex[:8]}"
        client.create_table(name, families or {"f": {"VERSIONS": "100"}}, split_keys)
        made.append(name)
        return name

    yield make
    for name in made:
        try:
            if client.table_enabled(name):
                client.disable_table(name)
            client.delete_table(name)
        except WalferryError:
            pass  # the test deleted it


@pytest.fixture
def cells() -> Callable[[Iterable[bytes]], list[tuple[Any, ...]]]:
    """All cells of cell blocks: (row, family, qualifier, timestamp, type, value, tags)."""

    def read(blocks: Iterable[bytes]) -> list[tuple[Any, ...]]:
        batches = [cells_to_arrow(index_cells(np.frombuffer(block, np.uint8))) for block in blocks]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    return read
