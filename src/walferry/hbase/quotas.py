"""Quotas of space that are used up (SpaceQuotaSnapshot, since 2.0), as the master tells them."""

from __future__ import annotations

from collections.abc import Mapping

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import DEFAULT_NAMESPACE, table_text
from walferry.hbase.errors import RemoteError, unknown_there


def exceeded_quotas(client: Calls) -> dict[str, str]:
    """The policy that is enforced (NO_INSERTS, NO_WRITES, …) by "table shop:orders" or "namespace shop". Empty where
    quotas are off, and before 2.0."""
    try:
        answer = client.master_call("GetQuotaStates", pb.GetQuotaStatesRequest(), pb.GetQuotaStatesResponse)
    except RemoteError as error:
        if unknown_there(error):
            return {}
        raise
    found = [(f"table {table_text(one.table_name)}", one.snapshot.quota_status) for one in answer.table_snapshots]
    found += [(f"namespace {one.namespace}", one.snapshot.quota_status) for one in answer.ns_snapshots]
    return {
        name: pb.SpaceViolationPolicy.Name(status.violation_policy) for name, status in found if status.in_violation
    }


def exceeded_quota(exceeded: Mapping[str, str], table: str) -> str | None:
    """Whose quota keeps a table from being written to, as `exceeded_quotas` names it; None: none does."""
    namespace = table.partition(":")[0] if ":" in table else DEFAULT_NAMESPACE
    return next((name for name in (f"table {table}", f"namespace {namespace}") if name in exceeded), None)
