"""How each version numbers the closings and openings of regions, on which following them through moves rests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from integration.migration.moves import unique
from versions.conftest import OLDER
from walferry.embedded.cluster import MiniCluster
from walferry.formats.markers import Marker
from walferry.hbase.client import HBaseClient
from walferry.hbase.mutate import Cell
from walferry.replay.log.cut import line_of
from walferry.replay.rounds.sendable import NEXT_NUMBERS, Sendable
from walferry.spark.clients import shared_files
from walferry.wal.files import list_live
from walferry.wal.open import Until, open_wal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("servers", OLDER, indirect=True)
def test_the_logs_show_the_order_of_a_region_s_edits_through_its_moves(source: MiniCluster) -> None:
    table = unique()
    with HBaseClient(source.address) as here:
        here.create_table(table, {"f": {"VERSIONS": "1"}}, [b"z"])
        region, _ = here.regions(table)
        assert region.server is not None
        began, created = line_of(region), region.open_sequence + 1
        for step in range(6):
            if step not in (2, 3):  # of some servers there is no edit
                here.put(table, [Cell(b"row", b"f", b"q", b"%d" % step)])
            if step == 4:
                here.flush_table(table)
            region, _ = here.regions(table)
            here.move_region(region, next(server for server in here.servers() if server != region.server))
        here.put(table, [Cell(b"row", b"f", b"q", b"last")])
        region, _ = here.regions(table)
        files = shared_files(source.address)
        sendable = Sendable({region.encoded: began})
        numbers: list[int] = []
        markers: list[tuple[int, Marker]] = []
        for file in list_live(files, "/hbase"):
            for batch in open_wal(files, "/hbase", file, Until.NOW):
                ours = batch.take(
                    np.flatnonzero(batch.of_regions({region.encoded}) & (batch.sequence_number > created))
                )
                for part in sendable.take(file.server, file.name, ours, ours.marker == Marker.NONE):
                    numbers += part.batch.sequence_number[part.picked].tolist()
                markers += zip(ours.sequence_number.tolist(), map(Marker, ours.marker.tolist()), strict=True)
        assert len(numbers) == 5
        assert numbers == sorted(numbers)
        assert not sendable.left
        assert not sendable.waits
        moves = [
            opened - closed
            for (closed, one), (opened, other) in pairwise(sorted(markers))
            if (one, other) == (Marker.REGION_CLOSE, Marker.REGION_OPEN)
        ]
        assert len(moves) == 6
        assert 0 < max(moves) <= NEXT_NUMBERS, moves
