"""Which name nodes a nameservice has, for access that passes WebHDFS by.

"hdfs://name" has no port: only Hadoop's configuration knows the name nodes behind the name. The operator may have given
one (HADOOP_CONF_DIR). Else each name node shows its own at /conf (org.apache.hadoop.conf.ConfServlet), which names the
others, too. Spark's workers get what their driver found, and ask nobody.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from walferry.errors import TransientError, WalferryError
from walferry.security import OPEN, Security
from walferry.storage.tokens import REST_SECONDS, settings_of

DEFAULT_PORT = 8020
"""of a name node that a URL names without one (HdfsClientConfigKeys.DFS_NAMENODE_RPC_PORT_DEFAULT)"""


@dataclass(frozen=True)
class Nameservice:
    """A name in "hdfs://name", and how its name nodes are asked; picklable."""

    name: str
    urls: tuple[str, ...]
    """the name nodes' HTTP addresses"""
    user: str = field(compare=False)
    """who asks where there is no Kerberos; Spark's workers may run as another user than their driver"""
    security: Security = OPEN

    def name_nodes(self) -> tuple[str, ...]:
        """The host:port of each name node's RPC; a name that is no nameservice is a host.

        Raises WalferryError if no name node tells, for REST_SECONDS without asking again; in a worker if its driver
        does not know.
        """
        found = _known.get(self)
        if found is not None:
            return found
        with _asking:
            if self not in _known:
                _known[self] = self._configured() or self._shown()
            return _known[self]

    @property
    def alias(self) -> str:
        """A name for `hdfs-native` that no other cluster's nameservice has: two clusters may both be "nameservice1"."""
        return f"{self.name}-{hashlib.sha256(';'.join(self.urls).encode()).hexdigest()[:8]}"

    def settings(self, first: int = 0) -> dict[str, str]:
        """Hadoop's keys that define the nameservice by its alias, beginning with one of its name nodes.

        Raises the errors of `name_nodes`.
        """
        found = self.name_nodes()
        addresses = {f"nn{number}": address for number, address in enumerate((*found[first:], *found[:first]))}
        return {
            "dfs.nameservices": self.alias,
            f"dfs.ha.namenodes.{self.alias}": ",".join(addresses),
            **{f"dfs.namenode.rpc-address.{self.alias}.{name}": address for name, address in addresses.items()},
        }

    def _configured(self) -> tuple[str, ...]:
        """What the operator's own configuration says; nothing if it has no such nameservice."""
        folder = hadoop_folder()
        if folder is None:
            return ()
        configuration: dict[str, str] = {}
        for name in ("core-site.xml", "hdfs-site.xml"):
            try:
                for one in ElementTree.parse(folder / name).iter("property"):
                    configuration[one.findtext("name", "").strip()] = one.findtext("value", "").strip()
            except (OSError, ElementTree.ParseError):
                continue
        try:
            return self._found(configuration)
        except LookupError:
            return ()

    def _shown(self) -> tuple[str, ...]:
        """What the first of the name nodes says that shows its configuration."""
        if _learned:
            raise WalferryError(f"its driver does not know the name nodes of {self.name}")
        until, failure = _silent.get(self, (0.0, WalferryError("")))
        if time.monotonic() < until:
            raise failure
        try:
            return self._asked()
        except WalferryError as error:
            _silent[self] = time.monotonic() + REST_SECONDS, error
            raise

    def _asked(self) -> tuple[str, ...]:
        failure: WalferryError | None = None
        for url in self.urls:
            try:
                return self._found(settings_of(url, self.user, self.security)) or (f"{self.name}:{DEFAULT_PORT}",)
            except LookupError:
                failure = failure or TransientError(f"{url} does not show the configuration of a name node", url=url)
            except WalferryError as error:
                failure = error
        raise failure or TransientError(f"no name node of {self.name} was given")

    def _found(self, configuration: Mapping[str, str]) -> tuple[str, ...]:
        """Nothing if the name is that of no nameservice; raises LookupError if an address is missing, or has a variable
        in it: a name node's page shows its value."""
        address, names = f"dfs.namenode.rpc-address.{self.name}", configuration.get(f"dfs.ha.namenodes.{self.name}")
        if names is None:  # a nameservice may have only one name node
            keys = [address] if address in configuration else []
        else:
            keys = [f"{address}.{one.strip()}" for one in names.split(",")]
        found = tuple(configuration[key] for key in keys)
        if any("${" in one for one in (names or "", *found)):
            raise LookupError
        return found


_known: dict[Nameservice, tuple[str, ...]] = {}
_silent: dict[Nameservice, tuple[float, WalferryError]] = {}
"""until when those are not asked again that did not tell, and why"""
_wanted: set[Nameservice] = set()
_asking = threading.Lock()
_learned: list[bool] = []
"""not empty in a worker"""


def hadoop_folder() -> Path | None:
    """The folder of the operator's configuration of Hadoop's clients, where `hdfs-native` looks for it, too."""
    folder, home = os.environ.get("HADOOP_CONF_DIR"), os.environ.get("HADOOP_HOME")
    if folder is None and home is not None:
        return Path(home, "etc", "hadoop")
    return None if folder is None else Path(folder)


def want(service: Nameservice) -> None:
    """Have `known` tell workers of a nameservice, too."""
    _wanted.add(service)


def known() -> dict[Nameservice, tuple[str, ...]]:
    """The name nodes of each nameservice that this process, a driver, has a client for, as far as they tell."""
    for service in list(_wanted):
        try:
            service.name_nodes()
        except WalferryError:
            continue  # the client says it, and uses WebHDFS
    return dict(_known)


def learn(found: Mapping[Nameservice, tuple[str, ...]]) -> None:
    """Take over what the driver has found. From now on this process is a worker, and asks no name node."""
    _known.update(found)
    _learned[:] = [True]


def forget(service: Nameservice) -> None:
    """Have the next `name_nodes` look for them anew, except in a worker."""
    if not _learned:
        _known.pop(service, None)
