"""Objects of JSON and Parquet files: where a file has them, and which of their keys are learned from."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.squad import gold_answers
from seqpipe.config.plugins import Plugins
from seqpipe.errors import DataError
from seqpipe.features.spans import stated_span
from seqpipe.files import open_file
from seqpipe.init.columns import LABELS, SCORES, Column
from seqpipe.init.roles import LIST_FIX, ColumnTask, find_roles, separator_of
from seqpipe.init.summary import OBJECTS, WHOLE_BYTES, DataSummary, count, load_json, reader_of, size_of, spread_records
from seqpipe.init.tags import set_scheme

OBJECTS_PER_BLOCK = 1_000  # objects whose values are added to the statistics at once
MAX_LISTED_KEYS = 8  # keys that are listed
_FORMS = {
    "jsonl": "JSON Lines",
    "json": "a JSON list of objects",
    "parquet": "a Parquet or Arrow table",
    "datasets": "a folder of datasets",
}
_OBJECTS_FIX = 'write an object a line, or a list of objects, such as [{"text": …, "label": …}, …]'
_SPLITS = {"train", "training", "dev", "valid", "validation", "val", "test"}

# Keys of lists, the likeliest first.
_WORDS = ("words", "tokens", "tokens_list", "sentence", "text")
_TAGS = ("tags", "ner_tags", "labels", "ner", "slots", "pos", "upos", "pos_tags", "bio", "iob")
_SPANS = ("spans", "entities", "ents", "label", "labels", "annotations", "slots")
_LABELS = ("labels", "label", "topics", "categories", "genres", "intents", "emotions", "classes", "tags", "keywords")


def find_json(data: Path, lines: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the reader of a JSON file and its options; None if it is not JSON, DataError without a list of objects."""
    start = "".join("".join(lines[:100]).split())[:2]
    if start == "[{":
        return "json", {}
    if not start.startswith(("{", '["', "[[", "[]")):
        return None
    try:
        is_lines = len(lines) > 1 and isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        is_lines = False
    value = None if is_lines else load_json(data)
    if value is None:
        return ("jsonl", {}) if start[0] == "{" else None  # whose reader names a fault and its place
    is_object = isinstance(value, dict)
    lists = sorted(_lists_of_objects(value), key=lambda item: -item[1]) if is_object else []
    if not lists:
        if len(lines) == 1 and is_object and not any(isinstance(part, (dict, list)) for part in value.values()):
            return "jsonl", {}
        problem = "one JSON object without a list of objects" if is_object else "a JSON list, but not of objects"
        raise DataError(f"{data}: {problem}; {_OBJECTS_FIX}{_conversion(value)}")
    (key, most), *others = lists
    names = {_last(name).lower() for name, _ in lists}
    # The list that is meant has five times as many objects as the next one.
    if others and (names & _SPLITS or most < 5 * others[0][1]):
        listed = ", ".join(f"{name!r} ({number:,})" for name, number in lists[:5])
        fix = f"make a file of each that is meant, for instance with `jq '.{key}' FILE > train.json`"
        raise DataError(f"{data}: several lists of objects: {listed}; {fix}")
    return "json", {"list": key}


def _lists_of_objects(value: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, int]]:
    """Yield the dotted key of each list of objects, and how many it has."""
    for key, part in value.items():
        if isinstance(part, dict) and depth < 4:
            yield from _lists_of_objects(part, f"{before}{key}.", depth + 1)
        elif isinstance(part, list) and part and all(isinstance(item, dict) for item in part):
            yield f"{before}{key}", len(part)


def _conversion(value: Any) -> str:
    """Return a command that makes objects of lists, of columns, or of objects by their names."""
    items = value if isinstance(value, dict) else {"": value}
    parts = list(items.values())
    for key, part in items.items():
        if isinstance(part, list) and part and isinstance(part[0], list):
            command = f"jq -c '.{key}[] | {{text: .[0], label: .[1]}}' FILE > {key or 'FILE'}.jsonl"
            return f"; make objects of the lists in it, for instance with `{command}`"
    are_objects = all(isinstance(part, dict) for part in parts)
    has_objects = are_objects and any(isinstance(item, dict) for part in parts for item in part.values())
    if len(parts) < 2 or not (are_objects or all(isinstance(part, list) for part in parts)):
        return ""
    if not has_objects and len({*map(len, parts)}) == 1:
        code = 'pandas.read_json("FILE").to_json("FILE.jsonl", orient="records", lines=True)'
        return f"; if these are columns, turn them into records, for instance with `{code}`"
    return "; `jq -c '.[]' FILE > FILE.jsonl` writes each of its objects on a line" if are_objects else ""


