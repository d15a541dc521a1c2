"""Data that is not a table, JSON or CoNLL: folders of texts, fastText, points, parallel files and plain text."""

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
from seqpipe.init.objects import set_offsets, summarise_annotations
from seqpipe.init.scripts import has_unspaced
from seqpipe.init.summary import DataSummary, count, reader_of, spread_records
from seqpipe.init.tags import set_scheme

MIN_CHARACTERS = 10_000  # of a plain text, at least: a language model learns nothing from fewer
MIN_CJK_CHARACTERS = 4_000  # of Chinese, Japanese and other texts without spaces
_PREFIX = "__label__"
PAIRS = 1_000  # lines of parallel files that are examined
_WORD_AND_TAG = re.compile(r"\S*?[^/_|\s]([/_|])[^/_|\s]+")  # as in dog/NN
_SYLLABLES = re.compile(r"[^\W\d_]+(_[^\W\d_]+)+")  # of a Vietnamese word
# Two file names, a line each, and the part in which they differ.
_NAMES = re.compile(r"(.*[-_.]|)(?P<part>.+?)([-_.].*|)\n\1(?P<partner>.+?)\3")
# Such parts of the names of files that are parallel line by line, first that of the texts.
_FIELDS = re.compile(
    "(texts?|sentences?|sents|data|x|in|inputs?|words|tokens) (labels?|y|out|targets?|class(es)?|intents?|tags)", re.I
)
_LANGUAGE = "[a-z]{2}([-_][A-Za-z]{2,4})?"
_SIDES = re.compile(f"src tgt|source target|input output|{_LANGUAGE} {_LANGUAGE}")
_POLAR = re.compile("pos(itive)?|neg(ative)?|neu(tral)?|spam|ham|(sub|ob)j(ective)?", re.I)  # labels in names of files
_POINTS = re.compile(r"[-+.\deE \t]+ output( \d+)*\s*")
_UNLABELLED = {"unsup", "unlabeled", "unlabelled", "unsupervised"}  # names of folders of texts without a label


def summarise_folder(data: Path, kinds: Sequence[str]) -> DataSummary:
    """Summarise a folder of brat's annotations, of Dialogflow's intents, or one of a folder of texts for each label."""
    if any(data.rglob("*.ann")):
        summary = DataSummary("brat", saw="a folder of brat's texts and annotations")
        set_offsets(summary, data)
        return count(summary, data)
    if any(data.rglob("*_usersays_*.json")):
        return summarise_annotations(DataSummary("dialogflow"), data, kinds)
    summary = DataSummary("folders", label_kind="Labels")
    suffixes = Counter(file.suffix for file in data.glob("[!.]*/[!.]*") if file.is_file())
    if suffixes and ".txt" not in suffixes:
        ((suffix, _),) = suffixes.most_common(1)
        summary.options["pattern"] = f"*{suffix}"
    folders = sorted(file.name for file in data.glob("[!.]*") if file.is_dir())
    note = "a folder for each label, with a file for each text"
    if unlabelled := [name for name in folders if name in _UNLABELLED]:
        summary.options["labels"] = [name for name in folders if name not in unlabelled]
        note += f"; {', '.join(unlabelled)} has no labels and is left out"
    summary.notes.append(note)
    return count(summary, data)


def summarise_fasttext(data: Path, lines: Sequence[str], task: str | None = None) -> DataSummary | None:
    """Summarise a file of fastText; None for other files. `task` is what labels are learned as, if it is asked for."""
    if sum(line.startswith(_PREFIX) for line in lines) <= 0.9 * len(lines):
        return None
    summary = count(DataSummary("fasttext", {"multi": True}, label_kind="Labels", multi=True), data)
    sizes = Counter(len(record["labels"]) for record in spread_records(summary, data))
    summary.multi, column = sizes.keys() != {1}, Column()
    several = f"{sizes.total() - sizes[0] - sizes[1]:,} texts have several labels, {sizes[0]:,} none"
    if not summary.multi:
        column.add([*summary.labels], 1)
        summary.options, several = {}, "one label each"
    if column.is_measured and task in (None, "Numbers"):
        size = f"{len(column.values):,} different numbers from {column.low:g} to {column.high:g}"
        summary.saw, summary.why = "fastText's format", f"the labels are {size}: a score is learned"
        summary.doubt("To take the numbers as names of classes", "--task", "label")
        summary.options, summary.label_kind, summary.target = {"numbers": True}, "Numbers", "label"
        summary.labels.clear()
    else:
        summary.notes.append(f"fastText's format, texts with labels that begin with {_PREFIX}: {several}")
    return summary


