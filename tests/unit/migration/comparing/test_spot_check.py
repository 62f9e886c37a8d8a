"""What the second reader finds, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thriftpy2.transport import TTransportException

from unit.migration.filled_ledger import CLUSTER, SPEC, compared
from unit.migration.two_readers import OTHERS, SHOWN, Clusters
from walferry.clock import now_ms
from walferry.errors import TransientError
from walferry.formats.cells import CellType, encode_cell
from walferry.ledger import Difference, Ledger, RangeComparison
from walferry.ledger.rows import DifferenceKind, Purpose
from walferry.migration.comparing import spot_check as module
from walferry.migration.comparing.compare import TableComparison
from walferry.migration.comparing.spot_check import ONLY_SECOND, UNREAD, spot_check
from walferry.migration.explaining.explain_rows import EQUAL_NOW
from walferry.run.notes.spot_check import SpotCheck, last_spot_check, only_second, sampled, spot_check_of
from walferry.run.run import Run

TABLE = "shop:orders"
WITH_THRIFT = SPEC | dict.fromkeys(("source", "target"), CLUSTER | {"thrift": "127.0.0.1:1"})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("move", "test", WITH_THRIFT, "test").run_id)


class Explained(Clusters):
    """With the comparison's reader beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.kinds: dict[bytes, DifferenceKind] = {}
        self.details: dict[bytes, str] = {}
        monkeypatch.setattr(module, "last_written", lambda *_: [b"c"])
        monkeypatch.setattr(module, "explain", self._explain)

    def _explain(self, run: Any, spark: Any, session: Any, table: str, rows: list[bytes]) -> list[Difference]:
        return [
            Difference(table, row, self.kinds.get(row, "in-flight"), self.details.get(row, EQUAL_NOW), "1f")
            for row in rows
        ]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch, run: Run) -> Explained:
    made = Explained(monkeypatch)
    run.__dict__.update(source=made, target=made)
    return made


def compare(
    run: Run, *differences: Difference, sample: tuple[bytes, ...] = (b"a",), purpose: Purpose = "phase"
) -> TableComparison:
    part = RangeComparison(TABLE, "r1", b"", b"", 2, 4, "01", 2, 4, "01", {})
    made = run.ledger.comparisons.record(compared(TABLE, len(differences), purpose=purpose), [part], differences)
    return TableComparison(made, [part], list(differences), {}, sample)


def check(run: Run, *differences: Difference) -> SpotCheck:
    return spot_check(run, lambda: None, compare(run, *differences))  # type: ignore[arg-type,return-value]


def test_sampled_rows_those_after_them_and_those_written_last_are_read(run: Run, clusters: Explained) -> None:
    found = check(run)
    assert (found.rows, found.differing, found.excused) == (3, (), 0)
    assert clusters.asked == [[b"a", b"b"], [b"c"]]
    assert found.describe() == "3 rows read by HBase's own Java client on both sides: all equal"


def test_a_row_that_only_the_second_reader_finds_has_no_explanation_and_can_be_accepted(
    run: Run, clusters: Explained
) -> None:
    clusters.there[b"b"] = OTHERS
    found = check(run)
    assert found.differing == (b"b".hex(),)
    [item] = run.ledger.comparisons.differences()
    assert (item.row, item.kind, item.detail) == (b"b", "unexplained", ONLY_SECOND)
    assert run.ledger.comparisons.tables()[-1].differing_rows == 1
    first = item.fingerprint
    clusters.there[b"b"] = {}
    check(run)
    assert run.ledger.comparisons.differences()[0].fingerprint != first, "a decision is about exactly these cells"


def test_rows_that_differed_are_read_again_after_the_next_comparison(run: Run, clusters: Explained) -> None:
    clusters.here[b"z"] = SHOWN
    clusters.there[b"b"] = OTHERS
    check(run)
    clusters.asked.clear()
    check(run)
    assert clusters.asked[1] == [b"c", b"b"]


def test_a_row_that_is_equal_when_it_is_read_again_does_not_count(run: Run, clusters: Explained) -> None:
    clusters.there[b"b"], clusters.at_look = OTHERS, {3: {b"b": SHOWN}}
    assert check(run).differing == ()


@pytest.mark.parametrize("kind", ["known", "written-at-target", "flushes", "expires now"])
def test_what_differs_for_a_known_reason_is_counted_apart(run: Run, clusters: Explained, kind: str) -> None:
    clusters.there[b"b"] = OTHERS
    known = []
    if kind == "known":
        known = [Difference(TABLE, b"b", "not-in-log", "detail", "1f")]
    elif kind == "written-at-target":
        clusters.kinds[b"b"] = "written-at-target"
    elif kind == "expires now":
        ttl = [(8, (1_000).to_bytes(8, "big"))]
        clusters.raw = [encode_cell(b"b", b"f", b"q", now_ms() - 500, CellType.PUT, b"v", ttl)]
    else:
        clusters.raw = [
            encode_cell(b"b", b"f", b"", 9, CellType.DELETE_FAMILY),
            encode_cell(b"b", b"f", b"", 3, CellType.PUT, b"v"),
        ]
    found = check(run, *known)
    assert (found.differing, found.excused) == ((), 1)
    assert found.describe().endswith("1 differ, 1 of them known from the comparison")


