"""Files that are refused, with advice: formats that no reader supports, and data from which nothing can be learned."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from string import Template

from seqpipe.errors import DataError
from seqpipe.files import open_file
from seqpipe.init.summary import DataSummary

_SPACY = """write it as JSON Lines, with spaCy installed:
python3 -c 'import json, sys, spacy
from spacy.tokens import DocBin
for doc in DocBin().from_disk(sys.argv[1]).get_docs(spacy.blank("xx").vocab):
    spans = [[span.start_char, span.end_char, span.label_] for span in doc.ents]
    labels = [name for name in doc.cats if doc.cats[name] >= 0.5]
    print(json.dumps({"text": doc.text, "spans": spans, "labels": labels}))' $file > $stem.jsonl"""
_M2 = """write the pairs of texts:
python3 -c 'import sys
for block in open(sys.argv[1], encoding="utf-8").read().strip().split("\\n\\n"):
    sentence, *lines = block.split("\\n")
    words, edits = sentence.split()[1:], [line[2:].split("|||") for line in lines]
    edits = [edit for edit in edits if edit[-1] == "0"]
    for place, kind, text, *_ in sorted(edits, key=lambda edit: -int(edit[0].split()[0])):
        first, end = map(int, place.split())
        if kind != "noop":
            words[first:end] = text.split()
    print(" ".join(sentence.split()[1:]) + "\\t" + " ".join(words))' $file > $stem.tsv"""
_TEXTS_FIX = "write its texts to a CSV or JSONL file, a text and what is to be learned in each row"
_PANDAS = "load it and write it with pandas: `frame.to_json('data.jsonl', orient='records', lines=True)`"
_TABLE = "write a table of it as CSV: `sqlite3 -header -csv $file 'SELECT text, label FROM TABLE' > data.csv`"
_TEXT_FILE = "give a text file (see docs/data/formats.md for the formats), such as a table with a text in each row"
_FORMATS = (  # a pattern of the first bytes, what such a file is, and the fix
    (rb"%PDF", "a PDF", "extract its text, for instance with `pdftotext`, and write it to a CSV or JSONL file"),
    (rb"\xd0\xcf\x11\xe0", "a spreadsheet or document of an old Office", "save it as CSV (UTF-8)"),
    (rb"SQLite format 3", "an SQLite database", _TABLE),
    (rb"\x80[\x02-\x05]", "a pickle", _PANDAS),
    (rb"\x93NUMPY", "an array of NumPy", _PANDAS),
    (rb"\x89HDF", "an HDF5 file", _PANDAS),
    (rb"Obj\x01", "an Avro file", _PANDAS),
    (rb"\x1f\x8b", "compressed with gzip", "give it a name that ends in .gz, or unpack it with `gunzip`"),
    (rb"BZh", "compressed with bzip2", "unpack it with `bunzip2`"),
    (rb"\xfd7zXZ", "compressed with xz", "unpack it with `unxz`"),
    (rb"\x28\xb5\x2f\xfd", "compressed with Zstandard", "give it a name that ends in .zst, or unpack it with `unzstd`"),
    (rb"PK\x03\x04.*(xl/workbook|opendocument.spreadsheet)", "a spreadsheet", "save it as CSV (UTF-8)"),
    (rb"{\\rtf|PK\x03\x04.*(word/document|ppt/presentation|opendocument|epub.zip)", "a document", _TEXTS_FIX),
    (rb"PK\x03\x04|7z\xbc\xaf|Rar!|.{257}ustar", "an archive", "unpack it and give a file of it"),
    (rb"#FORMAT=WebAnno", "WebAnno's TSV", "export the project as CoNLL 2003 or CoNLL-U"),
    (rb"<\?xml", "XML", _TEXTS_FIX),
    (rb"<!DOCTYPE|<html", "HTML", _TEXTS_FIX),
    (rb"T\d+\t\S+ \d+ \d+[;\d ]*\t", "brat's annotation of a text", "give its folder: `seqpipe init $folder`"),
    (rb"x\x9c", "spaCy's binary form", _SPACY),
    (rb"S [^\n]*\n(\n|S [^\n]*\n)*A [^\n]*\|\|\|", "M2, texts with their corrections", _M2),
    (rb"\x89PNG|\xff\xd8\xff", "binary data (a picture)", _TEXT_FILE),
)
_CONTROL, MAX_NULS = re.compile(rb"[\x01-\x08\x0e-\x1f]"), 0.1  # NUL bytes of a text, as a share of its bytes
_PAIR = re.compile(r"([A-Za-z]+): .* ([A-Za-z]+): ")
_NUMBER = re.compile(r"-?\d*\.?\d+(e-?\d+)?")
_COUNTED = {
    "conll": "remove the column of numbers, for instance with `cut -f2-`, or set the reader's option `words`",
    "jsonl": "write the words themselves as `words`",
}


