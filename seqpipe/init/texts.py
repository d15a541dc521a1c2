"""Data that is no table, no JSON and no CoNLL: folders of texts, fastText's files, points and plain text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.errors import DataError
from seqpipe.files import PACKED, open_file
from seqpipe.init.columns import Column
from seqpipe.init.scripts import has_unspaced
from seqpipe.init.summary import DataSummary, count, reader_of, records

CHARACTERS = 10_000  # of a plain text; a language model learns nothing from fewer
CJK_CHARACTERS = 4_000
_PREFIX = "__label__"
FEWEST = 10  # lines, if their first words are to be labels or a dictionary's
MOST_LABELS = 150
PAIRS = 1_000  # lines of parallel files that are looked at
_GLUED = re.compile(r"\S*?[^/_|\s]([/_|])[^/_|\s]+")  # a word and its tag, as in dog/NN
_SYLLABLES = re.compile(r"[^\W\d_]+(_[^\W\d_]+)+")  # of a Vietnamese word
_LANGUAGE = re.compile(r"\.[a-z]{2}([-_][A-Za-z]{2,4})?")
_SIDES = {".src": ".tgt", ".source": ".target", ".input": ".output"}
_TEXT_PARTS = (
    "text",
    "texts",
    "sentence",
    "sentences",
    "sents",
    "data",
    "x",
    "in",
    "input",
    "inputs",
    "words",
    "tokens",
)
_LABEL_PARTS = ("label", "labels", "y", "out", "target", "targets", "classes", "intent", "intents", "tags", "class")
_POLAR = {
    "pos",
    "neg",
    "neu",
    "positive",
    "negative",
    "neutral",
    "spam",
    "ham",
    "subj",
    "obj",
    "subjective",
    "objective",
}
_POINTS = re.compile(r"[-+.\deE \t]+ output( \d+)*\s*")
_RECIPE = {"task", "points", "records", "seed"}
_UNLABELLED = {"unsup", "unlabeled", "unlabelled", "unsupervised"}  # names of folders of texts without a label


def summarise_folder(data: Path) -> DataSummary:
    """Summarise a folder of texts by label, or the one in it that holds the training texts."""
    if any(data.rglob("*.ann")):
        summary = DataSummary("brat")
        offsets, message = reader_of(summary.use, {}).fitting_offsets(data)
        if offsets != "characters":
            summary.options["offsets"] = offsets
            summary.notes.append(message)
        summary.saw = "a folder of brat's texts and annotations"
        return count(summary, data)
    summary = DataSummary("folders", label_kind="Labels")
    patterns = Counter(file.suffix for file in data.glob("*/*") if file.is_file() and not file.name.startswith("."))
    if patterns and ".txt" not in patterns:
        ((suffix, _),) = patterns.most_common(1)
        summary.options["pattern"] = f"*{suffix}"
    folders = sorted(file.name for file in data.iterdir() if file.is_dir() and not file.name.startswith("."))
    without = [name for name in folders if name in _UNLABELLED]
    if without:
        summary.options["labels"] = [name for name in folders if name not in without]
    count(summary, data)
    left_out = f"; {', '.join(without)} has no labels and is left out" if without else ""
    summary.notes.append(f"a folder for each label, with a file for each text{left_out}")
    return summary


def summarise_fasttext(data: Path, lines: Sequence[str], task: str | None = None) -> DataSummary | None:
    """Summarise a file of fastText; None if it is none. `task` is what labels are learned as, if it is asked for."""
    filled = [line for line in lines if line.strip()]
    if sum(line.startswith(_PREFIX) for line in filled) <= 0.9 * len(filled):
        return None
    summary = DataSummary("fasttext", {"multi": True}, label_kind="Labels")
    labels, counts = Column(), Counter[int]()
    for record in records(summary, data):
        if record["labels"]:
            labels.add(record["labels"], 1)
        counts[min(len(record["labels"]), 2)] += 1
    if counts[1] == counts.total() and labels.is_measured and task in (None, "Numbers"):
        summary.options, summary.label_kind, summary.target = {"numbers": True}, "Numbers", "label"
        size = f"{len(labels.values):,} different numbers from {labels.low:g} to {labels.high:g}"
        summary.saw, summary.why = "fastText's form", f"the labels are {size}, which a score learns"
        summary.doubt("To take the numbers as names of classes", "--task", "label")
        return count(summary, data)
    summary.multi = counts[1] < counts.total()
    if not summary.multi:
        summary.options = {}
    several = f"{counts[2]:,} texts have several labels, {counts[0]:,} none" if summary.multi else "one label each"
    summary.notes.append(f"fastText's form, texts with labels that begin with {_PREFIX}: {several}")
    return count(summary, data)


def summarise_glued(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise lines of words with tags glued to them, as in `dog/NN`; None if they are none."""
    filled = [line for line in lines if line.strip()]
    words = [word for line in filled for word in line.split()]
    signs = Counter(match[1] for word in words if (match := _GLUED.fullmatch(word)))
    if len(words) <= 2 * len(filled) or signs.total() <= 0.9 * len(words):
        return None
    ((sign, _),) = signs.most_common(1)
    summary = DataSummary("segmented", {"tag": sign, "joiner": " "}, label_kind="Tags")
    tags: Counter[str] = Counter()
    well_formed = True
    for record in records(summary, data):
        tags.update(record["tags"])
        well_formed = well_formed and schemes.strict_problem(record["tags"], "IOB2") is None
    if well_formed and len(tags) > 1:
        summary.label_kind = "Entities"
    summary.why = f"words with their tags behind {sign!r}, {len(tags):,} different ones"
    return count(summary, data)


