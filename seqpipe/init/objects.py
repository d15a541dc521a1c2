"""Readings of lists within records: words with tags, spans, answers, chats, and the forms of tools."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.squad import gold_answers
from seqpipe.config.plugins import Plugins
from seqpipe.errors import DataError
from seqpipe.features.spans import stated_span
from seqpipe.files import open_file
from seqpipe.init.columns import summary_of_roles
from seqpipe.init.datafile import DataFile
from seqpipe.init.evidence import CAP, Fact, Facts, Frame, Reading, each, fact, repeats
from seqpipe.init.fields import LIST, Field, Kind
from seqpipe.init.pairs import chat_facts
from seqpipe.init.summary import OBJECTS, WHOLE_BYTES, DataSummary, count, load_json, reader_of, size_of, spread_records
from seqpipe.init.tags import set_scheme

EXAMINED_LISTS = 400  # rows whose lists are examined
_TEXT_KINDS: tuple[Kind, ...] = ("texts", "repeated texts", "names", "the same value in every row")
_LISTS: tuple[Kind, ...] = ("lists of texts", "lists of labels", "lists of numbers")
_LISTS += ("lists of objects", "lists as text")
_SQUAD = re.compile(r'\{\s*("[^"\\]*"\s*:\s*("[^"\\]*"|[-+.\w]+)\s*,\s*)*"data"\s*:\s*\[\s*\{')
_ITEM = re.compile(r"'((?:[^'\\]|\\.)*)'|\"([^\"]*)\"")
_SPAN_FORM = '{"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'


def items_of(value: Any) -> list[str]:
    """Return the items of a list, of a list as text, or the words of a text."""
    if isinstance(value, list):
        return [str(item) for item in value]
    text = str(value or "").strip()
    if not LIST.fullmatch(text):
        return text.split()
    try:
        return [str(item) for item in ast.literal_eval(text)]
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return [a or b for a, b in _ITEM.findall(text)] or text.strip("[]").split()


def read_list_tags(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Words and as many tags, as lists, as lists written as text, or as the words of two cells."""
    fields = frame.get(*_LISTS, *_TEXT_KINDS, "separated labels", "few values", "parses")
    tokens = {field.name: [items_of(value) for value in field.values[:EXAMINED_LISTS]] for field in fields}
    for words, tags in itertools.permutations(fields, 2):
        if not file.request.target or file.request.names(tags):
            yield from _list_tags(file, frame, words, tags, tokens)


def _list_tags(
    file: DataFile, frame: Frame, words: Field, tags: Field, tokens: dict[str, list[list[str]]]
) -> Iterator[Reading]:
    """Yield the reading of these words and tags, if there are as many of them in nearly every record."""
    word_lists, tag_lists = tokens[words.name], tokens[tags.name]
    same = sum(len(a) == len(b) for a, b in zip(word_lists, tag_lists, strict=True))
    lists = not words.is_a("lists of numbers") and all(
        isinstance(field.values[0], list) or field.is_a("lists as text") for field in (words, tags)
    )
    if same < 0.95 * len(word_lists):
        return
    sizes = Counter(map(len, word_lists))
    chance = sum(number**2 for number in sizes.values()) / sizes.total() ** 2
    values = Field("tags", [tag for some in tag_lists for tag in some])
    vocabulary = {word for some in word_lists for word in some}
    is_usual = len(sizes) > 1 and chance < 0.6 and values.different < 0.4 * len(vocabulary)
    is_tagging = bool(values.tagging) or (lists and values.different < 100)
    is_tagging = is_tagging or (is_usual and words.is_a("texts", "repeated texts"))
    if not is_tagging or (values.different > 0.6 * len(vocabulary) and not lists):
        return
    items = [word for some in word_lists[:50] for word in some]
    if (values.different < 2 and not values.counts["O"]) or sum(" " in item for item in items) > 0.2 * len(items):
        return
    facts: Facts = frame.facts | {
        Fact("as many tags as words"): each(len(word_lists), -math.log2(min(0.99, chance)))
        + (10 if lists else 0)
        + (30 if lists and words.named("words") > 0 < tags.named("tags") else 0),
        fact("few values", tags): repeats(values.size, values.different),
        fact("words", words): min(10.0, 2 * math.log2(len(vocabulary) / max(1, values.different))),
        fact("name of words", words): words.named("words"),
        fact("name of tags", tags): tags.named("tags"),
    }
    if values.tagging:
        facts[Fact("tags of entities")] = min(CAP, values.size / 4)
    roles = {words.name: "words", tags.name: "tags"}
    unused = {}
    for name, others in tokens.items():
        is_aligned = sum(len(a) == len(b) for a, b in zip(word_lists, others, strict=True)) > 0.95 * len(others)
        if name not in roles and lists and values.tagging and is_aligned:
            unused[name] = "a further list of as many values as words"
    name = "lists of words and tags" if lists else "a tag for each word of a text"
    reading = Reading(name, None, roles, facts, frame, unused=unused)
    if tags.is_a("lists of numbers"):
        fix = "replace them by their names, such as O and B-city, which the data set's page lists"
        reading.fix = f"the tags {tags.name!r} of the words {words.name!r} are numbers; {fix}"
    else:
        reading.learns = "Entities" if values.tagging or values.counts["O"] > 0.3 * values.size else "Tags"
        reading.complete = partial(summarise_list_tags, file)
    yield reading