def refuse_other_formats(data: Path, start: bytes) -> None:
    """DataError with advice if a file with these first bytes, when unpacked, is of a format that no reader supports."""
    for pattern, name, fix in _FORMATS:
        if re.match(pattern, start, re.DOTALL):
            fix = Template(fix).substitute(file=data, stem=data.stem, folder=data.parent)
            raise DataError(f"{data}: is {name}, which no reader supports; {fix}")
    lines = [number for number, line in enumerate(start.split(b"\n"), 1) if b"\0" in line]
    if lines and start.count(b"\0") <= MAX_NULS * len(start) and not _CONTROL.search(start):
        more = f"as {len(lines) - 1} more lines have" if len(lines) > 1 else "and no other has"
        fix = "remove it, for instance with `tr -d '\\0'`"
        raise DataError(f"{data}:{lines[0]}: this line has a NUL byte, {more}; {fix}")
    if b"\0" in start[:8000]:
        raise DataError(f"{data}: is binary data, which no reader supports; {_TEXT_FILE}")


def refuse_faulty_lines(data: Path) -> None:
    """DataError with the first line of a file in UTF-8 that has bytes of no character, and the number of such lines."""
    places = []
    with open_file(data) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte {line[error.start]:#04x} at place {error.start + 1}"
                places.append(f"{data}:{number}: this line is not UTF-8 ({byte})")
    fix = "write these characters again, or leave them out with `iconv -c -f utf-8 -t utf-8`"
    raise DataError(f"{places[0]}, and most of the file is (lines that are not: {len(places):,}); {fix}")


def refuse_other_lines(data: Path, lines: Sequence[str], is_whole: bool) -> None:
    """DataError for word vectors, texts after marks such as IN: and OUT:, a .csv file of one line, or an open quote."""
    filled = [line for line in lines if line.strip()]
    if len(filled) == 1 and data.suffix.lower() in (".csv", ".tsv"):
        raise DataError(f"{data}: has one line; give a table with many rows, and their names in the first line")
    signs = (",", ";") if is_whole and data.suffix.lower() == ".csv" else ()
    for sign in signs:
        rows, start = csv.reader((f"{line}\n" for line in lines), delimiter=sign, strict=True), 1
        try:
            for _ in rows:
                start = rows.line_num + 1
        except csv.Error as error:
            if "expected after" not in str(error):  # that is a quote within a text
                fix = 'close it, or write a quote within a text twice: ""'
                raise DataError(f"{data}:{start}: a quote opens in this line and is not closed; {fix}") from error
    cells = [line.split() for line in filled[1:100]]  # the first may be the size of the table
    if cells and all(len(row) > 10 and all(map(_NUMBER.fullmatch, row[-10:])) for row in cells):
        fix = "name the file in `embedding: {use: vectors, path: FILE}`, and give `init` the training data"
        raise DataError(f"{data}: is a file of word vectors; {fix}")
    marks = Counter(match.groups() for match in map(_PAIR.match, filled) if match)
    for (first, second), number in marks.most_common(1):
        if number > 0.95 * len(filled):
            cat = "zcat" if data.suffix == ".gz" else "cat"
            command = rf"{cat} {data.name} | sed -E 's/^{first}: *(.*) {second}: */\1\t/' > data.tsv"
            raise DataError(f"{data}: pairs of texts after {first}: and {second}:; separate them by a tab: `{command}`")


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
        raise DataError(f"{data}: every {unit} has the same label, {label!r}; give examples of at least two labels")
    if summary.label_kind == "Entities" and not summary.labels:
        fix = "mark what is to be found, with tags such as B-city or with spans"
        raise DataError(f"{data}: no record has a span; {fix} (it is {summary.saw or summary.use})")
