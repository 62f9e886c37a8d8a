"""What is sent of open logs and a batch: what the batch leaves out, and what waits for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unit.apply.guards import Guard
from unit.formats.wal_builder import TRAILER, header
from unit.replay.rounds.open_logs_source import (
    ALL,
    LINES,
    NOW,
    ROUTE,
    SERVERS,
    TABLE,
    Follow,
    below,
    cut_of,
    group_of,
    hold,
    mark,
    path_of,
    region_of,
    roll,
    settle,
    write,
)
from walferry.replay.log.cut import Cut
from walferry.replay.rounds.open_logs import OpenLogs
from walferry.run.notes.sent_early import sent_early
from walferry.run.progress.lag import covered_ms
from walferry.run.run import Run


def test_what_was_passed_over_because_its_table_was_held_is_sent_once_another_table_is(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    """Hole: a table that is held as a whole was told from no other one, and the edit was taken for sent."""
    of_table = hold(run, TABLE)
    open_logs = follow()
    write(run, SERVERS[0], 400)
    open_logs.go_on()
    assert sent == []
    run.ledger.quarantine.release(of_table, "retry", "mended", "test")
    run.ledger.quarantine.drop_holds(of_table)
    hold(run, "shop:users")
    early = settle(run, open_logs, cut := cut_of(run))
    assert early.sent == {}
    open_logs.applied(cut)
    open_logs.go_on()
    assert sent == [1]


def test_what_was_sent_of_a_log_is_kept_until_it_was_compared_whoever_goes_on(run: Run, follow: Follow) -> None:
    """Hole: the next process began at the log's beginning, and what the one before it had sent beyond was forgotten."""
    write(run, SERVERS[0], 400)
    write(run, SERVERS[0], 300, 2)
    name = path_of(run, SERVERS[0]).name
    assert follow().go_on()
    (before,) = sent_early(run.ledger)[name].shown
    path_of(run, SERVERS[0]).write_bytes(header())  # its bytes were taken back
    write(run, SERVERS[0], 200, 3)
    open_logs = follow()
    assert sent_early(run.ledger)[name].shown == (before,), "before anything is sent of it again"
    assert open_logs.go_on()
    earlier, own = sent_early(run.ledger)[name].shown
    assert (earlier, own[0] < before[0]) == (before, True)
    roll(run, SERVERS[0])
    assert settle(run, open_logs).sent[name].shown == (before, own)


