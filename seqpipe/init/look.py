"""Recognise the format of a data file, and summarise all of it."""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from seqpipe.answers.task import rare_labels
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import options_model
from seqpipe.errors import DataError, EnvError, OpenChoiceError
from seqpipe.files import PACKED, open_file
from seqpipe.init import beside, conll, labels, lines, objects, pairs, refuse
from seqpipe.init.datafile import DataFile
from seqpipe.init.decide import Decision, ask, collect, decide, options_of
from seqpipe.init.evidence import Request
from seqpipe.init.refuse import refuse_faulty_lines, refuse_other_formats
from seqpipe.init.summary import DataSummary, Task, count, head_for, reader_of, spread_records

SPREADSHEETS = (".xlsx", ".xls", ".ods", ".xlsb", ".xlsm")
PARQUET = b"PAR1"
CODE_PAGES = ("cp1252", "cp1250", "cp1254", "cp1257", "mac_roman", "cp437")  # the last two decode any bytes
_RARE_SIGNS = {*"¤¦¨¬¯±²³µ¶¸¹¼½¾×÷ºª"}
EXAMINED_BYTES = 10_000_000  # read at once
ENCODING_SAMPLE_BYTES = 50_000  # bytes of lines that are not ASCII, by which an encoding is recognised
PEEK = 1_000  # records that are read as a test
MAX_ACCOUNT_LINES = 3  # about what stays unused

# Readings of records with fields, of words in columns, and of files: all of them compete, and none is asked first.
OF_RECORDS = (
    labels.read_labels,
    labels.read_indicators,
    labels.read_scores,
    pairs.read_pairs,
    pairs.read_media,
    pairs.read_inflection,
    pairs.read_numbers_to_write,
    pairs.read_preferences,
    pairs.read_retrieval,
    pairs.read_choices,
    conll.read_tagged,
    objects.read_list_tags,
    objects.read_spans,
    objects.read_span_rows,
    objects.read_answers,
    objects.read_chats,
    refuse.read_texts_alone,
    refuse.read_numbers,
    refuse.read_sound_ids,
    refuse.read_joined_texts,
)
OF_WORDS = (conll.read_tagged, pairs.read_inflection, refuse.read_numbers)
OF_FILES = (
    objects.read_forms,
    refuse.read_other_json,
    lines.read_fasttext,
    lines.read_first_or_last_word,
    lines.read_glued_tags,
    lines.read_split_words,
    lines.read_dictionary,
    lines.read_points,
    lines.read_plain_text,
    beside.read_beside,
    beside.read_folder,
    refuse.read_other_lines,
    refuse.read_faulty_tables,
)


def decision_on(data: Path, request: Request) -> tuple[DataFile, Decision]:
    """Return the decision on a data file in UTF-8; DataError if no reader supports it."""
    if data.exists() and not (data.is_file() or data.is_dir()):
        raise DataError(f"{data}: is a pipe or a device, and is read more than once; make a file of it first")
    file = DataFile(data, request)
    if not file.is_folder:
        if not file.is_binary_table:
            refuse_other_formats(data, file.start)
        if not (file.is_binary_table or file.text.strip()):
            raise DataError(f"{data}: is empty; give the file with your training examples")
        if "\ufffd" in file.text:
            for _ in reader_of("text", {}).read(data):
                pass  # the reader names the first line that is not UTF-8
    return file, decide(file, collect(file, OF_RECORDS, OF_WORDS, OF_FILES))


