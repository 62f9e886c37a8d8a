"""Who owns what is written below the target's rootdir: HBase, although somebody else may have written it.

HBase must read, move and delete those files, and a folder that it cannot list stops its cleaners and, in
`.hbase-snapshot`, every list of snapshots. New folders inherit the mode of the rootdir, which a secured HBase closes to
everybody but itself.
"""

from __future__ import annotations

import logging

from walferry.storage import FileSystem, Owner, PermissionDeniedError

log = logging.getLogger(__name__)


class HandOver:
    """Gives files below a root folder, and the folders in which they are, to the owner of the root folder.

    Each folder is given once. One object may be used by many threads.
    """

    def __init__(self, files: FileSystem, root: str, *, required: bool) -> None:
        """`required`: a file that may not be given away is an error; otherwise a warning, since others can read it."""
        status = files.status(root)
        self._files = files
        self._root = root
        self._required = required
        self._owner = None if status is None else status.owner
        self._given: set[str] = set()

    def give(self, path: str, owner: Owner | None) -> None:
        """Give a file or folder, whose owner is `owner` now, and the folders above it. Raises PermissionDeniedError if
        the user may not, but must."""
        wanted = self._owner
        if wanted is None or (owner is not None and owner.user == wanted.user):
            return
        steps = path.removeprefix(self._root).strip("/").split("/")
        places = ["/".join([self._root, *steps[:count]]) for count in range(1, len(steps) + 1)]
        try:
            for place in places:
                if place not in self._given:
                    self._files.give(place, wanted)
        except PermissionDeniedError as error:
            if self._required:
                raise
            self._owner = None
            log.warning("%s; HBase cannot delete what was copied unless it is a superuser of HDFS", error)
        self._given.update(places[:-1])
