"""A server of the RPC inside TLS, and what its clients show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpc_serving import Served, echo, serving
from unit.hbase.tls_client import ADDRESS
from walferry.embedded.certificates import Authority
from walferry.security import Tls
from walferry.security.accepting_tls import ServerTls


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def ours(authority: Authority) -> ServerTls:
    """Demands certificates of its clients."""
    made = authority.issue("server", ADDRESS)
    return ServerTls(str(made.certificate), str(made.key), str(authority.bundle))


@pytest.fixture(scope="module")
def mine(authority: Authority) -> Tls:
    """A client's."""
    made = authority.issue("client")
    return Tls(str(authority.bundle), str(made.certificate), str(made.key), rpc=True)


@pytest.fixture(scope="module")
def shared(ours: ServerTls) -> Iterator[Served]:
    """One server for all examples."""
    with serving(echo, tls=ours) as served:
        yield served
