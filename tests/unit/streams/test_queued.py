from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walferry.errors import GapError
from walferry.storage import Local
from walferry.streams.queued import require_queued_here
from walferry.streams.stream_run import StreamRun
from walferry.wal.fences import Fences

GROUP, OLD_GROUP = "rs%2C1%2C5", "rs%2C1%2C4"
FIRST, SECOND, THIRD = (f"{GROUP}.{number}" for number in (10, 20, 30))


def run_of(root: Path, *queued: str, applied: frozenset[str] = frozenset(), protect: str = "peer") -> StreamRun:
    """A run whose peer has these logs in the queue of one server."""
    for folder in ("WALs/rs,1,5", "oldWALs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    log = SimpleNamespace(applied=lambda names: applied & set(names))
    peer = SimpleNamespace(kind="peer", name="p", state="made")
    found = SimpleNamespace(
        log_spec=SimpleNamespace(protect=protect),
        ledger=SimpleNamespace(log=log, objects=SimpleNamespace(all=lambda: [peer])),
        source=SimpleNamespace(peer_queues=lambda peer: {"rs,1,5": set(queued)}),
        fences=lambda: Fences({OLD_GROUP: (15, 0)}),
        wal_files=Local(),
        wal_root=str(root),
    )
    return cast(StreamRun, cast(Any, found))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is waited for between two listings."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def test_a_queued_log_that_is_in_no_folder_is_a_gap_that_names_its_server(tmp_path: Path) -> None:
    run = run_of(tmp_path, FIRST, SECOND, THIRD)
    (tmp_path / "oldWALs" / THIRD).touch()
    with pytest.raises(GapError) as gap:
        require_queued_here(run, [])
    assert gap.value.facts["files"] == [FIRST, SECOND]
    assert f"WAL file {FIRST} is in the queue" in str(gap.value)
    assert f"below {tmp_path} (2 in all). Either its server rs,1,5 logged elsewhere" in str(gap.value)


def test_what_is_listed_live_archived_sent_or_older_than_the_stream_is_no_gap(tmp_path: Path) -> None:
    older, meta = f"{OLD_GROUP}.14", f"{GROUP}.meta.10.meta"
    run = run_of(tmp_path, FIRST, SECOND, THIRD, f"{GROUP}.40", older, meta, applied=frozenset({FIRST}))
    (tmp_path / "WALs/rs,1,5" / SECOND).touch()
    (tmp_path / "oldWALs" / THIRD).touch()
    require_queued_here(run, [f"{GROUP}.40"])


def test_without_a_peer_no_queue_is_asked(tmp_path: Path) -> None:
    require_queued_here(run_of(tmp_path, FIRST, protect="stage"), [])


def test_a_log_that_appears_late_is_no_gap(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, FIRST)

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if seconds == 2:
            (tmp_path / "oldWALs" / FIRST).touch()

    monkeypatch.setattr(time, "sleep", sleep)
    require_queued_here(run, [])
    assert pauses == [0, 1, 2]
