"""Whether a cluster would accept a table's schema, found out without creating the table.

A master checks the schema of a new table first (TableDescriptorChecker.sanityCheck, in 1.x HMaster's own): whether it
can load the codecs, classes and keys that the schema names, and whether numbers are within its limits. Only then does
its procedure find that there is a table of that name (CreateTableProcedure.prepareCreate). So it is asked to create a
table that exists.

`HBaseClient` documents the functions that take the client.
"""

from __future__ import annotations

import re

from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.descriptors import TableDescriptor, table_name, without_attributes
from walferry.hbase.errors import RemoteError, RemoteTransientError, TableExistsError
from walferry.hbase.procedures import await_procedure, with_nonce

EXISTING = "hbase:meta"
_NOT_ASKED = ("READONLY", "hbase.table.sanity.checks")
"""attributes of a table that hbase:meta may not have, or that keep the master from looking"""
_CLASS = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): ")
_ADVICE = re.compile(r" Set hbase\.table\.sanity.*")


def schema_fault(client: Calls, descriptor: TableDescriptor) -> str | None:
    schema = without_attributes(descriptor.schema, _NOT_ASKED)
    schema.table_name.CopyFrom(table_name(EXISTING))
    request = with_nonce(pb.CreateTableRequest(table_schema=schema))
    try:
        answer = client.master_call("CreateTable", request, pb.CreateTableResponse, attempts=1)
        await_procedure(client, answer, f"CreateTable of {EXISTING}")
    except TableExistsError:
        return None
    except (RemoteError, RemoteTransientError) as error:
        if type(error) not in (RemoteError, RemoteTransientError):
            raise  # a master that is not ready, a missing permission
        # A name that the schema's message could not be turned into is an IllegalArgumentException, not a final error.
        return _ADVICE.sub("", _CLASS.sub("", str(error.reason))).replace(EXISTING, descriptor.name).rstrip(". ")
    raise WalferryError(f"the master has created {EXISTING}, which exists", table=EXISTING)
