"""What changed among a cluster's WAL files: asynchronous listings, which block no thread, and their comparison.

Layout and names are those of `wal.files`. Listings use WebHDFS's LISTSTATUS with the user's name or token, as in
`storage.webhdfs`; the servers' folders are listed concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from walferry.errors import TransientError, WalferryError, causes
from walferry.security import OPEN, Security
from walferry.security.tls import context
from walferry.storage import PermissionDeniedError
from walferry.storage.addresses import servers_of
from walferry.storage.https import refused
from walferry.storage.tokens import ANSWER_SECONDS, Tokens, tokens_of
from walferry.wal.files import Place, WalFile, listed_as_sealed, parse_wal_name

TIMEOUT_SECONDS = 60.0
ATTEMPTS = 4
CONNECTIONS = 8

_answered_last: dict[frozenset[str], str] = {}
"""which of several NameNodes: the next listing asks it first, or each would wait for one that hangs"""
_DENIED = {"AccessControlException", "SecurityException"}


@dataclass(frozen=True)
class Listing:
    """Every WAL file of user tables at one moment, each once, by name."""

    files: dict[str, WalFile]
    modified_ms: dict[str, int] = field(default_factory=dict)
    """modification time of each file, from the NameNode; for a closed file, when it was closed"""

    def sealed(self) -> set[str]:
        """Names of the files that are sealed, judged by the listing alone."""
        return listed_as_sealed(self.files.values())


@dataclass(frozen=True)
class KnownWal:
    """A file as last seen."""

    path: str
    length: int
    sealed: bool


@dataclass(frozen=True)
class Changes:
    """Names of files by what changed; a file may be in several. `gone`: no longer in any folder."""

    new: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def pressing(self) -> bool:
        """Whether the changes should be recorded at once: moves between folders and growth alone can wait."""
        return bool(self.new or self.sealed or self.gone)

    def counts(self) -> dict[str, int]:
        """The number of files of each kind."""
        return {kind: len(getattr(self, kind)) for kind in ("new", "sealed", "moved", "grown", "gone")}


def compare(known: Mapping[str, KnownWal], listing: Listing) -> Changes:
    """What changed between the known files and a listing."""
    closed = listing.sealed()
    new, sealed, moved, grown = [], [], [], []
    for name, file in listing.files.items():
        before = known.get(name)
        if before is None:
            new.append(name)
        else:
            if file.path != before.path:
                moved.append(name)
            if file.length > before.length:
                grown.append(name)
        if name in closed and (before is None or not before.sealed):
            sealed.append(name)
    gone = known.keys() - listing.files.keys()
    return Changes(tuple(new), tuple(sealed), tuple(moved), tuple(grown), tuple(sorted(gone)))


async def list_wals(webhdfs: str, user: str, root: str, security: Security = OPEN) -> Listing:
    """List every WAL file of user tables below `root`; `webhdfs` is one NameNode's URL, or several separated by ";".

    `security`: who to be to a secured HDFS, instead of `user`, and how the servers of https URLs are checked.

    Live folders are listed before the archive, so that a file that moves in between is seen at least once; its later
    place counts. Raises PermissionDeniedError, and TransientError if the NameNode does not answer or folders keep
    moving, and TlsError.
    """
    urls, tls = _in_order(servers_of(webhdfs)), security.tls
    # trust_env: never through this machine's proxy.
    answer_s = TIMEOUT_SECONDS if len(urls) == 1 else ANSWER_SECONDS
    async with httpx.AsyncClient(
        timeout=answer_s,
        trust_env=False,
        verify=True if tls is None or not any(url.startswith("https:") for url in urls) else context(tls, "httpx"),
    ) as client:
        tokens = None if security.kerberos is None else tokens_of(tuple(servers_of(webhdfs)), security)
        name_node = _NameNode(client, urls, user, tokens)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await _list(name_node, root)
            except FileNotFoundError:
                continue  # a folder was renamed to -splitting or removed between the two listings
            except TransientError:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(0.5 * attempt)
    raise TransientError(f"the folders below {root}/WALs kept moving while they were listed; try again", path=root)


def _in_order(urls: list[str]) -> list[str]:
    first = _answered_last.get(frozenset(urls))
    return urls if first is None else [first, *(url for url in urls if url != first)]


async def _list(name_node: _NameNode, root: str) -> Listing:
    found = Listing({})
    live, archive = f"{root}/WALs", f"{root}/oldWALs"
    folders = [f"{live}/{entry['pathSuffix']}" for entry in await name_node.statuses(live) if _is_folder(entry)]
    for folder, entries in zip(folders, await asyncio.gather(*map(name_node.statuses, folders)), strict=True):
        _collect(found, folder, entries, Place.SPLITTING if folder.endswith("-splitting") else Place.LIVE)
    try:
        entries = await name_node.statuses(archive)
    except FileNotFoundError:
        return found
    _collect(found, archive, entries, Place.ARCHIVED)
    folders = [f"{archive}/{entry['pathSuffix']}" for entry in entries if _is_folder(entry)]
    for folder, answer in zip(
        folders, await asyncio.gather(*map(name_node.statuses, folders), return_exceptions=True), strict=True
    ):
        if isinstance(answer, FileNotFoundError):
            continue  # the cleaner removes a server's folder once it is empty
        if isinstance(answer, BaseException):
            raise answer
        _collect(found, folder, answer, Place.ARCHIVED)
    return found


def _is_folder(entry: Mapping[str, Any]) -> bool:
    return bool(entry["type"] == "DIRECTORY")


def _collect(found: Listing, folder: str, entries: Sequence[Mapping[str, Any]], place: Place) -> None:
    for entry in entries:
        name = entry["pathSuffix"]
        parsed = None if _is_folder(entry) else parse_wal_name(name)
        if parsed is not None:
            found.files[name] = WalFile(name, *parsed, f"{folder}/{name}", place, entry["length"])
            found.modified_ms[name] = entry["modificationTime"]


class _NameNode:
    """LISTSTATUS requests to the active NameNode."""

    def __init__(self, client: httpx.AsyncClient, urls: list[str], user: str, tokens: Tokens | None) -> None:
        self._client = client
        self._urls = urls
        self._user = user
        self._tokens = tokens
        self._room = asyncio.Semaphore(CONNECTIONS)

    async def statuses(self, path: str) -> list[dict[str, Any]]:
        error: Exception | None = None
        async with self._room:
            for url in list(self._urls):
                try:
                    entries = await self._ask(url, path)
                    _answered_last[frozenset(self._urls)] = url
                    return entries
                except TransientError as refusal:
                    error = refusal
                    self._urls.remove(url)  # from now on ask the others first
                    self._urls.append(url)
        raise error or TransientError(f"no NameNode to list {path} was given", path=path)

    async def _ask(self, url: str, path: str) -> list[dict[str, Any]]:
        token = None if self._tokens is None else await asyncio.to_thread(self._tokens.current)
        who = {"user.name": self._user} if token is None else {"delegation": token.encoded()}
        try:
            answer = await self._client.get(
                f"{url}/webhdfs/v1{quote(path, safe='/,')}", params={"op": "LISTSTATUS", **who}
            )
            content = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            untrusted = refused(error, causes(error), url)
            if untrusted is not None:
                raise untrusted from None
            message = f"WebHDFS at {url} does not answer (list of {path}): {error or 'it took too long'}; is it up?"
            raise TransientError(message, path=path, url=url) from error
        if answer.is_success:
            return list(content["FileStatuses"]["FileStatus"])
        remote = content.get("RemoteException", {})
        kind, text = remote.get("exception"), str(remote.get("message", "")).split("\n", 1)[0]
        if self._tokens is not None and token is not None and "InvalidToken" in text:
            await asyncio.to_thread(self._tokens.after, token, "InvalidToken")
            raise TransientError(f"WebHDFS at {url} refused list of {path}: the token has ended", path=path)
        if kind == "FileNotFoundException":
            raise FileNotFoundError(f"{path} is not on {url}")
        if kind in _DENIED:
            raise PermissionDeniedError(
                f"permission denied on {url}: list of {path} as user {self._user}; "
                f"give that user the right, or name another user ({text})",
                path=path,
                user=self._user,
            )
        # Standby, safe mode and starting are transient. Other answers are final.
        error_class = TransientError if answer.status_code in (403, 404, 500, 503) else WalferryError
        raise error_class(f"WebHDFS at {url} refused list of {path}: {kind or answer.status_code}: {text}", path=path)
