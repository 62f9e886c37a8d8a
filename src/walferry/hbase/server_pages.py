"""Reads web pages of a region server or the master: its configuration (`/conf`, ConfServlet), and how many mutations of
its regions skipped the log (`/jmx`, JMXJsonServlet).

`HBaseClient` documents the functions that take the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import requests

from walferry.errors import TransientError
from walferry.formats.proto import hbase_pb2 as pb
from walferry.hbase.calls import Calls
from walferry.hbase.zookeeper import Server

TIMEOUT_S = 5.0
MOST_ASKED = 5
"""servers: all servers of a cluster, and its master, usually have the same configuration"""
COUNTED_LATE_MS = 20_000
"""after this a mutation is certainly counted: the periods of MetricsRegionServerWrapperImpl and the metrics system"""
_AS_JSON = {"format": "json"}
_BEAN = "Hadoop:service=HBase,name=RegionServer,sub=Server"


class Configured(Protocol):
    """A cluster whose servers report their settings: `HBaseClient`"""

    def servers(self) -> list[Server]: ...

    def settings(self, server: Server, /) -> dict[str, str] | None: ...


def settings(client: Calls, server: Server) -> dict[str, str] | None:
    return _as_settings(_page(client, server, "conf", _AS_JSON))


def master_settings(client: Calls) -> dict[str, str] | None:
    """All settings of the active master by name, HBase's defaults included; None if its web pages cannot be read, for
    the same reasons as those of a region server."""
    try:
        port, host = client.zookeeper.master_web_port(), client.zookeeper.master().host
    except TransientError:
        return None
    return _as_settings(None if port is None else _page_at(host, port, "conf", _AS_JSON))


def _as_settings(page: Any) -> dict[str, str] | None:
    try:
        return None if page is None else {item["key"]: item["value"] for item in page["properties"]}
    except (KeyError, TypeError):
        return None


def unlogged_writes(client: Calls, server: Server) -> int | None:
    page = _page(client, server, "jmx", {"qry": _BEAN})
    try:
        return None if page is None else int(page["beans"][0]["mutationsWithoutWALCount"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _page(client: Calls, server: Server, name: str, asked: Mapping[str, str]) -> Any | None:
    """A page of the server as JSON; None if it cannot be read."""
    try:
        port = _web_port(client, server)
    except TransientError:
        return None
    return None if port is None else _page_at(server.host, port, name, asked)


def _page_at(host: str, port: int, name: str, asked: Mapping[str, str]) -> Any | None:
    try:
        with requests.Session() as session:
            session.trust_env = False  # never through this machine's proxy
            url = f"http://{host}:{port}/{name}"
            answer = session.get(url, params=asked, timeout=TIMEOUT_S, allow_redirects=False)
        return answer.json() if answer.status_code == 200 else None
    except (requests.RequestException, ValueError):
        return None


def some_settings(cluster: Configured) -> list[dict[str, str]]:
    """The settings of a few of the cluster's region servers; empty if no server's can be read."""
    return [found for server in cluster.servers()[:MOST_ASKED] if (found := cluster.settings(server)) is not None]


def number(settings: Mapping[str, str], name: str, default: int) -> int:
    """The value of a setting; the default if it is missing or not a number (HBase would not start with that)."""
    try:
        return int(settings.get(name, default))
    except ValueError:
        return default


def _web_port(client: Calls, server: Server) -> int | None:
    request = pb.GetServerInfoRequest()
    answer, _ = client.pool.call(
        server.address, "AdminService", "GetServerInfo", request, pb.GetServerInfoResponse, timeout_s=TIMEOUT_S
    )
    port = answer.server_info.webui_port
    return port if 0 < port < 1 << 16 else None  # -1 as an unsigned number: the server has no web pages
