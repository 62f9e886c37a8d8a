"""What Kafka's client reports, as walferry's errors, and its log as Python's."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from walferry.errors import TransientError, UsageError, WalferryError
from walferry.streams.kafka.listeners import misfit
from walferry.streams.kafka.refusals import advice_for, is_refusal
from walferry.streams.kafka.settings import KafkaSettings

_log = logging.getLogger(__name__)
T = TypeVar("T")

LONGEST_WAIT_S = 30.0
"""no call waits longer for brokers; then it raises TransientError, and the caller decides"""
SLICE_S = 2.0
"""one wait inside the client, which does not return early when a broker refuses the login"""


class MessageTooLargeError(WalferryError):
    """A message is larger than its topic takes: facts `topic`, `size` and `limit` in bytes. Nothing was sent."""


FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
"""A newer producer has the transactional id, or the coordinator has ended the transaction because of its age."""
_TOLD_AGAIN_S = 60.0
"""a client that cannot connect says so several times a second"""
_SAID_AGAIN_S = 35.0
_NOT_YET_CONNECTED = re.compile(
    "in state (INIT|TRY_CONNECT|CONNECT|SSL_HANDSHAKE|APIVERSION_QUERY|AUTH)|all broker|resolve"
)
_UNKNOWN_HOST = re.compile(r"Failed to resolve '([^']+)': (?!Temporary failure)")
_DENIED_TOPIC = re.compile(r'Failed to add partition "([^"]+)" .*: Topic authorization failed')


def kafka_error(error: KafkaError, doing: str, settings: KafkaSettings) -> WalferryError:
    """A client's error as UsageError, with what to do, or as TransientError. Fact `code`: Kafka's name of it."""
    said = settings.mask(error.str())
    advice = advice_for(error, settings)
    if advice is not None:
        return UsageError(f"Kafka at {settings.bootstrap}, {doing}: {advice} ({said})", code=error.name())
    return TransientError(f"Kafka at {settings.bootstrap}, {doing}: {said}", code=error.name())


@dataclass
class ClientLog:
    """What one client tells beside its answers: its log goes to Python's, without secrets; its errors are kept."""

    settings: KafkaSettings
    refusal: KafkaError | None = None
    last: KafkaError | None = None
    last_s: float = -math.inf
    """when that was told (`time.monotonic`)"""
    disturbed_s: float = -math.inf
    """when a connection last broke, or a request had no answer (`time.monotonic`)"""
    unknown_hosts: set[str] = field(default_factory=set)
    """brokers, "host:port", whose host no name server knows"""
    api_versions: dict[str, int] = field(default_factory=dict)
    """the highest version of each request that a broker knows, by the request's name; only with debug=feature"""
    denied_topic: str = ""
    """which the user may not write to; of a transaction that failed so, the error does not name it"""
    _broke: str = ""
    _told_s: dict[str, float] = field(default_factory=dict)

    def configuration(self) -> dict[str, Any]:
        """The client's settings that bind it to this log."""
        return {"error_cb": self.failed, "logger": self}

    def failed(self, error: KafkaError) -> None:
        """Keep an error that no call returns."""
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than the one before
            self.last, self.last_s = error, time.monotonic()
        self._note_disturbance(error.str())
        if is_refusal(error):
            self.refusal = error
        unknown = _UNKNOWN_HOST.search(error.str())
        if unknown is not None:
            self.unknown_hosts.add(unknown[1])

    def log(self, level: int, form: str, *facts: object) -> None:
        """Take a line of the client, which calls this as it would a Python logger.

        At most a warning: what ends the work is raised.
        """
        line = form % facts if facts else form
        supported = re.search(r"ApiKey (\w+) \(\d+\) Versions \d+\.\.(\d+)", line)
        if supported is not None:
            self.api_versions[supported[1]] = int(supported[2])
        if denied := _DENIED_TOPIC.search(line):
            self.denied_topic = denied[1]
        if line.startswith(("REQTMOUT", "FAIL")):  # often, the client says it nowhere else
            self._broke = line.rpartition("]: ")[2]
            self._note_disturbance(line)
        if "debug" not in self.settings.client and (level <= logging.DEBUG or not self._is_news(line)):
            return
        _log.log(min(level, logging.WARNING), "%s", self.settings.mask(line))

    def reason(self, error: KafkaError) -> KafkaError:
        """Why a call did not succeed in time: what the client told last, if that says more than the call's error."""
        told = error if self.last is None else self.last
        if self._broke and told.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
            return KafkaError(
                told.code(), f"{told.str()} ({self._broke})" if told.str() != self._broke else self._broke
            )
        return told

    def has_told(self, since_s: float) -> bool:
        """Whether it has told an error since a moment, as far as is known: see `is_disturbed`."""
        return self.last_s >= since_s - _SAID_AGAIN_S

    def is_disturbed(self, since_s: float) -> bool:
        """Whether a connection may have broken since a moment; the client tells the same only every 30 s."""
        return self.disturbed_s >= since_s - _SAID_AGAIN_S

    def _note_disturbance(self, said: str) -> None:
        if _NOT_YET_CONNECTED.search(said) is None:
            self.disturbed_s = time.monotonic()

    def _is_news(self, line: str) -> bool:
        """Whether a line that differs by more than its numbers has not been told for a while."""
        now_s, what = time.monotonic(), re.sub(r"\d+", "0", line)
        is_news = now_s - self._told_s.get(what, -_TOLD_AGAIN_S) >= _TOLD_AGAIN_S
        if is_news:
            self._told_s[what] = now_s
        return is_news


def repeat(
    call: Callable[[float], T],
    doing: str,
    log: ClientLog,
    *,
    serve: Callable[[], object] = lambda: None,
    first_contact: bool = False,
    longest_s: float | None = None,
) -> T:
    """Call with a number of seconds, again and again until it succeeds. `serve` lets the client call its log.

    Raises UsageError at once for what only a person can change; TransientError after `longest_s`, or LONGEST_WAIT_S; a
    KafkaException that ends a transaction or a producer as it is. `first_contact`: this client has not reached the
    brokers before; it is then a UsageError, too, if name servers know none of them, and if their listener is not what
    the settings say.
    """
    is_listener_unknown = first_contact
    longest_s = LONGEST_WAIT_S if longest_s is None else longest_s
    deadline = time.monotonic() + longest_s
    while True:
        left = deadline - time.monotonic()
        try:
            return call(max(0.1, min(left, SLICE_S)))
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.fatal() or error.txn_requires_abort():
                raise
        serve()
        if log.refusal is not None or is_refusal(error):
            raise kafka_error(log.refusal or error, doing, log.settings)
        if first_contact and log.unknown_hosts >= set(log.settings.bootstrap.split(",")):
            unknown = ", ".join(sorted(log.unknown_hosts))
            raise UsageError(f"unknown host: no name server knows {unknown}: correct bootstrap", bootstrap=unknown)
        if is_listener_unknown:
            is_listener_unknown = False
            if fault := misfit(log.settings):
                raise UsageError(f"Kafka at {log.settings.bootstrap}, {doing}: {fault}")
        if time.monotonic() >= deadline:
            raise kafka_error(log.reason(error), f"{doing}, no success in {longest_s:.0f} s", log.settings)
        time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))
