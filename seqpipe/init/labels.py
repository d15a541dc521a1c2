"""Readings of texts with what is learned about each: a label, several labels, or a number."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

from seqpipe.init.columns import summarise_fields
from seqpipe.init.datafile import DataFile
from seqpipe.init.evidence import CAP, Fact, Facts, Frame, Reading, Request, each, fact, pair_facts, repeats
from seqpipe.init.fields import AMOUNT, NUMBER, ZERO_ONE, Field
from seqpipe.init.summary import LabelKind

MAX_TEXTS = 4  # fields that may be the text
LABEL_LIST = re.compile(r"""\[('[^']{1,30}'(, )?)*\]|\[("[^"]{1,30}"(, )?)*\]""")
ONES = ZERO_ONE | {"true", "false"}
TEXTS = Fact("texts")
_NAMES_OF_WORDS = ("name", "word", "title", "username", "author")  # of texts, which are identifiers elsewhere


def textual(field: Field) -> float:
    """Return the bits by which the cells are texts: words, and no name of a text to write."""
    bits = min(10.0, 2 * math.log2(1 + field.words))
    if not field.is_a("texts", "repeated texts", "lists of texts"):
        bits -= 4
    return bits - (10 if field.named("target") >= 10 and not field.named("text") else 0)


def texts_of(frame: Frame, request: Request, lists: bool = False) -> list[Field]:
    """Return the fields that may be the text, the likelier first; names and words only where there are no texts."""
    if request.texts:
        return [field for field in frame.fields if field.option in request.texts or field.name in request.texts]
    texts = [
        field
        for field in frame.fields
        if field.is_a("texts", "repeated texts") or (lists and field.is_a("lists of texts"))
        if not field.is_named_as_identifier or field.named("text")
    ]
    if not texts:
        words = [field for field in frame.get("names", "words") if field.different > 0.5 * field.size]
        texts = [field for field in words if not field.is_named_as_identifier or field.key in _NAMES_OF_WORDS]
    if not texts:
        # Few texts that repeat look like labels: the field of most characters beside another one has the texts.
        few = frame.get("few values")
        longest = max(frame.fields, key=lambda field: field.characters)
        texts = [field for field in few if field is longest and field.words > 1.5 and len(few) > 1]
    if not texts:
        texts = [field for field in frame.fields if field.named("text") >= 10]
    return sorted(texts, key=lambda field: -(field.named("text") + textual(field)))


def pairs_of(frame: Frame, request: Request, texts: Sequence[Field], target: Field) -> Iterator[list[Field]]:
    """Yield each text, and each two of them in their order."""
    texts = [text for text in texts if text is not target]
    if request.texts:
        yield from [texts] if texts else []
        return
    for number in (1, 2):
        for some in itertools.combinations(texts[:MAX_TEXTS], number):
            # A text that repeats, such as a question, is the second one.
            yield sorted(
                some,
                key=lambda text: (
                    text.named("text_pair") > text.named("text"),
                    text.is_a("repeated texts"),
                    frame.fields.index(text),
                ),
            )


def facts_of_texts(texts: Sequence[Field]) -> Facts:
    """Return the facts that these are the texts."""
    facts: Facts = {TEXTS: max(map(textual, texts))}
    for i, text in enumerate(texts):
        bits = max(text.named("text"), text.named("text_pair")) / 2 if i else text.named("text")
        facts[Fact("name of a text", (text.name, str(i)))] = bits
    return facts | (pair_facts(*texts) if len(texts) == 2 else {})


def roles_of_texts(texts: Sequence[Field]) -> dict[str, str]:
    return {text.name: "text_pair" if i else "text" for i, text in enumerate(texts)}


def reading_of(
    name: str, learns: LabelKind, file: DataFile, frame: Frame, roles: dict[str, str], facts: Facts
) -> Reading:
    """Return a reading of a frame whose records the reader of its fields counts."""
    return Reading(name, learns, roles, facts, frame, complete=partial(summarise_fields, file))


def read_labels(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Texts with a label each (few values), or with several in a list or between separators."""
    request, media = file.request, frame.get("media", "files")
    lists = any(field.named("text") or field.named("words") for field in frame.get("lists of texts"))
    texts = [] if media and not request.texts else texts_of(frame, request, lists)
    for target, role, few in _label_fields(frame, request):
        is_class = not target.has_points or target.named("label") >= 12
        facts: Facts = dict(frame.facts)
        facts[fact("few values", target)] = few
        facts[fact("name", target)] = target.named("label") - target.named("unlearned") - 0.8 * target.named("ignored")
        if target.is_a("ratings") and not is_class:
            facts[Fact("few numbers: classes or a score")] = -12.0 if target.is_whole else -18.0
        name = "texts with labels" if role == "labels" else "texts with a label"
        for some in pairs_of(frame, request, texts, target):
            roles = roles_of_texts(some) | {target.name: role}
            yield reading_of(name, "Labels", file, frame, roles, facts | facts_of_texts(some))
        for item in media[:1]:
            roles = {item.name: "media", target.name: "label"}
            more = facts | {fact("media", item): CAP}
            yield reading_of("pictures or sounds with a label", "Labels", file, frame, roles, more)


def _label_fields(frame: Frame, request: Request) -> Iterator[tuple[Field, str, float]]:
    """Yield the fields that may be learned as labels, their roles, and the bits of few values."""
    if request.target:
        for field in filter(request.names, frame.fields):
            several = field.is_a("lists of labels", "lists of texts", "separated labels", "lists of numbers")
            yield field, "labels" if several else "label", repeats(field.size, field.different)
        return
    is_asked = request.task is not None and request.task.head == "label"
    for field in frame.fields:
        if field.is_split or (field.different < 2 and not field.is_a("lists of labels") and field.named("label") < 10):
            continue
        match field.kind:
            case "ratings" if not is_asked and any(isinstance(value, float) for value in field.values):
                continue  # in JSON, numbers with a fraction are no labels
            case "few values" | "truth values" | "ratings":
                yield field, "label", repeats(field.size, field.different)
            case "the same value in every row" if field.named("label") >= 10 and not field.is_named_as_identifier:
                yield field, "label", 0.0
            case "lists of labels" | "separated labels":
                yield field, "labels", 38.0
            case "lists of numbers" if field.different < 0.5 * field.size and field.named("label"):
                yield field, "labels", 30.0
            case "lists as text" if field.named("label") and field.share(LABEL_LIST) > 0.9:
                yield field, "labels", 30.0
            case "words" | "names" | "identifiers" if field.named("label") >= 12:
                yield field, "label", 5 + repeats(field.size, field.different)
            case "numbers" if is_asked and field.different <= 0.5 * field.size:
                yield field, "label", 0.0


def read_indicators(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Texts with a column or key of 0 and 1 for each label."""
    if file.request.target:
        return
    texts = texts_of(frame, file.request)
    flags = [
        field
        for field in frame.get("truth values", "ratings", "the same value in every row")
        if {cell.lower() for cell in field.counts} <= ONES and not field.named("ignored")
    ]
    if not texts or not frame.header or not any(field.different > 1 for field in flags):
        return
    groups: dict[str, list[Field]] = {}
    for field in flags:
        groups.setdefault(field.name.rpartition(".")[0], []).append(field)
    for key, fields in groups.items():
        if len(fields) < 2:
            continue
        facts: Facts = frame.facts | facts_of_texts(texts[:1])
        facts |= {fact("few values", field): CAP / len(fields) for field in fields}
        facts[Fact("columns of 0 and 1 alike")] = CAP if key else 8 + 4 * len(fields)
        roles = {texts[0].name: "text", **{field.name: "labels" for field in fields}}
        name = "labels as keys of 0 and 1" if frame.is_json else "labels in columns of 0 and 1"
        yield reading_of(name, "Labels", file, frame, roles, facts)


def read_scores(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Texts with a number each: measured, rated, or written as an amount."""
    request = file.request
    texts = texts_of(frame, request)
    if not request.texts:
        texts = [text for text in texts if text.is_a("texts", "repeated texts") or text.named("text")]
    targets = frame.get("numbers", "amounts", "ratings")
    if request.target:
        targets = [field for field in frame.fields if request.names(field) and field.share(AMOUNT) > 0.5]
    elif request.task and request.task.head == "score":
        targets += [field for field in frame.get("truth values", "few values") if field.share(NUMBER) > 0.9]
    for target in targets:
        is_rating = target.is_a("ratings")
        name = max(target.named("score"), target.named("label")) if not is_rating or target.has_points else 0.0
        facts: Facts = dict(frame.facts)
        facts[fact("numbers", target)] = min(20.0, each(target.size, 1)) if is_rating else each(target.size, 3)
        facts[fact("name", target)] = name - target.named("ignored") - target.named("unlearned")
        if is_rating:
            is_score = target.has_points and target.named("label") < 12
            facts[Fact("fractions: a score")] = (9.0 if target.is_whole else 15.0) if is_score else -8.0
        for some in pairs_of(frame, request, texts, target):
            more = facts | facts_of_texts(some)
            if len(some) == 2 and target.is_a("numbers"):
                more[Fact("two texts and a measured number")] = 12.0
            roles = roles_of_texts(some) | {target.name: "score"}
            yield reading_of("texts with a number", "Numbers", file, frame, roles, more)
