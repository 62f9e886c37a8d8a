"""HDFS that reads and writes files directly at the data nodes (`hdfs-native`), and uses WebHDFS for everything else.

Direct access costs a data node much less per byte. Where it fails, WebHDFS takes over, and the log says why: servers
out of reach, a file in an encryption zone, a second user in one process. Under Kerberos the library gets the token
of WebHDFS in a file; block tokens and the protection of data transfer are its own matter.
"""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TypeVar
from urllib.parse import urlsplit

import hdfs
import hdfs_native

from walferry.background import OneByOne, begun
from walferry.errors import TransientError, WalferryError
from walferry.request_meter import Meter, Service
from walferry.security import OPEN, Security
from walferry.storage.name_nodes import Nameservice, forget, hadoop_folder, want
from walferry.storage.tokens import ANSWER_SECONDS, LIBRARY, REST_SECONDS
from walferry.storage.webhdfs import WebHdfs

CHUNK_BYTES = 1 << 19
"""moved at a time between data nodes; fits the processor's cache"""
END_SECONDS = 10.0
"""how long closing a file may take after a write failed; the close waits until the pending chunk has failed, too"""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_ERRORS = (OSError, RuntimeError)
"""the library's errors; a time-out is an OSError, too"""
_REFUSAL = re.compile(r'RPCError\("(?:[\w$]+[.$])*(\w+)", "((?:[^"\\]|\\.)*)')
"""matches the name node's exception and message, as the library quotes them"""
_OWN = "current leaseholder is trying to recreate file"
"""what the name node says of a file that the same client has just created (FSNamesystem.recoverLeaseInternal)"""
_user: list[str] = []
"""of this process, for name nodes without Kerberos"""
_Place = tuple[str, str, str, Security]
_rest_until: dict[_Place, float] = {}
"""until when this process does not try direct access again where it has failed, for whom: clients may live briefly"""
_SECURED = {
    "hadoop.security.authentication": "kerberos",
    # Any value makes the library follow what the data node wants.
    "dfs.data.transfer.protection": "authentication,integrity,privacy",
}


