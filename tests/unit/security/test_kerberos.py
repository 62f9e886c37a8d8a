"""Which principals an identity asks tickets for."""

from __future__ import annotations

import pytest

from walferry.security import Kerberos


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("hbase", "hbase/rs1.example"),
        ("hbprod/_HOST", "hbprod/rs1.example"),
        ("hbase/_HOST@PROD", "hbase/rs1.example@PROD"),
        ("hbase/one.example@PROD", "hbase/one.example@PROD"),
    ],
)
def test_a_service_is_named_as_in_hbase_site(service: str, expected: str) -> None:
    assert Kerberos().service_principal(service, "RS1.example") == expected


@pytest.mark.parametrize(
    ("host", "realm"),
    [
        ("rs1.prod.example", "PROD"),
        ("prod.example", "PROD"),
        ("rs1.example", "EXAMPLE"),
        ("notprod.example", "EXAMPLE"),
        ("example.other", ""),
    ],
)
def test_the_longest_fitting_end_of_a_host_name_gives_the_realm(host: str, realm: str) -> None:
    kerberos = Kerberos(realms=((".prod.example", "PROD"), ("Example", "EXAMPLE")))
    assert kerberos.service_principal("HTTP", host).partition("@")[2] == realm


def test_a_realm_in_the_services_name_goes_before_the_map() -> None:
    kerberos = Kerberos(realms=(("example", "MAPPED"),))
    assert kerberos.service_principal("hbase/_HOST@NAMED", "rs1.example").endswith("@NAMED")


@pytest.mark.parametrize(("principal", "user"), [("ferry@A", "ferry"), ("ferry/host@A", "ferry"), (None, None)])
def test_the_user_is_the_principals_first_part(principal: str | None, user: str | None) -> None:
    assert Kerberos(principal).user == user
