"""What is told about a machine that lacks a JDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from walferry.embedded import jars
from walferry.errors import UsageError, WalferryError


@pytest.fixture(autouse=True)
def _forget_the_java_found() -> Iterator[None]:
    jars.java.cache_clear()
    yield
    jars.java.cache_clear()


def fake_java(home: Path, version: str) -> None:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)


def test_no_java_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(WalferryError, match="install JDK 17 or newer"):
        jars.java()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_a_java_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(WalferryError, match=f"too old .*{version}"):
        jars.java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_a_newer_java_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jars.java() == str(tmp_path / "bin" / "java")


def test_the_cache_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WALFERRY_CACHE", str(tmp_path))
    assert jars.cache_folder() == tmp_path


def test_a_version_that_cannot_be_booted_is_refused_with_those_that_can() -> None:
    with pytest.raises(UsageError, match=r"HBase 0\.98 cannot be booted here; choose one of 1\.7\.2, .*2\.6\.3"):
        jars.coordinates("0.98")


def test_the_newest_version_is_one_of_those_that_can_be_booted() -> None:
    assert jars.coordinates(jars.NEWEST) == jars.COORDINATES
