"""Who walferry is to a secured cluster, how it proves that to each service, and whom it trusts by TLS.

A `Security` is made at the edge (spec, connection or options) and handed to every client. `sasl.py` has the exchange of
tokens that HBase's RPC, ZooKeeper and Thrift share, `tickets.py` the credentials. python-gssapi, the extra
`walferry[kerberos]`, is imported at the first use. A worker does without: `handed.py` has the tokens of its driver,
`digest.py` the exchange by which one of them logs in to HBase's RPC.
"""

from __future__ import annotations

from dataclasses import dataclass

from walferry.security.kerberos import AuthenticationError, Kerberos, KerberosUnavailableError, Qop
from walferry.security.tls import Tls

__all__ = ["OPEN", "AuthenticationError", "Kerberos", "KerberosUnavailableError", "Qop", "Security", "Tls"]


@dataclass(frozen=True)
class Security:
    """Who walferry is to one cluster, and how it reaches its services by TLS; small and picklable."""

    kerberos: Kerberos | None = None
    """who to be, instead of a user whom nobody checks; None: the cluster asks for no login"""
    tls: Tls | None = None
    """which services use TLS, and whom to trust; None: only https URLs do, and the machine's authorities are trusted"""

    @property
    def rpc_tls(self) -> Tls | None:
        """How HBase's RPC is reached by TLS; None without TLS."""
        return self.tls if self.tls is not None and self.tls.rpc else None

    @property
    def zookeeper_tls(self) -> Tls | None:
        """How ZooKeeper is reached by TLS; None without TLS."""
        return self.tls if self.tls is not None and self.tls.zookeeper else None


OPEN = Security()
"""of a cluster that asks for no login"""
