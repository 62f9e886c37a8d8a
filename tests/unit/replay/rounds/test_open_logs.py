"""A pass over the open logs: what it reads and sends, what it asks of the source, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unit.formats.wal_builder import header
from unit.replay.rounds.open_logs_source import (
    ALL,
    NOW,
    SERVERS,
    TABLE,
    WALS,
    Counting,
    Follow,
    below,
    cut_of,
    mark,
    measured,
    path_of,
    region_of,
    roll,
    settle,
    write,
)
from walferry.apply.by_group import GroupTask, Part
from walferry.formats.wal import EntryBatch, WalReader
from walferry.ledger import LateEdit
from walferry.replay.rounds import open_logs as following
from walferry.replay.rounds import open_tail
from walferry.replay.rounds.open_tail import OpenTail
from walferry.run.progress.lag import TailProgress, ahead_of, covered_ms, lag_by_group, lag_of, lag_split
from walferry.run.run import Run
from walferry.wal.files import Place, WalFile, list_live
from walferry.wal.open import Until, open_wal


def test_a_pass_measures_for_each_server_how_old_edits_were_when_seen_and_how_long_they_took(
    run: Run, follow: Follow, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 400, 1)
    write(run, SERVERS[0], 300, 2)
    write(run, SERVERS[1], 2_500)
    under_way: list[dict[str, TailProgress]] = []

    def send(task: GroupTask, parts: Sequence[Part]) -> list[Any]:
        now[0] += 300
        under_way.append(measured(run))
        now[0] += 400
        return []

    monkeypatch.setattr(following, "send_entries", send)
    assert open_logs.go_on()
    (during,) = under_way
    assert [during[server].sending_since_ms for server in SERVERS] == [NOW, NOW, 0]
    assert during[SERVERS[0]].covered_ms == NOW - 5_000, "since the cut: it is not applied yet"
    found = measured(run)
    assert found == {
        SERVERS[0]: TailProgress(server=SERVERS[0], covered_ms=NOW, apply_ms=700, shown_after_ms=400),
        SERVERS[1]: TailProgress(server=SERVERS[1], covered_ms=NOW, apply_ms=700, shown_after_ms=2_500),
        SERVERS[2]: TailProgress(server=SERVERS[2], covered_ms=NOW),
    }
    now[0] += 1_000
    assert open_logs.go_on()
    assert measured(run)[SERVERS[1]] == TailProgress(server=SERVERS[1], covered_ms=now[0], shown_after_ms=2_500)


def test_a_server_that_a_region_has_come_to_from_a_dead_one_lags_behind_the_others(
    run: Run, follow: Follow, now: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[1], 0)
    write(run, SERVERS[0], 0, 9, region=region_of(SERVERS[2]))
    now[0] += 2_000
    assert not open_logs.go_on(), "a round is needed"
    slowest, *others = lag_by_group(run.ledger, lag_of(run.ledger))
    assert (slowest.server, slowest.seconds) == (SERVERS[0], 7.0)
    assert [one.seconds for one in others] == [0.0, 0.0]
    split = lag_split(lag_of(run.ledger), [slowest, *others])
    assert split is not None
    assert (split.server, split.seconds) == (SERVERS[0], 7.0)


def test_a_region_that_moves_is_followed_without_a_round_and_without_meta(
    run: Run, follow: Follow, sent: list[int], now: list[int]
) -> None:
    open_logs = follow()  # its source answers nothing
    here, there = SERVERS[0], SERVERS[1]
    mark(run, there, "OPEN", 9, region=region_of(here))
    write(run, there, 0, 10, region=region_of(here))
    now[0] += 1_000
    assert open_logs.go_on()
    assert sent == []
    assert measured(run)[there].covered_ms == NOW - 5_000, "what waits is not covered"
    write(run, here, 0, 6)
    mark(run, here, "CLOSE", 7)
    assert open_logs.go_on()
    assert sent == [6, 10]
    assert measured(run)[there].covered_ms == now[0]
    write(run, there, 0, 11, region=region_of(here))
    assert open_logs.go_on()
    assert sent == [6, 10, 11]


def test_a_pass_lists_the_folder_of_each_server_once_and_reads_each_open_log_once(run: Run, follow: Follow) -> None:
    """Its costs: `docs/platform.md` derives the requests per second from it."""
    open_logs, files = follow(), run.wal_files
    assert isinstance(files, Counting)
    write(run, SERVERS[0], 400)
    assert open_logs.go_on()  # the first one looks up each log
    files.asked.clear()
    write(run, SERVERS[0], 300, 2)
    assert open_logs.go_on()
    assert files.asked == {"list": 1 + len(SERVERS), "read": len(SERVERS)}


@pytest.mark.parametrize(("groups", "seconds"), [(1, 0.5), (25, 0.5), (50, 1.0), (500, 10.0)])
def test_of_many_servers_each_is_asked_less_often(groups: int, seconds: float) -> None:
    assert following.seconds_between(groups) == seconds


def test_an_edit_that_was_rejected_as_late_is_not_sent_of_an_open_log(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    for number in (1, 2, 3):
        write(run, SERVERS[0], 0, number)
    wal = path_of(run, SERVERS[0])
    (batch,) = open_wal(run.wal_files, run.wal_root, list_live(run.wal_files, run.wal_root)[0], Until.NOW)
    late = LateEdit(wal.name, int(batch.offset[1]), TABLE, region_of(SERVERS[0]), 2, NOW, 1, b"r", NOW)
    run.ledger.late.found([late])
    run.ledger.late.decide([late], "reject", "nobody wants it", "test")
    assert follow().go_on()
    assert sent == [1, 3]


def test_a_log_is_followed_into_the_next_one_and_a_new_server_into_its_first_without_a_round(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    roll(run, SERVERS[0])
    write(run, SERVERS[0], 0, 2)
    assert open_logs.go_on()
    assert sent == [1, 2]
    new = "rs,1,9"
    path_of(run, new).parent.mkdir()
    path_of(run, new).write_bytes(header())
    mark(run, SERVERS[0], "CLOSE", 3)
    mark(run, new, "OPEN", 5, region=region_of(SERVERS[0]))
    write(run, new, 0, 6, region=region_of(SERVERS[0]))
    assert open_logs.go_on()
    assert open_logs.go_on()
    assert sent == [1, 2, 6]
    write(run, SERVERS[1], 0, 7)
    sealed = roll(run, SERVERS[1])
    archive = Path(f"{run.wal_root}/oldWALs")
    archive.mkdir()
    sealed.rename(archive / sealed.name)
    write(run, SERVERS[1], 0, 8)
    assert open_logs.go_on()
    assert sent == [1, 2, 6, 7, 8]


def test_a_log_whose_writer_broke_needs_a_round_and_the_next_one_is_not_read(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    roll(run, SERVERS[0], closed=False)
    write(run, SERVERS[0], 0, 1)
    assert open_logs.go_on(), "it may be about to be closed"
    assert not open_logs.go_on(), "a round is needed"
    assert sent == [1]
    cut = cut_of(run)
    early = settle(run, open_logs, cut)
    assert open_logs.go_on()
    assert sent == [1], "nothing is followed until the batch is applied"
    open_logs.applied(cut)
    assert open_logs.go_on()
    assert sent == [1, 1]
    assert early.sent[below(cut)[0].name].regions == ALL, "what was sent of it is left out if it was sealed with that"


def test_logs_that_are_all_rolled_between_their_listing_and_their_reading_are_followed(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: each was read up to its trailer, and the next one was looked for only while another one was read."""
    open_logs, live = follow(), run.wal_listing.live

    def rolled() -> list[WalFile]:
        listed = live()
        for server in SERVERS:
            roll(run, server)
        return listed

    with monkeypatch.context() as beside:
        beside.setattr(run.wal_listing, "live", rolled)
        assert open_logs.go_on()
    for number, server in enumerate(SERVERS, start=1):
        write(run, server, 0, number)
    assert open_logs.go_on()
    assert sorted(sent) == list(range(1, len(SERVERS) + 1))


