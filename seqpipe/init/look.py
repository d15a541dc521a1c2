"""Recognise the format of a data file, and summarise all of it."""

from __future__ import annotations

import codecs
import functools
import io
import itertools
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seqpipe.errors import DataError, EnvError, OpenChoiceError
from seqpipe.files import PACKED, open_file
from seqpipe.init.conll import has_columns, summarise_conll, summarise_conllu
from seqpipe.init.objects import find_json, summarise_answers, summarise_form, summarise_objects
from seqpipe.init.refuse import refuse_open_quote, refuse_other_formats, refuse_other_lines
from seqpipe.init.roles import ColumnTask
from seqpipe.init.summary import DataSummary, LabelKind, reader_of
from seqpipe.init.tables import summarise_table
from seqpipe.init.texts import (
    summarise_fasttext,
    summarise_first_word,
    summarise_folder,
    summarise_glued,
    summarise_parallel,
    summarise_points,
    summarise_segmented,
    summarise_text,
)

SPREADSHEETS = (".xlsx", ".xls", ".ods", ".xlsb", ".xlsm")
PARQUET = b"PAR1"
CODE_PAGES = ("cp1252", "cp1250", "cp1254", "cp1257", "mac_roman", "cp437")
# A Latin letter beside a letter of another alphabet or a sign that is no punctuation mark, or a capital behind a small
# letter: as a text looks in a code page that is not its own.
_ODD = re.compile(
    "[A-Za-z][\u0370-\u06ff\u0e00-\u0e7f\xa4-\xa9\xac\xae-\xb3\xb5\xb6\xb8-\xba\xbc-\xbe\xd7\xf7\u2190-\u25ff]"
    "|[\u0370-\u06ff\u0e00-\u0e7f\xa6\xa8\xac\xaf\xb3\xb5\xb6\xb8\xb9\xbe\xd7\xf7\u2190-\u25ff][A-Za-z]"
    "|[a-z][\xc0-\xdeĄĆĘŁŃŚŹŻČĎĚŇŘŠŤŮŽŐŰĞİŞŒŸ]|[\x80-\x9f]"
)
LATIN = 0.15  # of the bytes of a line in Latin letters are not ASCII, at most
SHORTEST = 16  # bytes of UTF-16 without a mark
SAMPLE = 200_000  # bytes of lines that are not ASCII, by which an encoding is recognised
MAJORITY = 0.9  # of the texts have one label: the score of a model that answers nothing else
LINES, BYTES = 1_000, 10_000_000  # read to find out what kind of file it is, at most
_SQUAD = re.compile(r'\{\s*("[^"\\]*"\s*:\s*("[^"\\]*"|[-+.\w]+)\s*,\s*)*"data"\s*:\s*\[\s*\{')


@dataclass(frozen=True)
class Task:
    """A task that `--task` asks for.

    Attributes:
        head: Its head.
        kinds: What is learned (`DataSummary.label_kind`).
        needs: Data that can be learned from.
        column: The task of a column of a table, if a table can be learned from.
        has_words: Whether it takes files of a word a line, even where they look like a table or a text.
        is_plain: Whether it takes plain text, even where its lines look like columns.
    """

    head: str
    kinds: tuple[LabelKind, ...]
    needs: str
    column: ColumnTask | None = None
    has_words: bool = False
    is_plain: bool = False


TASKS = {
    task.head: task
    for task in (
        Task("crf", ("Entities", "Tags"), "words with a tag each, or texts with spans", has_words=True),
        Task("tags", ("Tags",), "words with a tag each", has_words=True),
        Task("label", ("Labels",), "texts with a label (few values) each", "Labels"),
        Task("score", ("Numbers",), "texts with a number each", "Numbers"),
        Task("seq2seq", ("Texts",), "pairs of texts", "Texts"),
        Task("answer-span", ("Answers",), "questions on passages, with answers, as in SQuAD"),
        Task("pointer", ("Pointers",), "lines of points and positions"),
        Task("lm", ("Continuations",), "plain text in a .txt file", is_plain=True),
    )
}


