"""Work that Spark's workers do on a secured cluster, with nothing but the tokens that their driver hands over."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from booting import QUICK_SITE, quick
from security.secrets_hunt import Hunt
from walferry.embedded import processes
from walferry.embedded.cluster import MiniCluster
from walferry.embedded.kdc import Kdc
from walferry.embedded.kerberized import Secured

pytestmark = [pytest.mark.cluster, pytest.mark.long]

LIFE_SECONDS = 20
"""of HBase's tokens"""
SCRIPT = """
import json, pickle, sys, time
from contextlib import suppress
from pathlib import Path
from walferry.hbase.client import HBaseClient
from walferry.security import AuthenticationError
from walferry.security.handed import WorkerLoginError
from walferry.spark.fan_out import fan_out
from walferry.spark.handing_over import with_new_tokens
from walferry.spark.session import open_session
from walferry.storage.tokens import _Login
from walferry.wal.copies import files_of

address, life = pickle.loads(bytes.fromhex(sys.argv[1])), float(sys.argv[2])
spark = open_session("workers")


def asked(wait):
    mark = Path(wait)
    if wait and not mark.exists():
        mark.touch()
        time.sleep(life + 5)
    with HBaseClient(address) as client:
        return [client.who_am_i()]


def listed(_):
    return [status.name for status in files_of(address).list(address.root_path + "/WALs")]


found = {}
with HBaseClient(address) as client:
    found["servers"] = [server.name for server in client.servers()]
    client.version()
    found["at once"] = fan_out(spark, asked, [""], what="ask")
    time.sleep(life)
    found["later"] = fan_out(spark, asked, [""], what="ask")
    try:
        fan_out(spark, asked, ["first"], what="ask")
    except WorkerLoginError as error:
        found["too long"] = str(error)
    found["repeated"] = with_new_tokens(lambda: fan_out(spark, asked, ["second"], what="ask"))
files = files_of(address)
files.status("/")
found["listed"] = fan_out(spark, listed, [0], what="list")
cancel = {"op": "CANCELDELEGATIONTOKEN", "token": files._tokens.held.encoded()}
with suppress(AuthenticationError):  # the answer has no content
    _Login(files.url, address.security).asked("PUT", cancel)
found["listed again"] = with_new_tokens(lambda: fan_out(spark, listed, [0], what="list"))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def brief(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose tokens live for seconds."""
    site = {**QUICK_SITE, "hbase.auth.token.max.lifetime": str(LIFE_SECONDS * 1000)}
    with (
        quick(),
        MiniCluster.start(tmp_path_factory.mktemp("brief"), hbase_site=site, security=Secured(kdc)) as cluster,
    ):
        yield cluster


def test_a_token_that_ends_in_a_task_is_replaced_and_the_work_repeated(brief: MiniCluster, tmp_path: Path) -> None:
    kerberos = brief.address.security.kerberos
    assert kerberos is not None
    hunt = Hunt(tmp_path, [Path(str(kerberos.keytab))])
    arguments = [pickle.dumps(brief.address).hex(), str(LIFE_SECONDS)]
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=hunt.folder, env=processes.variables(hunt.prepared()), capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-3000:]
    found = json.loads(answer.stdout)
    assert "does not take the token of a Spark worker: InvalidToken" in found["too long"]
    assert (found["at once"], found["later"], found["repeated"]) == (["ferry"], ["ferry"], ["ferry"])
    assert answer.stderr.count("work begun again gets a new one") == 2, "of HBase, and of HDFS"
    assert set(found["servers"]) <= set(found["listed"]) == set(found["listed again"])
    assert hunt.found({"what it said": answer.stderr.encode()}) == []
