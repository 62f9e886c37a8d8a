"""Set up HBase's own replication of tables without a window in which edits are lost.

Scopes are set first, and all regions have opened again. Then the peer is added, disabled: its queues keep every edit
from here on, each stamped to be replicated. The snapshot is taken after that, so an edit is in it, or in the queues, or
in both. The target's tables are cloned from it before the peer is enabled.

Every phase asks the ledger and the clusters what is there, so it can be killed and repeated. Before anything is set,
what was there is recorded; `teardown` puts it back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from typing import Any

from pyspark.sql import SparkSession

from walferry.amounts import first_of
from walferry.clock import steady_s
from walferry.errors import SidesDifferError, TransientError, UsageError, WalferryError
from walferry.ledger import Ledger, RunRecord
from walferry.ledger.ledger import CHANGEABLE, CHANGEABLE_OF_SETUP
from walferry.ledger.rows import ClusterSide
from walferry.migration.copying import copy as copying
from walferry.migration.pairs.pair_findings import differing_rows, pass_line, require_judged
from walferry.migration.pairs.pair_pass import WHOLE_EVERY_DAYS, open_pair, verify_pair
from walferry.migration.setup.put_back import made, put_back
from walferry.migration.setup.scopes import object_name
from walferry.migration.setup.setting import add_peer, enable, set_scopes
from walferry.migration.setup.setup_plan import as_facts, examine, require
from walferry.migration.setup.setups import find_setup, require_no_teardown
from walferry.migration.setup.wanted_peer import require_peer
from walferry.replay.keeping import objects
from walferry.replay.rights.lease import resource
from walferry.replication.finding import NotReplicatedError
from walferry.replication.shipped import Shipped, line, ship
from walferry.replication.spec import ResolvedReplicateSpec
from walferry.run.moved import accept_moved, accept_moved_run
from walferry.run.notes import own_pair
from walferry.run.notes.teardown import torn_down
from walferry.run.pair_spec import ResolvedPairSpec
from walferry.run.recorded_spec import setup_spec_of
from walferry.run.run import Run, RunEndedError
from walferry.run.setup_spec import ResolvedSetupSpec
from walferry.run.sides import SIDES, client_at, log_at

log = logging.getLogger(__name__)

_CLUSTERS = ("source", "target")
_MAY_CHANGE = CHANGEABLE + CHANGEABLE_OF_SETUP


class StillShippingError(TransientError):
    """A peer has not shipped all within the time that the spec gives it; fact `peer`."""


def open_setup(ledger: Ledger, spec: ResolvedSetupSpec, owner: str) -> RunRecord:
    """Open the run of a setup, or find the unfinished one, or one that is done and not torn down.

    Raises UsageError if its spec differs in what a setup keeps, or somebody has begun to tear it down, and the errors
    of `accept_moved`.
    """
    known = find_setup(ledger, spec.name)
    part = None if known is None else ledger.of(known.run_id)
    begun = part is not None and part.phases.facts("plan") is not None
    if (
        known is None
        or part is None
        or not begun
        or known.state in ("aborted", "failed")
        or torn_down(part) is not None
    ):
        return ledger.open_run(spec.name, owner, spec.as_recorded(), owner, "setup")
    require_same_setup(ledger, known, spec)
    if known.state == "done":
        return _moved(ledger, known, known.spec | {side: spec.as_recorded()[side] for side in _CLUSTERS}, owner)
    # A key that an older walferry did not record has its default, and is no other spec.
    given = {
        **known.spec,
        **{key: value for key, value in spec.as_recorded().items() if key in _MAY_CHANGE + _CLUSTERS},
    }
    accept_moved(ledger, spec.name, owner, given, owner, "setup")
    return ledger.open_run(spec.name, owner, given, owner, "setup")


def require_same_setup(ledger: Ledger, known: RunRecord, spec: ResolvedSetupSpec) -> None:
    """Raise UsageError if somebody has begun to tear a setup down, or a spec differs in what it keeps."""
    require_no_teardown(ledger.of(known.run_id))
    if differing := [key for key in changed_keys(known, spec) if key not in _CLUSTERS]:
        raise UsageError(
            f"{known.run_id} was begun with another spec: {', '.join(differing)}. Give it as it was, or put "
            f"replication back by `walferry replicate teardown {known.name}` and set it up again",
            run=known.run_id, differing=differing,
        )  # fmt: skip


def _moved(ledger: Ledger, known: RunRecord, given: dict[str, Any], actor: str) -> RunRecord:
    """A setup that is done, with other addresses of its clusters. They are recorded if they lead to the same clusters;
    otherwise who looks at them says what is wrong."""
    try:
        accept_moved_run(ledger, known, given, actor)
    except WalferryError as error:
        log.warning("other addresses are not recorded: %s", error)
    return replace(known, spec=given)


def changed_keys(run: RunRecord, spec: ResolvedSetupSpec) -> list[str]:
    """The keys of a spec that differ from those of a setup and may not change."""
    before, now = setup_spec_of(run).as_recorded(), spec.as_recorded()
    return sorted(key for key in now if key not in _MAY_CHANGE and before.get(key) != now[key])


# ------------------------------------------------------------------ the phases


def plan(run: Run) -> dict[str, Any]:
    """Make the plan and require it. A refusal ends the run as failed, so that a corrected spec can take its name."""

    def work() -> dict[str, Any]:
        found = examine(setup_spec_of(run.record), run.ledger.whole, run.log_times.keep_hours)
        for finding in found.found.findings:
            log.warning("%s: %s: %s", finding.level, finding.subject, finding.message)
        for note in found.notes:
            log.info("note: %s", note)
        require(found)
        cluster = run.target.cluster_id()
        run.ledger.leases.require_alone(resource(cluster, pair.target) for pair in run.tables)
        return as_facts(found)

    try:
        return run.once("plan", work)
    except TransientError:
        raise
    except WalferryError as error:
        run.ledger.end("failed", run.actor, str(error))
        raise


def scope(run: Run) -> dict[str, Any]:
    """Set the scopes of each source table, one change for each. Facts: tables."""
    return run.once("scope", lambda: {"tables": [set_scopes(run, pair.source) for pair in run.tables]})


def peer(run: Run) -> dict[str, Any]:
    """Add the source's peer, disabled, and roll. Facts: peer, groups."""
    return run.once("peer", lambda: add_peer(run, "source"))


