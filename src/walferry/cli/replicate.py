"""`walferry replicate`: HBase's own replication, planned and watched."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walferry.cli.options import AsJson, DryRun, print_json, tracked

if TYPE_CHECKING:
    from walferry.replication.canary import Flown
    from walferry.replication.plan import ReplicationPlan
    from walferry.replication.spec import ResolvedReplicateSpec

ReplicateFile = Annotated[Path, typer.Argument(help="the YAML file of the replication; see replicate.example.yaml")]


def plan(
    spec: ReplicateFile,
    canary: Annotated[
        bool, typer.Option("--canary", help="also write a row at each region server, which must arrive at the sink")
    ] = False,
    wait: Annotated[float, typer.Option(min=1, help="with --canary: seconds that the last row may take")] = 60,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Say what stops or changes HBase's own replication of tables. Changes nothing but, with --canary, a table
    walferry_canary_… of its own."""
    from walferry.replication.canary import fly_all, require_arrived
    from walferry.replication.plan import make_plan, require, stopped_peers

    wanted = resolved(spec)
    found = make_plan(wanted)
    if not as_json:
        _show(found)
    flown = []
    if canary:
        stopped = stopped_peers(found)
        for one in fly_all(wanted, stopped, wait, dry_run=dry_run, tracked=lambda servers: tracked(servers, "canary")):
            flown.append(one)
            if not as_json:
                _show_flown(one, wait)
    if as_json:
        print_json(asdict(found) | ({"canary": [asdict(one) for one in flown]} if canary else {}))
    require(found)
    if not dry_run:
        require_arrived(flown, wait)


def status(
    spec: ReplicateFile,
    seconds: Annotated[float, typer.Option(min=0, help="look twice, so many seconds apart: how fast queues move")] = 0,
    as_json: AsJson = False,
) -> None:
    """Say of each replication peer what it has not shipped, how old that is and, if it is stuck, why: the table, the
    row and the place in the log. Changes nothing."""
    from walferry.replication.status import look
    from walferry.replication.status_lines import lines

    found = look(resolved(spec), seconds)
    if as_json:
        print_json(asdict(found))
    else:
        print("\n".join(lines(found)))


def shipped(
    spec: ReplicateFile,
    wait: Annotated[float, typer.Option(min=1, help="seconds that it may take")] = 360,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Prove that each replication peer has shipped all that was written before now: roll the logs of the source's
    region servers, and wait until the older ones have left its queues. Changes nothing else."""
    from walferry.replication.shipped import line, ship_all

    done = ship_all(resolved(spec), wait, dry_run=dry_run, told=lambda text: print(text, file=sys.stderr))
    if as_json:
        print_json([asdict(one) for one in done])
    else:
        print("\n".join(map(line, done)))


def resolved(spec: Path) -> ResolvedReplicateSpec:
    from walferry.replication.spec import load_replicate_spec, resolve_replicate
    from walferry.run.given_spec import environment_connection

    return resolve_replicate(load_replicate_spec(spec), environment_connection)


def _show(found: ReplicationPlan) -> None:
    from walferry.replication.finding import BULK_LOADS

    print(f"source: HBase {found.source_version}, cluster {found.source_cluster_id}")
    for peer in found.peers:
        state = "enabled" if peer.enabled else "disabled"
        sink = f"HBase {peer.version}, cluster {peer.cluster_id}" if peer.version else "not reached"
        serial = ", SERIAL" if peer.serial else ""
        print(f"peer {peer.id}: {state}{serial}, to {peer.leads_to} ({sink}), replicates {peer.replicates}")
    for table, families in found.tables.items():
        peers = {family: ", ".join(ids) or "no peer" for family, ids in families.items()}
        print(f"{table}: {'; '.join(f'{family} by {ids}' for family, ids in peers.items())}")
    for finding in sorted(found.findings, key=lambda one: ("note", "warn", "stop").index(one.level)):
        print(f"{finding.level}: {finding.subject}: {finding.message}")
    if found.better_replayed:
        print(f"`walferry start` suits these tables better, since {'; '.join(found.better_replayed)}")
    else:
        hidden = any(one.subject == BULK_LOADS and one.level != "note" for one in found.findings)
        stops = any(one.level == "stop" for one in found.findings)
        print(
            f"{'once nothing stops it, ' if stops else ''}HBase's own replication suits these tables"
            f"{', as long as nothing is loaded in bulk' if hidden else ''}"
        )


def _show_flown(flown: Flown, wait: float) -> None:
    if flown.kept_back is not None:
        print(f"canary: {flown.kept_back}")
    for row in flown.arrivals:
        if row.why is not None:
            print(f"canary: peer {flown.peer}: no row could be written at {row.server}: {row.why}")
            continue
        when = f"arrived after {row.seconds:.1f} s" if row.seconds is not None else f"has not arrived in {wait:g} s"
        print(f"canary: peer {flown.peer}: the row written at {row.server} {when}")
    if flown.others and flown.arrivals:
        others = ", ".join(flown.others)
        print(
            f"canary: unless {others} lead elsewhere, it may have come by them: of peer {flown.peer} it proves nothing"
        )
