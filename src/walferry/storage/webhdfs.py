"""HDFS through WebHDFS (the `hdfs` package); needs no Hadoop on this machine."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import hdfs
import requests
import tenacity
import urllib3

from walferry.errors import TransientError, WalferryError, causes
from walferry.request_meter import Meter
from walferry.security import OPEN, AuthenticationError, Security, handed
from walferry.security.handed import WorkerLoginError
from walferry.storage.addresses import said_of_standby, servers_of
from walferry.storage.filesystem import FileStatus, Owner, PermissionDeniedError, QuotaExceededError
from walferry.storage.https import prepare, refused
from walferry.storage.session import Session
from walferry.storage.tokens import ANSWER_SECONDS, TITLE, hidden, page_of, settings_of, tokens_of

CHUNK_BYTES = 1 << 20
ATTEMPTS = 4
FAILOVER_SECONDS = 30.0
"""for how long at least a request is repeated while none of several name nodes is active"""
CONNECTIONS = 64
"""the size of each server's connection pool, and the number of pools. During the write stop, eight threads read each of
four tables, and others follow the log; a smaller pool drops the extra connections, with a warning each."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# RemoteException names (org.apache.hadoop...), grouped by their meaning for the caller.
_MISSING = {"FileNotFoundException"}
_DENIED = {"AccessControlException", "SecurityException"}
_QUOTA = {"QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException"}
_EXISTS = {"FileAlreadyExistsException", "AlreadyBeingCreatedException"}
_TRANSIENT = {
    "StandbyException",
    "RetriableException",
    "SafeModeException",
    "ConnectException",
    "SocketTimeoutException",
    "EOFException",
    "InvalidToken",  # it ended; a driver's next attempt has a new one
    # A log whose server and data node died together, until HDFS recovers its lease; or a data node that is down.
    "CannotObtainBlockLengthException",
    "BlockMissingException",
    "RecoveryInProgressException",
    # WebHDFS's name for any other failure of the name node or of a data node.
    "IOException",
}
_FAILOVER = {"StandbyException", "RetriableException", "SafeModeException"}
"""what a name node says that is not active, or has just become so"""
_CONNECTION_ERRORS = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ConnectionError)
# What the `hdfs` package says of status 401.
_LOGIN_WANTED = "Authentication failure"
# The name node refuses an offset past the listed length (NamenodeWebHdfsMethods.chooseDatanode) ...
_PAST_LISTED = re.compile(r"Offset=\d+ out of the range \[0, (\d+)\)")
# ... and a data node one past the real length (DFSInputStream.seek), as does HttpFS (IOUtils.skipFully).
_PAST_END = re.compile(r"Cannot seek after EOF|Premature EOF from inputStream after skipping")


