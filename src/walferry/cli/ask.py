"""Ask a person at the terminal while work continues."""

from __future__ import annotations

import logging
import select
import sys
import termios
from collections.abc import Callable
from contextlib import suppress

from walferry.errors import UsageError

LOOK_SECONDS = 1.0
"""how often `at_work` is called"""


class _Prompt(logging.Handler):
    """Repeats the open question after each log line, so that it is always the last line."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def emit(self, record: logging.LogRecord | None) -> None:
        print(f"{self.question} [y/N]: ", end="", file=sys.stderr, flush=True)


def ask(question: str, at_work: Callable[[], None]) -> bool:
    """Ask at the terminal and call `at_work` regularly until there is an answer. UsageError without a terminal.

    The question goes to stderr: stdout is for the report.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to answer in: run the command in one, or with --yes")
    with suppress(termios.error):  # input typed before the question is no answer to it
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    prompt = _Prompt(question)
    logging.getLogger().addHandler(prompt)
    try:
        while True:
            prompt.emit(None)
            while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
                at_work()
            answer = sys.stdin.readline().strip().lower()
            if answer in ("y", "yes"):
                return True
            if answer in ("", "n", "no"):
                return False
            print("answer y or n", file=sys.stderr)
    except BaseException:
        print(file=sys.stderr)  # the error goes on a line of its own
        raise
    finally:
        logging.getLogger().removeHandler(prompt)
