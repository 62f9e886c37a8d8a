"""HBase's Thrift server, through happybase: independent reads, and ordinary writes."""

from __future__ import annotations

import happybase
from thriftpy2.transport import TTransportException

from walferry.errors import UsageError
from walferry.hbase.address import ClusterAddress
from walferry.hbase.errors import ConnectionFailedError

TIMEOUT_SECONDS = 60.0


def connect(address: ClusterAddress) -> happybase.Connection:
    """An open connection. Raises UsageError if the address names no Thrift server, ConnectionFailedError if the server
    does not answer."""
    if address.thrift is None:
        raise UsageError(f"the address of the cluster at {address.zookeeper} names no Thrift server; add `thrift`")
    host, _, port = address.thrift.rpartition(":")
    try:
        return happybase.Connection(host, int(port), timeout=int(TIMEOUT_SECONDS * 1000))
    except (TTransportException, OSError) as error:
        message = f"HBase's Thrift server at {address.thrift} does not answer: {error}"
        raise ConnectionFailedError(message, thrift=address.thrift, sent=False) from error
