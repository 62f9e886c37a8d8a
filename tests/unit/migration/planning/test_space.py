"""Whether there is space at the target, by what a plan finds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.migration.planning import space
from walferry.migration.planning.space import space_findings
from walferry.run.spec import Cluster, ResolvedSpec


@pytest.mark.parametrize(
    ("history", "asked"), [("clone", {"", "/archive"}), ("bulk", {"", "/staging", "/staging/walferry", "/data"})]
)
def test_a_quota_is_looked_for_wherever_the_history_takes_space(
    history: str, asked: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(cluster: Cluster, path: str, query: dict[str, str]) -> SimpleNamespace | None:
        usage = {"QuotaUsage": {"spaceQuota": 100, "spaceConsumed": 99}}
        return SimpleNamespace(status_code=200, json=lambda: usage) if path.startswith("/webhdfs") else None

    monkeypatch.setattr(space, "ask", full)
    found = list(space_findings(ResolvedSpec.model_validate(SPEC | {"history": history}), 2))
    told = {finding.message.partition(" leaves")[0] for finding in found if finding.level == "refuse"}
    assert told == {f"the space quota on /hbase{folder}" for folder in asked}