def summarise(
    data: Path, task: Task | None, target: str | None, texts: Sequence[str], header: bool | None
) -> DataSummary:
    """Return the summary of a data file; `target` and `texts` are the columns or keys that are asked for.

    `header` decides whether the first row of a table has the names of its columns; None: what it looks like.
    """
    look = partial(_summarise, request=Request(task, target, tuple(texts), header))
    encoding, alternatives = encoding_of(data)
    if data.is_file() and data.suffix.lower() in SPREADSHEETS:
        reader = reader_of("excel", {})
        summary = _summarise_copy(data, look, reader.lines(data))
        if summary.use != "csv":
            raise DataError(f"{data}: is not a table of texts; save the sheet as a text file, and give that")
        summary.use = "excel"
        if len(reader.sheets) > 1:
            first, *more = reader.sheets
            summary.notes.append(f"the sheet {first!r} is read; the option `sheet` names another: {', '.join(more)}")
    elif encoding:
        try:
            with open_file(data) as file, io.TextIOWrapper(file, encoding, newline="") as source:
                summary = _summarise_copy(data, look, source)
        except UnicodeError as error:
            fix = "convert it, or correct the fault"
            raise DataError(f"{data}: looks like {encoding}, but not all of it is ({error}); {fix}") from error
        summary.options["encoding"] = encoding
        summary.notes.append(f"the file is not in UTF-8, and looks like {encoding}")
        if alternatives:
            fix = "look at its letters, and correct `encoding` in the YAML if they are wrong"
            summary.doubt(f"{' or '.join(alternatives)} is as likely as {encoding}; {fix}")
    else:
        summary = look(data)
    seen = summary.saw or f"data of the reader {summary.use}"
    if header is not None and summary.use not in ("csv", "tsv", "excel"):
        raise DataError(f"{data}: --header is for tables, such as CSV, and the file is {seen}; leave the option out")
    if task and task.head == "tags" and summary.label_kind == "Entities":
        summary = _plain_tags(summary, data) or summary
    if task and summary.label_kind not in task.kinds:
        fits = f"the file is {seen}, for --task {head_for(summary.label_kind)}"
        raise DataError(f"{data}: --task {task.head} needs {task.needs}; {fits}")
    if summary.label_kind == "Labels":
        _doubt_labels(summary, data)
    return summary


def _summarise(data: Path, request: Request) -> DataSummary:
    """Return the summary of the best reading; DataError if it refuses, OpenChoiceError if it asks."""
    file, decision = decision_on(data, request)
    best = decision.best
    if decision.verdict == "refuse":
        place = f"{file.path}:{best.line}: " if best.line else f"{file.path}: is {best.name}; "
        raise DataError(f"{place}{best.fix}")
    if decision.verdict == "ask":
        raise ask(file, decision)
    assert best.complete is not None
    summary = best.complete(best)
    _name_unused(summary, decision)
    summary.decision = decision
    return summary


def _name_unused(summary: DataSummary, decision: Decision) -> None:
    """Name the fields that stay unused, with the option that would use each: three lines at most."""
    texts = [item.option for item in decision.best.of("text", "text_pair")]
    named = list[str]()
    for item in decision.left_out():
        others = [reading for reading in decision.others if item.name in dict(reading.targets)]
        is_text = item.is_a("texts", "repeated texts") and texts
        if len(summary.doubts) >= MAX_ACCOUNT_LINES - 1 or not (is_text or others):
            named.append(f"{item.name} ({item.kind})")
        elif is_text:
            problem = f"{item.title} has texts that are not used. To read both"
            summary.doubt(problem, "--text", texts[0], "--text", item.option)
        else:
            summary.doubt(f"{item.title} may be learned too. To learn it", *options_of(others[0])[:4])
    for name, reason in decision.best.unused.items():
        if reason and name in decision.unused:
            summary.notes.append(f"{name!r} has {reason}")
    if named:
        more = f" and {len(named) - 6} more" if len(named) > 6 else ""
        summary.notes.append(f"not used: {', '.join(named[:6])}{more}")