def test_while_a_batch_is_applied_regions_go_on_of_which_it_has_nothing_and_others_wait_for_it(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    stays, moved, back = SERVERS
    write(run, stays, 0, 1)
    write(run, stays, 0, 40, region=region_of(moved))  # its opening is nowhere
    write(run, back, 0, 2)
    mark(run, back, "CLOSE", 3)
    mark(run, moved, "OPEN", 5, region=region_of(back))
    write(run, moved, 0, 6, region=region_of(back))
    assert not open_logs.go_on()
    assert sorted(sent) == [1, 2, 6]
    sealed = [roll(run, server) for server in SERVERS]
    write(run, stays, 0, 7)
    write(run, stays, 0, 41, region=region_of(moved))
    assert not open_logs.go_on()
    cut = cut_of(run, lines={region_of(moved): f"{stays} 39", region_of(back): f"{moved} 4"})
    early = settle(run, open_logs, cut)
    assert {name: one.regions for name, one in early.sent.items() if one.regions} == {
        log.name: {region_of(stays), region_of(back)} for log in sealed
    }
    assert early.followed == {region_of(back)}
    assert early.logs == {log.name for log in sealed}
    write(run, stays, 0, 8)
    write(run, moved, 0, 9, region=region_of(back))
    write(run, stays, 0, 42, region=region_of(moved))
    for _ in range(4):
        assert open_logs.go_on(), "however long the batch takes"
    assert sorted(sent) == [1, 2, 6, 7, 8, 9]
    open_logs.applied(cut)
    write(run, stays, 0, 43, region=region_of(moved))
    assert open_logs.go_on()
    assert sorted(sent) == [1, 2, 6, 7, 8, 9, 41, 42, 43]
    assert sent[-3:] == [41, 42, 43]


def test_a_region_that_is_held_while_a_batch_is_applied_is_not_sent_after_it(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    here, there = region_of(SERVERS[0]), region_of(SERVERS[1])
    write(run, SERVERS[2], 0, 1, region=here)  # that nobody saw it come to
    assert not open_logs.go_on()
    for server in SERVERS:
        roll(run, server)
    settle(run, open_logs, cut := cut_of(run))
    write(run, SERVERS[0], 0, 2)
    write(run, SERVERS[1], 0, 3)
    assert open_logs.go_on()
    hold(run, TABLE, here)
    hold(run, TABLE, there)
    open_logs.applied(cut)
    write(run, SERVERS[1], 0, 4)
    write(run, SERVERS[2], 0, 5)
    assert open_logs.go_on()
    assert sent == [3, 5]
    for file in below(cut):
        Path(file.path).unlink()
    roll(run, SERVERS[1])
    assert {region for one in settle(run, open_logs).sent.values() for region in one.regions} == {region_of(SERVERS[2])}


@pytest.mark.parametrize("waits", ["for the batch", "for a closing"])
def test_of_a_table_that_is_stopped_nothing_is_sent_that_has_waited(
    waits: str, run: Run, follow: Follow, sent: list[int]
) -> None:
    """Hole: what a restored table holds now was sent once the batch had found that it began anew."""
    open_logs = follow()
    here, there = SERVERS[0], SERVERS[1]
    cut: Cut | None = None
    if waits == "for the batch":
        write(run, there, 0, 1, region=region_of(here))  # that nobody saw it come to
        assert not open_logs.go_on()
        for server in SERVERS:
            roll(run, server)
        settle(run, open_logs, cut := cut_of(run))
        write(run, here, 0, 2)
    else:
        mark(run, there, "OPEN", 9, region=region_of(here))
        write(run, there, 0, 10, region=region_of(here))
    assert open_logs.go_on()
    hold(run, TABLE)
    if cut:
        open_logs.applied(cut)
    else:
        mark(run, here, "CLOSE", 7)
    open_logs.go_on()
    assert sent == []


def test_until_a_batch_is_applied_that_has_something_new_it_does_not_count_as_applied(
    run: Run, follow: Follow, now: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[2], 0, 1, region=region_of(SERVERS[0]))  # left: only the batch applies it
    assert not open_logs.go_on()
    for server in SERVERS:
        roll(run, server)
    settle(run, open_logs, cut := cut_of(run))
    now[0] += 100_000
    assert open_logs.go_on()
    assert covered_ms(run.ledger) == NOW - 5_000
    open_logs.applied(cut)
    assert covered_ms(run.ledger) == NOW
    assert open_logs.go_on()
    assert covered_ms(run.ledger) == now[0]
    for file in below(cut):
        Path(file.path).unlink()
    for server in SERVERS:
        roll(run, server)
    settle(run, open_logs)
    now[0] += 1_000
    assert open_logs.go_on()
    assert covered_ms(run.ledger) == now[0], "the batch has nothing that was not sent"


def test_what_a_log_repeats_of_one_whose_writer_broke_is_not_sent_over_what_came_after_a_move(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    here, there, _ = SERVERS
    for closed in (False, True):
        write(run, here, 0, 5)
        mark(run, here, "CLOSE", 7)
        roll(run, here, closed=closed)
    mark(run, there, "OPEN", 9, region=region_of(here))
    write(run, there, 0, 10, region=region_of(here))
    open_logs.go_on()
    open_logs.go_on()
    assert sent == [5, 10]
    roll(run, there)
    early = settle(run, open_logs, cut_of(run, lines={region_of(here): f"{there} 8"}))
    assert {region for one in early.sent.values() for region in one.regions} == ALL - {region_of(here)}


def test_the_log_of_a_server_that_came_after_the_cut_is_not_compared_yet(
    run: Run, follow: Follow, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: OpenLogs) -> bool:
        raise IndexError("index 7 is out of bounds")

    open_logs, cut, new = follow(), cut_of(run), "rs,1,9"
    path_of(run, new).parent.mkdir()
    path_of(run, new).write_bytes(header())
    mark(run, SERVERS[0], "CLOSE", 3)
    mark(run, new, "OPEN", 5, region=region_of(SERVERS[0]))
    write(run, new, 0, 6, region=region_of(SERVERS[0]))
    open_logs.go_on()
    open_logs.go_on()
    assert sent == [6]
    monkeypatch.setattr(OpenLogs, "_pass", broken)
    assert path_of(run, new).name in sent_early(run.ledger)
    assert path_of(run, new).name not in settle(run, open_logs, cut).logs


@pytest.mark.parametrize("what", ["an older log turns up", "one in between was not seen", "its server has died"])
def test_of_a_server_whose_logs_were_not_all_read_in_their_order_nothing_is_left_out(
    what: str, run: Run, follow: Follow, sent: list[int]
) -> None:
    """Hole: a log that turned up late was applied over newer edits, which had been sent while theirs was open."""
    open_logs = follow()
    lost = SERVERS[0]
    write(run, lost, 0, 1)
    if what == "one in between was not seen":
        roll(run, lost)
        between = path_of(run, lost)
        write(run, lost, 0, 2)
        roll(run, lost)
        archived = between.rename(Path(f"{run.wal_root}/archived"))
        open_logs.go_on()
        archived.rename(between)
    elif what == "an older log turns up":
        open_logs.go_on()
        older = path_of(run, lost).with_suffix(f".{NOW - 20_000}")
        older.write_bytes(header() + TRAILER)
        roll(run, lost)
    else:
        open_logs.go_on()
        folder = path_of(run, lost).parent
        folder.rename(folder.with_name(f"{lost}-splitting"))
    for server in SERVERS[1:]:
        write(run, server, 0, 1)
        roll(run, server)
    cut = cut_of(run)
    if what == "its server has died":
        cut.current.pop(group_of(lost))
    files = [file for file in cut.files if file.number < cut.current.get(file.group, file.number + 1)]
    early = open_logs.settle(cut, files, LINES, ROUTE)
    assert {region for one in early.sent.values() for region in one.regions} == ALL - {region_of(lost)}


def test_of_a_region_that_is_elsewhere_than_the_logs_have_shown_nothing_is_left_out(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    mark(run, SERVERS[0], "CLOSE", 2)
    for server in SERVERS:
        roll(run, server)
    early = settle(run, open_logs, cut_of(run, lines={region_of(SERVERS[0]): f"{SERVERS[1]} 3"}))
    assert {region for one in early.sent.values() for region in one.regions} == ALL - {region_of(SERVERS[0])}
    assert early.followed == set()


def test_if_a_batch_goes_in_bulk_nothing_is_sent_until_it_is_applied_and_then_all_since_the_cut_is(
    run: Run, follow: Follow, sent: list[int]
) -> None:
    open_logs = follow()
    write(run, SERVERS[0], 0, 1)
    roll(run, SERVERS[0])
    settle(run, open_logs, cut := cut_of(run))
    write(run, SERVERS[0], 0, 2)
    open_logs.go_on()
    open_logs.stop()
    write(run, SERVERS[0], 0, 3)
    open_logs.go_on()
    assert sent == [1, 2]
    open_logs.applied(cut)
    open_logs.go_on()
    assert sent == [1, 2, 2, 3]


def test_only_under_the_same_leases_something_is_taken_for_sent(run: Run, follow: Follow) -> None:
    open_logs, cut = follow(), cut_of(run)
    with pytest.raises(AssertionError, match="other leases"):
        open_logs.settle(cut, [], LINES, replace(ROUTE, guard=Guard()))