def test_a_difference_that_the_first_reader_sees_by_now_keeps_its_class(run: Run, clusters: Explained) -> None:
    clusters.there[b"b"] = OTHERS
    clusters.kinds[b"b"] = "history-dependent"
    assert check(run).differing == (b"b".hex(),)
    assert [item.kind for item in run.ledger.comparisons.differences()] == ["history-dependent"]


def test_a_thrift_server_that_fails_is_told_and_shuts_nothing(
    run: Run, clusters: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise TTransportException(message="no answer")

    monkeypatch.setattr(clusters, "exactly", fails)
    found = check(run)
    assert not found.rows
    assert "reading by Thrift failed" in found.describe()


def test_a_row_that_differed_last_time_and_cannot_be_read_now_still_shuts_the_gate(
    run: Run, clusters: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: a check while Thrift was down forgot what the one before it had found."""
    clusters.there[b"b"] = OTHERS
    check(run)
    reads = clusters.exactly

    def fails(*_: Any) -> Any:
        raise TTransportException(message="no answer")

    monkeypatch.setattr(clusters, "exactly", fails)
    found = check(run)
    assert found.differing == (b"b".hex(),)
    assert found.describe().endswith("1 that differed last time were not read")
    assert [item.detail for item in run.ledger.comparisons.differences()] == [UNREAD]
    monkeypatch.setattr(clusters, "exactly", reads)
    assert spot_check(run, lambda: None, compare(run, sample=())).differing == (b"b".hex(),)  # type: ignore[arg-type,return-value]


def test_an_error_on_the_way_to_the_reason_is_no_clean_check(
    run: Run, clusters: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters.there[b"b"] = OTHERS

    def fails(*_: Any) -> Any:
        raise TransientError("a region is being moved")

    monkeypatch.setattr(module, "explain", fails)
    with pytest.raises(TransientError):
        check(run)


def test_of_each_region_at_least_one_cell_is_sampled_where_there_can_be_a_check(run: Run, tmp_path: Path) -> None:
    assert sampled(run, 3) == 111
    assert sampled(run, 5_000) == 1
    run.spec.__dict__["spot_check"] = 0
    assert sampled(run, 3) == 0


def test_only_the_check_after_a_comparison_counts_for_it(run: Run, clusters: Explained) -> None:
    first = compare(run)
    found = spot_check(run, lambda: None, first)  # type: ignore[arg-type,return-value]
    assert spot_check_of(run.ledger, first.compared) == last_spot_check(run.ledger, TABLE) == found
    assert spot_check_of(run.ledger, compare(run).compared) is None


# ---- while the log is followed, on demand


@pytest.fixture
def followed(run: Run, clusters: Explained, monkeypatch: pytest.MonkeyPatch) -> Explained:
    """Row b differs for the second reader."""
    monkeypatch.setattr(module, "is_followed", lambda _: True)
    run.spec.__dict__["max_lag"] = 0.01
    clusters.there[b"b"] = OTHERS
    return clusters


def on_demand(run: Run) -> SpotCheck:
    return spot_check(run, lambda: None, compare(run, purpose="verify"))  # type: ignore[arg-type,return-value]


def test_what_differs_for_the_second_reader_alone_differs_while_the_log_is_followed_too(
    run: Run, followed: Explained
) -> None:
    assert on_demand(run).differing == (b"b".hex(),)


def test_an_edit_that_is_on_its_way_is_no_difference_while_the_log_is_followed(run: Run, followed: Explained) -> None:
    followed.details[b"b"] = "in a log that is not applied yet"
    assert on_demand(run).differing == ()
    made = compare(run)
    assert spot_check(run, lambda: None, made).differing, "the source stands still"  # type: ignore[arg-type,return-value]


def test_an_edit_that_came_while_the_reason_was_looked_for_is_no_difference(run: Run, followed: Explained) -> None:
    def explained(*asked: Any) -> list[Difference]:
        followed.there[b"b"] = SHOWN
        return followed._explain(*asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "explain", explained)
        found = on_demand(run)
    assert (found.differing, found.excused) == ((), 1)


def test_a_check_on_demand_does_not_take_away_that_of_the_phase(run: Run, clusters: Explained) -> None:
    """Hole: `walferry verify` between the phase and the gate made the gate forget the second reader."""
    made = compare(run)
    found = spot_check(run, lambda: None, made)  # type: ignore[arg-type,return-value]
    newest = on_demand(run)
    assert spot_check_of(run.ledger, made.compared) == found
    assert last_spot_check(run.ledger, TABLE) == newest != found


def test_what_the_second_reader_found_is_left_open_until_somebody_accepts_it(run: Run, clusters: Explained) -> None:
    made = compare(run, purpose="verify")
    assert not only_second(run.ledger, made.compared)
    clusters.there[b"b"] = OTHERS
    spot_check(run, lambda: None, made)  # type: ignore[arg-type,return-value]
    assert only_second(run.ledger, made.compared)
    run.ledger.comparisons.accept(run.ledger.comparisons.differences(), "known", "kim")
    assert not only_second(run.ledger, made.compared)
