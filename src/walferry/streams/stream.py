"""A stream of changes from a source's log to Kafka: its phases, and the loop that runs until a person ends it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from walferry.clock import now_ms, steady_s
from walferry.errors import GapError, TransientError, UsageError, WalferryError
from walferry.hbase.client import HBaseClient
from walferry.replay.keeping import protect
from walferry.replay.keeping.obstacles import folder_obstacle, peer_obstacles
from walferry.replay.log.cut import start_fence
from walferry.replay.rights.pace import Pace
from walferry.run.notes.throttle import throttle_of
from walferry.run.notes.waits import begin_wait, end_wait
from walferry.run.run import RunEndedError, file_system
from walferry.storage import open_file_system
from walferry.streams.account import Account
from walferry.streams.beginning import begin, descriptor_of
from walferry.streams.follower import Follower
from walferry.streams.kafka.errors import FencedError
from walferry.streams.kafka.positions import Owner
from walferry.streams.kafka.sink import Sink
from walferry.streams.kafka.topics import StreamTopics, look, prepare
from walferry.streams.message.changes import Form
from walferry.streams.ordering.regions import KnownRegions
from walferry.streams.ordering.sent import StreamPositions
from walferry.streams.sending import Claims, Sending, Topic
from walferry.streams.stream_run import StreamRun
from walferry.streams.stream_spec import KafkaConnections, ResolvedStreamSpec, environment_kafka, kafka_settings

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""time between two looks into the ledger: whether the run has ended, is paused, or an item was released"""
RETRY_SECONDS = (1.0, 30.0)
RELEASE_SECONDS = 600.0


WORK: Mapping[str, Callable[[StreamRun], object]] = {
    "plan": lambda run: plan_stream(run),
    "protect": lambda run: protect.protect(run),
    "fence": lambda run: start_fence(run),
    "stream": lambda run: follow(run),
}
"""The function of each phase of a stream (`run.phases`). All are idempotent."""


def stream(run: StreamRun) -> None:
    """Do the phases that are not done, and follow the log until the run is ended. Raises the errors of `follow`."""
    for work in WORK.values():
        work(run)


def examine(spec: ResolvedStreamSpec, kafka: KafkaConnections = environment_kafka) -> dict[str, Any]:
    """Examine the source and Kafka for a spec, and change nothing. Raises UsageError that lists what stands in the way.

    Facts: version and cluster_id of the source, topics by table, positions, and the partitions of topics that exist.
    """
    with HBaseClient(spec.log_address()) as source:
        _require_source(spec, source)
        spec.decoder()
        owner = Owner(source.cluster_id(), spec.name)
        topics = look(
            kafka_settings(spec, kafka), _recorded(spec, None), spec.positions_topic, create=spec.creation, owner=owner
        )
        return {
            "version": source.version(),
            "cluster_id": source.cluster_id(),
            "topics": {table: spec.topic_of(table) for table in spec.tables},
            "partitions": topics,
            "positions": spec.positions_topic,
        }


def plan_stream(run: StreamRun) -> dict[str, Any]:
    """The phase `plan`: examine the source, and examine or create the topics. Raises UsageError for what stands in the
    way; the run has then failed, so that a corrected spec can take its name."""

    def work() -> dict[str, Any]:
        _require_source(run.spec, run.source)
        run.spec.decoder()
        topics = _topics(run, run.shard().owner)
        return {
            "version": run.source.version(),
            "cluster_id": run.source.cluster_id(),
            "partitions": {name: topic.partitions for name, topic in topics.changes.items()},
            "positions": topics.positions.name,
        }

    try:
        return run.once("plan", work)
    except TransientError:
        raise
    except WalferryError as error:
        run.ledger.end("failed", run.actor, str(error))
        raise


