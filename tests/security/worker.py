"""A worker, a process without Kerberos that was handed tokens: it writes a row, reads it back, and tells what it found.

Standard input is the pickle of what was handed, the cluster's address, a table and a value.
"""

from __future__ import annotations

import logging
import pickle
import sys

from walferry.errors import WalferryError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase import Cell, ClusterAddress, HBaseClient
from walferry.security import handed


def worked(address: ClusterAddress, table: str, value: bytes) -> dict[str, object]:
    """What the worker found."""
    with HBaseClient(address) as client:
        client.put(table, [Cell(b"row", b"d", b"q", value)])
        got = client.region_call(
            table, b"row", "ClientService", "Get",
            lambda region: pb.GetRequest(region=region.specifier, get=pb.Get(row=b"row")), pb.GetResponse,
        )  # fmt: skip
        scanned = b"".join(client.scan(table))
        return {
            "user": client.who_am_i(),
            "got": [cell.value == value for cell in got.result.cell],
            "scanned": value in scanned,
            "qop": client.pool.qop(),
        }


def main() -> None:
    """Do the work, and print the pickle of what came of it."""
    logging.basicConfig(level=logging.DEBUG)
    given, *work = pickle.load(sys.stdin.buffer)
    handed.take(given)
    outcome: dict[str, object] | WalferryError
    try:
        outcome = worked(*work)
    except WalferryError as error:
        outcome = error
    sys.stdout.buffer.write(pickle.dumps(outcome))


if __name__ == "__main__":
    main()
