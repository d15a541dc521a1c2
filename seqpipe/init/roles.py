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
from seqpipe.init.columns import KEYS, LABELS, SCORES, SECOND, SOURCES, STRUCTURE, TARGETS, TEXTS, Column, kinds_of
from seqpipe.init.summary import TASKS, DataSummary, Doubt, count, head_for, spread_records
from seqpipe.init.tags import choose_scheme, find_tagging

ColumnTask = Literal["Labels", "Numbers", "Texts"]
Columns = list[Column]
_TARGET_KINDS: dict[ColumnTask | None, set[str]] = {  # of columns that may be learned besides texts
    None: {"few values", "numbers"},
    "Labels": {"few values", "other values", "the same value in every row", "numbers"},
    "Numbers": {"numbers", "few values"},
    "Texts": set(),
}
_TEXT_KINDS = ("texts", "repeated texts", "dates")  # that may be written
LIST_FIX = 'write them as JSON, `{"text": …, "labels": ["a", "b"]}` on each line'
CHOICES = 4  # that are offered, at most
PEEK = 1_000  # records that are read as a test
_ONES = {"1", "1.0", "true", "yes"}
_PLURAL = {"labels", "tags", "topics", "categories", "genres", "classes", "intents"}
_FEATURES = re.compile(r"[\w.:/+()=-]+([;|,][\w.:/+()=-]+)+")  # grammatical features, such as V;IND;PRS
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)


