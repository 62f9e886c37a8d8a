"""The command as its users meet it: what it prints, its exit code, one line for each error."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from unit.migration.filled_ledger import filled
from unit.streams.stream_ledger import brought_to, opened
from walferry import cli, clock
from walferry.cli import ask, main, runs
from walferry.errors import GapError, UsageError
from walferry.ledger import Ledger, NumberGap
from walferry.run.heartbeat import NOTE, this_process

FIXTURES = Path(__file__).parents[1] / "fixtures" / "wal"
UNREACHABLE = "{zookeeper: '127.0.0.1:1', webhdfs: 'http://127.0.0.1:1', rootdir: 'hdfs://127.0.0.1:1/hbase'}"


@pytest.fixture(scope="module")
def filled_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "ledger.db"
    with Ledger.open(f"sqlite:///{path}", actor="tester") as book:
        filled(book)
    return path


@pytest.fixture
def ledger(filled_ledger: Path, tmp_path: Path) -> Path:
    """A ledger with one run, `move-1`."""
    return Path(shutil.copy(filled_ledger, tmp_path))


@dataclass(frozen=True)
class Answer:
    """What a run of the command gave."""

    returncode: int
    stdout: str
    stderr: str


def walferry(folder: Path, *arguments: str) -> Answer:
    """Run the command in `folder`, with the ledger that lies there, in this process (a start takes seconds)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["walferry", *arguments])
        patch.setenv("WALFERRY_LEDGER", f"sqlite:///{folder / 'ledger.db'}")
        for side in ("SOURCE", "TARGET"):
            patch.delenv(f"AIRFLOW_CONN_HBASE_{side}", raising=False)
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def refused(answer: Answer, code: int) -> str:
    """The one line of an error; fails for a traceback, for more lines, and for another exit code."""
    assert answer.returncode == code, answer.stderr
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def spec(folder: Path, text: str) -> str:
    path = folder / "move.yaml"
    path.write_text(text)
    return str(path)


def test_a_missing_spec_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "walferry.cli", "plan", "nowhere.yaml"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    line = refused(Answer(process.returncode, process.stdout, process.stderr), 2)
    assert line == "cannot read the spec nowhere.yaml: No such file or directory"


def test_a_spec_that_is_no_yaml_is_one_line(tmp_path: Path) -> None:
    assert "is not YAML in line 1" in refused(walferry(tmp_path, "start", spec(tmp_path, "name: [a")), 2)


def test_a_spec_with_faults_is_one_line(tmp_path: Path) -> None:
    line = refused(walferry(tmp_path, "plan", spec(tmp_path, "name: move\ntables: [a]\nspeed: 3")), 2)
    assert line.endswith("move.yaml: speed: unknown key")


def test_a_connection_that_is_not_there_is_one_line_that_says_how_to_give_it(tmp_path: Path) -> None:
    line = refused(walferry(tmp_path, "plan", spec(tmp_path, "name: move\ntables: [a]")), 2)
    assert "set AIRFLOW_CONN_HBASE_SOURCE" in line


def test_a_cluster_that_does_not_answer_is_one_line_that_names_it(tmp_path: Path) -> None:
    text = f"name: move\ntables: [a]\nsource: {UNREACHABLE}\ntarget: {UNREACHABLE}"
    answer = walferry(tmp_path, "plan", spec(tmp_path, text))
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    line = answer.stderr.splitlines()[-1]
    assert line.startswith("error: source.webhdfs: WebHDFS at http://127.0.0.1:1 does not answer")


@pytest.mark.parametrize(
    "command",
    [
        ("status", "other"),
        ("report", "other"),
        ("verify", "other"),
        ("replay", "other"),
        ("pause", "other"),
        ("throttle", "other"),
        ("resume", "other"),
        ("abort", "other", "--reason", "r"),
        ("quarantine", "list", "other"),
        ("quarantine", "show", "other", "1"),
        ("quarantine", "release", "other", "1", "--how", "accept", "--reason", "r"),
    ],
    ids=" ".join,
)
def test_an_unknown_run_is_one_line(command: tuple[str, ...], tmp_path: Path, ledger: Path) -> None:
    assert "knows no run 'other'" in refused(walferry(tmp_path, *command), 2)


