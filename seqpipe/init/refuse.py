"""Files that are refused, with advice: formats that no reader takes, and data from which nothing can be learned."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from seqpipe.errors import DataError
from seqpipe.init.summary import DataSummary, open_bytes

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
    b"ARROW1": ("an Arrow file", _PANDAS),
    b"Obj\x01": ("an Avro file", _PANDAS),
    b"BZh": ("compressed with bzip2", "unpack it with `bunzip2`"),
    b"\xfd7zXZ": ("compressed with xz", "unpack it with `unxz`"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "unpack it with `unzstd`"),
    (b"PK\x03\x04", b"7z\xbc\xaf", b"Rar!"): _ARCHIVE,
    (b"\xff\xfe", b"\xfe\xff"): ("text in UTF-16", "convert it: `iconv -f UTF-16 -t UTF-8`"),
    b"#FORMAT=WebAnno": ("WebAnno's TSV", "export the project as CoNLL 2003 or CoNLL-U"),
    b"<?xml": ("XML", _DOCUMENT[1]),
    (b"<!DOCTYPE", b"<html"): ("HTML", _DOCUMENT[1]),
}
_PAIR = re.compile(r"([A-Za-z]+): .* ([A-Za-z]+): ")
_NUMBER = re.compile(r"-?\d*\.?\d+(e-?\d+)?")
_BRAT = re.compile(rb"(T\d+\t\S+ \d+ \d+(;\d+ \d+)*\t.*|[ARE#*]\d*\t.*)")
_GLUED = re.compile(r"[^/_|\s]+([/_|])[^/_|\s]+")  # a word and its tag, as in dog/NN
_LANGUAGE = re.compile(r"\.[a-z]{2}([-_][A-Za-z]{2,4})?")
_SIDES = {".src": ".tgt", ".source": ".target", ".input": ".output"}
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
        form = '`{"text": …, "spans": [[start, end, label], …]}` for each text'
        kind = "brat's annotation of a text", f"write the texts and their .ann files as one JSONL file, {form}"
    if kind:
        raise DataError(f"{data}: is {kind[0]}, which no reader takes; {kind[1]}")
    if b"\0" in start[:8_000]:
        picture = " (a picture)" if start.startswith((b"\x89PNG", b"\xff\xd8\xff")) else ""
        fix = "give a text file (see docs/tasks/your-data.md for the formats), such as a table with a text in each row"
        raise DataError(f"{data}: is binary data, not text{picture}; {fix}")


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
        unpacked = "zcat" if data.suffix == ".gz" else "cat"
        command = rf"{unpacked} {data.name} | sed -E 's/^{first}: *(.*) {second}: */\1\t/' > data.tsv"
        raise DataError(f"{data}: pairs of texts behind {first}: and {second}:; part them by a tab: `{command}`")


def refuse_glued_tags(data: Path, lines: Sequence[str]) -> None:
    """DataError if most words have tags glued to them, as in `dog/NN`."""
    filled = [line for line in lines if line.strip()]
    words = [word for line in filled for word in line.split(" ")]
    signs = Counter(match[1] for word in words if (match := _GLUED.fullmatch(word)))
    if len(words) > 2 * len(filled) and signs.total() > 0.9 * len(words):
        ((sign, _),) = signs.most_common(1)
        fix = "write a word, a tab and its tag on each line, and an empty line after each sentence, for instance with "
        command = rf"sed -E 's:[{sign}]([^{sign} ]+)( |$):\t\1\n:g'"
        raise DataError(f"{data}: words with their tags behind {sign!r}, a form that is not read; {fix}`{command}`")


def refuse_parallel(data: Path) -> None:
    """DataError with the reader for it if a file beside this one holds what belongs to its lines.

    Such files are train.en and train.ja, train.src and train.tgt, or seq.in and seq.out with the words and tags.
    """
    pairs = _SIDES | {target: source for source, target in _SIDES.items()}
    words, tags = data.with_name("seq.in"), data.with_name("seq.out")
    is_tagged = data in (words, tags) and words.exists() and tags.exists()
    beside: list[Path] = []
    if is_tagged:
        beside = [words, tags]
    elif data.suffix in pairs:
        beside = [partner for partner in [data.with_suffix(pairs[data.suffix])] if partner.is_file()]
    elif _LANGUAGE.fullmatch(data.suffix):
        files = sorted(data.parent.glob("*"))
        beside = [partner for partner in files if partner.stem == data.stem and _LANGUAGE.fullmatch(partner.suffix)]
    for partner in beside:
        if partner == data or not (is_tagged or _count_lines(partner) == _count_lines(data)):
            continue
        if is_tagged:
            label = ", label: label" if data.with_name("label").exists() else ""
            fields = f"words: {words.name}, tags: {tags.name}{label}"
        else:
            names = [f"*{data.suffix}", f"*{partner.suffix}"]
            source, target = reversed(names) if data.suffix in _SIDES.values() else names
            fields = f'text: "{source}", target: "{target}"'
        reader = f"reader: {{use: parallel, fields: {{{fields}}}}}"
        fix = f"write a YAML with `{reader}` and `train: {data.name}` under `data:` (docs/tasks/your-data.md)"
        raise DataError(f"{data}: its lines belong to those of {partner.name}, as parallel files; {fix}")


def _count_lines(data: Path) -> int:
    with open_bytes(data) as file:
        return sum(1 for _ in file)


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
