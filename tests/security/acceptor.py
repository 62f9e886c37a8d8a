"""The server's half of a login, beside the code under test: python-gssapi with the server's key."""

from __future__ import annotations

from walferry.embedded.kdc import Kdc


class Acceptor:
    """The server's half of the exchange, with its offer of security layers (RFC 4752)."""

    def __init__(self, kdc: Kdc, offered: int) -> None:
        import gssapi

        name = gssapi.Name(f"hbase/localhost@{kdc.realm}", gssapi.NameType.kerberos_principal)
        store = {"keytab": str(kdc.keytab_path(["hbase/localhost"]))}
        creds = gssapi.Credentials(usage="accept", name=name, store=store)
        self.context = gssapi.SecurityContext(creds=creds, usage="accept")
        self._offer = bytes([offered, 1, 0, 0])
        self.chosen = b""

    def answer(self, token: bytes) -> bytes:
        if not self.context.complete:
            answer: bytes | None = self.context.step(token)
            return answer or b""
        if not token:
            offer: bytes = self.context.wrap(self._offer, False).message
            return offer
        self.chosen = self.context.unwrap(token).message
        return b""
