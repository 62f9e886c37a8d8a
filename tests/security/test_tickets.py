"""Tickets from a keytab and from a cache, of a real KDC, and what is said when there are none."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from security.acceptor import Acceptor
from walferry.embedded.kdc import Kdc
from walferry.errors import WalferryError
from walferry.security import AuthenticationError, Kerberos, KerberosUnavailableError, Qop
from walferry.security.sasl import GssapiExchange

SERVER = "rs1.example:16020"


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> Path:
    kdc.keytab(["hbase/localhost"])
    return kdc.keytab(["ferry"])


def ferry(kdc: Kdc, keytab: Path, **more: Any) -> Kerberos:
    return Kerberos(f"ferry@{kdc.realm}", str(keytab), **more)


def begun(kerberos: Kerberos, host: str = "localhost") -> GssapiExchange:
    exchange = GssapiExchange(kerberos, kerberos.service or "", host, SERVER)
    assert exchange.step(None)
    return exchange


def agreed(kdc: Kdc, kerberos: Kerberos, offered: int = 7) -> tuple[GssapiExchange, Acceptor]:
    exchange, acceptor = GssapiExchange(kerberos, "hbase", "localhost", SERVER), Acceptor(kdc, offered)
    token = exchange.step(None)
    while not exchange.complete:
        token = exchange.step(acceptor.answer(token))
    acceptor.answer(token)
    return exchange, acceptor


@pytest.mark.parametrize(
    ("qop", "offered", "chosen", "private"),
    [(None, 7, 1, None), (None, 6, 2, False), (None, 4, 4, True), ("auth-int", 7, 2, False), ("auth-conf", 7, 4, True)],
)
def test_without_a_wish_of_its_own_the_client_takes_the_least_protection_that_is_offered(
    kdc: Kdc, keytab: Path, qop: Qop | None, offered: int, chosen: int, private: bool | None
) -> None:
    exchange, acceptor = agreed(kdc, ferry(kdc, keytab, qop=qop), offered)
    assert acceptor.chosen[0] == chosen
    assert exchange.wraps == (private is not None)
    if private is not None:
        sent = acceptor.context.unwrap(exchange.wrap(b"row"))
        assert (sent.message, sent.encrypted) == (b"row", private)
        assert exchange.unwrap(acceptor.context.wrap(b"answer", private).message) == b"answer"


def test_a_protection_that_is_not_offered_is_refused(kdc: Kdc, keytab: Path) -> None:
    with pytest.raises(AuthenticationError, match="it offers the protection auth, not auth-conf; set `qop`"):
        agreed(kdc, ferry(kdc, keytab, qop="auth-conf"), offered=1)


def test_a_message_that_was_changed_repeated_or_sent_unencrypted_is_refused(kdc: Kdc, keytab: Path) -> None:
    exchange, acceptor = agreed(kdc, ferry(kdc, keytab, qop="auth-conf"))
    with pytest.raises(AuthenticationError, match="not encrypted"):
        exchange.unwrap(acceptor.context.wrap(b"zero", False).message)
    first, second = (acceptor.context.wrap(text, True).message for text in (b"one", b"two"))
    assert exchange.unwrap(first) == b"one"
    for wrong in (first, second[:-1] + bytes([second[-1] ^ 1]), acceptor.context.wrap(b"three", False).message):
        with pytest.raises(AuthenticationError):
            exchange.unwrap(wrong)


def test_a_ticket_cache_serves_with_and_without_the_name_of_its_principal(kdc: Kdc, keytab: Path) -> None:
    cache = f"FILE:{kdc.ticket('ferry')}"
    begun(Kerberos(ccache=cache))
    begun(Kerberos(f"ferry@{kdc.realm}", ccache=cache))


def test_the_default_ticket_cache_of_the_process_is_never_used(
    kdc: Kdc, keytab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.ticket('ferry')}")
    with pytest.raises(AuthenticationError, match="make a ticket"):
        begun(Kerberos(ccache="FILE:/nowhere"))
    with pytest.raises(AuthenticationError, match="has no key of this principal"):
        begun(Kerberos(f"other@{kdc.realm}", str(keytab)))


def refused(kerberos: Kerberos, host: str = "localhost") -> WalferryError:
    with pytest.raises(WalferryError) as raised:
        begun(kerberos, host)
    return raised.value


def test_each_refusal_names_server_principal_and_cause_and_says_what_to_do(
    kdc: Kdc, keytab: Path, tmp_path: Path
) -> None:
    realm, mine = kdc.realm, f"ferry@{kdc.realm}"
    text = tmp_path / "text"
    text.write_text("no keytab")
    for kerberos, said in (
        (
            Kerberos(mine, "/nowhere"),
            "Key table file '/nowhere' not found; the keytab /nowhere must be on this machine",
        ),
        (Kerberos(mine, str(text)), "is not a keytab"),
        (Kerberos(f"other@{realm}", str(keytab)), "has no key of this principal: klist -k"),
        (Kerberos("ferry@NOWHERE", str(keytab)), "has no key of this principal"),
        (ferry(kdc, keytab, service="hbprod"), "the KDC knows no hbprod/localhost"),
        (ferry(kdc, keytab, service="hbase/_HOST@NOWHERE"), "the KDC knows no hbase/localhost@NOWHERE"),
        (Kerberos(mine, ccache=f"FILE:{tmp_path / 'none'}"), "make a ticket in the ticket cache"),
    ):
        error = refused(kerberos)
        assert isinstance(error, AuthenticationError)
        assert said in error.message
        assert f"does not let {kerberos.principal} log in to {SERVER} as " in error.message
        assert "\n" not in error.message


def test_a_password_changed_at_the_kdc_is_told_as_such(kdc: Kdc, tmp_path: Path) -> None:
    old = tmp_path / "old.keytab"
    old.write_bytes(kdc.keytab(["changing"]).read_bytes())
    kdc.admin("change_password", "-randkey", "changing")
    error = refused(Kerberos(f"changing@{kdc.realm}", str(old)))
    assert f"the KDC has another key than the keytab {old}: export the keytab again" in error.message


def test_an_expired_ticket_is_told_as_such(kdc: Kdc, tmp_path: Path) -> None:
    kdc.principal("brief")
    cache = tmp_path / "cache"
    command = ["kinit", "-k", "-t", str(kdc.keytab(["brief"])), "-c", str(cache), "-l", "1s", "brief"]
    subprocess.run(command, check=True, env={**os.environ, "KRB5_CONFIG": str(kdc.config)})
    time.sleep(1.5)
    assert f"renew the ticket cache FILE:{cache}" in refused(Kerberos(ccache=f"FILE:{cache}")).message


def test_a_kdc_that_is_away_is_a_transient_error_and_tickets_at_hand_serve_on(kdc: Kdc, keytab: Path) -> None:
    own = ferry(kdc, keytab)
    begun(own)
    late = Kerberos(f"late@{kdc.realm}", str(kdc.keytab(["late"])))
    kdc.stop()
    try:
        begun(own)
        error = refused(late)
    finally:
        kdc.boot()
    assert isinstance(error, KerberosUnavailableError)
    assert "is the KDC up, and named in krb5.conf?" in error.message
    begun(late)
