"""Records and Docs in memory-mapped files, for data larger than memory; a folder of such files for each of its inputs.

A file of values has plain data in the format of `marshal`, which is twice as fast as JSON and keeps tuples and lone
surrogates; another file has the offset of each value. Both are read where they are, so they need no memory.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import mmap
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from seqpipe.console import Console
from seqpipe.errors import DataError, SeqpipeError
from seqpipe.features.document import Doc, KeptRecord, Record, join_docs
from seqpipe.features.sources import NumericSource, TextSource
from seqpipe.files import locked, make_folder, read_json, sha256_file, write, writing_folder
from seqpipe.version import VERSION

FORMAT = 1  # of these files
CONTENT = "content.json"  # of a folder: its key, and the size and sha256 of each file
BYTES_PER_PROCESS = 64_000_000  # bytes of stored records that a process tokenizes at least
_ROWS_PER_CHUNK = 256  # values that are read or written at a time
V = TypeVar("V")


def changed_while_read(path: object) -> DataError:
    """Return the error about a mapped file that is shorter than its map, or has other content than was written."""
    return DataError(f"{path}: was changed while it was read; run the same command again, which writes the file anew")


class UnmappableError(ValueError):
    """A value is not plain data."""


class Ragged(Sequence[V], Generic[V]):
    """Values of plain data in a file, read one by one; `rows` is a file with the positions of some of them.

    It is pickled as its path, so that another process opens the same file.
    """

    def __init__(self, path: Path, rows: Path | None = None):
        self.path, self.rows = path, rows
        self._rows = None if rows is None else np.fromfile(rows, np.int32)
        self._maps = list[mmap.mmap]()
        for file in (path.with_suffix(".offsets"), path.with_suffix(".values")):
            if file.stat().st_size:  # an empty file has no memory map
                with file.open("rb") as opened:
                    self._maps.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        self._bounds = memoryview(self._maps[0]).cast("q")  # of each value, and the end

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.rows)

    def __len__(self) -> int:
        return len(self._bounds) - 1 if self._rows is None else len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if index < 0:
            raise IndexError(index)
        row = index if self._rows is None else self._rows[index]
        return self._read([row])[0]

    def __iter__(self) -> Iterator[V]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[V]:
        """Iterate over the values from one position to another, which are read in chunks."""
        rows = range(len(self._bounds) - 1) if self._rows is None else self._rows
        starts = range(first, last, _ROWS_PER_CHUNK)
        return chain.from_iterable(self._read(rows[i : min(i + _ROWS_PER_CHUNK, last)]) for i in starts)

    def _read(self, rows: Iterable[int]) -> list[V]:
        if any(mapped.size() < len(mapped) for mapped in self._maps):  # reading after the end of a file is a SIGBUS
            raise changed_while_read(self.path)
        try:
            return [self.decode(marshal.loads(self._maps[1][self._bounds[i] : self._bounds[i + 1]])) for i in rows]
        except (EOFError, TypeError, ValueError) as error:
            raise changed_while_read(self.path) from error

    @staticmethod
    def decode(value: Any) -> Any:
        """Return a value from its plain data."""
        return value


def write_values(path: Path, values: Iterable[Any]) -> int:
    """Write plain data for `Ragged`, and return their number; UnmappableError for other data."""
    count, end = 0, 0
    with path.with_suffix(".values").open("wb") as file, path.with_suffix(".offsets").open("wb") as offsets:
        offsets.write(bytes(8))
        for value in values:
            try:
                data = marshal.dumps(value)
            except ValueError as error:
                raise UnmappableError("they have other values than texts, numbers, lists and mappings") from error
            count, end = count + 1, end + len(data)
            file.write(data)
            offsets.write(end.to_bytes(8, sys.byteorder))
    return count


@dataclass(frozen=True)
class FeatureStore:
    """The folder of all mapped features, and the file in which a run lists those that it reads."""

    folder: Path
    listing: Path
    console: Console
    processes: int = 1  # at most, to tokenize

    def make(self, key: Mapping[str, Any], make_files: Callable[[Path], None]) -> Path:
        """Return the folder for this key; its files are made if it does not exist, or if they are damaged."""
        key = {**key, "format": FORMAT, "seqpipe": VERSION, "python": f"{sys.implementation.cache_tag} {sys.byteorder}"}
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
        path = self.folder / name
        make_folder(self.folder)
        used = read_json(self.listing) if self.listing.exists() else []
        if name not in used:  # before it is made, so that nobody prunes it
            write(self.listing, json.dumps([*used, name]))
        lock = self.folder / f"{name}.lock"
        lock.touch()
        with locked(lock, wait=True):
            if path.exists() and (problem := _damage(path)):
                self.console.warn(f"{path}: {problem}; it is made again", "  ")
            elif path.exists():
                return path
            with writing_folder(path) as temporary:
                make_files(temporary)
                files = {file.name: [file.stat().st_size, sha256_file(file)] for file in sorted(temporary.iterdir())}
                write(temporary / CONTENT, json.dumps({"key": key, "files": files}, indent=1))
        return path


def _damage(path: Path) -> str:
    """Return the reason why the files of a folder are not those that were written, or ""."""
    try:
        files = json.loads((path / CONTENT).read_bytes())["files"]
    except (OSError, ValueError, KeyError):
        return f"{CONTENT} is damaged"
    for name, (size, sha256) in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size or sha256_file(file) != sha256:
            return f"{name} is damaged"
    return ""


# Records and Docs


class StoredRecords(Ragged[Record]):
    """Records of a file, or of a part of it, in a store; `key` stands for them in the keys of what is made of them."""

    def __init__(self, path: Path, rows: Path | None, key: str, store: FeatureStore, fields: Sequence[str] = ()):
        super().__init__(path, rows)
        self.key, self.store, self.fields, self.docs_by_reading = key, store, fields, dict[str, Docs]()

    def __reduce__(self) -> Any:
        return Ragged, (self.path, self.rows)

    def docs(self, source: TextSource | NumericSource) -> Docs:
        """Return the Docs of the records, tokenized once, by several processes if there are many."""
        docs, reading = self.docs_by_reading, source.reading
        key = {"docs": self.key, "source": reading}
        if reading not in docs:
            docs[reading] = Docs(self.store.make(key, lambda path: self._write_docs(source, path)) / "docs")
        return docs[reading]

    def __getitem__(self, index: Any) -> Any:
        record = super().__getitem__(index)
        return record if isinstance(index, slice) else _StoredRecord(record, self, index % len(self))

    def with_docs(self) -> Iterator[Record]:
        """Yield the records with their Docs, which an iteration leaves in their file."""
        return map(self.__getitem__, range(len(self)))

    def _write_docs(self, source: TextSource | NumericSource, folder: Path) -> None:
        count, size = len(self), self.path.with_suffix(".values").stat().st_size
        processes = max(1, min(self.store.processes, size // BYTES_PER_PROCESS))
        with self.store.console.progress("tokenizing", count) as tick:
            if processes == 1:
                write_docs(source, self, folder / "docs", 0, count, tick)
                return
            bounds = [count * i // processes for i in range(processes + 1)]
            parts = [folder / f"part-{i}" for i in range(processes)]
            jobs = [(source, self, *job) for job in zip(parts, bounds, bounds[1:], strict=False)]
            files = [part.with_suffix(".offsets") for part in parts]
            _run_jobs(jobs, lambda: tick(sum(file.stat().st_size // 8 for file in files if file.exists())))
            write_values(folder / "docs", (value for part in parts for value in Ragged[Any](part)))
            for file in folder.glob("part-*"):
                file.unlink()


class _StoredRecord(KeptRecord):
    """A record whose Docs are in a file."""

    __slots__ = ("records", "row")

    def __init__(self, record: Record, records: StoredRecords, row: int):
        super().__init__(record)
        self.records, self.row = records, row

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def doc(self, reading: str) -> Doc | None:
        docs = self.records.docs_by_reading.get(reading)
        return super().doc(reading) if docs is None else docs[self.row]


class Docs(Ragged[Doc]):
    """Docs in a file."""

    @staticmethod
    def decode(value: Any) -> Doc:
        text, words, offsets, ids, starts, places, second, rows, columns = value
        if words is None:
            words = [text[a:b] for a, b in offsets]
        if rows is not None:
            rows = np.frombuffer(rows[1], "<f4").reshape(rows[0])
        return Doc(text, words, offsets, ids, starts, places, second, rows, (), columns)


class JoinedDocs(Sequence[Doc]):
    """The Docs of records with several sources, from those of each source."""

    def __init__(self, sources: Sequence[Sequence[Doc]]):
        self.sources = sources

    def __len__(self) -> int:
        return len(self.sources[0])

    def __getitem__(self, index: Any) -> Any:
        return join_docs([docs[index] for docs in self.sources])

    def __iter__(self) -> Iterator[Doc]:
        rows = zip(*self.sources, strict=True)
        chunks = iter(lambda: [*islice(rows, _ROWS_PER_CHUNK)], [])
        return chain.from_iterable([*map(join_docs, chunk)] for chunk in chunks)


def plain_doc(doc: Doc) -> tuple[Any, ...]:
    """Return a Doc of one source as plain data, without what `Docs` can compute again."""
    words = None if doc.words == [doc.text[a:b] for a, b in doc.offsets] else doc.words
    rows = None if doc.rows is None else (doc.rows.shape, doc.rows.astype("<f4").tobytes())
    return doc.text, words, doc.offsets, doc.ids, doc.starts, doc.places, doc.second, rows, dict(doc.columns)


def write_docs(
    source: TextSource | NumericSource,
    records: Ragged[Record],
    path: Path,
    first: int,
    last: int,
    tick: Callable[[int], object] = lambda done: None,
) -> None:
    """Tokenize the records from one position to another into a file."""

    def docs() -> Iterator[tuple[Any, ...]]:
        for start in range(first, last, _ROWS_PER_CHUNK):
            yield from map(plain_doc, source.docs([*records.between(start, min(start + _ROWS_PER_CHUNK, last))]))
            tick(start)

    write_values(path, docs())


def _run_jobs(jobs: Sequence[Any], tick: Callable[[], object]) -> None:
    """Run `write_docs` with each of these arguments in a process of its own; raise the first error.

    The processes run this module, which does not import PyTorch, so a script needs no `__main__` guard.
    """
    running = []
    try:
        for job in jobs:
            process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            running.append(process)
            assert process.stdin
            process.stdin.write(pickle.dumps(job))
            process.stdin.close()
        while any(process.poll() is None for process in running):
            time.sleep(0.1)
            tick()
        for process in running:
            assert process.stdout
            output = process.stdout.read()
            if process.returncode or not output:
                raise DataError(f"a process that tokenizes ended with {process.returncode}; run the same command again")
            if error := pickle.loads(output):
                raise error
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()


def _run_job() -> None:
    """Run a job from standard input; its error, if it is one of seqpipe, is the output."""
    result = None
    try:
        write_docs(*pickle.load(sys.stdin.buffer))
    except SeqpipeError as error:
        result = error
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    _run_job()
