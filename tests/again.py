"""Run the parts of the tests, and then each test that failed once more, alone: `python tests/again.py`, for .ci/run.

Green if every test that ran has passed, at the first or at the second time. What passed at the second time only is
listed at the end, since there is a reason. Nothing is tried again if many tests failed, or if a part did not run to its
end.

CI ends a run after 90 minutes, and then says little of what it has found. `--minutes` says how many remain when this
starts. What runs when these are over is cut off. That is red for a part that has to run to its end; of the others, the
last lines say how far they came. Tests that were running then have not failed. With another `--turn`, another one of
the other parts comes first, so that each of them is run to its end from time to time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outcome import OUTCOME

MOST = 12
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
    to_its_end: bool = True
    """red if time does not suffice for it"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    cut_off: bool
    passed: int = 0
    failed: tuple[str, ...] = ()
    complete: bool = False
    """pytest says that it has run all of its tests"""

    @property
    def tells_all(self) -> bool:
        """Whether `failed` has everything that made it fail."""
        return self.complete and (not self.code or bool(self.failed))


PARTS = (
    Part("unit", ("make", "test-unit", "COVERAGE=1", ARGS)),
    Part("clusters", ("make", "test-clusters", ARGS)),
    Part("memory", ("make", "test-memory"), to_its_end=False),
    Part("chaos", ("make", "chaos", "SEED=1"), named=False, to_its_end=False),
    Part("chaos of a stream", ("make", "chaos", "MODE=stream", "SEED=4"), named=False, to_its_end=False),
    Part("long", ("make", "test-long", ARGS), to_its_end=False),
    Part("secured matrix", ("make", "test-security", "PYTEST_ARGS=-m matrix"), to_its_end=False),
    Part("versions", ("make", "test-versions", ARGS), to_its_end=False),
)
AGAIN = (".venv/bin/pytest", "-n", "0")
AGAIN_MINUTES = 10
"""kept free to run failed tests again, and for tests that are cut off to stop their servers"""
STOPPING_SECONDS = 120


def main(parts: Sequence[Part] = PARTS, again: Sequence[str] = AGAIN, minutes: float = math.inf, turn: int = 0) -> int:
    """Run the parts, with so many minutes left; 0 if all is green."""
    last = [part for part in parts if not part.to_its_end]
    first = turn % max(1, len(last))
    parts = [*(part for part in parts if part.to_its_end), *last[first:], *last[:first]]
    told, red = list[str](), list[str]()
    failed, whole = list[str](), list[Part]()
    end = time.monotonic() + 60 * minutes
    for part in parts:
        began = time.monotonic()
        if began > end - 60 * AGAIN_MINUTES:
            (red if part.to_its_end else told).append(f"{part.name}: left out, since time was over")
            continue
        ran = _run(part.command, end - 60 * AGAIN_MINUTES)
        took = f"{(time.monotonic() - began) / 60:.1f} minutes"
        if ran.cut_off:
            text = f"{part.name}: cut off after {took}" + (f", when {ran.passed} had passed" if part.named else "")
            (red if part.to_its_end else told).append(text)
        else:
            told.append(f"{part.name}: {took}")
        if not part.named:
            whole += [part] if ran.code and not ran.cut_off else []
        elif not (ran.cut_off or ran.tells_all):
            red.append(f"{part.name} did not run to its end")
        else:
            failed += ran.failed
    if len(failed) > MOST:
        red += [f"failed: {name}" for name in failed]
    elif failed:
        ran = _run((*again, *failed), end)
        twice = ran.failed if ran.tells_all else failed
        red += [f"failed twice: {name}" for name in twice]
        told += [f"failed, and passed when it was run again alone: {name}" for name in failed if name not in twice]
    for part in whole:
        ran = _run(part.command, end)
        text = f"failed twice: {part.name}" if ran.code else f"failed, and passed when it was run again: {part.name}"
        (red if ran.code else told).append(text)
    print("\n".join(["", *told, *red]), flush=True)
    return 1 if red else 0


def _run(command: Sequence[str], end: float) -> Outcome:
    """Run it until `end` of the monotonic clock at most, and then as long as it takes to stop its servers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcome"
        process = subprocess.Popen(
            command, env={**os.environ, OUTCOME: str(file)}, process_group=0, preexec_fn=_heed_interrupts
        )
        cut_off, at = False, math.inf
        try:
            code = process.wait(None if end == math.inf else max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            cut_off, at, code = True, time.time(), _interrupt(process)
        except BaseException:
            _interrupt(process)
            raise
        sessions = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return Outcome(
        code,
        cut_off,
        sum(session["passed"] for session in sessions),
        tuple(name for session in sessions for name, seconds in session["failed"].items() if seconds < at),
        bool(sessions) and all(session["exit"] in (_PASSED, _FAILED) for session in sessions),
    )


def _heed_interrupts() -> None:
    """What runs in the background of a shell ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt(process: subprocess.Popen[bytes]) -> int:
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.wait(STOPPING_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the tests of CI.")
    parser.add_argument("--minutes", type=float, default=math.inf, help="how many remain")
    parser.add_argument("--turn", type=int, default=0, help="which of the parts that may be cut off comes first")
    given = parser.parse_args()
    sys.exit(main(minutes=given.minutes, turn=given.turn))
