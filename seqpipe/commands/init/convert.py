"""Formats that no reader takes, and how to convert them."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from seqpipe.errors import DataError

_SPREADSHEET = "a spreadsheet", "save it as CSV (UTF-8) in the program that made it"
_DOCUMENT = "a document", "write its texts to a CSV or JSONL file, a text and what is to be learned in each row"
_ARCHIVE = "an archive", "unpack it and give a file of it"
_PANDAS = "read it where it was made and write it with pandas: `frame.to_json(FILE, orient='records', lines=True)`"
_STARTS: dict[bytes, tuple[str, str]] = {
    b"%PDF": ("a PDF", "extract its text, for instance with `pdftotext`, and write it to a CSV or JSONL file"),
    b"\xd0\xcf\x11\xe0": ("a spreadsheet or document of an old Office", "save it as CSV (UTF-8)"),
    b"{\\rtf": _DOCUMENT,
    b"SQLite format 3": (
        "an SQLite database",
        "write a table of it as CSV: `sqlite3 -header -csv FILE 'SELECT text, label FROM TABLE' > data.csv`",
    ),
    b"\x80\x02": ("a pickle", _PANDAS),
    b"\x80\x03": ("a pickle", _PANDAS),
    b"\x80\x04": ("a pickle", _PANDAS),
    b"\x80\x05": ("a pickle", _PANDAS),
    b"\x93NUMPY": ("an array of NumPy", _PANDAS),
    b"\x89HDF": ("an HDF5 file", _PANDAS),
    b"ARROW1": ("an Arrow file", _PANDAS),
    b"Obj\x01": ("an Avro file", _PANDAS),
    b"BZh": ("compressed with bzip2", "unpack it with `bunzip2`"),
    b"\xfd7zXZ": ("compressed with xz", "unpack it with `unxz`"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "unpack it with `unzstd`"),
    b"7z\xbc\xaf": _ARCHIVE,
    b"Rar!": _ARCHIVE,
    b"\xff\xfe": ("text in UTF-16", "convert it: `iconv -f UTF-16 -t UTF-8`"),
    b"\xfe\xff": ("text in UTF-16", "convert it: `iconv -f UTF-16 -t UTF-8`"),
    b"#FORMAT=WebAnno": ("WebAnno's TSV", "export the project as CoNLL 2003 or CoNLL-U"),
    b"<?xml": ("XML", _DOCUMENT[1]),
    b"<!DOCTYPE": ("HTML", _DOCUMENT[1]),
    b"<html": ("HTML", _DOCUMENT[1]),
}
_PAIR = re.compile(r"([A-Za-z]+): .* ([A-Za-z]+): ")
_NUMBER = re.compile(r"-?\d*\.?\d+(e-?\d+)?")
_BRAT = re.compile(rb"(T\d+\t\S+ \d+ \d+(;\d+ \d+)*\t.*|[ARE#*]\d*\t.*)")


def refuse_convertible(data: Path) -> None:
    """DataError if the file is of a known format that no reader takes; it says how to convert it."""
    if not data.is_file():
        return  # said where the file is read
    with data.open("rb") as file:
        head = file.read(1000)
    kind = _kind(data, head)
    if kind:
        raise DataError(f"{data}: is {kind[0]}, which no reader takes; {kind[1]}")


def _kind(data: Path, head: bytes) -> tuple[str, str] | None:
    if head.startswith(b"\x1f\x8b") and data.suffix != ".gz":
        return "compressed with gzip", "give it a name that ends in .gz, or unpack it with `gunzip`"
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(data)
    if head[257:262] == b"ustar":
        return _ARCHIVE
    lines = head.splitlines()[:-1]
    if lines and lines[0].startswith(b"T") and all(map(_BRAT.fullmatch, lines)):
        cure = '`{"text": …, "spans": [[start, end, label], …]}` for each text'
        return "brat's annotation of a text", f"write the texts and their .ann files as one JSONL file, {cure}"
    return next((kind for start, kind in _STARTS.items() if head.startswith(start)), None)


def _zip_kind(data: Path) -> tuple[str, str]:
    """Return what kind of file a ZIP archive is, by the names of its parts."""
    if not zipfile.is_zipfile(data):
        return _ARCHIVE
    with zipfile.ZipFile(data) as archive:
        names = archive.namelist()
    if any(name.startswith("xl/") for name in names) or data.suffix == ".ods":
        return _SPREADSHEET
    if any(name.startswith(("word/", "ppt/")) for name in names) or data.suffix in (".odt", ".epub"):
        return _DOCUMENT
    return _ARCHIVE


def refuse_vectors(data: Path, lines: Sequence[str]) -> None:
    """DataError if each line is a word and its vector."""
    filled = [line.split() for line in lines[:100] if line.strip()][1:]  # the first may be the size of the table
    if filled and all(len(cells) > 10 and all(map(_NUMBER.fullmatch, cells[-10:])) for cells in filled):
        cure = "name the file in `embedding: {use: vectors, path: FILE}`, and give the data to learn from here"
        raise DataError(f"{data}: is a file of word vectors; {cure}")


def refuse_marked_pairs(data: Path, lines: Sequence[str]) -> None:
    """DataError if each line holds a text and the one to write behind marks such as IN: and OUT:."""
    filled = [line for line in lines if line.strip()]
    marks = Counter((match[1], match[2]) for line in filled if (match := _PAIR.match(line)))
    if marks and (most := marks.most_common(1)[0])[1] > 0.95 * len(filled):
        first, second = most[0]
        unpacked = "zcat" if data.suffix == ".gz" else "cat"
        command = rf"{unpacked} {data.name} | sed -E 's/^{first}: *(.*) {second}: */\1\t/' > data.tsv"
        raise DataError(f"{data}: pairs of texts behind {first}: and {second}:; part them by a tab: `{command}`")