def summarise_list_tags(file: DataFile, reading: Reading) -> DataSummary:
    """Summarise words and tags in two lists, or in two cells."""
    summary, (words,), (tags,) = summary_of_roles(reading), reading.of("words"), reading.of("tags")
    if words.is_a("lists as text"):
        summary.options["lists"] = True
    summary.why = f"{tags.title} has a tag for each word of {words.title}"
    summary.notes.append("records with words already split")
    set_scheme(summary, file.path)
    if summary.use == "jsonl":
        summary.left_out, summary.bad_rows = [], "error"
    return count(summary, file.path)


def read_spans(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A text and spans in it: their ends lie within the text, and they cut no words."""
    texts = frame.get(*_TEXT_KINDS, "words", "few values", "addresses or licences")
    for spans in frame.get("lists of objects"):
        items = [item for value in spans.values if isinstance(value, list) for item in value]
        if not items or (isinstance(items[0], dict) and chat_facts(spans)):
            continue
        stated = [span for span in map(stated_span, items) if span and isinstance(span.start, int)]
        labels = {label for span in stated for label in span.labels}
        are_readable = all(isinstance(part, str) for part in labels) and all(isinstance(s.end, int) for s in stated)
        names_spans = spans.key in ("spans", "entities", "ents", "annotations", "slots", "label", "labels")
        for text in texts:
            if file.request.texts and text.name not in file.request.texts:
                continue
            facts: Facts = frame.facts | {fact("name of a text", text): text.named("text")}
            roles = {text.name: "text", spans.name: "spans"}
            if not are_readable or len(stated) <= 0.9 * len(items):
                if names_spans:
                    facts[Fact("name of spans")] = 20.0
                    problem = f"the items of {spans.name!r} are like {items[0]!r}, a form that is not read"
                    yield Reading("texts with spans", None, roles, facts, frame, f"{problem}; write {_SPAN_FORM}")
                continue
            pairs = [(cell, value) for cell, value in zip(text.cells, spans.values, strict=True) if value]
            total = clean = 0
            for cell, value in pairs[:EXAMINED_LISTS]:
                for span in map(stated_span, value):
                    if span and isinstance(span.start, int):
                        total += 1
                        clean += span.covers(cell, *span.place(cell, "characters"))
            if clean < 0.5 * total and not names_spans:
                continue
            facts[fact("offsets lie in the text", text)] = each(total, 1)
            facts[fact("offsets cut no words", text)] = each(clean, 2, max(0, total - clean) // 4)
            facts[fact("few labels", spans)] = max(5.0, repeats(total, len(labels)))
            complete = partial(summarise_spans, file)
            reading = Reading("texts with spans", "Entities", roles, facts, frame, complete=complete)
            for field in frame.get("few values"):
                if field.named("label"):
                    reading.unused[field.name] = f"`--task label --target {field.option}` learns them"
            yield reading


def summarise_spans(file: DataFile, reading: Reading) -> DataSummary:
    """Summarise texts with spans."""
    summary = summary_of_roles(reading)
    summary.notes.append("texts with character spans")
    set_offsets(summary, file.path)
    for name, reason in reading.unused.items():
        summary.notes.append(f"key {name!r} has labels of the texts, which are left out: {reason}")
    return count(summary, file.path)


def set_offsets(summary: DataSummary, data: Path) -> None:
    """Set the option `offsets` to the convention that nearly all spans fit, if it is not that of the reader."""
    reader = reader_of(summary.use, summary.options)
    offsets, message = reader.fitting_offsets(data)
    if offsets != reader.offsets:
        summary.options["offsets"] = offsets
        summary.notes.append(message)


def read_span_rows(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A span a row: a text, and columns with the start and the end of a part of it."""
    numbers = itertools.permutations(frame.get("numbers", "ratings", "row numbers", "truth values"), 2)
    for (start, end), text in itertools.product(numbers, frame.get("texts", "repeated texts")):
        rows = []
        for first, last, cell in zip(start.cells, end.cells, text.cells, strict=True):
            if first.isdigit() and last.isdigit():
                rows.append((int(first), int(last), cell))
        clean = sum(a < b <= len(cell) and not cell[b : b + 1].isalnum() for a, b, cell in rows)
        if clean > 0.9 * frame.size and len({b for _, b, _ in rows}) > 3:
            facts = {Fact("offsets lie in the text"): CAP, Fact("offsets cut no words"): each(clean, 2)}
            facts |= frame.facts | {Fact("few values"): CAP, Fact("texts"): 20.0}
            roles = {text.name: "text", start.name: "start", end.name: "end"}
            fix = 'write the spans of a text in one record: {"text": …, "spans": [[0, 5, "PER"]]}'
            yield Reading("a span in each row", None, roles, facts, frame, fix)


def read_answers(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Questions on passages with their answers as parts of these."""
    are_named = {"question", "context", "answers"} <= {field.name.partition(".")[0] for field in frame.fields}
    starts = {field.name: "the place of the answer" for field in frame.fields if "start" in field.name}
    texts = frame.get(*_TEXT_KINDS)
    for answers, context, question in itertools.product(frame.fields, frame.get(*_TEXT_KINDS, "words"), texts):
        is_asked = question.filled[0].strip().endswith(("?", "？")) or "question" in question.key
        is_answer = re.search("answer|span", answers.name.lower()) is not None
        if question in (context, answers) or not is_answer or not (starts or is_asked):
            continue
        pairs = [*zip(context.cells, answers.values, strict=True)][:EXAMINED_LISTS]
        stated = [(cell, _answer(value)) for cell, value in pairs if value]
        inside = sum(text in cell and len(text) < 0.7 * len(cell) for cell, text in stated if text)
        is_inside = inside and inside >= 0.9 * sum(text is not None for _, text in stated)
        if not is_inside and not (are_named and context.name == "context"):
            continue
        facts = frame.facts | {Fact("answers stand in the passages"): each(inside, 2)}
        facts[Fact("a start of answers")] = 12.0 * bool(starts)
        facts[Fact("names of questions")] = question.named("source") + 10
        roles = {question.name: "question", context.name: "context", answers.name: "answers"}
        reading = Reading("questions on passages", None, roles, facts, frame, unused=dict(starts))
        names = [question.name, context.name, answers.name.partition(".")[0]]
        if frame.is_json and names == ["question", "context", "answers"]:
            reading.learns, reading.complete = "Answers", partial(summarise_rows_of_answers, file)
        else:
            fields = '{"question": …, "context": …, "answers": {"text": […], "answer_start": […]}}'
            reading.fix = f"write {fields} on each line"
        yield reading


def _answer(value: Any) -> str | None:
    """Return the text of the first answer."""
    if isinstance(value, dict):
        return _answer(value.get("text"))
    if isinstance(value, list) and value:
        return _answer(value[0])
    return value if isinstance(value, str) else None


def summarise_rows_of_answers(file: DataFile, reading: Reading) -> DataSummary:
    """Summarise records of a question, a passage and answers."""
    frame = reading.frame
    assert frame is not None
    for field in reading.of("question", "context"):
        if not all(isinstance(value, str) for value in field.values):
            rows = reader_of(frame.use, frame.options | {"text": None}).read(file.path)
            where = next(row["where"] for row in rows if not isinstance(row.get(field.name), str))
            raise DataError(f"{where}: no {field.name!r} in this object; write a text in every object")
    summary = DataSummary(frame.use, frame.options | {"text": None}, saw=frame.saw)
    summary.fields = ["question", "context"]
    return summarise_answers(summary, file.path)


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
    summary.doubt_left_out(data)
    return summary


def read_chats(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Chats: each answer of the assistant is written from the turns before it."""
    chats = [field for field in frame.get("lists of objects") if chat_facts(field)]
    for field in chats:
        facts = chat_facts(field)
        if not facts[fact("name", field)]:
            turns = " + ".join(f".{field.name}" for field in chats)
            fix = f"write all turns of a chat as one list `messages`, with jq: `{{messages: ({turns})}}`"
            roles = {field.name: "turns" for field in chats}
            yield Reading("chats under other keys", None, roles, frame.facts | facts, frame, fix)
        else:
            summarise = partial(summarise_form, "chats", file)
            yield Reading("chats", "Texts", {field.name: "turns"}, frame.facts | facts, frame, complete=summarise)


def read_forms(file: DataFile) -> Iterator[Reading]:
    """The forms of annotation tools, chatbots and data sets, by key paths that only they have; and SQuAD."""
    head = file.text[:100_000]
    if file.json is None and not re.search(r"^(nlu:|## ?intent:)", head, re.M):
        return
    if _SQUAD.match(file.text.lstrip()) and '"paragraphs"' in file.text:
        reading = Reading("SQuAD", "Answers", {}, {Fact("keys of one form"): 100.0}, unused={"*": ""})
        reading.complete = lambda reading: summarise_answers(DataSummary("squad"), file.path)
        yield reading
    annotations: Any = Plugins().find("reader", "annotations").load()
    form = annotations.recognise(file.path)
    if form is None:
        return
    weight = 65.0 if annotations(form=form).form.plain else 160.0
    facts = {Fact("keys of one form"): weight, Fact("records of one form"): 30.0}
    for learns in dict.fromkeys(("Entities", *(file.request.task.kinds if file.request.task else ()))):
        complete = partial(summarise_form, form, file)
        yield Reading(f"the form of {form}", learns, {}, dict(facts), unused={"*": ""}, complete=complete)


def summarise_form(form: str, file: DataFile, reading: Reading) -> DataSummary:
    """Summarise a file of an annotation tool, a chatbot or a data set; of a large one, every nth item."""
    data, kinds = file.path, file.request.task.kinds if file.request.task else ()
    items: list[str] = []
    if size_of(data) > WHOLE_BYTES:
        value = load_json(data)
        if isinstance(value, list):
            items = [json.dumps(item) for item in value]
        elif value is None:
            with open_file(data) as file_of_lines:
                items = file_of_lines.read().decode().splitlines()
    step = 1 + len(items) // OBJECTS
    if step > 1 and items[0].startswith("{"):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(DataError):  # which names a line of the copy
            copy = Path(folder, "sample.json")
            copy.write_text("\n".join(items[::step]), encoding="utf-8")
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
    if reader.differing:
        rule = "the ground truth counts, or else the last annotation that was not cancelled"
        summary.notes.append(f"annotators differ on {reader.differing:,} texts: {rule}")
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
