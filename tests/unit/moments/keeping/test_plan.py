"""What is refused before anything is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from unit.moments.keeping.a_source import Source, source_of
from unit.moments.keeping.test_bases import with_spec
from walferry.errors import UsageError
from walferry.hbase.rights import Right
from walferry.moments.keeping import plan
from walferry.moments.keeping.keep_run import KeepRun
from walferry.moments.keeping.plan import plan_keep
from walferry.moments.keeping.start import open_keep
from walferry.storage import Local, WebHdfs


class Asked(Source):
    """A source that also answers what a plan asks."""

    lacking: tuple[Right, ...] = ()

    def table_exists(self, table: str) -> bool:
        return table in self.region_ids

    def lacking_rights(self, wanted: Sequence[Right]) -> list[Right]:
        return list(self.lacking)

    def held_bytes(self) -> dict[str, int]:
        return {"a": 5}

    def version(self) -> str:
        return "2.6.3"

    def cluster_id(self) -> str:
        return "c1"


@pytest.fixture
def planned(run: KeepRun, monkeypatch: pytest.MonkeyPatch) -> KeepRun:
    """Another run of the same tables, whose plan is still to be made."""
    monkeypatch.setattr(plan, "file_system", lambda *_: Local())
    monkeypatch.setattr(plan, "log_obstacle", lambda *_: None)
    source = Asked(source_of(run).root)
    source.region_ids = source_of(run).region_ids
    spec = run.spec.model_copy(update={"name": "other"})
    other = KeepRun(run.ledger.whole, open_keep(run.ledger.whole, spec, "test"))
    other.__dict__["source"] = source
    return other


def test_the_plan_says_what_there_is(planned: KeepRun, tmp_path: Path) -> None:
    facts = plan_keep(with_spec(planned, folder=f"{tmp_path}/new"))
    assert facts["tables"] == {"a": 5, "b": 0}
    assert (facts["folder"], facts["cluster_id"]) == (f"file://{tmp_path}/new", "c1")
    assert not (tmp_path / "new").exists(), "it leaves nothing behind"


def test_all_that_stands_in_the_way_is_told_at_once_and_the_run_has_failed(
    planned: KeepRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = source_of(planned)
    assert isinstance(asked, Asked)
    asked.attributes, asked.lacking = {"ENCRYPTION": "AES"}, (Right("ADMIN"),)
    del asked.region_ids["b"]
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(WebHdfs, "behind", lambda files: iter([(files.url, "is an Observer")]))
    with pytest.raises(UsageError) as refused:
        plan_keep(with_spec(planned, folder=f"{tmp_path}/file"))
    for said in (
        "there is no table b at the source",
        "table a: a base of it could not be read later, since family f is encrypted (ENCRYPTION)",
        "HBase does not grant me global ADMIN; in HBase's shell: grant 'me', 'A'",
        "is an Observer, so a log could be missing in what it lists, or be short: leave it out",
        f"folder: copies cannot be written to {tmp_path}/file",
    ):
        assert said in str(refused.value)
    assert planned.ledger.record.state == "failed"