def summarise(
    data: Path, task: Task | None = None, target: str | None = None, texts: Sequence[str] = ()
) -> DataSummary:
    """Look at a data file and summarise it; `target` and `texts` are the columns or keys that are asked for.

    Raises:
        DataError: if it is of no known format, or lacks what the task needs.
    """
    encoding, also = encoding_of(data)
    look = functools.partial(_summarise, task=task, target=target, texts=texts)
    if data.is_file() and data.suffix.lower() in SPREADSHEETS:
        reader = reader_of("excel", {})
        summary = _summarise_copy(data, look, reader.lines(data), "excel")
        if len(reader.sheets) > 1:
            first, *more = reader.sheets
            summary.notes.append(f"the sheet {first!r} is read; the option `sheet` names another: {', '.join(more)}")
    elif encoding:
        summary = _summarise_encoded(data, look, encoding)
        likely = f"; {' or '.join(also)} is as likely" if also else ""
        summary.notes.append(f"the file is not in UTF-8, and looks like {encoding}{likely}")
    else:
        summary = look(data)
    if task and summary.label_kind not in task.kinds:
        fits = next(task_type.head for task_type in TASKS.values() if summary.label_kind in task_type.kinds)
        seen = summary.saw or f"data of the reader {summary.use}"
        raise DataError(f"{data}: --task {task.head} needs {task.needs}; the file is {seen}, for --task {fits}")
    if summary.label_kind == "Labels":
        spelled: dict[str, list[str]] = {}
        for label in summary.labels:
            spelled.setdefault(unicodedata.normalize("NFKC", label).strip().casefold(), []).append(label)
        for alike in (labels for labels in spelled.values() if len(labels) > 1):
            listed = ", ".join(f"{label!a} {summary.labels[label]:,}" for label in alike)
            summary.doubt(f"labels that differ by case, blanks or Unicode form alone are learned as others: {listed}")
    (label, most), *others = summary.labels.most_common() or [("", 0)]
    if summary.label_kind == "Labels" and not summary.multi and others and most >= MAJORITY * summary.labels.total():
        share = f"{most / summary.labels.total():.1%} of the texts have the label {label!r}"
        summary.doubt(f"{share}: so much accuracy has an answer that is always the same; compare macro F1")
    return summary


def encoding_of(data: Path) -> tuple[str | None, list[str]]:
    """Return the encoding of a text file that is not in UTF-8, and others that are as likely; None for other files.

    Raises:
        DataError: if its encoding cannot be told.
        EnvError: if charset-normalizer is missing, which tells it.
    """
    if not data.is_file():
        return None, []
    decoder, start, sample = codecs.getincrementaldecoder("utf-8")(), b"", b""
    try:
        with open_file(data) as file:
            start = file.read(BYTES)
            decoder.decode(start)
            while part := file.read(BYTES):
                decoder.decode(part)
            decoder.decode(b"", final=True)
            is_utf8 = True
    except UnicodeDecodeError as error:
        is_utf8, sample = False, error.object
    except DataError:
        return None, []  # which is an error when the file is read
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-32" if start.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")) else "utf-16", []
    head = start[:4_000]
    for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if len(head) >= SHORTEST and zeros.count(0) > len(zeros) / 3 and head.count(0) < 1.1 * zeros.count(0):
            return name, []
    if is_utf8 or b"\0" in head or b"\xff\xfe" in sample or start.startswith(PARQUET):
        return None, []
    refuse_other_formats(data, start)
    lines = b"\n".join(line for line in sample.splitlines() if not line.isascii())[:SAMPLE]
    text = lines.decode("utf-8", "replace")
    if sum(not character.isascii() for character in text) > 2 * text.count("\ufffd"):
        return None, []  # UTF-8 with faults, which have their lines where the file is read
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        fix = "pip install charset-normalizer, or convert the file to UTF-8"
        raise EnvError(f"{data}: is not in UTF-8, and charset-normalizer is not installed: {fix}") from error
    # Short texts in Latin letters look like many code pages: of those, the one with the fewest odd signs is meant.
    names = [match.encoding for match in from_bytes(lines) if not match.encoding.startswith(("utf_16", "utf_32"))]
    faults: dict[str, tuple[int, bool]] = {}
    texts: dict[str, str] = {}
    for name in (*names, *CODE_PAGES):
        try:
            texts[name] = lines.decode(name)
        except UnicodeError:
            continue
        faults[name] = sum(bool(_ODD.search(word)) for word in texts[name].split()), name != "cp1252"
    if not faults:
        fix = "convert it: `iconv -f ENCODING -t UTF-8`"
        raise DataError(f"{data}: is not in UTF-8, and its encoding cannot be told; {fix}")
    is_latin = sum(byte > 127 for byte in lines) < LATIN * len(lines)
    sound = [name for name in names if not faults[name][0]]
    best = min(faults, key=lambda name: faults[name]) if is_latin or not sound else sound[0]
    equal = [name for name in names if faults[name][0] == faults[best][0] and texts[name] != texts[best]]
    return best, equal[:2]


