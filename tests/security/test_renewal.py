"""Tickets are renewed long before they end, and what could not be renewed is told while the ticket is still good."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from walferry.embedded.kdc import Kdc
from walferry.security import Kerberos, renewal, tickets
from walferry.security.tickets import credentials

LIFE = timedelta(seconds=15)


@pytest.fixture(autouse=True)
def _only_own_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_used", set())
    monkeypatch.setattr(renewal, "_faults", {})
    monkeypatch.setattr(renewal, "RETRY_SECONDS", 0.0)


def with_keytab(kdc: Kdc, name: str) -> Kerberos:
    return Kerberos(kdc.principal(name, max_life=LIFE), str(kdc.keytab([name])))


def used(kerberos: Kerberos) -> None:
    credentials(kerberos, "rs:1", "hbase/rs")


def awaited(wanted: Callable[[], bool]) -> bool:
    """Whether it comes true within a ticket's life; `look` is called all the time."""
    end = time.monotonic() + LIFE.total_seconds()
    while time.monotonic() < end:
        renewal.look()
        if wanted():
            return True
        time.sleep(0.2)
    return False


def test_a_keytabs_ticket_is_made_again_at_half_of_its_life_and_nothing_is_told(kdc: Kdc) -> None:
    kerberos = with_keytab(kdc, "renewed")
    used(kerberos)
    first = renewal.ticket_of(kerberos)
    assert first is not None

    def renewed() -> bool:
        now = renewal.ticket_of(kerberos)
        return now is not None and now.end > first.end

    assert awaited(renewed)
    assert time.time() < first.end
    assert renewal.faults() == {}


def test_a_key_that_changed_at_the_kdc_is_told_before_the_ticket_ends_and_a_new_keytab_mends_it(kdc: Kdc) -> None:
    kerberos = with_keytab(kdc, "rekeyed")
    used(kerberos)
    kdc.admin("change_password", "-randkey", "rekeyed")
    assert awaited(lambda: bool(renewal.faults()))
    told = renewal.faults()["rekeyed@EXAMPLE.COM"]
    assert told.startswith("the ticket of rekeyed@EXAMPLE.COM ends at 2")
    assert f"the KDC has another key than the keytab {kerberos.keytab}: export the keytab again" in told
    assert kerberos.keytab == str(kdc.keytab(["rekeyed"]))
    assert awaited(lambda: not renewal.faults())


def test_a_kdc_that_is_away_is_told_and_passes(kdc: Kdc) -> None:
    kerberos = with_keytab(kdc, "cutoff")
    used(kerberos)
    kdc.stop()
    try:
        assert awaited(lambda: bool(renewal.faults()))
    finally:
        kdc.boot()
    assert awaited(lambda: not renewal.faults())


def kinit(kdc: Kdc, cache: Path, *options: str) -> Kerberos:
    command = ["kinit", "-k", "-t", str(kdc.keytab(["cached"])), "-c", str(cache), *options, "cached"]
    subprocess.run(command, check=True, env={**os.environ, "KRB5_CONFIG": str(kdc.config)})
    return Kerberos(ccache=f"FILE:{cache}")


def test_a_renewable_ticket_cache_is_renewed_in_place(kdc: Kdc, tmp_path: Path) -> None:
    kdc.principal("cached")
    kdc.admin("modify_principal", "-maxrenewlife", "1 hour", "cached")
    kdc.admin("modify_principal", "-maxrenewlife", "1 hour", f"krbtgt/{kdc.realm}")
    cache = tmp_path / "cache"
    kerberos = kinit(kdc, cache, "-l", "15s", "-r", "30m")
    used(kerberos)
    before = renewal.ticket_of(kerberos)
    assert before is not None
    assert before.renewable_until > before.end
    assert awaited(lambda: (now := renewal.ticket_of(kerberos)) is not None and now.end > before.end)
    assert renewal.faults() == {}
    assert cache.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    used(kerberos)


def test_a_ticket_cache_that_nothing_renews_is_told(kdc: Kdc, tmp_path: Path) -> None:
    kdc.principal("cached")
    kerberos = kinit(kdc, tmp_path / "cache", "-l", "4s")
    used(kerberos)
    assert awaited(lambda: bool(renewal.faults()))
    (told,) = renewal.faults().values()
    assert "let something renew the ticket cache FILE:" in told
