"""Files that are refused, with advice: formats that no reader takes, and data from which nothing can be learned."""

from __future__ import annotations

import csv
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from seqpipe.errors import DataError
from seqpipe.init.summary import DataSummary

_SPREADSHEET = "a spreadsheet", "save it as CSV (UTF-8) in the program that made it"
_DOCUMENT = "a document", "write its texts to a CSV or JSONL file, a text and what is to be learned in each row"
_ARCHIVE = "an archive", "unpack it and give a file of it"
_PANDAS = "read it where it was made and write it with pandas: `frame.to_json(FILE, orient='records', lines=True)`"
_STARTS: dict[bytes | tuple[bytes, ...], tuple[str, str]] = {
    b"%PDF": ("a PDF", "extract its text, for instance with `pdftotext`, and write it to a CSV or JSONL file"),
    b"\xd0\xcf\x11\xe0": ("a spreadsheet or document of an old Office", "save it as CSV (UTF-8)"),
    b"{\\rtf": _DOCUMENT,
    b"SQLite format 3": (
        "an SQLite database",
        "write a table of it as CSV: `sqlite3 -header -csv FILE 'SELECT text, label FROM TABLE' > data.csv`",
    ),
    (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"): ("a pickle", _PANDAS),
    b"\x93NUMPY": ("an array of NumPy", _PANDAS),
    b"\x89HDF": ("an HDF5 file", _PANDAS),
    b"Obj\x01": ("an Avro file", _PANDAS),
    b"BZh": ("compressed with bzip2", "unpack it with `bunzip2`"),
    b"\xfd7zXZ": ("compressed with xz", "unpack it with `unxz`"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "give it a name that ends in .zst, or unpack it with `unzstd`"),
    (b"PK\x03\x04", b"7z\xbc\xaf", b"Rar!"): _ARCHIVE,
    b"#FORMAT=WebAnno": ("WebAnno's TSV", "export the project as CoNLL 2003 or CoNLL-U"),
    b"<?xml": ("XML", _DOCUMENT[1]),
    (b"<!DOCTYPE", b"<html"): ("HTML", _DOCUMENT[1]),
}
_SPACY = """python3 -c 'import json, sys, spacy
from spacy.tokens import DocBin
for doc in DocBin().from_disk(sys.argv[1]).get_docs(spacy.blank("xx").vocab):
    spans = [[span.start_char, span.end_char, span.label_] for span in doc.ents]
    labels = [name for name in doc.cats if doc.cats[name] >= 0.5]
    print(json.dumps({"text": doc.text, "spans": spans, "labels": labels}))'"""
_M2 = """python3 -c 'import sys
for block in open(sys.argv[1], encoding="utf-8").read().strip().split("\\n\\n"):
    sentence, *lines = block.split("\\n")
    words, edits = sentence.split()[1:], [line[2:].split("|||") for line in lines]
    edits = [edit for edit in edits if edit[-1] == "0"]
    for place, kind, text, *_ in sorted(edits, key=lambda edit: -int(edit[0].split()[0])):
        first, end = map(int, place.split())
        if kind != "noop":
            words[first:end] = text.split()
    print(" ".join(sentence.split()[1:]) + "\\t" + " ".join(words))'"""
_PAIR = re.compile(r"([A-Za-z]+): .* ([A-Za-z]+): ")
_NUMBER = re.compile(r"-?\d*\.?\d+(e-?\d+)?")
_BRAT = re.compile(rb"(T\d+\t\S+ \d+ \d+(;\d+ \d+)*\t.*|[ARE#*]\d*\t.*)")
_COUNTED = {
    "conll": "remove the column of numbers, for instance with `cut -f2-`, or write a YAML with the reader's option "
    "`words`, the column of the words",
    "jsonl": "write the words themselves as `words`",
}


def refuse_other_formats(data: Path, start: bytes) -> None:
    """DataError with advice if a file that begins so, when unpacked, is of a format that no reader takes."""
    lines = start[:1000].splitlines()[:-1]
    kind = next((kind for signature, kind in _STARTS.items() if start.startswith(signature)), None)
    if start.startswith(b"\x1f\x8b"):
        kind = "compressed with gzip", "give it a name that ends in .gz, or unpack it with `gunzip`"
    elif start.startswith(b"PK\x03\x04") and zipfile.is_zipfile(data):
        with zipfile.ZipFile(data) as archive:
            names = archive.namelist()
        if any(name.startswith("xl/") for name in names) or data.suffix == ".ods":
            kind = _SPREADSHEET
        elif any(name.startswith(("word/", "ppt/")) for name in names) or data.suffix in (".odt", ".epub"):
            kind = _DOCUMENT
    elif start[257:262] == b"ustar":
        kind = _ARCHIVE
    elif lines and lines[0].startswith(b"T") and all(map(_BRAT.fullmatch, lines)):
        kind = "brat's annotation of a text", f"give the folder of its texts: `seqpipe init {data.parent}`"
    elif data.suffix == ".spacy":
        kind = (
            "spaCy's binary form",
            f"write it as JSON Lines, with spaCy installed:\n{_SPACY} {data} > {data.stem}.jsonl",
        )
    elif start.startswith(b"S ") and b"\nA " in start and b"|||" in start:
        kind = "M2, texts with their corrections", f"write the pairs of texts:\n{_M2} {data} > {data.stem}.tsv"
    if kind:
        raise DataError(f"{data}: is {kind[0]}, which no reader takes; {kind[1]}")
    if b"\0" in start[:8_000]:
        picture = " (a picture)" if start.startswith((b"\x89PNG", b"\xff\xd8\xff")) else ""
        fix = "give a text file (see docs/tasks/your-data.md for the formats), such as a table with a text in each row"
        raise DataError(f"{data}: is binary data, not text{picture}; {fix}")


def refuse_open_quote(data: Path, lines: Sequence[str]) -> None:
    """Raise DataError if these are all lines of a .csv file, and a quoted cell is not closed in them."""
    for sign in (",", ";") if data.suffix.lower() == ".csv" else ():
        reader, start, is_open = csv.reader((f"{line}\n" for line in lines), delimiter=sign), 1, False
        try:
            for row in reader:
                is_open = bool(row) and row[-1].endswith("\n")  # a closed cell ends before the end of its line
                start = start if is_open else reader.line_num + 1
        except csv.Error:  # a cell of more than 131,072 characters
            is_open = True
        if is_open:
            fix = 'close it, or write a quote within a text twice: ""'
            raise DataError(f"{data}:{start}: a quote opens in this line and is not closed; {fix}")


def refuse_other_lines(data: Path, lines: Sequence[str]) -> None:
    """DataError if lines are word vectors, or pairs of texts behind marks such as IN: and OUT:."""
    cells = [line.split() for line in lines[:100] if line.strip()][1:]  # the first may be the size of the table
    if cells and all(len(row) > 10 and all(map(_NUMBER.fullmatch, row[-10:])) for row in cells):
        fix = "name the file in `embedding: {use: vectors, path: FILE}`, and give the data to learn from here"
        raise DataError(f"{data}: is a file of word vectors; {fix}")
    filled = [line for line in lines if line.strip()]
    marks = Counter((match[1], match[2]) for line in filled if (match := _PAIR.match(line)))
    (first, second), number = marks.most_common(1)[0] if marks else (("", ""), 0)
    if number > 0.95 * len(filled):
        reads = "zcat" if data.suffix == ".gz" else "cat"
        command = rf"{reads} {data.name} | sed -E 's/^{first}: *(.*) {second}: */\1\t/' > data.tsv"
        raise DataError(f"{data}: pairs of texts behind {first}: and {second}:; part them by a tab: `{command}`")


def refuse_useless(summary: DataSummary, data: Path) -> None:
    """DataError if the data is one record, has one label only, or numbers in place of words."""
    if summary.counted == summary.records and summary.use in _COUNTED:
        raise DataError(f"{data}: the words of every record count 1 2 3 …; {_COUNTED[summary.use]}")
    if summary.records == 1 and summary.label_kind != "Continuations":
        hint = "; an empty line ends each sentence" if summary.use == "conll" else ""
        raise DataError(f"{data}: there is one record in it; give a file with many examples{hint}")
    if summary.label_kind in ("Labels", "Tags") and len(summary.labels) == 1:
        (label,) = summary.labels
        unit = "text" if summary.label_kind == "Labels" else "word"
        fix = "give examples of at least two labels"
        raise DataError(f"{data}: every {unit} has the same label, {label!r}; {fix}")
    if summary.label_kind == "Entities" and not summary.labels:
        fix = "mark what is to be found, with tags such as B-city or with spans"
        raise DataError(f"{data}: no record has a span; {fix} (it is {summary.saw or summary.use})")
