"""Numba kernels over checked cells that kernels of other rooms call: where a cell's fields are, comparing, copying."""

from __future__ import annotations

from walferry.formats._cell_kernels import (
    CELL_FIELDS,
    FAMILY_LENGTH,
    FAMILY_START,
    QUALIFIER_LENGTH,
    QUALIFIER_START,
    ROW_LENGTH,
    ROW_START,
    TAGS_LENGTH,
    TAGS_START,
    TIMESTAMP,
    TYPE,
    VALUE_LENGTH,
    VALUE_START,
    int16_at,
    int32_at,
    locate_cell,
    same_bytes,
)
from walferry.formats._njit import copy_bytes, kernel

__all__ = [
    "CELL_FIELDS",
    "FAMILY_LENGTH",
    "FAMILY_START",
    "QUALIFIER_LENGTH",
    "QUALIFIER_START",
    "ROW_LENGTH",
    "ROW_START",
    "TAGS_LENGTH",
    "TAGS_START",
    "TIMESTAMP",
    "TYPE",
    "VALUE_LENGTH",
    "VALUE_START",
    "copy_bytes",
    "int16_at",
    "int32_at",
    "kernel",
    "locate_cell",
    "same_bytes",
]