def clone(run: Run, table: str) -> dict[str, Any]:
    """As `copy.clone`. With a peer back the target table is made with its scopes, which are recorded before."""
    if setup_spec_of(run.record).peer_back is None:
        return copying.clone(run, table)
    facts = next(one for one in run.done("scope")["tables"] if one["table"] == table)
    name = object_name(table, dict.fromkeys(facts["families"], "0"))
    if run.is_due("clone", table):
        run.ledger.objects.plan("target", "scope", name)
    try:
        done = copying.clone(run, table)
    except RunEndedError:  # whoever ended it has left the scopes to this process
        put_back(run)
        raise
    if any((o.cluster, o.name, o.state) == ("target", name, "planned") for o in run.ledger.objects.all()):
        made(run, "target", "scope", name)
    return done


def back(run: Run) -> dict[str, Any]:
    """Add and enable the target's peer: its tables have nothing yet that the source lacks. Facts: peer, groups."""

    def work() -> dict[str, Any]:
        if setup_spec_of(run.record).peer_back is None:
            return {"peer": None}
        return add_peer(run, "target") | enable(run, "target")

    return run.once("back", work)


def enable_source(run: Run) -> dict[str, Any]:
    """Enable the source's peer. Facts: peer."""
    return run.once("enable", lambda: enable(run, "source"))


def await_shipped(run: Run) -> dict[str, Any]:
    """Wait until each peer has shipped what was written before. Facts: shipped."""
    minutes = setup_spec_of(run.record).ship_minutes
    return run.once("ship", lambda: {"shipped": [asdict(one) for one in ship_all(run, minutes * 60)]})


