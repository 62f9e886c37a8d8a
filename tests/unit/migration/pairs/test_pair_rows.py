"""Which rows of a pair differ after all, once what is late has had its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from unit.migration.filled_ledger import SPEC
from unit.migration.pair_ledger import differs
from walferry.formats.cells import CellType
from walferry.ledger import Ledger
from walferry.migration.pairs import pair_rows
from walferry.migration.pairs.pair_rows import differing_cells_text, judged, still_differing
from walferry.migration.pairs.pair_shipping import NOT_LOOKED_AT, Proved, Shipping
from walferry.migration.sides.row_sides import Cell, RowSides
from walferry.run.run import Run


def cell(timestamp: int, value: bytes = b"v", qualifier: bytes = b"q") -> Cell:
    return b"f", qualifier, timestamp, CellType.PUT, value, b""


def sides(source: Sequence[Cell] = (), target: Sequence[Cell] = (), differing: int | None = None) -> RowSides:
    count = len(source) + len(target) if differing is None else differing
    return RowSides(frozenset(source), frozenset(target), tuple(source), tuple(target), count, False, 1)


ITEM = differs(b"a", state="under way")


def test_a_cell_that_differs_at_first_and_at_the_end_makes_the_row_differ() -> None:
    found = judged(ITEM, sides([cell(1), cell(2)]), sides([cell(2)]))
    assert (found.state, found.detail) == ("differs", "only at the source: put f:q at 2")


def test_a_row_in_which_other_cells_differ_each_time_is_under_way() -> None:
    assert judged(ITEM, sides([cell(1)]), sides([cell(2)], [cell(1)])).state == "under way"


@pytest.mark.parametrize("before", [None, sides([cell(1)], differing=2)])
def test_a_row_of_which_not_all_is_known_is_not_excused(before: RowSides | None) -> None:
    assert judged(ITEM, before, sides([cell(2)])).state == "differs"
    assert judged(ITEM, sides([cell(1)]), sides([cell(2)], differing=9)).state == "differs"


def test_the_cells_are_named_for_each_side_up_to_a_bound_and_never_their_values() -> None:
    many = [cell(n, b"secret", b"q%d" % n) for n in range(7)]
    text = differing_cells_text(sides(many, [cell(0, b"other", b"q0")]))
    assert text.startswith("only at the source: put f:q0 at 0 (another value, type or tags), put f:q1 at 1, ")
    assert "and 2 more; only at the target: put f:q0 at 0 (another value, type or tags)" in text
    assert "secret" not in text


class Clusters:
    """Both sides of rows, as they are at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[bytes, RowSides | None] = {}
        self.now = 0.0
        monkeypatch.setattr(pair_rows, "_look", lambda run, table, rows: {row: self.rows[row] for row in rows})
        monkeypatch.setattr(pair_rows, "differing", self.differing)
        monkeypatch.setattr(pair_rows, "steady_s", lambda: self.now)

    def differing(self, run: Any, table: str, rows: Sequence[bytes]) -> Mapping[bytes, str]:
        return {row: "" for row in rows if self.rows[row] is not None}

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    spec = SPEC | {"tables": [{"source": "t", "target": "t"}], "max_lag": 30}
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", actor="test") as ledger:
        yield Run(ledger, ledger.open_run("shop", "pair", spec, "test", "pair").run_id)


