"""What is visible at a moment, against a slow model of HBase's rules; digests against the mmh3 library."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from operator import add

import mmh3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walferry.errors import UsageError
from walferry.formats.cells import CellIndex, encode_cell, index_cells
from walferry.formats.resolve import Digest, FamilyRules, Fate, digest_of, resolve, row_digests

NOW = 100


@dataclass(frozen=True)
class C:
    row: bytes
    family: bytes
    qualifier: bytes
    timestamp: int
    type: int
    value: bytes = b""
    ttl: int | None = None

    def encode(self) -> bytes:
        ttl = b"" if self.ttl is None else self.ttl.to_bytes(8, "big")
        tags = [(70, b"other"), *([(8, ttl), (8, bytes(8))] if ttl else [])]  # the first TTL tag counts
        return encode_cell(
            self.row,
            self.family,
            self.qualifier,
            self.timestamp,
            self.type,
            self.value,
            tags if self.value else tags[1:],
        )


def index(cells: list[C]) -> CellIndex:
    return index_cells(np.frombuffer(b"".join(cell.encode() for cell in cells), np.uint8))


def in_hbase_order(cells: list[C]) -> list[C]:
    """Stable, as a scan returns them: of equal keys the newer write first, which is the order they are given in."""
    return sorted(cells, key=lambda c: (c.row, c.family, c.qualifier, -c.timestamp, -c.type))


def slow_fates(cells: list[C], rules: dict[bytes, FamilyRules], now: int) -> list[Fate]:
    """The rules said one by one, without any state carried along a scan."""
    fates = []
    counted: defaultdict[tuple[bytes, bytes, bytes], list[int]] = defaultdict(list)
    for cell in cells:
        rule = rules[cell.family]
        out_of_family = rule.ttl_ms is not None and cell.timestamp + rule.ttl_ms < now

        def gone(c: C, rule: FamilyRules = rule) -> bool:
            by_family = rule.ttl_ms is not None and c.timestamp + rule.ttl_ms < now and rule.min_versions == 0
            return by_family or (c.ttl is not None and c.timestamp + c.ttl < now)

        markers = [m for m in cells if (m.row, m.family) == (cell.row, cell.family) and m.type != 4 and not gone(m)]
        masked = any(
            (m.type == 14 and cell.timestamp <= m.timestamp)
            or (m.type == 10 and cell.timestamp == m.timestamp)
            or (m.qualifier == cell.qualifier and m.type == 12 and cell.timestamp <= m.timestamp)
            or (m.qualifier == cell.qualifier and m.type == 8 and cell.timestamp == m.timestamp)
            for m in markers
        )
        versions = counted[cell.row, cell.family, cell.qualifier]
        if cell.type != 4:
            fates.append(Fate.MARKER)
        elif gone(cell):
            fates.append(Fate.EXPIRED)
        elif masked:
            fates.append(Fate.MASKED)
        elif cell.timestamp in versions:
            fates.append(Fate.DUPLICATE)
        else:
            versions.append(cell.timestamp)
            if len(versions) > rule.max_versions:
                fates.append(Fate.SURPLUS)
            elif out_of_family and len(versions) > rule.min_versions:
                fates.append(Fate.EXPIRED)
            else:
                fates.append(Fate.VISIBLE)
    return fates


PUTS_AND_MARKERS = st.builds(
    lambda row, family, qualifier, timestamp, kind, value, ttl: C(
        row, family, b"" if kind in (10, 14) else qualifier, timestamp, kind, value, ttl
    ),
    st.sampled_from([b"a", b"ab", b"b"]),
    st.sampled_from([b"f", b"ff", b"g"]),
    st.sampled_from([b"", b"q", b"qq", b"r"]),
    st.integers(90, 99),
    st.sampled_from([4, 4, 4, 4, 8, 10, 12, 14]),
    st.sampled_from([b"", b"v", b"w"]),
    st.sampled_from([None, None, None, 0, 3, 1000, 2**63 - 1]),
)
RULES = st.builds(FamilyRules, st.integers(1, 4), st.integers(0, 3), st.sampled_from([None, 0, 4, 1000]))


@settings(max_examples=600)
@given(st.lists(PUTS_AND_MARKERS, max_size=30), RULES, RULES, RULES)
def test_every_cell_meets_the_fate_that_the_rules_say(
    cells: list[C], f: FamilyRules, ff: FamilyRules, g: FamilyRules
) -> None:
    ordered = in_hbase_order(cells)
    rules = {b"f": f, b"ff": ff, b"g": g}
    assert [Fate(fate) for fate in resolve(index(ordered), rules, NOW)] == slow_fates(ordered, rules, NOW)


def fates(*cells: C, rule: FamilyRules = FamilyRules(3, 0, None)) -> list[Fate]:  # noqa: B008 (frozen)
    return [Fate(fate) for fate in resolve(index(list(cells)), {b"f": rule}, NOW)]


def put(timestamp: int, qualifier: bytes = b"q", ttl: int | None = None, row: bytes = b"a") -> C:
    return C(row, b"f", qualifier, timestamp, 4, b"v", ttl)


def test_a_marker_masks_a_put_of_its_own_timestamp() -> None:
    for kind in (8, 12):
        assert fates(C(b"a", b"f", b"q", 50, kind), put(50)) == [Fate.MARKER, Fate.MASKED]


def test_deleting_a_family_spares_newer_puts_other_families_and_other_rows() -> None:
    marker = C(b"a", b"f", b"", 50, 14)
    newer, older, elsewhere = put(51), put(50), put(1, row=b"b")
    assert fates(marker, newer, older, elsewhere) == [Fate.MARKER, Fate.VISIBLE, Fate.MASKED, Fate.VISIBLE]


def test_a_ttl_of_the_cell_expires_one_millisecond_after_it_has_passed() -> None:
    assert fates(put(NOW - 10, ttl=10)) == [Fate.VISIBLE]
    assert fates(put(NOW - 11, ttl=10)) == [Fate.EXPIRED]


def test_an_expired_marker_masks_nothing() -> None:
    assert fates(C(b"a", b"f", b"q", 50, 12, ttl=1), put(40)) == [Fate.MARKER, Fate.VISIBLE]


def test_min_versions_keep_what_the_familys_ttl_would_drop() -> None:
    rule = FamilyRules(3, 2, 5)
    assert fates(put(50), put(49), put(48), rule=rule) == [Fate.VISIBLE, Fate.VISIBLE, Fate.EXPIRED]


def test_a_family_without_rules_is_an_error_that_names_it() -> None:
    with pytest.raises(UsageError, match="b'g'"):
        resolve(index([C(b"a", b"g", b"q", 1, 4)]), {b"f": FamilyRules(1, 0, None)}, NOW)


def digest(cells: CellIndex, keep: np.ndarray) -> Digest:
    return digest_of(row_digests(cells, keep))


def keep_all(cells: CellIndex) -> np.ndarray:
    return np.ones(len(cells), np.bool_)


@given(st.lists(PUTS_AND_MARKERS, max_size=20), st.data())
def test_a_digest_is_the_sum_of_murmur3_hashes_of_the_kept_cells(cells: list[C], data: st.DataObject) -> None:
    ordered = in_hbase_order(cells)
    keep = [data.draw(st.booleans()) for _ in ordered]
    kept = [cell for cell, chosen in zip(ordered, keep, strict=True) if chosen]
    total = sum(mmh3.hash128(cell.encode()[4:], signed=False) for cell in kept) % 2**128
    assert digest(index(ordered), np.array(keep, np.bool_)) == Digest(len({c.row for c in kept}), len(kept), total)


def test_digests_of_parts_add_up_whatever_the_order() -> None:
    cells = [C(b"row%03d" % i, b"f", b"q" * (i % 40), i, 4, b"v" * (i % 60)) for i in range(300)]
    whole = index(cells)
    expected = digest(whole, keep_all(whole))
    random.Random(1).shuffle(cells)
    parts = [index(cells[i : i + 37]) for i in range(0, len(cells), 37)]
    assert reduce(add, (digest(part, keep_all(part)) for part in parts)) == expected
    assert expected.total >= 2**64


def test_doubled_cells_do_not_cancel() -> None:
    twice = index([put(1), put(1)])
    once = digest(index([put(1)]), np.ones(1, np.bool_))
    assert digest(twice, keep_all(twice)).total == 2 * once.total % 2**128 != 0


@pytest.mark.parametrize(
    "other",
    [
        C(b"r", b"f", b"q", 1, 4, b"w"), C(b"r", b"f", b"q", 2, 4, b"v"), C(b"r", b"f", b"q", 1, 8, b"v"),
        C(b"rf", b"", b"q", 1, 4, b"v"), C(b"r", b"fq", b"", 1, 4, b"v"), C(b"r", b"f", b"q", 1, 4, b"v", ttl=9),
    ],
)  # fmt: skip
def test_every_field_of_a_cell_counts_in_its_digest(other: C) -> None:
    one = C(b"r", b"f", b"q", 1, 4, b"v")
    assert digest(index([one]), np.ones(1, np.bool_)).total != digest(index([other]), np.ones(1, np.bool_)).total


def test_digests_of_rows_sum_up_to_that_of_all() -> None:
    cells = index([put(3, row=b"a"), put(2, row=b"a"), put(9, row=b"b"), put(1, row=b"c")])
    keep = np.array([True, True, False, True])
    found = row_digests(cells, keep)
    rows = found.to_pylist()
    assert [(row["row"], row["cells"]) for row in rows] == [(b"a", 2), (b"c", 1)]
    total = sum((row["low"] % 2**64) + (row["high"] % 2**64 << 64) for row in rows) % 2**128
    assert digest_of(found) == Digest(2, 3, total)
