"""Which tables take no more bytes, since a quota of space is used up (MasterRpcServices.getQuotaStates, since 2.0)."""

from __future__ import annotations

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import table_text
from walferry.hbase.errors import RemoteError, unknown_there


def space_violations(client: Calls) -> dict[str, str]:
    """The policy that is enforced (NO_INSERTS, NO_WRITES, …), by table; "ns:" stands for a whole namespace. Empty where
    quotas are off, and before 2.0."""
    try:
        answer = client.master_call("GetQuotaStates", pb.GetQuotaStatesRequest(), pb.GetQuotaStatesResponse)
    except RemoteError as error:
        if unknown_there(error):
            return {}
        raise
    found = [(table_text(one.table_name), one.snapshot.quota_status) for one in answer.table_snapshots]
    found += [(f"{one.namespace}:", one.snapshot.quota_status) for one in answer.ns_snapshots]
    return {
        name: pb.SpaceViolationPolicy.Name(status.violation_policy) for name, status in found if status.in_violation
    }
