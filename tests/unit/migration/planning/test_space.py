"""Whether there is space at the target, by what a plan finds."""

from __future__ import annotations

import pytest

from unit.migration.filled_ledger import SPEC
from walferry.migration.planning.space import space_findings
from walferry.run.spec import ResolvedSpec
from walferry.storage import WebHdfs


@pytest.mark.parametrize(
    ("history", "asked"), [("clone", {"", "/archive"}), ("bulk", {"", "/staging", "/staging/walferry", "/data"})]
)
def test_a_quota_is_looked_for_wherever_the_history_takes_space(
    history: str, asked: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebHdfs, "space_left", lambda _: None)
    monkeypatch.setattr(WebHdfs, "quota_left", lambda *_: 1)
    found = list(space_findings(ResolvedSpec.model_validate(SPEC | {"history": history}), 2))
    told = {finding.message.partition(" leaves")[0] for finding in found if finding.level == "refuse"}
    assert told == {f"the space quota on /hbase{folder}" for folder in asked}
