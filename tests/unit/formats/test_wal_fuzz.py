"""A few hundred of the damaged files of `make fuzz`, of every kind of file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.wal import check, kinds, set_up
from walferry.formats import wal_decoders
from walferry.wal import stat
from walferry.wal.keys import KEY_HEX, KEY_STORE

CASES = 300


@pytest.fixture(autouse=True, scope="module")
def small_arrays() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for place, name in (
            (wal_decoders, "ENTRIES_PER_BATCH"),
            (wal_decoders, "VALUES_AT_ONCE"),
            (stat, "_REMEMBERED"),
        ):
            patch.setattr(place, name, getattr(place, name))  # to be restored
        patch.setenv(KEY_HEX, "")
        patch.delenv(KEY_STORE, raising=False)
        set_up()
        yield


@pytest.mark.parametrize("kind", kinds())
def test_a_damaged_log_gives_what_its_bytes_say_and_then_says_how_it_ends(kind: str) -> None:
    for number in range(-(-CASES // len(kinds()))):
        check(kind, number)
