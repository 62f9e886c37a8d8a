from __future__ import annotations

from hashlib import md5
from pathlib import Path

import numpy as np
import pytest

from walferry.apply.region_events import origins
from walferry.formats.markers import Marker
from walferry.formats.wal import WalReader

FIXTURES = Path(__file__).parents[3] / "fixtures" / "wal"


@pytest.mark.parametrize("name", ["1.7.2-dictionary", "2.2.3-dictionary", "2.5.7-values-gz", "closed", "dictionary"])
def test_the_opening_of_a_region_says_where_it_begins_and_when_it_was_made(name: str) -> None:
    content = (FIXTURES / f"{name}.wal").read_bytes()
    count = 0
    for batch in WalReader([content], name):
        found = origins(batch, np.arange(len(batch)))
        tables = {batch.table_and_region(entry)[::-1] for entry in range(len(batch))}
        for region, table in tables:
            if region in found:  # its encoded name is the MD5 of its name
                whole = b"%s,%s,%d" % (table.encode(), found[region].start, found[region].region_id)
                assert md5(whole).hexdigest() == region
        assert found.keys() == {
            batch.table_and_region(entry)[1] for entry in np.flatnonzero(batch.marker == Marker.REGION_OPEN).tolist()
        }
        count += len(found)
    assert count