def ship_all(run: Run, seconds: float, only: Collection[str] = SIDES) -> list[Shipped]:
    """Have each peer of the run, at these sides, ship what was written before now.

    Raises StillShippingError once the time is over, PeerDiffersError for one that somebody has changed, and
    NotReplicatedError for what cannot be shipped.
    """
    done: list[Shipped] = []
    for side in (one for one in sides_of(run) if one in only):
        wanted = require_peer(run, side)
        here, there = ("source", "target") if side == "source" else ("target", "source")
        asked = ResolvedReplicateSpec(source=getattr(run.spec, here), target=getattr(run.spec, there), peer=wanted.id)
        began = steady_s()
        try:
            found = ship(asked, client_at(run, side), *log_at(run, side), seconds)
        except NotReplicatedError as error:
            if steady_s() - began < seconds:
                raise
            raise StillShippingError(f"{error}. The next call goes on waiting", peer=wanted.id) from error
        require_peer(run, side)
        for one in found:
            log.info("%s", line(one))
        done += found
    return done


def sides_of(run: Run) -> Iterator[ClusterSide]:
    """The sides that have a peer of the run."""
    yield "source"
    if setup_spec_of(run.record).peer_back is not None:
        yield "target"


def verify(run: Run, spark: Callable[[], SparkSession]) -> dict[str, Any]:
    """Compare both sides by a pass over a pair, and end the run as done. Facts: of the pass, or why there is none.

    Raises SidesDifferError while rows differ: once they are repaired, the next call ends the run.
    """

    def work() -> dict[str, Any]:
        objects.release(run)  # the snapshots: tables need them no longer
        if why := why_not_compared(run):
            return {"not_compared": why}
        return _one_pass(run, spark)

    facts = run.once("verify", work)
    run.ledger.end("done", run.actor, outcome(facts))
    return facts


def why_not_compared(run: Run) -> str:
    """Why the tables cannot be compared; "" if they can."""
    spec = setup_spec_of(run.record)
    partly = [
        table for table in sorted(spec.families)
        if len(spec.families[table]) < len(run.source.describe(table).shown_families)
    ]  # fmt: skip
    return f"only some families of {first_of(partly)} are replicated" if partly else ""


def outcome(facts: dict[str, Any]) -> str:
    """What came of a setup, from the facts of its last phase."""
    if why := facts.get("not_compared"):
        return f"replication is set up; not compared: {why}"
    return f"replication is set up; both sides were equal ({facts['pair']})"


def require_own_pair(run: Run) -> None:
    """Raise UsageError if an unfinished pair has the name of the setup's own, and is another one."""
    name = setup_spec_of(run.record).pair_name
    own_pair.about_to_open(run.ledger, name)
    if (other := own_pair.foreign(run.ledger, name)) is not None:
        raise UsageError(
            f"the pair {other.run_id} is not this setup's: end it by `walferry abort {name} --reason …`, then set up "
            "again, which compares",
            run=run.run_id, pair=other.run_id,
        )  # fmt: skip


def _one_pass(run: Run, spark: Callable[[], SparkSession]) -> dict[str, Any]:
    spec = setup_spec_of(run.record)
    keys = {key: value for key, value in spec.as_recorded().items() if key in ResolvedPairSpec.model_fields}
    pair_spec = ResolvedPairSpec.model_validate(keys | {"name": spec.pair_name})
    require_own_pair(run)
    record = open_pair(run.ledger.whole, pair_spec, run.actor, WHOLE_EVERY_DAYS)
    own_pair.opened(run.ledger, record.run_id)
    with Run(run.ledger.whole, record.run_id, run.actor) as pair:
        facts = verify_pair(pair, spark)
    log.info("%s: %s", record.run_id, pass_line(facts))
    if facts["differing_rows"]:
        raise SidesDifferError(
            f"pair {record.name}: {differing_rows(facts['differing_rows'])}. `walferry report {record.name}` names "
            f"them, and `walferry repair {record.name}` makes the target's equal; then set up again, which compares "
            "again",
            run=record.run_id,
        )
    require_judged(record.name, facts)
    return {"pair": record.run_id, "pass": facts["number"], "rows": facts["rows_read"], "shipped": facts["shipped"]}
