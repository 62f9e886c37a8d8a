"""Every kind of marker is decided upon."""

from __future__ import annotations

import pytest

from unit.formats.wal_builder import TRAILER, entry, header
from walferry.formats.cells import encode_cell
from walferry.formats.markers import DATA_ELSEWHERE, REGION_EVENTS, WITHOUT_DATA, Marker
from walferry.formats.wal import WalReader


def test_every_kind_says_what_becomes_of_it() -> None:
    assert REGION_EVENTS | DATA_ELSEWHERE | WITHOUT_DATA | {Marker.NONE} == set(Marker)
    assert WITHOUT_DATA.isdisjoint(REGION_EVENTS | DATA_ELSEWHERE)


@pytest.mark.parametrize(
    ("qualifier", "marker", "data"),
    [
        (b"HBASE::BULK_LOAD", Marker.BULK_LOAD, True),
        (b"HBASE::NEVER_HEARD_OF", Marker.UNKNOWN, True),
        (b"HBASE::FLUSH", Marker.FLUSH, False),
        (b"HBASE::REPLICATION_MARKER", Marker.REPLICATION, False),
    ],
)
def test_what_may_change_a_table_is_told_from_what_does_not(qualifier: bytes, marker: Marker, data: bool) -> None:
    edit, recorded = encode_cell(b"r", b"f", b"q", 1, 4), encode_cell(b"r", b"METAFAMILY", qualifier, 1, 4)
    (batch,) = WalReader([header() + entry([edit]) + entry([recorded]) + entry([]) + TRAILER], "file")
    assert batch.marker.tolist() == [Marker.NONE, marker, Marker.NONE]
    assert batch.holds_data.tolist() == [True, data, False]
