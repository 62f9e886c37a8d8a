"""Who walferry is to a secured cluster, how it proves that to each service, and whom it trusts by TLS.

`Kerberos` and `Tls` are made at the edge (spec or connection) and handed to every client. `sasl.py` has the exchange of
tokens that HBase's RPC, ZooKeeper and Thrift share, `tickets.py` the credentials. python-gssapi, the extra
`walferry[kerberos]`, is imported at the first use. A worker does without: `handed.py` has the tokens of its driver,
`digest.py` the exchange by which one of them logs in to HBase's RPC.
"""

from __future__ import annotations

from walferry.security.kerberos import AuthenticationError, Kerberos, KerberosUnavailableError, Qop
from walferry.security.tls import Tls

__all__ = ["AuthenticationError", "Kerberos", "KerberosUnavailableError", "Qop", "Tls"]
