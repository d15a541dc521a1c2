"""The bytes of a data file, unpacked on the way, and pieces of a large one."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

WHOLE = 4_000_000  # bytes: of a larger file, records are taken from pieces of a quarter of this size together
PIECES = 40
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

    def __init__(self, data: Path, unit: Unit, whole: int = WHOLE):
        self.data, self.whole = data, whole
        self.end = re.compile(rb"\n" if unit == "line" else rb"\n[ \t\r]*\n")
        self.size = size_of(data)

    @property
    def is_whole(self) -> bool:
        """Whether all of the file is read."""
        return self.size <= self.whole

    @property
    def factor(self) -> float:
        """The size of the file over that of the pieces."""
        return self.size / sum(map(len, self._parts()))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the pieces; those of a piece that is no UTF-8 with signs in place of the faults."""
        for part in self._parts():
            yield from io.StringIO(part.decode("utf-8", "replace"))

    def _parts(self) -> Iterator[bytes]:
        with open_bytes(self.data) as file:
            if self.is_whole:
                yield file.read()
                return
            for number in range(PIECES):
                part = file.read(self.size // PIECES)[: self.whole // 4 // PIECES]
                ends = [match.end() for match in self.end.finditer(part)]
                if number == 0:
                    yield part[: ends[-1] if ends else part.rfind(b"\n") + 1]
                elif len(ends) > 1:
                    yield part[ends[0] : ends[-1]]