class DirectHdfs(WebHdfs):
    """The HDFS at `url`, like `WebHdfs`, but reads and writes files directly at its data nodes.

    `name_node` is its "hdfs://host:port", or "hdfs://name" of a nameservice: the files in HADOOP_CONF_DIR tell its name
    nodes, else they themselves do. Without Kerberos the library has one user per process, with it one per name node:
    only the first one's files go directly.
    """

    def __init__(
        self,
        url: str,
        user: str,
        name_node: str,
        *,
        timeout_s: float = 60,
        meter: Meter | None = None,
        security: Security = OPEN,
    ) -> None:
        super().__init__(url, user, timeout_s=timeout_s, meter=meter, security=security)
        self._name_node = name_node
        self._timeout_s = timeout_s
        self._answer_s = timeout_s
        self._nameservice: Nameservice | None = None
        place = urlsplit(name_node)
        if place.port is None:
            self._nameservice = Nameservice(place.netloc, tuple(self.url.split(";")), user, security)
            self._answer_s = min(timeout_s, ANSWER_SECONDS)
            want(self._nameservice)
        self._meter = meter
        self._lock = threading.RLock()
        self._name_nodes, self._first = 1, 0
        self._silent, self._most_silent = 0, 1
        self._client_of_data: hdfs_native.Client | None = None
        self._place: _Place = (name_node, self.url, user, security)

    def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
        """Create the file and its parent folders. Never retries: only the caller can produce the chunks again.

        Nor is the library asked to overwrite, as in `WebHdfs.write`: when a name node that hung dies, the library asks
        the next one to create the file, long after its caller has written it in another way.
        """
        gathered = _gathered(chunks)
        first = next(gathered)
        chunks = chain([first], gathered)
        options = hdfs_native.WriteOptions(block_size=block_size, overwrite=False, create_parent=True)
        asked: list[hdfs_native.Client] = []

        def created(client: hdfs_native.Client) -> hdfs_native.FileWriter:
            asked.append(client)
            return client.create(path, options)

        # Small files go through WebHDFS: the library's wait at the end of a file takes as long as writing a small one.
        writer = None if len(first) < CHUNK_BYTES else self._opened("write", path, created)
        if writer is not None:
            self._written(writer, path, chunks)
            return
        try:
            super().write(path, chunks, block_size=block_size)
        except FileExistsError as error:
            if asked:  # and the answer may have been lost with the name node
                raise self._unknown(path) from error
            raise

    def _written(self, writer: hdfs_native.FileWriter, path: str, chunks: Iterable[bytes]) -> None:
        writing = OneByOne("write HDFS")
        try:
            for chunk in chunks:
                with self._told("write", path):
                    writing.begun(partial(writer.write, chunk)).result(self._timeout_s)
        except BaseException:
            # Otherwise the library renews the file's lease as long as this process lives.
            with suppress(*_ERRORS):
                writing.begun(writer.close).result(END_SECONDS)
            raise
        else:
            with self._told("write", path):
                writing.begun(writer.close).result(self._timeout_s)
        finally:
            writing.end()
            io.RawIOBase.close(writer)  # else its finalizer closes the file once more, and may wait for a name node

    def _open(self, path: str, offset: int, length: int | None) -> Iterator[bytes]:
        """Read the listed length from the data nodes, then the bytes past it, which are not listed yet, by WebHDFS."""
        reader = self._opened("read", path, lambda client: client.read(path))
        if reader is not None:
            listed = len(reader)
            end = listed if length is None else min(listed, offset + length)
            at = offset
            asking = at < end
            while asking:
                begin = at
                asking = False
                try:
                    for chunk in self._chunks(reader, at, end):
                        at += len(chunk)
                        yield chunk
                except _ERRORS as error:
                    # A data node drops a reader that pauses for minutes, and another data node may serve the rest.
                    asking = at > begin and not isinstance(error, TimeoutError)
                    if asking:
                        _log.info("%s: reading goes on at byte %d: %s", path, at, _first_line(error))
                    else:
                        self._rest(f"read {path}", error)
            length = None if length is None else offset + length - at
            offset = at
        if length != 0:
            yield from super()._open(path, offset, length)

    def _chunks(self, reader: hdfs_native.FileReader, offset: int, end: int) -> Iterator[bytes]:
        """The bytes [offset, end): one request for the first chunk, another for the rest, which reads a chunk ahead."""
        first = min(CHUNK_BYTES, end - offset)
        yield self._within_time(partial(reader.read_range, offset, first))
        offset += first
        if offset == end:
            return
        pieces = _gathered(reader.read_range_stream(offset, end - offset))
        following = partial(next, pieces, b"")
        reading = OneByOne("read HDFS")
        try:
            ahead = reading.begun(following)
            while chunk := ahead.result(self._timeout_s):
                ahead = reading.begun(following)
                yield chunk
        finally:
            reading.end()

    def _opened(self, operation: str, path: str, opening: Callable[[hdfs_native.Client], _T]) -> _T | None:
        """What `opening` returns; None if WebHDFS must take over. Raises TransientError if the name node may still
        create the file, or has created it."""
        asked = 0
        # Once more than there are name nodes: the first one asked is the one that took the last change. Other threads,
        # which another name node may answer, do not count.
        while asked <= self._name_nodes and (client := self._usable()) is not None:
            asked += 1
            if self._meter is not None:
                self._meter.request(Service.NAMENODE)
            try:
                opened = self._within_time(partial(opening, client), self._answer_s)
                self._silent = 0
                return opened
            except FileNotFoundError:
                raise FileNotFoundError(f"{path} is not on {self.url}") from None
            except FileExistsError as error:
                if _OWN in str(error):  # the library has asked twice
                    raise self._unknown(path) from error
                raise FileExistsError(f"{path} already exists on {self.url}") from None
            except TimeoutError as error:
                self._not_answered(client, f"{operation} {path}", error)
                if operation == "write":  # the name node may still create the file, and a second attempt would find it
                    raise self._unknown(path) from error
            except _ERRORS as error:
                # If the name node refused, it also refuses through WebHDFS, whose error has the reason.
                if _REFUSAL.search(str(error)) is None:
                    self._rest(f"{operation} {path}", error)
                return None
        return None

    def _unknown(self, path: str) -> TransientError:
        return TransientError(
            f"HDFS at {self._name_node} did not say in time whether it created {path}",
            operation="write", path=path, url=self.url,
        )  # fmt: skip

    def _usable(self) -> hdfs_native.Client | None:
        """The library's client; None if direct access is not possible now."""
        if self._tokens is not None:
            self._tokens.current()  # the library may open another connection
        with self._lock:
            while self._client_of_data is None and not self._rests():
                try:
                    self._client_of_data = self._connected()
                except TimeoutError as error:
                    self._not_answered(None, "be used", error)
                except _ERRORS as error:
                    self._rest("be used", error)
            return None if self._rests() else self._client_of_data

    def _rests(self) -> bool:
        return time.monotonic() < _rest_until.get(self._place, 0.0)

    def _not_answered(self, client: hdfs_native.Client | None, purpose: str, error: TimeoutError) -> None:
        """After `client` has waited in vain for a name node, another one is asked first, until all have been."""
        with self._lock:
            if client is not self._client_of_data:
                return  # another thread has seen to it
            self._client_of_data = None  # its connection may hang for as long as the name node does
            self._silent += 1
            self._first = (self._first + 1) % self._name_nodes
            if self._silent == 1:
                # A client that is known asked the name node that took its last change, wherever that one stands in the
                # order: it may be asked in vain twice.
                self._most_silent = self._name_nodes + (client is not None)
            if self._silent < self._most_silent and self._name_nodes > 1:
                _log.warning("HDFS at %s: a name node does not answer; another one is asked first", self._name_node)
            else:
                self._silent = 0
                self._rest(purpose, error)

    def _connected(self) -> hdfs_native.Client:
        if self._tokens is None:
            if not _is_user(self.user):
                raise RuntimeError(
                    f"this process already uses HDFS as {_user[0]}, so it cannot use HDFS as {self.user} too"
                )
            client = hdfs_native.Client(*self._located())
        else:
            url, settings = self._located()
            authority = urlsplit(url)
            service = authority.netloc if authority.port else f"ha-hdfs:{authority.netloc}"
            if not LIBRARY.has(service, self._tokens):
                raise RuntimeError(f"this process already uses it as another user than {self.user}")
            client = hdfs_native.Client(url, _SECURED | settings)
        # Both must be the same HDFS: WebHDFS looks up the files that the library writes.
        directly = self._within_time(partial(client.get_file_info, "/"), self._answer_s).modification_time
        root = self.status("/")
        if root is None or root.modified_ms != directly:
            raise RuntimeError(f"its root folder differs from that of {self.url}")
        return client

    def _hanging(self) -> hdfs_native.Client | None:
        """The library's client, if a name node of a nameservice does not answer it now."""
        client = self._client_of_data
        if client is not None and self._nameservice is not None:
            try:
                self._within_time(partial(client.get_file_info, "/"), self._answer_s)
            except TimeoutError:
                return client
            except _ERRORS:
                return None
        return None

    def _located(self) -> tuple[str, dict[str, str]]:
        """The URL for the library, and the settings with which it finds the name nodes."""
        service = self._nameservice
        if service is None:
            return self._name_node, {}
        try:
            addresses = service.name_nodes()
        except WalferryError as error:
            if hadoop_folder() is None:
                raise RuntimeError(f"its name nodes do not tell where they are: {error}") from error
            return self._name_node, {}  # the library reads more than `hadoop_folder`'s plain properties
        if len(addresses) == 1:
            return f"hdfs://{addresses[0]}", {}
        self._name_nodes = len(addresses)
        # A client of the library asks the first one first, then the one that took a change last, and waits for it.
        return f"hdfs://{service.alias}", service.settings(self._first)

    def _within_time(self, work: Callable[[], _T], seconds: float | None = None) -> _T:
        """Bound the wait for `work`: the library itself waits forever for a hanging server."""
        return begun(work, "HDFS").result(self._timeout_s if seconds is None else seconds)

    def _rest(self, purpose: str, error: BaseException) -> None:
        _rest_until[self._place] = time.monotonic() + REST_SECONDS
        if self._nameservice is not None:  # its name nodes may have moved
            forget(self._nameservice)
            self._client_of_data = None
        _log.warning(
            "HDFS at %s cannot %s directly (%s); WebHDFS is used, for %.0f s at least",
            self._name_node, purpose, _first_line(error), REST_SECONDS,
        )  # fmt: skip

    @contextmanager
    def _told(self, operation: str, path: str) -> Iterator[None]:
        """Turn the library's errors into those of `FileSystem`."""
        try:
            yield
        except _ERRORS as error:
            facts = {"operation": operation, "path": path, "url": self.url}
            refusal = _REFUSAL.search(str(error))
            if refusal is not None:
                raise self._error(hdfs.HdfsError(refusal[2], exception=refusal[1]), facts) from error
            if isinstance(error, TimeoutError) and (hanging := self._hanging()) is not None:
                # Its data nodes' WebHDFS may hang, too: they ask the name nodes in an order of their own.
                self._not_answered(hanging, f"{operation} {path}", error)
            else:
                self._rest(f"{operation} {path}", error)
            message = f"HDFS at {self._name_node} failed ({operation} of {path}): {_first_line(error)}"
            raise TransientError(message, **facts) from error


def _gathered(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Join chunks to at least CHUNK_BYTES: each chunk costs a thread, and a block of an HFile has only 64 KB."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _is_user(user: str) -> bool:
    """Make `user` the user of this process, unless another one already is; return whether `user` now is."""
    if not _user:
        _user.append(user)
        # Only the library sees this: `os.environ`, which child processes inherit, stays unchanged.
        os.putenv("HADOOP_USER_NAME", user)
    return _user[0] == user


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or "no answer in time"
