"""What a process says of itself."""

from __future__ import annotations

import pytest

from walferry.errors import TransientError
from walferry.receive import standing
from walferry.receive.standing import KEPT_MS, Standing


def test_who_knocks_does_not_hide_why_a_call_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000]
    monkeypatch.setattr(standing, "now_ms", lambda: now[0])
    one = Standing("a,1,1")
    one.shut_out("a stranger")
    assert (one.row("serving", (), 0).last_refusal, one.row("serving", (), 0).refused) == ("a stranger", 0)
    one.refused("no table t1")
    now[0] += KEPT_MS - 1
    one.shut_out("a stranger")
    row = one.row("serving", (), 0)
    assert (row.last_refusal, row.last_refusal_ms, row.refused) == ("no table t1", 1_000_000, 1)
    now[0] += 1
    one.shut_out("a stranger")
    assert one.row("serving", (), 0).last_refusal == "a stranger"


def test_what_was_left_out_is_recorded_once_also_after_the_ledger_has_failed() -> None:
    one, kept = Standing("a,1,1"), list[tuple[str, int]]()

    def record(table: str, entries: int) -> None:
        if (table, len(kept)) == ("t2", 1):
            kept.append(("fails", 0))
            raise TransientError("the ledger did not answer")
        kept.append((table, entries))

    one.left_out({"t1": 2, "t2": 3})
    with pytest.raises(TransientError):
        one.record_left_out(record)
    one.left_out({"t2": 1})
    one.record_left_out(record)
    one.record_left_out(record)
    assert kept == [("t1", 2), ("fails", 0), ("t2", 4)]
