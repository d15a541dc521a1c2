"""Objects of JSON and Parquet files: where a file holds them, and which of their keys are learned from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.squad import gold_answers
from seqpipe.config.plugins import Plugins
from seqpipe.errors import DataError
from seqpipe.features.spans import StatedSpan, stated_span
from seqpipe.init.columns import LABELS, SCORES, Column
from seqpipe.init.roles import LIST_FIX, ColumnTask, Roles, find_roles, separator_of
from seqpipe.init.summary import DataSummary, count, load_json, reader_of, records
from seqpipe.init.tags import choose_scheme

BLOCK = 1_000  # objects taken account of at once
MOST = 8  # keys that are listed
_FORMS = {
    "jsonl": "JSON Lines",
    "json": "a JSON list of objects",
    "parquet": "a Parquet or Arrow table",
    "datasets": "a folder of datasets",
}
_FIX = 'write an object a line, or a list of objects, such as [{"text": …, "label": …}, …]'
SHIFTS = ("utf-16", "bytes", "one-based")  # units that starts of answers may count
MOST_FAULTY = 1 / 20  # of the questions, if the file is to be learned from
_DEEP = 4  # keys above a list
_DOMINANT = 5  # times as many objects as in the next list: the list that is meant
_SPLITS = {"train", "training", "dev", "valid", "validation", "val", "test"}

# Keys of lists, the likeliest first.
_WORDS = ("words", "tokens", "tokens_list", "sentence", "text")
_TAGS = ("tags", "ner_tags", "labels", "ner", "slots", "pos", "upos", "pos_tags", "bio", "iob")
_SPANS = ("spans", "entities", "ents", "label", "labels", "annotations", "slots")
_LABELS = ("labels", "label", "topics", "categories", "genres", "intents", "emotions", "classes", "tags", "keywords")


def find_json(data: Path, lines: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the reader of a JSON file and its options; None if the file is no JSON.

    Raises:
        DataError: if it holds no list of objects, or several.
    """
    start = "".join("".join(lines[:100]).split())[:2]
    if start in ('["', "[[", "[]") and load_json(data) is not None:
        fix = _FIX
        if start == "[[":
            command = "jq -c '.[] | {text: .[0], label: .[1]}' FILE > FILE.jsonl"
            fix += f"; make objects of its items, for instance with `{command}`"
        raise DataError(f"{data}: a JSON list, but not of objects; {fix}")
    if not start.startswith("{"):
        return ("json", {}) if start == "[{" else None
    try:
        first = json.loads(lines[0])
    except (ValueError, RecursionError):
        first = None
    if isinstance(first, dict) and any(line.strip() for line in lines[1:]):
        return "jsonl", {}
    value = load_json(data)
    if value is None:
        return "jsonl", {}  # which says what is wrong, and where
    lists = sorted(_lists_of_objects(value), key=lambda item: -item[1])
    if not lists and len(lines) == 1 and not any(isinstance(part, (dict, list)) for part in value.values()):
        return "jsonl", {}
    if not lists:
        raise DataError(f"{data}: one JSON object without a list of objects; {_FIX}{_conversion(value)}")
    (key, most), *others = lists
    names = {name.rpartition(".")[2].lower() for name, _ in lists}
    if others and (names & _SPLITS or most < _DOMINANT * others[0][1]):
        listed = ", ".join(f"{name!r} ({number:,})" for name, number in lists[:5])
        fix = f"make a file of each that is meant, for instance with `jq '.{key}' FILE > train.json`"
        raise DataError(f"{data}: several lists of objects: {listed}; {fix}")
    return "json", {"list": key}


