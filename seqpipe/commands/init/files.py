"""The bytes of a data file, unpacked on the way, and pieces of a large one."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

WHOLE = 4_000_000  # bytes: of a larger file, records are taken from pieces
PIECES, PIECE = 40, 25_000  # their number, and the bytes of each
_CHUNK = 1_000_000
Unit = Literal["line", "sentence"]


def open_bytes(data: Path) -> BinaryIO:
    """Open a file, unpacked on the way if its name ends in .gz."""
    return gzip.open(data, "rb") if data.suffix == ".gz" else data.open("rb")  # type: ignore[return-value]


def size_of(data: Path) -> int:
    """Return the size of a file in bytes, when unpacked."""
    if data.suffix != ".gz":
        return data.stat().st_size
    with open_bytes(data) as file:
        return sum(map(len, iter(lambda: file.read(_CHUNK), b"")))


class Pieces:
    """PIECES parts of a file, evenly spread over it, each from one end of a record to another."""

    def __init__(self, data: Path, unit: Unit):
        self.data = data
        self.between = b"\n" if unit == "line" else b"\n\n"
        self.size = size_of(data)

    @property
    def is_whole(self) -> bool:
        """Whether all of the file is read."""
        return self.size <= WHOLE

    @property
    def factor(self) -> float:
        """The size of the file over that of the pieces."""
        return self.size / sum(map(len, self._parts()))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the pieces; those of a piece that is no UTF-8 with signs in place of the faults."""
        for part in self._parts():
            yield from part.decode("utf-8", "replace").splitlines(keepends=True)

    def _parts(self) -> Iterator[bytes]:
        stride = self.size // PIECES
        with open_bytes(self.data) as file:
            for number in range(PIECES):
                part = file.read(stride)[:PIECE].replace(b"\r\n", b"\n")
                start = part.find(self.between) + len(self.between) if number else 0
                end = part.rfind(self.between) + len(self.between)
                if end > start and (start >= len(self.between) or not number):
                    yield part[start:end]
