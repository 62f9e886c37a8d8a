"""A ledger whose URL asks for `sslmode=verify-full`."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from integration.ledger.tls_front import tls_front
from walferry.embedded.certificates import Authority
from walferry.errors import UsageError
from walferry.ledger import Ledger


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def through(ledger_url: str, port: int, **query: str) -> str:
    """The same ledger by TCP."""
    url = make_url(ledger_url).set(host="localhost", port=port).difference_update_query(["host"])
    return url.update_query_dict({"sslmode": "verify-full", **query}).render_as_string(hide_password=False)


def socket_of(ledger_url: str) -> Path:
    return Path(str(make_url(ledger_url).query["host"])) / ".s.PGSQL.5432"


def test_the_ledger_is_reached_by_tls_if_its_url_asks_for_that(ledger_url: str, authority: Authority) -> None:
    with tls_front(socket_of(ledger_url), authority.issue("postgresql", host="localhost")) as port:
        url = through(ledger_url, port, sslrootcert=str(authority.bundle))
        with Ledger.open(url, actor="tester") as ledger:
            assert list(ledger.runs()) == []


@pytest.mark.parametrize("host", ["other.example", "localhost"])
def test_a_server_that_is_not_the_ledgers_is_refused_for_good(
    ledger_url: str, authority: Authority, tmp_path: Path, host: str
) -> None:
    """Its certificate is for another host, or of another authority."""
    strangers = Authority(tmp_path, "strangers")
    issuer = authority if host == "other.example" else strangers
    with tls_front(socket_of(ledger_url), issuer.issue("postgresql", host=host)) as port:
        url = through(ledger_url, port, sslrootcert=str(authority.bundle))
        with pytest.raises(UsageError, match="certificate") as raised:
            Ledger.open(url, actor="tester")
    assert "\n" not in raised.value.message


def test_a_server_without_tls_is_refused_for_good(ledger_url: str, authority: Authority) -> None:
    with tls_front(socket_of(ledger_url), None) as port:
        url = through(ledger_url, port, sslrootcert=str(authority.bundle))
        with pytest.raises(UsageError, match="does not support SSL"):
            Ledger.open(url, actor="tester")


def test_a_missing_file_of_authorities_is_told(ledger_url: str, authority: Authority) -> None:
    with tls_front(socket_of(ledger_url), authority.issue("postgresql", host="localhost")) as port:
        url = through(ledger_url, port, sslrootcert="/nowhere/ca.pem")
        with pytest.raises(UsageError, match=r"/nowhere/ca\.pem"):
            Ledger.open(url, actor="tester")
