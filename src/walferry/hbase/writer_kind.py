"""The kinds of writer that send edits to a cluster."""

from __future__ import annotations

from enum import StrEnum


class WriterKind(StrEnum):
    """The protocol by which edits reach a target. `walferry.apply.writers` has a writer for each."""

    RPC = "rpc"
    """ClientService.Multi: keeps every kind of cell, timestamps and tags"""
    THRIFT = "thrift"
    """puts and deletes through HBase's Thrift server: for targets that offer nothing else"""
