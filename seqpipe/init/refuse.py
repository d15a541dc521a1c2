"""Files that are refused, with advice: formats that no reader supports, and data from which nothing can be learned."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from seqpipe.errors import DataError
from seqpipe.files import open_file
from seqpipe.init.columns import summarise_fields
from seqpipe.init.datafile import LONG_SIGNS, UNUSED_SIGN, DataFile
from seqpipe.init.evidence import CAP, Fact, Facts, Frame, Reading, each, fact
from seqpipe.init.fields import Field, kinds_of, spread
from seqpipe.init.labels import TEXTS, texts_of, textual
from seqpipe.init.lines import MIN_CHARACTERS, check_text
from seqpipe.init.names import SPLITS
from seqpipe.init.summary import WHOLE_BYTES, DataSummary, size_of

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
    (rb"\x93NUMPY|\x89HDF|Obj\x01", "a file of NumPy, HDF5 or Avro", _PANDAS),
    (rb"\x1f\x8b", "compressed with gzip", "give it a name that ends in .gz, or unpack it with `gunzip`"),
    (rb"BZh|\xfd7zXZ", "compressed with bzip2 or xz", "unpack it with `bunzip2` or `unxz`"),
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
_TSPLIB_FIX = "write lines for the reader `points`, such as `0.1 0.5 0.2 0.9 output 1 2 1`"
_CONTROL, MAX_NULS = re.compile(rb"[\x01-\x08\x0e-\x1f]"), 0.1  # NUL bytes of a text, as a share of its bytes
_PAIR = re.compile(r"([A-Za-z]+): .* ([A-Za-z]+): ")
_OBJECTS_FIX = 'write an object on each line, or a list of objects, such as [{"text": …, "label": …}, …]'
_RECORDS_FIX = "write its records to JSON Lines, a text and what is to be learned in each"
_VECTOR_FIX = "name the file in `embedding: {use: vectors, path: FILE}`, and give `init` the training data"
_OFFSETS_FIX = "the text is another file: write both as JSON Lines with `text` and `spans`"
_NUMERIC = {"numbers", "ratings", "row numbers", "identifiers", "dates", "truth values", "amounts"}
_CONTENT = {"texts", "repeated texts", "lists of texts", "lists of objects", "objects", "lists as text", "features"}
_CONTENT |= {"media", "files", "lists of labels"}
_SOUND_FIX = "write the path of each sound beside its text"
_MARKUP_FIX = "write the texts without the tags, and the marked parts as spans, to JSON Lines"
_TAG = r"\s*<[A-Za-z?!/][^<>]*>|.*<(\w+)[^<>]*>[^<>]+</\1>"
_KEY = r"(?!(\S+\s+){12})[A-Za-z_][\w .-]{0,30}\s*[:=]\s*\S"
_LINE_FORMS = (  # name, pattern of a line, share of the lines that have it, bits, and the fix
    ("a file of word vectors", r"(?!.* output )\S+\s(-?\d*\.?\d+(e-?\d+)?\s*){10,}$", 0.9, 120.0, _VECTOR_FIX),
    ("offsets beside a text", r"\d+ \w+ \d+ \d+ ", 0.9, 120.0, _OFFSETS_FIX),
    ("markup (XML or HTML)", _TAG, 0.3, 100.0, _MARKUP_FIX),
    ("a problem of TSPLIB", r"[A-Z_]+_SECTION\s*$", 0, 80.0, _TSPLIB_FIX),
    ("keys and values", _KEY, 0.8, 40.0, _RECORDS_FIX),
    ("YAML", r"\s*(- |\w+:( |$))", 0.9, 39.0, _RECORDS_FIX),
)
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


def _refusal(name: str, facts: Facts, fix: str, frame: Frame | None = None) -> Reading:
    return Reading(name, None, {}, facts, frame, fix)


def read_numbers(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A table without texts: numbers, dates, identifiers."""
    kinds = Counter(field.kind for field in frame.fields)
    has_content = bool(kinds.keys() & _CONTENT)
    numbers = [field for field in frame.fields if field.kind in _NUMERIC]
    if not has_content and len(numbers) >= 0.6 * len(frame.fields):
        facts = frame.facts | {fact("numbers", field): 12.0 for field in numbers} | {Fact("no texts"): 25.0}
        fix = "seqpipe learns from texts; give a table with a column of texts"
        yield _refusal("a table of numbers", facts, fix, frame)
    keys = [field for field in frame.fields if field.is_a("identifiers", "row numbers", "names of texts")]
    is_pair = len(frame.fields) == 2 and frame.fields[0] in keys and frame.fields[1].kind in (_NUMERIC | {"few values"})
    is_rest = frame.groups is None and len(keys) == len(frame.fields) - 1 > 0 and not has_content and not kinds["words"]
    if is_pair or (is_rest and not kinds["names"]):
        facts = frame.facts | {fact("identifiers", field): 20.0 for field in frame.fields}
        fix = "it has no texts; join it with the file that has them"
        yield _refusal("a table of identifiers", facts, fix, frame)


