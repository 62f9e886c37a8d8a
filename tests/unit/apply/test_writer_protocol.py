"""What is sent at a time is set in one place."""

from __future__ import annotations

import pytest

from walferry.apply.writers import limits_of
from walferry.errors import UsageError
from walferry.hbase.writer_kind import WriterKind
from walferry.settings import Writing
from write_limits import write_limits

VARIABLES = {
    "mutations": "WALFERRY_REQUEST_MUTATIONS", "bytes": "WALFERRY_REQUEST_BYTES",
    "aim_bytes": "WALFERRY_REQUEST_AIM_BYTES", "lanes": "WALFERRY_LANES",
    "read_ahead": "WALFERRY_READ_AHEAD", "ahead_bytes": "WALFERRY_READ_AHEAD_BYTES",
    "piece_bytes": "WALFERRY_PIECE_BYTES", "here_bytes": "WALFERRY_HERE_BYTES",
    "request_seconds": "WALFERRY_REQUEST_SECONDS", "settle_seconds": "WALFERRY_SETTLE_SECONDS",
    "claim_seconds": "WALFERRY_CLAIM_SECONDS",
}  # fmt: skip


@pytest.mark.parametrize(("name", "variable"), VARIABLES.items())
def test_each_limit_has_a_variable(name: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "7")
    assert getattr(limits_of(WriterKind.RPC, Writing.read()), name) == 7
    assert getattr(write_limits(), name) != getattr(write_limits(**{name: 9}), name)


@pytest.mark.parametrize("text", ["many", "", "0", "-1", "nan", "inf"])
def test_what_is_not_a_number_above_0_is_refused_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALFERRY_LANES", text)
    with pytest.raises(UsageError, match="WALFERRY_LANES is"):
        limits_of(WriterKind.RPC, Writing.read())
