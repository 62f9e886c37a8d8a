"""Images of passes over a made-up region: exact where that is proved, otherwise as the row is now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from unit.streams.image.held_regions import HERE, REGION, Source
from unit.streams.message.naive_messages import Cell, Entry, batch_of
from walferry.errors import TransientError
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import new_table
from walferry.hbase.errors import RegionNotServedError, RemoteError, TableNotFoundError
from walferry.hbase.versions import release_of
from walferry.streams.image import rows as reading
from walferry.streams.image.rows import RowImages
from walferry.streams.message.changes import BytesAs, Form, Selection, messages
from walferry.streams.message.images import Images
from walferry.streams.ordering.stays import Opened, Taken

Shown = tuple[bool, list[str] | None]
"""of a message: whether its image is exact, and the values of its cells; None: the row was not read"""


class Streamed:
    """A stream of the region, which begins now."""

    def __init__(self, source: Source, form: Form | None = None, **more: Any) -> None:
        self.source = source
        self.parts = 0
        self.refused: list[str] = []
        self.form = form or Form("c", 1, BytesAs.UTF8)
        self.images = RowImages(
            cast(HBaseClient, source), self.form, ["t1"], more.pop("describe", lambda table: source.table), **more
        )
        self.images.begin()
        source.requests.clear()

    def passed(self, *entries: Entry, sealed: bool = False) -> list[Shown]:
        """What the messages of a pass with these entries show."""
        batch = batch_of(entries)
        one = Taken("g", HERE.name, 5, batch, np.arange(len(batch)), sealed)
        self.images.note([one], {} if sealed else {(HERE.name, REGION): self.source.read_point})
        return [seen for part in self.images.parts([one]) for seen in self._seen(*part)]

    def _seen(self, some: Sequence[Taken | Opened], images: Mapping[int, Images]) -> Iterator[Shown]:
        self.parts += 1
        for one in some:
            assert isinstance(one, Taken)
            made = messages(
                self.form, one.batch, one.picked, np.zeros(len(one.picked), np.int32), images[id(one.batch)]
            )
            self.refused += made.refused.values()
            for number in set(range(len(made))) - made.refused.keys():
                image = json.loads(made.value(number))["image"]
                yield image["exact"], [cell["value"] for cell in image["cells"]] if "cells" in image else None


@pytest.fixture
def source() -> Source:
    return Source()


def change(number: int, row: bytes = b"r", **more: Any) -> Entry:
    return Entry([Cell(row, **more)], number, region=REGION)


def write(source: Source, numbers: Sequence[int], row: bytes = b"r") -> None:
    for number in numbers:
        source.write(number, row, b"%d" % number)


def test_each_change_of_a_row_has_the_row_as_it_was_after_it(source: Source) -> None:
    streamed = Streamed(source)
    write(source, [11, 12])
    source.write(13, b"r", None)
    write(source, [14], b"s")
    changes = [change(number) for number in (11, 12, 13)]
    assert streamed.passed(*changes, change(14, b"s")) == [
        (True, ["11"]), (True, ["12"]), (True, []), (True, ["14"]),
    ]  # fmt: skip


def test_all_runs_of_an_entry_have_the_row_as_it_was_after_the_whole_entry(source: Source) -> None:
    streamed = Streamed(source)
    write(source, [11])
    source.write(11, b"s", b"of s")
    write(source, [12])
    runs = Entry([Cell(b"r"), Cell(b"s"), Cell(b"r")], 11, region=REGION)
    assert streamed.passed(runs, change(12)) == [(True, ["11"]), (True, ["of s"]), (True, ["11"]), (True, ["12"])]


def test_a_change_before_the_read_point_that_is_held_has_the_row_as_it_is_now(source: Source) -> None:
    write(source, [11])
    streamed = Streamed(source)
    write(source, [12])
    assert streamed.passed(change(11), change(12)) == [(False, ["12"]), (True, ["12"])]


def test_new_files_of_the_region_or_a_lost_scanner_make_images_inexact_until_the_next_hold(source: Source) -> None:
    streamed = Streamed(source)
    write(source, [11])
    source.files = ["2"]
    assert streamed.passed(change(11)) == [(False, ["11"])]
    write(source, [12, 13])
    assert streamed.passed(change(12)) == [(False, ["13"])]  # it is held again only now
    write(source, [14, 15])
    assert streamed.passed(change(14), change(15)) == [(True, ["14"]), (True, ["15"])]
    source.scanners.clear()
    write(source, [16, 17])
    assert streamed.passed(change(16), change(17)) == [(False, ["17"])] * 2


@pytest.mark.parametrize("is_exact", [True, False])
def test_of_a_sealed_log_the_read_point_is_asked_for_until_it_has_all_of_it(
    source: Source, monkeypatch: pytest.MonkeyPatch, is_exact: bool
) -> None:
    source.table = new_table("t1", {"f": {} if is_exact else {"TTL": "100"}})
    streamed = Streamed(source)
    write(source, [11])
    source.read_point = 10
    asked: list[int] = []

    def sleep(seconds: float) -> None:
        asked.append(source.requests.count("read points"))
        source.read_point = 11

    monkeypatch.setattr("time.sleep", sleep)
    assert streamed.passed(change(11), sealed=True) == [(is_exact, ["11"])]
    assert asked == [1]
    source.read_point = 10
    monkeypatch.setattr(reading, "REACHED_SECONDS", -1)
    with pytest.raises(TransientError, match="has not acknowledged what its log has"):
        streamed.passed(change(12), sealed=True)


def test_a_region_that_has_left_the_server_of_its_log_has_its_rows_as_they_are_now(source: Source) -> None:
    streamed = Streamed(source)
    write(source, [11, 12])
    source.move()
    assert streamed.passed(change(11), change(12), sealed=True) == [(False, ["12"])] * 2


def test_the_last_number_of_a_pass_reads_all_rows_that_change_once_by_one_request(source: Source) -> None:
    streamed = Streamed(source)
    rows = [b"%02d" % number for number in range(20)]
    for number, row in enumerate(rows):
        write(source, [11 + number], row)
    found = streamed.passed(*(change(11 + number, row) for number, row in enumerate(rows)))
    assert found == [(True, [str(11 + number)]) for number in range(20)]
    assert [one for one in source.requests if one != "files"] == ["past", "renew"]


@pytest.mark.parametrize(
    "attribute", [{"TTL": "100"}, {"NEW_VERSION_BEHAVIOR": "true"}, {"IN_MEMORY_COMPACTION": "EAGER"}]
)
def test_tables_of_which_nothing_can_be_proved_are_not_held(source: Source, attribute: dict[str, str]) -> None:
    source.table = new_table("t1", {"f": attribute})
    streamed = Streamed(source)
    write(source, [11])
    assert streamed.passed(change(11)) == [(False, ["11"])]
    assert source.scanners == {}


def test_once_a_cell_with_a_ttl_of_its_own_was_seen_nothing_of_the_table_is_exact(source: Source) -> None:
    streamed = Streamed(source)
    write(source, [11])
    assert streamed.passed(change(11)) == [(True, ["11"])]
    write(source, [12])
    write(source, [13], b"s")
    ttl = [(8, (1000).to_bytes(8, "big"))]
    assert streamed.passed(change(12, tags=ttl), change(13, b"s")) == [(False, ["12"]), (False, ["13"])]
    write(source, [14], b"s")
    assert streamed.passed(change(14, b"s")) == [(False, ["14"])]


def test_a_number_that_is_not_in_the_log_is_a_write_that_no_earlier_image_has(source: Source) -> None:
    streamed = Streamed(source)
    write(source, [11, 12])  # 12 with SKIP_WAL
    write(source, [13], b"s")
    assert streamed.passed(change(11), change(13, b"s")) == [(True, ["11"]), (True, ["13"])]


@pytest.mark.parametrize(("version", "is_exact"), [("1.7.2", False), ("2.2.7", False), ("2.6.3", True)])
def test_where_increments_drop_versions_a_row_with_a_delete_of_one_version_is_not_exact(
    source: Source, version: str, is_exact: bool
) -> None:
    source.release = release_of(version)
    source.single_deletes = {b"r"}
    streamed = Streamed(source)
    write(source, [11])
    write(source, [12], b"s")
    assert streamed.passed(change(11), change(12, b"s")) == [(is_exact, ["11"]), (True, ["12"])]
    source.table = new_table("t1", {"f": {"VERSIONS": "2"}})
    streamed = Streamed(source)
    write(source, [13])
    assert streamed.passed(change(13)) == [(True, ["13"])]


def test_a_table_that_gets_a_ttl_is_not_exact_from_its_next_opening_on_nor_after_it_has_lost_it(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = Streamed(source)
    source.table = new_table("t1", {"f": {"TTL": "1"}})
    source.scanners.clear()  # HBase opens the regions anew
    for number in (11, 12, 13):
        write(source, [number])
        assert streamed.passed(change(number)) == [(False, [str(number)])]
    source.table = new_table("t1", {"f": {}})
    monkeypatch.setattr(reading, "DESCRIBE_SECONDS", 0)
    for number in (14, 15, 16):
        write(source, [number])
        assert streamed.passed(change(number)) == [(False, [str(number)])]


def test_a_table_that_nobody_can_describe_now_is_not_exact_and_no_error(source: Source) -> None:
    def busy(table: str) -> None:
        raise TransientError("no master")

    streamed = Streamed(source, describe=busy)
    write(source, [11])
    assert streamed.passed(change(11)) == [(False, ["11"])]


def test_images_have_the_selected_columns_only(source: Source) -> None:
    streamed = Streamed(source, Form("c", 1, BytesAs.UTF8, Selection(columns=((b"f", b"other"),))))
    write(source, [11])
    assert streamed.passed(change(11, qualifier=b"other"), change(11)) == [(True, [])]


def test_rows_of_a_table_that_is_gone_are_empty_and_other_refusals_are_tried_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.table = None
    streamed = Streamed(source)

    def gone(*asked: object) -> None:
        raise TableNotFoundError("no table t1")

    def refused(*asked: object) -> None:
        raise RemoteError("t1 is disabled")

    monkeypatch.setattr(source, "locate", gone)
    assert streamed.passed(change(9)) == [(False, [])]
    monkeypatch.setattr(source, "locate", refused)
    with pytest.raises(TransientError, match="rows of t1 cannot be read for their images: t1 is disabled"):
        streamed.passed(change(9))


def unserved(*asked: object) -> None:
    raise RegionNotServedError("the region is not open on any server now")


def test_rows_of_a_disabled_table_are_not_read_and_cost_no_time(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.table, source.enabled = None, False
    monkeypatch.setattr(source, "locate", unserved)
    assert Streamed(source).passed(change(9)) == [(False, None)]
    required = Streamed(source, are_required=True)
    assert required.passed(change(9)) == []
    assert required.refused == [
        "it is to have row b'r' after the change, and that cannot be read: table t1 is not enabled"
    ]  # fmt: skip
    assert source.requests.count("failed") <= 2


@pytest.mark.parametrize("are_held", [True, False])
def test_a_pass_with_more_cells_than_may_be_in_memory_is_sent_in_parts(
    source: Source, monkeypatch: pytest.MonkeyPatch, are_held: bool
) -> None:
    streamed = Streamed(source)
    if not are_held:
        source.files = ["2"]
    for number in range(11, 31):
        source.write(number, b"%d" % number, b"v" * 1000)
    monkeypatch.setattr(reading, "MOST_BYTES", 6000)
    entries = [Entry([Cell(b"%d" % number)], number, region=REGION) for number in range(11, 31)]
    assert streamed.passed(*entries) == [(are_held, ["v" * 1000])] * 20
    assert streamed.parts == 4
    assert streamed.images.pass_bytes == reading.PASS_BYTES // 2


def test_cells_count_as_they_arrive_and_once_more_in_their_images(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = Streamed(source)
    sizes: list[int] = []
    monkeypatch.setattr(reading.Room, "take", lambda room, size: sizes.append(size))
    write(source, [11])
    size = len(source.versions[b"r"][0][1])
    streamed.passed(change(11))
    assert sizes == [size, size]
    source.files = ["2"]
    write(source, [12])
    sizes.clear()
    streamed.passed(change(12))
    assert sizes == [size, size, size], "of the past, of now, and of the image"


def test_images_of_one_hot_row_count_each_for_itself(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write(10, b"r", b"v" * 1000)
    streamed = Streamed(source)
    monkeypatch.setattr(reading, "MOST_BYTES", 6000)
    assert streamed.passed(*(change(number) for number in range(1, 11))) == [(False, ["v" * 1000])] * 10
    assert streamed.parts == 2


def test_rows_of_one_entry_that_are_too_large_are_not_read_and_their_neighbours_are(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 500)
    for are_required in (False, True):
        source.__init__()  # type: ignore[misc]
        streamed = Streamed(source, are_required=are_required)
        write(source, [11])
        source.write(12, b"large", b"v" * 1000)
        write(source, [13])
        found = streamed.passed(change(11), change(12, b"large"), change(13))
        assert [one for one in found if one[1] is not None] == [(True, ["11"]), (True, ["13"])]
        assert [one for one in found if one[1] is None] == [(False, None)] * (not are_required)
        assert len(streamed.refused) == are_required


def test_passes_become_smaller_while_images_take_long_and_larger_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = Streamed(source)
    write(source, [11])
    monkeypatch.setattr(reading, "MUCH_SECONDS", -1)
    streamed.passed(change(11))
    assert streamed.images.pass_bytes == reading.PASS_BYTES // 2
    monkeypatch.undo()
    for _ in range(10):
        streamed.passed(change(11))
    assert streamed.images.pass_bytes == reading.MOST_PASS_BYTES
