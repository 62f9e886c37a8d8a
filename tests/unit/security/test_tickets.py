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
