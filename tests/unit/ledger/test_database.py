"""What the ledger's database promises: its schema, and many processes at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text

from walferry.errors import UsageError, WalferryError
from walferry.ledger import Ledger, RunRecord


class TestOpening:
    def test_a_ledger_opened_again_knows_its_runs(self, ledger: Ledger, ledger_url: str, run: RunRecord) -> None:
        with Ledger.open(ledger_url) as again:
            assert again.runs() == [run]

    def test_a_schema_newer_than_this_walferry_is_refused_by_its_name(self, ledger: Ledger, ledger_url: str) -> None:
        engine = create_engine(ledger_url)
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO schema_versions VALUES (9001, '9001_shards', 0)"))
        engine.dispose()
        with pytest.raises(UsageError, match="9001_shards"):
            Ledger.open(ledger_url)

    def test_the_password_of_the_url_is_never_shown(self) -> None:
        with pytest.raises(WalferryError) as caught:
            Ledger.open("postgresql+psycopg2://keeper:hunter2@127.0.0.1:1/ledger")
        assert "127.0.0.1" in str(caught.value)
        assert "hunter2" not in f"{caught.value} {caught.value.facts}"

    @pytest.mark.parametrize("url", ["sqlite://", "mysql://host/ledger", "no url"])
    def test_a_url_that_cannot_keep_a_ledger_is_a_usage_error(self, url: str) -> None:
        with pytest.raises(UsageError, match="ledger"):
            Ledger.open(url)


class TestOneMoment:
    def test_what_others_write_shows_after_the_block_and_other_threads_see_it_at_once(
        self, ledger: Ledger, ledger_url: str, run: RunRecord
    ) -> None:
        ours = ledger.of(run.run_id)
        with Ledger.open(ledger_url, actor="other") as others:
            with ours.one_moment():
                assert ours.notes.text("seen") == ""
                others.of(run.run_id).notes.keep_text("seen", "by another")
                assert ours.notes.text("seen") == ""
                with ours.one_moment():
                    assert ours.notes.text("seen") == ""
                with ThreadPoolExecutor(1) as thread:
                    assert thread.submit(ours.notes.text, "seen").result() == "by another"
            assert ours.notes.text("seen") == "by another"

    def test_whoever_asks_for_now_sees_what_others_wrote_and_then_the_moment_again(
        self, ledger: Ledger, run: RunRecord
    ) -> None:
        ours = ledger.of(run.run_id)
        with ours.one_moment():
            assert ours.notes.text("seen") == ""
            ours.notes.keep_text("seen", "after the moment")
            with ours.now():
                assert ours.notes.text("seen") == "after the moment"
            assert ours.notes.text("seen") == ""

    def test_an_error_in_the_block_ends_the_moment(self, ledger: Ledger, run: RunRecord) -> None:
        ours = ledger.of(run.run_id)
        with pytest.raises(ValueError, match="wrong"), ours.one_moment():
            raise ValueError("wrong")
        ours.notes.keep_text("seen", "now")
        assert ours.notes.text("seen") == "now"


WRITER = """
import sys
from walferry.ledger import Ledger, SeenFile
url, writer, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
ledger = Ledger.open(url, actor=writer)
run = ledger.open_run("shared", "all", {"tables": ["t"]}, writer)
ledger = ledger.of(run.run_id)
print("ready", flush=True)
for number in range(rounds):
    ledger.log.see_files([SeenFile(f"{writer}.{number}", writer, writer, number, "/w", 1, True)])
    ledger.phases.start("replay", writer)
"""


def writers(url: str, count: int, rounds: int) -> Sequence[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, f"writer{number}", str(rounds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


class TestProcesses:
    def test_four_processes_write_a_new_ledger_at_once_and_the_chain_holds(self, ledger_url: str) -> None:
        processes = writers(ledger_url, count=4, rounds=15)
        assert [process.communicate(timeout=120)[1] for process in processes] == [""] * 4
        with Ledger.open(ledger_url) as ledger:
            ledger.verify_audit()
            (run,) = ledger.runs()
            assert len(ledger.of(run.run_id).log.files()) == 4 * 15
            assert [phase.attempts for phase in ledger.of(run.run_id).phases.all()] == [15] * 4
            assert ledger.audit_head().sequence == 1 + 4 * 15 * 2

    def test_a_killed_writer_leaves_changes_and_audit_lines_in_step(self, ledger_url: str) -> None:
        (process,) = writers(ledger_url, count=1, rounds=100_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with Ledger.open(ledger_url) as ledger:
            while len(ledger.of("shared-1").log.files()) < 20:
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
            ledger.of("shared-1").phases.start("resume")
            ledger.verify_audit()
            told = [line.action for line in ledger.of("shared-1").audit_trail()]
            assert told.count("see WAL files") == len(ledger.of("shared-1").log.files())
            replay = next(phase for phase in ledger.of("shared-1").phases.all() if phase.phase == "replay")
            assert told.count("start phase") == replay.attempts + 1