class WebHdfs:
    """The HDFS at a name node's HTTP address; see `walferry.storage.FileSystem`.

    `url` is "http://host:port", or several separated by ";" for highly available name nodes; or that of a gateway, also
    with a path ("https://knox:8443/gateway/default/webhdfs/v1"), if it redirects to itself or not at all.

    A request that is safe to repeat gets up to ATTEMPTS attempts, with several name nodes also more during a failover,
    and each failure is logged. Every wait for the network ends after `timeout_s` seconds.
    """

    def __init__(
        self,
        url: str,
        user: str,
        *,
        timeout_s: float = 60,
        meter: Meter | None = None,
        security: Security = OPEN,
    ) -> None:
        """`meter` counts and delays the requests to the name node.

        With the Kerberos of `security`, every request has a delegation token of that identity instead of `user`. All
        methods then also raise AuthenticationError and KerberosUnavailableError. Its `tls` says how the servers of
        https URLs are checked; all methods then also raise TlsError.
        """
        name_nodes = servers_of(url)
        self.url = ";".join(name_nodes)
        self._user = user
        self._security = security
        self._tokens = None if security.kerberos is None else tokens_of(tuple(name_nodes), security)
        several = len(name_nodes) > 1
        answer_s = min(timeout_s, ANSWER_SECONDS) if several else None
        self._session = Session(name_nodes, meter, self._tokens, answer_s, self._answers_itself)
        prepare(self._session, name_nodes, security.tls, CONNECTIONS)
        if self._tokens is None:
            self._session.params = {"user.name": user}
        self._client = _Client(self.url, timeout=(min(timeout_s, 10), timeout_s), session=self._session)
        # A failover leaves several name nodes without an active one for a while.
        self._failover_s = FAILOVER_SECONDS if several else 0.0

    @property
    def user(self) -> str:
        """The user that HDFS takes the client for; under Kerberos its name is known after the first request."""
        token = None if self._tokens is None else self._tokens.held
        return self._user if token is None else token.owner

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
        failures, since = 0, time.monotonic()
        while length is None or done < length:
            try:
                for chunk in self._open(path, offset + done, None if length is None else length - done):
                    yield chunk
                    done += len(chunk)
                    failures, since = 0, time.monotonic()
                return
            except TransientError as error:
                failures += 1
                if self._ends(failures, time.monotonic() - since, error) or not _repeatable(error):
                    raise
                _log.warning("%s; attempt %d continues at offset %d", error, failures + 1, offset + done)
                if self._failover_s:
                    time.sleep(min(0.2 * 2**failures, 5))

    def write(self, path: str, chunks: Iterable[bytes], *, block_size: int | None = None) -> None:
        """Create the file and its parent folders. Never sends twice: only the caller can produce the chunks again.

        HDFS is never asked to overwrite. Who has given up a request does not take it back: a server that hung, or a
        library that asks the next name node, carries it out later, and that would empty a file finished meanwhile. Nor
        is a file deleted to be written anew, since the deletion may come late, too: `replace` is for that.
        """

        def placed() -> str:
            answer = self._client._create(path, overwrite=False, blocksize=block_size)
            if "location" not in answer.headers:
                raise WalferryError(
                    f"{self.url} does not say where to send the bytes of {path} (status {answer.status_code}), and may "
                    "have left an empty file there: give the address of a NameNode, of HttpFS, or of a gateway that "
                    "redirects, as these do",
                    path=path, url=self.url,
                )  # fmt: skip
            return str(answer.headers["location"])

        # The name node only names a data node, which creates the file.
        location = self._repeated("write", path, placed)
        # An empty chunk would end the HTTP request's body.
        body = (chunk for chunk in chunks if chunk)
        with self._translated("write", path):
            answer = self._client._request("PUT", location, data=body)
            if not answer.ok:
                raise hdfs.client._to_error(answer)

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
                    raise FileExistsError(message) from self._shown(error)
                if there == (False, False):
                    raise FileNotFoundError(f"{source} is not on {self.url}") from self._shown(error)
                if isinstance(error, hdfs.HdfsError) and error.exception is None:
                    # HDFS's answer is a bare "false".
                    message = f"{self.url} did not rename {source} to {destination}; does the target folder exist?"
                    raise WalferryError(message, path=source, destination=destination) from self._shown(error)
                raise

        self._repeated("rename", source, rename)

    def replace(self, source: str, destination: str) -> None:
        """Give a file the name of another one, which is gone then."""
        begun, there = self.status(source), self.status(destination)
        if begun is None:
            raise FileNotFoundError(f"{source} is not on {self.url}")
        if there is not None and there.is_dir:  # HttpFS would move the file into it
            raise FileExistsError(f"{destination} already exists on {self.url}, and is a folder")

        def is_done() -> bool:
            """Whether a request whose answer was lost has been carried out: a rename keeps length and time."""
            now = self.status(destination)
            same = now is not None and (now.length, now.modified_ms) == (begun.length, begun.modified_ms)
            return same and self.status(source) is None

        def rename() -> bool:
            failure: Exception | None = None
            try:
                answer = self._client._rename(source, destination=destination, renameoptions="OVERWRITE")
                # HDFS says nothing when it has replaced the file; HttpFS, to which the option is unknown, says whether
                # it has renamed.
                if not answer.content or answer.json()["boolean"]:
                    return True
            except (hdfs.HdfsError, *_CONNECTION_ERRORS) as error:
                failure = error
            if is_done():
                return True
            if failure is not None:
                raise failure
            return False

        if self._repeated("replace", source, rename):
            return
        if self.status(source) is None:  # then nothing would take the place of what is there
            raise FileNotFoundError(f"{source} is no longer on {self.url}")
        # HttpFS renames to no name that there is already. This deletion is the only one of a finished file's name, and
        # if HttpFS carries it out late, it removes the new file: docs/runbook.md says so.
        self.delete(destination)
        try:
            self.rename(source, destination)
        except (FileExistsError, FileNotFoundError):
            if not is_done():  # by the first request, late
                raise

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Delete a file, or a folder with `recursive`."""
        # The answer may be lost with the name node; the other one then finds nothing to delete.
        there = bool(self._failover_s) and self.status(path) is not None
        return bool(self._repeated("delete", path, lambda: self._client.delete(path, recursive=recursive))) or there

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        """Create a folder and its parents."""
        self._repeated("mkdirs", path, lambda: self._client.makedirs(path))
        if permission is not None:
            self.set_permission(path, permission)

    def set_permission(self, path: str, permission: int) -> None:
        """Set the mode of a file or folder."""
        self._repeated("set_permission", path, lambda: self._client.set_permission(path, f"{permission:o}"))

    def give(self, path: str, owner: Owner) -> None:
        """Make a file or folder belong to somebody."""
        self._repeated("set_owner", path, lambda: self._client.set_owner(path, owner.user, owner.group))

    def checksum(self, path: str) -> str | None:
        """HDFS's MD5 of MD5s of CRCs, for files with equal block size and bytes per checksum."""
        facts = self._repeated("checksum", path, lambda: self._client.checksum(path))
        return f"{facts['algorithm']}:{facts['bytes']}"

    def allows(self, path: str, action: str) -> bool | None:
        """Whether the user may do `action` with an existing path, such as "rwx"; None if HDFS does not tell."""
        try:
            self._repeated("access check", path, lambda: self._client._check_access(path, fsaction=action))
        except PermissionDeniedError:
            return False
        except (WalferryError, OSError):
            return None
        return True

    def acl(self, path: str) -> tuple[str, ...]:
        """The entries of an existing path's ACL, such as "user:ferry:r-x" and "default:user:ferry:r-x"; none if it has
        only a mode, or HDFS does not tell."""
        try:
            return tuple(self._repeated("ACL", path, lambda: self._client.acl_status(path))["entries"])
        except (WalferryError, OSError, LookupError):
            return ()

    def quota_left(self, path: str) -> int | None:
        """Bytes left in a folder's space quota, with all copies of blocks; None if it has no quota, or HDFS does not
        tell (Hadoop 2)."""
        try:
            usage = self._repeated("quota", path, lambda: self._client._get_quota_usage(path).json()["QuotaUsage"])
        except (WalferryError, OSError, LookupError):
            return None
        return None if usage["spaceQuota"] < 0 else int(usage["spaceQuota"]) - int(usage["spaceConsumed"])

    def space_left(self) -> int | None:
        """Bytes left on all data nodes, for all copies of blocks; None if no name node tells."""
        for url in self.url.split(";"):
            with suppress(LookupError, TypeError, ValueError):
                return int((self._bean(url, "FSNamesystemState") or [])[0]["CapacityRemaining"])
        return None

    def behind(self) -> Iterator[tuple[str, str]]:
        """The addresses of name nodes that answer although they may not have the last changes, with the reason:
        WebHDFS, unlike HDFS's own protocol, does not have an Observer catch up first."""
        for url in self.url.split(";"):
            state = "".join(str(one.get("State")).lower() for one in self._bean(url, "NameNodeStatus") or [])
            if state == "observer":
                yield url, "is an Observer, whose state is old"
            elif state == "standby" and self._reads_stale(url):
                yield url, "answers as a standby, too (dfs.ha.allow.stale.reads), with an old state"

    def _reads_stale(self, url: str) -> bool:
        try:
            return settings_of(url, self._user, self._security).get("dfs.ha.allow.stale.reads") == "true"
        except (WalferryError, LookupError) as error:
            _log.info("%s does not tell its configuration: %s", url, hidden(str(error)))
            return False

    def is_gateway(self) -> bool:
        """Whether the address is that of a server before the name nodes, such as HttpFS; False if it does not tell."""
        return all(map(self._answers_itself, self.url.split(";")))

    def _answers_itself(self, url: str) -> bool | None:
        """Whether the server is no name node, which would redirect to data nodes; None if it does not tell."""
        facts = self._bean(url, "NameNodeStatus")
        return None if facts is None else not facts

    def _bean(self, url: str, name: str) -> Sequence[dict[str, Any]] | None:
        """What a server tells of a bean of name nodes: nothing if it has none, None if it does not answer."""
        query = {"qry": f"Hadoop:service=NameNode,name={name}"}
        try:
            found: list[dict[str, Any]] = page_of(url, self._user, self._security, "/jmx", query)["beans"]
            return found
        except (WalferryError, LookupError) as error:
            _log.info("%s does not tell of its %s: %s", url, name, hidden(str(error)))
            return None

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
        """Call `request` until it answers, at most ATTEMPTS times, or during a failover for FAILOVER_SECONDS."""

        def translated() -> _T:
            with self._translated(operation, path):
                return request()

        def failure_of(state: tenacity.RetryCallState) -> BaseException | None:
            return None if state.outcome is None else state.outcome.exception()

        retrying = tenacity.Retrying(
            stop=lambda state: self._ends(state.attempt_number, state.seconds_since_start or 0.0, failure_of(state)),
            wait=tenacity.wait_exponential(multiplier=0.2, max=5),
            retry=tenacity.retry_if_exception(_repeatable),
            before_sleep=_log_attempt,
            reraise=True,
        )
        return retrying(translated)

    def _ends(self, failures: int, seconds: float, error: BaseException | None) -> bool:
        """Whether a request is not tried again; seldom before FAILOVER_SECONDS while no name node is active."""
        failing_over = isinstance(error, TransientError) and error.facts.get("failover", False)
        return failures >= ATTEMPTS and not (failing_over and seconds < self._failover_s)

    @contextmanager
    def _translated(self, operation: str, path: str) -> Iterator[None]:
        """Turn the package's errors into those of `FileSystem`."""
        facts: dict[str, Any] = {"operation": operation, "path": path, "url": self.url}
        try:
            yield
        except hdfs.HdfsError as error:
            raise self._error(error, facts) from self._shown(error)
        except _CONNECTION_ERRORS as error:
            chain = causes(error)
            for cause in chain:
                if isinstance(cause, (FileNotFoundError, WalferryError)):
                    raise cause from None  # raised by the chunks passed to `write`
            untrusted = refused(error, chain, self.url)
            if untrusted is not None:
                raise untrusted from self._shown(error)
            reason = hidden(str(chain[-1]))
            message = f"WebHDFS at {self.url} does not answer ({operation} of {path}): {reason}; is it up?"
            raise TransientError(message, failover=True, **facts) from self._shown(error)

    def _shown(self, error: Exception) -> Exception | None:
        """The error as a cause that a traceback may print: those of the libraries show URLs, and so the token."""
        return error if self._tokens is None else None

    def _error(self, error: hdfs.HdfsError, facts: dict[str, Any]) -> Exception:
        name = error.exception
        path, operation = facts["path"], facts["operation"]
        text = error.message.decode(errors="replace") if isinstance(error.message, bytes) else str(error.message)
        page = TITLE.search(text) if name is None else None
        text = hidden((page[1] if page else text).split("\n", 1)[0])
        if name == "SecurityException" and "$InvalidToken:" in text:
            name = "InvalidToken"
        if name == "InvalidToken" and self._tokens is not None and handed.mine() is not None:
            return self._tokens.refused(text)
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
        if name is None and text.startswith(_LOGIN_WANTED):
            message = f"WebHDFS at {self.url} wants a login ({operation} of {path}): it is secured; give its cluster a "
            return AuthenticationError(f"{message}Kerberos principal with a keytab or a ticket cache", **facts)
        if name == "StandbyException":
            message = said_of_standby(self.url, f"{operation} of {path}", ";" in self.url)
            return TransientError(message, failover=True, **facts)
        message = f"WebHDFS at {self.url} refused {operation} of {path}: {name or 'no reason given'}: {text}"
        # An answer without an exception name is not WebHDFS's: a proxy, or a server that is starting or stopping.
        kind = TransientError if name is None or name in _TRANSIENT else WalferryError
        return kind(message, failover=name in _FAILOVER, **facts)


def _repeatable(error: BaseException) -> bool:
    """A worker has no other token than the one that was refused."""
    return isinstance(error, TransientError) and not isinstance(error, WorkerLoginError)


class _Client(hdfs.Client):  # type: ignore[misc]
    """Also has requests that the package lacks."""

    _check_access = hdfs.client._Request("GET")
    _get_quota_usage = hdfs.client._Request("GET")


def _status(path: str, facts: dict[str, Any]) -> FileStatus:
    return FileStatus(
        path=path,
        length=facts["length"],
        is_dir=facts["type"] == "DIRECTORY",
        modified_ms=facts["modificationTime"],
        block_size=facts["blockSize"],
        replication=facts["replication"],
        owner=Owner(facts["owner"], facts["group"]),
        mode=int(facts["permission"], 8),
        has_acl=facts.get("aclBit", False),  # both since Hadoop 2.6
        encrypted=facts.get("encBit", False),
    )


def _log_attempt(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    _log.warning("%s; attempt %d failed", state.outcome.exception(), state.attempt_number)
