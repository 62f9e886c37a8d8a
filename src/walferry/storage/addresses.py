"""HTTP addresses of name nodes as they are given: one, or several separated by ";", also within a URL of files."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from walferry.errors import UsageError


def listed(webhdfs: str) -> list[str]:
    """The addresses, without spaces around them."""
    return [one for one in map(str.strip, webhdfs.split(";")) if one]


def servers_of(webhdfs: str) -> list[str]:
    """The addresses, each as it is before "/webhdfs/v1": a gateway's has a path."""
    return [one.rstrip("/").removesuffix("/webhdfs/v1") for one in listed(webhdfs)]


def plain_addresses(webhdfs: str) -> str:
    """The addresses, separated by ";", without spaces.

    Raises ValueError unless each is a URL, and for one with a user, who may have a password; it shows none of them.
    """
    urls = listed(webhdfs)
    if "@" in webhdfs:
        raise ValueError("leave user and password out: ledger and errors show the address")
    if not urls or not all(re.match(r"https?://[^/]", one) and not has_wrong_port(one) for one in urls):
        raise ValueError("give http://host:port of each NameNode, separated by ;")
    return ";".join(urls)


def with_schemes(webhdfs: str) -> str:
    """The same for addresses of which those without a scheme get http. Raises UsageError."""
    urls = [one if "://" in one else f"http://{one}" for one in listed(webhdfs)]
    try:
        return plain_addresses(";".join(urls))
    except ValueError as error:
        raise UsageError(f"webhdfs: {error}") from None


def said_of_standby(server: str, what: str, several: bool) -> str:
    """What is said of a name node that is not the active one. `what`: for what it was asked; `several`: whether others
    are known, which are asked, too."""
    said = f"WebHDFS at {server} is that of a standby NameNode ({what})"
    if several:
        return f"{said}, and no other one is active now"
    return (
        f"{said}: name each NameNode of that HDFS, separated by ; in `webhdfs` as http://host:port;http://host:port, "
        "in a URL of files as webhdfs://host:port;host:port/path"
    )


def authority_addresses(authority: str, scheme: str) -> str | None:
    """The addresses that a URL of files has before its path, "[user@]host:port" or "[user@]host:port;host:port".

    `scheme`: http or https. None unless each has a host and a port, and only the first one a user.
    """
    user, _, hosts = authority.rpartition("@")
    urls = [f"{scheme}://{one}" for one in listed(hosts)]
    if not urls or ";" in user or any(has_wrong_port(one) or not _has_host_and_port(one) for one in urls):
        return None
    return ";".join(urls)


def _has_host_and_port(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.hostname and parts.port)


def with_right_port(url: str) -> str:
    """The URL itself. Raises ValueError if what it has in place of a port is none."""
    if has_wrong_port(url):
        raise ValueError("what it has in place of a port is no number")
    return url


def has_wrong_port(url: str) -> bool:
    """Whether what a URL has in place of a port is none."""
    try:
        return urlsplit(url).port == 0
    except ValueError:
        return True
