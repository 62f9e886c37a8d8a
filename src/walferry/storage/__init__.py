"""Files: one small interface, implemented for HDFS and the local file system."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from walferry.errors import UsageError
from walferry.request_meter import Meter
from walferry.security import OPEN, Security
from walferry.storage.addresses import (
    authority_addresses,
    has_wrong_port,
    plain_addresses,
    with_right_port,
    with_schemes,
)
from walferry.storage.filesystem import (
    FileStatus,
    FileSystem,
    Owner,
    PermissionDeniedError,
    QuotaExceededError,
    temporary,
)
from walferry.storage.local import Local

if TYPE_CHECKING:
    from walferry.storage.webhdfs import WebHdfs

__all__ = [
    "FileStatus",
    "FileSystem",
    "Local",
    "Owner",
    "PermissionDeniedError",
    "QuotaExceededError",
    "WebHdfs",
    "open_file_system",
    "open_hdfs",
    "plain_addresses",
    "temporary",
    "with_right_port",
]

# Scheme of a path's URL -> scheme of the name node's HTTP address.
_WEBHDFS_SCHEMES = {"webhdfs": "http", "swebhdfs": "https"}


def __getattr__(name: str) -> Any:
    """Import `WebHdfs` on first use: its libraries take a tenth of a second, which `wal cat` of a local file should not
    wait for."""
    if name != "WebHdfs":
        raise AttributeError(name)
    from walferry.storage.webhdfs import WebHdfs

    return WebHdfs


def open_hdfs(
    webhdfs: str,
    user: str,
    name_node: str | None = None,
    meter: Meter | None = None,
    security: Security = OPEN,
) -> WebHdfs:
    """The HDFS at a name node's HTTP address; with `name_node`, files come directly from the data nodes.

    `security`: who to be to a secured HDFS, instead of `user`, and how the servers of https URLs are checked.
    """
    if name_node is None:
        from walferry.storage.webhdfs import WebHdfs

        return WebHdfs(webhdfs, user, meter=meter, security=security)
    from walferry.storage.direct import DirectHdfs

    return DirectHdfs(webhdfs, user, name_node, meter=meter, security=security)


def open_file_system(
    url: str,
    *,
    user: str | None = None,
    webhdfs: str | None = None,
    security: Security = OPEN,
) -> tuple[FileSystem, str]:
    """The file system that a URL names, and the path on it.

    Accepts "webhdfs://[user@]host:port/path" (the name node's HTTP port), "webhdfs://host:port;host:port/path" (several
    name nodes of one HDFS), "swebhdfs://…" (their HTTPS ports), "file:///path", or a local path. `webhdfs` is the name
    node's HTTP address, or several separated by ";". With it, a path without a scheme is on that HDFS, and
    "hdfs://host:port/path" or "hdfs://nameservice/path" is accepted too: such files come directly from the data nodes.
    `security`: who to be to a secured HDFS, instead of `user`, and how the servers of https URLs are checked.
    Raises UsageError for any other scheme, and for hdfs without `webhdfs`.
    """
    if webhdfs is not None and "://" not in url:
        from walferry.storage.webhdfs import WebHdfs

        files: FileSystem = WebHdfs(with_schemes(webhdfs), user or getpass.getuser(), security=security)
        return files, f"/{url.lstrip('/')}"
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Local(), url
    parts = urlsplit(url)
    if scheme == "file":
        return Local(), unquote(parts.path)
    if scheme in _WEBHDFS_SCHEMES and (address := authority_addresses(parts.netloc, _WEBHDFS_SCHEMES[scheme])):
        # WAL names contain a literal "%2C": the path is not percent-decoded.
        path = url.split("://", 1)[1].partition("/")[2]
        from walferry.storage.webhdfs import WebHdfs

        return WebHdfs(address, user or parts.username or getpass.getuser(), security=security), f"/{path}"
    if scheme == "hdfs" and parts.hostname:
        if webhdfs is None:
            raise UsageError(
                f"{url}: it does not say where its name nodes answer HTTP: write webhdfs://host:port/path, with the "
                "host:port of each separated by ; or, where there is an option webhdfs, give their addresses there",
                url=url,
            )
        if has_wrong_port(url):
            raise UsageError(f"{url}: what it has in place of a port is no number", url=url)
        name_node = f"hdfs://{parts.netloc.rpartition('@')[2]}"
        path = url.split("://", 1)[1].partition("/")[2]
        who = user or parts.username or getpass.getuser()
        files = open_hdfs(with_schemes(webhdfs), who, name_node, security=security)
        return files, f"/{path}"
    raise UsageError(
        f"{url}: unknown kind of file; use webhdfs://host:port/path (the host:port of several name nodes separated by "
        ";), file:///path or a local path",
        url=url,
    )