def test_a_row_that_arrives_within_the_lag_does_not_differ(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": sides([cell(1)]), b"b": sides([cell(1)])}

    def pause(seconds: float) -> None:
        clusters.pause(seconds)
        if clusters.now >= 20:
            clusters.rows[b"b"] = None

    found, read = still_differing(run, [ITEM, replace(ITEM, row=b"b")], Shipping(run, {}), pause)
    assert [(item.row, item.state) for item in found] == [(b"a", "differs")]
    assert 30 <= clusters.now < 40
    assert read >= 4


def test_nobody_waits_once_all_rows_are_equal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": None}
    assert still_differing(run, [ITEM], Shipping(run, {}), clusters.pause) == ([], 1)
    assert clusters.now == 0


def test_rows_beyond_those_that_are_looked_at_one_by_one_differ_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": sides([cell(1)]), b"b": sides([cell(1)])}
    monkeypatch.setattr(pair_rows, "_look", lambda run, table, rows: {row: clusters.rows[row] for row in rows[:1]})
    found, _ = still_differing(run, [ITEM, replace(ITEM, row=b"b")], Shipping(run, {}), clusters.pause)
    assert [(item.state, item.detail[:11]) for item in found] == [
        ("differs", "only at the"),
        ("differs", "it was not "),
    ]


class Peer(Shipping):
    """A peer that ships by `then`, or does not, `because`."""

    def __init__(
        self,
        run: Run,
        then: Callable[[], None] = lambda: None,
        because: str = "",
        proved: Proved = MappingProxyType({}),
    ) -> None:
        super().__init__(run, proved)
        self.peer, self._then, self._because, self.asked = "east", then, because, 0

    def ship(self) -> None:
        self.asked += 1
        self._then()
        self.why = self._because


def test_a_row_that_is_equal_once_all_is_shipped_does_not_differ(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": sides([cell(1)]), b"b": sides([cell(1)])}
    peer = Peer(run, lambda: clusters.rows.update({b"b": None}))
    found, _ = still_differing(run, [ITEM, replace(ITEM, row=b"b")], peer, clusters.pause)
    assert [(item.row, item.state) for item in found] == [(b"a", "differs")]


def test_nothing_is_shipped_for_rows_that_arrive_within_the_lag(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": None}
    peer = Peer(run)
    assert still_differing(run, [ITEM], peer, clusters.pause) == ([], 1)
    assert peer.asked == 0


def test_a_row_that_was_written_after_the_logs_were_rolled_is_under_way(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row a had arrived when they were rolled; of row b, another cell differed."""
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": None, b"b": sides([cell(1)])}
    monkeypatch.setattr(clusters, "differing", lambda run, table, rows: dict.fromkeys(rows, ""))
    monkeypatch.setattr(pair_rows, "differing", clusters.differing)
    peer = Peer(run, lambda: clusters.rows.update({b"a": sides([cell(2)]), b"b": sides([cell(2)])}))
    found, _ = still_differing(run, [ITEM, replace(ITEM, row=b"b")], peer, clusters.pause)
    assert [item.state for item in found] == ["under way", "under way"]


def test_a_cell_that_differed_when_the_logs_were_rolled_and_still_does_makes_the_row_differ(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first, another one did."""
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": sides([cell(1)])}

    def pause(seconds: float) -> None:
        clusters.pause(seconds)
        clusters.rows[b"a"] = sides([cell(2)])

    found, _ = still_differing(run, [ITEM], Peer(run), pause)
    assert [(item.state, item.detail) for item in found] == [("differs", "only at the source: put f:q at 2")]


def test_rows_differ_only_as_an_earlier_pass_has_found_if_it_is_not_known_that_all_is_shipped(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = Clusters(monkeypatch)
    clusters.rows = {row: sides([cell(1)]) for row in (b"a", b"b", b"c")}
    at = "only at the source: put f:q at "
    peer = Peer(run, because="not shipped in 60 s", proved={("t", b"a"): at + "1", ("t", b"b"): at + "0"})
    items = [replace(ITEM, row=row) for row in (b"a", b"b", b"c")]
    found, _ = still_differing(run, items, peer, clusters.pause)
    assert [(item.row, item.state) for item in found] == [
        (b"a", "differs"),
        (b"b", "under way"),
        (b"c", "under way"),
    ]


def test_rows_beyond_those_that_are_looked_at_one_by_one_are_read_again_once_all_is_shipped(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = Clusters(monkeypatch)
    clusters.rows = {b"a": sides([cell(1)]), b"b": sides([cell(1)])}
    monkeypatch.setattr(pair_rows, "_look", lambda run, table, rows: {row: clusters.rows[row] for row in rows[:1]})
    peer = Peer(run, lambda: clusters.rows.update({b"a": None, b"b": None}))
    assert still_differing(run, [ITEM, replace(ITEM, row=b"b")], peer, clusters.pause)[0] == []


class Crowded:
    """Rows a, b and c differ in the same cell at each look, but a look takes only the first `most` rows."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.run, self.clusters = run, Clusters(monkeypatch)
        self.clusters.rows = {row: sides([cell(1)]) for row in (b"a", b"b", b"c")}
        monkeypatch.setattr(
            pair_rows, "_look", lambda run, table, rows: {row: self.clusters.rows[row] for row in rows[:most]}
        )

    def states(self, peer: Peer) -> dict[bytes, str]:
        items = [replace(ITEM, row=row) for row in self.clusters.rows]
        return {item.row: item.state for item in still_differing(self.run, items, peer, self.clusters.pause)[0]}


TOO_MANY = "more than 1,000 rows of t differ, and only so many are followed cell by cell"


def test_with_a_peer_rows_beyond_those_that_are_looked_at_are_not_judged(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded, peer = Crowded(run, monkeypatch, most=1), Peer(run)
    assert crowded.states(peer) == {b"a": "differs", b"b": "under way", b"c": "under way"}
    assert peer.unjudged == TOO_MANY


def test_with_a_peer_a_row_that_was_not_looked_at_before_the_roll_is_not_judged(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is among those looked at in the end, since row a arrives."""
    crowded = Crowded(run, monkeypatch, most=2)
    peer = Peer(run, lambda: crowded.clusters.rows.update({b"a": None}))
    assert crowded.states(peer) == {b"b": "differs", b"c": "under way"}
    assert peer.unjudged == TOO_MANY


def test_a_row_that_an_earlier_pass_has_proved_to_differ_needs_no_look_before_the_roll(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = Crowded(run, monkeypatch, most=2)
    proved = {("t", b"c"): "only at the source: put f:q at 1"}
    peer = Peer(run, lambda: crowded.clusters.rows.update({b"a": None}), proved=proved)
    assert crowded.states(peer) == {b"b": "differs", b"c": "differs"}
    assert peer.unjudged == ""


def test_a_row_that_no_reading_has_shown_cell_by_cell_is_never_proved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = Crowded(run, monkeypatch, most=1)
    peer = Peer(run, because="not shipped in 60 s", proved={("t", b"b"): NOT_LOOKED_AT})
    assert crowded.states(peer) == {b"a": "under way", b"b": "under way", b"c": "under way"}


@pytest.mark.parametrize(("before", "now"), [(1, 3), (3, 1), (3, 3)])
def test_with_a_peer_a_row_with_more_cells_than_are_kept_differs_only_by_a_cell_seen_twice(
    run: Run, monkeypatch: pytest.MonkeyPatch, before: int, now: int
) -> None:
    clusters = Clusters(monkeypatch)
    for then, state, why in (
        (sides([cell(2)], differing=now), "under way", "a row of t differs in more cells than are kept: a"),
        (sides([cell(1), cell(2)], differing=now + 1), "differs", ""),
    ):
        clusters.rows = {b"a": sides([cell(1)], differing=before)}
        peer = Peer(run, lambda then=then: clusters.rows.update({b"a": then}))  # type: ignore[misc]
        (found,), _ = still_differing(run, [ITEM], peer, clusters.pause)
        assert (found.state, peer.unjudged) == (state, why)


class BothWays(Peer):
    """Peers in both directions."""

    def __init__(self, run: Run, then: Callable[[], None]) -> None:
        super().__init__(run, then)
        self.times = 2


def test_where_both_clusters_have_clients_a_cell_must_also_differ_between_two_shipments(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row a: what had come from the target was deleted at the source, and that delete has come back by the second one.
    Row b: its cell only arrived in between."""
    clusters = Clusters(monkeypatch)
    clusters.rows = {row: sides((), [cell(1)]) for row in (b"a", b"b", b"c")}
    between: Iterator[dict[bytes, RowSides | None]] = iter(
        [{b"b": sides((), [cell(2)])}, {b"a": None, b"b": sides((), [cell(1)])}]
    )
    peers = BothWays(run, lambda: clusters.rows.update(next(between)))
    found, _ = still_differing(run, [replace(ITEM, row=row) for row in (b"a", b"b", b"c")], peers, clusters.pause)
    assert [(item.row, item.state) for item in found] == [(b"b", "under way"), (b"c", "differs")]
    assert peers.asked == 2
    assert peers.unjudged == ""
