"""Whose quota of space keeps a table from being written to, as the master tells it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import table_name
from walferry.hbase.errors import RemoteError
from walferry.hbase.quotas import exceeded_quota, exceeded_quotas

EXCEEDED = pb.SpaceQuotaSnapshot(
    quota_status=pb.SpaceQuotaStatus(violation_policy=pb.NO_INSERTS, in_violation=True), quota_usage=2, quota_limit=1
)
KEPT = pb.SpaceQuotaSnapshot(quota_status=pb.SpaceQuotaStatus(in_violation=False))


class Master:
    """Answers with these quotas, or fails."""

    def __init__(self, answer: pb.GetQuotaStatesResponse | Exception) -> None:
        self._answer = answer

    def master_call(self, method: str, *_: object) -> Any:
        assert method == "GetQuotaStates"
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def exceeded(answer: pb.GetQuotaStatesResponse | Exception, table: str) -> str | None:
    return exceeded_quota(exceeded_quotas(cast(Calls, Master(answer))), table)


def test_the_quota_is_that_of_the_table_or_of_its_namespace() -> None:
    answer = pb.GetQuotaStatesResponse()
    answer.table_snapshots.add(table_name=table_name("shop:orders"), snapshot=EXCEEDED)
    answer.table_snapshots.add(table_name=table_name("shop:items"), snapshot=KEPT)
    answer.ns_snapshots.add(namespace="default", snapshot=EXCEEDED)
    answer.ns_snapshots.add(namespace="shop", snapshot=KEPT)
    assert exceeded(answer, "shop:orders") == "table shop:orders"
    assert exceeded(answer, "shop:items") is None
    assert exceeded(answer, "orders") == "namespace default"


def test_a_master_that_knows_no_quotas_of_space_names_none() -> None:
    before_2_0 = RemoteError("unknown method", exception_class="java.lang.UnsupportedOperationException")
    assert exceeded(before_2_0, "t") is None
    with pytest.raises(RemoteError, match="denied"):
        exceeded(RemoteError("denied", exception_class="AccessDeniedException"), "t")