def summarise_form(data: Path, kinds: Sequence[str]) -> DataSummary | None:
    """Summarise a file of an annotation tool, a chatbot or a data set, for these kinds or any; None for other files."""
    annotations: Any = Plugins().find("reader", "annotations").load()
    form = annotations.recognise(data)
    if form is None:
        return None
    value = load_json(data) if size_of(data) > WHOLE_BYTES else {}
    items: list[Any] = value if isinstance(value, list) else []
    if value is None:
        with open_file(data) as file:
            items = file.readlines()
    step = 1 + len(items) // OBJECTS
    if step > 1 and (value or items[0].startswith(b"{")):  # every nth item of a large list, or of JSON Lines
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(DataError):  # which names a line of the copy
            copy = Path(folder, "sample.json")
            copy.write_bytes(json.dumps(items[::step]).encode() if value else b"".join(items[::step]))
            summary = summarise_annotations(DataSummary("annotations", {"form": form}), copy, kinds)
            if not summary.left_out:
                summary.saw, summary.factor = f"{summary.saw} in a sample, one of {step} items", step
                summary.scale()
                return summary
    return summarise_annotations(DataSummary("annotations", {"form": form}), data, kinds)


def summarise_annotations(summary: DataSummary, data: Path, kinds: Sequence[str]) -> DataSummary:
    """Complete the summary of a file or folder in the form of its reader, for these kinds or any."""
    set_offsets(summary, data)
    reader = reader_of(summary.use, summary.options)
    rows = list(reader.read(data))
    texts, labels = len(rows), {label for row in rows for label in row.get("labels", ())}
    spanned = sum(bool(row.get("spans") or {*row.get("tags", ())} - {"O"}) for row in rows)
    labelled = sum("label" in row for row in rows)
    summary.saw = f"{reader.form.of}, {texts:,} texts"
    if reader.omitted:
        summary.saw += f"; {reader.omitted:,} others, rejected or without annotations, are left out"
    if "question" in rows[0]:
        return summarise_answers(summary, data)
    if "target" in rows[0]:
        summary.label_kind, summary.records = "Texts", texts
        summary.unspaced = sum(row["target"].count(" ") for row in rows) < texts / 2
        summary.why = "each text has a text to write"
        return summary
    has_labels, size = len(labels) > 1, f"{len(labels):,} labels"
    summary.why = f"{spanned:,} texts have spans" if spanned else ""
    if spanned and has_labels and not kinds and labelled == texts:
        summary.joint = True
        fix = "`--task crf` or `--task label` learns one of them alone"
        summary.why += f", and each has one of {size}: two heads learn both; {fix}"
    elif has_labels and not (spanned and (not kinds or "Entities" in kinds)):
        summary.label_kind, summary.multi = "Labels", labelled < texts
        summary.why = f"each text has one of {size}"
        if summary.multi:
            several = sum(len(row["labels"]) > 1 for row in rows)
            summary.why = f"{several:,} texts have several labels, {texts - labelled - several:,} none"
        if spanned:
            summary.notes.append("the spans in the texts are left out: `--task crf` learns them")
    elif has_labels:
        summary.notes.append(f"the {size} of the texts are left out: `--task label` learns them")
    return count(summary, data)


def set_offsets(summary: DataSummary, data: Path) -> None:
    """Set the option `offsets` to the convention that nearly all spans fit, if it is not that of the reader."""
    reader = reader_of(summary.use, summary.options)
    offsets, message = reader.fitting_offsets(data)
    if offsets != reader.offsets:
        summary.options["offsets"] = offsets
        summary.notes.append(message)


