"""Looks for keys of keytabs and passwords of delegation tokens in all that a run of walferry leaves or shows."""

from __future__ import annotations

import base64
import re
import sqlite3
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

from chaos.command import Command
from walferry.security.token import Token

TOKENS_SEEN = "TOKENS_SEEN"
"""variable with the file to which each process adds its tokens"""
SITECUSTOMIZE = '''
"""Keeps the tokens that a process makes, and has its libraries log all that they can. Workers have no Kerberos."""

import logging
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

IS_WORKER = sys.orig_argv[-2:] == ["pyspark.daemon", "pyspark.worker"]


class Hook(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if IS_WORKER and name.partition(".")[0] in ("gssapi", "krb5", "puresasl", "requests_gssapi"):
            raise ImportError(f"this is a worker, which has no {name}")
        if name != "walferry.security.token":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            made = module.Token.__init__

            def kept(token, *fields, **named):
                made(token, *fields, **named)
                with open(os.environ["TOKENS_SEEN"], "a") as file:
                    file.write(token.encoded() + "\\n")

            module.Token.__init__ = kept

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Hook())
if IS_WORKER:
    for name in ("KRB5_CONFIG", "KRB5CCNAME"):
        os.environ.pop(name, None)
configured = logging.basicConfig
logging.basicConfig = lambda **given: configured(**given | {"level": logging.DEBUG})
for name in ("numba", "py4j"):
    logging.getLogger(name).setLevel(logging.WARNING)  # which talk about other things
'''
"""goes into a folder of PYTHONPATH"""
_PAGES = ("/jobs/", "/stages/", "/environment/", "/executors/")
_LISTED = "/api/v1/applications"


@dataclass(frozen=True)
class Hunt:
    """The secrets of a test's commands, which run in `folder`; whatever is in that folder afterwards is looked at."""

    home: Path
    keytabs: list[Path]

    @property
    def folder(self) -> Path:
        """Where the commands run, with ledger, reports and logs."""
        return self.home / "run"

    def prepared(self) -> dict[str, str]:
        """Make the folders, and return the variables of the commands."""
        for name in ("run", "tmp", "hook"):
            (self.home / name).mkdir()
        (self.home / "hook" / "sitecustomize.py").write_text(SITECUSTOMIZE)
        return {
            "PYTHONPATH": str(self.home / "hook"),
            TOKENS_SEEN: str(self.home / "tokens"),
            "TMPDIR": str(self.home / "tmp"),  # where the library's tokens are, for its user only
            "WALFERRY_REPORTS": str(self.folder / "reports"),
        }

    def left(self) -> list[str]:
        """What the commands have left beside the folder, although they have ended: tokens for the library, say."""
        return sorted(str(path) for path in (self.home / "tmp").rglob("*") if path.is_file())

    def secrets(self) -> dict[str, bytes]:
        """Keys and passwords of tokens, by what they are."""
        keys = {what: key for keytab in self.keytabs for what, key in keys_of(keytab).items()}
        return keys | passwords_of(self.home / "tokens")

    def found(self, shown: Mapping[str, bytes]) -> list[str]:
        """Which secrets are in the folder, or in what else the commands have shown."""
        secrets = self.secrets()
        texts = [
            *(self.home / "tokens").read_bytes().split(),
            *(base64.encodebytes(one.read_bytes()) for one in self.keytabs),
        ]
        assert all(leaks({"": text}, secrets) for text in texts), "it would not find them"
        return leaks({**files_in(self.folder), **shown}, secrets)


def keys_of(keytab: Path) -> dict[str, bytes]:
    """The keys in a keytab, by what klist says of each."""
    listed = subprocess.run(["klist", "-k", "-e", "-K", str(keytab)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ *\d+ (\S+ \(.*?\)) +\(0x([0-9a-f]+)\)", listed, re.MULTILINE)
    return {f"key of {what}": bytes.fromhex(key) for what, key in found}


def passwords_of(seen: Path) -> dict[str, bytes]:
    """The passwords of the tokens that `SITECUSTOMIZE` has kept."""
    lines = seen.read_text().split() if seen.exists() else []
    tokens = [Token.decoded(line) for line in dict.fromkeys(lines)]
    return {f"token {number} of {token.owner}": token.password for number, token in enumerate(tokens)}


def forms(secret: bytes) -> list[bytes]:
    """How a secret may be written: as it is, escaped, in hex, or in Base64 at whatever place of a longer text."""
    coded = []
    for before in range(3):
        text = base64.b64encode(bytes(before) + secret)
        inner = text[-(-8 * before // 6) : 8 * (before + len(secret)) // 6]
        coded += [inner, inner.translate(bytes.maketrans(b"+/", b"-_"))]
    return [secret, repr(secret)[2:-1].encode(), secret.hex().encode(), secret.hex().upper().encode(), *coded]


def leaks(places: Mapping[str, bytes], secrets: Mapping[str, bytes]) -> list[str]:
    """Which secrets are in which places, in any form; also in Base64 of several lines."""
    assert secrets
    written = {name: forms(secret) for name, secret in secrets.items()}
    found = []
    for place, content in places.items():
        for text in (content, content.replace(b"\n", b"")):
            found += [f"{name} in {place}" for name, known in written.items() if any(form in text for form in known)]
    return sorted(set(found))


def files_in(folder: Path) -> dict[str, bytes]:
    """The content of all files; of SQLite's also each table's, since its rows may be in pieces."""
    found = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in folder.rglob("*.db"):
        with closing(sqlite3.connect(path)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
                values = (value for row in rows for value in row)
                told = [value if isinstance(value, bytes) else str(value).encode() for value in values]
                found[f"{path} {table}"] = b"\n".join(told)
    return found


@contextmanager
def watched(command: Command, spark: str | None = None) -> Iterator[dict[str, bytes]]:
    """What anybody may see of a command and of the processes that it starts while it runs: command lines,
    environments, and Spark's pages at the URL `spark`."""
    seen: dict[str, bytes] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            for process in command.processes():
                with suppress(psutil.Error):
                    seen[f"command line of {process.pid}"] = "\n".join(process.cmdline()).encode()
                    seen[f"environment of {process.pid}"] = "\n".join(process.environ().values()).encode()
            if spark is not None:
                with suppress(requests.RequestException):
                    seen.update(_pages(spark))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _pages(url: str) -> dict[str, bytes]:
    [application] = requests.get(f"{url}{_LISTED}", timeout=60).json()
    own = f"{_LISTED}/{application['id']}"
    paths = (*_PAGES, f"{own}/environment", f"{own}/jobs", f"{own}/stages", f"{own}/executors")
    answers = {path: requests.get(f"{url}{path}", timeout=60) for path in paths}
    return {f"Spark's page {path}": answer.content for path, answer in answers.items() if answer.ok}
