"""A process keeps to its rates over time, whatever the size of its requests, and gives way to a busy target."""

from __future__ import annotations

import pytest

from walferry.replay.rights.pace import BURST_SECONDS, LEAST_BYTES, RECOVERY_SECONDS, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock)


def seconds_for(pace: Pace, clock: Clock, requests: int, cells: int, size: int) -> float:
    """How long so many requests take, one after the other, if the target answers at once."""
    began = clock.now
    for _ in range(requests):
        while left := pace.take(cells, size):
            clock.now += left
    return clock.now - began


def test_without_limits_nothing_waits(pace: Pace, clock: Clock) -> None:
    assert seconds_for(pace, clock, 1000, 5000, 1 << 20) == 0


@pytest.mark.parametrize(("cells", "size"), [(10, 1), (5000, 1), (1, 100), (1, 50_000)])
def test_the_rate_that_is_exceeded_first_decides_however_large_a_request_is(
    cells: int, size: int, pace: Pace, clock: Clock
) -> None:
    pace.allow(10_000, 1_000)
    took = seconds_for(pace, clock, 200, cells, size)
    needed = max(199 * cells / 1_000, 199 * size / 10_000)
    assert needed - BURST_SECONDS <= took <= needed + 1


def test_what_was_not_sent_for_a_while_is_not_sent_later_on_top(pace: Pace, clock: Clock) -> None:
    pace.allow(None, 1_000)
    clock.now += 3600
    assert seconds_for(pace, clock, 100, 100, 1) >= 9.5


def test_a_higher_rate_counts_at_once_for_what_waits_and_none_at_all_lets_it_pass(pace: Pace, clock: Clock) -> None:
    pace.allow(None, 10)
    pace.take(5000, 1)
    assert pace.take(1, 1) > 400
    pace.allow(None, 10_000)
    assert pace.take(1, 1) < 1
    pace.allow(None, None)
    assert pace.take(1, 1) == 0


def rate(pace: Pace, clock: Clock) -> float:
    """Bytes per second that are let through within two seconds, in requests of 1,000 bytes."""
    began, sent = clock.now, 0
    while clock.now < began + 2:
        if left := pace.take(1, 1_000):
            clock.now += left
        else:
            sent += 1_000
    return sent / (clock.now - began)


def test_a_busy_target_gets_half_and_then_more_and_more_up_to_what_is_allowed(pace: Pace, clock: Clock) -> None:
    pace.allow(1e6, None)
    rate(pace, clock)
    rate(pace, clock)
    before = rate(pace, clock)
    assert before == pytest.approx(1e6, rel=0.05)
    assert pace.slow_down() == pytest.approx(before / 2, rel=0.3)
    first = rate(pace, clock)
    assert first == pytest.approx(before / 2, rel=0.35)
    later = [rate(pace, clock) for _ in range(round(RECOVERY_SECONDS))]
    assert first < later[0] <= later[3] <= later[-1]
    assert later[-1] == pytest.approx(1e6, rel=0.05)


def test_the_answers_that_all_lanes_get_at_once_count_as_one(pace: Pace, clock: Clock) -> None:
    pace.allow(1e6, None)
    rate(pace, clock)
    assert pace.slow_down()
    assert pace.slow_down() is None


def test_however_busy_the_target_is_a_little_is_sent(pace: Pace, clock: Clock) -> None:
    for _ in range(50):
        slowed = pace.slow_down()
        clock.now += 1.5
    assert slowed == LEAST_BYTES
    assert rate(pace, clock) > 0


def test_a_target_that_is_busy_without_a_limit_gets_less_than_it_got(pace: Pace, clock: Clock) -> None:
    for _ in range(500):
        pace.take(1, 100_000)
        clock.now += 0.01
    slowed = pace.slow_down()
    assert slowed == pytest.approx(5e6, rel=0.1)
    assert rate(pace, clock) < 7e6
