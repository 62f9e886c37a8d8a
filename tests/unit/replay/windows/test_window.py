"""Which files a window needs, and which are missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.migration.filled_ledger import CLUSTER, SPEC
from walferry.apply.index import FileIndex
from walferry.apply.outcomes import FileReport, Refusal, TableTally
from walferry.apply.region_events import RegionEvent
from walferry.errors import TransientError, UsageError, WalferryError
from walferry.formats.markers import Marker
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger
from walferry.replay.log import files_of_window
from walferry.replay.log.files_of_window import FIRST_LOG_MS
from walferry.replay.windows import window as window_module
from walferry.replay.windows.window import (
    WindowOpenError,
    _require_one_history,
    open_window,
    planned,
    quarantined,
    replay_window,
)
from walferry.run.progress.state import state_of
from walferry.run.run import Run
from walferry.run.spec import ResolvedSpec
from walferry.storage import Local
from walferry.wal.files import Place, WalFile

HOUR = 3_600_000
SERVER = f"rs,1,{HOUR}"
SKEW_MS = 60_000
covering = partial(files_of_window.covering, skew_ms=SKEW_MS)
missing_ranges = partial(files_of_window.missing_ranges, skew_ms=SKEW_MS)


def log(number: int, length: int = 10, server: str = SERVER, place: Place = Place.ARCHIVED) -> WalFile:
    return WalFile(f"{server}.{number}", server, server, number, f"/{number}", place, length)


def test_a_file_covers_the_time_from_its_creation_to_that_of_the_next_one_of_its_group() -> None:
    logs = [log(HOUR), log(2 * HOUR), log(3 * HOUR), log(2 * HOUR, server="other,1,1")]
    inside = covering(logs, 2 * HOUR + SKEW_MS, 3 * HOUR - SKEW_MS)
    assert [(file.server, file.number) for file in inside] == [("other,1,1", 2 * HOUR), (SERVER, 2 * HOUR)]


def test_at_a_border_both_files_count_for_clocks_differ() -> None:
    logs = [log(HOUR), log(2 * HOUR), log(3 * HOUR)]
    assert [file.number for file in covering(logs, 2 * HOUR, 2 * HOUR + 1)] == [HOUR, 2 * HOUR]


def test_a_file_that_was_seen_and_is_nowhere_is_missing() -> None:
    lost = log(2 * HOUR)
    found = missing_ranges([log(HOUR), log(3 * HOUR)], {SERVER}, [lost], 2 * HOUR + SKEW_MS, 3 * HOUR)
    assert found == [f"{lost.name} (last seen at /{lost.number})"]
    assert missing_ranges([log(HOUR), log(3 * HOUR)], {SERVER}, [lost], 4 * HOUR, 5 * HOUR) == []


def test_an_empty_log_of_a_dead_server_is_not_missed_and_one_of_a_living_server_is() -> None:
    empty = log(2 * HOUR, length=0)
    assert missing_ranges([log(HOUR)], (), [empty], 2 * HOUR, 3 * HOUR) == []
    assert len(missing_ranges([log(HOUR), log(3 * HOUR)], {SERVER}, [empty], 2 * HOUR, 3 * HOUR)) == 1


def test_a_log_that_another_one_of_its_server_followed_was_not_empty() -> None:
    empty = log(2 * HOUR, length=0)
    assert len(missing_ranges([log(HOUR), log(3 * HOUR)], (), [empty], 2 * HOUR, 3 * HOUR)) == 1
    assert len(missing_ranges([log(HOUR)], (), [empty, log(3 * HOUR, length=0)], 2 * HOUR, 2 * HOUR + 1)) == 1


def test_an_open_log_of_a_dead_server_of_which_nothing_is_left_is_missing() -> None:
    """The cleaner may have taken it with the others, filled and archived since it was seen."""
    assert len(missing_ranges([log(HOUR, server="other,1,1")], (), [log(2 * HOUR, length=0)], 2 * HOUR, 3 * HOUR)) == 1


def test_the_time_before_the_first_log_of_a_server_that_ran_already_is_missing() -> None:
    logs = [log(5 * HOUR)]
    (gap,) = missing_ranges(logs, {SERVER}, [], 2 * HOUR, 3 * HOUR)
    assert gap == f"logs of {SERVER} from 1970-01-01T02:00:00Z to 1970-01-01T03:00:00Z"
    assert missing_ranges(logs, {SERVER}, [], 5 * HOUR, 6 * HOUR) == []
    assert missing_ranges([log(HOUR + FIRST_LOG_MS)], {SERVER}, [], 0, 2 * HOUR) == []


def test_what_came_after_a_closing_is_no_new_history_for_the_opening_may_be_outside_the_window() -> None:
    def told(kind: Marker, number: int, *files: str) -> RegionEvent:
        return RegionEvent(kind, "log", number, "t", "r", number, number, frozenset(files))

    def one_history(*events: RegionEvent) -> None:
        report = FileReport("log", 100, True, (TableTally("t", 1, 1, 1, 50),), (), (), events)
        plan: Any = SimpleNamespace(
            window=SimpleNamespace(start_ms=0, end_ms=50), others=SimpleNamespace(holds=lambda *about: False)
        )
        _require_one_history([FileIndex(report)], plan, lambda table: ["f"], True)

    flushed, closed, compacted = told(Marker.FLUSH, 10, "f/f1"), told(Marker.REGION_CLOSE, 20), Marker.COMPACTION
    one_history(flushed, closed, told(Marker.FLUSH, 25, "f/f2"), told(compacted, 60, "f/f3"))
    with pytest.raises(WalferryError, match="restored"):
        one_history(flushed, closed, told(Marker.REGION_OPEN, 22))


def test_a_windows_run_is_called_by_its_borders_in_utc() -> None:
    keys = SPEC | {"window": {"from": "2026-11-21T01:00:00+02:00", "to": "2026-11-21T02:00"}}
    assert planned(ResolvedSpec.model_validate(keys)).name == "move_20261120t230000_20261121t020000"


def test_a_replay_by_time_without_a_window_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a window"):
        planned(ResolvedSpec.model_validate(SPEC))


def test_a_window_that_is_not_over_says_so_before_spark_starts(tmp_path: Path) -> None:
    soon = datetime.now(UTC).replace(microsecond=0)
    window = {"from": soon.isoformat(), "to": (soon + timedelta(hours=1)).isoformat()}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, open_window(ledger, ResolvedSpec.model_validate(SPEC | {"window": window}), "test").run_id)
        with pytest.raises(WindowOpenError, match="will be complete at"):
            replay_window(run, lambda: pytest.fail("Spark was started"))
        state = state_of(run.ledger)
    assert (state.name, "will be complete at" in state.cause) == ("failed", True)
    assert state.next_step.endswith("`walferry replay SPEC --from … --to …` again")


def test_a_window_waits_while_one_server_of_its_tables_logs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or has just been killed: a window that has begun does not end for that."""
    here, moved = Server("rs", 1, HOUR), Server("rs", 9, 9)
    (tmp_path / "WALs" / here.name).mkdir(parents=True)
    address = CLUSTER | {"rootdir": f"hdfs://nn:1{tmp_path}"}
    edges = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"}
    spec = ResolvedSpec.model_validate(SPEC | {"source": address, "window": edges})
    source = SimpleNamespace(
        address=spec.source.address(), servers=lambda: [here, moved], close=lambda: None,
        regions=lambda table: [SimpleNamespace(server=moved)], settings=lambda server: {"hbase.wal.dir": "/new"},
    )  # fmt: skip
    monkeypatch.setattr(window_module, "require_targets", lambda run: None)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, open_window(ledger, spec, "test").run_id)
        target = SimpleNamespace(cluster_id=lambda: "target", close=lambda: None)
        run.__dict__.update(source=source, wal_files=Local(), target=target)
        with pytest.raises(
            TransientError, match=r"^source: .* has no folder of rs,9,9, which has regions of shop:orders"
        ):
            replay_window(run, lambda: pytest.fail("Spark was started"))
        assert run.ledger.record.state == "running"


def test_an_edit_that_is_refused_again_after_its_release_is_a_new_item_that_can_be_released_otherwise(
    tmp_path: Path,
) -> None:
    refused = Refusal("log", 3, 9, "t", "r", 1, "too large", b"bytes")
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        quarantine = ledger.of(ledger.open_run("w", "window", SPEC, "test", "window").run_id).quarantine
        for number in range(1, 4):
            (item,) = quarantine.put(quarantined([refused], quarantine.items("released")))
            (same,) = quarantine.put(quarantined([refused], quarantine.items("released")))
            assert item == same == number, "a repeated attempt adds none"
            quarantine.release(item, "retry", "the target has room now", "alice")
        assert [item.reason for item in quarantine.items()] == [
            "too large", "again, after the release of 1: too large", "again, after the release of 2: too large",
        ]  # fmt: skip