def _doubt_labels(summary: DataSummary, data: Path) -> None:
    """Doubt labels that differ by their spelling alone, that are rare, or of which one is that of nearly all texts."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for label in summary.labels:
        spellings[unicodedata.normalize("NFKC", label).strip().casefold()].append(label)
    for alike in spellings.values():
        if len(alike) > 1:
            listed = ", ".join(f"{label!a} {summary.labels[label]:,}" for label in alike)
            summary.doubt(f"labels that differ by case, blanks or Unicode form alone are different labels: {listed}")
    if 1 in summary.labels.values() and summary.factor == 1 and not summary.multi:
        places = {str(record["label"]): str(record.get("where", "")) for record in spread_records(summary, data)}
        if message := rare_labels(summary.labels, places):
            summary.doubt(message)
    total = summary.labels.total()
    label, number = (summary.labels.most_common(1) or [("", 0)])[0]
    if not summary.multi and 0.9 * total <= number < total:
        share = f"{number / total:.1%} of the texts have the label {label!r}"
        summary.doubt(f"{share}: a model that always answers it has this accuracy; compare macro F1")


def _plain_tags(summary: DataSummary, data: Path) -> DataSummary | None:
    """Return the summary of tags of entities that are read as plain tags; None for spans in texts."""
    if "scheme" not in options_model(Plugins().find("reader", summary.use).load()).model_fields:
        return None
    spelling = ("outside", "tag_format", "ill_formed")
    options = {name: value for name, value in summary.options.items() if name not in spelling} | {"scheme": "none"}
    plain = DataSummary(summary.use, options, label_kind="Tags", saw=summary.saw, why=summary.why)
    has_tags = any(record.get("tags") for record in itertools.islice(spread_records(plain, data), PEEK))
    return count(plain, data) if has_tags else None


def encoding_of(data: Path) -> tuple[str | None, list[str]]:
    """Return the encoding of a text file that is not in UTF-8, and others that are as likely; None for other files."""
    if not data.is_file():
        return None, []
    decoder, start, faulty = codecs.getincrementaldecoder("utf-8")(), b"", b""
    try:
        with open_file(data) as file:
            part = start = file.read(EXAMINED_BYTES)
            while part:
                decoder.decode(part)
                part = file.read(EXAMINED_BYTES)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        faulty = error.object
    except DataError:
        return None, []  # which is an error when the file is read
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return "utf-32" if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) else "utf-16", []
    head = start[:4_000]
    for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if len(head) >= 16 and zeros.count(0) > len(zeros) / 3 and head.count(0) < 1.1 * zeros.count(0):
            return name, []
    if not faulty or b"\0" in head or b"\xff\xfe" in faulty or start.startswith(PARQUET):
        return None, []
    refuse_other_formats(data, start)
    lines = b"\n".join(line for line in faulty.splitlines() if not line.isascii())[:ENCODING_SAMPLE_BYTES]
    text = lines.decode("utf-8", "replace")
    if sum(not character.isascii() for character in text) > 2 * text.count("\ufffd"):
        refuse_faulty_lines(data)
    try:
        from charset_normalizer import from_bytes
    except ImportError as error:
        fix = "pip install charset-normalizer, or convert the file to UTF-8"
        raise EnvError(f"{data}: is not in UTF-8, and charset-normalizer is not installed: {fix}") from error
    # A few bytes over 127 among Latin letters are Latin letters and signs.
    is_latin = sum(byte > 127 for byte in lines) < 0.15 * len(lines)
    others = ("utf", "big5", "cp9", "gb", "shift", "euc", "johab", "iso2022") if is_latin else ("utf",)
    names = [match.encoding for match in from_bytes(lines) if not match.encoding.startswith(others)]
    texts: dict[str, str] = {}
    for name in (*names, *CODE_PAGES) if is_latin or not names else names:
        with contextlib.suppress(UnicodeError):
            texts[name] = lines.decode(name)
    oddness = {name: _oddness(text, is_latin) for name, text in texts.items()}
    best = min(oddness, key=lambda name: (oddness[name], name != "cp1252"))
    return best, [name for name in names if oddness.get(name) == oddness[best] and texts[name] != texts[best]][:2]


def _oddness(text: str, is_latin: bool) -> int:
    """Return the number of odd characters of a text, as it looks in a code page that is not its own.

    Control characters and signs that are no punctuation are odd, capitals after small letters, and in a text of mostly
    Latin letters those of another script.
    """
    odd = 0
    for i, character in enumerate(text):
        if character.isascii():
            continue
        script = unicodedata.name(character, "NONE").split()[0]
        if "\x80" <= character <= "\x9f" or character in _RARE_SIGNS:
            odd += 2
        elif character.isalpha() and script == "LATIN":
            odd += character.isupper() and text[max(0, i - 1) : i].islower()
        elif character.isalpha():
            odd += 3 * is_latin
    return odd


def _summarise_copy(data: Path, look: Callable[[Path], DataSummary], lines: Iterable[str]) -> DataSummary:
    """Return the summary of a copy of a file in UTF-8, or of a spreadsheet in CSV; messages name the file itself."""
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
    return summary