def _require_source(spec: ResolvedStreamSpec, source: HBaseClient) -> None:
    """Raise UsageError unless the source's files can be read, and HBase grants what a stream needs."""
    address, files = spec.source.address(), file_system(spec.source)
    if files.status(address.root_path) is None:
        raise UsageError(f"source: {address.root_path} does not exist on its file system; check rootdir and webhdfs")
    if missing := [table for table in spec.tables if not source.table_exists(table)]:
        raise UsageError(f"there is no table {', '.join(missing)} at the source", tables=missing)
    if lacking := source.lacking_rights(("ADMIN",), spec.tables):
        raise UsageError(
            f"HBase does not grant {source.address.user} {', '.join(lacking)}; grant it, or name another `user`"
        )
    if (misplaced := folder_obstacle(source, files, address.wal_path)) is not None:
        raise UsageError(f"source: {misplaced}")
    if obstacles := list(peer_obstacles(source)):
        raise UsageError(f"a stream needs a replication peer, which keeps the log: {'; '.join(obstacles)}")


def _recorded(spec: ResolvedStreamSpec, plan: Mapping[str, Any] | None) -> dict[str, int | None]:
    """The change topics, each with the partition count that the plan has recorded."""
    counts = plan["partitions"] if plan else {}
    return {spec.topic_of(table): counts.get(spec.topic_of(table)) for table in spec.tables}


def _topics(run: StreamRun, owner: Owner | None = None) -> StreamTopics:
    """The topics, checked or created. `owner`: as of `prepare`; a sink looks itself."""
    spec, plan = run.spec, run.ledger.phases.facts("plan")
    return prepare(
        run.kafka(), _recorded(spec, plan), spec.positions_topic, create=spec.creation, owner=owner,
        expected=_has_sent(run),
    )  # fmt: skip


_SENT = "stream has recorded positions"


def _has_sent(run: StreamRun) -> bool:
    return run.ledger.notes.get(_SENT) is not None


def follow(run: StreamRun) -> NoReturn:
    """The phase `stream`: send every change until the run is ended. The phase is done then, and this raises
    RunEndedError. Raises StreamTakenOverError if another process takes the stream over, which then has the phase.

    While Kafka or the source cannot be reached, this waits and tries again: meanwhile the source's log is kept.
    """

    def work() -> dict[str, Any]:
        turn = Turn(run)
        try:
            _follow_on(run, turn)
        except RunEndedError:
            if (state := run.ledger.record.state) == "running":
                raise
            return {"ended": state}

    facts = run.once("stream", work)
    raise RunEndedError(f"run {run.run_id} has ended as {facts['ended']}", run=run.run_id)


def _follow_on(run: StreamRun, turn: Turn) -> NoReturn:
    """Follow, again after each transient error."""
    pause = RETRY_SECONDS[0]
    with protect.tended(run):
        while True:
            began = steady_s()
            try:
                while True:
                    with turn.explaining_fences():
                        _follow(run, turn)
            except TransientError as error:
                if steady_s() - began > RETRY_SECONDS[1]:
                    pause = RETRY_SECONDS[0]
                log.warning("%s; trying again in %.0f s", error, pause)
                begin_wait(run.ledger, f"to try again, since {error}", pause)
                time.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS[1])
            except GapError as error:
                raise _lost(run, error) from None


def _lost(run: StreamRun, error: GapError) -> GapError:
    """The error of a file that is gone, in a stream's words; the ledger has the file as missing."""
    file = error.facts.get("file", "")
    if run.ledger.log.known({file}):
        run.ledger.log.mark_missing(file)
    return GapError(
        f"WAL file {file} is missing from WALs, -splitting and oldWALs, and was not sent past byte "
        f"{error.facts.get('start')}: HBase has deleted it. If you still have it, put it into oldWALs and start the "
        "stream again. If it is lost, so are its changes: start the stream with a higher epoch, which begins at the "
        "log that is there",
        **error.facts,
    )


class StreamTakenOverError(WalferryError):
    """Another process of the ledger has begun the phase `stream`, and this one ends; fact `run`."""


