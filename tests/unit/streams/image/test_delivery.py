"""Passes and snapshots are delivered with images, and the last image of each row goes to its upsert topic, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from unit.streams.image.held_regions import HERE, REGION, Source
from unit.streams.message.naive_messages import Cell, Entry, batch_of
from unit.streams.test_sending import Recorder
from walferry.hbase.client import HBaseClient
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.streams.delivery import Topic
from walferry.streams.image import rows as reading
from walferry.streams.image.delivery import ImageDelivery
from walferry.streams.image.rows import RowImages
from walferry.streams.image.upserts import Upserts
from walferry.streams.message.changes import BytesAs, Form, SnapshotMark
from walferry.streams.ordering.stays import Taken
from walferry.streams.sending import Sending

FORM = Form("c", 1, BytesAs.UTF8)


class Streamed:
    """A stream of the region, which begins now."""

    def __init__(self, source: Source) -> None:
        self.sink = Recorder()
        self.described: list[str] = []
        images = RowImages(cast(HBaseClient, source), FORM, ["t1"], lambda table: source.table)
        upserts = Upserts(FORM, {"t1": Topic("rows", 1, 2000)}, self.sink)
        self.delivery = ImageDelivery(
            {"t1": Topic("changes", 1, 2000)}, self.sink, None, images, self._of_snapshot, upserts
        )

    def _of_snapshot(self, name: str) -> TableDescriptor:
        self.described.append(name)
        return new_table("t1", {"f": {}})

    def send(self, *entries: Entry) -> None:
        batch = batch_of(entries)
        sending = Sending(FORM, self.delivery, describe=lambda table: None, tells_new_history=True, schemas={})
        sending.send([Taken("g", HERE.name, 5, batch, np.arange(len(batch)), True)], lambda region: 0)

    @property
    def sent(self) -> Sequence[tuple[str, str, list[str]]]:
        """Of each message its topic, its row, and the values of its image."""
        return [
            (topic, value["row"], [cell["value"] for cell in value.get("image", value)["cells"]])
            for (topic, _), value in zip(self.sink.places, self.sink.values, strict=True)
        ]


def test_each_part_of_a_pass_is_sent_with_its_images_and_then_the_last_one_of_each_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, value = Source(), b"v" * 99
    streamed = Streamed(source)
    for row in (b"a", b"b"):
        source.write(11, row, value)
    entries = [Entry([Cell(row)], number, region=REGION) for number, row in ((11, b"a"), (12, b"a"), (13, b"b"))]
    source.read_point = 13
    monkeypatch.setattr(reading, "MOST_BYTES", 300)
    streamed.send(*entries)
    a, b = ["v" * 99], ["v" * 99]
    assert streamed.sent == [
        ("changes", "a", a), ("changes", "a", a), ("rows", "a", a), ("changes", "b", b), ("rows", "b", b),
    ]  # fmt: skip


def test_the_rows_of_a_snapshot_have_what_is_stored_and_its_table_is_asked_for_once() -> None:
    streamed = Streamed(Source())
    form = Form("c", 1, BytesAs.UTF8, snapshot=SnapshotMark("s-1"))
    for row in (b"a", b"b"):
        batch = batch_of([Entry([Cell(row, timestamp=2, value=b"new"), Cell(row, timestamp=1, value=b"old")])])
        made = streamed.delivery.make(form, batch, np.arange(1), np.zeros(1, np.int32))
        streamed.delivery.send(batch, made, {})
    assert streamed.sent == [(topic, row, ["new"]) for row in ("a", "b") for topic in ("changes", "rows")]
    assert streamed.described == ["s-1"]
