"""Readings of lines: a label first or last, fastText, words with glued tags, split words, points, and plain text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, Literal

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.errors import DataError
from seqpipe.init.datafile import UNUSED_SIGN, DataFile
from seqpipe.init.evidence import CAP, Fact, Facts, Reading, each, repeats, similar_lengths
from seqpipe.init.fields import Field, count_words, spread
from seqpipe.init.scripts import count_unspaced
from seqpipe.init.summary import DataSummary, count, size_of, spread_records

MIN_CHARACTERS = 10_000  # of a plain text, at least: a language model learns nothing from fewer
MIN_CJK_CHARACTERS = 4_000  # of Chinese, Japanese and other texts without spaces
MIN_NAMES = 100  # names, one a line, of which a language model may learn
EXAMINED_LINES = 3_000
MAX_LABELS = 150
_LABEL_FIX = "to learn labels, give a table with a label for each text"
_PREFIX = "__label__"
_LABEL = re.compile(r"__label__([^\s,]+)")
_SYLLABLES = re.compile(r"[^\W\d_]+(_[^\W\d_]+)+")  # of a Vietnamese word
_POINTS = re.compile(r"[-+.\deE \t]+ output( \d+)*\s*")
_SHORT_LABEL = re.compile(r"[A-Z]\w{0,2}|\d|\w+:\w+|[a-z]+_[a-z_]+|[\d.]+")
_ALPHABETIC = re.compile(r"[\W_]*([^\W\d_]+(['-][^\W\d_]+)*)?[\W_]*")  # a word, or signs


def read_fasttext(file: DataFile) -> Iterator[Reading]:
    """Lines of fastText: a mark before each label."""
    lines = spread(file.filled, EXAMINED_LINES)
    if not lines or sum(line.startswith(_PREFIX) for line in lines) <= 0.9 * len(lines):
        return
    facts = {Fact("a mark before each label"): 2 * CAP, Fact("every line"): CAP}
    labels = [_LABEL.findall(line) for line in lines]
    numbers = Field("label", [label for some in labels for label in some])
    if all(len(some) == 1 for some in labels) and numbers.is_measured:
        complete = partial(_summarise_numbers, file)
        yield Reading("fastText's lines with numbers", "Numbers", {}, facts | {Fact("numbers"): 1.0}, complete=complete)
    yield Reading("fastText's lines", "Labels", {}, facts, complete=partial(_summarise_fasttext, file))


def _summarise_fasttext(file: DataFile, reading: Reading) -> DataSummary:
    summary = count(DataSummary("fasttext", {"multi": True}, label_kind="Labels", multi=True), file.path)
    sizes = Counter(len(record["labels"]) for record in spread_records(summary, file.path))
    summary.multi = sizes.keys() != {1}
    several = f"{sizes.total() - sizes[0] - sizes[1]:,} texts have several labels, {sizes[0]:,} none"
    if not summary.multi:
        summary.options, several = {}, "one label each"
    summary.notes.append(f"fastText's format, texts with labels that begin with {_PREFIX}: {several}")
    return summary


def _summarise_numbers(file: DataFile, reading: Reading) -> DataSummary:
    summary = DataSummary("fasttext", {"numbers": True}, label_kind="Numbers", target="label", saw="fastText's format")
    numbers = set()
    for record in spread_records(summary, file.path):
        numbers.add(record["label"])
        summary.records += 1
        summary.words += len(record["text"].split())
        summary.scripts.add(record["text"])
    size = f"{len(numbers):,} different numbers from {min(numbers):g} to {max(numbers):g}"
    summary.why = f"the labels are {size}: a score is learned"
    summary.unspaced = summary.scripts.are_unspaced
    summary.doubt("To take the numbers as names of classes", "--task", "label")
    summary.scale()
    return summary


def read_first_or_last_word(file: DataFile) -> Iterator[Reading]:
    """The first or the last word of each line is its label: few values, which occur nowhere else in the lines."""
    if file.json or len(file.filled) < 8 or file.filled[0].startswith(_PREFIX) or file.sign == "\t":
        return
    lines = spread(file.filled, EXAMINED_LINES)
    for place in ("first", "last"):
        parts = [(line.split(None, 1) if place == "first" else line.rsplit(None, 1)[::-1]) for line in lines]
        pairs = [(part[0], part[1] if len(part) > 1 else "") for part in parts]
        if facts := _facts_of_word(pairs, is_first=place == "first"):
            if file.sign:
                facts[UNUSED_SIGN] = -25.0
            options: dict[str, Any] = {"parts": ["label", "text"]}
            if place == "last":
                options["word"] = "last"
            if file.comment:
                options["comment"] = file.comment
            summary = DataSummary("lines", options, label_kind="Labels")
            number = len({word for word, _ in pairs})
            summary.why = f"the {place} word of each line, {number:,} different ones, is the label of the rest"
            complete = partial(count_lines, file, summary)
            roles = {f"the {place} word": "label", "the rest": "text"}
            yield Reading(f"the {place} word of each line is its label", "Labels", roles, facts, complete=complete)


def _facts_of_word(pairs: Sequence[tuple[str, str]], is_first: bool) -> Facts:
    """Return the facts that a word of each line is the label of the rest; none if it cannot be."""
    labels, rest = Field("label", [word for word, _ in pairs]), Counter(w for _, text in pairs for w in text.split())
    numbers = [int(label) for label in labels.filled if label.isdigit()]
    if numbers[:1] == [1] and sum(after - before == 1 for before, after in pairwise(numbers)) > 0.5 * len(pairs):
        return {}  # the lines of each dialogue are numbered
    empty = sum(not text.strip() for _, text in pairs)
    if not 2 <= labels.different <= min(MAX_LABELS, 0.3 * len(pairs)) or empty > 0.02 * len(pairs):
        return {}
    if labels.share(re.compile(r'.*[.!?,"]|[\W_]+')) > 0.05:
        return {}
    mean = sum(count_words(text) for _, text in pairs) / len(pairs)
    elsewhere = sum(rest[label] for label in labels.counts) / max(1, rest.total()) * mean
    once = sum(number == 1 for number in labels.counts.values())
    if elsewhere > 0.2 or mean < 2 or once > 0.5 * labels.different:
        return {}
    second = [text.split()[0 if is_first else -1] for _, text in pairs if text.split()]
    gain = min(_entropy(second), math.log2(len(pairs))) - _entropy([word for word, _ in pairs])
    return {
        Fact("few values"): min(CAP, max(0.0, len(pairs) * gain)),
        Fact("labels occur nowhere else"): 30.0 if elsewhere <= 0.01 else 20.0 if elsewhere <= 0.03 else 0.0,
        Fact("texts"): min(10.0, 2 * math.log2(1 + mean)),
        Fact("form of labels"): 12 * labels.share(_SHORT_LABEL),
        Fact("each label repeats"): -30 * min(1.0, 4 * once / labels.different),
    }


def _entropy(words: Sequence[str]) -> float:
    """Return the bits of a word on average."""
    return -sum(n / len(words) * math.log2(n / len(words)) for n in Counter(words).values()) if words else 0.0


def read_glued_tags(file: DataFile) -> Iterator[Reading]:
    """Words with their tags, as in `dog/NN`; an intent may end the line after a mark."""
    lines = spread(file.filled, EXAMINED_LINES)
    if file.json or len(lines) < 6:
        return
    intents = [line.rpartition("<=>")[2].strip() for line in lines if "<=>" in line]
    words = [word for line in lines for word in line.rpartition("<=>")[0 if intents else 2].split()]
    for sign in "/_:|":
        tags = Counter(word.rpartition(sign)[2] for word in words if sign in word[1:])
        is_few = 1 < len(tags) < max(60, 0.05 * tags.total())
        is_number = sum(tag.isdigit() for tag in tags) >= 0.5 * len(tags)
        if tags.total() <= 0.93 * len(words) or not is_few or is_number or len(words) <= 1.5 * len(lines):
            continue
        values = Field("tags", list(tags.elements()))
        facts = {Fact("a sign in every word", (sign,)): CAP, Fact("every line"): 20.0}
        facts[Fact("few values")] = repeats(values.size, values.different)
        facts[Fact("tags of entities")] = 30.0 if values.tagging else 0.0
        roles = {"words": "words", "tags": "tags"}
        options: dict[str, Any] = {"tag": sign, "joiner": " "}
        name = "words with their tags"
        if len(intents) > 0.9 * len(lines):
            facts[Fact("a mark before the intent")] = 2 * CAP
            roles["intent"], options["label"], name = "label", "<=>", f"{name} and an intent"
        learns = "Entities" if values.tagging or tags["O"] > 0.3 * tags.total() else "Tags"
        complete = partial(_summarise_glued, file, options)
        yield Reading(name, learns, roles, facts, complete=complete)  # type: ignore[arg-type]


def _summarise_glued(file: DataFile, options: dict[str, Any], reading: Reading) -> DataSummary:
    summary = DataSummary("segmented", options, label_kind="Tags")
    summary.why = f"words, each with {options['tag']!r} and a tag after it"
    if all(schemes.strict_problem(record["tags"], "IOB2") is None for record in spread_records(summary, file.path)):
        summary.label_kind = "Entities"
    summary.joint = summary.label_kind == "Entities" and "label" in options
    return count(summary, file.path)


def read_split_words(file: DataFile) -> Iterator[Reading]:
    """Words between blanks in a script that has none, or syllables that are joined to words."""
    lines = spread(file.filled, EXAMINED_LINES)
    words = [word for line in lines for word in line.split()]
    if file.json or not lines or "\t" in "".join(lines[:50]) or len(words) <= 2.5 * len(lines):
        return
    letters = "".join(words)[:20_000]
    unspaced = count_unspaced(letters) / max(1, len(letters))
    facts: Facts = {}
    options: dict[str, Any] = {}
    if unspaced > 0.4 and sum(map(len, words)) < 4.5 * len(words):
        facts = {Fact("blanks in a script without them"): each(len(lines), 2), Fact("words are short"): 20.0}
    joined = [word for word in words if "_" in word.strip("_")]
    is_joined = 0.08 < len(joined) / len(words) < 0.6 and sum("_" in line for line in lines) > 0.7 * len(lines)
    if is_joined and not all(map(str.isascii, joined)) and all(map(_SYLLABLES.fullmatch, joined)):
        facts = {Fact("syllables are joined"): CAP, Fact("every line"): 10.0}
        options = {"joiner": " ", "syllables": "_"}
    if facts:
        summary = DataSummary("segmented", options, why="texts split into words, for word segmentation")
        complete = partial(count_lines, file, summary)
        yield Reading("texts split into words", "Entities", {"lines": "words"}, facts, complete=complete)


def count_lines(file: DataFile, summary: DataSummary, reading: Reading) -> DataSummary:
    return count(summary, file.path)


def read_dictionary(file: DataFile) -> Iterator[Reading]:
    """A word and its sounds on each line, as a pronouncing dictionary."""
    lines = [
        line for line in spread(file.filled, EXAMINED_LINES) if not (file.comment and line.startswith(file.comment))
    ]
    pairs = [re.sub(r"\(\d+\)", "", line.strip()).split(None, 1) for line in lines]
    pairs = [pair for pair in pairs if len(pair) == 2]
    if file.json or len(pairs) < max(10, 0.9 * len(lines)) or "\t" in "".join(lines[:50]):
        return
    symbols = Counter(symbol for _, sounds in pairs for symbol in sounds.split())
    words = Field("word", [word for word, _ in pairs])
    sizes = Field("sounds", ["x" * len(sounds.split()) for _, sounds in pairs])
    is_few = len(symbols) < 100 and symbols.total() > 2 * len(pairs) and sum(map(len, symbols)) < 4 * len(symbols)
    alike = similar_lengths(words, sizes)
    if is_few and words.different > 0.7 * len(pairs) and alike > 8:
        facts = {Fact("few symbols"): repeats(symbols.total(), len(symbols)), Fact("lengths go together"): alike}
        facts |= {Fact("words differ"): 10.0, Fact("every line"): 15.0}
        roles = {"the first word": "text", "the rest": "target"}
        complete = partial(_summarise_dictionary, file, len(symbols))
        yield Reading("words with their sounds", "Texts", roles, facts, complete=complete)


def _summarise_dictionary(file: DataFile, symbols: int, reading: Reading) -> DataSummary:
    options: dict[str, Any] = {"parts": ["text", "target"]}
    if file.comment:
        options["comment"] = file.comment
    if any(line.split(None, 1)[0].endswith(")") for line in file.filled):
        options["variants"] = True
    summary = count(DataSummary("lines", options, label_kind="Texts"), file.path)
    summary.why = f"{symbols:,} different symbols are written for the text, the first word of each line"
    summary.unspaced = True  # a word is read and written by its characters
    return summary


def read_points(file: DataFile) -> Iterator[Reading]:
    """Points with their order, or a recipe from which the reader `points` makes them."""
    lines, recipe = file.filled, None
    if file.json and isinstance(file.json[0], dict):
        recipe = file.json[0] if file.json[0].keys() == {"task", "points", "records", "seed"} else None
    if recipe or (lines and all(map(_POINTS.fullmatch, lines))):
        facts = {Fact("numbers, output, positions"): CAP, Fact("every line"): CAP}
        complete = partial(_summarise_points, file, recipe)
        yield Reading("points and positions", "Pointers", {}, facts, complete=complete)


def _summarise_points(file: DataFile, recipe: dict[str, Any] | None, reading: Reading) -> DataSummary:
    """Summarise points; a line of one number a point has an odd number of them, or positions after the last."""
    if recipe:
        is_narrow = recipe["task"] == "sort"
    else:
        parts = [line.partition("output") for line in file.filled]
        rows = [(len(numbers.split()), [int(word) for word in order.split()]) for numbers, _, order in parts]
        is_narrow = any(numbers % 2 or max(order, default=0) > numbers // 2 for numbers, order in rows)
    summary = DataSummary("points", {"width": 1} if is_narrow else {}, label_kind="Pointers")
    # The first record of a recipe shows whether it is faulty.
    records = [*islice(spread_records(summary, file.path), 1 if recipe else None)]
    orders = [record["pointers"] for record in records]
    closed = all(len(order) > 1 and order[0] == order[-1] for order in orders)
    if recipe:
        every, summary.records = recipe["task"] != "hull", recipe["records"]
        summary.notes.append(f"a recipe, from which each epoch's points are made: {recipe['task']}")
    else:
        every = all({*record["pointers"]} == {*range(len(record["points"]))} for record in records)
        summary.records = len(records)
        kind = "numbers" if is_narrow else "points of two numbers"
        which = f"{'all' if every else 'some'} of their positions in an order"
        summary.notes.append(f"{kind}, and {which}{' that ends where it began' if closed else ''}")
    task = ("tour" if every else "hull") if closed and not is_narrow else None
    summary.pointer = {"task": task, "every": every or None, "close": closed or None}
    return summary


def read_plain_text(file: DataFile) -> Iterator[Reading]:
    """Plain text, or names one a line: for a language model. What stands in every line says that it is more."""
    lines = spread(file.filled, 2_000)
    if file.json or not lines or file.is_folder:
        return
    words = [word for line in lines for word in line.split()]
    mean, field = len(words) / len(lines), Field("lines", list(lines))
    facts: Facts = {}
    if file.sign and (file.sign in ("\t", "|", ";") or mean < 1.5):
        facts[UNUSED_SIGN] = -25.0
    is_asked = file.request.task is not None and file.request.task.head == "lm"
    is_unspaced = field.is_unspaced
    unit: Literal["", "line"] = "line" if mean < 1.3 and not (is_unspaced and field.characters > 8) else ""
    if unit:
        facts[Fact("a word in each line")] = min(20.0, each(len(lines), 0.5))
        name, size, least = f"a list of {len(file.filled):,} words", len(file.filled), MIN_NAMES
    else:
        facts[Fact("words")] = 4.0 if mean > 3 or is_unspaced else 1.0
        name = f"plain text of {len(file.text):,} characters, without labels"
        size = len(file.text) if file.is_whole else size_of(file.path)
        least = MIN_CJK_CHARACTERS if is_unspaced else MIN_CHARACTERS
    if unit and field.different < 0.4 * len(lines) and len(lines) > 20:
        facts[Fact("few values")] = repeats(len(lines), field.different) / 2
        yield Reading("labels without their texts", None, {}, facts, fix="give the file of the texts, or a table")
    elif size < least and not is_asked:
        fix = f"a language model needs at least {least:,}; {_LABEL_FIX}"
        yield Reading(name, None, {}, facts, fix=fix)
    else:
        doubt = "" if unit else _doubt_text(lines, words, is_unspaced)
        name, complete = "names, one on each line" if unit else "plain text", partial(_summarise_text, file, unit)
        yield Reading(name, "Continuations", {"lines": "text"}, facts, doubt=doubt, complete=complete)


def _doubt_text(lines: Sequence[str], words: Sequence[str], is_unspaced: bool) -> str:
    """Return what makes lines doubtful as plain text, such as one number of words in all of them."""
    if is_unspaced:
        return ""
    head = words[:5_000]
    alphabetic = sum(bool(_ALPHABETIC.fullmatch(word)) for word in head)
    if alphabetic < 0.75 * len(head):
        return f"{1 - alphabetic / len(head):.0%} of its words are not words"
    if len(lines) <= 20:
        return ""
    if sum(bool(re.match(r"\W*\d", line)) for line in lines) > 0.5 * len(lines):
        return "lines begin with numbers"
    return ""


def _summarise_text(file: DataFile, unit: Literal["", "line"], reading: Reading) -> DataSummary:
    """Summarise plain text; DataError if it is too short."""
    summary = DataSummary("text", label_kind="Continuations")
    if unit:
        summary.options["unit"] = unit
    elif len(file.lines) - len(file.filled) > 2:
        summary.options["unit"] = "paragraph"
    for record in islice(spread_records(summary, file.path), 1_000_000):
        summary.records += 1
        summary.words += record["text"].count(" ") + 1
        summary.characters += len(record["text"])
        summary.scripts.add(record["text"])
    return check_text(summary, file, unit)


def check_text(summary: DataSummary, file: DataFile, unit: str = "") -> DataSummary:
    """Return the summary of texts for a language model; DataError if they are too short."""
    summary.unspaced = summary.scripts.are_unspaced or unit == "line"
    least = MIN_CJK_CHARACTERS if summary.scripts.are_unspaced else MIN_CHARACTERS
    size = f"plain text of {summary.characters:,} characters, without labels"
    if summary.characters < least and unit != "line":
        fix = f"a language model needs at least {least:,}; {_LABEL_FIX}"
        raise DataError(f"{file.path}: is {size}; {fix}")
    summary.notes.append(f"{size}: for a language model")
    return summary
