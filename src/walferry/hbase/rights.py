"""Rights that HBase's AccessController grants: which of them the client's user lacks, and who has some on a table.

`HBaseClient` documents `lacking_rights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import table_name
from walferry.hbase.errors import AccessDeniedError, RemoteError, unknown_there

Action = Literal["READ", "WRITE", "CREATE", "ADMIN"]


@dataclass(frozen=True)
class Right:
    """A right on a table, or on a namespace and all its tables, or everywhere if it names neither."""

    action: Action
    table: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        """ "READ on shop:orders", "ADMIN on the namespace shop", "global WRITE" """
        if self.table:
            return f"{self.action} on {self.table}"
        return f"{self.action} on the namespace {self.namespace}" if self.namespace else f"global {self.action}"

    def command(self, user: str) -> str:
        """The line of HBase's shell that grants it."""
        where = self.table or (f"@{self.namespace}" if self.namespace else "")
        return f"grant '{user}', '{self.action[0]}'" + (f", '{where}'" if where else "")

    def message(self) -> pb.Permission:
        """The same for HBase."""
        action = [pb.Permission.Action.Value(self.action)]
        if self.table:
            on_table = pb.TablePermission(table_name=table_name(self.table), action=action)
            return pb.Permission(type=pb.Permission.Type.Table, table_permission=on_table)
        if self.namespace:
            inside = pb.NamespacePermission(namespace_name=self.namespace.encode(), action=action)
            return pb.Permission(type=pb.Permission.Type.Namespace, namespace_permission=inside)
        return pb.Permission(type=pb.Permission.Type.Global, global_permission=pb.GlobalPermission(action=action))


def as_refused(user: str, lacking: Sequence[Right]) -> str:
    """What is wrong and what to do, as a sentence without its full stop."""
    return (
        f"HBase does not grant {user} {', '.join(map(str, lacking))}; in HBase's shell: {commands(user, lacking)}. Or "
        "name another user or principal"
    )


def commands(user: str, rights: Sequence[Right]) -> str:
    """The lines of HBase's shell that grant them. Who lacks a right on a namespace is not told whether it exists."""
    lines = "; ".join(right.command(user) for right in rights)
    namespaces = dict.fromkeys(right.namespace for right in rights if right.namespace not in ("", "default"))
    made = [f"create_namespace '{namespace}'" for namespace in namespaces]
    return f"{lines} (before that, if it does not exist: {'; '.join(made)})" if made else lines


def lacking_rights(client: Calls, wanted: Sequence[Right]) -> list[Right] | None:
    if not client.release.tells_rights:
        return None
    request = pb.HasUserPermissionsRequest(permission=[right.message() for right in wanted])
    try:
        answer = client.master_call("HasUserPermissions", request, pb.HasUserPermissionsResponse)
    except RemoteError as error:
        if unknown_there(error):
            return None
        raise
    return [right for right, granted in zip(wanted, answer.has_user_permission, strict=True) if not granted]


def grants_on(client: Calls, table: str) -> int | None:
    """How many grants there are on a table itself; None if HBase does not tell (before 2.2, or to this user)."""
    if not client.release.tells_rights:
        return None
    request = pb.GetUserPermissionsRequest(type=pb.Permission.Type.Table, table_name=table_name(table))
    try:
        answer = client.master_call("GetUserPermissions", request, pb.GetUserPermissionsResponse)
    except AccessDeniedError:
        return None
    except RemoteError as error:
        if unknown_there(error):
            return 0
        raise
    return len(answer.user_permission)
