"""Sends the last image of each changed row to an upsert topic, which keeps the newest value of each key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

from walferry.formats.wal import EntryBatch
from walferry.streams.delivery import OVERHEAD_BYTES, Claims, Sender, Topic, claimed
from walferry.streams.message.changes import SCHEMA, Form, Messages


class Upserts:
    """Sends last images to upsert topics, in the sink's open transaction."""

    def __init__(self, form: Form, topics: Mapping[str, Topic], sink: Sender, claims: Claims | None = None) -> None:
        """`topics`: by table. `claims`: where values go that are larger than their topic takes."""
        self._head = b'{"schema":%d,"cluster":%s,' % (SCHEMA, json.dumps(form.cluster, ensure_ascii=False).encode())
        self._topics = {table.encode(): topic for table, topic in topics.items()}
        self._sink = sink
        self._claims = claims

    def send(self, batch: EntryBatch, made: Messages) -> None:
        """Send the last image of each row of messages that were sent: a row without a cell is a tombstone."""
        topics = [self._topics.get(name) for name in batch.tables]
        tables = batch.table[made.entry].tolist()
        for key, number in {made.key(number): number for number in range(len(made))}.items():
            topic = topics[tables[number]]
            if topic is None:
                continue
            value = self._value(key, batch, made, number)
            if value is not None and len(value) + len(key) + OVERHEAD_BYTES > topic.most_bytes and self._claims:
                value = _in_file(topic, self._claims, key, value)
            partition = int(made.hash[number]) % topic.partitions
            self._sink.send(topic.name, partition, key, value, made.headers(number))

    def _value(self, key: bytes, batch: EntryBatch, made: Messages, number: int) -> bytes | None:
        assert made.images is not None
        assert made.image is not None
        image = int(made.image[number])
        cells = made.images.text(image)
        if not cells:
            return None
        position = int(made.incarnation[number]), int(made.sequence_number[number]), int(made.index[number])
        return self._head + b'%b,"write_time":%d,"epoch":%d,"position":[%d,%d,%d],"exact":%b,"cells":[%b]}' % (
            key[1:-1], int(batch.write_time[made.entry[number]]), made.epoch, *position,
            b"true" if made.images.exact[image] else b"false", cells,
        )  # fmt: skip


def _in_file(topic: Topic, claims: Claims, key: bytes, content: bytes) -> bytes:
    """Keep a value in a file. Returns what stands for it."""
    value = json.loads(content)
    position = ".".join(map(str, value["position"]))
    name = f"{position}.{sha256(key).hexdigest()}.{sha256(content).hexdigest()[:16]}.json"
    return claimed(content, claims.put(f"{topic.name}/{value['epoch']}/{name}", content))
