"""Fixtures that boot real servers once a session, when the first test asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from walferry.embedded.cluster import Cluster, Ports, boot, shut_down


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    """Source and target, booted side by side; the source has a second region server of its own process."""
    folder: Path = tmp_path_factory.mktemp("clusters")
    source = Cluster(folder / "source", Ports.free(region_servers=2))
    target = Cluster(folder / "target", Ports.free(region_servers=1))
    boot(source, target)
    yield source, target
    shut_down(source, target)


@pytest.fixture(scope="session")
def source(clusters: tuple[Cluster, Cluster]) -> Cluster:
    """The cluster that tables are moved from; shared by all tests, so each uses table names of its own."""
    return clusters[0]


@pytest.fixture(scope="session")
def target(clusters: tuple[Cluster, Cluster]) -> Cluster:
    """The cluster that tables are moved to; shared by all tests, so each uses table names of its own."""
    return clusters[1]
