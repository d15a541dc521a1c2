"""A cache on disk of exported graphs without their weights.

An entry is read only if its hash is right. The caller compares every graph with PyTorch, cached or not, and deletes an
entry that answers differently (`seqpipe.export.verified`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import platformdirs

from seqpipe.files import write

VARIABLE = "SEQPIPE_CACHE"
MOST_BYTES = 256 * 1024 * 1024
_HASH = 32  # bytes in front of an entry


class GraphCache:
    """A folder of graphs by key; the entries used longest ago go when there are more than `most` bytes."""

    def __init__(self, folder: Path, most: int = MOST_BYTES):
        self.folder, self.most = folder, most

    def read(self, key: str) -> bytes | None:
        """The graph of a key; None if there is none, or a damaged one."""
        path = self._path(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        data = entry[_HASH:]
        if sha256(data).digest() != entry[:_HASH]:
            self.delete(key)
            return None
        with contextlib.suppress(OSError):  # another process may have deleted it
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self._path(key), sha256(data).digest() + data)
        self._shrink()

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.graph"

    def _shrink(self) -> None:
        entries = sorted(self._entries(), reverse=True)
        size = 0
        for _, bytes_, path in entries:
            size += bytes_
            if size > self.most:
                path.unlink(missing_ok=True)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.glob("*.graph"):
            with contextlib.suppress(OSError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path


def default_cache() -> GraphCache:
    """The cache in `$SEQPIPE_CACHE`, or else in the user's cache folder."""
    folder = os.environ.get(VARIABLE) or platformdirs.user_cache_dir("seqpipe", appauthor=False)
    return GraphCache(Path(folder) / "graphs")
