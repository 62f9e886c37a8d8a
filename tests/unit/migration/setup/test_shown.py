"""What status, report and board say of a setup, and which commands refuse one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from unit.migration.setup.conftest import KEYS, TABLE, setup_run
from unit.migration.setup.test_put_back import set_all
from walferry.cli import app
from walferry.errors import UsageError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.peers import add_disabled_peer
from walferry.ledger import Ledger
from walferry.migration.report import render, summary
from walferry.migration.setup import setup_look, teardown
from walferry.migration.setup.setting import enable
from walferry.migration.setup.setup import StillShippingError, outcome
from walferry.migration.setup.setups import left_by_aborted
from walferry.migration.setup.teardown import abort, tear_down
from walferry.run.notes.teardown import begin_teardown, teardown_begun
from walferry.run.progress.state import state_of
from walferry.run.progress.states import OF_SETUPS, STATES
from walferry.run.progress.status import status, status_line
from walferry.run.run import Run
from walferry.watch.watch import runs_on

BOARD = Path(__file__).parents[4] / "docs" / "board.md"


def finished(run: Run) -> Run:
    """The run once it has set up everything."""
    set_all(run)
    enable(run, "source")
    run.target.add(TABLE, d="0", e="0")  # type: ignore[attr-defined]
    run.ledger.end("done", "test", outcome({"pair": "both_pair-1"}))
    return run


def test_the_board_s_page_has_every_state_of_a_setup() -> None:
    rows = [f"| {name} | {kind.cause} | {kind.next_step} |" for name, kind in OF_SETUPS.items()]
    page = BOARD.read_text()
    assert [row for row in rows if row not in page] == []
    assert all(kind.colour == STATES[name].colour for name, kind in OF_SETUPS.items())


def test_no_word_is_about_a_log_that_a_setup_follows_and_nobody_alarms_for_one(ledger: Ledger, run: Run) -> None:
    shown = f"{status_line(status(run.ledger))} {render(summary(run.ledger))}"
    assert not [word for word in ("replay", "Applied", "Backlog", "write stop") if word in shown]
    assert runs_on(ledger, run.spec.source) == []


def test_the_state_of_a_setup_says_that_it_is_torn_down(run: Run) -> None:
    state = state_of(finished(run).ledger)
    assert (state.name, state.cause) == ("done", "replication is set up; both sides were equal (both_pair-1)")
    assert "`walferry replicate teardown both` puts it back" in state.next_step
    tear_down(run, "moved", unshipped=True)
    state = state_of(run.ledger)
    assert state.cause.startswith("torn down by ")
    assert state.next_step == "none"


def test_a_setup_that_is_done_is_not_aborted(run: Run) -> None:
    with pytest.raises(UsageError, match="`walferry replicate teardown both` puts it back"):
        abort(finished(run), "no", "test")


def test_a_look_names_whatever_is_no_longer_as_it_was_set_up(run: Run) -> None:
    finished(run)
    assert [one.wrong for one in setup_look.look(run)] == [""] * 5
    run.source.remove_peer("east")
    run.source.add(TABLE, d="0", e="1")  # type: ignore[attr-defined]
    run.target.add(TABLE, d="0")  # type: ignore[attr-defined]
    assert [one.wrong for one in setup_look.look(run) if one.wrong] == [
        "it was removed", "it is 0 in d", "it lacks the family e, whose first edit stops all others",
    ]  # fmt: skip
    run.target.name = "another"  # type: ignore[attr-defined]
    assert "its address leads to another cluster: another" in [one.wrong for one in setup_look.look(run)]


@pytest.mark.parametrize(
    ("command", "told"),
    [(("pause", "both"), "cannot be paused"), (("throttle", "both", "--write-cells", "5"), "sends no edits")],
)
def test_a_setup_is_neither_paused_nor_throttled(run: Run, tmp_path: Path, command: tuple[str, ...], told: str) -> None:
    answer = CliRunner().invoke(app, [*command, "--ledger", f"sqlite:///{tmp_path / 'ledger.db'}"])
    assert isinstance(answer.exception, UsageError)
    assert told in str(answer.exception)


def test_only_a_setup_is_torn_down(ledger: Ledger, tmp_path: Path) -> None:
    setup_run(ledger)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger.open_run("watching", "me", {"tables": []}, "me", "replication")
    answer = CliRunner().invoke(app, ["replicate", "teardown", "watching", "--ledger", url])
    assert "has set up no replication" in str(answer.exception)


def test_a_dry_run_of_an_unfinished_setup_says_what_is_left_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "setup.yaml").write_text(yaml.safe_dump(KEYS))
    command = ["replicate", "setup", str(tmp_path / "setup.yaml"), "--dry-run"]
    answer = CliRunner().invoke(app, [*command, "--ledger", f"sqlite:///{tmp_path / 'ledger.db'}"])
    told = f"scope, peer, snapshot {TABLE}, copy {TABLE}, clone {TABLE}, back, enable, ship, verify"
    assert answer.stdout == f"{run.run_id} would do: {told}\n"
    assert run.ledger.record.state == "running"


def test_the_state_of_an_aborted_setup_names_what_is_still_set(run: Run) -> None:
    set_all(run)
    run.source.away = True  # type: ignore[attr-defined]
    abort(run, "no", "test")
    state = state_of(run.ledger)
    assert state.cause == f"no; still set: scope {TABLE} at the source, peer east at the source"
    assert state.next_step == "repeat `walferry abort both-1 --reason …`, which puts it back"
    tear_down(run, "no", unshipped=True)
    assert state_of(run.ledger).next_step == "repeat `walferry replicate teardown both`, which puts it back"
    run.source.away = False  # type: ignore[attr-defined]
    tear_down(run, "no")
    assert (state_of(run.ledger).cause, state_of(run.ledger).next_step) == ("no", OF_SETUPS["aborted"].next_step)


def test_the_state_of_a_done_setup_says_that_its_teardown_goes_on(run: Run) -> None:
    finished(run).source.away = True  # type: ignore[attr-defined]
    tear_down(run, "moved", unshipped=True)
    assert state_of(run.ledger).next_step == "`walferry replicate teardown both` goes on"


def test_a_teardown_that_cannot_ship_does_not_count_as_begun(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StillShippingError("not yet")

    finished(run)
    monkeypatch.setattr(teardown, "ship_all", fails)
    with pytest.raises(StillShippingError, match="add --unshipped"):
        tear_down(run, "moved")
    assert not teardown_begun(run.ledger)


def test_a_begun_teardown_is_not_resumed_as_a_setup(run: Run, ledger: Ledger, tmp_path: Path) -> None:
    set_all(run)
    begin_teardown(run.ledger, "test", "moved")
    url = ["--ledger", f"sqlite:///{tmp_path / 'ledger.db'}"]
    (tmp_path / "setup.yaml").write_text(yaml.safe_dump(KEYS))
    for command in (["resume", "both"], ["replicate", "setup", str(tmp_path / "setup.yaml"), "--dry-run"]):
        answer = CliRunner().invoke(app, [*command, *url])
        assert "has begun to tear both-1 down" in str(answer.exception)


def test_a_dry_run_refuses_another_spec_of_a_known_setup(run: Run, tmp_path: Path) -> None:
    (tmp_path / "setup.yaml").write_text(yaml.safe_dump(KEYS | {"peer": "north"}))
    command = ["replicate", "setup", str(tmp_path / "setup.yaml"), "--dry-run"]
    answer = CliRunner().invoke(app, [*command, "--ledger", f"sqlite:///{tmp_path / 'ledger.db'}"])
    assert "both-1 was begun with another spec: peer" in str(answer.exception)


def test_an_abort_that_leaves_only_what_others_need_is_complete(run: Run, ledger: Ledger, tmp_path: Path) -> None:
    set_all(run)
    add_disabled_peer(run.source, "other", pb.ReplicationPeer(clusterkey="a:1:/h", replicate_all=True))
    facts = abort(run, "no", "test")
    assert (len(facts["stays"]), facts["left"]) == (2, [])
    assert list(left_by_aborted(ledger, "here")) == []
    assert state_of(run.ledger).cause == "no"


def test_a_look_names_a_new_family_that_is_not_replicated(run: Run, ledger: Ledger) -> None:
    finished(run).source.add(TABLE, d="1", e="1", new="0")  # type: ignore[attr-defined]
    wrong = [one.wrong for one in setup_look.look(run) if one.wrong]
    assert wrong == ["it is 0 in new", "it lacks the family new"]


def test_a_look_passes_over_families_that_the_spec_leaves_out(ledger: Ledger) -> None:
    some = finished(setup_run(ledger, families={TABLE: ["d"]}))
    assert [one.wrong for one in setup_look.look(some) if one.wrong] == []


def test_the_next_step_when_rows_differ_names_the_pair(run: Run) -> None:
    run.ledger.phases.start("verify")
    run.ledger.phases.fail("verify", "SidesDifferError: 2 rows differ")
    step = state_of(run.ledger).next_step
    assert "`walferry report both_pair`" in step
    assert "`walferry repair both_pair`" in step