def summarise_objects(
    data: Path, use: str, options: dict[str, Any], task: ColumnTask | None, target: str | None, texts: Sequence[str]
) -> DataSummary:
    """Summarise objects by their keys; `task`, `target` and `texts` are those of `--task`, `--target` and `--text`."""
    summary = DataSummary(use, options)
    columns = profile_objects(summary, data)
    keys = [key for key, column in columns.items() if {*column.value_kinds} != {"object"}]
    more = f" and {len(keys) - MAX_LISTED_KEYS} more" if len(keys) > MAX_LISTED_KEYS else ""
    summary.saw = f"{_FORMS[use]} with the key{'s' if len(keys) > 1 else ''} {', '.join(keys[:MAX_LISTED_KEYS])}{more}"
    if {"question", "context"} <= columns.keys() and not {"answers", "answers.text"}.isdisjoint(columns):
        for key in ("question", "context"):
            _refuse_missing(summary, data, columns[key])
            if columns[key].value_kinds.keys() != {"text"}:
                raise DataError(f"{data}: {key!r} must be a text in every object")
        summary.options = options | {"text": None}
        return summarise_answers(summary, data)
    if not (target or texts) and _summarise_lists(summary, columns, task, data):
        return count(summary, data)
    scalar = [column for column in columns.values() if column.is_scalar]
    if not scalar:
        kinds = ", ".join(f"{key!r} {' or '.join(sorted(column.value_kinds))}" for key, column in columns.items())
        fix = "give a text and its label in each object"
        raise DataError(f"{data}: nothing to learn in it: the values of its keys are {kinds}; {fix}")
    longest = max((column.characters for column in scalar if not column.is_key), default=0)
    key = max(columns, key=lambda key: columns[key].listed)
    if columns[key].listed > 1.2 * longest:
        fix = f"make one text of each list that is meant, for instance with `jq -c '.{key} |= join(\" \")'`"
        raise DataError(f"{data}: {key!r} is a list of texts, and longer than the other texts; {fix}")
    for column in scalar:
        if _last(str(column.name)).lower() in {"text", "score"} | LABELS:
            _refuse_missing(summary, data, column)
    # A key that is named as labels are is learned beside the only text, even if few of its values repeat.
    labels = [column for column in scalar if column.key in LABELS - SCORES - {"target"}]
    others = [column for column in scalar if column.is_text and not column.is_key and column not in labels]
    if task is None and not (target or texts) and len(labels) == len(others) == 1:
        (label,) = labels
        is_long = sum(len(value.split()) > 4 for value in label.values) > len(label.values) / 2
        if not (label.is_measured or label.is_repeated or label.empty or is_long):
            task, target, texts = "Labels", label.name, [str(others[0].name)]
    roles = find_roles(scalar, task, str(data), True, target, texts)
    assert roles is not None  # `must`
    learned = roles.target
    separator = learned.separator or separator_of(learned)
    if roles.learns == "Labels" and separator:
        raise DataError(f"{data}: {learned.title} has labels separated by {separator!r}; {LIST_FIX}")
    for column in (learned, *roles.texts):
        _refuse_missing(summary, data, column)
    if roles.learns == "Numbers" and {*learned.value_kinds} != {"number"}:
        fix = "write a number without quotes in each object"
        raise DataError(f"{data}: {learned.name!r} has numbers written as texts, or none; {fix}")
    if roles.learns == "Labels" and learned.value_kinds["number"] and any("." in value for value in learned.values):
        fix = "to learn labels, write them as texts"
        raise DataError(f"{data}: {learned.name!r} has few numbers with a fraction; {fix}")
    return roles.summarise(summary, data)


def _summarise_lists(summary: DataSummary, columns: Mapping[str, Column], task: ColumnTask | None, data: Path) -> bool:
    """Complete the options and what is learned if that is a list, or a label of words; return whether it is."""
    texts = [key for key, column in columns.items() if column.is_list_of("texts")]
    words = _first_of(_WORDS, texts)
    if task is None and words:
        # A list is that of the words' tags if the first record has as many of them.
        size = len(columns[words].example)
        numbers = [key for key, column in columns.items() if column.is_list_of("numbers")]
        alike = [key for key in (*texts, *numbers) if key != words and len(columns[key].example) == size]
        tags = _first_of(_TAGS, [key for key in alike if key in texts]) or _first_of(_TAGS, alike)
        if tags in numbers:
            fix = "replace them by their names, such as O and B-city, which the data set's page lists"
            raise DataError(f"{data}: the tags {tags!r} of the words {words!r} are numbers; {fix}")
        if tags:
            _set_keys(summary, "records with words already split", words=words, tags=tags)
            set_scheme(summary, data)
            if summary.use == "jsonl":
                summary.left_out, summary.bad_rows = [], "error"
            return True
    scalar = {key: column for key, column in columns.items() if column.is_scalar}
    spaced = [key for key, column in scalar.items() if column.value_kinds["text"] and column.is_spaced]
    spaced = [key for key in spaced if columns[key].is_text and not columns[key].is_key] or spaced
    text = "text" if "text" in scalar else max(spaced, key=lambda key: columns[key].characters, default="")
    items = [key for key, column in columns.items() if column.is_list_of("objects") or column.is_list_of("mixed lists")]
    fitting = [key for key in items if columns[key].example and _is_span(columns[key].example[0])]
    spans = _first_of(_SPANS, fitting) or next(iter(fitting), None) or _first_of(_SPANS, items)
    if spans and task is None:
        if spans not in fitting:
            first, form = columns[spans].example[0], '{"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'
            raise DataError(f"{data}: the items of {spans!r} are like {first!r}, a form that is not read; write {form}")
        if text:
            _set_keys(summary, "texts with character spans", text=text, spans=spans)
            set_offsets(summary, data)
            for column in scalar.values():
                if column.key in LABELS and column.is_repeated:
                    problem = f"{column.title} has labels of the texts, which are left out"
                    summary.notes.append(f"{problem}: `--task label` learns them")
            return True
    if task not in (None, "Labels"):
        return False
    if several := _first_of(_LABELS, texts):
        if text != "text" and len(spaced) != 1:
            keys = ", ".join(spaced) or "none"
            raise DataError(f"{data}: the keys of texts are {keys}; name the key of the text 'text'")
        _set_keys(summary, "texts with several labels", text=text, labels=several)
        summary.label_kind, summary.multi = "Labels", True
        return True
    labels = [key for key in scalar if _last(key).lower() in LABELS]
    if words and len(labels) == 1:
        _refuse_missing(summary, data, columns[labels[0]])
        _set_keys(summary, "texts with one label each", words=words, label=labels[0])
        summary.label_kind = "Labels"
        return True
    return False


