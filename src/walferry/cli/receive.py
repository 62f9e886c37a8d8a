"""`walferry receive`: a source replicates to walferry as to a cluster; what comes is applied to the target."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    from walferry.receive.receive_plan import ReceivePlan
    from walferry.run.receive_spec import ResolvedReceiveSpec

PORT = 16040
"""same as in `run.receive_spec`, which is slow to import for `--help`"""


def receive(
    spec: Annotated[Path, typer.Argument(help="the YAML file of the run; see receive.example.yaml")],
    host: Annotated[
        str | None, typer.Option(help="name by which the source's region servers reach this process  [this machine's]")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="where it listens; 0: a free port")] = PORT,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
) -> None:
    """Have a source replicate to walferry as to a cluster, and apply what comes to the target, until it is interrupted.

    Any number of processes, on any machines, serve the same run if they have the same spec and the same ledger. A call
    of the source is answered once its edits are at the target. `walferry abort NAME` ends the run and its processes.
    """
    from walferry.receive.receive_plan import as_facts, examine, require
    from walferry.receive.start import unfinished
    from walferry.run.given_spec import environment_connection, load_receive_spec, resolve_receive

    wanted = resolve_receive(load_receive_spec(spec), environment_connection).at(host or socket.getfqdn(), port)
    if dry_run:
        with ledger_if_any(ledger) as known:
            run = None if known is None else unfinished(known, wanted.name)
        found = examine(wanted)
        if as_json:
            print_json(as_facts(found, wanted) | {"run": None if run is None else run.run_id})
        else:
            _print_plan(found, wanted)
        require(found)
        if not as_json:
            print(f"would serve {run.run_id}" if run else f"would begin the run {wanted.name}")
        return
    found = examine(wanted)
    require(found)
    with open_ledger(ledger) as book:
        _serve(book, found, wanted, as_json)


def _print_plan(found: ReceivePlan, wanted: ResolvedReceiveSpec) -> None:
    print_versions(found)
    print_findings(found.findings, "stop")
    _print_peer(found, wanted)


def _print_peer(found: ReceivePlan, wanted: ResolvedReceiveSpec) -> None:
    from walferry.receive.receive_plan import add_peer_command

    if found.peer is not None:
        print(f"the source's peer {found.peer} leads here")
        return
    print("the source replicates here once it has this peer, in HBase's shell:")
    print(f"  {add_peer_command(wanted)}")
    print("REPLICATION_SCOPE of each family must be 1 there; what was written before that must be copied")


def _serve(book: Ledger, found: ReceivePlan, wanted: ResolvedReceiveSpec, as_json: bool) -> None:
    """Serve the run until a signal or the run's end."""
    from walferry.receive.receive_plan import as_facts
    from walferry.receive.service import serve
    from walferry.receive.start import open_receive
    from walferry.receive.telling import as_line, telling
    from walferry.run.heartbeat import beating
    from walferry.run.run import Run, RunEndedError

    def tell(came: dict[str, Any]) -> None:
        print(json.dumps(came, sort_keys=True) if as_json else as_line(came), flush=True)

    record, stop = open_receive(book, wanted, owner()), threading.Event()
    if as_json:
        print(json.dumps(as_facts(found, wanted) | {"run": record.run_id}, sort_keys=True), flush=True)
    else:
        _print_plan(found, wanted)
        print(f"{record.run_id}: serves as {wanted.host}, port {wanted.port or '(a free one)'}", flush=True)
    label = f"receive {wanted.host} {os.getpid()}"
    with Run(book, record.run_id) as run, beating(run.ledger, label, run.actor), _stopped_by_signals(stop):
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
