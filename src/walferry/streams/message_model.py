"""The shape of a message's value, which docs/json/change.schema.json describes; `_message_kernels` writes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


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


class Change(BaseModel):
    """What one batch of a client wrote to one row."""

    model_config = ConfigDict(frozen=True, title="Change")

    schema_: Literal[1] = Field(
        alias="schema", description="rises when a field is removed or renamed, or gets another meaning or unit"
    )
    cluster: str = Field(description="the source, by the name that its stream has for it")
    table: str = Field(description="name of the table; behind its namespace and a colon unless that is `default`")
    row: str | OtherBytes = Field(description="the row key")
    write_time: int = Field(description="ms since 1970 (UTC), by the region server's clock")
    region: str = Field(description="encoded name of the region that took the write")
    sequence_number: int = Field(
        ge=0, lt=1 << 40, description="of the log entry; all messages of one entry have the same one"
    )
    cluster_ids: tuple[str, ...] = Field(
        description="UUIDs of clusters that the edit was on before, if replication brought it; otherwise empty"
    )
    epoch: int = Field(description="positions are comparable within an epoch")
    position: tuple[
        Annotated[int, Field(ge=0, lt=1 << 7)],
        Annotated[int, Field(ge=0, lt=1 << 40)],
        Annotated[int, Field(ge=0, lt=1 << 16)],
    ] = Field(description="incarnation of the region's line, sequence number, index: rises within a row")
    cells: tuple[Annotated[Put | Delete, Field(discriminator="kind")], ...] = Field(
        min_length=1, description="in the order of the log"
    )
