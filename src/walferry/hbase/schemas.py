"""Finds out whether a cluster would accept a table's schema, without creating the table.

A master first checks the schema of a new table (TableDescriptorChecker.sanityCheck, in 1.x HMaster's own): whether it
can load the codecs, classes and keys that the schema names, and whether numbers are within its limits. Only then does
its procedure find that a table of that name exists (CreateTableProcedure.prepareCreate). So the master is asked to
create a table that already exists.

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
"""table attributes that hbase:meta may not have, or that switch off the master's check"""
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
            raise  # the master is not ready, or the user lacks a permission
        # A schema that the master cannot even decode is an IllegalArgumentException, which counts as transient.
        return _ADVICE.sub("", _CLASS.sub("", str(error.reason))).replace(EXISTING, descriptor.name).rstrip(". ")
    raise WalferryError(f"the master has created {EXISTING}, although it already exists", table=EXISTING)