def test_an_unknown_quarantine_item_is_one_line(tmp_path: Path, ledger: Path) -> None:
    assert refused(walferry(tmp_path, "quarantine", "show", "move", "77"), 2).startswith(
        "run move-1 has no quarantine item 77"
    )
    release = ("quarantine", "release", "move", "77", "--how", "accept", "--reason", "r")
    assert "has no quarantine item 77" in refused(walferry(tmp_path, *release), 2)


def test_a_ledger_of_a_newer_walferry_is_one_line(tmp_path: Path, ledger: Path) -> None:
    with sqlite3.connect(ledger) as connection:
        connection.execute("INSERT INTO schema_versions SELECT version + 1000, name, applied_ms FROM schema_versions")
    assert "install the newer walferry" in refused(walferry(tmp_path, "status", "move"), 2)


@pytest.mark.parametrize(
    "command",
    [
        ("status", "move"),
        ("report", "move"),
        ("quarantine", "list", "move"),
    ],
    ids=" ".join,
)
def test_json_is_json_and_nothing_else(command: tuple[str, ...], tmp_path: Path, ledger: Path) -> None:
    answer = walferry(tmp_path, *command, "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert json.loads(answer.stdout)


def test_a_quarantine_item_is_shown_with_its_bytes(tmp_path: Path, ledger: Path) -> None:
    answer = walferry(tmp_path, "quarantine", "show", "move", "1")
    item = json.loads(answer.stdout)
    assert (item["id"], item["state"], item["data"]) == (1, "held", "00ff")


def test_the_quarantine_is_listed_for_people(tmp_path: Path, ledger: Path) -> None:
    assert "damaged" in walferry(tmp_path, "quarantine", "list", "move").stdout


def test_a_stream_has_a_status_and_a_report_of_its_own(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="tester") as book:
        brought_to(opened(book, "cli kim"), "following")
    lines = walferry(tmp_path, "status", "changes").stdout.splitlines()
    assert lines[0].startswith("changes-1: stream: Sent: 70, ")
    assert lines[1].startswith("following: changes are sent: lag ")
    assert lines[2] == "next step: none: the stream goes on until `walferry abort changes --reason …`"
    assert lines[3].startswith("the log is kept by peer walferry_changes_1: 2 files, ")
    assert len(lines) == 4
    assert "orders -> topic default.orders" in walferry(tmp_path, "report", "changes").stdout


def test_a_throttle_is_set_shown_and_removed_and_one_of_nothing_is_one_line(tmp_path: Path, ledger: Path) -> None:
    def limits() -> object:
        return json.loads(walferry(tmp_path, "status", "move", "--json").stdout)["throttle"]["write_cells"]

    assert walferry(tmp_path, "throttle", "move").stdout == "move-1: writes without a limit\n"
    assert "give a number above 0" in refused(walferry(tmp_path, "throttle", "move", "--write-cells", "0"), 2)
    assert walferry(tmp_path, "throttle", "move", "--write-cells", "50k", "--dry-run").returncode == 0
    assert limits() is None
    changed = walferry(tmp_path, "throttle", "move", "--write-cells", "50k", "--write-bytes", "20MB")
    assert changed.stdout == "move-1: writes at most 20.0 MB/s and 50000 cells/s\n"
    assert limits() == 50_000
    assert "throttle: writes at most 20.0 MB/s" in walferry(tmp_path, "status", "move").stdout
    assert walferry(tmp_path, "throttle", "move", "--off").returncode == 0
    assert limits() is None


def test_pause_and_resume_are_seen_in_the_status_and_a_dry_run_changes_nothing(tmp_path: Path, ledger: Path) -> None:
    def state() -> str:
        return str(json.loads(walferry(tmp_path, "status", "move", "--json").stdout)["state"])

    assert walferry(tmp_path, "pause", "move", "--dry-run").stdout == "would pause move-1 (interrupted now)\n"
    assert state() == "interrupted"
    assert walferry(tmp_path, "pause", "move", "--reason", "lunch").returncode == 0
    assert state() == "paused"
    assert walferry(tmp_path, "resume", "move", "--dry-run").stdout.startswith("would resume move-1 (paused now")
    assert state() == "paused"


def test_missing_numbers_are_accepted_for_the_run_and_told_with_the_status(tmp_path: Path, ledger: Path) -> None:
    asked = ("accept-numbers", "move", "--table", "shop:orders", "--reason", "skips the log")

    def find(first: int, *, only_count: bool = False) -> None:
        with Ledger.open(f"sqlite:///{ledger}", actor="tester") as book:
            numbers = book.of("move-1").numbers
            gap = NumberGap("shop:orders", "abc", first, first + 3, "file.1", "file.2", 1)
            book.of("move-1").log.set_ranges([], None, numbers.change([], [gap], [], only_count=only_count))

    find(1, only_count=True)
    assert "WARNING: the log of shop:orders lacks 4 numbers at 1 place" in walferry(tmp_path, "status", "move").stdout
    find(11)
    assert "no source table 'other'" in refused(walferry(tmp_path, *asked[:3], "other", *asked[4:]), 2)
    for more, told in (("--dry-run", "would be accepted"), ("", "are accepted")):
        answer = walferry(tmp_path, *asked, *more.split()).stdout
        assert answer.splitlines() == [
            f"missing numbers of shop:orders {told} until move-1 ends; found so far without a decision: 1",
            "  region abc of shop:orders has no entries 11 to 14 (4) between the WAL files file.1 and file.2",
        ]
    find(21)
    facts = json.loads(walferry(tmp_path, *asked, "--json").stdout)
    assert (facts["run"], facts["accepted"]) == ("move-1", [])
    shown = walferry(tmp_path, "status", "move").stdout
    assert "accepted for this run by" in shown
    assert "skips the log; counted: 8 numbers at 2 places" in shown
    assert "WARNING: the log of" not in shown


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "not paused"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "alive"])
def test_resume_continues_a_run_here_unless_its_process_is_alive_and_only_paused(
    paused: bool, killed: bool, tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of a killed process stays until its ZooKeeper session ends: it does not show who is alive."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    process = this_process() | {"by": "kim@host"} | ({"pid": ended.pid} if killed else {})
    with Ledger.open(f"sqlite:///{ledger}", actor="tester") as book:
        book.set_paused("move-1", paused, "tester")
        book.of("move-1").notes.keep(NOTE, process, "")
    continued: list[str] = []
    monkeypatch.setattr(runs, "_go", lambda book, run_id, *_: continued.append(run_id))
    answer = walferry(tmp_path, "resume", "move", "--yes")
    if not (killed or paused):
        assert refused(answer, 2).startswith(f"kim@host (process {os.getpid()}) has been working on move-1 since 20")
        assert not continued
        return
    assert answer.returncode == 0, answer.stderr
    assert continued == (["move-1"] if killed else [])
    assert answer.stdout == ("" if killed else "move-1 continues in the process that runs it\n")
    with Ledger.open(f"sqlite:///{ledger}") as book:
        assert not book.run("move-1").paused


@pytest.mark.parametrize(("age_s", "refuses"), [(14, True), (16, False)])
def test_a_run_that_a_process_of_any_machine_works_on_is_not_started_a_second_time(
    age_s: int, refuses: bool, tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the second process took the run over without a word."""
    text = f"name: again\nsource: {UNREACHABLE}\ntarget: {UNREACHABLE}\ntables: ['shop:orders']\n"
    begun: list[str] = []
    monkeypatch.setattr(runs, "_go", lambda book, run_id, *_: begun.append(run_id))
    assert walferry(tmp_path, "start", spec(tmp_path, text), "--yes").returncode == 0
    with Ledger.open(f"sqlite:///{ledger}", actor="tester") as book:
        other = {"by": "kim@far", "since_ms": 1_700_000_000_000, "pid": 7, "machine": "another"}
        book.of("again-1").notes.keep(NOTE, other, "replay")
    now = clock.now_ms() + age_s * 1000
    monkeypatch.setattr(clock, "now_ms", lambda: now)
    answer = walferry(tmp_path, "start", spec(tmp_path, text), "--yes")
    if not refuses:
        assert (answer.returncode, begun) == (0, ["again-1"] * 2), answer.stderr
        return
    told = refused(answer, 2)
    assert told.startswith("kim@far (process 7) has been working on again-1 since 2023-11-14 22:13:20 UTC, and sent")
    assert "end that process, then `walferry resume again`; if it was killed, it counts as dead 15 s after" in told
    assert begun == ["again-1"]


def test_what_an_abort_would_remove_is_told_as_json_too(tmp_path: Path, ledger: Path) -> None:
    answer = walferry(tmp_path, "abort", "move", "--reason", "r", "--dry-run", "--json")
    told = {"run": "move-1", "dry_run": True, "removed": ["peer walferry_move_1 at the source"], "left": []}
    told |= {"stays_read_only": []}
    assert json.loads(answer.stdout) == told


def test_a_dry_run_of_abort_names_what_it_would_remove(tmp_path: Path, ledger: Path) -> None:
    answer = walferry(tmp_path, "abort", "move", "--reason", "r", "--dry-run")
    assert answer.stdout == "would abort move-1 and remove: peer walferry_move_1 at the source\n"


def test_the_report_is_printed_and_written_beside_the_audit_head(tmp_path: Path, ledger: Path) -> None:
    answer = walferry(tmp_path, "report", "move", "--reports", "reports")
    folder = tmp_path / "reports" / "move-1"
    assert (folder / "report.txt").read_text() == answer.stdout
    head = json.loads((folder / "audit-head.json").read_text())
    assert json.loads((folder / "report.json").read_text())["audit_head"] == head
    with Ledger.open(f"sqlite:///{ledger}") as book:
        kept = book.audit_head()
    assert head == {"sequence": kept.sequence, "hash": kept.hash}


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_trail_that_was_tampered_with_is_one_line(command: str, tmp_path: Path, ledger: Path) -> None:
    with sqlite3.connect(ledger) as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("UPDATE audit SET actor = 'nobody' WHERE sequence = 2")
    assert "the audit trail is broken: line 2" in refused(walferry(tmp_path, command, "move"), 1)


def test_a_trail_that_is_shorter_than_the_head_noted_before_is_one_line(tmp_path: Path, ledger: Path) -> None:
    assert walferry(tmp_path, "report", "move", "--reports", "reports").returncode == 0
    noted = (tmp_path / "reports" / "move-1" / "audit-head.json").read_text()
    with sqlite3.connect(ledger) as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)")
    answer = walferry(tmp_path, "report", "move", "--reports", "reports")
    assert "were cut off the end" in refused(answer, 1)
    assert (tmp_path / "reports" / "move-1" / "audit-head.json").read_text() == noted


def test_an_audit_head_that_was_overwritten_is_one_line(tmp_path: Path, ledger: Path) -> None:
    assert walferry(tmp_path, "report", "move").returncode == 0
    (tmp_path / ".run" / "reports" / "move-1" / "audit-head.json").write_text("{}")
    assert "does not hold an audit head" in refused(walferry(tmp_path, "report", "move"), 1)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, ledger: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    answer = walferry(tmp_path, "report", "move", "--reports", "taken")
    assert refused(answer, 1) == "taken/move-1: Not a directory"


def test_where_no_ledger_is_a_verb_about_a_run_makes_none(tmp_path: Path) -> None:
    assert "there is no ledger" in refused(walferry(tmp_path, "status", "move"), 2)
    assert list(tmp_path.iterdir()) == []


def test_the_log_reader_tells_unfinished_and_damaged_files_by_its_exit_code(tmp_path: Path) -> None:
    assert walferry(tmp_path, "wal", "cat", str(FIXTURES / "closed.wal")).returncode == 0
    assert walferry(tmp_path, "wal", "cat", str(FIXTURES / "killed.wal")).returncode == 3
    (tmp_path / "damaged.wal").write_bytes(b"this is no WAL at all, of whatever length")
    assert walferry(tmp_path, "wal", "cat", "damaged.wal").returncode == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--tls-ca", "/ca.pem"),
            "--tls-ca: no URL is https, so nothing uses it: write swebhdfs://host:port/…",
        ),
        (("--tls-key", "me.key"), "--tls-key: give the whole path of a PEM file, never its content"),
        (("--tls-certificate", "/me.pem"), "--tls-certificate: give certificate and key together"),
        (("--keytab", "/k", "--ccache", "/c"), "--ccache and --keytab: give keytab or ccache, not both"),
    ],
)
@pytest.mark.parametrize("verb", [("wal", "cat", "/a"), ("wal", "stat", "/a"), ("snapshot", "stat", "/a", "s")])
def test_an_option_for_secured_clusters_that_is_wrong_is_named(
    verb: tuple[str, ...], options: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    assert refused(walferry(tmp_path, *verb, *options), 2).startswith(told)


def test_each_refusal_of_a_plan_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Hole: refusals, and the commands in them, were all joined by "; "."""
    told = ["HBase: grant it: grant 'me', 'A'; grant 'me', 'RW', 'a'", "b: it is disabled; enable it"]

    def app() -> None:
        raise UsageError(f"the plan refuses: {'; '.join(told)}", refusals=told)

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["walferry", "plan"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == ["error: the plan refuses:", *(f"  {one}" for one in told)]


@pytest.mark.parametrize("arguments", [("nonsense",), ("plan",), ("abort", "move"), ("status", "move", "--colour")])
def test_a_command_line_that_cannot_be_read_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    answer = walferry(tmp_path, *arguments)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("command", ["plan", "start"])
def test_a_migration_with_a_time_window_is_refused(command: str, tmp_path: Path) -> None:
    window = "{from: '2026-11-21T00:00', to: '2026-11-21T01:00'}"
    text = f"name: move\nsource: {UNREACHABLE}\ntarget: {UNREACHABLE}\ntables: [t]\nwindow: {window}\n"
    assert "window: a migration has none" in refused(walferry(tmp_path, command, spec(tmp_path, text)), 2)


def test_an_open_question_is_the_last_line_whatever_is_logged_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask, "LOOK_SECONDS", 0.05)
    here, there = os.openpty()
    with os.fdopen(there) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        looks: list[int] = []

        def at_work() -> None:
            looks.append(len(looks))
            logging.getLogger("walferry").warning("round %d", len(looks))
            if len(looks) in (1, 3):
                os.write(here, b"perhaps\n" if len(looks) == 1 else b"y\n")

        assert ask.ask("Cut over?", at_work)
    os.close(here)
    lines = capsys.readouterr().err.split("Cut over? [y/N]: ")
    assert lines[2] == "answer y or n\n"
    assert len(lines) == 1 + 2 + 3  # asked, asked again after "perhaps", and after each line of the log


def test_what_was_typed_before_a_question_does_not_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: whoever typed a second "y" after the first question had said that all writes had stopped."""
    monkeypatch.setattr(ask, "LOOK_SECONDS", 0.05)
    here, there = os.openpty()
    os.write(here, b"y\ny\n")
    with os.fdopen(there) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)

        def at_work() -> None:
            os.write(here, b"n\n")

        assert not ask.ask("Have all writes to the source stopped?", at_work)
    os.close(here)


def test_a_replay_that_fails_ends_an_open_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask, "LOOK_SECONDS", 0.05)
    here, there = os.openpty()

    def at_work() -> None:
        raise GapError("a file is gone", file="f")

    with os.fdopen(there) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(GapError):
            ask.ask("Cut over?", at_work)
    os.close(here)
    assert capsys.readouterr().err == "Cut over? [y/N]: \n", "the error comes on a line of its own"


def test_help_and_usage_errors_need_none_of_the_large_packages() -> None:
    """They take seconds to import."""
    told = "import sys, walferry.cli; print({'numpy', 'numba', 'pyarrow', 'sqlalchemy', 'pyspark'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "the NAME of a run, or --pair with a spec"),
        (("move", "--pair", "x.yaml"), "the NAME of a run, or --pair with a spec"),
        (("move", "--dry-run"), "are for --pair"),
        (("move", "--whole-every", "3"), "are for --pair"),
        (("--pair", "x.yaml"), "cannot read the spec x.yaml"),
    ],
)
def test_verify_says_what_it_needs_to_know(ledger: Path, arguments: tuple[str, ...], told: str) -> None:
    answer = walferry(ledger.parent, "verify", *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert told in answer.stderr


def test_a_pair_is_not_resumed_but_verified_again(ledger: Path) -> None:
    with Ledger.open(f"sqlite:///{ledger}") as book:
        book.open_run("shop", "pair", book.run("move-1").spec, "pair", "pair")
    answer = walferry(ledger.parent, "resume", "shop")
    assert answer.returncode == 2
    assert "`walferry verify --pair SPEC` does its next pass" in answer.stderr