def _set_keys(summary: DataSummary, note: str, **keys: str) -> None:
    """Note what is learned, and set the reader's options to its keys where they have other names."""
    summary.notes.append(note)
    summary.options |= {option: key for option, key in keys.items() if option != key}


def profile_objects(summary: DataSummary, data: Path) -> dict[str, Column]:
    """Return the statistics of each key of the objects, dotted within objects."""
    raw = DataSummary(summary.use, {**summary.options, "text": None})
    rows, every, seen = spread_records(raw, data), 1 + data.stat().st_size // 20_000_000, 0
    columns: dict[str, Column] = {}
    while block := list(islice(rows, OBJECTS_PER_BLOCK)):
        for key in dict.fromkeys(key for row in block for key in row if key != "where"):
            if key not in columns:
                columns[key] = Column(name="where" if key == "source_where" else key, noun="key", row="record")
                if seen:
                    columns[key].add_values([None] * seen, every)
        for key, column in columns.items():
            column.add_values([row.get(key) for row in block], every)
        seen += len(block)
    summary.factor = raw.factor
    named = {str(column.name): column for column in columns.values()}
    parts = Counter(map(_last, named))
    for name, column in named.items():
        column.short = _last(name) if parts[_last(name)] == 1 else name
    return named


def summarise_answers(summary: DataSummary, data: Path) -> DataSummary:
    """Summarise questions on passages."""
    summary.label_kind = "Answers"
    if summary.use == "squad":
        set_offsets(summary, data)
    summary.left_out = []
    for record in spread_records(summary, data):
        summary.records += 1
        summary.words += len(record["question"].split()) + len(record["context"].split())
        summary.unanswered += not gold_answers(record, "answers")
        summary.scripts.add(record["context"])
    summary.unspaced = summary.scripts.are_unspaced
    summary.scale()
    summary.notes.append(f"questions on passages, {summary.unanswered:,} without an answer")
    if summary.left_out:
        summary.bad_rows = "skip"
        summary.doubt_left_out(data)
    return summary


def _refuse_missing(summary: DataSummary, data: Path, column: Column) -> None:
    """DataError if some objects have the key and some have not."""
    if 0 < column.value_kinds["missing"] < column.value_kinds.total():
        reader = reader_of(summary.use, {**summary.options, "text": None})
        name = "source_where" if column.name == "where" else column.name
        where = next((row["where"] for row in reader.read(data) if row.get(name) is None), data)
        fix = "write one in every object, or leave it out of all"
        raise DataError(f"{where}: no {column.name!r} in this object; {fix}")


def _is_span(item: Any) -> bool:
    """Return whether a value is a span with whole numbers as offsets, and labels that are texts."""
    span = stated_span(item)
    if span is None or not (isinstance(span.start, int) and isinstance(span.end, int)):
        return False
    return bool(span.labels) and all(isinstance(label, str) for label in span.labels)


def _last(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def _first_of(names: Sequence[str], keys: Iterable[str]) -> str | None:
    """Return the key whose last part comes first in `names`; None if none has one of them."""
    last = {_last(key).lower(): key for key in reversed([*keys])}
    return next((last[name] for name in names if name in last), None)
