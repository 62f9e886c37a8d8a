"""A real Kerberos KDC (MIT's) on a free port of 127.0.0.1, with its database in a folder of its own; needs no root.

    with Kdc.start(Path("somewhere")) as kdc:
        keytab = kdc.keytab(["ferry"])

Processes that log in find it by its krb5.conf: `KRB5_CONFIG=kdc.config`, in Java `-Djava.security.krb5.conf`.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from walferry.embedded import processes
from walferry.embedded.processes import ServerProcess, Servers
from walferry.errors import WalferryError

REALM = "EXAMPLE.COM"
PACKAGES = "Debian: apt install krb5-kdc krb5-admin-server krb5-user"
HOST = "localhost"
"""the host in the names of all services: a name, since tickets are not for addresses"""
BOOT_DEADLINE_S = 20.0
_ADMINISTRATION = "/usr/sbin"
"""where Debian has the programs; not in every user's PATH"""
_KDC_CONF = """\
[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {realm} = {{
        database_name = {folder}/principals
        key_stash_file = {folder}/stash
        acl_file = {folder}/acl
        max_life = 1d
        max_renewable_life = 7d
    }}
[logging]
    kdc = STDERR
"""


@dataclass
class Kdc(Servers):
    """The KDC of `realm` in `folder`. It can be stopped and booted again, on the same port and with all principals."""

    folder: Path
    port: int
    realm: str = REALM
    server: ServerProcess | None = None

    @classmethod
    def start(cls, folder: Path, realm: str = REALM) -> Kdc:
        """Boot a KDC and return when it answers. Raises WalferryError if MIT's programs are not installed."""
        kdc = cls.lay_out(folder, realm)
        kdc.boot()
        return kdc

    @classmethod
    def lay_out(cls, folder: Path, realm: str = REALM) -> Kdc:
        """Choose a port without starting anything."""
        (port,) = processes.free_ports(1)
        return cls(folder.absolute(), port, realm)

    @property
    def config(self) -> Path:
        """The krb5.conf of this realm alone."""
        return self.folder / "krb5.conf"

    def boot(self) -> None:
        """Start it, with a new database unless the folder has one, and wait until it answers."""
        command = [_program("krb5kdc"), "-n", "-P", str(self.folder / "pid")]
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = _KDC_CONF.format(port=self.port, realm=self.realm, folder=self.folder)
        (self.folder / "kdc.conf").write_text(text)
        self.config.write_text(krb5_conf(self))
        if not (self.folder / "principals").exists():
            self._run([_program("kdb5_util"), "create", "-s", "-r", self.realm, "-P", secrets.token_urlsafe()])
        log = self.folder / "logs" / "kdc.log"
        self.server = processes.start("kdc", command, log, folder=self.folder, environment=self._variables())
        self.server.await_line("commencing operation", time.monotonic() + BOOT_DEADLINE_S)

    def stop(self) -> None:
        """End it; principals and keytabs stay. A second call does nothing."""
        server, self.server = self.server, None
        if server is not None:
            processes.stop([server])

    def principal(self, name: str, max_life: timedelta | None = None) -> str:
        """Add a principal with a random key, unless there is one, and return its full name.

        `name` is without realm, "ferry" or "hbase/localhost"; `max_life` is that of its tickets, by default a day. Give
        servers no less: they log in again when they see fit, and fail while they have none.
        """
        if name not in self.admin("list_principals", name).replace(f"@{self.realm}", "").split():
            self.admin("add_principal", "-randkey", name)
        if max_life is not None:
            self.admin("modify_principal", "-maxlife", f"{int(max_life.total_seconds())}s", name)
        return f"{name}@{self.realm}"

    def keytab(self, names: Sequence[str]) -> Path:
        """Write a keytab (mode 0600) with the keys of these principals, which are added unless there; return its path.

        Keys do not change by this, so other keytabs stay valid.
        """
        path = self.keytab_path(names)
        path.parent.mkdir(exist_ok=True)
        for name in names:
            self.principal(name)
        fresh = _beside(path)
        self.admin("ktadd", "-norandkey", "-k", str(fresh), *names)
        fresh.chmod(0o600)
        fresh.replace(path)
        return path

    def keytab_path(self, names: Sequence[str]) -> Path:
        """Where `keytab` writes that of these principals."""
        return self.folder / "keytabs" / f"{'+'.join(name.replace('/', '.') for name in names)}.keytab"

    def ticket(self, name: str) -> Path:
        """A ticket cache (mode 0600) with a new ticket of the principal, for programs that know no keytabs."""
        cache = self.folder / "tickets" / name.replace("/", ".")
        cache.parent.mkdir(exist_ok=True)
        keytab = self.keytab([name])
        fresh = _beside(cache)
        self._run([_program("kinit"), "-c", f"FILE:{fresh}", "-k", "-t", str(keytab), f"{name}@{self.realm}"])
        fresh.replace(cache)
        return cache

    def admin(self, *query: str) -> str:
        """Run a query of kadmin.local, such as `change_password -randkey ferry`, and return what it prints."""
        return self._run([_program("kadmin.local"), "-r", self.realm, *query])

    def _run(self, command: Sequence[str]) -> str:
        environment = processes.variables(self._variables())
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if answer.returncode != 0:
            said = (answer.stderr or answer.stdout).strip()
            raise WalferryError(f"{Path(command[0]).name} of the KDC in {self.folder} failed: {said}")
        return answer.stdout

    def _variables(self) -> dict[str, str]:
        return {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}


def krb5_conf(*kdcs: Kdc) -> str:
    """The text of a krb5.conf that knows the realms of all these KDCs; the first is that of names without one.

    Nothing is looked up in DNS, and host names are taken as they are given.
    """
    realms = "".join(f"    {kdc.realm} = {{\n        kdc = 127.0.0.1:{kdc.port}\n    }}\n" for kdc in kdcs)
    return (
        f"[libdefaults]\n    default_realm = {kdcs[0].realm}\n"
        "    dns_lookup_kdc = false\n    dns_lookup_realm = false\n"
        "    dns_canonicalize_hostname = false\n    rdns = false\n"
        "    udp_preference_limit = 1\n"  # TCP only
        f"[realms]\n{realms}[domain_realm]\n    {HOST} = {kdcs[0].realm}\n"
    )


def missing_programs() -> list[str]:
    """What a KDC needs and this machine does not have; empty if it can be booted."""
    programs = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
    return [name for name in programs if _found(name) is None]


def _beside(path: Path) -> Path:
    """A new file's path. It replaces `path` when it is complete, since others may be reading that one."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}")


def _program(name: str) -> str:
    found = _found(name)
    if found is None:
        raise WalferryError(f"no KDC can be booted without {name}: install MIT Kerberos ({PACKAGES})", program=name)
    return found


def _found(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_ADMINISTRATION)