def summarise_tagged_words(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise lines of words with their tags, as in `dog/NN`; None for other files."""
    words = " ".join(lines).split()
    signs = Counter(match[1] for word in words if (match := _WORD_AND_TAG.fullmatch(word)))
    if len(words) <= 2 * len(lines) or signs.total() <= 0.9 * len(words):
        return None
    ((sign, _),) = signs.most_common(1)
    summary = DataSummary("segmented", {"tag": sign, "joiner": " "}, label_kind="Tags")
    summary.why = f"words, each with {sign!r} and a tag after it"
    if all(schemes.strict_problem(record["tags"], "IOB2") is None for record in spread_records(summary, data)):
        summary.label_kind = "Entities"
    return count(summary, data)


def summarise_segmented(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise word-segmented texts of scripts without blanks, or of joined syllables; None for other files."""
    words = " ".join(lines).split()
    unspaced = [len(word) for word in words if has_unspaced(word)]
    joined = [word for word in words if "_" in word]
    options: dict[str, Any] = {}
    if len(words) < 3 * len(lines):
        return None
    if len(joined) > len(words) / 20 and all(map(_SYLLABLES.fullmatch, joined)):
        options = {"joiner": " ", "syllables": "_"}
    elif len(unspaced) <= len(words) / 2 or not 1.1 < sum(unspaced) / len(unspaced) < 5:
        return None
    return count(DataSummary("segmented", options, why="texts split into words, for word segmentation"), data)


def summarise_first_word(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise lines of a label and a text, or of a word and its pronunciation; None for other files."""
    comment = next((mark for mark in (";;;", "#") if any(line.startswith(mark) for line in lines[:50])), None)
    lines = [line for line in lines if not (comment and line.startswith(comment))]
    options: dict[str, Any] = {"comment": comment} if comment else {}
    if len(lines) < 10 or "\t" in "".join(lines[:50]) or any(len(line.split(None, 1)) < 2 for line in lines):
        return None
    firsts = {line.split(None, 1)[0] for line in lines}
    symbols = Counter(symbol for line in lines for symbol in line.split()[1:])
    is_short = max(map(len, symbols)) <= 5 and len(symbols) <= 200 and symbols.total() > 3 * len(symbols)
    if is_short and len(firsts) > 0.5 * len(lines) and symbols.total() > 2 * len(lines):
        if any(first.endswith(")") for first in firsts):
            options["variants"] = True
        summary = DataSummary("lines", {"parts": ["text", "target"], **options}, label_kind="Texts")
        summary.why = f"{len(symbols):,} different symbols are written for the text, the first word of each line"
        count(summary, data)
        summary.unspaced = True  # a word is read and written by its characters
        return summary
    for word in ("first", "last"):
        parts = [line.split(None, 1) if word == "first" else line.rsplit(None, 1)[::-1] for line in lines]
        labels, texts = Counter(label for label, _ in parts), [text.split() for _, text in parts]
        titles = [label for label in labels if label[:1].isupper() and label[1:].islower()]
        is_few = 1 < len(labels) <= max(2, min(150, len(lines) / 5)) and len(titles) <= len(labels) / 2
        rare = sum(number for number in labels.values() if number == 1)
        # A label does not occur within the texts; a word that begins many sentences does.
        within = sum(not labels.keys().isdisjoint(text) for text in texts)
        named = all(any(character.isalnum() for character in label) for label in labels)
        is_text = len({*map(tuple, texts)}) >= len(lines) / 2 and sum(map(len, texts)) >= 2 * len(lines)
        if is_few and named and is_text and within <= len(lines) / 5 and rare <= len(lines) / 20:
            place = {} if word == "first" else {"word": word}
            summary = DataSummary("lines", {"parts": ["label", "text"], **place, **options}, label_kind="Labels")
            summary.why = f"the {word} word of each line, {len(labels):,} different ones, is the label of the rest"
            return count(summary, data)
    return None


def summarise_parallel(data: Path) -> DataSummary | None:
    """Summarise a file and another one beside it whose lines belong to its lines; None if there is no such file.

    Such files are train.en and train.ja, train.src and train.tgt, seq.in and seq.out with words and tags,
    train_text.txt and train_labels.txt, or reviews.pos and reviews.neg, a file for each label.
    """
    labels: dict[str, Path] = {}
    names: dict[str, str] = {}
    for file in sorted(data.parent.iterdir()):
        match = _NAMES.fullmatch(f"{data.name}\n{file.name}")
        if match is None or file == data or not file.is_file():
            continue
        part, partner = match["part"], match["partner"]
        if _POLAR.fullmatch(part) and _POLAR.fullmatch(partner):
            labels |= {part: data, partner: file}
        is_ending = match[1].endswith(".") and match[3] in ("", *PACKED)
        for text, target, first, second in ((data, file, part, partner), (file, data, partner, part)):
            is_side = is_ending and _SIDES.fullmatch(f"{first} {second}")
            if names or not (is_side or _FIELDS.fullmatch(f"{first} {second}")) or not _have_equal_sizes(data, file):
                continue
            if is_side:
                names = {"text": f"*.{first}{match[3]}", "target": f"*.{second}{match[3]}"}
            else:
                names = _find_fields(text, target)
    if labels:
        summary = DataSummary("lines", label_kind="Labels")
        summary.options["labels"] = {label: _pattern(file) for label, file in labels.items()}
        summary.why = f"the files {' and '.join(file.name for file in labels.values())} have the texts of a label each"
        return count(summary, data)
    if not names:
        return None
    summary = DataSummary("parallel", {"fields": names}, label_kind="Labels" if "label" in names else "Texts")
    summary.why = f"parallel files, line by line: {', '.join(f'{field} in {name}' for field, name in names.items())}"
    if "tags" in names:
        set_scheme(summary, data)
        summary.joint = summary.label_kind == "Entities" and "label" in names
    count(summary, data)
    if "target" in names:
        targets = [record["target"].strip() for record in islice(spread_records(summary, data), PAIRS)]
        summary.unspaced = summary.unspaced or sum(" " in target for target in targets) < len(targets) / 2
    return summary


def _find_fields(text: Path, target: Path) -> dict[str, str]:
    """Return the file of each field: words and tags, or a text and its label or the text to write for it."""
    reader = reader_of("lines", {})
    rows = list(islice(zip(reader.texts(text), reader.texts(target), strict=False), PAIRS))
    sizes = [(len(a.split()), len(b.split())) for a, b in rows]
    if target.name == "seq.out" or (all(a == b for a, b in sizes) and any(b > 1 for _, b in sizes)):
        names = {"words": _pattern(text), "tags": _pattern(target)}
        label = text.with_name("label")
        if label.is_file() and _have_equal_sizes(text, label):
            names["label"] = label.name
        return names
    is_few = len({b.strip() for _, b in rows}) <= max(2, len(rows) / 4)
    is_label = is_few and sum(b for _, b in sizes) <= 3 * len(sizes)
    return {"text": _pattern(text), "label" if is_label else "target": _pattern(target)}


def _have_equal_sizes(data: Path, partner: Path) -> bool:
    """Return whether two files have the same number of lines; DataError if one of them is a little shorter."""
    with open_file(data) as file, open_file(partner) as other_file:
        size, partner_size = sum(1 for _ in file), sum(1 for _ in other_file)
    if size != partner_size and 2 * min(size, partner_size) > max(size, partner_size):
        problem = f"has {size:,} lines, and {partner.name} beside it {partner_size:,}"
        raise DataError(f"{data}: {problem}; if they are parallel, give both the same number of lines")
    return size == partner_size


def _pattern(file: Path) -> str:
    """Return a file's name with * for the word that differs between train, dev and test."""
    return file.name.replace("train", "*", 1)


def summarise_points(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise points with their order, or a recipe from which the reader `points` makes them; None for other files.

    A line of one number a point has an odd number of them, or positions after the last.
    """
    try:
        recipe = json.loads("\n".join(lines)) if lines[0].startswith("{") else None
    except (ValueError, RecursionError):
        recipe = None
    if isinstance(recipe, dict) and recipe.keys() == {"task", "points", "records", "seed"}:
        is_narrow = recipe["task"] == "sort"
    elif all(map(_POINTS.fullmatch, lines)):
        parts = [line.partition("output") for line in lines]
        rows = [(len(numbers.split()), [int(word) for word in order.split()]) for numbers, _, order in parts]
        is_narrow = any(numbers % 2 or max(order, default=0) > numbers // 2 for numbers, order in rows)
    else:
        return None
    summary = DataSummary("points", {"width": 1} if is_narrow else {}, label_kind="Pointers")
    closed, every = True, not recipe or recipe["task"] != "hull"
    for record in islice(spread_records(summary, data), 1 if recipe else None):  # the first shows a fault of a recipe
        summary.records += 1
        pointers = record["pointers"]
        closed = closed and len(pointers) > 1 and pointers[0] == pointers[-1]
        every = every and {*pointers} == {*range(len(record["points"]))}
    if recipe:
        summary.records = recipe["records"]
        summary.notes.append(f"a recipe, from which each epoch's points are made: {recipe['task']}")
    else:
        kind = "numbers" if is_narrow else "points of two numbers"
        which = f"{'all' if every else 'some'} of their positions in an order"
        summary.notes.append(f"{kind}, and {which}{' that ends where it began' if closed else ''}")
    task = ("tour" if every else "hull") if closed and not is_narrow else None
    summary.pointer = {"task": task, "every": every or None, "close": closed or None}
    return summary


def summarise_text(data: Path, lines: Sequence[str]) -> DataSummary | None:
    """Summarise plain text for a language model; None for other files. DataError if it is too short, or has labels."""
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
        fix = "if it labels the line, write a tab after it, as in `label<TAB>text`"
        raise DataError(f"{data}: each line begins with one of {len(firsts)} words, such as {word!r}; {fix}")
    summary = DataSummary("text", label_kind="Continuations")
    if len(lines) - len(filled) > 2:
        summary.options["unit"] = "paragraph"
    for record in islice(spread_records(summary, data), 1_000_000):
        summary.records += 1
        summary.words += record["text"].count(" ") + 1
        summary.characters += len(record["text"])
        summary.scripts.add(record["text"])
    summary.unspaced = summary.scripts.are_unspaced
    least = MIN_CJK_CHARACTERS if summary.unspaced else MIN_CHARACTERS
    size = f"plain text of {summary.characters:,} characters, without labels"
    if summary.characters < least:
        fix = f"a language model needs at least {least:,}; to learn labels, give a table with a label for each text"
        raise DataError(f"{data}: is {size}; {fix}")
    summary.notes.append(f"{size}: for a language model")
    return summary
