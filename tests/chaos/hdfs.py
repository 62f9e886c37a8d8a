"""Files of a cluster's HDFS, read over WebHDFS without walferry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests

from walferry.embedded.cluster import HOST, MiniCluster


def listed(cluster: MiniCluster, path: str) -> Sequence[Any]:
    """What a folder has, as WebHDFS's FileStatus; nothing if it does not exist."""
    answer = _asked(cluster, path, "LISTSTATUS")
    return answer.json()["FileStatuses"]["FileStatus"] if answer.status_code == 200 else []


def content(cluster: MiniCluster, path: str) -> bytes | None:
    """The bytes of a file; None if it does not exist."""
    answer = _asked(cluster, path, "OPEN")
    return answer.content if answer.status_code == 200 else None


def _asked(cluster: MiniCluster, path: str, what: str) -> requests.Response:
    url = f"{cluster.address.webhdfs}/webhdfs/v1{quote(path)}"
    answer = requests.get(url, params={"op": what, "user.name": "hbase"}, timeout=60)
    if answer.status_code not in (200, 404):
        answer.raise_for_status()
    return answer


@dataclass(frozen=True)
class Mirror:
    """A folder of a cluster's HDFS, and a local folder that has what that one had at the last look."""

    cluster: MiniCluster
    path: str
    local: Path

    @property
    def url(self) -> str:
        return f"webhdfs://{HOST}:{self.cluster.ports.webhdfs}{self.path}"

    def look(self, without: str = "") -> None:
        """Copy the files that are new or longer, and remove those that are gone; none whose path begins with `without`.
        Raises requests.RequestException while HDFS does not answer."""
        there = {path: length for path, length in self._files("") if not (without and path.startswith(without))}
        for path in set(self._here()) - there.keys():
            (self.local / path).unlink()
        here = self._here()
        for path, length in there.items():
            if here.get(path) != length and (found := content(self.cluster, f"{self.path}/{path}")) is not None:
                (self.local / path).parent.mkdir(parents=True, exist_ok=True)
                (self.local / path).write_bytes(found)

    def _here(self) -> dict[str, int]:
        files = [path for path in self.local.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.local)): path.stat().st_size for path in files}

    def _files(self, folder: str) -> Iterator[tuple[str, int]]:
        for one in listed(self.cluster, f"{self.path}/{folder}"):
            path = f"{folder}{one['pathSuffix']}"
            if one["type"] == "DIRECTORY":
                yield from self._files(f"{path}/")
            else:
                yield path, one["length"]
