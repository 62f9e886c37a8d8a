"""The ways of sending edits to a cluster."""

from __future__ import annotations

from enum import StrEnum


class Way(StrEnum):
    """How edits reach a target. `walferry.apply.route` has a writer for each."""

    RPC = "rpc"
    """AdminService.ReplicateWALEntry: keeps every kind of cell, timestamps and tags"""
    THRIFT = "thrift"
    """puts and deletes through HBase's Thrift server: for targets that offer nothing else"""
