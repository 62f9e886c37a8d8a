"""What a source's own settings make of its replication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from walferry.amounts import first_of
from walferry.hbase.client import HBaseClient
from walferry.hbase.peers import PeerConfig
from walferry.hbase.server_pages import MOST_ASKED, some_settings
from walferry.replication.finding import BULK_LOADS, NO_PEER, Finding

_ON = "hbase.replication"
_LOADS = "hbase.replication.bulkload.enabled"
_LOADS_ID = "hbase.replication.cluster.id"
_CODEC = "hbase.replication.rpc.codec"
_WITH_TAGS = "CodecWithTags"


def source_findings(source: HBaseClient, peers: Sequence[PeerConfig]) -> Iterator[Finding]:
    """What the source's servers say in their settings (`/conf`), and what holds for all of its peers."""
    if not peers:
        yield NO_PEER
    found = some_settings(source)
    if not found:
        yield Finding(
            "note", "source", f"the settings of its region servers cannot be read (/conf), so {_LOADS} and others are "
            "unknown",
        )  # fmt: skip
        return
    if source.release.replication_may_be_off and any(_is(one, _ON, "false") for one in found):
        yield Finding(
            "stop", "source", f"{_ON} is false in its hbase-site.xml: it replicates nothing. Set it to true, and "
            "restart its servers one by one",
        )  # fmt: skip
    yield from _load_findings(found)
    codecs = sorted({codec for one in found if (codec := one.get(_CODEC)) and not codec.endswith(_WITH_TAGS)})
    if codecs:
        yield Finding(
            "warn", "source", f"{_CODEC} is {first_of(codecs)}: TTLs and visibility labels of single cells (tags) are "
            "not shipped",
        )  # fmt: skip
    unlogged = [(server, source.unlogged_writes(server)) for server in source.servers()[:MOST_ASKED]]
    if skipped := [f"{server.address} ({writes})" for server, writes in unlogged if writes]:
        yield Finding(
            "warn", "source", f"mutations skipped the log (SKIP_WAL) at {first_of(skipped)}: they are not replicated",
        )  # fmt: skip


def _is(settings: Mapping[str, str], name: str, value: str) -> bool:
    """As Hadoop's Configuration.getBoolean reads a setting."""
    return settings.get(name, "").strip().lower() == value


def loads_not_shipped(found: Sequence[Mapping[str, str]]) -> Finding | None:
    """What keeps bulk loads from being shipped, by the settings of the source's servers
    (ReplicationUtils.isReplicationForBulkLoadDataEnabled); None: they are."""
    if any(not _is(one, _LOADS, "true") for one in found):
        return Finding(
            "warn", BULK_LOADS, f"{_LOADS} is not true at the source: files that are loaded in bulk there do not reach "
            "the sink, and nothing tells it",
        )  # fmt: skip
    if not any(one.get(_LOADS_ID) for one in found):
        return Finding("stop", BULK_LOADS, f"{_LOADS} is true at the source, but {_LOADS_ID} is not set there")
    return None


def _load_findings(found: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """Whether bulk loads are replicated, and what HBase's own sink needs for them (HFileReplicator)."""
    if (why := loads_not_shipped(found)) is not None:
        yield why
        return
    names = {name for one in found if (name := one.get(_LOADS_ID))}
    yield Finding(
        "note", BULK_LOADS, f"the sink reads the files from the source's HDFS: each of its servers needs a folder "
        f"{first_of(sorted(names))} with the source's core-site.xml and hdfs-site.xml below its "
        "hbase.replication.conf.dir, which cannot be asked for",
    )  # fmt: skip
