"""The keys `security` and `tls` of a cluster in a spec, the extras of a connection that have them, and such options."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from walferry.errors import UsageError
from walferry.security import Security
from walferry.security.kerberos import Kerberos, Qop
from walferry.security.tls import Tls

_PART = r"[^@/\s]+"
_PRINCIPAL = re.compile(rf"{_PART}(/{_PART})?@{_PART}")
_SERVICE = re.compile(rf"{_PART}(/{_PART})?(@{_PART})?")
_OF_HBASE = {"authentication": "auth", "integrity": "auth-int", "privacy": "auth-conf"}
"""hbase.rpc.protection, and SASL's name for it"""
NO_LOGIN = "none"
_PATH = re.compile(r"/[^\0\n]{1,1000}")


def _mapping(given: Any) -> Any:
    """A form has only text."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError:
        raise ValueError('give a mapping, {"end of host names": "REALM"}') from None


class KerberosKeys(BaseModel):
    """Who walferry is at one cluster. Source and target may have different realms, which krb5.conf must name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    principal: str | None = Field(default=None, description="name@REALM; default: that of the ticket cache")
    keytab: str | None = Field(default=None, description="path of a keytab with the principal's key")
    ccache: str | None = Field(
        default=None, description="ticket cache, as KRB5CCNAME names it, which something else renews"
    )
    service: str = Field(
        default="hbase",
        description=f"the principals of HBase's servers: their first part, or hbase/_HOST@REALM; {NO_LOGIN}: they ask "
        "for no login",
    )
    qop: Annotated[Qop | None, BeforeValidator(lambda given: _OF_HBASE.get(given, given))] = Field(
        default=None, description="auth, auth-int or auth-conf; default: the least that a server asks for"
    )
    zookeeper_service: str = Field(
        default="zookeeper", description=f"first part of ZooKeeper's principals; {NO_LOGIN}: it asks for no login"
    )
    realms: Annotated[dict[str, str], BeforeValidator(_mapping)] = Field(
        default={}, description="ends of host names and their realms, where krb5.conf does not name them"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_this_process_ticket_cache(cls, given: Any) -> Any:
        """The run's other processes use the same one: the run's record has it."""
        known = os.environ.get("KRB5CCNAME")
        if not isinstance(given, Mapping) or given.get("keytab") or given.get("ccache") or not known:
            return given
        return {**given, "ccache": known}

    @field_validator("principal")
    @classmethod
    def _is_a_principal(cls, principal: str | None) -> str | None:
        if principal is not None and not _PRINCIPAL.fullmatch(principal):
            raise ValueError("give name@REALM or name/host@REALM")
        return principal

    @field_validator("keytab")
    @classmethod
    def _is_a_path(cls, keytab: str | None) -> str | None:
        if keytab is not None and not _PATH.fullmatch(keytab):
            raise ValueError("give the whole path of a keytab, never its content")
        return keytab

    @field_validator("service")
    @classmethod
    def _names_a_service(cls, service: str) -> str:
        if not _SERVICE.fullmatch(service):
            raise ValueError("give hbase, or hbase/_HOST@REALM as in hbase-site.xml")
        return service

    @model_validator(mode="after")
    def _has_one_source(self) -> KerberosKeys:
        if self.keytab is not None and self.ccache is not None:
            raise ValueError("give keytab or ccache, not both")
        if self.keytab is None and self.ccache is None:
            raise ValueError("give keytab or ccache, or set KRB5CCNAME")
        if self.keytab is not None and self.principal is None:
            raise ValueError("principal: say whose key of the keytab is to be used")
        if self.service == NO_LOGIN and self.principal is None:
            raise ValueError("principal: an HBase that asks for no login is told the name")
        return self

    def kerberos(self) -> Kerberos:
        """The identity, for the clients."""
        keys = self.model_dump(exclude={"realms"})
        for service in ("service", "zookeeper_service"):
            keys[service] = None if keys[service] == NO_LOGIN else keys[service]
        return Kerberos(**keys, realms=tuple(sorted(self.realms.items())))


class TlsKeys(BaseModel):
    """Which services of one cluster are reached by TLS, and with which files. WebHDFS is if its URL is https."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca: str | None = Field(
        default=None, description="path of a PEM file with the authorities to trust; default: the machine's"
    )
    certificate: str | None = Field(default=None, description="path of a PEM file with the client's certificate")
    key: str | None = Field(default=None, description="path of a PEM file with its private key, without a password")
    rpc: bool = Field(default=False, description="HBase's RPC uses TLS")
    zookeeper: bool = Field(default=False, description="ZooKeeper uses TLS; `zookeeper` names its secure ports")

    @field_validator("ca", "certificate", "key")
    @classmethod
    def _is_a_path(cls, path: str | None) -> str | None:
        if path is not None and not _PATH.fullmatch(path):
            raise ValueError("give the whole path of a PEM file, never its content")
        return path

    @model_validator(mode="after")
    def _has_both(self) -> TlsKeys:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("give certificate and key together")
        return self

    def tls(self) -> Tls:
        """The same, for the clients."""
        return Tls(**self.model_dump())


_IDENTITY = ("principal", "keytab", "ccache")
_FILES = ("tls_ca", "tls_certificate", "tls_key")
SECURITY_OPTIONS = (*_IDENTITY, *_FILES)
"""names of options that are enough for HDFS; a connection's extras have the same"""
_Keys = TypeVar("_Keys", KerberosKeys, TlsKeys)


def security_of(
    origin: str, given: Mapping[str, str | None], urls: Iterable[str | None], spelled: Callable[[str], str] = str
) -> Security:
    """What options with the names SECURITY_OPTIONS say of an HDFS; `urls` are what else was given of it: paths, and
    addresses of name nodes. Raises UsageError with `origin` and the option, as it is `spelled`."""

    def refused(names: list[str], why: str) -> UsageError:
        return UsageError(f"{origin}{' and '.join(map(spelled, names))}: {why}", options=tuple(names))

    def checked(keys: type[_Keys], options: tuple[str, ...], prefix: str = "") -> _Keys | None:
        found = {name.removeprefix(prefix): given[name] for name in options if given.get(name)}
        try:
            return keys.model_validate(found) if found else None
        except ValidationError as error:
            first = error.errors()[0]
            names = [f"{prefix}{name}" for name in first["loc"][:1] or sorted(found)]
            raise refused(names, first["msg"].removeprefix("Value error, ")) from None

    kerberos, tls = checked(KerberosKeys, _IDENTITY), checked(TlsKeys, _FILES, "tls_")
    if tls is not None and not any(url.startswith("swebhdfs://") or "https://" in url for url in urls if url):
        raise refused(
            [name for name in _FILES if given.get(name)],
            "no URL is https, so nothing uses it: write swebhdfs://host:port/… for a path, https://host:port for the "
            "address of a name node",
        )
    return Security(None if kerberos is None else kerberos.kerberos(), None if tls is None else tls.tls())
