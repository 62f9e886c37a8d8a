"""Which run a process of `walferry receive` serves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unit.receive.two_clusters import KEYS
from unit.run.progress.received_ledger import OTHER, receiver
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.receive.start import FORGET_MS, open_receive, unfinished
from walferry.run.receive_spec import ResolvedReceiveSpec

MakeSpec = Callable[..., ResolvedReceiveSpec]


def test_processes_of_other_people_serve_the_same_run(ledger: Ledger, make_spec: MakeSpec) -> None:
    first = open_receive(ledger, make_spec().at("a", 1), "cli kim")
    second = open_receive(ledger, make_spec(receive={"memory": 1 << 30}).at("b", 2), "cli lee")
    assert (first.run_id, second.run_id, second.owner) == ("east-1", "east-1", "cli kim")
    assert unfinished(ledger, "east") is not None


def test_processes_that_have_been_gone_for_a_day_are_forgotten(ledger: Ledger, spec: ResolvedReceiveSpec) -> None:
    run = ledger.of(open_receive(ledger, spec, "kim").run_id)
    run.received.beat(receiver(ago_s=FORGET_MS / 1000 + 1))
    run.received.beat(receiver(OTHER, ago_s=FORGET_MS / 1000 - 60))
    open_receive(ledger, spec, "kim")
    assert [one.server for one in run.received.receivers()] == [OTHER]


def test_an_ended_run_gives_its_name_to_a_new_one(ledger: Ledger, spec: ResolvedReceiveSpec) -> None:
    ledger.of(open_receive(ledger, spec, "kim").run_id).end("aborted", "kim")
    assert unfinished(ledger, "east") is None
    assert open_receive(ledger, spec, "lee").run_id == "east-2"


def test_the_name_of_an_unfinished_run_of_another_kind_is_refused(ledger: Ledger, spec: ResolvedReceiveSpec) -> None:
    ledger.open_run("east", "kim", KEYS, "kim")
    ledger.of("east-1").phases.start("plan")
    ledger.of("east-1").phases.fail("plan", "UsageError: no")
    with pytest.raises(UsageError, match="run east-1, of kind migration, has that name"):
        open_receive(ledger, spec, "kim")
    assert ledger.run("east-1").state == "running"


def test_another_spec_is_refused_and_what_may_change_is_recorded(ledger: Ledger, make_spec: MakeSpec) -> None:
    open_receive(ledger, make_spec(), "kim")
    assert open_receive(ledger, make_spec(max_lag=7, throttle={"write_cells": 5}), "kim").spec["max_lag"] == 7
    with pytest.raises(UsageError, match=r"another spec \(receive.history\)"):
        open_receive(ledger, make_spec(receive={"history": "scan"}), "kim")
    with pytest.raises(UsageError, match=r"another spec \(tables\).*end it by `walferry abort east"):
        open_receive(ledger, make_spec(tables=["shop:orders"]), "kim")
