"""Credentials for one use, from a keytab or a ticket cache, and what people are told when Kerberos refuses.

MIT Kerberos logs in with the keytab when there is no ticket, and again once half of the ticket's life is over, into a
cache in this process's memory that no other program sees. It does so only when credentials are acquired, so every
connection acquires its own: a tenth of a millisecond.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from walferry.errors import UsageError, WalferryError
from walferry.security.kerberos import AuthenticationError, Kerberos, KerberosUnavailableError

# Error codes of MIT Kerberos (krb5_err.et, krb524_err.et, kv5m_err.et), as it reports them.
_SERVICE_UNKNOWN = -1765328377
_CLIENT_UNKNOWN = -1765328378
_NO_SUCH_REALM = (-1765328230, -1765328164)
_NO_KDC = -1765328228
_UNAVAILABLE = (_NO_KDC, *_NO_SUCH_REALM, -1765328355, -1765328324)
"""may pass: also a realm whose KDCs DNS does not tell now, and a KDC that says that it cannot serve"""
_SKEW = (-1765328347, -1765328351, -1765328236)
_EXPIRED = -1765328352
_NO_CACHE = (-1765328189, -1765328243)
_WRONG_KEY = (-1765328353, -1765328360)
_NOT_IN_KEYTAB = -1765328203
_NO_COMMON_ENCRYPTION = (-1765328370, -1765328234, -1765328196)
_REVOKED = (-1765328366, -1765328361, -1765328383)
_SERVICE_REVOKED = (-1765328382, -1765328365, -1765328357)
_NO_FILE = 2
_NOT_READABLE = 13
_NOT_A_KEYTAB = (-1765328171, -1765328149)
_used: set[Kerberos] = set()


def library() -> Any:
    """python-gssapi. Raises UsageError where it is not installed."""
    try:
        import gssapi
    except ImportError as error:
        raise UsageError(
            "logins by Kerberos need `pip install 'walferry[kerberos]'`; that builds "
            "python-gssapi, for which Debian's libkrb5-dev and gcc must be installed",
            missing=str(error),
        ) from None
    return gssapi


def credentials(kerberos: Kerberos, server: str, service_principal: str) -> Any:
    """The identity's credentials (gssapi.Credentials) for one connection to `server`, which the errors name.

    Raises AuthenticationError, KerberosUnavailableError.
    """
    gss = library()
    _used.add(kerberos)
    name = gss.Name(kerberos.principal, gss.NameType.kerberos_principal) if kerberos.principal else None
    if kerberos.keytab is not None:
        store = {"client_keytab": kerberos.keytab, "ccache": memory_cache(kerberos)}
    elif kerberos.ccache is not None:
        store = {"ccache": kerberos.ccache}
    else:
        raise UsageError(f"{identity(kerberos)} has neither a keytab nor a ticket cache", principal=kerberos.principal)
    try:
        found = gss.Credentials(usage="initiate", name=name, store=store)
        if found.lifetime:
            return found
        code, reason = _EXPIRED, "the ticket has expired"
    except gss.exceptions.ExpiredCredentialsError as error:
        code, reason = _EXPIRED, _text(error)
    except gss.exceptions.GSSError as error:
        code, reason = (kerberos.keytab and keytab_refusal(kerberos)) or (_code(error), _text(error))
    raise _explained(code, reason, kerberos, server, service_principal)


def used() -> set[Kerberos]:
    """The identities for which this process has wanted credentials."""
    return set(_used)


@contextmanager
def told(kerberos: Kerberos, server: str, service_principal: str) -> Iterator[None]:
    """Turn the GSSErrors of a connection to `server` into AuthenticationError or KerberosUnavailableError."""
    try:
        yield
    except library().exceptions.GSSError as error:
        raise _explained(_code(error), _text(error), kerberos, server, service_principal) from error


def identity(kerberos: Kerberos) -> str:
    """Who it is, for messages: the principal, or the cache whose principal it is."""
    return kerberos.principal or f"the principal of the ticket cache {kerberos.ccache}"


def memory_cache(kerberos: Kerberos) -> str:
    """The cache of a keytab's tickets, in this process's memory."""
    told = hashlib.sha256(f"{kerberos.principal}\n{kerberos.keytab}".encode()).hexdigest()
    return f"MEMORY:walferry-{told[:16]}"


def _code(error: Any) -> int:
    """MIT's code in a GSSError, whose minor status is unsigned; 0 if it has none."""
    minor = int(getattr(error, "min_code", 0))
    return minor - (1 << 32) if minor >> 31 else minor


