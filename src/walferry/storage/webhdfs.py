"""HDFS through WebHDFS (the `hdfs` package); needs no Hadoop on this machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import hdfs
import requests
import tenacity
import urllib3

from walferry.errors import TransientError, WalferryError
from walferry.request_meter import Meter, Service
from walferry.storage.filesystem import FileStatus, PermissionDeniedError, QuotaExceededError

CHUNK_BYTES = 1 << 20
ATTEMPTS = 4
CONNECTIONS = 64
"""the size of each server's connection pool, and the number of pools. During the write stop, eight threads read each of
four tables, and others follow the log; a smaller pool drops the extra connections, with a warning each."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# RemoteException names (org.apache.hadoop...), grouped by their meaning for the caller.
_MISSING = {"FileNotFoundException"}
_DENIED = {"AccessControlException", "SecurityException"}
_QUOTA = {"QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException"}
_EXISTS = {"FileAlreadyExistsException"}
_TRANSIENT = {
    "StandbyException",
    "RetriableException",
    "SafeModeException",
    "ConnectException",
    "SocketTimeoutException",
    "EOFException",
    # A log whose server and data node died together, until HDFS recovers its lease; or a data node that is down.
    "CannotObtainBlockLengthException",
    "BlockMissingException",
    "RecoveryInProgressException",
    # WebHDFS's name for any other failure of the name node or of a data node.
    "IOException",
}
_CONNECTION_ERRORS = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ConnectionError)
# The name node refuses an offset past the listed length (NamenodeWebHdfsMethods.chooseDatanode) ...
_PAST_LISTED = re.compile(r"Offset=\d+ out of the range \[0, (\d+)\)")
# ... and a data node one past the real length (DFSInputStream.seek).
_PAST_END = re.compile(r"Cannot seek after EOF")


