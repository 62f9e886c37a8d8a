"""Which part of the log leads from a base to a moment, on servers whose clocks differ."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from unit.moments.restoring.source_life import BEGIN_MS, CLOCKS_MS, FAR, STEP_MS, Life, moment
from walferry.formats.cells import CellType, encode_cell
from walferry.formats.proto import hbase_pb2 as pb
from walferry.moments.restoring.log_part import (
    NONE,
    BaseRegion,
    BaseTooNewError,
    ClocksApartError,
    NewHistoryError,
    NotInLogError,
    TableBase,
    look,
    only_seen,
    part_of,
    parts_and_gaps,
    require_one_history,
)
from walferry.storage import Local
from walferry.wal.files import Place, WalFile
from walferry.wal.open import open_wal_at

SERVERS = st.sampled_from(sorted(CLOCKS_MS))
EVENTS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 9)),
    st.tuples(st.just("write"), st.integers(0, 9)),
    st.tuples(st.just("move"), st.integers(0, 9), SERVERS),
    st.tuples(st.just("split"), st.integers(0, 9), st.tuples(SERVERS, SERVERS)),
)


def happen(life: Life, events: list[tuple[object, ...]]) -> None:
    for name, *more in events:
        life.tick()
        getattr(life, str(name))(*more)


@settings(max_examples=150)
@given(st.lists(EVENTS, max_size=12), st.lists(EVENTS, max_size=16), st.integers(0, 18))
def test_of_each_line_of_regions_exactly_what_comes_before_the_first_later_entry_is_applied(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]], steps: int
) -> None:
    life = Life()
    happen(life, before)
    life.take_base()
    at_ms = life.now_ms + steps * STEP_MS
    in_base = {written for one in life.regions for written in one.line}
    happen(life, after)
    assert life.base is not None
    with TemporaryDirectory() as folder:
        seen = life.seen(Path(folder), at_ms)
    if any(written.write_ms > at_ms for written in in_base):
        with pytest.raises(BaseTooNewError, match="choose an older base"):
            part_of(seen, "t1", life.base, moment(at_ms))
        return
    parts = part_of(seen, "t1", life.base, moment(at_ms))
    for line in (one.line for one in life.regions):
        since = [written for written in line if written not in in_base]
        late = next((n for n, written in enumerate(since) if written.write_ms > at_ms), len(since))
        applied = [
            written for written in line
            if (part := parts.get(written.region)) and part.has(written.number, written.write_ms)
            and written.write_ms <= at_ms
        ]  # fmt: skip
        assert applied == since[:late]


@settings(max_examples=50)
@given(st.lists(EVENTS, max_size=12), st.lists(EVENTS, max_size=12), st.lists(EVENTS, min_size=1, max_size=6))
def test_of_a_log_that_gets_longer_only_what_was_seen_is_applied(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]], later: list[tuple[object, ...]]
) -> None:
    life = Life()
    happen(life, before)
    life.take_base()
    in_base = {written for one in life.regions for written in one.line}
    happen(life, after)
    wanted = {written for one in life.regions for written in one.line} - in_base
    at_ms = life.now_ms + 60 * 60_000  # later than all by any clock
    assert life.base is not None
    with TemporaryDirectory() as folder:
        seen = life.seen(Path(folder), at_ms)
    parts = only_seen(seen, part_of(seen, "t1", life.base, moment(at_ms)))
    happen(life, later)
    applied = {
        written
        for one in life.regions for written in one.line
        if (part := parts.get(written.region)) and part.has(written.number, written.write_ms)
    }  # fmt: skip
    assert {one for one in applied if one.is_edit} == {one for one in wanted if one.is_edit}


def test_a_part_has_its_first_later_entry(tmp_path: Path) -> None:
    life = Life()
    life.take_base()
    happen(life, [("write", 0), ("write", 1), ("write", 0)])
    at_ms = BEGIN_MS + 2 * STEP_MS
    assert life.base is not None
    first, second = part_of(life.seen(tmp_path, at_ms), "t1", life.base, moment(at_ms)).values()
    assert (first.after, first.before, first.before_ms) == (2, 5, at_ms + STEP_MS)
    assert (second.after, second.before) == (2, NONE)


def test_a_base_may_have_what_a_region_that_was_split_since_wrote_by_a_fast_clock(tmp_path: Path) -> None:
    life = Life()
    happen(life, [("move", 0, "B"), ("split", 0, ("A", "A"))])
    life.take_base()
    assert life.base is not None
    with pytest.raises(BaseTooNewError, match="that its server wrote at"):
        part_of(life.seen(tmp_path, life.now_ms), "t1", life.base, moment(life.now_ms))


@pytest.mark.parametrize(
    ("family", "written_ms", "after"),
    [(b"f", BEGIN_MS, 10), (b"g", BEGIN_MS, 7), (b"new", BEGIN_MS, 10), (b"g", BEGIN_MS - 3_600_000, 10)],
    ids=["the base has it", "one family was flushed later", "no family of the base", "past its TTL"],
)
def test_a_part_begins_before_the_first_cell_that_the_base_lacks(
    family: bytes, written_ms: int, after: int, tmp_path: Path
) -> None:
    base = TableBase("base", BEGIN_MS, BEGIN_MS, {REGION.decode(): BaseRegion(b"", 1, {b"f": 10, b"g": 7})})
    cell = encode_cell(b"r", family, b"q", 1, CellType.PUT, b"v")
    (tmp_path / "log").write_bytes(header() + entry([cell], 8, write_time=written_ms) + TRAILER)
    file = WalFile("log", "g", "s", 1, str(tmp_path / "log"), Place.ARCHIVED, 1)
    seen = look(open_wal_at(Local(), file.path), file, "t1", moment(BEGIN_MS), base)
    (part,) = part_of([seen], "t1", base, moment(BEGIN_MS)).values()
    assert (part.after, part.before) == (after, NONE)


def one_history(life: Life, folder: Path, at_ms: int) -> None:
    assert life.base is not None
    require_one_history(
        life.seen(folder, at_ms), life.base, moment(at_ms), {}, lambda table: ["f"], opens_past_closing=True
    )


@pytest.mark.parametrize(
    ("number", "closes"),
    [(1, True), (9, True), (12, True), (1, False)],
    ids=["before the base", "just before it", "after it", "of a table whose server had died"],
)
def test_a_clone_under_the_tables_name_after_the_base_is_refused(number: int, closes: bool, tmp_path: Path) -> None:
    life = Life()
    happen(life, [("write", 0)] * 8)
    life.take_base()  # the first region has used the numbers up to 10
    happen(life, [("write", 0)] * 5)
    before_ms = life.now_ms
    life.steps += 100
    happen(life, [("clone", number, closes), ("write", 0)])
    with pytest.raises(NewHistoryError, match="t1 was truncated"):
        one_history(life, tmp_path, life.now_ms)
    one_history(life, tmp_path, before_ms)
    assert life.base is not None
    part = next(iter(part_of(life.seen(tmp_path, before_ms), "t1", life.base, moment(before_ms)).values()))
    assert all(part.has(n, before_ms) for n in range(12, 17))


def test_of_a_history_that_ended_before_the_base_nothing_is_applied(tmp_path: Path) -> None:
    life = Life()
    happen(life, [("write", 0)] * 20)
    life.steps += 100
    happen(life, [("clone", 4), ("write", 0)])
    life.steps += 100
    life.take_base()
    happen(life, [("write", 0)])
    one_history(life, tmp_path, life.now_ms)
    assert life.base is not None
    part = next(iter(part_of(life.seen(tmp_path, life.now_ms), "t1", life.base, moment(life.now_ms)).values()))
    assert part.has(8, life.now_ms)
    assert not part.has(20, BEGIN_MS)


def test_clocks_that_differ_by_more_than_is_allowed_for_are_named(tmp_path: Path) -> None:
    life = Life()
    life.take_base()
    happen(life, [("move", 0, FAR), ("write", 0), ("move", 0, "A"), ("write", 0)])
    assert life.base is not None
    with pytest.raises(ClocksApartError, match=r"differ by more than 60 s\. Raise WALFERRY_CLOCK_SKEW_SECONDS"):
        part_of(life.seen(tmp_path, life.now_ms), "t1", life.base, moment(life.now_ms))


def test_an_empty_region_that_opens_anew_at_its_first_number_is_no_new_history(tmp_path: Path) -> None:
    life = Life()
    life.take_base()
    assert life.base is not None
    empty = {name: replace(one, numbers={b"f": 0}) for name, one in life.base.regions.items()}
    life.base = replace(life.base, regions=empty)
    life.steps += 100
    happen(life, [("clone", 1)])
    one_history(life, tmp_path, life.now_ms)


@pytest.mark.parametrize("has", [True, False], ids=["the base has its file", "the base lacks its file"])
def test_a_bulk_load_just_before_a_base_counts_only_if_the_base_lacks_its_file(has: bool, tmp_path: Path) -> None:
    load = pb.BulkLoadDescriptor(
        table_name=pb.TableName(namespace=b"default", qualifier=b"t1"), encoded_region_name=REGION, bulkload_seq_num=8,
        stores=[pb.StoreDescriptor(family_name=b"f", store_home_dir="f", store_file=["one_SeqId_8_"])],
    )  # fmt: skip
    cell = encode_cell(b"r", b"METAFAMILY", b"HBASE::BULK_LOAD", 1, CellType.PUT, load.SerializeToString())
    (tmp_path / "log").write_bytes(header() + entry([cell], 8, write_time=BEGIN_MS) + TRAILER)
    loaded = frozenset({"one_SeqId_8_"} if has else ())
    base = TableBase("base", BEGIN_MS, BEGIN_MS, {REGION.decode(): BaseRegion(b"", 1, {b"f": 7})}, loaded)
    file = WalFile("log", "g", "s", 1, str(tmp_path / "log"), Place.ARCHIVED, 1)
    seen = [look(open_wal_at(Local(), file.path), file, "t1", moment(BEGIN_MS), base)]
    for may_grow in (False, True):
        with (
            nullcontext() if has else
            pytest.raises(NotInLogError, match="a bulk load, whose cells the log does not hold")
        ):  # fmt: skip
            parts_and_gaps(seen, "t1", base, moment(BEGIN_MS), may_grow=may_grow)


def test_numbers_that_are_missing_before_a_regions_last_opening_are_told(tmp_path: Path) -> None:
    life = Life()
    life.take_base()
    happen(life, [("write", 0)])
    region = life.regions[0]
    region.number += 20  # the end of its server's log is lost
    region.server = "B"
    life.open_again(region)
    at_ms = life.now_ms + 3_600_000
    assert life.base is not None
    for may_grow in (False, True):
        _, gaps = parts_and_gaps(life.seen(tmp_path, at_ms), "t1", life.base, moment(at_ms), may_grow=may_grow)
        assert [gap.region for gap in gaps] == [region.name]