def summarise_segmented(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise texts split into words where one writes no blanks, or of joined syllables; None if they are none."""
    filled = [line for line in lines if line.strip()]
    words = [word for line in filled for word in line.split()]
    unspaced = [len(word) for word in words if has_unspaced(word)]
    joined = sum(bool(_SYLLABLES.fullmatch(word)) for word in words)
    if len(words) < 3 * len(filled):
        return None
    if len(unspaced) > len(words) / 2 and 1.1 < sum(unspaced) / len(unspaced) < 5:
        summary = DataSummary("segmented")
    elif joined > len(words) / 20 and not any("_" in word and not _SYLLABLES.fullmatch(word) for word in words):
        summary = DataSummary("segmented", {"joiner": " ", "syllables": "_"})
    else:
        return None
    summary.why = "texts split into words, for word segmentation"
    return count(summary, data)


def summarise_first_word(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise lines of a label and a text, or of a word and its pronunciation; None if they are neither."""
    comment = next((mark for mark in (";;;", "#") if any(line.startswith(mark) for line in lines[:50])), None)
    filled = [line for line in lines if line.strip() and not (comment and line.startswith(comment))]
    split = [line.split(None, 1) for line in filled]
    if len(filled) < FEWEST or "\t" in "".join(filled[:50]) or any(len(parts) < 2 for parts in split):
        return None
    firsts = Counter(first for first, _ in split)
    rests = [rest.split() for _, rest in split]
    symbols = Counter(symbol for rest in rests for symbol in rest)
    options: dict[str, Any] = {"comment": comment} if comment else {}
    is_short = max(map(len, symbols)) <= 5 and len(symbols) <= 200 and symbols.total() > 3 * len(symbols)
    if is_short and len(firsts) > 0.5 * len(filled) and symbols.total() > 2 * len(filled):
        if any(first.endswith(")") for first in firsts):
            options["variants"] = True
        summary = DataSummary("lines", {"parts": ["text", "target"], **options}, label_kind="Texts")
        summary.why = (
            f"the first word of a line has the text, the {len(symbols):,} different symbols behind it are written"
        )
        summary.unspaced = True  # a word is read and written by its characters
        return count_texts(summary, data)
    for word in ("first", "last"):
        split = [line.split(None, 1) if word == "first" else line.rsplit(None, 1)[::-1] for line in filled]
        labels, rests = Counter(label for label, _ in split), [rest.split() for _, rest in split]
        titles = [label for label in labels if label[:1].isupper() and label[1:].islower()]
        is_few = 1 < len(labels) <= max(2, min(MOST_LABELS, len(filled) / 5)) and len(titles) <= len(labels) / 2
        rare = sum(number for number in labels.values() if number == 1)
        # A label does not stand within the texts; a word that begins many sentences does.
        within = sum(not labels.keys().isdisjoint(rest) for rest in rests)
        named = all(any(character.isalnum() for character in label) for label in labels)
        texts = {" ".join(rest) for rest in rests}
        is_text = len(texts) >= len(filled) / 2 and sum(map(len, rests)) >= 2 * len(rests)
        if is_few and named and is_text and within <= len(filled) / 5 and rare <= len(filled) / 20:
            placed = {} if word == "first" else {"word": word}
            summary = DataSummary("lines", {"parts": ["label", "text"], **placed, **options}, label_kind="Labels")
            where = "behind" if word == "first" else "in front of"
            summary.why = f"the {word} word of each line, {len(labels):,} different ones, labels the text {where} it"
            return count(summary, data)
    return None


def count_texts(summary: DataSummary, data: Path) -> DataSummary:
    """Count the records of texts with a text to write, or those with a label."""
    if summary.label_kind != "Texts":
        return count(summary, data)
    unspaced = summary.unspaced
    blanks = 0
    for record in records(summary, data):
        summary.records += 1
        summary.words += len(record["text"].split())
        blanks += " " in record["target"].strip()
        summary.scripts.add(record["text"])
    summary.unspaced = unspaced or summary.scripts.are_unspaced or blanks < summary.records / 2
    return summary


def summarise_parallel(data: Path) -> DataSummary | None:
    """Summarise a file whose lines belong to those of another beside it; None if there is no such file.

    Such files are train.en and train.ja, train.src and train.tgt, seq.in and seq.out with words and tags,
    train_text.txt and train_labels.txt, or reviews.pos and reviews.neg, a file for each label.
    """
    packed = data.suffix if data.suffix in PACKED else ""
    name = data.name.removesuffix(packed)
    suffix, stem = Path(name).suffix, Path(name).stem
    files = sorted(file for file in data.parent.glob(f"*{packed}") if file.is_file() and file != data)
    if name in ("seq.in", "seq.out") and {"seq.in", "seq.out"} <= {name, *(file.name for file in files)}:
        names = {"words": "seq.in", "tags": "seq.out"}
        if data.with_name("label").is_file() and _lines(data.with_name("label")) == _lines(data):
            names["label"] = "label"
        return _parallel(data, names)
    parts = re.split(r"([-_.])", stem if suffix == ".txt" or not suffix else name)
    ending = suffix if suffix == ".txt" else ""
    polar = {file: _label_of(file, name) for file in (data, *files)}
    same = {
        label: file
        for file, label in polar.items()
        if label
        and re.sub(label, "*", file.name, flags=re.I) == re.sub(polar[data] or "\0", "*", data.name, flags=re.I)
    }
    if len(same) > 1:
        summary = DataSummary(
            "lines", {"labels": {label: _star(file.name) for label, file in same.items()}}, label_kind="Labels"
        )
        summary.why = f"the files {' and '.join(file.name for file in same.values())} hold the texts of a label each"
        return count(summary, data)
    for place, part in enumerate(parts):
        for mine, theirs in ((_TEXT_PARTS, _LABEL_PARTS), (_LABEL_PARTS, _TEXT_PARTS)):
            if part.lower() not in mine:
                continue
            for ending_word in theirs:
                for word in (ending_word, ending_word.upper()):
                    partner = data.with_name("".join([*parts[:place], word, *parts[place + 1 :]]) + ending + packed)
                    if partner != data and partner.is_file() and _belongs(partner, data):
                        text, target = (data, partner) if mine is _TEXT_PARTS else (partner, data)
                        return _paired(data, text, target)
    for partner in files:
        beside = partner.name.removesuffix(packed)
        is_side = _SIDES.get(suffix) == Path(beside).suffix or _SIDES.get(Path(beside).suffix) == suffix
        is_language = all(map(_LANGUAGE.fullmatch, (suffix, Path(beside).suffix)))
        if Path(beside).stem == stem and (is_side or is_language) and _belongs(partner, data):
            text, target = (partner, data) if suffix in _SIDES.values() else (data, partner)
            return _parallel(data, {"text": f"*{text.name[len(stem) :]}", "target": f"*{target.name[len(stem) :]}"})
    return None


def _label_of(file: Path, name: str) -> str | None:
    """Return the label that a file is named after, as in reviews.pos and neg.txt; None if it is none."""
    parts = [part for part in re.split(r"[-_.]", file.name) if part.lower() in _POLAR]
    return parts[0] if len(parts) == 1 else None


def _star(name: str) -> str:
    """Return a file's name with * for the word that differs between train, dev and test."""
    return name.replace("train", "*", 1)


def _lines(data: Path) -> int:
    with open_file(data) as file:
        return sum(1 for _ in file)


def _belongs(partner: Path, data: Path) -> bool:
    """Return whether two files have the same number of lines; DataError if one of them is a little shorter."""
    lines, others = _lines(data), _lines(partner)
    if lines != others and 2 * min(lines, others) > max(lines, others):
        problem = f"has {lines:,} lines, and {partner.name} beside it {others:,}"
        raise DataError(f"{data}: {problem}; if they are parallel, give both the same number of lines")
    return lines == others


def _paired(data: Path, text: Path, target: Path) -> DataSummary:
    """Summarise a file of texts and one with a label, tags or a text for each line."""
    sides = [
        [line.strip() for _, line in zip(range(PAIRS), reader_of("lines", {}).texts(file), strict=False)]
        for file in (text, target)
    ]
    texts, values = sides
    widths = [(len(a.split()), len(b.split())) for a, b in zip(texts, values, strict=False)]
    names = [_star(text.name), _star(target.name)]
    if all(a == b for a, b in widths) and any(b > 1 for _, b in widths):
        return _parallel(data, dict(zip(("words", "tags"), names, strict=True)))
    kind = (
        "label"
        if len({*values}) <= max(2, len(values) / 4) and sum(b for _, b in widths) <= 3 * len(widths)
        else "target"
    )
    return _parallel(data, {"text": names[0], kind: names[1]})


def _parallel(data: Path, names: dict[str, str]) -> DataSummary:
    """Summarise parallel files by the file of each field."""
    summary = DataSummary("parallel", {"fields": names})
    if "tags" in names:
        summary.options["scheme"] = "none"
        sentences = [record["tags"] for record in records(summary, data)]
        is_entities = all(schemes.strict_problem(tags, "IOB2") is None for tags in sentences)
        summary.label_kind = "Entities" if is_entities else "Tags"
        if is_entities:
            del summary.options["scheme"]
        if "label" in names:
            summary.joint = is_entities
    else:
        summary.label_kind = "Labels" if "label" in names else "Texts"
    listed = ", ".join(f"{field} in {name}" for field, name in names.items())
    summary.why = f"parallel files, line by line: {listed}"
    return count_texts(summary, data)


def summarise_points(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise points with their order, or a recipe from which the reader `points` makes them; None if it is neither.

    A line of one number a point has an odd number of them, or positions behind.
    """
    filled = [line for line in lines if line.strip()]
    summary = DataSummary("points", label_kind="Pointers")
    if all(map(_POINTS.fullmatch, filled)):
        parts = [line.partition("output") for line in filled]
        rows = [(len(numbers.split()), [int(word) for word in order.split()]) for numbers, _, order in parts]
        is_narrow = any(numbers % 2 or max(order, default=0) > numbers // 2 for numbers, order in rows)
        if is_narrow:
            summary.options["width"] = 1
        closed = every = True
        for record in records(summary, data):
            summary.records += 1
            pointers = record["pointers"]
            closed = closed and len(pointers) > 1 and pointers[0] == pointers[-1]
            every = every and {*pointers} == {*range(len(record["points"]))}
        kind = "numbers" if is_narrow else "points of two numbers"
        which = f"{'all' if every else 'some'} of their positions in an order"
        summary.notes.append(f"{kind}, and {which}{' that ends where it began' if closed else ''}")
        task = ("tour" if every else "hull") if closed and not is_narrow else None
    else:
        try:
            recipe = json.loads("\n".join(filled)) if filled[0].lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(recipe, dict) or recipe.keys() != _RECIPE:
            return None
        if recipe["task"] == "sort":
            summary.options["width"] = 1
        next(records(summary, data))  # DataError if it is wrong
        every, closed = recipe["task"] != "hull", recipe["task"] != "sort"
        summary.records = recipe["records"]
        summary.notes.append(f"a recipe, from which each epoch's points are made: {recipe['task']}")
        task = recipe["task"] if closed else None
    summary.pointer = {"task": task, "every": every or None, "close": closed or None}
    return summary


def summarise_text(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise plain text for a language model; None if the file is no prose.

    Raises:
        DataError: if the text is too short, or its lines may begin with labels.
    """
    filled = [line.strip() for line in lines if line.strip()]
    # Running text has several words or Chinese characters a line, no columns and no markup.
    characters, words = sum(map(len, filled)), sum(len(line.split()) for line in filled)
    unspaced = sum(map(has_unspaced, filled)) > len(filled) / 2
    markup = sum(line[0] in "<{[" or "\t" in line for line in filled)
    is_long = characters >= 5 * len(filled) if unspaced else words >= 4 * len(filled)
    if {".txt", ".text"}.isdisjoint(data.suffixes) or not is_long or markup > len(filled) / 4:
        return None
    firsts = Counter(line.split()[0] for line in filled)
    is_sentence = len(firsts) > 3 and any(word.istitle() for word in firsts)
    if len(filled) >= 20 and 1 < len(firsts) <= min(50, len(filled) / 10) and not is_sentence:
        ((word, _),) = firsts.most_common(1)
        fix = "if it labels the line, write a tab behind it, as in `label<TAB>text`"
        raise DataError(f"{data}: each line begins with one of {len(firsts)} words, such as {word!r}; {fix}")
    summary = DataSummary("text", label_kind="Continuations")
    blank = sum(not line.strip() for line in lines)
    if blank > 2:
        summary.options["unit"] = "paragraph"
    for record in islice(records(summary, data), 1_000_000):
        summary.records += 1
        summary.words += record["text"].count(" ") + 1
        summary.characters += len(record["text"])
        summary.scripts.add(record["text"])
    summary.unspaced = summary.scripts.are_unspaced
    least = CJK_CHARACTERS if summary.unspaced else CHARACTERS
    if summary.characters < least:
        fix = f"a language model needs at least {least:,}; to learn labels, give a table with a label for each text"
        raise DataError(f"{data}: is plain text of {summary.characters:,} characters, without labels; {fix}")
    summary.notes.append(f"plain text of {summary.characters:,} characters, without labels: for a language model")
    return summary