def _text(error: Exception) -> str:
    """The last sentence of a GSSError: Kerberos's own."""
    return str(error).rpartition("): ")[2] or str(error)


def keytab_refusal(kerberos: Kerberos) -> tuple[int, str] | None:
    """Why a login with the keytab fails, MIT's code and its text: GSSAPI itself only says that there is no ticket. None
    if it works."""
    import krb5

    try:
        context = krb5.init_context()
        keytab = krb5.kt_resolve(context, str(kerberos.keytab).encode())
        principal = krb5.parse_name_flags(context, str(kerberos.principal).encode())
        krb5.get_init_creds_keytab(context, principal, krb5.get_init_creds_opt_alloc(context), keytab=keytab)
    except krb5.Krb5Error as error:
        return error.err_code, str(error).removesuffix(str(error.err_code)).strip()
    return None


def _explained(code: int, reason: str, kerberos: Kerberos, server: str, service_principal: str) -> WalferryError:
    facts = {
        "server": server,
        "service_principal": service_principal,
        "principal": kerberos.principal,
        "reason": reason,
        "sent": False,
    }
    what = f"Kerberos does not let {identity(kerberos)} log in to {server} as {service_principal}"
    kind: Callable[..., WalferryError] = KerberosUnavailableError if code in _UNAVAILABLE else AuthenticationError
    return kind(f"{what}: {reason}; {advice(code, kerberos, service_principal)}", **facts)


def advice(code: int, kerberos: Kerberos, service_principal: str = "") -> str:
    """What a person can do about one of MIT's errors."""
    source = f"keytab {kerberos.keytab}" if kerberos.keytab is not None else f"ticket cache {kerberos.ccache}"
    wrong = "`webhdfs` (a host name)" if service_principal.startswith("HTTP/") else "`service` (hbase/_HOST@REALM)"
    known: list[tuple[int | tuple[int, ...], str]] = [
        (_NO_KDC, "is the KDC up, and named in krb5.conf?"),
        (_SERVICE_UNKNOWN, f"the KDC knows no {service_principal}: set {wrong} or `realms`"),
        (_CLIENT_UNKNOWN, "the KDC does not know the principal: check its name and realm"),
        (_NO_SUCH_REALM, "name the realm and its KDC in krb5.conf, or mend the DNS that should"),
        (_SKEW, "set the clocks of this machine, the server and the KDC to the same time"),
        (_EXPIRED, f"renew the {source}"),
        (_NO_CACHE, f"make a ticket in the {source} (kinit), readable for this user"),
        (_WRONG_KEY, f"the KDC has another key than the {source}: export the keytab again"),
        (_NOT_IN_KEYTAB, f"the {source} has no key of this principal: klist -k shows what it has"),
        (_NO_COMMON_ENCRYPTION, f"the KDC and the {source} share no encryption type: export the keytab again"),
        (_SERVICE_REVOKED, f"{service_principal} is locked or has expired at the KDC"),
        (_REVOKED, "the principal or its password is locked or has expired at the KDC"),
        (_NO_FILE, f"the {source} must be on this machine"),
        (_NOT_READABLE, f"let the user of this process read the {source}"),
        (_NOT_A_KEYTAB, f"the {source} is not a keytab"),
    ]
    for codes, text in known:
        if code == codes or (isinstance(codes, tuple) and code in codes):
            return text
    return f"check the {source} with klist and kinit"
