"""After the end of a run to which a source replicates: its processes leave, and their place in ZooKeeper is removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from walferry.clock import steady_s
from walferry.errors import WalferryError
from walferry.hbase.client import HBaseClient
from walferry.ledger.rows import ClusterObject
from walferry.receive.given import recorded_receive_spec
from walferry.receive.place import AnyReceiveRun, place_of
from walferry.receive.presence import ForeignPathError, StillShownError, remove
from walferry.receive.receive_plan import peers_here
from walferry.replay.keeping.objects import named
from walferry.run.run import Run

LEAVING_S = 15.0
"""how long the processes may take to leave: each looks once a second whether the run has ended"""
LOOK_S = 1.0


@dataclass(frozen=True)
class AtSource:
    """The peers of the source that lead to a run. Each keeps the source's log once nobody receives."""

    peers: list[str] = field(default_factory=list)
    unknown: str = ""
    """why they are not known; "" if they are"""

    def warnings(self) -> list[str]:
        """What a person must do at the source."""
        found = [
            f"the source's peer {peer} leads to this run, and keeps the source's log until it is removed: "
            f"remove_peer '{peer}' in HBase's shell, at the source"
            for peer in self.peers
        ]
        if self.unknown:
            found.append(
                f"whether a peer of the source leads to this run is not known: {self.unknown}. Such a peer keeps the "
                "source's log until it is removed: look for it by list_peers in HBase's shell, at the source, then "
                "remove_peer 'ID'"
            )
        return found


@dataclass(frozen=True)
class Cleared:
    """What was removed of a run's objects, by name, and what was not."""

    removed: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    """what another run uses, with its id"""
    left: list[str] = field(default_factory=list)
    """what could not be removed now, with why"""


def look_at_source(run: AnyReceiveRun) -> AtSource:
    """Which peers lead to the run, unless the source does not say."""
    spec = recorded_receive_spec(run.record)
    try:
        with HBaseClient(run.source_address()) as source:
            return AtSource([peer.id for peer in peers_here(source, spec)])
    except WalferryError as error:
        return AtSource(unknown=str(error))


def clear(run: AnyReceiveRun, *, dry_run: bool = False) -> Cleared:
    """Remove what the processes of an ended run made in ZooKeeper, once they have left; with `dry_run`, only name it.
    Repeat it to remove what was left."""
    done = Cleared()
    for item in run.ledger.objects.left("sink"):
        name = _named(run, item)
        if user := next(_users(run, item), None):
            done.stays.append(f"{name}: run {user} receives there")
        elif dry_run:
            done.removed.append(name)
        elif why := _remove(run, item):
            done.left.append(f"{name}: {why}")
        else:
            run.ledger.objects.removed(item.cluster, "sink", item.name)
            done.removed.append(name)
    return done


def _named(run: AnyReceiveRun, item: ClusterObject) -> str:
    return named(item) if isinstance(run, Run) else f"sink {item.name} in ZooKeeper at {place_of(run).zookeeper}"


def _users(run: AnyReceiveRun, item: ClusterObject) -> Iterator[str]:
    """Other unfinished runs whose processes the source finds at the same place."""
    mine = recorded_receive_spec(run.record).cluster_key
    for run_id, other in run.ledger.objects.of_all_runs("sink"):
        if run_id == run.run_id or other.name != item.name:
            continue
        record = run.ledger.whole.run(run_id)
        if record.state == "running" and recorded_receive_spec(record).cluster_key == mine:
            yield run_id


def _remove(run: AnyReceiveRun, item: ClusterObject) -> str:
    """Remove the nodes once no process shows itself. Returns why that was not possible; "" if they are gone."""
    deadline = steady_s() + LEAVING_S
    while True:
        try:
            remove(place_of(run), item.name)
        except StillShownError as shown:
            if steady_s() < deadline:
                time.sleep(LOOK_S)
                continue
            return f"{shown}. Then call `walferry abort {run.run_id}` again"
        except ForeignPathError as foreign:
            return "" if item.state == "planned" else str(foreign)  # planned: the run's processes were refused there
        except WalferryError as error:
            return f"{error}. Once that is mended, call `walferry abort {run.run_id}` again"
        return ""