def _lists_of_objects(value: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[tuple[str, int]]:
    """Yield the dotted key of each list of objects, and how many it has."""
    for key, part in value.items():
        if isinstance(part, dict) and depth < _DEEP:
            yield from _lists_of_objects(part, f"{before}{key}.", depth + 1)
        elif isinstance(part, list) and part and all(isinstance(item, dict) for item in part):
            yield f"{before}{key}", len(part)


def _conversion(value: dict[str, Any]) -> str:
    """Return advice on an object of columns, or of objects by their names."""
    parts = list(value.values())
    rows = [key for key, part in value.items() if isinstance(part, list) and part and isinstance(part[0], list)]
    if rows:
        command = f"jq -c '.{rows[0]}[] | {{text: .[0], label: .[1]}}' FILE > {rows[0]}.jsonl"
        return f"; it holds lists of lists: make objects of each, for instance with `{command}`"
    if len(parts) < 2:
        return ""
    are_objects = all(isinstance(part, dict) for part in parts)
    are_flat = are_objects and not any(isinstance(item, dict) for part in parts for item in part.values())
    if (are_flat or all(isinstance(part, list) for part in parts)) and len({*map(len, parts)}) == 1:
        code = 'pandas.read_json("FILE").to_json("FILE.jsonl", orient="records", lines=True)'
        return f"; if it holds columns, turn them into records, for instance with `{code}`"
    return "; `jq -c '.[]' FILE > FILE.jsonl` writes the objects that it holds one a line" if are_objects else ""


def summarise_form(data: Path, kinds: Sequence[str] | None) -> DataSummary | None:
    """Summarise a file of an annotation tool, a chatbot or a data set by its form; None if it has none of the forms.

    Args:
        data: The file.
        kinds: What may be learned; None: anything.
    """
    annotations: Any = Plugins().find("reader", "annotations").load()
    form = annotations.recognise(data)
    if form is None:
        return None
    summary = DataSummary("annotations", {"form": form})
    _set_offsets(summary, data)
    reader = reader_of(summary.use, summary.options)
    texts = spanned = labelled = several = written = 0
    record: Mapping[str, Any] = {}
    labels: set[str] = set()
    for record in reader.read(data):
        texts += 1
        spanned += bool(record.get("spans") or {*record.get("tags", ())} - {"O"})
        written += record.get("target", "").count(" ")
        labelled += "label" in record
        several += len(record.get("labels", ())) > 1
        labels.update(record.get("labels", ()))
    summary.saw = f"{reader.form.of}, {texts:,} texts"
    if reader.omitted:
        summary.saw += f"; {reader.omitted:,} others, rejected or without annotations, are left out"
    if "question" in record:
        return summarise_answers(summary, data)
    has_spans, has_labels = spanned > 0, len(labels) > 1
    if "target" in record:
        summary.label_kind, summary.target, summary.unspaced = "Texts", "target", written < texts / 2
        summary.why = "each text has a text to write"
        summary.records = texts
        return summary
    if has_spans and has_labels and kinds is None and labelled == texts:
        summary.joint = True
        fix = "`--task crf` or `--task label` learns one of them alone"
        summary.why = (
            f"{spanned:,} texts have spans, and each has one of {len(labels):,} labels: two heads learn both; {fix}"
        )
    elif has_spans and (kinds is None or "Entities" in kinds):
        summary.why = f"{spanned:,} texts have spans"
        if has_labels:
            fix = "`--task label` learns them"
            summary.notes.append(f"the labels of the texts ({len(labels):,}) are left out: {fix}")
    elif has_labels:
        summary.label_kind, summary.multi = "Labels", labelled < texts
        summary.why = f"{several:,} texts have several labels, {texts - labelled - several:,} none"
        if not summary.multi:
            summary.why = f"each text has one of {len(labels):,} labels"
        if has_spans:
            summary.notes.append("the spans in the texts are left out: `--task crf` learns them")
    return count(summary, data)


def _set_offsets(summary: DataSummary, data: Path) -> None:
    """Set the option `offsets` to the convention that nearly all spans fit, if it is not that of the reader."""
    reader = reader_of(summary.use, summary.options)
    offsets, message = reader.fitting_offsets(data)
    if offsets != reader.offsets:
        summary.options["offsets"] = offsets
        summary.notes.append(message)


def summarise_objects(
    data: Path,
    use: str,
    options: dict[str, Any],
    task: ColumnTask | None,
    target: str | None = None,
    texts: Sequence[str] = (),
) -> DataSummary:
    """Summarise objects by their keys: words with tags, texts with spans, questions, labels, numbers or texts.

    `task`, `target` and `texts` are what `--task`, `--target` and `--text` ask for.

    Raises:
        DataError: if there is nothing to learn, or the keys leave a choice open.
    """
    summary = DataSummary(use, options)
    columns = profile_objects(summary, data)
    keys = [key for key, column in columns.items() if {*column.value_kinds} != {"object"}]
    listed = f"{', '.join(keys[:-1])} and {keys[-1]}" if len(keys) > 1 else "".join(keys)
    if len(keys) > MOST:
        listed = f"{', '.join(keys[:MOST])} and {len(keys) - MOST} more"
    summary.saw = f"{_FORMS[use]} with the key{'s' if len(keys) > 1 else ''} {listed}"
    if {"question", "context"} <= columns.keys() and not {"answers", "answers.text"}.isdisjoint(columns):
        for column in (columns["question"], columns["context"]):
            if column.value_kinds.keys() != {"text"}:
                raise DataError(f"{column.missing_at or data}: {column.name!r} must hold a text in every object")
        summary.options = options | {"text": None}
        return summarise_answers(summary, data)
    names, note = ({}, "") if target or texts else _find_lists(columns, task, data)
    if not names:
        return _find_keys(columns, task, data, target, texts).summarise(summary, data)
    *_, learned = names  # the reader's option for what is learned
    if learned in ("labels", "label"):
        summary.label_kind, summary.multi = "Labels", learned == "labels"
        if not summary.multi:
            _refuse_missing(columns[names["label"]])
    summary.options |= {option: key for option, key in names.items() if option != key}
    if learned == "spans":
        _set_offsets(summary, data)
        for column in columns.values():
            if column.is_scalar and column.key in LABELS and column.is_repeated:
                summary.notes.append(
                    f"{column.title} has labels of the texts, which are left out: `--task label` learns them"
                )
    if learned == "tags":
        tagged = DataSummary(use, {**summary.options, "scheme": "none"})
        tags = [list(record["tags"]) for record in records(tagged, data) if "tags" in record]
        if use == "jsonl":
            summary.left_out, summary.bad_rows = [], "error"
        choose_scheme(summary, tags, Counter(tag for sentence in tags for tag in sentence))
    summary.notes.append(note)
    return count(summary, data)


def profile_objects(summary: DataSummary, data: Path) -> dict[str, Column]:
    """Return the statistics of each key of the objects, dotted within objects."""
    raw = DataSummary(summary.use, {**summary.options, "text": None})
    every = 1 + data.stat().st_size // 20_000_000
    columns: dict[str, Column] = {}
    rows = records(raw, data)
    seen, first = 0, ""
    while block := list(islice(rows, BLOCK)):
        first = first or block[0]["where"]
        for key in dict.fromkeys(key for row in block for key in row):
            if key not in columns and key != "where":
                columns[key] = Column(name="where" if key == "source_where" else key, noun="key", row="record")
                if seen:
                    columns[key].add_values([None] * seen, every)
                    columns[key].missing_at = first
        for key, column in columns.items():
            values = [row.get(key) for row in block]
            if not column.missing_at and None in values:
                column.missing_at = block[values.index(None)]["where"]
            column.add_values(values, every)
        seen += len(block)
    summary.factor = raw.factor
    named = {str(column.name): column for column in columns.values()}
    last = [_last(name) for name in named]
    for (name, column), short in zip(named.items(), last, strict=True):
        column.short = short if last.count(short) == 1 else name
    return named


def summarise_answers(summary: DataSummary, data: Path) -> DataSummary:
    """Summarise questions on passages."""
    summary.label_kind, summary.left_out = "Answers", []
    for record in records(summary, data):
        summary.records += 1
        summary.words += len(record["question"].split()) + len(record["context"].split())
        summary.unanswered += not gold_answers(record, "answers")
        summary.scripts.add(record["context"])
    summary.unspaced = summary.scripts.are_unspaced
    summary.scale()
    summary.notes.append(f"questions on passages, {summary.unanswered:,} without an answer")
    if summary.left_out:
        number, total = len(summary.left_out), summary.records + len(summary.left_out)
        if number > MOST_FAULTY * total:
            for offsets in SHIFTS if summary.use == "squad" else ():
                again = DataSummary("squad", {"offsets": offsets}, left_out=[])
                fitting = sum(1 for _ in records(again, data))
                if fitting > (1 - MOST_FAULTY) * total:
                    note = (
                        f"{number:,} of {total:,} answers do not stand where they start, unless that counts {offsets}"
                    )
                    return summarise_answers(DataSummary("squad", {"offsets": offsets}, [note]), data)
            raise DataError(f"{summary.left_out[0]} ({number:,} of {total:,} questions cannot be read)")
        first = "; ".join(problem.partition("; ")[0] for problem in summary.left_out[:3])
        summary.bad_rows = "skip"
        summary.doubt(
            f"{number:,} of {total:,} questions cannot be read, and `bad_rows: skip` leaves them out: {first}"
        )
    return summary


def _find_lists(columns: Mapping[str, Column], task: ColumnTask | None, data: Path) -> tuple[dict[str, str], str]:
    """Return keys by the reader's options, what is learned last, and a note; no keys if no list is learned from.

    Raises:
        DataError: if tags are numbers, spans have another form than the reader's, or no key is that of the texts.
    """
    texts = [key for key, column in columns.items() if column.is_list_of("texts")]
    words = _first_of(_WORDS, texts)
    if task is None and words:
        # A list is that of the words' tags if the first record has as many of them.
        size = len(columns[words].example)
        alike = [key for key, column in columns.items() if key != words and column.is_list_of("texts")]
        numbers = [key for key, column in columns.items() if column.is_list_of("numbers")]
        if tags := _first_of(_TAGS, [key for key in alike if len(columns[key].example) == size]):
            return {"words": words, "tags": tags}, "records with words already split"
        if (tags := _first_of(_TAGS, numbers)) and len(columns[tags].example) == size:
            fix = "replace them by their names, such as O and B-city, which the data set's page lists"
            raise DataError(f"{data}: the tags {tags!r} of the words {words!r} are numbers; {fix}")
    scalar = {key: column for key, column in columns.items() if column.is_scalar}
    items = [key for key, column in columns.items() if column.is_list_of("objects") or column.is_list_of("mixed lists")]
    stated = {key: stated_span(columns[key].example[0]) for key in items if columns[key].example}
    fitting = [key for key, span in stated.items() if span and _is_span(span)]
    spans = _first_of(_SPANS, fitting) or next(iter(fitting), None) or _first_of(_SPANS, items)
    if spans and task is None:
        (first, *_) = columns[spans].example
        if spans not in fitting:
            form = '{"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'
            raise DataError(f"{data}: the items of {spans!r} are like {first!r}, a form that is not read; write {form}")
        spaced = [key for key, column in scalar.items() if column.value_kinds["text"] and column.is_spaced]
        if spaced or "text" in columns:
            longest = max(spaced, key=lambda key: columns[key].characters, default="text")
            return {"text": "text" if "text" in columns else longest, "spans": spans}, "texts with character spans"
    if task not in (None, "Labels"):
        return {}, ""
    if several := _first_of(_LABELS, texts):
        keys = [key for key, column in scalar.items() if column.is_text and column.is_spaced and not column.is_key]
        if "text" not in scalar and len(keys) != 1:
            problem = f"{len(keys)} keys hold texts ({', '.join(keys)})" if keys else "no key holds texts"
            raise DataError(f"{data}: {problem}; name the key of the text 'text'")
        return {"text": "text" if "text" in scalar else keys[0], "labels": several}, "texts with several labels"
    labels = [key for key in scalar if _last(key).lower() in LABELS]
    if words and len(labels) == 1:
        return {"words": words, "label": labels[0]}, "texts with one label each"
    return {}, ""


def _find_keys(
    columns: Mapping[str, Column], task: ColumnTask | None, data: Path, requested: str | None, text_names: Sequence[str]
) -> Roles:
    """Return the roles of the keys with texts, numbers or truth values, as in a table."""
    scalar = [column for column in columns.values() if column.is_scalar]
    if not scalar:
        kinds = {key: " or ".join(sorted(column.value_kinds)) for key, column in columns.items()}
        seen = ", ".join(f"{key!r} {kind}" for key, kind in kinds.items())
        raise DataError(
            f"{data}: nothing to learn in it: its keys hold {seen}; give a text and its label in each object"
        )
    longest = max((column.characters for column in scalar if not column.is_key), default=0)
    lists = {key: column.listed for key, column in columns.items() if column.listed > 1.2 * longest}
    if lists:
        key = max(lists, key=lambda key: lists[key])
        fix = f"make one text of each list that is meant, for instance with `jq -c '.{key} |= join(\" \")'`"
        raise DataError(f"{data}: {key!r} is a list of texts, and longer than the other texts; {fix}")
    for column in scalar:
        if _last(str(column.name)).lower() in {"text", "score"} | LABELS:
            _refuse_missing(column)
    # A key that is named as labels are is learned beside the only text, even if few of its values repeat.
    labels = [column for column in scalar if column.key in LABELS - SCORES - {"target"}]
    texts = [column for column in scalar if column.is_text and not column.is_key and column not in labels]
    roles = None
    if task is None and not (requested or text_names) and len(labels) == len(texts) == 1:
        (label,) = labels
        is_long = sum(len(value.split()) > 4 for value in label.values) > len(label.values) / 2
        if not (label.is_measured or label.is_repeated or label.empty or is_long):
            why = f"{label.title} has {len(label.values):,} values in {label.cells:,} records"
            roles = Roles(scalar, "Labels", texts, label, why)
    roles = roles or find_roles(scalar, task, str(data), True, requested, text_names)
    assert roles is not None  # `must`
    target = roles.target
    separator = target.separator or separator_of(target)
    if roles.learns == "Labels" and separator:
        raise DataError(f"{data}: {target.title} holds labels separated by {separator!r}; {LIST_FIX}")
    for column in (target, *roles.texts):
        _refuse_missing(column)
    if roles.learns == "Numbers" and {*target.value_kinds} != {"number"}:
        fix = "write a number without quotes in each object"
        raise DataError(f"{data}: {target.name!r} holds numbers written as texts, or none; {fix}")
    if roles.learns == "Labels" and target.value_kinds["number"] and any("." in value for value in target.values):
        raise DataError(
            f"{data}: {target.name!r} holds few numbers with a fraction; to learn labels, write them as texts"
        )
    return roles


def _refuse_missing(column: Column) -> None:
    """DataError if some objects have the key and some have not."""
    if column.missing_at and column.value_kinds.total() > column.value_kinds["missing"]:
        fix = "write one in every object, or leave it out of all"
        raise DataError(f"{column.missing_at}: no {column.name!r} in this object; {fix}")


def _is_span(span: StatedSpan) -> bool:
    """Return whether a span has whole numbers as offsets, and labels that are texts."""
    offsets = isinstance(span.start, int) and isinstance(span.end, int)
    return offsets and bool(span.labels) and all(isinstance(label, str) for label in span.labels)


def _last(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def _first_of(names: Sequence[str], keys: Iterable[str]) -> str | None:
    """Return the key whose last part comes first in `names`; None if none has one of them."""
    last = {_last(key).lower(): key for key in reversed([*keys])}
    return next((last[name] for name in names if name in last), None)