class WebHdfs:
    """The HDFS at a name node's HTTP address; see `walferry.storage.FileSystem`.

    `url` is "http://host:port", or several separated by ";" for highly available name nodes. A request that is safe to
    repeat gets up to ATTEMPTS attempts, and each failure is logged. Every wait for the network ends after `timeout_s`
    seconds.
    """

    def __init__(self, url: str, user: str, *, timeout_s: float = 60, meter: Meter | None = None) -> None:
        """`meter` counts and delays the requests to the name node."""
        self.url = url.rstrip("/")
        self.user = user
        self._session = requests.Session() if meter is None else _MeteredSession(self.url.split(";"), meter)
        for scheme in ("http://", "https://"):
            adapter = requests.adapters.HTTPAdapter(pool_connections=CONNECTIONS, pool_maxsize=CONNECTIONS)
            self._session.mount(scheme, adapter)
        self._client = hdfs.InsecureClient(
            self.url, user=user, timeout=(min(timeout_s, 10), timeout_s), session=self._session
        )

    def list(self, path: str) -> list[FileStatus]:
        """A folder's entries, sorted by name."""
        entries = self._repeated("list", path, lambda: self._client.list(path, status=True))
        return sorted((_status(f"{path.rstrip('/')}/{name}", facts) for name, facts in entries), key=lambda s: s.path)

    def status(self, path: str) -> FileStatus | None:
        """The path's status; None if it does not exist."""
        try:
            return _status(path, self._repeated("status", path, lambda: self._client.status(path)))
        except FileNotFoundError:
            return None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Stream the bytes from `offset` to the real end, also of a file that is still being written.

        After a broken connection, continues after the last yielded byte, until ATTEMPTS in a row make no progress.
        """
        done = 0
        failures = 0
        while length is None or done < length:
            try:
                for chunk in self._open(path, offset + done, None if length is None else length - done):
                    yield chunk
                    done += len(chunk)
                    failures = 0
                return
            except TransientError as error:
                failures += 1
                if failures == ATTEMPTS:
                    raise
                _log.warning(
                    "%s; attempt %d of %d continues at offset %d", error, failures + 1, ATTEMPTS, offset + done
                )

    def write(
        self, path: str, chunks: Iterable[bytes], *, overwrite: bool = False, block_size: int | None = None
    ) -> None:
        """Create the file and its parent folders. Never retries: only the caller can produce the chunks again."""
        with self._translated("write", path):
            # An empty chunk would end the HTTP request's body.
            body = (chunk for chunk in chunks if chunk)
            self._client.write(path, data=body, overwrite=overwrite, blocksize=block_size)

    def rename(self, source: str, destination: str) -> None:
        """Rename a file or folder. After a broken connection, looks up the outcome before trying again."""
        if self.status(destination) is not None:
            raise FileExistsError(f"{destination} already exists on {self.url}; {source} was not renamed")

        def rename() -> None:
            try:
                self._client.rename(source, destination)
            except (hdfs.HdfsError, *_CONNECTION_ERRORS) as error:
                there = self.status(source) is not None, self.status(destination) is not None
                if there == (False, True):
                    return
                if there == (True, True):
                    message = f"{destination} already exists on {self.url}; {source} was not renamed"
                    raise FileExistsError(message) from error
                if there == (False, False):
                    raise FileNotFoundError(f"{source} is not on {self.url}") from error
                if isinstance(error, hdfs.HdfsError) and error.exception is None:
                    # HDFS's answer is a bare "false".
                    message = f"{self.url} did not rename {source} to {destination}; does the target folder exist?"
                    raise WalferryError(message, path=source, destination=destination) from error
                raise

        self._repeated("rename", source, rename)

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Delete a file, or a folder with `recursive`."""
        return bool(self._repeated("delete", path, lambda: self._client.delete(path, recursive=recursive)))

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        """Create a folder and its parents."""
        self._repeated("mkdirs", path, lambda: self._client.makedirs(path))
        if permission is not None:
            self._repeated("set_permission", path, lambda: self._client.set_permission(path, f"{permission:o}"))

    def checksum(self, path: str) -> str | None:
        """HDFS's MD5 of MD5s of CRCs, for files with equal block size and bytes per checksum."""
        facts = self._repeated("checksum", path, lambda: self._client.checksum(path))
        return f"{facts['algorithm']}:{facts['bytes']}"

    def close(self) -> None:
        """Close idle connections."""
        self._session.close()

    def _open(self, path: str, offset: int, length: int | None) -> Iterator[bytes]:
        """One OPEN request. Yields nothing when `offset` is at or past the end."""
        skip = 0
        response: requests.Response | None = None
        while response is None:
            try:
                wanted = None if length is None else length + skip
                with self._translated("read", path):
                    response = self._client._open(path, offset=offset - skip, length=wanted)
            except TransientError as error:
                after = _PAST_LISTED.search(str(error))
                if _PAST_END.search(str(error)):
                    return
                if after is None or skip:
                    raise
                # Only a data node knows the real end of an open file: start at the last listed byte.
                skip = offset - (int(after[1]) - 1)
        with response, self._translated("read", path):
            for chunk in response.iter_content(CHUNK_BYTES):
                if skip >= len(chunk):
                    skip -= len(chunk)
                else:
                    yield chunk[skip:] if skip else chunk
                    skip = 0

    def _repeated(self, operation: str, path: str, request: Callable[[], _T]) -> _T:
        """Call `request` until it answers, at most ATTEMPTS times."""

        def translated() -> _T:
            with self._translated(operation, path):
                return request()

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_exponential(multiplier=0.2, max=5),
            retry=tenacity.retry_if_exception_type(TransientError),
            before_sleep=_log_attempt,
            reraise=True,
        )
        return retrying(translated)

    @contextmanager
    def _translated(self, operation: str, path: str) -> Iterator[None]:
        """Turn the package's errors into those of `FileSystem`."""
        facts: dict[str, Any] = {"operation": operation, "path": path, "url": self.url}
        try:
            yield
        except hdfs.HdfsError as error:
            raise self._error(error, facts) from error
        except _CONNECTION_ERRORS as error:
            causes = _causes(error)
            for cause in causes:
                if isinstance(cause, (FileNotFoundError, WalferryError)):
                    raise cause from None  # raised by the chunks passed to `write`
            message = f"WebHDFS at {self.url} does not answer ({operation} of {path}): {causes[-1]}; is it up?"
            raise TransientError(message, **facts) from error

    def _error(self, error: hdfs.HdfsError, facts: dict[str, Any]) -> Exception:
        name = error.exception
        path, operation = facts["path"], facts["operation"]
        text = error.message.decode(errors="replace") if isinstance(error.message, bytes) else str(error.message)
        text = text.split("\n", 1)[0]
        if name in _MISSING:
            return FileNotFoundError(f"{path} is not on {self.url}")
        if name in _EXISTS or (operation == "write" and "already exists" in text):
            return FileExistsError(f"{path} already exists on {self.url}")
        if name is None and "is not a directory" in text:
            return NotADirectoryError(f"{path} on {self.url} is not a folder")
        if name in _DENIED:
            message = (
                f"permission denied on {self.url}: {operation} of {path} as user {self.user}; "
                f"give that user the right, or name another user ({text})"
            )
            return PermissionDeniedError(message, user=self.user, **facts)
        if name in _QUOTA:
            message = f"quota exceeded on {self.url}: {operation} of {path}; raise it or free space ({text})"
            return QuotaExceededError(message, **facts)
        message = f"WebHDFS at {self.url} refused {operation} of {path}: {name or 'no reason given'}: {text}"
        # An answer without an exception name is not WebHDFS's: a proxy, or a server that is starting or stopping.
        return (TransientError if name is None or name in _TRANSIENT else WalferryError)(message, **facts)


class _MeteredSession(requests.Session):
    """Counts the requests to the name nodes, not the redirected ones to data nodes."""

    def __init__(self, name_nodes: Iterable[str], meter: Meter) -> None:
        super().__init__()
        self._name_nodes = {urlsplit(url).netloc for url in name_nodes}
        self._meter = meter

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        if urlsplit(str(url)).netloc in self._name_nodes:
            self._meter.request(Service.NAMENODE)
        return super().request(method, url, *args, **kwargs)


def _status(path: str, facts: dict[str, Any]) -> FileStatus:
    return FileStatus(
        path=path,
        length=facts["length"],
        is_dir=facts["type"] == "DIRECTORY",
        modified_ms=facts["modificationTime"],
        block_size=facts["blockSize"],
        replication=facts["replication"],
    )


def _log_attempt(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    _log.warning("%s; attempt %d of %d failed", state.outcome.exception(), state.attempt_number, ATTEMPTS)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and the chain of its causes."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    return causes
