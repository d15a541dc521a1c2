"""Rules of all readers of text files: bytes that are not text, empty and missing files, one record at a time."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_files import data_error

from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe_plugins.readers.conll import Conll
from seqpipe_plugins.readers.csv import Csv
from seqpipe_plugins.readers.json import Json, Jsonl
from seqpipe_plugins.readers.squad import Squad

LINE_READERS = {  # each with the beginning of a file, and the lines of a record
    "conll": (Conll, "", "a O\n\n"),
    "csv": (Csv, "text\n", "a\n"),
    "jsonl": (Jsonl, "", '{"text": "a"}\n'),
}


BAD_LINES = [
    (False, b"\xe9t\xe9 O\n", "this line is not UTF-8 (byte 0xe9 at place 1); convert it"),
    (False, "été".encode() + b"\xe9 O\n", "write this one again, or leave it out with `iconv -c -f utf-8 -t utf-8`"),
    (False, b"abc\xff\n", "byte 0xff at place 4"),
    (False, b"\xed\xa0\x80 O\n", "not UTF-8"),
    (False, b"a\0\n", "this line contains a NUL character"),
    (False, b"a\rb\r", "this line contains a carriage return"),
    (False, b"a" * 10_000_000 + b" O\n", "longer than 10 MB"),
    (False, b"a" * 10_000_001, "longer than 10 MB"),
    (True, "a O\n".encode("utf-16-le"), "a NUL character"),
    (True, "a O\n".encode("utf-16"), "convert it: iconv -f utf-16"),
    (True, b"\x1f\x8b\x08\x00abc\n", "compressed with gzip: unpack it, or give it a name that ends in .gz"),
]


@pytest.mark.parametrize("name", LINE_READERS)
@pytest.mark.parametrize(("is_first", "line", "message"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_a_line_without_text_is_an_error(is_first: bool, line: bytes, message: str, name: str, tmp_path: Path) -> None:
    cls, start, record = LINE_READERS[name]
    before = "" if is_first else f"{start}{record}"
    (tmp_path / "data").write_bytes(before.encode() + line)
    number = before.count("\n") + 1
    with data_error(f"{tmp_path / 'data'}:{number}", message):
        list(construct(cls).read(tmp_path / "data"))


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", "\ufeff\n"])
@pytest.mark.parametrize("name", LINE_READERS)
def test_a_file_without_a_record_is_an_error(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text(text)
    with pytest.raises(DataError, match=r"data: there is (nothing|no record) in this file"):
        list(construct(LINE_READERS[name][0]).read(tmp_path / "data"))


@pytest.mark.parametrize("cls", [Conll, Csv, Jsonl, Json, Squad])
def test_a_missing_file_and_a_folder_are_errors(cls: type, tmp_path: Path) -> None:
    (tmp_path / "train.conll").touch()
    for name, message in (
        ("trian.conll", r"trian\.conll: there is no such file; did you mean 'train\.conll'\?"),
        ("data/train.conll", "nor a folder .*data"),
        (".", "this is a folder"),
        ("train.conll/a", "cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            next(construct(cls).read(tmp_path / name))


@pytest.mark.parametrize("name", LINE_READERS)
def test_the_first_record_arrives_before_the_file_ends(name: str) -> None:
    cls, start, record = LINE_READERS[name]
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for line in f"{start}{record * 1000}".splitlines(keepends=True):
            count += 1
            yield line

    records = construct(cls).records(lines(), "<stdin>")
    first = next(records)
    assert (first["text"], first["where"]) == ("a", f"<stdin>:{2 if start else 1}")
    assert count == f"{start}{record}".count("\n")
    assert sum(1 for _ in records) == 999


def test_memory_does_not_grow_with_a_list_of_json(tmp_path: Path) -> None:
    peaks = []
    for count in (500, 5_000):
        path = tmp_path / f"{count}.json"
        path.write_text(json.dumps([{"text": "word" * 60}] * count, indent=0))
        tracemalloc.start()
        assert sum(1 for _ in construct(Json).read(path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < path.stat().st_size / 5