class Turn:
    """This attempt's right to stream, which it loses once the run has ended or another process has begun the phase.

    Kafka fences an older process only while it has a sink. One that was suspended for long would open another one and
    take the stream back.
    """

    def __init__(self, run: StreamRun) -> None:
        self._run = run
        self._attempt = self._attempts()

    def require(self) -> None:
        """Raise StreamTakenOverError or RunEndedError if it is lost."""
        if self._attempts() != self._attempt:
            raise StreamTakenOverError(
                f"another process has taken over stream {self._run.run_id}: this one ends, and what it had not "
                "committed is not visible",
                run=self._run.run_id,
            )
        state = self._run.ledger.record.state
        if state != "running":
            raise RunEndedError(f"run {self._run.run_id} has ended as {state}", run=self._run.run_id)

    @contextmanager
    def explaining_fences(self) -> Iterator[None]:
        """Raise the errors of `require` in place of FencedError: Kafka may tell an overtaken process first."""
        try:
            yield
        except FencedError as fenced:
            self.require()
            raise WalferryError(
                f"{fenced}. No process of this ledger has: another ledger has a stream of this name and source. End "
                "one of the two, or give it another name",
                **fenced.facts,
            ) from None

    def _attempts(self) -> int:
        phase = self._run.ledger.phases.find("stream")
        return phase.attempts if phase else 0


def _follow(run: StreamRun, turn: Turn) -> None:
    """Follow with one sink, until an error ends it."""
    turn.require()
    topics = _topics(run)
    with Sink.open(run.kafka(), run.shard(), topics, expected=_has_sent(run)) as sink:
        positions = begin(run, sink)
        run.ledger.notes.keep(_SENT, {"at_ms": now_ms()})
        known = KnownRegions(
            run.source, {name: sent.rows for name, sent in positions.regions.items() if sent.rows is not None}
        )
        for table in run.source_tables:
            known.learn(table, [name for name, sent in positions.regions.items() if sent.table == table])
        held = run.ledger.quarantine.holds()
        follower = Follower(
            run.source, run.source_files, run.wal_root, run.source_tables, _sending(run, topics, sink, positions), sink,
            known, positions, {hold.region for hold in held},
        )  # fmt: skip
        end_wait(run.ledger)
        _pass_on(run, turn, follower, Account(run, follower), len(held))


def _pass_on(run: StreamRun, turn: Turn, follower: Follower, account: Account, held: int) -> None:
    """Make passes until an item is released from quarantine: its region is then read again."""
    released, looked = steady_s(), -LOOK_SECONDS
    pace, owed = Pace(), (0, 0)
    while True:
        if steady_s() - looked >= LOOK_SECONDS:
            looked = steady_s()
            throttle = throttle_of(run.ledger)
            pace.allow(throttle.write_bytes, throttle.write_cells)
            turn.require()
            if len(run.ledger.quarantine.holds()) < held:
                return
            if run.ledger.record.paused:
                time.sleep(LOOK_SECONDS)
                continue
        if wait_s := pace.take(*owed):
            time.sleep(min(wait_s, LOOK_SECONDS))
            continue
        if any(owed):  # it counts now, so the next pass waits until it is paid off
            owed = 0, 0
            continue
        passed = follower.pass_once()
        owed = passed.cells, passed.bytes
        held += account.add(passed)
        if steady_s() - released > RELEASE_SECONDS:
            released = steady_s()
            _let_go(run)


def _let_go(run: StreamRun) -> None:
    try:
        protect.way_of(run).let_go(run)
    except WalferryError as error:
        log.warning("logs that were sent cannot be released and accumulate: %s", error)


def _target(topics: StreamTopics, name: str) -> Topic:
    topic = topics.changes[name]
    return Topic(name, topic.partitions, topic.max_message_bytes)


def _sending(run: StreamRun, topics: StreamTopics, sink: Sink, positions: StreamPositions) -> Sending:
    spec = run.spec
    left_out = [
        (item.file, item.start) for item in run.ledger.quarantine.items("released") if item.resolution == "accept"
    ]
    claims = None
    if spec.large_messages is not None:
        claims = Claims(*open_file_system(spec.large_messages, user=run.source.address.user))
    return Sending(
        Form(run.source.cluster_id(), spec.epoch, spec.bytes_as, spec.selection, spec.decoder()),
        {table: _target(topics, topic) for table, topic in run.topics.items()},
        sink,
        describe=partial(descriptor_of, run.source),
        tells_new_history=run.source.release.opens_past_closing,
        schemas={name: table.schema for name, table in positions.tables.items()},
        claims=claims,
        left_out=left_out,
    )
