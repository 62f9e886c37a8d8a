"""Server processes are told apart from strangers, watched while they start, and stopped with all they started."""

from __future__ import annotations

import dataclasses
import socket
import stat
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from walferry.embedded import processes
from walferry.embedded.airflow import write_private
from walferry.embedded.processes import ServerProcess
from walferry.errors import WalferryError

SLEEPER = "import time; print('ready', flush=True); time.sleep(300)"
PARENT = textwrap.dedent(
    """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    print("child", child.pid, flush=True)
    time.sleep(300)
    """
)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ServerProcess]:
    server = start(tmp_path, SLEEPER)
    yield server
    processes.kill(server)


def start(folder: Path, program: str) -> ServerProcess:
    return processes.start("sleeper", [sys.executable, "-c", program], folder / "log", folder=folder)


def soon() -> float:
    return time.monotonic() + 20


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = processes.free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_no_port_is_given_out_twice_though_nobody_listens_on_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and target are laid out one after the other, and boot later."""
    monkeypatch.setattr(processes, "_given", set())
    monkeypatch.setattr(processes, "HIGHEST_PORT", processes.LOWEST_PORT + 60)
    given = [port for _ in range(4) for port in processes.free_ports(7)]
    assert len(set(given)) == 28


def test_a_server_is_stopped_with_its_children_even_if_it_ignores_sigterm(tmp_path: Path) -> None:
    server = start(tmp_path, PARENT)
    child = int(server.await_line(r"child \d+", soon()).split()[1])
    assert psutil.pid_exists(child)
    processes.stop([server], grace_s=0.5)
    assert not server.is_alive()
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_pid_that_now_belongs_to_another_process_is_left_alone(sleeper: ServerProcess) -> None:
    sleeper.await_line("ready", soon())
    recorded_long_ago = dataclasses.replace(sleeper, started=sleeper.started - 100)
    assert not recorded_long_ago.is_alive()
    processes.stop([recorded_long_ago], grace_s=0.5)
    processes.kill(recorded_long_ago)
    assert sleeper.is_alive()


def test_a_server_that_ends_while_it_starts_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = start(tmp_path, "print('out of luck')")
    with pytest.raises(WalferryError, match=r"(?s)sleeper ended while it was starting.*out of luck"):
        server.await_line("ready", soon())


def test_a_server_that_is_not_ready_in_time_is_reported(sleeper: ServerProcess) -> None:
    with pytest.raises(WalferryError, match="sleeper is not ready in time"):
        sleeper.await_line("never printed", time.monotonic() + 0.3)


def test_a_restarted_server_is_not_taken_for_ready_by_what_its_forerunner_logged(tmp_path: Path) -> None:
    first = start(tmp_path, SLEEPER)
    first.await_line("ready", soon())
    processes.kill(first)
    second = start(tmp_path, "import time; time.sleep(300)")
    try:
        with pytest.raises(WalferryError, match="not ready in time"):
            second.await_line("ready", time.monotonic() + 0.5)
    finally:
        processes.kill(second)


def test_the_pid_file_brings_the_servers_back(sleeper: ServerProcess, tmp_path: Path) -> None:
    processes.write_pid_file(tmp_path / "pids.json", [sleeper])
    assert processes.read_pid_file(tmp_path / "pids.json") == [sleeper]
    assert processes.read_pid_file(tmp_path / "none.json") == []


def test_a_file_with_a_password_is_readable_by_its_owner_only_even_if_it_was_not_before(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    file.write_text("old")
    file.chmod(0o644)
    write_private(file, "new")
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
