"""Run the parts of the tests, and then each test that failed once more, alone: `python tests/again.py`, for .ci/run.

Green if every test that ran has passed, at the first or at the second time. What passed at the second time only is
listed at the end, since there is a reason. Nothing is tried again if many tests failed, or if a part did not run to its
end.

CI ends a run after 90 minutes. `--minutes` says how many remain when this starts. On a slow machine, a part that may be
left out is left out if it would not end in time, and the last lines say so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outcome import OUTCOME

MOST = 5
"""tests that are run again"""
_PASSED, _FAILED = 0, 1
"""pytest.ExitCode: anything else means that not all tests were run"""
ARGS = "PYTEST_ARGS=--durations=25"


@dataclass(frozen=True)
class Part:
    """A command that runs tests with pytest or, without `named`, something that passes or fails as a whole."""

    name: str
    command: Sequence[str]
    named: bool = True
    minutes: float = 0
    """what it takes on two idle cores"""
    always: bool = True
    """run it even if it may not end in time"""


PARTS = (
    Part("unit", ("make", "test-unit", "COVERAGE=1", ARGS), minutes=5),
    Part("clusters", ("make", "test-clusters", ARGS), minutes=47),
    Part("memory", ("make", "test-memory"), minutes=3, always=False),
    Part("versions", ("make", "test-versions", ARGS), minutes=23, always=False),
    Part("chaos", ("make", "chaos", "SEED=1"), named=False, minutes=4, always=False),
    Part("chaos of a stream", ("make", "chaos", "MODE=stream", "SEED=4"), named=False, minutes=2, always=False),
    Part("secured matrix", ("make", "test-security", "PYTEST_ARGS=-m matrix"), minutes=8, always=False),
)
AGAIN = (".venv/bin/pytest", "-n", "0")
AGAIN_MINUTES = 5
"""kept free to run failed tests again"""


def main(parts: Sequence[Part] = PARTS, again: Sequence[str] = AGAIN, minutes: float = math.inf) -> int:
    """Run the parts, with so many minutes left; 0 if all is green."""
    told, red = list[str](), list[str]()
    failed, whole = list[str](), list[Part]()
    started, usual = time.monotonic(), 0.0
    for part in parts:
        began = time.monotonic()
        passed = (began - started) / 60
        pace = max(1.0, passed / usual) if usual else 1.0
        if not part.always and passed + part.minutes * pace + AGAIN_MINUTES > minutes:
            told.append(f"{part.name}: left out, since {passed:.0f} of {minutes:.0f} minutes had passed")
            continue
        code, tests = _run(part.command)
        usual += part.minutes
        told.append(f"{part.name}: {(time.monotonic() - began) / 60:.1f} minutes")
        if not part.named:
            whole += [part] if code else []
        elif tests is None or (code and not tests):
            red.append(f"{part.name} did not run to its end")
        else:
            failed += tests
    if len(failed) > MOST:
        red += [f"failed: {name}" for name in failed]
    elif failed:
        code, tests = _run((*again, *failed))
        twice = failed if tests is None or (code and not tests) else tests
        red += [f"failed twice: {name}" for name in twice]
        told += [f"failed, and passed when it was run again alone: {name}" for name in failed if name not in twice]
    for part in whole:
        code, _ = _run(part.command)
        text = f"failed twice: {part.name}" if code else f"failed, and passed when it was run again: {part.name}"
        (red if code else told).append(text)
    print("\n".join(["", *told, *red]), flush=True)
    return 1 if red else 0


def _run(command: Sequence[str]) -> tuple[int, list[str] | None]:
    """The exit code of a command, and the tests that failed; None if it is not known that all of them were run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcome"
        code = subprocess.run(command, env={**os.environ, OUTCOME: str(file)}, check=False).returncode
        sessions = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if not sessions or any(session["exit"] not in (_PASSED, _FAILED) for session in sessions):
        return code, None
    return code, [name for session in sessions for name in session["failed"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the tests of CI.")
    parser.add_argument("--minutes", type=float, default=math.inf, help="how many remain")
    sys.exit(main(minutes=parser.parse_args().minutes))
