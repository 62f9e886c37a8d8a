"""Whether copies can be in the operator's folder is found out without leaving anything there."""

from __future__ import annotations

from pathlib import Path

import pytest

from walferry.hbase.address import ClusterAddress
from walferry.replay.keeping import folder
from walferry.replay.keeping.folder import folder_faults
from walferry.storage import Local, QuotaExceededError, WebHdfs

ME = ClusterAddress("none:1", user="me")


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    assert list(folder_faults(str(tmp_path), ME)) == []
    assert list(tmp_path.iterdir()) == []


def test_no_folder_above_it_is_left_behind_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: of /user/courier/logs, /user/courier stayed."""
    assert list(folder_faults(f"{tmp_path}/user/courier/logs", ME)) == []
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Local, "write", half_written)
    (fault,) = folder_faults(f"{tmp_path}/user/courier/logs", ME)
    assert fault == f"copies cannot be written to {tmp_path}/user/courier/logs: it is full"
    assert list(tmp_path.iterdir()) == []


def half_written(files: Local, path: str, chunks: object) -> None:
    files.mkdirs(str(Path(path).parent))
    Path(path).touch()
    raise QuotaExceededError("it is full")


def test_what_others_put_there_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "try_writing", lambda files, path: files.write(f"{tmp_path}/a/theirs", [b"1"]))
    assert list(folder_faults(f"{tmp_path}/a/b/c", ME)) == []
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "theirs"]


def test_a_name_node_of_the_folder_with_an_old_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that it does not list would count as missing."""
    monkeypatch.setattr(folder, "try_writing", lambda *_: None)
    monkeypatch.setattr(WebHdfs, "status", lambda *_: "there")
    monkeypatch.setattr(WebHdfs, "behind", lambda files: iter([(files.url.split(";")[1], "is an Observer")]))
    url = "webhdfs://a:1;b:2/copies"
    assert list(folder_faults(url, ME)) == [
        f"{url}: http://b:2 is an Observer, so copies could be missing in what it lists: leave it out"
    ]
