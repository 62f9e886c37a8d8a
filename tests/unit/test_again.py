"""A test that fails by chance turns nothing red, and is told; everything else that goes wrong does."""

from __future__ import annotations

import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import again
from again import Part, main

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "outcome", "-p", "no:cacheprovider", "--rootdir=.")
ONCE = """
from pathlib import Path

def test_once():
    seen = Path("seen")
    there = seen.exists()
    seen.touch()
    assert there
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(again.__file__).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of the time
    return tmp_path


def parts(folder: Path, **files: str) -> list[Part]:
    found = []
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
        found.append(Part(name, (*PYTEST, f"test_{name}.py")))
    return found


def last(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What the command tells at its end, without the times."""
    lines = capfd.readouterr().out.rpartition("\n\n")[2].strip().splitlines()
    return [line for line in lines if not re.fullmatch(r"[\w ]+: [\d.]+ minutes", line)]


def test_a_test_that_passes_at_the_second_time_is_told_at_the_end(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(parts(folder, fine="def test_fine(): pass", chance=ONCE), PYTEST) == 0
    assert last(capfd) == ["failed, and passed when it was run again alone: test_chance.py::test_once"]


def test_a_test_that_fails_twice_is_red_and_the_other_parts_are_run(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = (
        "import pytest\n@pytest.mark.parametrize('name', ['a b', '[c]'])\ndef test_wrong(name): assert name == 'a b'"
    )
    assert main(parts(folder, wrong=wrong, chance=ONCE), PYTEST) == 1
    assert last(capfd) == [
        "failed, and passed when it was run again alone: test_chance.py::test_once",
        "failed twice: test_wrong.py::test_wrong[[c]]",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef test_gone(): os._exit(0)",
        "import pytest\ndef test_wrong(): assert False\ndef test_ends(): pytest.exit('no more')",
        "",
    ],
    ids=["the process is gone", "it was ended", "there is no test"],
)
def test_a_part_that_did_not_run_to_its_end_is_red(text: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(parts(folder, broken=text), PYTEST) == 1
    assert last(capfd) == ["broken did not run to its end"]


def test_a_module_that_cannot_be_imported_and_a_fixture_that_fails_are_red(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef made(): raise ValueError\ndef test_made(made): pass"
    assert main(parts(folder, lost="import nothing_of_this_name", fixture=fixture), PYTEST) == 1
    told = last(capfd)
    assert "failed twice: test_fixture.py::test_made" in told
    assert any("lost" in line for line in told)


def test_many_failures_are_no_chance(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tests = "\n".join(f"def test_{number}(): assert False" for number in range(again.MOST + 1))
    assert main(parts(folder, many=tests), ("false",)) == 1
    assert len(last(capfd)) == again.MOST + 1


@pytest.mark.parametrize(("command", "red"), [("test -e seen || { touch seen; false; }", 0), ("false", 1)])
def test_what_passes_or_fails_as_a_whole_is_run_again(
    command: str, red: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([Part("chaos", ("sh", "-c", command), named=False)]) == red
    assert last(capfd) == ["failed twice: chaos" if red else "failed, and passed when it was run again: chaos"]


SLOW = """
import time

def test_first(): pass

def test_wrong(): assert False

def test_slow():
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        assert False, "its server was interrupted, too"
"""


@pytest.fixture
def time_is_short(monkeypatch: pytest.MonkeyPatch) -> float:
    """So many minutes that ten seconds are left for the parts."""
    monkeypatch.setattr(again, "AGAIN_MINUTES", 10)
    return 10 + 10 / 60


def test_a_part_that_need_not_run_to_its_end_is_cut_off_and_what_failed_in_it_is_run_again(
    folder: Path, time_is_short: float, capfd: pytest.CaptureFixture[str]
) -> None:
    [slow] = parts(folder, slow=SLOW)
    slow = replace(slow, to_its_end=False)
    after = Part("after", ("true",), named=False, to_its_end=False)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    try:
        assert main([slow, after], PYTEST, minutes=time_is_short) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    cut, left_out, twice = last(capfd)
    assert re.fullmatch(r"slow: cut off after 0\.\d minutes, when 1 had passed", cut)
    assert left_out == "after: left out, since time was over"
    assert twice == "failed twice: test_slow.py::test_wrong"


def test_each_part_that_may_be_cut_off_comes_first_in_turn_after_all_others(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = [Part(name, ("sh", "-c", f"echo {name} >> ran"), named=False, to_its_end=False) for name in "abc"]
    made.insert(1, Part("unit", ("sh", "-c", "echo unit >> ran"), named=False))
    for turn in range(4):
        assert main(made, turn=turn) == 0
    assert (folder / "ran").read_text().split() == [
        *("unit", "a", "b", "c"), *("unit", "b", "c", "a"), *("unit", "c", "a", "b"), *("unit", "a", "b", "c"),
    ]  # fmt: skip


def test_a_part_that_has_to_run_to_its_end_is_red_without_the_time_for_it(
    time_is_short: float, capfd: pytest.CaptureFixture[str]
) -> None:
    hangs = Part("hangs", ("sleep", "600"), named=False)
    assert main([hangs, Part("after", ("true",), named=False)], minutes=time_is_short) == 1
    assert last(capfd) == ["hangs: cut off after 0.2 minutes", "after: left out, since time was over"]


def test_what_ignores_the_interrupt_is_killed(
    folder: Path, time_is_short: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "STOPPING_SECONDS", 1)
    deaf = "trap '' INT; touch began; while :; do sleep 1; done"
    began = time.monotonic()
    assert main([Part("deaf", ("sh", "-c", deaf), named=False, to_its_end=False)], minutes=time_is_short) == 0
    assert (folder / "began").exists()
    assert time.monotonic() - began < 300