def read_sound_ids(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Identifiers of sounds and their transcripts, as LJSpeech's metadata.csv."""
    texts = frame.get("texts", "names")
    is_bar = frame.options.get("delimiter") == "|"
    if frame.header or not is_bar or not texts or not frame.fields[0].is_a("identifiers"):
        return
    facts: Facts = frame.facts | {Fact("identifiers first"): each(frame.size, 3), Fact("a transcript"): CAP}
    unused = {field.name: "the same transcript, not written out" for field in frame.fields}
    roles = {frame.fields[0].name: "media", texts[-1].name: "target"}
    reading = Reading("identifiers of sounds and their transcripts", "Texts", roles, facts, frame, unused=unused)
    reading.complete = partial(summarise_fields, file)
    yield reading


def read_texts_alone(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Texts with nothing beside them: for a language model."""
    texts = texts_of(frame, file.request)
    fix = f"give texts with a {frame.noun} of labels (few values), of numbers, or of texts to write"
    fix = f"{frame.saw}: nothing to learn in it: the {frame.noun}s are {kinds_of(frame.fields)}; {fix}"
    if not texts or not texts[0].is_a("texts", "repeated texts"):
        yield _refusal("a table without texts and what is learned of them", frame.facts, fix, frame)
        return
    text = texts[0]
    facts: Facts = frame.facts | {TEXTS: textual(text), fact("name of a text", text): text.named("text")}
    is_asked = file.request.task is not None and file.request.task.head == "lm"
    is_small = text.characters * text.size < MIN_CHARACTERS and size_of(file.path) < WHOLE_BYTES
    if is_small and not is_asked:
        yield Reading("few texts alone", None, {text.name: "text"}, facts, frame, fix)
        return
    doubt = "" if frame.is_json or len(frame.fields) == 1 else "nothing else can be learned"
    reading = Reading("texts alone", "Continuations", {text.name: "text"}, facts, frame, doubt=doubt)
    reading.complete = lambda reading: check_text(summarise_fields(file, reading), file)
    yield reading


def read_other_json(file: DataFile) -> Iterator[Reading]:
    """JSON without a list of objects, lists of texts, and several lists of objects."""
    if file.json is None:
        if file.text.lstrip()[:1] in ("{", "[") and file.text.lstrip()[:2].strip() in ("{", "[", '{"', "[{", '["'):
            yield _refusal("JSON that cannot be read", {Fact("begins as JSON"): 10.0}, _first_fault(file))
        return
    value, use = file.json
    lists = file.record_lists
    big = [(key, len(items)) for key, items in lists if 5 * len(items) > len(lists[0][1])]
    names = {key.rpartition(".")[2].lower() for key, _ in lists}
    if use == "json" and len(lists) > 1 and (names & SPLITS or len(big) > 1):
        listed = ", ".join(f"{key!r} ({len(items):,})" for key, items in lists[:5])
        key = lists[0][0]
        command = f"jq '.{key}' {file.shell} > {key.rpartition('.')[2]}.json"
        fix = f"make a file of each that is meant, for instance with `{command}`"
        yield _refusal(f"several lists of objects: {listed}", {Fact("several lists"): 150.0}, fix)
    elif isinstance(value, (dict, list)) and not lists and use == "json":
        is_list = isinstance(value, list)
        name = "a JSON list, but not of objects" if is_list else "one JSON object without a list of objects"
        yield _refusal(name, {Fact("no list of objects"): 5.0}, f"{_OBJECTS_FIX}{_conversion(file, value)}")


def _first_fault(file: DataFile) -> str:
    """Return the place of the first fault in JSON, or in JSON Lines."""
    is_lines = len(file.filled) > 1 and file.filled[0][0] == "{" and file.filled[1][0] == "{"
    for number, text in enumerate(file.lines if is_lines else [file.text], 1):
        try:
            json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            line = number if is_lines else getattr(error, "lineno", 1)
            return f"{file.path}:{line}: this is not JSON ({error}); correct it; is the file whole?"
    return "correct it"


def read_joined_texts(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A list of texts that is longer than the other texts: its texts must be joined first."""
    longest = max((field.characters for field in frame.get("texts", "repeated texts", "names")), default=0.0)
    for field in frame.get("lists of texts"):
        if frame.is_json and field.characters > 1.2 * longest and field.words > 4:
            facts = frame.facts | {fact("a list longer than the texts", field): CAP + 10}
            query = f'{frame.jq_items} | .{field.name} |= join(" ")'
            command = f"jq -c '{query}' {file.shell} > {file.path.name.partition('.')[0]}-texts.jsonl"
            fix = f"make one text of each list, for instance with `{command}`"
            yield _refusal(f"a file in which {field.title} is a list of texts", facts, fix, frame)


def _conversion(file: DataFile, value: Any) -> str:
    """Return a command that makes objects of the lists or columns of an object; an empty text for other values."""
    items = value if isinstance(value, dict) else {}
    for key, part in items.items():
        if isinstance(part, list) and part and isinstance(part[0], list):
            command = f"jq -c '.{key}[] | {{text: .[0], label: .[1]}}' {file.shell} > {key}.jsonl"
            return f"; make objects of the lists in it, for instance with `{command}`"
    sizes = [len(part) if isinstance(part, (list, dict)) else None for part in items.values()]
    if len(sizes) < 2 or None in sizes or len({*sizes}) > 1:
        return ""
    read, out = f'pandas.read_json("{file.path}")', f"{file.path.stem}.jsonl"
    command = f'python3 -c \'import pandas; {read}.to_json("{out}", orient="records", lines=True)\''
    return f"; if these are columns, turn them into records, for instance with `{command}`"


def read_other_lines(file: DataFile) -> Iterator[Reading]:
    """Lines of a form that no reader has: word vectors, marked pairs, markup, keys and values, and others."""
    lines = spread(file.filled, 2_000)
    if not lines or file.json:
        return
    for name, pattern, least, bits, fix in _LINE_FORMS:
        if sum(bool(re.match(pattern, line)) for line in lines) > least * len(lines):
            yield _refusal(name, {Fact("the form of every line"): bits}, fix)
    marks = Counter(match.groups() for match in map(_PAIR.match, lines) if match)
    for (first, second), number in marks.most_common(1):
        if number > 0.95 * len(lines):
            cat = "zcat" if file.path.suffix == ".gz" else "cat"
            out = f"{file.path.name.partition('.')[0]}.tsv"
            command = rf"{cat} {file.shell} | sed -E 's/^{first}: *(.*) {second}: */\1\t/' > {out}"
            fix = f"separate them by a tab: `{command}`"
            yield _refusal(f"pairs of texts after {first}: and {second}:", {Fact("marks in every line"): 3 * CAP}, fix)
    if file.sign in LONG_SIGNS:
        facts = {Fact("a sign in every line", (file.sign,)): 2 * CAP, Fact("every line"): CAP}
        fix = "write tabs between them, for instance with `sed`"
        yield _refusal(f"a table with {file.sign!r} between its columns", facts, fix)
    mean = sum(len(line.split()) for line in lines) / len(lines)
    identifiers = Field("id", [line.split()[0] for line in lines])
    form = re.compile(r"(?=.*\d)[\w.-]*[-_][\w.-]*\d[\w.-]*|\d{3,}[-_\d]*|(?=.*\d)(?=.*[A-Za-z])\w{7,}")
    if mean > 2.5 and identifiers.different == len(lines) > 5 and identifiers.share(form) > 0.95:
        facts = {Fact("an identifier in every line"): each(len(lines), 4), Fact("all differ"): 20.0}
        if file.sign:
            facts[UNUSED_SIGN] = -50.0
        yield _refusal("identifiers and transcripts, as Kaldi's `text`", facts, _SOUND_FIX)


def read_faulty_tables(file: DataFile) -> Iterator[Reading]:
    """A table of one line, an open quote, or a first line with another number of cells."""
    is_csv = file.path.suffix.lower() in (".csv", ".tsv")
    if len(file.filled) == 1 and is_csv and file.text.lstrip()[0] not in "{[":
        fix = "give a table with many rows, and their names in the first line"
        yield _refusal("a table of one line", {Fact("one line"): CAP}, fix)
    if not is_csv or not file.filled or file.json:
        return
    for sign in (",", ";"):
        rows, start = csv.reader((f"{line}\n" for line in file.lines), delimiter=sign, strict=True), 1
        try:
            for _ in rows:
                start = rows.line_num + 1
        except csv.Error as error:
            if file.is_whole and "expected after" not in str(error) and sign in file.filled[0]:  # a quote within a text
                fix = 'a quote opens in this line and is not closed; close it, or write a quote within a text twice: ""'
                facts = {Fact("an open quote"): 100.0}
                yield Reading("a table with an open quote", None, {}, facts, fix=fix, line=start)
                return
    for frame in file.frames:
        if frame.first_width not in (1, len(frame.fields)) and frame.first_width and frame.groups is None:
            problem = f"the first line has {frame.first_width} cells, but the rows have {len(frame.fields)}"
            fix = f"{problem}; name every column in it, or leave it out"
            facts = frame.facts | {Fact("another first line"): 100.0}
            yield Reading("a table with another first line", None, {}, facts, frame, fix, line=1)


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
