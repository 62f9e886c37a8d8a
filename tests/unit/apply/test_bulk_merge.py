"""What waits to be loaded, and what is said when it cannot."""

from __future__ import annotations

from contextlib import closing

import pytest

from walferry.apply.bulk_merge import Spool
from walferry.errors import WalferryError


def test_what_was_added_is_read_back_in_any_order() -> None:
    with closing(Spool()) as spool:
        places = [spool.add(memoryview(bytes([number]) * number)) for number in range(5)]
        for number, place in reversed(list(enumerate(places))):
            assert spool.read(*place) == bytes([number]) * number


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["as it is flushed", "as it is written"])
def test_a_full_disk_is_told_with_what_to_do(size: int) -> None:
    with open("/dev/full", "w+b") as full:
        spool = Spool()
        spool.close()
        spool._file = full
        with pytest.raises(WalferryError, match=r"No space left on device.*TMPDIR"):
            spool.read(*spool.add(memoryview(bytes(size))))
        full.raw.close()