def _summarise_encoded(data: Path, look: Callable[[Path], DataSummary], encoding: str) -> DataSummary:
    """Summarise a text file of another encoding by a copy in UTF-8."""
    try:
        with open_file(data) as file, io.TextIOWrapper(file, encoding, newline="") as source:
            summary = _summarise_copy(data, look, source)
    except UnicodeError as error:
        fix = "convert it, or correct the fault"
        raise DataError(f"{data}: looks like {encoding}, but not all of it is ({error}); {fix}") from error
    summary.options["encoding"] = encoding
    return summary


def _summarise_copy(
    data: Path, look: Callable[[Path], DataSummary], lines: Iterable[str], use: str = ""
) -> DataSummary:
    """Summarise a file by a copy in UTF-8, or a spreadsheet by one in CSV, for its reader `use`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, data.name.removesuffix(data.suffix) if data.suffix in PACKED else data.name)
        with copy.open("w", encoding="utf-8", newline="") as file:
            file.writelines(lines)
        try:
            summary = look(copy)
        except OpenChoiceError as error:
            raise OpenChoiceError(data, error.question, error.readings) from error
        except DataError as error:
            raise DataError(str(error).replace(str(copy), str(data))) from error
    summary.notes = [note.replace(str(copy), str(data)) for note in summary.notes]
    summary.doubts = [replace(doubt, text=doubt.text.replace(str(copy), str(data))) for doubt in summary.doubts]
    if use and summary.use != "csv":
        raise DataError(f"{data}: is no table of texts; save the sheet as a text file, and give that")
    summary.use = use or summary.use
    return summary


def _summarise(data: Path, task: Task | None, target: str | None, texts: Sequence[str]) -> DataSummary:
    """Try the formats in turn, those that are recognised for certain first."""
    column = task.column if task else None
    if data.is_dir():
        is_dataset = any(data.glob("*.arrow"))
        return summarise_objects(data, "datasets", {}, column, target, texts) if is_dataset else summarise_folder(data)
    if data.exists() and not data.is_file():
        raise DataError(f"{data}: is a pipe or a device, and is read more than once; make a file of it first")
    with open_file(data) as file:
        start = file.read(BYTES)
    if start.startswith(PARQUET) or data.suffix in (".arrow", ".feather"):
        return summarise_objects(data, "parquet", {}, column, target, texts)
    refuse_other_formats(data, start)
    lines = start.decode("utf-8-sig", "replace").splitlines()[:LINES]
    lines = [*itertools.dropwhile(lambda line: not line.strip(), lines)]
    if not lines:
        raise DataError(f"{data}: is empty; give the file with your training examples")
    lines[0] = lines[0].lstrip()
    if summary := summarise_fasttext(data, lines, column):
        return summary
    if not (task and task.is_plain) and (summary := summarise_glued(data, lines)):
        return summary
    if summary := summarise_points(data, lines):
        return summary
    if _SQUAD.match("\n".join(lines)) and any('"paragraphs"' in line for line in lines):
        return summarise_answers(DataSummary("squad"), data)
    is_form = lines[0][0] in "{[" or any(line.startswith(("nlu:", "## intent:", "##intent:")) for line in lines)
    if is_form and (summary := summarise_form(data, task.kinds if task else None)):
        return summary
    if json_form := find_json(data, lines):
        return summarise_objects(data, *json_form, column, target, texts)
    row = next((line.split("\t") for line in lines if line.strip() and not line.startswith("#")), [])
    if len(row) == 10 and row[0].partition("-")[0].isdigit():
        return summarise_conllu(data)
    if task and task.has_words:
        return summarise_conll(data, task.head, target)
    # Plain lines with the same number of lines beside them are no table; commas within their texts may look like one.
    is_table = has_columns(lines) or "\t" in lines[0] or (task and task.is_plain)
    if not is_table and (summary := summarise_parallel(data)):
        return summary
    if task and not (task.column or task.is_plain):
        raise DataError(f"{data}: --task {task.head} needs {task.needs}, and the file does not look so")
    is_plain = task.is_plain if task else not has_columns(lines)
    if not (task and task.is_plain) and (summary := summarise_table(data, lines, column, target, texts)):
        return summary
    if data.suffix.lower() in (".csv", ".tsv") and len([line for line in lines if line.strip()]) == 1:
        raise DataError(f"{data}: has one line; give a table with many rows, and their names in the first line")
    if len(lines) < LINES:
        refuse_open_quote(data, lines)
    refuse_other_lines(data, lines)
    if not (task and task.is_plain) and (
        summary := summarise_segmented(data, lines) or summarise_first_word(data, lines)
    ):
        return summary
    text = summarise_text(data, lines) if is_plain else None
    return text or summarise_conll(data, target=target)
