"""What a held read point proves, how long it is held, and that nothing fails without one."""

from __future__ import annotations

from typing import cast

import pytest

from unit.streams.image.held_regions import HERE, REGION, THERE, Source
from walferry.hbase.client import HBaseClient
from walferry.streams.image import holds as holding
from walferry.streams.image.holds import Holds


class Clock:
    """Of the module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(holding, "steady_s", lambda: self.now_s)
        monkeypatch.setattr(holding, "now_ms", lambda: round(1000 * self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def held(source: Source) -> Holds:
    """Holds of the region, taken."""
    found = Holds(cast(HBaseClient, source), lambda table: [b"f"])
    found.tend(["t1"])
    return found


def test_a_hold_is_for_changes_after_its_read_point_only(clock: Clock) -> None:
    holds = held(Source())
    assert holds.before(HERE.name, REGION, 10) is None
    hold = holds.before(HERE.name, REGION, 11)
    assert hold is not None
    assert hold.point.number == 10
    assert holds.before(THERE.name, REGION, 11) is None
    assert holds.proven([hold]) == [True]


def test_files_that_have_changed_since_prove_nothing_and_the_region_is_held_anew(clock: Clock) -> None:
    source = Source()
    holds = held(source)
    hold = holds.before(HERE.name, REGION, 11)
    assert hold is not None
    source.files, source.read_point = ["1", "2"], 20
    assert holds.proven([hold]) == [False]
    assert holds.before(HERE.name, REGION, 11) is None
    holds.take([("t1", REGION, HERE.name)])
    assert holds.before(HERE.name, REGION, 20) is None
    assert holds.before(HERE.name, REGION, 21) is not None


def test_a_newer_hold_is_taken_after_seconds_and_the_older_waits_for_what_was_not_sent(clock: Clock) -> None:
    source = Source()
    holds = held(source)
    source.read_point = 15
    holds.take([("t1", REGION, HERE.name)])
    assert list(source.scanners.values()) == [10]
    clock.now_s += holding.FRESH_SECONDS
    for _ in range(3):
        holds.take([("t1", REGION, HERE.name)])
    assert list(source.scanners.values()) == [10, 15]
    holds.settle({REGION: 14}, None)
    found = holds.before(HERE.name, REGION, 15)
    assert found is not None
    assert found.point.number == 10
    holds.settle({REGION: 15}, None)
    assert list(source.scanners.values()) == [15]


def test_an_older_hold_goes_too_once_the_log_was_followed_past_the_newer_one(clock: Clock) -> None:
    source = Source()
    holds = held(source)
    clock.now_s += holding.FRESH_SECONDS
    source.read_point = 15
    holds.take([("t1", REGION, HERE.name)])
    holds.settle({}, round(1000 * clock.now_s) - 1)
    assert len(source.scanners) == 2
    holds.settle({}, round(1000 * clock.now_s))
    assert list(source.scanners.values()) == [15]


def test_holds_are_renewed_when_a_third_of_their_lease_has_passed_and_not_before(clock: Clock) -> None:
    source = Source()
    holds = held(source)
    for seconds, renewals in ((19, 0), (2, 1), (19, 1), (2, 2)):
        clock.now_s += seconds
        holds.tend(["t1"])
        assert source.requests.count("renew") == renewals


def test_no_hold_is_kept_for_longer_than_minutes(clock: Clock) -> None:
    source = Source()
    holds = held(source)
    for _ in range(100):
        clock.now_s += 10
        source.read_point += 1
        holds.tend(["t1"])
        assert 1 <= len(source.scanners) <= 2
        assert source.read_point - min(source.scanners.values()) <= holding.KEEP_SECONDS / 10 + 1


def test_a_region_that_has_moved_is_held_where_it_is_and_a_lost_hold_proves_nothing(clock: Clock) -> None:
    source = Source()
    holds = held(source)
    source.move()
    clock.now_s += 30
    holds.tend(["t1"])
    assert holds.before(HERE.name, REGION, 11) is None
    assert holds.before(THERE.name, REGION, 11) is not None


def test_a_read_point_that_is_told_later_counts_even_if_it_is_lower(clock: Clock) -> None:
    holds = held(Source())
    for point in (20, 12):
        holds.learn({(HERE.name, REGION): point})
        assert holds.read_point(HERE.name, REGION) == point


def test_what_cannot_be_held_is_no_error(clock: Clock) -> None:
    source = Source()
    holds = held(source)
    source.move()
    clock.now_s += holding.FRESH_SECONDS
    holds.take([("t1", REGION, HERE.name), ("t2", "b" * 32, HERE.name)])
    holds.close()
    assert source.scanners == {}
