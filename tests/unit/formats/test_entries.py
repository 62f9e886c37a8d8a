"""The cells of a WAL's entries as rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from unit.formats.wal_builder import REGION, TRAILER, entry, header
from walferry.formats.cells import encode_cell
from walferry.formats.entries import entry_cells, entry_scopes
from walferry.formats.proto import hbase_pb2 as pb
from walferry.formats.wal import WalReader

TAG = (8, (86_400_000).to_bytes(8, "big"))


def cell(i: int, tags: Sequence[tuple[int, bytes]] = ()) -> bytes:
    return encode_cell(b"r%d" % i, b"f", b"q", 1000 + i, 4, b"v%d" % i, tags)


def test_the_cells_of_chosen_entries_become_rows_with_the_entry_they_belong_to() -> None:
    entries = [entry([cell(i), cell(i + 1, tags=[TAG])], sequence_number=i + 1) for i in range(6)]
    starts = list(itertools.accumulate((len(one) for one in entries), initial=len(header())))
    (batch,) = WalReader([header() + b"".join(entries) + TRAILER], "some.wal")
    select = np.array([False, True, False, False, False, True])
    rows = entry_cells(batch, "some.wal", select).to_pylist()
    assert [(row["sequence_number"], row["index"], row["offset"]) for row in rows] == [
        (2, 0, starts[1]), (2, 1, starts[1]), (6, 0, starts[5]), (6, 1, starts[5]),
    ]  # fmt: skip
    assert rows[1] == {
        "table": "t1",
        "region": REGION.decode(),
        "sequence_number": 2,
        "index": 1,
        "write_time": 1700000000000,
        "row": b"r2",
        "family": b"f",
        "qualifier": b"q",
        "timestamp": 1002,
        "type": 4,
        "value": b"v2",
        "tags": bytes([0, 9, 8]) + TAG[1],
        "file": "some.wal",
        "offset": starts[1],
    }


def test_the_scopes_of_keys_are_those_that_protobuf_reads() -> None:
    def scopes(**of: int) -> list[pb.FamilyScope]:
        return [pb.FamilyScope(family=name.encode(), scope_type=scope) for name, scope in of.items()]  # type: ignore[arg-type]

    given = [[], scopes(f=1), scopes(f=1, g=0, h=1), [], scopes(f=0), scopes(f=1)]
    nonce, cluster = 1 << 62, pb.UUID(least_sig_bits=6, most_sig_bits=6)
    entries = [entry([cell(i)], i + 1, scopes=one, nonce=nonce, cluster_ids=[cluster]) for i, one in enumerate(given)]
    (batch,) = WalReader([header() + b"".join(entries) + TRAILER], "some.wal")
    number, families = entry_scopes(batch)
    assert [families[one] for one in number] == [set(), {b"f"}, {b"f", b"h"}, set(), set(), {b"f"}]
    assert len(families) == 4
    number, families = entry_scopes(batch.take(np.arange(0)))
    assert (len(number), families) == (0, [])
