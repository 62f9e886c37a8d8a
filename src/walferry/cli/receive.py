"""`walferry receive`: a source replicates to walferry as to a cluster; what comes goes to the target, or to Kafka."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walferry.amounts import amount
from walferry.cli.options import (
    AsJson,
    DryRun,
    LedgerUrl,
    ledger_if_any,
    owner,
    print_findings,
    print_json,
    print_versions,
)
from walferry.process import open_ledger

if TYPE_CHECKING:
    from walferry.ledger import Ledger
    from walferry.receive.given import AnyReceiveSpec
    from walferry.receive.receive_plan import ReceivePlan

PORT = 16040
"""same as in `run.receive_spec`, which is slow to import for `--help`"""


def receive(
    spec: Annotated[Path, typer.Argument(help="the run's YAML file: receive.example.yaml, receive-kafka.example.yaml")],
    host: Annotated[
        str | None, typer.Option(help="name by which the source's region servers reach this process  [this machine's]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="where it listens; 0: a free port")] = PORT,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Have a source replicate to walferry as to a cluster, and apply what comes to the target, or send it to Kafka.

    Any number of processes, on any machines, serve the same run if they have the same spec and the same ledger. A call
    of the source is answered once its edits are there. `walferry abort NAME` ends the run and its processes.
    """
    from walferry.receive.given import load_receive_spec, resolve_any_receive
    from walferry.receive.receive_plan import as_facts, examine, require
    from walferry.receive.start import unfinished
    from walferry.run.given_spec import environment_connection
    from walferry.run.notes.history import histories

    wanted = resolve_any_receive(load_receive_spec(spec), environment_connection).at(host, port)
    with ledger_if_any(ledger) as known:
        run = None if known is None else unfinished(known, wanted.name)
        copied = {} if known is None or run is None else histories(known.of(run.run_id))
    found = examine(wanted, {table for table, one in copied.items() if one.peer})
    if dry_run:
        if as_json:
            print_json(as_facts(found, wanted) | {"run": None if run is None else run.run_id})
        else:
            _print_plan(found, wanted)
        require(found)
        if not as_json:
            print(f"would serve {run.run_id}" if run else f"would begin the run {wanted.name}")
        return
    require(found)
    with open_ledger(ledger) as book:
        _serve(book, found, wanted, as_json)


def _print_plan(found: ReceivePlan, wanted: AnyReceiveSpec) -> None:
    if found.topics is None:
        print_versions(found)
    else:
        print(f"source: HBase {found.source_version}, cluster {found.source_cluster_id}")
        for table, topic in found.topics["topics"].items():
            count = found.topics["partitions"].get(topic)
            print(f"topic: {table} -> {topic}, {'to be created' if count is None else amount(count, 'partition')}")
        print(f"presents itself as cluster {found.target_cluster_id}")
    print_findings(found.findings, "stop")
    _print_peer(found, wanted)


def _print_peer(found: ReceivePlan, wanted: AnyReceiveSpec) -> None:
    from walferry.receive.receive_plan import add_peer_command

    if found.peer is not None:
        print(f"the source's peer {found.peer} leads here")
        return
    print("the source replicates here once it has this peer, in HBase's shell:")
    print(f"  {add_peer_command(wanted)}")
    before = "what was written before that must be copied"
    if wanted.receive.history is not None:
        before = "what was written before that is copied once the peer is there"
    elif found.topics is not None:
        before = "what is in older logs than the current ones is not sent"
    print(f"REPLICATION_SCOPE of each family must be 1 there; {before}")


def _serve(book: Ledger, found: ReceivePlan, wanted: AnyReceiveSpec, as_json: bool) -> None:
    """Serve the run until a signal or the run's end."""
    from walferry.receive.place import receive_run
    from walferry.receive.receive_plan import as_facts
    from walferry.receive.service import serve
    from walferry.receive.start import open_receive
    from walferry.receive.telling import as_line, telling
    from walferry.run.heartbeat import beating
    from walferry.run.run import RunEndedError

    def tell(came: dict[str, Any]) -> None:
        print(json.dumps(came, sort_keys=True) if as_json else as_line(came), flush=True)

    record, stop = open_receive(book, wanted, owner()), threading.Event()
    if as_json:
        print(json.dumps(as_facts(found, wanted) | {"run": record.run_id}, sort_keys=True), flush=True)
    else:
        _print_plan(found, wanted)
        print(f"{record.run_id}: serves as {wanted.host}, port {wanted.port or '(a free one)'}", flush=True)
    label = f"receive {wanted.host} {os.getpid()}"
    with receive_run(book, record) as run, beating(run.ledger, label, run.actor), _stopped_by_signals(stop):
        try:
            with telling(run.ledger, stop, tell):
                serve(run, wanted, stop)
        except RunEndedError as ended:
            print(ended, file=sys.stderr)
            return
        state = run.ledger.record.state
    how = "has stopped; the source keeps its log until a process serves again" if state == "running" else state
    print(f"{record.run_id}: {how}", file=sys.stderr)


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first SIGTERM or SIGINT sets `stop`; another one ends the process as usual."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()
        give_back()

    def give_back() -> None:
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        give_back()
