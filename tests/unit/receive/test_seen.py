"""Which entries were applied before: against a plain model, and rule by rule."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest.mock import Mock

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from unit.receive.call_builder import Sent, received
from walferry.formats.cells import encode_cell
from walferry.formats.wal import EntryBatch
from walferry.receive import seen as module
from walferry.receive.seen import Applied, DamagedRecordError, Judged, Seen

Entry = tuple[str, int, int]
"""region, number, write time"""


def batch_of(entries: Sequence[Entry]) -> EntryBatch:
    return received(*(Sent(region=region, number=number, time=time) for region, number, time in entries)).batch


def everything(batch: EntryBatch) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.arange(len(batch))


def applied(*entries: Entry) -> Applied:
    batch = batch_of(entries)
    return Applied.of(batch, everything(batch))


def judged(seen: Seen, *entries: Entry) -> list[str]:
    batch = batch_of(entries)
    return words(seen.judge(batch, everything(batch)))


def words(judged: Judged) -> list[str]:
    """What each entry is; exactly one of three, and only what is late is also forgotten."""
    assert (judged.fresh.astype(int) + judged.repeated + judged.late == 1).all()
    assert not (judged.forgotten & ~judged.late).any()
    kinds = zip(judged.fresh.tolist(), judged.repeated.tolist(), judged.forgotten.tolist(), strict=True)
    return [
        "fresh" if fresh else "repeated" if repeated else "forgotten" if forgotten else "late"
        for fresh, repeated, forgotten in kinds
    ]


def entries_in(record: Applied) -> list[Entry]:
    return [
        (name, number, print_)
        for i, name in enumerate(record.regions)
        for number, print_ in zip(
            record.numbers[record.starts[i] : record.starts[i + 1]].tolist(),
            record.prints[record.starts[i] : record.starts[i + 1]].tolist(),
            strict=True,
        )
    ]


def print_of(time: int) -> int:
    """The print of an entry without cells: MurmurHash3's fmix64 of its write time."""
    mixed = time & (1 << 64) - 1
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ mixed >> 33) * factor & (1 << 64) - 1
    return as_signed(mixed ^ mixed >> 33)


def test_an_entry_with_other_cells_is_another_one() -> None:
    """As a peer ships it that replicates other families."""
    cells = [encode_cell(b"r", family, b"q", 1, 4, b"v") for family in (b"d", b"e")]
    first, second = (received(Sent([cell], number=7)).batch for cell in cells)
    seen = Seen({}, [Applied.of(first, everything(first))])
    assert words(seen.judge(first, everything(first))) == ["repeated"]
    assert words(seen.judge(second, everything(second))) == ["late"]


@dataclass
class Model:
    """The rules as plain Python, entry by entry."""

    floors: dict[str, int]
    calls: list[set[Entry]] = field(default_factory=list)

    def judge(self, entries: Sequence[Entry]) -> list[str]:
        known = set().union(*self.calls)
        within: set[Entry] = set()
        told = []
        for entry in entries:
            region, number, _ = entry
            numbers = [other[1] for other in known if other[0] == region]
            numbers += [self.floors[region]] if region in self.floors else []
            if entry in known or entry in within:
                told.append("repeated")
            elif all(number > other for other in numbers):
                told.append("fresh")
            elif region in self.floors and number <= self.floors[region]:
                told.append("forgotten")
            else:
                told.append("late")
            within.add(entry)
        return told

    def forget(self, count: int) -> None:
        for call in self.calls[:count]:
            for region, number, _ in call:
                self.floors[region] = max(self.floors.get(region, number), number)
        del self.calls[:count]


numbers = st.one_of(st.integers(0, 12), st.sampled_from([2**63 - 1, 2**62]))
entries = st.tuples(st.sampled_from(["r1", "r2", "r3"]), numbers, st.integers(0, 2))
calls = st.lists(entries, max_size=8)
steps = st.one_of(
    st.tuples(st.just("call"), calls),
    st.tuples(st.just("ascending"), calls.map(sorted)),
    st.tuples(st.just("forget"), st.integers(0, 3)),
)


@given(
    st.dictionaries(st.sampled_from(["r1", "r2"]), st.integers(0, 6)),
    st.lists(calls, max_size=3),
    st.lists(steps, max_size=12),
    st.randoms(use_true_random=False),
)
def test_every_entry_is_judged_as_by_a_model_that_keeps_all_of_them(
    floors: dict[str, int], before: list[list[Entry]], steps: list[tuple[str, list[Entry] | int]], chance: random.Random
) -> None:
    model = Model(dict(floors), [set(call) for call in before])
    seen = Seen(floors, (applied(*call) for call in before))
    for kind, what in steps:
        if isinstance(what, int):
            model.forget(what)
            seen.forget(what)
            assert seen.floors == model.floors
        else:
            if chance.random() < 0.5:  # a call comes again, whole or in part
                what = sorted(chance.choice([*model.calls, set()])) + what
            assert judged(seen, *what) == model.judge(what), kind
            new = [entry for entry in what if chance.random() < 0.8]
            model.calls.append(set(new))
            seen.add(applied(*new))
        assert seen.remembered == sum(map(len, model.calls))


