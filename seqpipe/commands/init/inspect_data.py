"""What a data file is like: its format, its labels, how it is written; found by looking at all of it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqpipe.answers.tagging_schemes import SCHEMES, belongs, strict_problem
from seqpipe.commands.init.conll import has_columns, layout_of, tag_sentences
from seqpipe.commands.init.convert import refuse_convertible, refuse_marked_pairs, refuse_vectors
from seqpipe.commands.init.files import open_bytes
from seqpipe.commands.init.json_files import find_json
from seqpipe.commands.init.object_fields import FORMS, keys_of, profile_objects
from seqpipe.commands.init.objects import choose_roles, find_labels, find_spans, find_words, is_answers
from seqpipe.commands.init.other_formats import (
    count_labels,
    is_parquet,
    refuse_binary,
    summarise_folder,
    summarise_lines,
    summarise_text,
)
from seqpipe.commands.init.parallel import refuse_parallel
from seqpipe.commands.init.roles import Roles, Task, counts_of
from seqpipe.commands.init.scripts import has_unspaced
from seqpipe.commands.init.sniff import is_conllu, is_squad
from seqpipe.commands.init.summary import DataSummary, records, scale
from seqpipe.commands.init.table import find_table
from seqpipe.commands.init.tasks import Wanted, refuse_other
from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.errors import DataError

LINES, BYTES = 1_000, 10_000_000  # read to find out what kind of file it is, at most
SEGMENTED = 1 / 20  # of the words without spaces have several characters, if they are words; else they are characters


def summarise(data: Path, wanted: Wanted | None = None) -> DataSummary:
    """Look at a data file and return what it is like.

    Raises:
        DataError: if it is of no known format, or lacks what the wanted task needs.
    """
    summary = _summarise(data, wanted)
    if wanted:
        refuse_other(summary, data, wanted)
    return summary


def _summarise(data: Path, wanted: Wanted | None) -> DataSummary:
    task = wanted.column if wanted else None
    if data.is_dir():
        return summarise_folder(data)
    if is_parquet(data):
        return _objects(data, "parquet", {}, task)
    refuse_convertible(data)
    refuse_binary(data)
    lines = _first_lines(data)
    summary = summarise_lines(data, lines)
    if summary is not None:
        return summary
    if is_squad(lines):
        return _answers(DataSummary("squad", label_kind="Answers"), data)
    if (objects := find_json(data, lines)) is not None:
        return _objects(data, *objects, task)
    if is_conllu(lines):
        return _conllu(data)
    if wanted and wanted.has_words:
        return _conll(data)
    if not (has_columns(lines) or "\t" in lines[0] or (wanted and wanted.is_plain)):
        refuse_parallel(data)
    if wanted and not (wanted.column or wanted.is_plain):
        raise DataError(f"{data}: --task {wanted.head} needs {wanted.needs}, and the file does not look so")
    table = None if wanted and wanted.is_plain else find_table(data, lines, task)
    if table:
        return _table(data, table)
    refuse_vectors(data, lines)
    refuse_marked_pairs(data, lines)
    is_plain = wanted.is_plain if wanted else not has_columns(lines)
    text = summarise_text(data, lines) if is_plain else None
    return text or _conll(data)


def _first_lines(data: Path) -> list[str]:
    """Return the first lines without their ends, from the first that is not blank."""
    try:
        with open_bytes(data) as file:
            text = file.read(BYTES).decode("utf-8-sig", "replace")
    except (OSError, EOFError, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(f"{data}: cannot be read: {reason}") from error
    lines = list(itertools.dropwhile(lambda line: not line.strip(), text.splitlines()[:LINES]))
    if not lines:
        raise DataError(f"{data}: is empty; give the file with your training examples")
    return [lines[0].lstrip(), *lines[1:]]


def _objects(data: Path, use: str, options: dict[str, Any], task: Task | None) -> DataSummary:
    """Summarise objects by their keys: words with tags, texts with spans, questions, labels, numbers or texts."""
    summary = DataSummary(use, options)
    fields = profile_objects(summary, data)
    summary.saw = f"{FORMS[use]} with {keys_of(fields)}"
    if is_answers(fields):
        options = {**options, "text": None}
        return _answers(DataSummary(use, options, label_kind="Answers", saw=summary.saw), data)
    if task is None and (words := find_words(fields, data)) is not None:
        summary.options |= words
        tagged = DataSummary(use, {**summary.options, "scheme": "none"})
        tags = [list(record["tags"]) for record in records(tagged, data) if "tags" in record]
        _choose_scheme(summary, tags, {tag for sentence in tags for tag in sentence})
        summary.notes.append("records with words already split")
        _count(summary, data)
    elif task is None and (spans := find_spans(fields, data)) is not None:
        summary.options |= spans
        summary.notes.append("texts with character spans")
        _count(summary, data)
    elif task in (None, "Labels") and (labels := find_labels(fields, data)) is not None:
        names, summary.multi = labels
        summary.options |= names
        summary.notes.append(f"texts with {'several labels' if summary.multi else 'one label each'}")
        count_labels(summary, data)
    else:
        roles = choose_roles(fields, data, task)
        roles.use, roles.options, roles.saw = use, options | roles.options, summary.saw
        return _table(data, roles)
    scale(summary, data)
    return summary


def _conll(data: Path) -> DataSummary:
    layout = layout_of(data)
    summary = DataSummary("conll", layout.options(), saw=layout.saw(), why=layout.why())
    _choose_scheme(summary, list(tag_sentences(data, layout)), {*layout.tags})
    if summary.label_kind == "Tags" and not layout.comments and "#" in layout.columns[layout.word]:
        summary.options["comment"] = None  # a sentence that begins with the word #
    if layout.uneven:
        _raise_fault(summary, data)
    _count(summary, data)
    scale(summary, data)
    return summary


def _conllu(data: Path) -> DataSummary:
    """Summarise CoNLL-U by the first column of tags in which every word has one."""
    columns = dict.fromkeys(("upos", "xpos", "deprel"), True)
    for record in records(DataSummary("conllu", {"tags": None}), data):
        columns = {name: full and "_" not in record[name] for name, full in columns.items()}
    tags = next((name for name, full in columns.items() if full), None)
    if tags is None:
        raise DataError(f"{data}: words without tags: no column of {', '.join(columns)} is filled for every word")
    summary = DataSummary("conllu", {} if tags == "upos" else {"tags": tags}, label_kind="Tags", saw="CoNLL-U")
    summary.why = f"the column {tags} is filled for every word"
    _count(summary, data)
    scale(summary, data)
    return summary


def _answers(summary: DataSummary, data: Path) -> DataSummary:
    for record in records(summary, data):
        summary.records += 1
        summary.words += len(record["question"].split()) + len(record["context"].split())
        summary.unanswered += not record["answers"]["text"]
        summary.scripts.add(record["context"])
    summary.unspaced = summary.scripts.are_unspaced
    summary.notes.append(f"questions on passages, {summary.unanswered:,} without an answer")
    return summary


def _table(data: Path, roles: Roles) -> DataSummary:
    summary = DataSummary(roles.use, roles.options, label_kind=roles.learns, saw=roles.saw, why=roles.why)
    first, *_ = itertools.islice(records(summary, data), LINES)  # DataError if the reader cannot read them
    summary.records = roles.columns[roles.target].cells
    texts = [roles.columns[i] for i in roles.texts]
    summary.words = sum(column.words for column in texts)
    summary.fields = roles.text_fields
    summary.unspaced = any(column.is_unspaced for column in texts)
    for text in itertools.chain.from_iterable(column.sample for column in texts):
        summary.scripts.add(text)
    renamed = f"source_{roles.target_field}"  # by the reader, where the column has the name of another field
    field = renamed if renamed in first else roles.target_field
    target = roles.columns[roles.target]
    if roles.learns == "Labels":
        summary.labels, summary.multi = counts_of(roles), roles.separator is not None
        several = f"several labels each, separated by {roles.separator!r}"
        summary.notes.append(f"texts with {several if summary.multi else 'one label each'}")
    else:
        summary.target = field
    if roles.learns == "Numbers":
        summary.notes.append(f"texts with a number each: {field!r}, {target.low:g} to {target.high:g}")
    if roles.learns == "Texts":
        summary.unspaced = summary.unspaced or target.blanks < target.cells / 2  # such as dates
        summary.notes.append(f"texts with a text to write each: {field!r} is learned from 'text'")
    scale(summary, data)
    return summary


def _raise_fault(summary: DataSummary, data: Path) -> None:
    """Read all of the file, for the DataError of its first fault."""
    reader: Any = construct(Plugins().find("reader", summary.use).load(), **summary.options)
    for _ in reader.read(data):
        pass


def _choose_scheme(summary: DataSummary, tags: Sequence[Sequence[str]], distinct: set[str]) -> None:
    """Set the tagging scheme that the tags keep, or break least; `distinct` are those of all of the file."""
    schemes = [*SCHEMES[1:], SCHEMES[0]]  # IOB2 first: most files are
    fitting = [s for s in schemes if all(belongs(tag, s) for tag in distinct)] if "O" in distinct else []
    if not fitting:
        summary.options["scheme"], summary.label_kind = "none", "Tags"
        return
    faults = {s: sum(strict_problem(sentence, s) is not None for sentence in tags) for s in fitting}
    best = min(fitting, key=lambda s: faults[s])
    if best != "IOB2":
        summary.options["scheme"] = best
    if faults[best]:
        summary.options["ill_formed"] = "repair"
        summary.notes.append(
            f"{faults[best]} sentences break {best}'s rules; they are repaired as conlleval reads them"
        )


def _count(summary: DataSummary, data: Path) -> None:
    """Count records, words and labels; find out whether words are written without spaces between them."""
    unspaced = longer = worded = 0
    for record in records(summary, data):
        words = record.get("words") or []
        summary.records += 1
        summary.counted += bool(words) and words == [str(number) for number in range(1, len(words) + 1)]
        summary.words += len(words or record["text"].split())
        lengths = [len(word) for word in words if has_unspaced(word)]
        unspaced += len(lengths)
        longer += sum(length > 1 for length in lengths)
        worded += bool(words)
        summary.scripts.add(record["text"])
        summary.labels.update(span["label"] for span in record.get("spans") or [])
        _count_tags(summary, record.get("tags") or [])
    if not worded:
        summary.unspaced = summary.scripts.are_unspaced
    elif unspaced > summary.words / 2:
        summary.segmented = longer > SEGMENTED * unspaced
        summary.unspaced = not summary.segmented
        if summary.use != "conllu":  # has the spaces of the text itself
            summary.options["joiner"] = ""


def _count_tags(summary: DataSummary, tags: Sequence[str]) -> None:
    for tag in tags:
        if summary.label_kind == "Tags":
            summary.labels[tag] += 1
        elif tag.startswith("B-"):
            summary.labels[tag[2:]] += 1
