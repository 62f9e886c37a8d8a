from __future__ import annotations

from collections.abc import Mapping

import pytest

from unit.streams.test_sending import Recorder
from walferry.streams import resolved
from walferry.streams.delivery import Delivery, Topic
from walferry.streams.message.changes import Form
from walferry.streams.resolved import ResolvedTimes


class Committing(Recorder):
    def commit(self, changed: Mapping[str, bytes | None]) -> int:
        self.values.append({"committed": dict(changed)})
        return 0


@pytest.mark.parametrize(("seconds", "told"), [(10, [1, 4]), (0, [])])
def test_a_moment_is_told_in_each_partition_from_time_to_time_in_a_transaction_of_its_own(
    monkeypatch: pytest.MonkeyPatch, seconds: float, told: list[int]
) -> None:
    now, sink = [100.0], Committing()
    monkeypatch.setattr(resolved, "steady_s", lambda: now[0])
    times = ResolvedTimes(seconds, Form("c", 1), Delivery({"t1": Topic("topic", 2, 1000)}, sink), sink)
    for moment in range(1, 6):
        if times.due:
            times.tell(moment, ["t1"])
        now[0] += 4
    assert [value.get("event", value) for value in sink.values] == [
        one
        for moment in told
        for one in (*[{"kind": "resolved", "time": moment}] * 2, {"committed": {}})
    ]  # fmt: skip