@given(calls, st.data())
def test_only_the_picked_entries_are_judged_and_remembered(call: list[Entry], data: st.DataObject) -> None:
    batch = batch_of(call)
    picked = np.array(sorted(data.draw(st.sets(st.integers(0, len(call) - 1))) if call else []), np.intp)
    mine = [call[i] for i in picked.tolist()]
    assert words(Seen({}, []).judge(batch, picked)) == Model({}).judge(mine)
    assert sorted(entries_in(Applied.of(batch, picked))) == sorted(
        {(region, number, print_of(time)) for region, number, time in mine}
    )


unsigned = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), unsigned, unsigned)))
def test_what_is_recorded_is_what_was_applied(call: list[Entry]) -> None:
    record = applied(*call)
    again = Applied.decode(record.encode())
    assert entries_in(again) == entries_in(record)
    signed = {(region, as_signed(number), print_of(time)) for region, number, time in call}
    assert set(entries_in(record)) == signed
    assert len(again) == len(signed)
    assert again.highest() == {
        region: max(number for other, number, _ in signed if other == region) for region, _, _ in signed
    }


def as_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@given(calls, st.data())
def test_a_damaged_record_is_never_taken_for_another_one(call: list[Entry], data: st.DataObject) -> None:
    whole = applied(*call).encode()
    damaged = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(damaged), whole[:at], whole + b"\0"):
        with pytest.raises(DamagedRecordError, match="a record of applied entries"):
            Applied.decode(wrong)


@pytest.mark.parametrize("plain", [None, b"", b"\1\0\0\0", b"\1\0\0\0\1\0\0\0\1\0\0\0\xff" + bytes(16), bytes(5)])
def test_a_record_of_another_form_is_refused_although_its_checksum_fits(plain: bytes | None) -> None:
    frame = b"" if plain is None else zstandard.compress(plain)
    with pytest.raises(DamagedRecordError, match="not one of this version"):
        Applied.decode(zlib.crc32(frame).to_bytes(4, "little") + frame)


def test_a_record_takes_few_bytes_for_each_entry() -> None:
    chance = random.Random(1)
    number, time, call = 10**6, 1700000000000, []
    for _ in range(5000):
        number += chance.choice([1, 1, 1, 2, 5])
        time += chance.choice([0, 0, 1, 3])
        call.append((f"{number % 4:032x}", number, time))
    assert len(applied(*call).encode()) < 9 * len(call)


def test_an_entry_above_all_of_its_region_is_fresh_whatever_other_regions_have() -> None:
    seen = Seen({"r1": 5}, [applied(("r2", 90, 1))])
    assert judged(seen, ("r1", 6, 1), ("r2", 91, 1), ("r3", 1, 1)) == ["fresh"] * 3


def test_an_entry_between_those_that_a_server_sent_before_and_after_a_move_is_not_taken_for_applied() -> None:
    """Region r moves from A to B and back: A's log has 1 and 9 of it, B's has 5."""
    seen = Seen({}, [applied(("r", 1, 1), ("r", 9, 9))])
    assert judged(seen, ("r", 1, 1), ("r", 5, 5), ("r", 9, 9)) == ["repeated", "late", "repeated"]


def test_a_number_that_a_restored_snapshot_gives_out_again_is_no_repetition() -> None:
    seen = Seen({}, [applied(("r", 7, 100), ("r", 8, 101))])
    assert judged(seen, ("r", 7, 200), ("r", 8, 201)) == ["late", "late"]
    seen.add(applied(("r", 7, 200)))
    assert judged(seen, ("r", 7, 100), ("r", 7, 200), ("r", 8, 201)) == ["repeated", "repeated", "late"]


def test_what_a_call_holds_twice_is_fresh_once() -> None:
    assert judged(Seen({}, []), ("r", 3, 1), ("r", 3, 1), ("r", 4, 1), ("r", 3, 1)) == [
        "fresh", "repeated", "fresh", "repeated"
    ]  # fmt: skip


def test_what_is_forgotten_may_be_a_repetition_and_what_is_remembered_still_is_one() -> None:
    seen = Seen({}, [applied(("r", 9, 1)), applied(("r", 2, 1), ("r", 12, 1))])
    seen.forget(1)
    assert seen.floors == {"r": 9}
    assert judged(seen, ("r", 9, 1), ("r", 2, 1), ("r", 3, 1), ("r", 10, 1), ("r", 12, 1), ("r", 13, 1)) == [
        "forgotten", "repeated", "forgotten", "late", "repeated", "fresh"
    ]  # fmt: skip
    seen.forget(5)
    assert (seen.remembered, seen.floors) == (0, {"r": 12})


def test_a_call_above_everything_is_judged_without_a_look_at_what_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Seen({}, [applied(("r1", 1, 1), ("r2", 1, 1))])
    looked = Mock(wraps=module._first_equal)
    monkeypatch.setattr(module, "_first_equal", looked)
    assert judged(seen, ("r1", 2, 1), ("r2", 2, 1), ("r1", 3, 1)) == ["fresh"] * 3
    looked.assert_not_called()
    assert judged(seen, ("r1", 1, 1)) == ["repeated"]
    looked.assert_called_once()
