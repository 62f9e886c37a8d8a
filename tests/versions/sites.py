"""Settings of sources of the newest version whose logs are laid out or written otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from walferry.embedded.cluster import HOST, MiniCluster

STORE = Path(__file__).parents[1] / "fixtures" / "wal" / "keys.jceks"
STORE_URI = f"jceks://{STORE}?password=fixture"
SPREAD, ENCRYPTED = "multiwal", "encrypted"


def _spread(cluster: MiniCluster) -> dict[str, str]:
    """Several WALs per server, apart from the root folder, archived by server, with dictionaries and packed values."""
    return {
        # A table may have a smaller MAX_FILESIZE than the target's master accepts.
        "hbase.hregion.max.filesize.limit": "1000",
        "hbase.wal.provider": "multiwal",
        "hbase.wal.regiongrouping.numgroups": "3",
        "hbase.wal.dir": f"hdfs://{HOST}:{cluster.ports.namenode}/wal",
        "hbase.separate.oldlogdir.by.regionserver": "true",
        "hbase.regionserver.wal.enablecompression": "true",
        "hbase.regionserver.wal.tags.enablecompression": "true",
        "hbase.regionserver.wal.value.enablecompression": "true",
        "hbase.regionserver.wal.value.compression.type": "gz",
    }


def _encrypted(cluster: MiniCluster) -> dict[str, str]:
    """Encrypted WALs; HBase then compresses nothing in them."""
    return {
        "hbase.crypto.keyprovider": "org.apache.hadoop.hbase.io.crypto.KeyStoreKeyProvider",
        "hbase.crypto.keyprovider.parameters": STORE_URI,
        "hbase.crypto.master.key.name": "hbase",
        "hbase.regionserver.wal.encryption": "true",
    }


SITES: Mapping[str, Callable[[MiniCluster], dict[str, str]]] = {SPREAD: _spread, ENCRYPTED: _encrypted}
"""by the name of the tests' parameter"""
