"""What is said of Kerberos's errors that no test of a real KDC brings about."""

from __future__ import annotations

import pytest

from walferry.security import Kerberos
from walferry.security.tickets import advice


@pytest.mark.parametrize("code", [-1765328347, -1765328351, -1765328236])
def test_clocks_that_differ_are_told_by_whoever_finds_it(code: int) -> None:
    """KRB5KRB_AP_ERR_SKEW by a server, KRB5KRB_AP_ERR_TKT_NYV, KRB5_KDCREP_SKEW by the client itself."""
    told = advice(code, Kerberos("ferry@EXAMPLE.COM", "/ferry.keytab"))
    assert told == "set the clocks of this machine, the server and the KDC to the same time"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-1765328366, "the principal or its password is locked or has expired at the KDC"),
        (-1765328383, "the principal or its password is locked or has expired at the KDC"),
        (-1765328361, "the principal or its password is locked or has expired at the KDC"),
        (-1765328382, "hbase/rs1@EXAMPLE.COM is locked or has expired at the KDC"),
        (-1765328365, "hbase/rs1@EXAMPLE.COM is locked or has expired at the KDC"),
        (-1765328357, "hbase/rs1@EXAMPLE.COM is locked or has expired at the KDC"),
    ],
)
def test_whose_principal_is_locked_is_told(code: int, told: str) -> None:
    """KDC_ERR_CLIENT_REVOKED, _NAME_EXP, _KEY_EXP; _SERVICE_EXP, _SERVICE_REVOKED, _MUST_USE_USER2USER (-allow_svr)."""
    assert advice(code, Kerberos("ferry@EXAMPLE.COM", "/ferry.keytab"), "hbase/rs1@EXAMPLE.COM") == told
