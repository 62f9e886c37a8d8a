"""A pass over a pair, as far as it needs no cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from unit.formats.wal_builder import TRAILER, header
from unit.migration.filled_ledger import CLUSTER, SPEC
from unit.migration.pair_ledger import REGION, differs, one_pass, region
from unit.migration.pairs.test_pair_log import SERVER, group, written
from unit.spark_stand_in import SPARK
from walferry.cli.pairs import _print_plan
from walferry.clock import now_ms
from walferry.errors import TransientError, UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.descriptors import Region
from walferry.hbase.zookeeper import Server
from walferry.ledger import Ledger, PassPosition
from walferry.ledger.rows import ClusterSide
from walferry.migration.pairs import pair_log, pair_pass
from walferry.migration.pairs.pair_findings import findings, new_differences, pass_facts, pass_line, told
from walferry.migration.pairs.pair_pass import MUCH_LOG, PassPlan, describe_plan, open_pair, verify_pair
from walferry.migration.pairs.pair_plan import sights
from walferry.replay.keeping.retention import Retention
from walferry.run.heartbeat import beating
from walferry.run.log_folder import require_log_folder
from walferry.run.run import Run
from walferry.run.spec import ResolvedSpec
from walferry.storage import Local, WebHdfs


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, open_pair(ledger, ResolvedSpec.model_validate(SPEC), "test", 7).run_id)


def test_a_second_pass_at_once_is_refused_and_records_nothing(run: Run) -> None:
    with beating(run.ledger, "pass", "kim"), pytest.raises(UsageError, match="another process is verifying the pair"):
        verify_pair(run, lambda: SPARK)
    assert run.ledger.phases.all() == []


def test_a_pair_whose_regions_are_never_read_whole_is_refused(run: Run) -> None:
    with pytest.raises(UsageError, match="more than 0 days"):
        open_pair(run.ledger.whole, ResolvedSpec.model_validate(SPEC), "test", 0)


def test_the_oldest_claim_of_a_table_is_that_of_all_its_regions(run: Run) -> None:
    both = [REGION, region("r2", start=b"m", stop=b"", whole_ms=3)]
    first = one_pass(run.ledger, regions=both)
    assert findings(run.ledger, 9)["tables"] == [
        {"table": "t", "regions": 2, "clean": 2, "oldest_clean_ms": first.ended_ms, "oldest_whole_ms": 3}
    ]
    second = one_pass(run.ledger, differs(b"a\xff"), regions=both)
    found = findings(run.ledger, 9)
    assert (found["tables"][0]["clean"], found["tables"][0]["oldest_clean_ms"]) == (1, None)  # r1: by hand, no history
    assert [(row["row"], row["state"]) for row in found["differences"]] == [("a\\xFF", "differs")]
    assert pass_line(pass_facts(second)).startswith("pass 2: 1 row differs; 2 of 2 regions read whole, 10 rows and ")


def test_nobody_is_told_of_the_same_rows_twice(run: Run) -> None:
    one_pass(run.ledger)
    assert not new_differences(run.ledger)
    one_pass(run.ledger, differs(b"a"), differs(b"w", state="under way"))
    assert new_differences(run.ledger)
    told(run.ledger)
    one_pass(run.ledger, differs(b"a"))
    assert not new_differences(run.ledger)
    one_pass(run.ledger, differs(b"a"), differs(b"b"))
    assert new_differences(run.ledger)
    told(run.ledger)
    one_pass(run.ledger, differs(b"b"))
    assert not new_differences(run.ledger)
    told(run.ledger)
    one_pass(run.ledger, differs(b"a"), differs(b"b"))
    assert new_differences(run.ledger), "it was equal meanwhile"


def test_more_rows_without_a_name_are_news(run: Run) -> None:
    one_pass(run.ledger, regions=[region(unnamed=4)])
    assert new_differences(run.ledger)
    told(run.ledger)
    one_pass(run.ledger, regions=[region(unnamed=4)])
    assert not new_differences(run.ledger)
    one_pass(run.ledger, regions=[region(unnamed=5)])
    assert new_differences(run.ledger)


# ---- both logs, on this machine's disk


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Table t, named copy at the target; each side's log has one open file."""
    spec = SPEC | {"tables": [{"source": "t", "target": "copy"}]}
    spec |= {side: CLUSTER | {"rootdir": f"hdfs://127.0.0.1:1{tmp_path}/{side}"} for side in ("source", "target")}
    for side in ("source", "target"):
        (tmp_path / side / "oldWALs").mkdir(parents=True)
        (tmp_path / side / "WALs" / SERVER).mkdir(parents=True)
        write(tmp_path, side, header())
    monkeypatch.setattr(pair_log, "shared_log_files", lambda _: Local())
    monkeypatch.setattr(pair_pass, "require_log_folder", lambda *_, planned: None)
    monkeypatch.setattr(pair_pass, "retention_of", lambda _: Retention())
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        run = Run(ledger, open_pair(ledger, ResolvedSpec.model_validate(spec), "test", 7).run_id)
        run.__dict__ |= {"wal_files": Local(), "target_wal_files": Local(), "source": None, "target": None}
        yield run


