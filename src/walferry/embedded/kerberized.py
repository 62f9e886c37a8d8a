"""What makes a MiniCluster a secured one: settings, keys, and flags of its servers' JVMs; and logging in to it.

All services are on the host `localhost`: HBase's principal is "hbase/localhost@REALM", or has another primary; HDFS,
ZooKeeper and HTTP (SPNEGO of WebHDFS and of the region servers' pages) have their own. Data nodes use unprivileged
ports and SASL.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from walferry.embedded import processes
from walferry.embedded.kdc import HOST, Kdc
from walferry.errors import WalferryError
from walferry.security import Kerberos, Qop

Protection = Literal["authentication", "integrity", "privacy"]
QOPS: dict[Protection, Qop] = {"authentication": "auth", "integrity": "auth-int", "privacy": "auth-conf"}
"""SASL's names of what Hadoop calls protection"""
HDFS_SUPERUSER = "hdfs"
_SUPERGROUP = "supergroup"
_ACCESS = "org.apache.hadoop.hbase.security.access.AccessController"
_TOKENS = "org.apache.hadoop.hbase.security.token.TokenProvider"
# ZooKeeper's classes have other names in HBase's shaded jars.
_SASL_OF_ZOOKEEPER = "org.apache.hadoop.hbase.shaded.org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_LOGIN = "com.sun.security.auth.module.Krb5LoginModule required"


