"""The identity of one run at one cluster, and the names of that cluster's services."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from walferry.errors import TransientError, WalferryError

Qop = Literal["auth", "auth-int", "auth-conf"]
"""SASL's quality of protection: only who one is, or also integrity, or also privacy of every byte"""
_HOST = "_HOST"


class AuthenticationError(WalferryError):
    """A service and this identity do not come together; facts `server`, `service_principal`, `principal`, `reason`."""


class KerberosUnavailableError(TransientError):
    """No KDC answers; facts `server`, `service_principal`, `principal`, `reason`."""


@dataclass(frozen=True)
class Kerberos:
    """A principal with a keytab or a ticket cache, and how the cluster's services are named; small and picklable."""

    principal: str | None = None
    """name@REALM; None: that of the ticket cache"""
    keytab: str | None = None
    """path of a file with the principal's key"""
    ccache: str | None = None
    """ticket cache, as KRB5CCNAME names it, which others keep up"""
    service: str | None = "hbase"
    """the primary of HBase's principals, or a whole one as in hbase-site.xml: hbase/_HOST@REALM; None where HBase asks
    for no login"""
    qop: Qop | None = None
    """the protection to insist on; None: the least that a server asks for"""
    zookeeper_service: str | None = "zookeeper"
    """the primary of ZooKeeper's principals; None where it asks for no login"""
    realms: tuple[tuple[str, str], ...] = ()
    """the ends of host names and their realms, for services whose realm krb5.conf does not say"""

    @property
    def user(self) -> str | None:
        """The principal's first part, which is the user's name at a cluster without other rules; None if the ticket
        cache has to tell."""
        return None if self.principal is None else re.split("[/@]", self.principal, maxsplit=1)[0]

    def service_principal(self, service: str, host: str) -> str:
        """The principal of a service on a host: "hbase/host@REALM", or "hbase/host" if krb5.conf knows the realm.

        As in HBase, _HOST stands for the lower-case host name (SecurityUtil.getServerPrincipal).
        """
        name, _, realm = service.partition("@")
        if "/" not in name:
            name = f"{name}/{_HOST}"
        name = name.replace(_HOST, host.lower())
        realm = realm or self._realm_of(host.lower())
        return f"{name}@{realm}" if realm else name

    def _realm_of(self, host: str) -> str:
        """The realm of the longest end that the host's name has; "" if none fits."""
        ends = {end.lower().lstrip("."): realm for end, realm in self.realms}
        fitting = [end for end in ends if f".{host}".endswith(f".{end}")]
        return ends[max(fitting, key=len)] if fitting else ""