def write(root: Path, side: str, *parts: bytes, number: int = 5) -> None:
    path = root / side / "WALs" / SERVER / f"{group()}.{number}"
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b"".join(parts))


def planned(run: Run, *positions: PassPosition) -> PassPlan:
    here = Region(b"r", "r1", "t", b"", b"", Server("rs", 1, 2), 1, 2)
    seen = sights("t", "copy", [here], [here])
    known_regions = {seen[0].name: region(target_table="copy", lines=seen[0].lines, whole_ms=now_ms(), position=1)}
    source, target = (pair_pass.look_into_log(run, side, positions, 0) for side in ("source", "target"))
    return PassPlan(seen, known_regions if positions else {}, source, target, 1e9)


def test_rows_of_both_logs_count_by_the_sources_name_and_the_next_pass_reads_on_from_their_ends(
    both: Run, tmp_path: Path
) -> None:
    current = both.ledger.passes.begin(1)
    _, rows, first = pair_pass.read_logs(both, None, current, planned(both))
    assert rows.count == 0
    write(tmp_path, "source", written(b"a"), written(b"no", table=b"copy"))
    write(tmp_path, "target", written(b"b", table=b"copy"), written(b"no", table=b"t"))
    plan = planned(both, both.ledger.passes.positions()[first])
    _, rows, second = pair_pass.read_logs(both, None, current, plan)
    assert rows.rows == {("t", "r1"): {b"a", b"b"}}
    assert both.ledger.passes.latest(1)[0].written_rows == 2
    plan = planned(both, both.ledger.passes.positions()[second])
    assert pair_pass.read_logs(both, None, current, plan)[1].count == 0


def test_a_pass_does_not_read_what_a_name_node_with_an_old_state_shows(
    both: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebHdfs, "behind", lambda files: iter([(files.url, "is an Observer")]))
    with pytest.raises(UsageError, match=r"^source\.webhdfs: .* is an Observer, so a log could be missing"):
        planned(both)


@pytest.mark.parametrize(("side", "table"), [("source", "t"), ("target", "copy")])
def test_a_pass_waits_while_one_server_of_a_side_logs_elsewhere(
    both: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: ClusterSide, table: str
) -> None:
    monkeypatch.setattr(pair_pass, "require_log_folder", require_log_folder)
    here, moved = Server.parse(SERVER), Server("rs", 9, 9)
    client = SimpleNamespace(
        address=ClusterAddress("zk:1", rootdir=f"hdfs://nn:1{tmp_path}/{side}"),
        servers=lambda: [here, moved],
        regions=lambda name: [SimpleNamespace(server=moved)] if name == table else [],
        settings=lambda server: {"hbase.wal.dir": "/new"},
    )
    both.__dict__[side] = client
    with pytest.raises(TransientError, match=rf"^{side}: .* has no folder of rs,9,9, which has regions of {table}; "):
        pair_pass.look_into_log(both, side, [], 0)


def test_more_log_than_the_tables_hold_is_not_read(both: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = both.ledger.passes.begin(1)
    _, _, first = pair_pass.read_logs(both, None, current, planned(both))
    write(tmp_path, "source", written(b"a"), TRAILER)
    write(tmp_path, "source", header(), number=6)
    position = both.ledger.passes.positions()[first]
    plan = planned(both, position)
    assert (plan.why(plan.sights[0]), plan.source.bytes > 0) == ("", True)
    monkeypatch.setattr(pair_pass, "LEAST_LOG_BYTES", 0)
    plan = planned(both, position)
    assert (plan.why(plan.sights[0]), plan.source.bytes) == (f"source: {MUCH_LOG}", 0)


def test_a_damaged_log_makes_the_regions_of_its_server_be_read_whole(both: Run, tmp_path: Path) -> None:
    current = both.ledger.passes.begin(1)
    _, _, first = pair_pass.read_logs(both, None, current, planned(both))
    write(tmp_path, "target", written(b"a"), b"\x05\xff\xff\xff\xff\xff" * 3)
    plan = planned(both, both.ledger.passes.positions()[first])
    pair_pass.read_logs(both, None, current, plan)
    assert "is damaged at byte" in plan.why(plan.sights[0])


def test_a_dry_run_says_whether_there_would_be_a_second_reader(both: Run, capsys: pytest.CaptureFixture[str]) -> None:
    class Held:
        def held_bytes(self) -> dict[str, int]:
            return {}

    both.__dict__["source"] = Held()
    plan = describe_plan(both, planned(both))
    assert plan["second_reader"]["rows"] == 0
    _print_plan(plan, as_json=False)
    none = (
        "no row would be read by a second reader: no Thrift server of the source and of the target is known (`thrift`)"
    )
    assert capsys.readouterr().out.splitlines()[-1] == none
    for side in (both.spec.source, both.spec.target, both.log_spec.source):
        side.__dict__["thrift"] = "127.0.0.1:1"
    plan = describe_plan(both, planned(both))
    assert plan["second_reader"] == {"rows": 1000, "why": ""}
    _print_plan(plan, as_json=False)
    would = "up to 1000 of these rows of each table would be read by HBase's own Java client, too"
    assert capsys.readouterr().out.splitlines()[-1] == would
