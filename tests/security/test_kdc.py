"""A KDC of the tests: real tickets, of a chosen life, also after it was away."""

from __future__ import annotations

import stat
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from walferry.embedded.kdc import Kdc, krb5_conf
from walferry.errors import WalferryError

pytestmark = pytest.mark.usefixtures("kdc")  # which skips where there is none


def life(kdc: Kdc, name: str) -> timedelta:
    """How long a new ticket is valid, as klist says."""
    shown = subprocess.run(["klist", "-c", str(kdc.ticket(name))], capture_output=True, text=True, check=True).stdout
    words = next(line for line in shown.splitlines() if "krbtgt/" in line).split()
    begin, end = (datetime.strptime(" ".join(words[at : at + 2]), "%m/%d/%y %H:%M:%S") for at in (0, 2))
    return end - begin


def keys(keytab: Path) -> list[str]:
    """The entries of a keytab with their keys, but without the times at which they were written."""
    return subprocess.run(
        ["klist", "-k", "-e", "-K", str(keytab)], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_tickets_of_a_principal_may_end_soon(kdc: Kdc) -> None:
    kdc.principal("soon", max_life=timedelta(minutes=2))
    assert life(kdc, "soon") == timedelta(minutes=2)
    assert life(kdc, "late") == timedelta(days=1)


def test_keys_are_private_and_stay_the_same_when_they_are_written_again(kdc: Kdc) -> None:
    first = kdc.keytab(["keys"])
    before = keys(first)
    kdc.keytab(["keys", "other"])
    kdc.keytab(["keys"])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (first, kdc.ticket("keys"))] == [0o600, 0o600]
    assert keys(first) == before


def test_it_is_away_while_stopped_and_knows_its_principals_afterwards(tmp_path: Path) -> None:
    own = Kdc.start(tmp_path)
    try:
        keytab = own.keytab(["ferry"])
        own.stop()
        with pytest.raises(WalferryError, match="Cannot contact any KDC"):
            own.ticket("ferry")
        own.boot()
        assert own.ticket("ferry").exists()
        assert own.keytab(["ferry"]) == keytab
    finally:
        own.stop()


def test_one_krb5_conf_may_lead_to_several_realms(tmp_path: Path, kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    import gssapi

    with Kdc.start(tmp_path / "kdc", "OTHER.ORG") as other:
        both = tmp_path / "krb5.conf"
        both.write_text(krb5_conf(kdc, other))
        monkeypatch.setenv("KRB5_CONFIG", str(both))
        for one in (kdc, other):
            name = gssapi.Name(one.principal("both"), gssapi.NameType.kerberos_principal)
            store = {"client_keytab": str(one.keytab(["both"])), "ccache": f"MEMORY:{one.realm}"}
            assert gssapi.Credentials(usage="initiate", name=name, store=store).lifetime > 0


def test_without_its_programs_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("walferry.embedded.kdc._ADMINISTRATION", str(tmp_path))
    with pytest.raises(WalferryError, match=r"krb5kdc: install MIT Kerberos .*apt install krb5-kdc"):
        Kdc.start(tmp_path / "kdc")
