"""The spec of a setup: its keys, and those that do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.errors import UsageError
from walferry.ledger import Ledger
from walferry.migration.setup.setup import open_setup
from walferry.run.given_spec import load_setup_spec, parse_keys
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.setup_spec import ResolvedSetupSpec, SetupSpec
from walferry.run.spec import Options

EXAMPLE = Path(__file__).parents[3] / "setup.example.yaml"
KEYS: dict[str, Any] = SPEC | {"peer": "east"}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as opened:
        yield opened


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"peer": "a-b"}, "peer: "),
        ({"peer": "a/b"}, "peer: "),
        ({"peer_back": ""}, "peer_back: "),
        ({"bandwidth": -1}, "bandwidth: "),
        ({"ship_minutes": 0}, "ship_minutes: "),
        ({"name": "x" * 36}, "at most 35 characters"),
        ({"tables": [{"source": "a", "target": "b"}]}, "so a cannot have another one"),
        ({"families": {"other": ["d"]}}, "other is none of the tables"),
        ({"families": {"shop:orders": []}}, "name each family of shop:orders once"),
        ({"families": {"shop:orders": ["d", "d"]}}, "name each family of shop:orders once"),
        ({"families": {"shop:orders": ["d"]}, "namespaces": True}, "both a namespace and families"),
        ({"history": "bulk"}, "history: a setup clones snapshots"),
        ({"peers": "x"}, "unknown key"),
    ],
)
def test_a_key_that_does_not_fit_is_named(keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_keys(SetupSpec, KEYS | keys, origin="setup.yaml")
    assert fault in str(refused.value)


def test_the_example_has_every_key_of_a_setup() -> None:
    spec = load_setup_spec(EXAMPLE)
    assert set(type(spec).model_fields) - set(Options.model_fields) <= spec.model_fields_set
    assert {"max_lag", "source_requests"} <= spec.model_fields_set


def test_families_are_found_by_the_plain_name_of_their_table() -> None:
    spec = parse_keys(SetupSpec, KEYS | {"tables": ["default:t"], "families": {"default:t": ["d"]}}, origin="x")
    assert spec.names_of("t") == ["d"]
    assert spec.names_of("other") is None


def resolved(**keys: Any) -> ResolvedSetupSpec:
    return ResolvedSetupSpec.model_validate(KEYS | keys)


def begun(ledger: Ledger) -> str:
    run = open_setup(ledger, resolved(), "me")
    ledger.of(run.run_id).phases.start("plan")
    ledger.of(run.run_id).phases.finish("plan", {})
    return run.run_id


def test_only_how_long_to_wait_may_change_and_what_else_does_is_named(ledger: Ledger) -> None:
    run_id = begun(ledger)
    assert open_setup(ledger, resolved(ship_minutes=5, max_lag=9), "me").run_id == run_id
    assert setup_spec_of(ledger.run(run_id)).ship_minutes == 5
    with pytest.raises(UsageError, match="begun with another spec: bandwidth, peer"):
        open_setup(ledger, resolved(peer="west", bandwidth=7), "me")


def test_a_key_that_an_older_walferry_did_not_record_makes_no_other_spec(ledger: Ledger) -> None:
    older = {key: value for key, value in resolved().as_recorded().items() if key not in ("serial", "families")}
    run = ledger.open_run("move", "me", older, "me", "setup")
    ledger.of(run.run_id).phases.start("plan")
    ledger.of(run.run_id).phases.finish("plan", {})
    assert open_setup(ledger, resolved(), "me").run_id == run.run_id
    with pytest.raises(UsageError, match="another spec: serial"):
        open_setup(ledger, resolved(serial=True), "me")


def test_a_spec_of_which_nothing_was_done_gives_way(ledger: Ledger) -> None:
    first = open_setup(ledger, resolved(), "me")
    ledger.of(first.run_id).phases.start("plan")
    ledger.of(first.run_id).phases.fail("plan", "ConnectionFailedError: away", transient=True)
    second = open_setup(ledger, resolved(peer="west"), "me")
    assert (ledger.run(first.run_id).state, second.run_id) == ("failed", "move-2")
