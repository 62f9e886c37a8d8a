"""A master's refusals of a schema, as it was seen to word them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import TableDescriptor, new_table
from walferry.hbase.errors import ServerGoneError, remote_error
from walferry.hbase.schemas import schema_fault

JAVA = "org.apache.hadoop.hbase"


@dataclass
class Master:
    """Answers the creation of a table with an error, or by accepting it."""

    error: Exception | None
    asked: list[pb.CreateTableRequest] = field(default_factory=list)

    def master_call(self, method: str, request: Any, response_type: Any, *, attempts: int = 8) -> Any:
        assert (method, attempts) == ("CreateTable", 1)
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return pb.CreateTableResponse()


def refusal(exception: str, message: str) -> Exception:
    return remote_error(exception, f"{exception}: {message}\n\tat {JAVA}.Nowhere", server="m:1", method="CreateTable")


def fault(error: Exception | None) -> str | None:
    return schema_fault(cast(Calls, Master(error)), new_table("shop:orders", {"f": {}}))


def test_a_schema_that_fails_only_by_its_name_is_accepted() -> None:
    assert fault(refusal(f"{JAVA}.TableExistsException", "hbase:meta")) is None


@pytest.mark.parametrize(
    ("exception", "said", "reason"),
    [
        (
            f"{JAVA}.DoNotRetryIOException",
            "Unable to load split policy of hbase:meta Set hbase.table.sanity.checks to false at conf or table "
            "descriptor if you want to bypass sanity checks",
            "Unable to load split policy of shop:orders",
        ),
        ("java.lang.IllegalArgumentException", "No enum constant X.ROWPREFIX", "No enum constant X.ROWPREFIX"),
        ("java.io.IOException", "No enum constant X.ROWPREFIX.", "No enum constant X.ROWPREFIX"),
    ],
)
def test_a_refusal_is_told_in_the_masters_words_for_the_table_meant(exception: str, said: str, reason: str) -> None:
    assert fault(refusal(exception, said)) == reason


def test_a_master_that_is_not_ready_refuses_no_schema() -> None:
    with pytest.raises(ServerGoneError):
        fault(refusal(f"{JAVA}.PleaseHoldException", "Master is initializing"))


def test_the_schema_is_asked_about_under_a_name_that_exists() -> None:
    table = TableDescriptor(new_table("t", {"f": {"VERSIONS": "3"}}).with_attribute("READONLY", "true").schema)
    table = table.with_attribute("hbase.table.sanity.checks", "false")
    master = Master(refusal(f"{JAVA}.TableExistsException", "hbase:meta"))
    schema_fault(cast(Calls, master), table.with_attribute("MAX_FILESIZE", "1"))
    (asked,) = (TableDescriptor(request.table_schema) for request in master.asked)
    assert (asked.name, asked.attributes) == ("hbase:meta", {"MAX_FILESIZE": "1"})
    assert asked.families["f"].attributes == {"VERSIONS": "3"}
    assert table.name == "t"
    with pytest.raises(WalferryError, match="hbase:meta, although it already exists"):
        fault(None)
