"""Choose the columns of a table, or the keys of objects, that are the text and what is learned."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

from seqpipe.errors import DataError, OpenChoiceError, did_you_mean
from seqpipe.init.columns import KEYS, LABELS, SCORES, SECOND, SOURCES, STRUCTURE, TARGETS, TEXTS, Column, describe
from seqpipe.init.summary import DataSummary, count, records
from seqpipe.init.tags import choose_scheme, find_tagging

ColumnTask = Literal["Labels", "Numbers", "Texts"]
_NEEDS: dict[ColumnTask, tuple[str, str]] = {
    "Labels": ("label", "a {} of few values beside one of texts"),
    "Numbers": ("score", "a {} of numbers beside one of texts"),
    "Texts": ("seq2seq", "two {}s of texts"),
}
LIST_FIX = 'write them as JSON, `{"text": …, "labels": ["a", "b"]}` on each line'
SEPARATORS = ("|", ";", ",")
SEVERAL = 1 / 20  # of the cells hold several labels at least
WORDS = 3  # of a label on average, at most
SET = {"1", "1.0", "true", "yes"}
CHOICES = 4  # that are offered
WRITTEN = 2_000  # texts to write that tokenizers are tried on
TAGGED = 0.95  # of the cells have as many tags as another has words
FEW_TAGS = 200
PEEK = 1_000  # records that are read to see that they can be
_PLURAL = {"labels", "tags", "topics", "categories", "genres", "classes", "intents"}
_FEATURES = re.compile(r"[\w.:/+()=-]+([;|,][\w.:/+()=-]+)+")  # grammatical ones, as in V;IND;PRS
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)


@dataclass
class Roles:
    """The roles of columns.

    Attributes:
        columns: All columns.
        learns: What is learned.
        texts: The column of the text, or those of a pair of texts.
        target: The column of the label, number, tags or text to write.
        why: Why these columns, in a few words.
        indicators: Columns of 0 and 1, one for each label.
        doubts: Other readings in words, each with its options of `seqpipe init`.
    """

    columns: list[Column]
    learns: ColumnTask | Literal["Tags"]
    texts: list[Column]
    target: Column
    why: str
    indicators: list[Column] = field(default_factory=list)
    doubts: list[tuple[str, list[str]]] = field(default_factory=list)

    def summarise(self, summary: DataSummary, data: Path) -> DataSummary:
        """Complete the summary of a file, of which the reader and what was seen are known.

        Raises:
            DataError: if the reader cannot read the first records.
        """
        texts, target = self.texts, self.target
        for doubt, options in self.doubts:
            summary.doubt(doubt, *options)
        summary.why = self.why
        if self.learns == "Tags":
            return self._summarise_tags(summary, data)
        separator = target.separator if self.learns == "Labels" and not self.indicators else None
        name = target.name
        if name is None:
            name = "target" if self.learns == "Texts" else "labels" if separator else "label"
        summary.fields = ["text", *("text_pair" if text.name is None else text.name for text in texts[1:])]
        if target.name is None:
            names = dict(zip((text.number for text in texts), summary.fields, strict=True)) | {target.number: name}
            summary.options["columns"] = [names.get(column.number, "_") for column in self.columns]
        elif texts[0].name != "text":
            summary.options["text"] = texts[0].name
        if self.learns == "Numbers" and target.number:
            summary.options["numbers"] = [name]
        elif self.indicators:
            summary.options["indicators"] = [column.name for column in self.indicators]
        elif separator:
            summary.options |= {"labels": name} | ({} if separator == "|" else {"separator": separator})
        elif self.learns == "Labels" and name != "label":
            summary.options["label"] = name
        kept, summary.left_out = summary.left_out, [] if summary.left_out else None
        first, *_ = itertools.islice(records(summary, data), PEEK)
        summary.left_out, summary.label_kind = kept, self.learns
        summary.records, summary.words = target.cells, sum(text.words for text in texts)
        summary.unspaced = any(text.is_unspaced for text in texts)
        for cell in itertools.chain.from_iterable(text.sample for text in texts):
            summary.scripts.add(cell)
        if self.learns == "Labels":
            summary.multi = separator is not None or bool(self.indicators)
            for value, count in target.values.items():
                labels = value.split(separator) if separator else [value]
                labels = [label.strip() for label in labels if label.strip()] if separator else labels
                for label in labels:
                    summary.labels[label] += count
            if self.indicators:
                ones = {
                    column: sum(n for v, n in column.values.items() if v.strip().lower() in SET)
                    for column in self.indicators
                }
                summary.labels = Counter({str(column.name): number for column, number in ones.items()})
            several = f"several labels each, separated by {separator!r}" if separator else "any number of labels"
            summary.notes.append(f"texts with {several if summary.multi else 'one label each'}")
            summary.scale()
            return summary
        renamed = f"source_{name}"  # by the reader, where the column has the name of another field
        summary.target = renamed if renamed in first else name
        if self.learns == "Numbers":
            summary.notes.append(f"texts with a number each: {summary.target!r}, {target.low:g} to {target.high:g}")
        else:
            # One word to another, as in spelling and inflection, and texts without blanks, such as dates.
            summary.is_word = texts[0].words <= 1.2 * texts[0].cells
            summary.unspaced = summary.unspaced or summary.is_word or target.blanks < target.cells / 2
            summary.written = target.sample[:: 1 + len(target.sample) // WRITTEN]
            summary.notes.append(f"texts with a text to write each: {summary.target!r} is learned from 'text'")
        summary.scale()
        return summary

    def _summarise_tags(self, summary: DataSummary, data: Path) -> DataSummary:
        (words,), tags = self.texts, self.target
        names = {words.number: "words", tags.number: "tags"}
        if tags.name is None:
            summary.options["columns"] = [names.get(column.number, "_") for column in self.columns]
        summary.options |= {"words": words.name or "words", "tags": tags.name or "tags"}
        sentences = [cell.split() for cell in tags.sample]
        choose_scheme(summary, sentences, Counter(tag for sentence in sentences for tag in sentence))
        for column in self.columns:
            if column.kind == "few values" and column is not tags:
                options = ["--task", "label", "--text", words.option, "--target", column.option]
                summary.doubt(f"{column.title} is not used. To learn it", *options)
        return count(summary, data)


def find_roles(
    columns: list[Column],
    task: ColumnTask | None,
    where: str,
    must: bool,
    target: str | None = None,
    text: Sequence[str] = (),
) -> Roles | None:
    """Return the roles of columns; None if there is nothing to learn and the file may be no table (not `must`).

    `target` and `text` are the names or numbers of the column to learn and of the texts, where they are asked for.

    Raises:
        DataError: if the columns leave a choice open, or lack what is asked for.
    """
    for column in columns:
        column.classify()
        if column.kind in ("few values", "texts") or column.key in LABELS | _PLURAL:
            separator = separator_of(column)
            # A bar is rare within texts; commas and semicolons are not, and separate labels in columns of labels alone.
            if separator and (column.kind == "few values" or column.key in LABELS | _PLURAL or separator == "|"):
                column.kind, column.separator = "few values", separator
    classes = [column for column in columns if column.kind == "few values"]
    candidates = [column for column in classes if column.is_spaced and column.key not in LABELS | SCORES]
    if candidates and len(classes) > 1 and all(column.kind != "texts" for column in columns):
        # Few texts that repeat look like labels: the column of most characters holds the texts.
        longest = max(candidates, key=lambda column: column.characters)
        if longest.characters == max(column.characters for column in columns):
            longest.kind = "texts"
    roles = _choose(columns, task, where, [_named(columns, name, where) for name in text], target)
    noun = columns[0].noun
    if roles is None and task:
        head, needs = _NEEDS[task]
        raise DataError(f"{where}: --task {head} needs {needs.format(noun)}, and the {noun}s are: {describe(columns)}")
    if roles is None and must:
        fix = f"give texts with a {noun} of labels (few values), of numbers, or of texts to write"
        kinds = {column.kind for column in columns}
        if "texts" in kinds and any(column.is_key and column.is_numeric for column in columns):
            fix += f"; numbers that differ in every row are taken as identifiers unless their {noun} is named score"
        raise DataError(f"{where}: nothing to learn in it: the {noun}s are {describe(columns)}; {fix}")
    if roles and roles.learns == "Labels" and roles.target.share(lambda cell: _LIST.fullmatch(cell.strip())) > 0.5:
        raise DataError(f"{where}: the cells of {roles.target.title} are lists; {LIST_FIX}")
    return roles


def separator_of(column: Column) -> str | None:
    """Return the separator of the labels in a cell; None if each cell is one label."""
    cells = Counter(filter(str.strip, column.sample))  # an empty one is a text without labels
    for separator in SEPARATORS:
        lists = [[part.strip() for part in cell.split(separator)] for cell in cells]
        several = [parts for parts in lists if len(parts) > 1]
        share = sum(cells[cell] for cell, parts in zip(cells, lists, strict=True) if len(parts) > 1)
        counts = Counter(part for parts in lists for part in {*parts})
        words = sum(part.count(" ") + 1 for part in counts)
        if share < max(1, SEVERAL * cells.total()) or "" in counts or words > WORDS * len(counts):
            continue
        if sum(map(bool, map(STRUCTURE.search, counts))) > len(counts) / 2:
            return None  # names and values of a description of data
        again = sum(all(counts[part] > 1 for part in parts) for parts in several)
        if column.key in _PLURAL or again > len(several) / 2:
            return separator
    return None


def _named(columns: Sequence[Column], name: str, where: str) -> Column:
    """Return the column of a name, or of a number from 1."""
    for column in columns:
        if column.name == name or (name.isdigit() and column.number == int(name)):
            return column
    names = [str(column.number) if column.name is None else str(column.name) for column in columns]
    raise DataError(f"{where}: there is no {columns[0].noun} {name!r}{did_you_mean(name, names)}")


def _choose(
    columns: list[Column], task: ColumnTask | None, where: str, requested: list[Column], target_name: str | None
) -> Roles | None:
    """Choose by the kinds of the columns; None if there are no texts, or nothing beside them."""
    chosen = _named(columns, target_name, where) if target_name else None
    if not (task or chosen):
        roles = None if requested else _slots(columns) or _inflection(columns)
        if roles := roles or _indicators(columns, where, requested):
            return roles
    others = [column for column in columns if column is not chosen]
    texts = requested or _sentences([column for column in others if column.kind == "texts"])
    repeated = [column for column in others if column.kind == "repeated texts" and column not in texts]
    if not texts:
        texts, repeated = repeated, []
    kinds_of_tasks: dict[ColumnTask | None, set[str]] = {
        None: {"few values", "numbers"},
        "Labels": {"few values", "other values", "the same value in every row"},
        "Numbers": {"numbers"},
        "Texts": set(),
    }
    targets = [column for column in others if column.kind in kinds_of_tasks[task] and column not in requested]
    if task == "Numbers":
        targets += [column for column in others if column.kind == "few values" and column.is_numeric]
    if task == "Labels":
        targets += [column for column in others if column.kind == "numbers" and not column.many]
    if chosen:
        targets = [chosen]
        is_text = chosen.kind in ("texts", "repeated texts", "dates") or (task is None and chosen.many)
        if task == "Texts" or (task is None and is_text and not chosen.is_numeric):
            if not texts:
                return None
            return Roles(columns, "Texts", texts[:2], chosen, f"{chosen.title} is asked for, a text to write")
    if not texts or (task and task != "Texts" and not targets):
        return None
    if task == "Texts" or not targets:
        return _choose_pair(columns, texts, repeated, where, task, requested)
    usual = LABELS | SCORES
    targets.sort(key=lambda column: (column.key not in usual, column.kind == "numbers", len(column.values)))
    target, *rest = targets
    doubts = []
    if len(texts) > 1 and not (task or chosen or requested) and target.key not in usual:
        if target.kind == "numbers":
            question, others_task = f"{target.title} may be learned, or the second text", "score"
        elif sum(value.count(" ") > 1 or not value.strip() for value in target.values) > len(target.values) / 2:
            return _choose_pair(columns, texts, repeated, where, task, requested)  # beside remarks such as licences
        else:
            others_task = "label"
            question = (
                f"{target.title} may label the texts, or be a remark on a text and the one to write for it, "
                "which --task label or --task seq2seq says"
            )
        readings = [["--task", others_task], ["--task", "seq2seq"]]
        raise OpenChoiceError(where.partition(": ")[0], f"{describe(columns)}: {question}", readings)
    left_out: list[Column] = []
    if len(texts) > 1 and not requested:
        first = next((text for text in texts if text.key == "text"), None)
        if first and all(text.key not in SECOND for text in texts):
            texts, left_out = [first], [text for text in texts if text is not first]
        elif len(texts) > 2:
            question = f"{describe(columns)}: {len(texts)} {target.noun}s of texts; choose one or two by --text"
            readings = [["--text", text.option] for text in texts[:CHOICES]]
            raise OpenChoiceError(where.partition(": ")[0], question, readings)
        elif first and texts[0] is not first:
            texts = [first, texts[0]]
    # A text that repeats is what another one answers, such as a question, if it is the only one.
    repeated = [text for text in repeated if text is not target]
    if len(texts) == len(repeated) == 1 and not requested:
        texts = [*texts, *repeated]
    else:
        left_out += repeated
    if not requested:
        options = [word for text in texts for word in ("--text", text.option)]
        doubts += [
            (f"{text.title} holds texts that are not used. To read both", [*options[:2], "--text", text.option])
            for text in left_out
        ]
        if len(texts) == 2 and texts[1] in repeated:
            doubts.append((f"{texts[1].title} is read beside {texts[0].title}. To leave it out", options[:2]))
    learns: ColumnTask = task or ("Numbers" if target.kind == "numbers" or target.is_measured else "Labels")
    if learns != "Labels" or not target.separator:
        _refuse_empty(target, where)
    size = f"{len(target.values):,} values in {target.cells:,} {target.row}s"
    if learns == "Numbers":
        size = f"numbers from {target.low:g} to {target.high:g}"
    for column in rest[:CHOICES]:
        task_options = ["--task", "score" if column.kind == "numbers" else "label"]
        doubts.append((f"{column.title} may be learned too. To learn it", [*task_options, "--target", column.option]))
    return Roles(columns, learns, texts, target, f"{target.title} has {size}", doubts=doubts)


def _slots(columns: Sequence[Column]) -> Roles | None:
    """Return a column of words and one of as many tags, as of slot filling; None if there are none."""
    for words, tags in itertools.permutations([column for column in columns if column.number], 2):
        pairs = [(a.split(), b.split()) for a, b in zip(words.sample[:PEEK], tags.sample[:PEEK], strict=True)]
        alike = sum(len(a) == len(b) for a, b in pairs)
        if alike < TAGGED * len(pairs) or words.blanks < words.cells or words.is_numeric or tags.is_numeric:
            continue
        counts = Counter(tag for _, row in pairs for tag in row)
        vocabulary = {word for row, _ in pairs for word in row}
        tagging = find_tagging(counts)
        is_few = len(counts) <= min(FEW_TAGS, len(vocabulary) / 2) and counts.total() > 5 * len(counts)
        if len(counts) > 1 and (is_few or (tagging and tagging.tag_format)) and len(pairs) > 1:
            why = f"{tags.title} has a tag for each word of {words.title}, {len(counts):,} different ones"
            return Roles(list(columns), "Tags", [words], tags, why)
    return None


def _inflection(columns: Sequence[Column]) -> Roles | None:
    """Return a word, its grammatical features and the form to write, as of SIGMORPHON; None if there are none."""
    filled = [column for column in columns if not column.is_mostly_empty]
    features = [column for column in filled if column.share(_FEATURES.fullmatch) > 0.8]
    words = [column for column in filled if column not in features and column.words <= 1.2 * column.cells]
    if len(words) != 2 or len(features) != 1 or any(column.is_numeric for column in words):
        return None
    pairs = itertools.islice(zip(words[0].sample, words[1].sample, strict=True), PEEK)
    alike = [SequenceMatcher(None, *pair).ratio() > 0.5 for pair in pairs]
    if sum(alike) < 0.6 * len(alike):
        return None
    lemma, form = words
    if lemma.key in TARGETS or form.key in SOURCES or len(form.values) < 0.8 * len(lemma.values):
        lemma, form = form, lemma
    why = f"{form.title} is written from {lemma.title} and the features in {features[0].title}"
    return Roles(list(columns), "Texts", [lemma, *features], form, why)


def _indicators(columns: Sequence[Column], where: str, requested: Sequence[Column]) -> Roles | None:
    """Return columns of 0 and 1 that are labels of one text; None if there are fewer than two."""
    binary = [column for column in columns if column.is_binary and column.key not in KEYS and column.name]
    usual = [column for column in columns if column.key in LABELS | SCORES and column.kind in ("few values", "numbers")]
    texts = list(requested) or _sentences([column for column in columns if column.kind == "texts"])
    if len(binary) < 2 or usual or not 1 <= len(texts) <= 2:
        return None
    names = ", ".join(column.short for column in binary)
    if not binary[0].number:
        keys = json.dumps([column.short for column in binary])
        labels = f"[{keys}[] as $k | select(.[$k] == 1 or .[$k] == true) | $k]"
        command = f"jq -c '{{text: .{texts[0].short}, labels: {labels}}}' FILE > labels.jsonl"
        raise DataError(f"{where}: the keys {names} are 0 or 1, labels of one text; write them as a list: `{command}`")
    why = f"the columns {names} are 0 or 1 in {binary[0].cells:,} rows: labels, of which a text has any number"
    doubts = [(f"To learn {binary[0].title} alone", ["--task", "label", "--target", binary[0].option])]
    return Roles(
        list(columns), "Labels", texts, binary[0], why, indicators=binary, doubts=doubts if len(binary) == 2 else []
    )


def _sentences(texts: list[Column]) -> list[Column]:
    """Return the columns of texts with words, if there are any: the others are names of something."""
    named = SOURCES | TARGETS | SECOND | TEXTS
    sentences = [text for text in texts if text.words > 1.5 * text.cells or not text.is_ascii or text.key in named]
    return sentences or texts


def _choose_pair(
    columns: list[Column],
    texts: list[Column],
    repeated: list[Column],
    where: str,
    task: ColumnTask | None,
    requested: Sequence[Column],
) -> Roles | None:
    """Choose a text and the text to write for it; None if there are no two texts."""
    every = list(texts)
    kinds = ("texts", "repeated texts", "dates")
    texts = [column for column in columns if column in (*texts, *repeated) or column.kind in kinds]
    if task == "Texts" and len(texts) == 1:
        # Where it is asked for, few values may be written too.
        values = [c for c in columns if c.kind in ("few values", "other values") and not c.is_numeric]
        texts += sorted(values, key=lambda column: column.key not in TARGETS | LABELS)[:1]
        every = list(texts)
    if requested:
        every = [column for column in texts if column not in requested]
        if len(every) == 1:
            return Roles(
                columns, "Texts", list(requested), every[0], f"{every[0].title} is written from the text asked for"
            )
    if len(texts) > 2:
        texts = _sentences(texts)
    known = [text for text in texts if text.key in SOURCES | TARGETS]
    if len(texts) > 2 and len(known) == 2:
        texts = known
    if len(texts) > 2:
        noun = texts[0].noun
        question = f"{describe(columns)}: {len(texts)} {noun}s of texts; choose the text and the one to write"
        pairs = itertools.islice(itertools.permutations(texts, 2), CHOICES)
        readings = [["--task", "seq2seq", "--text", a.option, "--target", b.option] for a, b in pairs]
        raise OpenChoiceError(where.partition(": ")[0], question, readings)
    if len(texts) < 2:
        return None
    source, target = texts
    if source.key in TARGETS or (target.key in SOURCES and source.key not in SOURCES):
        source, target = target, source
    elif not {source.key, target.key} & (SOURCES | TARGETS) and source in every and target in repeated:
        source, target = target, source  # several texts are written for one, as descriptions of data
    _refuse_empty(target, where)
    why = f"{target.title} is written from {source.title}: both are different texts"
    if len(repeated) == 1 and source in repeated:
        why = f"{target.title} is written from {source.title}, of which each is in several rows"
    if target.kind not in ("texts", "repeated texts", "dates"):
        why = f"{target.title}, of {len(target.values):,} values, is written from {source.title}"
    return Roles(columns, "Texts", [source], target, why)


def _refuse_empty(target: Column, where: str) -> None:
    """DataError if what is to be learned is empty somewhere."""
    if target.empty:
        count = f"1 {target.row}" if target.empty == 1 else f"{target.empty:,} {target.row}s"
        raise DataError(
            f"{where}: {target.title} is to be learned and empty in {count}; fill it in, or remove the {target.row}"
        )
