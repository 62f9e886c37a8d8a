"""A round begins as soon after the last one as the lag needs and the log has grown."""

from __future__ import annotations

import pytest

from walferry.run.between_rounds import BUSY_BYTES, pause_seconds


@pytest.mark.parametrize(("max_lag", "size", "pause"), [(1, 0, 2), (30, 0, 7.5), (3600, 0, 60), (3600, BUSY_BYTES, 2)])
def test_rounds_follow_each_other_as_the_lag_needs_and_the_bytes(max_lag: int, size: int, pause: float) -> None:
    assert pause_seconds(max_lag, size) == pause
