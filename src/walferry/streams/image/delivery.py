"""Delivers messages with the row after each change, and those rows to upsert topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from walferry.formats.cells import Int32s
from walferry.formats.wal import EntryBatch
from walferry.hbase.descriptors import TableDescriptor
from walferry.streams.delivery import Claims, Delivery, Sender, Topic
from walferry.streams.image.rows import RowImages
from walferry.streams.image.stored import stored_images
from walferry.streams.image.upserts import Upserts
from walferry.streams.message.changes import Form, Messages, messages
from walferry.streams.message.images import Images
from walferry.streams.ordering.stays import Opened, Taken


class ImageDelivery(Delivery):
    """Delivers messages with images to a sink. A `Destination`."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        sink: Sender,
        claims: Claims | None,
        rows: RowImages,
        of_snapshot: Callable[[str], TableDescriptor],
        upserts: Upserts | None = None,
    ) -> None:
        """As `Delivery`. `rows`: reads the rows that passes change. `of_snapshot`: the table of a snapshot, by its
        name. `upserts`: where the last images go, too."""
        super().__init__(topics, sink, claims)
        self._rows = rows
        self._of_snapshot = cache(of_snapshot)
        self._upserts = upserts
        self._images: Mapping[int, Images] = {}
        """of the part that is sent now, by id of the batch"""

    def parts(self, passed: Sequence[Taken | Opened]) -> Iterator[Sequence[Taken | Opened]]:
        """Parts whose images are in memory. Most passes are one: its images are read before the transaction begins,
        which must not be open for long."""
        for some, found in self._rows.parts(passed):
            self._images = found
            yield some
        self._images = {}

    def make(self, form: Form, batch: EntryBatch, picked: npt.NDArray[np.intp], incarnation: Int32s) -> Messages:
        """The messages of edits of this part, or of rows of a snapshot, which another thread may ask for meanwhile."""
        if form.snapshot is None:
            return messages(form, batch, picked, incarnation, self._images[id(batch)])
        images = stored_images(form, batch, self._of_snapshot(form.snapshot.name))
        return messages(form, batch, picked, incarnation, images)

    def send(self, batch: EntryBatch, made: Messages, claims: Mapping[int, bytes]) -> None:
        """Send messages, some of them as claims, and then the last image of each row."""
        super().send(batch, made, claims)
        if self._upserts is not None:
            self._upserts.send(batch, made)
