"""Which name nodes a nameservice has, for access that passes WebHDFS by.

"hdfs://name" has no port: only Hadoop's configuration knows the name nodes behind the name. Each of them shows its own
at /conf (org.apache.hadoop.conf.ConfServlet), which names the others, too. Spark's workers get what their driver found.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from walferry.errors import TransientError, WalferryError
from walferry.security import Kerberos, Tls, handed
from walferry.storage.tokens import page_of

DEFAULT_PORT = 8020
"""of a name node that a URL names without one (HdfsClientConfigKeys.DFS_NAMENODE_RPC_PORT_DEFAULT)"""


@dataclass(frozen=True)
class Nameservice:
    """A name in "hdfs://name", and how its name nodes are asked; picklable."""

    name: str
    urls: tuple[str, ...]
    """the name nodes' HTTP addresses"""
    user: str
    """who asks where there is no Kerberos"""
    kerberos: Kerberos | None = None
    tls: Tls | None = None

    def name_nodes(self) -> tuple[str, ...]:
        """The host:port of each name node's RPC; a name that is no nameservice is a host.

        Raises WalferryError if no name node tells, and in a worker if its driver does not know.
        """
        with _asking:
            if self not in _known:
                if handed.mine() is not None:
                    raise WalferryError(f"its driver does not know the name nodes of {self.name}")
                _known[self] = self._asked()
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

    def _asked(self) -> tuple[str, ...]:
        failure: WalferryError | None = None
        for url in self.urls:
            try:
                page = page_of(url, self.user, self.kerberos, "/conf", {}, self.tls)
                return self._found({one["key"]: str(one["value"]) for one in page["properties"]})
            except (LookupError, TypeError):
                failure = failure or TransientError(f"{url} does not show the configuration of a name node", url=url)
            except WalferryError as error:
                failure = error
        raise failure or TransientError(f"no name node of {self.name} was given")

    def _found(self, configuration: Mapping[str, str]) -> tuple[str, ...]:
        names = configuration.get(f"dfs.ha.namenodes.{self.name}")
        if names is None:
            return (f"{self.name}:{DEFAULT_PORT}",)
        return tuple(configuration[f"dfs.namenode.rpc-address.{self.name}.{one.strip()}"] for one in names.split(","))


_known: dict[Nameservice, tuple[str, ...]] = {}
_wanted: set[Nameservice] = set()
_asking = threading.Lock()


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
    """Take over what the driver has found."""
    _known.update(found)
