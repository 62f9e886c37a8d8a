"""What each version of HBase can do, and how: one table, and the only place where a version decides anything.

If versions differ in how they do something, each way is a module, and the modules have the same functions: `peers`,
`table_states` and others choose by the client's `release`. All versions in the table have a ZooKeeper registry,
`RollWALWriter`, FLUSH snapshots and replication queues in ZooKeeper, unless the table says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum


class By(Enum):
    """Who answers a request: the master or ZooKeeper."""

    MASTER = "master"
    ZOOKEEPER = "ZooKeeper"


@dataclass(frozen=True)
class Release:
    """What a minor version can do; `since` is the first minor version that can do exactly this."""

    since: tuple[int, int]
    peers: By
    """who adds, lists and removes replication peers (HBASE-11392)"""
    table_states: By
    """who knows whether a table is enabled (ZKTableStateManager, until HBASE-7767)"""
    changes_are_procedures: bool
    """whether the answer to each change names a procedure to wait for (else changes of a schema and restores are
    polled): in 1.x answers to create, delete, enable and disable do; those to ModifyTable and RestoreSnapshot
    (HBASE-15521) do not"""
    counts_writes: bool
    """whether a region server reports how many write requests each of its regions had (GetRegionLoad, HBASE-16169)"""
    tells_rights: bool
    """whether the master reports a user's permissions (HasUserPermissions, HBASE-22117)"""
    opens_past_closing: bool
    """whether daughter, merged and READONLY regions open with a higher number than the closings before them
    (HBASE-20066); see lineage"""
    switches_peers: bool
    """whether peer modification can be switched off (peer_modification_switch, HBASE-27783)"""
    has_endpoint: bool = True
    """whether its servers have VerifyWALEntriesReplicationEndpoint (HBASE-21838: 1.5.0 and 2.2.0, not 2.0 and 2.1). A
    server without that class cannot restart while a peer names the class"""
    replication_may_be_off: bool = False
    """whether `hbase.replication` may be off (until HBASE-16040): the cluster then accepts no peer"""
    queues: By = By.ZOOKEEPER
    """where replication queues are (since 3.0 in a table, HBASE-27109; walferry cannot read that)"""
    skips_numbers: bool = False
    """whether increments, appends and checks can use up sequence numbers without an entry in the log (see
    `replay.log.numbering`)"""
    drops_versions: bool = False
    """whether an increment or an append may drop older versions in memory that a delete of the newest would show
    (MemStore.upsert); 2.5 counts as 2.2"""
    loads_with_kerberos: bool = True
    """whether region servers with Kerberos take HFiles from who is not HBase's own user without a coprocessor of their
    own (SecureBulkLoadEndpoint, until HBASE-13701)"""
    tried: bool = False
    """whether walferry's tests run on exactly this minor version"""
    tried_as_target: bool = False
    """whether the tests migrate to it, too"""

    @property
    def name(self) -> str:
        """ "2.2" """
        return f"{self.since[0]}.{self.since[1]}"

    @property
    def description(self) -> str:
        """The main differences between versions, for people."""
        return (
            f"peers and states of tables by {self.peers.value}, "
            f"changes {'as procedures' if self.changes_are_procedures else 'without procedures'}, "
            f"replication queues in {'ZooKeeper' if self.queues is By.ZOOKEEPER else 'a table'}"
        )


RELEASES = (
    # since  peers, table states, procedures, counts, rights, openings, switch
    # Read from the protocols (Master.proto, Admin.proto) and classes of each branch.
    Release(
        (1, 4), By.ZOOKEEPER, By.ZOOKEEPER, False, False, False, False, False,
        has_endpoint=False, replication_may_be_off=True, skips_numbers=True, drops_versions=True,
        loads_with_kerberos=False,
    ),
    Release(
        (1, 5), By.ZOOKEEPER, By.ZOOKEEPER, False, False, False, False, False,
        replication_may_be_off=True, skips_numbers=True, drops_versions=True, loads_with_kerberos=False,
    ),
    Release((2, 0), By.MASTER, By.MASTER, True, True, False, True, False, has_endpoint=False, drops_versions=True),
    Release((2, 2), By.MASTER, By.MASTER, True, True, True, True, False, drops_versions=True),
    Release((2, 6), By.MASTER, By.MASTER, True, True, True, True, True),
    Release((3, 0), By.MASTER, By.MASTER, True, True, True, True, True, queues=By.MASTER),
)  # fmt: skip
FAMILY_VALUES: Mapping[tuple[str, str], tuple[tuple[int, int], tuple[int, int] | None]] = {
    ("DATA_BLOCK_ENCODING", "PREFIX_TREE"): ((1, 4), (2, 0)),  # removed by HBASE-19179
    ("BLOOMFILTER", "ROWPREFIX_FIXED_LENGTH"): ((2, 2), None),  # HBASE-20636
    ("INDEX_BLOCK_ENCODING", "PREFIX_TREE"): ((2, 6), None),  # HBASE-27314, HBASE-27329; 2.5.0 lacks it
}
"""attribute values of a family that only some versions know: the first row of the table that knows the value, and the
first later row that no longer does. Not every master checks these values. With an unknown one, regions do not open
(seen on 1.7.2, 2.2.3 and 2.6.3) or cannot read their files"""
TRIED = {(1, 7), (2, 2), (2, 5), (2, 6)}
"""the minor versions that the tests migrate from"""
TRIED_AS_TARGETS = {(1, 7), (2, 2), (2, 6)}
"""the minor versions that the tests migrate to"""


def knows(release: Release, attribute: str, value: str) -> bool:
    """Whether region servers can open a family with this value, according to FAMILY_VALUES."""
    since, until = FAMILY_VALUES.get((attribute, value), ((0, 0), None))
    return since <= release.since and (until is None or release.since < until)


def release_of(version: str) -> Release:
    """What a version ("2.6.3-hadoop3", "1.2.0-cdh5.16.2") can do: the newest row of the table up to that version.

    A version older than the first row counts as the first row, one without a number as 2.6.
    """
    number = re.match(r"(\d+)\.(\d+)", version)
    minor = (int(number[1]), int(number[2])) if number else (2, 6)
    known = [release for release in RELEASES if release.since <= minor] or [RELEASES[0]]
    # A vendor's build differs from Apache's version of the same number.
    apache = re.fullmatch(r"\d+\.\d+\.\d+(-hadoop[23])?", version)
    tried, as_target = (apache is not None and minor in minors for minors in (TRIED, TRIED_AS_TARGETS))
    return replace(known[-1], tried=tried, tried_as_target=as_target)
