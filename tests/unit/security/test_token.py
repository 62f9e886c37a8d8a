"""Delegation tokens: their coding, and that no repr or error shows one."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from walferry.security.token import Token, token_file

OF_NAME_NODE = (
    "HgAFZmVycnkFZmVycnkAigGiJO7TuooBokj7V7oBAhSGpKWTGwHPGzXWZ6m02YJrbVaSZRJXRUJIREZTIGRlbGVnYXRpb24PMTI3LjAuMC4x"
    "OjIxMTIz"
)
"""of a name node of Hadoop 3.4.1"""
OF_HADOOP = (
    "SERUUwABDjEyNy4wLjAuMTo5MDAwLgAaaGRmcy9sb2NhbGhvc3RARVhBTVBMRS5DT00AAIoBiX/hghSKAYmj7gYUAQIUadF4ni3ObKqU8niv40WBFsGhFm4V"
    "SERGU19ERUxFR0FUSU9OX1RPS0VODjEyNy4wLjAuMTo5MDAwAA=="
)
"""a token file that `hdfs fetchdt` wrote, from the tests of hdfs-native"""

parts = st.binary(max_size=300)
texts = st.text(st.characters(codec="utf-8"), max_size=200)


@given(identifier=parts, password=parts, kind=texts, service=texts)
def test_a_token_reads_back_as_it_was_written(identifier: bytes, password: bytes, kind: str, service: str) -> None:
    token = Token(identifier, password, kind, service)
    assert Token.decoded(token.encoded()) == token


def test_a_name_nodes_token_is_read_and_written_again() -> None:
    token = Token.decoded(OF_NAME_NODE)
    assert (token.kind, token.service) == ("WEBHDFS delegation", "127.0.0.1:21123")
    assert (token.owner, token.issued_ms, len(token.password)) == ("ferry", 1795915961274, 20)
    assert token.encoded() == OF_NAME_NODE


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_what_is_no_token_is_told_without_showing_it(text: str) -> None:
    with suppress(ValueError):
        assume(Token.decoded(text) is None)
    with pytest.raises(ValueError, match=r"^not a delegation token$") as raised:
        Token.decoded(text)
    assert raised.value.__suppress_context__


def test_a_token_file_is_like_hadoops() -> None:
    content = base64.b64decode(OF_HADOOP)
    alias = b"\x0e127.0.0.1:9000"
    token = Token.decoded(base64.urlsafe_b64encode(content.removeprefix(b"HDTS\0\1" + alias)[:-1]).decode())
    assert token.owner == "hdfs/localhost@EXAMPLE.COM"
    from_webhdfs = replace(token, kind="WEBHDFS delegation", service="127.0.0.1:9870")
    assert token_file({"127.0.0.1:9000": from_webhdfs}) == content


def test_no_repr_shows_a_password() -> None:
    assert "known" not in repr(Token(b"whose", b"a password, known", "kind", "service"))