def test_after_a_pause_a_log_that_was_not_seen_is_not_passed_over(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_logs, seconds = follow(), [0.0]
    monkeypatch.setattr(following, "steady_s", lambda: seconds[0])
    write(run, SERVERS[0], 0, 1)
    assert open_logs.go_on()
    roll(run, SERVERS[0])
    between = path_of(run, SERVERS[0])
    write(run, SERVERS[0], 0, 2)
    roll(run, SERVERS[0])
    between.unlink()
    write(run, SERVERS[0], 0, 3)
    seconds[0] += 60
    covered = covered_ms(run.ledger)
    assert not open_logs.go_on(), "a round is needed"
    assert (sent, covered_ms(run.ledger)) == ([1], covered)


def test_a_log_that_was_archived_while_the_log_was_cut_is_followed(run: Run, follow: Follow, sent: list[int]) -> None:
    open_logs = follow()
    for server in SERVERS:
        roll(run, server)
    cut = cut_of(run)
    name = path_of(run, SERVERS[0]).name
    cut = replace(cut, files=[replace(f, place=Place.ARCHIVED) if f.name == name else f for f in cut.files])
    settle(run, open_logs, cut)
    open_logs.applied(cut)
    roll(run, SERVERS[0])
    write(run, SERVERS[0], 0, 7)
    assert open_logs.go_on()
    assert sent == [7]


KINDS = ["1.7.2-dictionary", "2.2.3-dictionary", "dictionary", "dictionary-raw-tags", "values-gz", "values-snappy"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_log_is_followed_in_slices_each_entry_once(
    kind: str, run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a compressed log that showed more than one slice was read from the middle of its dictionary, and ended the
    replay for good."""
    whole = (WALS / f"{kind}.wal").read_bytes()
    path = path_of(run, SERVERS[0])
    read: list[int] = []

    def took(self: Any, batch: EntryBatch, tables: Sequence[str]) -> None:
        read.extend(batch.sequence_number.tolist())

    monkeypatch.setattr(OpenTail, "took", took)
    monkeypatch.setattr(open_tail, "SLICE_BYTES", 1)
    monkeypatch.setattr(open_tail, "BATCH_BYTES", 4_000)
    path.write_bytes(whole[: len(whole) // 2])
    open_logs = follow()
    open_logs.go_on()  # its regions are on no server, so that nothing is sent
    assert read
    path.write_bytes(whole)
    open_logs.go_on()
    kept = ahead_of(run.ledger)
    assert kept is not None
    assert kept.fault == ""
    expected = [n for batch in WalReader([whole], kind) for n in batch.sequence_number.tolist()]
    assert read == expected
