"""The shape of a message's value, which docs/json/change.schema.json describes; `_change_kernels` writes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Position = tuple[
    Annotated[int, Field(ge=0, lt=1 << 7)],
    Annotated[int, Field(ge=0, lt=1 << 40)],
    Annotated[int, Field(ge=0, lt=1 << 16)],
]
"""incarnation, sequence number, index"""


class OtherBytes(BaseModel):
    """Bytes that are not UTF-8, where text is expected."""

    model_config = ConfigDict(frozen=True)

    base64: str = Field(description="the bytes in base64 (RFC 4648, with padding)")


class Tag(BaseModel):
    """A tag of a cell."""

    model_config = ConfigDict(frozen=True)

    type: int = Field(ge=0, le=255, description="HBase's TagType; 8 is a cell's TTL")
    value: str | OtherBytes = Field(description="its content")


class Cell(BaseModel):
    """What all kinds of cells have in common."""

    model_config = ConfigDict(frozen=True)

    family: str | OtherBytes = Field(description="always text, whatever the form of other bytes")
    qualifier: str | OtherBytes = Field(description="empty for what deletes a family; it may be empty for others, too")
    timestamp: int = Field(
        ge=0, description="the cell's version: ms since 1970 (UTC), or what the client gave; 63 bits"
    )
    tags: tuple[Tag, ...] = Field(default=(), description="left out if there are none")


class Put(Cell):
    """A put cell; an increment or an append gives one with its result."""

    kind: Literal["put"] = Field(description="KeyValue.Type.Put")
    value: Any = Field(description="a string, or an object with `base64`; what the decoder made of it, if there is one")


class Delete(Cell):
    """A delete marker."""

    kind: Literal["delete_version", "delete_family_version", "delete_column", "delete_family"] = Field(
        description="KeyValue.Type.Delete, DeleteFamilyVersion, DeleteColumn or DeleteFamily"
    )


class _FromTable(BaseModel):
    """What all messages have in common."""

    model_config = ConfigDict(frozen=True)

    schema_: Literal[1] = Field(
        alias="schema", description="rises when a field is removed or renamed, or gets another meaning or unit"
    )
    cluster: str = Field(description="the source, by the name that its stream has for it")
    table: str = Field(description="name of the table; behind its namespace and a colon unless that is `default`")
    epoch: int = Field(description="positions are comparable within an epoch")


class _Message(_FromTable):
    """What messages with a place in the history of rows have in common."""

    region: str = Field(description="encoded name of the region that took the write, or that showed the event")
    sequence_number: int = Field(
        ge=0, lt=1 << 40, description="of the log entry; all messages of one entry have the same one"
    )
    position: Position = Field(
        description="incarnation of the region's line, sequence number, index: rises within a row"
    )


class _RowMessage(_Message):
    row: str | OtherBytes = Field(description="the row key")
    write_time: int = Field(description="ms since 1970 (UTC), by the region server's clock")
    snapshot: str | None = Field(
        default=None,
        description="name of the snapshot that the row is of: the message has all that was stored of the row then, and "
        "`write_time` is when the snapshot was taken; left out in changes",
    )
    cluster_ids: tuple[str, ...] = Field(
        description="UUIDs of clusters that the edit was on before, if replication brought it; otherwise empty"
    )


class Image(BaseModel):
    """What a reader sees of the row: the newest version of each column."""

    model_config = ConfigDict(frozen=True)

    exact: bool = Field(description="true: right after the change; false: at some moment after it")
    cells: tuple[Put, ...] | None = Field(
        default=None, description="by family and column; empty if no cell is left; left out if the row was not read"
    )


class Change(_RowMessage):
    """What one batch of a client wrote to one row, or what a snapshot has of it."""

    model_config = ConfigDict(frozen=True, title="Change")

    cells: tuple[Annotated[Put | Delete, Field(discriminator="kind")], ...] = Field(
        min_length=1, description="in the order of the log; of a snapshot in the order of a store"
    )
    image: Image | None = Field(default=None, description="the row after the change; left out without `image: after`")


class File(BaseModel):
    """Where a message is that is larger than its topic takes."""

    model_config = ConfigDict(frozen=True)

    path: str = Field(description="of a file with the whole message, in the folder `large_messages`")
    bytes: int = Field(description="its length")
    sha256: str = Field(description="its SHA-256, in hexadecimal")


class ClaimedChange(_RowMessage):
    """A change whose message is in a file."""

    model_config = ConfigDict(frozen=True, title="ClaimedChange")

    claim: File = Field(description="the file")


class UpsertedRow(_FromTable):
    """What a reader sees of a row, in an upsert topic; a row without a cell has a tombstone."""

    model_config = ConfigDict(frozen=True, title="UpsertedRow")

    row: str | OtherBytes = Field(description="the row key")
    write_time: int = Field(description="ms since 1970 (UTC): of the change that it is after")
    position: Position = Field(description="of that change")
    exact: bool = Field(description="true: right after the change; false: at some moment after it")
    cells: tuple[Put, ...] | None = Field(
        default=None, min_length=1, description="the newest version of each column, by family and column"
    )
    claim: File | None = Field(default=None, description="the file, in place of cells, of a value that is too large")


class LoadedFile(BaseModel):
    """A file that a bulk load added."""

    model_config = ConfigDict(frozen=True)

    family: str = Field(description="the column family")
    name: str = Field(description="of the store file in the region's folder")


class BulkLoad(BaseModel):
    """Files were loaded into a region: their cells are in no message."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["bulk_load"] = Field(description="the kind of event")
    files: tuple[LoadedFile, ...] = Field(description="the files")


class Truncated(BaseModel):
    """The table was truncated, or dropped and created again: none of its earlier rows exist any more."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["truncate"] = Field(description="the kind of event")


class SchemaChanged(BaseModel):
    """The table's descriptor has changed."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["schema"] = Field(description="the kind of event")
    families: dict[str, dict[str, str]] = Field(
        description="for each column family its attributes, without those that are HBase's defaults"
    )
    attributes: dict[str, str] = Field(description="the table's own attributes")


class TableEvent(_Message):
    """What happened to a table beside the changes of its rows; it is in every partition of the topic."""

    model_config = ConfigDict(frozen=True, title="TableEvent")

    write_time: int | None = Field(description="ms since 1970 (UTC); null where the log does not say it")
    event: Annotated[BulkLoad | Truncated | SchemaChanged, Field(discriminator="kind")] = Field(
        description="what happened"
    )


class SnapshotBegins(BaseModel):
    """The rows of a snapshot follow, each with its name; they stand for all changes before it."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["snapshot_begins"] = Field(description="the kind of event")
    snapshot: str = Field(description="name of the snapshot")
    taken: int = Field(description="ms since 1970 (UTC), by the master's clock: changes before it are in the snapshot")


class SnapshotEnds(BaseModel):
    """All rows of the snapshot were sent; the changes after it follow."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["snapshot_ends"] = Field(description="the kind of event")
    snapshot: str = Field(description="name of the snapshot")
    rows: int = Field(ge=0, description="how many rows were sent, in all partitions together")


class Resolved(BaseModel):
    """Everything that was written to the table before a moment has been sent."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["resolved"] = Field(description="the kind of event")
    time: int = Field(description="ms since 1970 (UTC), by the clock of the stream's machine")


class Notice(_FromTable):
    """Where a stream is; it is in every partition of the topic."""

    model_config = ConfigDict(frozen=True, title="Notice")

    event: Annotated[SnapshotBegins | SnapshotEnds | Resolved, Field(discriminator="kind")] = Field(
        description="what the stream has done"
    )
