"""Whether a table is enabled: according to the master or, before 2.0, to its znode (ZKTableStateManager).

`HBaseClient` documents the functions that take the client.
"""

from __future__ import annotations

from typing import Protocol

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import table_name
from walferry.hbase.versions import By
from walferry.hbase.zookeeper import parse_znode


class _State(Protocol):
    """One version's way to look up a table's state."""

    def __call__(self, client: Calls, table: str) -> pb.TableState: ...


def table_enabled(client: Calls, table: str) -> bool:
    return _WAYS[client.release.table_states](client, table).state == pb.TableState.ENABLED


def _by_master(client: Calls, table: str) -> pb.TableState:
    request = pb.GetTableStateRequest(table_name=table_name(table))
    return client.master_call("GetTableState", request, pb.GetTableStateResponse).table_state


def _in_zookeeper(client: Calls, table: str) -> pb.TableState:
    value = client.zookeeper.read(f"table/{table}")
    if value is None:
        client.describe(table)  # raises if the table does not exist
        return pb.TableState(state=pb.TableState.ENABLED)
    return parse_znode(value, pb.TableState)


_WAYS: dict[By, _State] = {By.MASTER: _by_master, By.ZOOKEEPER: _in_zookeeper}