@dataclass
class Roles:
    """The roles of columns."""

    columns: Columns
    learns: ColumnTask | Literal["Tags"]
    texts: Columns  # the text, or the two of a pair
    target: Column  # the label, number, tags or text to write
    why: str  # the reason for this choice
    indicators: Columns = field(default_factory=list)  # columns of 0 and 1, one for each label
    doubts: list[Doubt] = field(default_factory=list)

    def summarise(self, summary: DataSummary, data: Path) -> DataSummary:
        """Complete the summary of a file, which has its reader; DataError if the first records cannot be read."""
        texts, target = self.texts, self.target
        summary.doubts += self.doubts
        summary.why = self.why
        if self.learns == "Tags":
            if target.name is None:
                names = {texts[0].number: "words", target.number: "tags"}
                summary.options["columns"] = [names.get(column.number, "_") for column in self.columns]
            summary.options |= {"words": texts[0].name or "words", "tags": target.name or "tags"}
            sentences = [cell.split() for cell in target.sample]
            choose_scheme(summary, sentences, Counter(itertools.chain.from_iterable(sentences)))
            for column in self.columns:
                if column.kind == "few values" and column is not target:
                    options = ["--task", "label", "--text", texts[0].option, "--target", column.option]
                    summary.doubt(f"{column.title} is not used. To learn it", *options)
            return count(summary, data)
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
        left_out, summary.left_out = summary.left_out, [] if summary.left_out else None
        first, *_ = itertools.islice(spread_records(summary, data), PEEK)
        summary.left_out, summary.label_kind = left_out, self.learns
        summary.records, summary.words = target.cells, sum(text.words for text in texts)
        summary.unspaced = any(text.is_unspaced for text in texts)
        for cell in itertools.chain.from_iterable(text.sample for text in texts):
            summary.scripts.add(cell)
        if self.learns == "Labels":
            summary.multi = separator is not None or bool(self.indicators)
            if self.indicators:
                for column in self.indicators:
                    ones = sum(number for value, number in column.values.items() if value.strip().lower() in _ONES)
                    summary.labels[str(column.name)] = ones
            else:
                for cell, number in target.values.items():
                    labels = filter(None, map(str.strip, cell.split(separator))) if separator else [cell]
                    summary.labels.update(dict.fromkeys(labels, number))
            several = f"several labels each, separated by {separator!r}" if separator else "any number of labels"
            summary.notes.append(f"texts with {several if summary.multi else 'one label each'}")
        else:
            renamed = f"source_{name}"  # by the reader, where the column has the name of another field
            summary.target = renamed if renamed in first else name
            note = f"texts with a number each: {summary.target!r}, {target.low:g} to {target.high:g}"
            if self.learns == "Texts":
                # One word to another, as in spelling and inflection, and texts without blanks, such as dates.
                summary.is_word = texts[0].words <= 1.2 * texts[0].cells
                summary.unspaced = summary.unspaced or summary.is_word or target.blanks < target.cells / 2
                summary.written = target.sample[:: 1 + len(target.sample) // 2_000]  # on which tokenizers are compared
                note = f"texts with a text to write each: {summary.target!r} is learned from 'text'"
            summary.notes.append(note)
        summary.scale()
        return summary


def find_roles(
    columns: Columns, task: ColumnTask | None, where: str, must: bool, target: str | None, text: Sequence[str]
) -> Roles | None:
    """Return the roles of columns; None if there is nothing to learn and the file may not be a table (not `must`).

    DataError if the columns leave a choice open, or lack what the options `target` and `text` name; `where` is the file
    with its description.
    """
    for column in columns:
        column.classify()
        has_labels = column.kind == "few values" or column.key in LABELS | _PLURAL
        if has_labels or column.kind == "texts":
            separator = separator_of(column)
            # A bar is rare within texts; commas and semicolons are not, and separate labels in columns of labels alone.
            if separator and (has_labels or separator == "|"):
                column.kind, column.separator = "few values", separator
    classes = [column for column in columns if column.kind == "few values"]
    candidates = [column for column in classes if column.is_spaced and column.key not in LABELS | SCORES]
    if candidates and len(classes) > 1 and all(column.kind != "texts" for column in columns):
        # Few texts that repeat look like labels: the column of most characters has the texts.
        longest = max(candidates, key=lambda column: column.characters)
        if longest.characters == max(column.characters for column in columns):
            longest.kind = "texts"
    roles = _choose(columns, task, where, [_column_of(columns, name, where) for name in text], target)
    noun = columns[0].noun
    if roles is None and task:
        needs = f"--task {head_for(task)} needs {TASKS[head_for(task)].needs}"
        raise DataError(f"{where}: {needs}, and the {noun}s are: {kinds_of(columns)}")
    if roles is None and must:
        fix = f"give texts with a {noun} of labels (few values), of numbers, or of texts to write"
        kinds = {column.kind for column in columns}
        if "texts" in kinds and any(column.is_key and column.is_numeric for column in columns):
            fix += f"; numbers that differ in every row are identifiers, unless their {noun} is named score"
        raise DataError(f"{where}: nothing to learn in it: the {noun}s are {kinds_of(columns)}; {fix}")
    if roles and roles.learns == "Labels" and roles.target.share(lambda cell: _LIST.fullmatch(cell.strip())) > 0.5:
        raise DataError(f"{where}: the cells of {roles.target.title} are lists; {LIST_FIX}")
    return roles


def separator_of(column: Column) -> str | None:
    """Return the separator of the labels in a cell; None if each cell is one label."""
    cells = Counter(filter(str.strip, column.sample))  # an empty cell is that of a text without labels
    for separator in ("|", ";", ","):
        lists = {cell: [part.strip() for part in cell.split(separator)] for cell in cells}
        several = {cell: parts for cell, parts in lists.items() if len(parts) > 1}
        counts = Counter(part for parts in lists.values() for part in {*parts})
        words = sum(part.count(" ") + 1 for part in counts)
        share = sum(cells[cell] for cell in several)
        # One cell of 20 has several labels, at least, and a label three words on average, at most.
        if share < max(1, cells.total() / 20) or "" in counts or words > 3 * len(counts):
            continue
        if sum(map(bool, map(STRUCTURE.search, counts))) > len(counts) / 2:
            return None  # names with values, as in a description of data
        repeated = sum(all(counts[part] > 1 for part in parts) for parts in several.values())
        if column.key in _PLURAL or repeated > len(several) / 2:
            return separator
    return None


def _column_of(columns: Sequence[Column], name: str, where: str) -> Column:
    """Return the column with this name, or with this number from 1."""
    for column in columns:
        if column.name == name or (name.isdigit() and column.number == int(name)):
            return column
    hint = did_you_mean(name, [column.option for column in columns])
    if columns[0].name is None:
        hint = f" by name: give a number from 1 to {len(columns)}, or take the first row as names by `--header yes`"
    raise DataError(f"{where}: there is no {columns[0].noun} {name!r}{hint}")


def _choose(
    columns: Columns, task: ColumnTask | None, where: str, requested: Columns, target_name: str | None
) -> Roles | None:
    """Choose by the kinds of the columns; None if there are no texts, or nothing besides them."""
    chosen = _column_of(columns, target_name, where) if target_name else None
    if not (task or chosen):
        roles = None if requested else _slots(columns) or _inflection(columns)
        if roles := roles or _indicators(columns, where, requested):
            return roles
    others = [column for column in columns if column is not chosen]
    texts = requested or _sentences([column for column in others if column.kind == "texts"])
    repeated = [column for column in others if column.kind == "repeated texts" and column not in texts]
    if not texts:
        texts, repeated = repeated, []
    targets = [column for column in others if column.kind in _TARGET_KINDS[task] and column not in requested]
    if task == "Numbers":
        targets = [column for column in targets if column.is_numeric]
    if task == "Labels":
        targets = [column for column in targets if column.kind != "numbers" or not column.many]
    if chosen:
        targets = [chosen]
        is_text = task is None and not chosen.is_numeric and (chosen.kind in _TEXT_KINDS or chosen.many)
        if task == "Texts" or is_text:
            why = f"{chosen.title} is the text to write that --target names"
            return Roles(columns, "Texts", texts[:2], chosen, why) if texts else None
    if not texts or (task and task != "Texts" and not targets):
        return None
    if task == "Texts" or not targets:
        return _choose_pair(columns, texts, repeated, where, task, requested)
    data, kinds = where.partition(": ")[0], kinds_of(columns)
    usual = LABELS | SCORES
    targets.sort(key=lambda column: (column.key not in usual, column.kind == "numbers", len(column.values)))
    target, *alternatives = targets
    doubts = []
    is_open = len(texts) > 1 and not (task or chosen or requested) and target.key not in usual
    is_alike = len(texts) == 2 and texts[0].is_ascii == texts[1].is_ascii
    if is_open and is_alike and target.kind == "numbers" and target.has_fraction:
        # Two texts in one script with a measured number are more often a pair and its similarity than a translation.
        problem = f"{target.title} is taken for the similarity of two texts, {texts[0].title} and {texts[1].title}"
        doubts.append(Doubt(f"{problem}. To write one of them", ("--task", "seq2seq")))
    elif is_open:
        question, other_task = f"{target.title} may be learned, or the second text", "score"
        if target.kind != "numbers":
            if sum(value.count(" ") > 1 or not value.strip() for value in target.values) > len(target.values) / 2:
                return _choose_pair(columns, texts, repeated, where, task, requested)  # besides remarks, as licences
            question = f"{target.title} may label the texts, or be a remark on a text and the one to write for it"
            other_task = "label"
        readings = [["--task", other_task], ["--task", "seq2seq"]]
        raise OpenChoiceError(data, f"{kinds}: {question}", readings)
    left_out: Columns = []
    if len(texts) > 1 and not requested:
        first = next((text for text in texts if text.key == "text"), None)
        if first and all(text.key not in SECOND for text in texts):
            texts, left_out = [first], [text for text in texts if text is not first]
        elif len(texts) > 2:
            question = f"{kinds}: {len(texts)} {target.noun}s of texts; choose one or two by --text"
            raise OpenChoiceError(data, question, [["--text", text.option] for text in texts[:CHOICES]])
        elif first and texts[0] is not first:
            texts = [first, texts[0]]
    # A text that repeats is what another one answers, such as a question, if it is the only one.
    repeated = [text for text in repeated if text is not target]
    if not requested:
        if len(texts) == len(repeated) == 1:
            texts = [*texts, *repeated]
            option = ("--text", texts[0].option)
            doubts.append(Doubt(f"{texts[1].title} is read beside {texts[0].title}. To leave it out", option))
        else:
            left_out += repeated
        for text in left_out:
            options = ("--text", texts[0].option, "--text", text.option)
            doubts.append(Doubt(f"{text.title} has texts that are not used. To read both", options))
    learns: ColumnTask = task or ("Numbers" if target.kind == "numbers" or target.is_measured else "Labels")
    if learns != "Labels" or not target.separator:
        _refuse_empty(target, where)
    size = f"{len(target.values):,} values in {target.cells:,} {target.row}s"
    if learns == "Numbers":
        size = f"numbers from {target.low:g} to {target.high:g}"
    for column in alternatives[:CHOICES]:
        options = ("--task", "score" if column.kind == "numbers" else "label", "--target", column.option)
        doubts.append(Doubt(f"{column.title} may be learned too. To learn it", options))
    return Roles(columns, learns, texts, target, f"{target.title} has {size}", doubts=doubts)


def _slots(columns: Columns) -> Roles | None:
    """Return a column of words and one of as many tags, as of slot filling; None if there are none."""
    for words, tags in itertools.permutations([column for column in columns if column.number], 2):
        pairs = [(a.split(), b.split()) for a, b in zip(words.sample[:PEEK], tags.sample[:PEEK], strict=True)]
        aligned = sum(len(a) == len(b) for a, b in pairs)
        if aligned < 0.95 * len(pairs) or words.blanks < words.cells or words.is_numeric or tags.is_numeric:
            continue
        counts = Counter(tag for _, row in pairs for tag in row)
        vocabulary = {word for row, _ in pairs for word in row}
        tagging = find_tagging(counts)
        is_few = len(counts) <= min(200, len(vocabulary) / 2) and counts.total() > 5 * len(counts)
        if len(counts) > 1 and (is_few or (tagging and tagging.tag_format)) and len(pairs) > 1:
            why = f"{tags.title} has a tag for each word of {words.title}, {len(counts):,} different ones"
            return Roles(columns, "Tags", [words], tags, why)
    return None


def _inflection(columns: Columns) -> Roles | None:
    """Return a word, its grammatical features and the form to write, as of SIGMORPHON; None if there are none."""
    filled = [column for column in columns if not column.is_mostly_empty]
    features = [column for column in filled if column.share(_FEATURES.fullmatch) > 0.8]
    words = [column for column in filled if column not in features and column.words <= 1.2 * column.cells]
    if len(words) != 2 or len(features) != 1 or any(column.is_numeric for column in words):
        return None
    lemma, form = words
    pairs = [*zip(lemma.sample, form.sample, strict=True)][:PEEK]
    if sum(SequenceMatcher(None, *pair).ratio() > 0.5 for pair in pairs) < 0.6 * len(pairs):
        return None
    if lemma.key in TARGETS or form.key in SOURCES or len(form.values) < 0.8 * len(lemma.values):
        lemma, form = form, lemma
    why = f"{form.title} is written from {lemma.title} and the features in {features[0].title}"
    return Roles(columns, "Texts", [lemma, *features], form, why)


def _indicators(columns: Columns, where: str, requested: Sequence[Column]) -> Roles | None:
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
    roles = Roles(columns, "Labels", texts, binary[0], why, indicators=binary)
    if len(binary) == 2:
        options = ("--task", "label", "--target", binary[0].option)
        roles.doubts.append(Doubt(f"To learn {binary[0].title} alone", options))
    return roles


def _sentences(texts: Columns) -> Columns:
    """Return the columns of texts with several words, if there are any; the others are names."""
    named = SOURCES | TARGETS | SECOND | TEXTS
    sentences = [text for text in texts if text.words > 1.5 * text.cells or not text.is_ascii or text.key in named]
    return sentences or texts


def _choose_pair(
    columns: Columns, texts: Columns, repeated: Columns, where: str, task: ColumnTask | None, requested: Columns
) -> Roles | None:
    """Choose a text and the text to write for it; None if there are no two texts."""
    sentences = texts
    texts = [column for column in columns if column in (*texts, *repeated) or column.kind in _TEXT_KINDS]
    if task == "Texts" and len(texts) == 1:
        # If it is asked for, few values may be written too.
        values = [c for c in columns if c.kind in ("few values", "other values") and not c.is_numeric]
        texts += sorted(values, key=lambda column: column.key not in TARGETS | LABELS)[:1]
    others = [column for column in texts if column not in requested]
    if requested and len(others) == 1:
        why = f"{others[0].title} is written from the text that --text names"
        return Roles(columns, "Texts", requested, others[0], why)
    if len(texts) > 2:
        texts = _sentences(texts)
    known = [text for text in texts if text.key in SOURCES | TARGETS]
    if len(texts) > 2 and len(known) == 2:
        texts = known
    if len(texts) > 2:
        question = f"{kinds_of(columns)}: {len(texts)} {texts[0].noun}s of texts; choose the text and the one to write"
        pairs = itertools.islice(itertools.permutations(texts, 2), CHOICES)
        readings = [["--task", "seq2seq", "--text", a.option, "--target", b.option] for a, b in pairs]
        raise OpenChoiceError(where.partition(": ")[0], question, readings)
    if len(texts) < 2:
        return None
    source, target = texts
    if source.key in TARGETS or (target.key in SOURCES and source.key not in SOURCES):
        source, target = target, source
    elif not {source.key, target.key} & (SOURCES | TARGETS) and source in sentences and target in repeated:
        source, target = target, source  # several texts are written for one, as descriptions of data
    _refuse_empty(target, where)
    why = f"{target.title} is written from {source.title}: both are different texts"
    if len(repeated) == 1 and source in repeated:
        why = f"{target.title} is written from {source.title}, of which each is in several rows"
    if target.kind not in _TEXT_KINDS:
        why = f"{target.title}, of {len(target.values):,} values, is written from {source.title}"
    return Roles(columns, "Texts", [source], target, why)


def _refuse_empty(target: Column, where: str) -> None:
    """Raise DataError if a cell of the column to learn is empty."""
    if target.empty:
        rows = f"1 {target.row}" if target.empty == 1 else f"{target.empty:,} {target.row}s"
        fix = f"fill it in, or remove the {target.row}"
        raise DataError(f"{where}: {target.title} is to be learned and empty in {rows}; {fix}")
