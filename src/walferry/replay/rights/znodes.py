"""Who may change walferry's own nodes, below /walferry on the target's ZooKeeper.

Spark's workers cannot log in there: ZooKeeper knows no delegation tokens. So where the driver logs in, the nodes are
*closed*: they belong to its principal, and everybody reads them. What a worker must be able to make, it makes in a node
that lets it. Where the driver does not log in, the nodes are open to everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kazoo.client import KazooClient
from kazoo.exceptions import InvalidACLError, NoAuthError, NoNodeError
from kazoo.security import ACL, ANYONE_ID_UNSAFE, AUTH_IDS, Permissions, make_digest_acl

from walferry.hbase.errors import AccessDeniedError

_MINE = ACL(Permissions.ALL, AUTH_IDS)  # ZooKeeper writes down as whom the session has logged in
READ_ONLY = [ACL(Permissions.READ, ANYONE_ID_UNSAFE)]
"""for a node that is never changed; whoever may delete in its parent may delete it"""
OWN = [_MINE, *READ_ONLY]
SHARED = [_MINE, ACL(Permissions.READ | Permissions.CREATE, ANYONE_ID_UNSAFE)]
_USER = "walferry"
_NEVER = (1 << 31) - 1
"""a version that no node reaches"""


class _Secret(str):
    """kazoo logs its requests, with what they hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(not shown)"


def own(closed: bool) -> list[ACL] | None:
    """The ACL of a node that only its maker changes; None, kazoo's default, where nodes are open."""
    return OWN if closed else None


def shared_with(password: str) -> list[ACL]:
    """The ACL of a closed node in which only processes that have the password make nodes."""
    return [*OWN, make_digest_acl(_USER, password, create=True)]


def use(zk: KazooClient, password: str) -> None:
    """Let the session make nodes where `shared_with` lets it, also after it has connected again."""
    credential = _Secret(f"{_USER}:{password}")
    if ("digest", credential) not in zk.auth_data:
        zk.add_auth("digest", credential)


def ensure_folder(zk: KazooClient, path: str, closed: bool) -> None:
    """Make a node, and those above it, in which everybody makes nodes. If `closed`, only its owner removes those.

    Closes nodes that an earlier, open time has left. Raises AccessDeniedError.
    """
    if not closed:
        zk.ensure_path(path)
        return
    with refusals_told(zk, path):
        zk.ensure_path(path, acl=SHARED)
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            node = "/".join(parts[:end])
            if _is_open(zk, node):
                with suppress(NoAuthError):  # an administrator's, or another principal has closed it just now
                    zk.set_acls(node, SHARED)


@contextmanager
def refusals_told(zk: KazooClient, path: str) -> Iterator[None]:
    """Raise AccessDeniedError (facts `znode`, `owner`) if ZooKeeper does not let this process change the node."""
    try:
        yield
    except NoAuthError as error:
        raise foreign(zk, path) from error
    except InvalidACLError as error:
        raise AccessDeniedError(
            f"the target's ZooKeeper does not take the rights of the node {path}: it must know users by SASL and by "
            "digest. If it asks for no login, set `zookeeper_service` to none",
            znode=path, owner=None,
        ) from error  # fmt: skip


def foreign(zk: KazooClient, path: str) -> AccessDeniedError:
    """The error for a node that another principal owns."""
    owner = _owner(zk, path)
    return AccessDeniedError(
        f"the node {path} in the target's ZooKeeper belongs to {owner}, and this process may not change it. Run as "
        "that principal (`security`, with a `zookeeper_service`). Or, while nothing writes to the table, let the "
        "owner open its nodes below /walferry/leases and /walferry/dirty (zkCli.sh: `setAcl -R NODE "
        "world:anyone:cdrwa`): whoever comes next takes them over",
        znode=path, owner=owner,
    )  # fmt: skip


def may_change(zk: KazooClient, path: str) -> bool:
    """Whether this session may change a node, or make it and what is missing above it. The question changes nothing."""
    missing, there = "", path
    while there and not zk.exists(there):
        missing, there = there, there.rpartition("/")[0]
    asked = zk.transaction()
    if missing:
        asked.create(missing)
    else:
        asked.set_data(path, b"")
    asked.check("/", version=_NEVER)  # so that ZooKeeper does neither
    return not isinstance(asked.commit()[0], NoAuthError)


def _is_open(zk: KazooClient, path: str) -> bool:
    """Whether everybody may do more in a node than read it and make nodes in it."""
    acls, _ = zk.get_acls(path)
    return any(acl.id == ANYONE_ID_UNSAFE and acl.perms & ~(Permissions.READ | Permissions.CREATE) for acl in acls)


def _owner(zk: KazooClient, path: str) -> str:
    """Who may change a node, or what is above it if it does not exist: "sasl:ferry"."""
    try:
        acls, _ = zk.get_acls(path)
    except NoNodeError:
        return _owner(zk, path.rpartition("/")[0] or "/")
    except NoAuthError:
        return "somebody who does not show it"
    names = {f"{acl.id.scheme}:{acl.id.id}" for acl in acls if acl.perms & Permissions.WRITE}
    return " and ".join(sorted(names)) or "nobody"