@dataclass(frozen=True)
class Secured:
    """Kerberos for all servers of a cluster, with the KDC `kdc`, which is not booted here.

    `service` is the primary of HBase's principals; `qop` is hbase.rpc.protection and Thrift's; `acls`: HBase checks
    rights; `hbase`: it asks clients for a login, or HDFS alone does; `zookeeper` is ZooKeeper's primary, None: it asks
    for no login and its nodes are open. `data_transfer` is dfs.data.transfer.protection, of which a client takes the
    first that it can. `user` is whom the cluster's address names, `superusers` those of HBase beside its own,
    `hdfs_superusers` those of HDFS.
    """

    kdc: Kdc
    service: str = "hbase"
    qop: Protection = "authentication"
    acls: bool = True
    hbase: bool = True
    zookeeper: str | None = "zookeeper"
    data_transfer: tuple[Protection, ...] = ("privacy", "integrity", "authentication")
    user: str = "ferry"
    superusers: tuple[str, ...] = ("ferry",)
    hdfs_superusers: tuple[str, ...] = ("ferry",)

    def identity(self) -> Kerberos:
        """Who a client of the cluster is: `user` with its keytab, which `write_keys` makes."""
        return Kerberos(
            principal=f"{self.user}@{self.kdc.realm}",
            keytab=str(self.kdc.keytab_path([self.user])),
            service=self.service if self.hbase else None,
            qop=QOPS[self.qop],
            zookeeper_service=self.zookeeper,
            realms=((HOST, self.kdc.realm),),
        )

    def write_keys(self, conf: Path) -> None:
        """Make all principals and keytabs, and write the JAAS files of servers and clients to the folder `conf`."""
        keytab = self.kdc.keytab(self._services)
        self.kdc.keytab([self.user])
        owners = {"Client": self.service, **({} if self.zookeeper is None else {"Server": self.zookeeper})}
        sections = (
            f"{section} {{\n  {_LOGIN} useKeyTab=true storeKey=true useTicketCache=false\n"
            f'  keyTab="{keytab}" principal="{self._principal(primary)}";\n}};\n'
            for section, primary in owners.items()
        )
        (conf / "jaas.conf").write_text("".join(sections))
        (conf / "jaas-client.conf").write_text(
            f"Client {{\n  {_LOGIN} useKeyTab=false useTicketCache=true doNotPrompt=true;\n}};\n"
        )

    def server_flags(self, conf: Path) -> list[str]:
        """Flags of the servers' JVMs."""
        flags = self._login_flags(conf / "jaas.conf")
        if self.zookeeper is None:
            return flags
        return [
            *flags,
            f"-Dzookeeper.authProvider.1={_SASL_OF_ZOOKEEPER}",
            "-Dzookeeper.kerberos.removeHostFromPrincipal=true",
            "-Dzookeeper.kerberos.removeRealmFromPrincipal=true",
        ]

    def client_flags(self, conf: Path) -> list[str]:
        """Flags of the JVMs of HBase's and Hadoop's own programs, which have the variables `logged_in`."""
        return self._login_flags(conf / "jaas-client.conf")

    def logged_in(self, user: str | None = None) -> dict[str, str]:
        """Variables of a process that has a new ticket of `user`, by default the address's."""
        return {"KRB5_CONFIG": str(self.kdc.config), "KRB5CCNAME": f"FILE:{self.kdc.ticket(user or self.user)}"}

    def core_site(self) -> dict[str, str]:
        """The properties of core-site.xml."""
        # Users of the tests are none of this machine's.
        groups = [f"{name}={_SUPERGROUP}" for name in (HDFS_SUPERUSER, *self.hdfs_superusers)]
        return {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
            "hadoop.user.group.static.mapping.overrides": ";".join([*groups, f"{self.service}={self.service}"]),
            # Since 3.3 WebHDFS takes its filter from here, not from dfs.web.authentication.
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": self._principal("HTTP"),
            "hadoop.http.authentication.kerberos.keytab": self._keytab,
            # The Thrift server acts as its callers.
            f"hadoop.proxyuser.{self.service}.hosts": "*",
            f"hadoop.proxyuser.{self.service}.groups": "*",
        }

    def hdfs_site(self) -> dict[str, str]:
        """More properties of hdfs-site.xml."""
        hdfs, http = self._principal(HDFS_SUPERUSER), self._principal("HTTP")
        return {
            "dfs.namenode.kerberos.principal": hdfs,
            "dfs.namenode.keytab.file": self._keytab,
            "dfs.datanode.kerberos.principal": hdfs,
            "dfs.datanode.keytab.file": self._keytab,
            "dfs.web.authentication.kerberos.principal": http,
            "dfs.web.authentication.kerberos.keytab": self._keytab,
            "dfs.permissions.superusergroup": _SUPERGROUP,
            "dfs.block.access.token.enable": "true",
            "dfs.data.transfer.protection": ",".join(self.data_transfer),
            "dfs.http.policy": "HTTP_ONLY",
            # Data nodes would want ports below 1024 or HTTPS; SASL protects their data without either.
            "ignore.secure.ports.for.testing": "true",
        }

    def hbase_site(self, version: str) -> dict[str, str]:
        """More properties of the hbase-site.xml of an HBase of this version; those of `core_site` are among them."""
        principal = self._principal(self.service)
        if not self.hbase:  # its servers log in at HDFS by the same principal
            return {**self.core_site(), **self._servers}
        checked = [_ACCESS] if self.acls else []
        coprocessors = {"master": checked, "regionserver": checked, "region": [_TOKENS, *checked]}
        return {
            **self.core_site(),
            "hbase.security.authentication": "kerberos",
            "hbase.security.authorization": str(self.acls).lower(),
            "hbase.rpc.protection": self.qop,
            "hbase.superuser": ",".join((self.service, *self.superusers)),
            **self._servers,
            **{f"hbase.coprocessor.{where}.classes": ",".join(names) for where, names in coprocessors.items() if names},
            # Used once hbase.security.authentication.ui is kerberos.
            "hbase.security.authentication.spnego.kerberos.principal": self._principal("HTTP"),
            "hbase.security.authentication.spnego.kerberos.keytab": self._keytab,
            "hbase.thrift.kerberos.principal": principal,
            "hbase.thrift.keytab.file": self._keytab,
            "hbase.thrift.security.qop": QOPS[self.qop],
        }

    def make_folders(self, webhdfs: str | None) -> None:
        """Make HBase's root folder and the user's home on HDFS, which belong to them, and an open /tmp.

        Repeating it changes nothing. `webhdfs` is as in the address.
        """
        requests = ["PUT /tmp?op=MKDIRS&permission=1777"]
        # As HBase's master does where it makes its folder itself: others pass through, but do not list it.
        folders = (
            ("/hbase", self.service, 711),
            ("/user", HDFS_SUPERUSER, 755),
            (f"/user/{self.user}", self.user, 700),
        )
        for path, owner, mode in folders:
            requests += [f"PUT {path}?op=MKDIRS&permission={mode}", f"PUT {path}?op=SETOWNER&owner={owner}"]
        self.ask_webhdfs(webhdfs or "", requests)

    def ask_webhdfs(self, webhdfs: str, requests: list[str], user: str = HDFS_SUPERUSER) -> list[str]:
        """Send requests such as "PUT /folder?op=MKDIRS" to WebHDFS as `user`; return the bodies of the answers.

        In a process of its own, since the Kerberos library takes its settings from a process's environment.
        """
        command = [sys.executable, "-m", "walferry.embedded.spnego", webhdfs, *requests]
        environment = processes.variables(self.logged_in(user))
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if answer.returncode != 0:
            raise WalferryError(f"WebHDFS at {webhdfs} refused {user}: {answer.stderr.strip()}")
        return answer.stdout.splitlines()

    def _login_flags(self, jaas: Path) -> list[str]:
        flags = [f"-Djava.security.krb5.conf={self.kdc.config}"]
        if self.zookeeper is not None:
            flags += [
                f"-Djava.security.auth.login.config={jaas}",
                f"-Dzookeeper.sasl.client.username={self.zookeeper}",
            ]
        return flags

    @property
    def _servers(self) -> dict[str, str]:
        """Who HBase's servers are."""
        principal = self._principal(self.service)
        return {
            "hbase.master.kerberos.principal": principal,
            "hbase.master.keytab.file": self._keytab,
            "hbase.regionserver.kerberos.principal": principal,
            "hbase.regionserver.keytab.file": self._keytab,
        }

    @property
    def _services(self) -> list[str]:
        primaries = [self.service, HDFS_SUPERUSER, "HTTP", *([] if self.zookeeper is None else [self.zookeeper])]
        return [f"{primary}/{HOST}" for primary in primaries]

    @property
    def _keytab(self) -> str:
        return str(self.kdc.keytab_path(self._services))

    def _principal(self, primary: str) -> str:
        return f"{primary}/{HOST}@{self.kdc.realm}"
