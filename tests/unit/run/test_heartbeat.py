"""What is known of a process that gave a sign of life."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from walferry.run.heartbeat import gone, this_process


@pytest.fixture
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_of_this_machine_is_gone_once_it_has_ended(ended: int) -> None:
    assert gone(this_process() | {"pid": ended})
    assert not gone(this_process())


def test_nothing_is_known_of_a_machine_with_the_same_host_name_and_namespace(
    ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another = this_process() | {"pid": ended}
    read = Path.read_text

    def other_boot(path: Path, *args: str) -> str:
        return "another boot" if path.name == "boot_id" else read(path, *args)

    monkeypatch.setattr(Path, "read_text", other_boot)
    assert not gone(of_another)


def test_nothing_is_known_where_machines_cannot_be_told_apart(ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_proc(_: str) -> str:
        raise OSError

    monkeypatch.setattr(os, "readlink", no_proc)
    assert not gone(this_process() | {"pid": ended})
