"""Readings of texts to write: translations, answers, inflection, transcripts and captions, chats and preferences."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from seqpipe.init.datafile import DataFile
from seqpipe.init.evidence import CAP, Fact, Facts, Frame, Reading, each, fact, pair_facts, repeats
from seqpipe.init.fields import Field
from seqpipe.init.labels import reading_of, textual

TASK_NAMES = ({"instruction", "input"}, {"instruction", "context"}, {"prompt", "input"})
QUESTION_NAMES = ({"question", "context"}, {"question", "passage"})
PREFERENCE = Fact("names of a preference")
ALIKE_ROWS = 150  # in which forms are compared with their lemmas
_SPEAKERS = ("role", "from", "speaker", "user", "author")  # keys of the turns of a chat
_UTTERANCES = ("content", "value", "text", "utterance")
_CHATS = ("messages", "conversations", "conversation", "dialog", "dialogue", "chat")
_CHOSEN = ("chosen", "preferred", "accepted", "response_chosen", "sentence_good", "better")
_REJECTED = ("rejected", "dispreferred", "response_rejected", "sentence_bad", "worse")
_PROMPTS = ("prompt", "question", "instruction", "input", "conversations", "query", "messages", "history", "context")

_RIGHT_PASSAGES = ["pos", "positive", "positives", "positive_passages", "pos_text", "positive_ctxs", "sent1"]
_WRONG_PASSAGES = ["neg", "negative", "negatives", "negative_passages", "hard_negatives", "hard_neg", "negative_ctxs"]


def read_pairs(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A text and the one to write for it; an instruction with its input."""
    request = file.request
    if frame.get("media", "files") and not request.texts:
        return
    is_asked = request.task is not None and request.task.head == "seq2seq"
    fields = [
        field
        for field in frame.fields
        if _may_be_written(field)
        or request.names(field)
        or (is_asked and field.is_a("few values"))
        or {field.option, field.name} & {*request.texts}
    ]
    for source, target in itertools.permutations(fields, 2):
        if request.target and not request.names(target):
            continue
        if request.texts and not {source.option, source.name} & {*request.texts}:
            continue
        is_repeated = target.different <= 0.5 * target.size and not target.is_a("texts", "repeated texts")
        if request.target and is_repeated and not is_asked:
            continue  # a label
        facts = _facts_of_pair(frame, source, target)
        if not (request.target or is_asked) and _is_unlikely(source, target, facts):
            continue
        roles = {source.name: "text", target.name: "target"}
        yield reading_of("a text to write for each text", "Texts", file, frame, roles, facts)
        for other in fields:
            names = {source.key, other.key}
            is_task = names in TASK_NAMES
            is_first = source.key in ("instruction", "prompt", "question") and other is not target
            if is_first and (is_task or names in QUESTION_NAMES):
                more = facts | {fact("name", other): 14.0, Fact("names of a task"): 10.0 if is_task else -6.0}
                roles = {source.name: "text", other.name: "text_pair", target.name: "target"}
                yield reading_of("instruction, input and output", "Texts", file, frame, roles, more)


def _may_be_written(field: Field) -> bool:
    """Return whether a field is a text, or a value that its name calls one."""
    if field.is_a("few values"):
        return field.named("target") > 0 or field.named("source") > 0
    if field.is_a("amounts", "identifiers"):
        return field.named("target") > 0
    return field.is_a("texts", "repeated texts", "names", "words", "dates")


def _facts_of_pair(frame: Frame, source: Field, target: Field) -> Facts:
    is_ordered = frame.fields.index(source) < frame.fields.index(target)
    facts: Facts = frame.facts | pair_facts(source, target)
    facts[Fact("two texts")] = 6 + textual(source) / 2 + textual(target) / 2
    facts[fact("name of a source", source)] = source.named("source")
    facts[fact("name of a target", target)] = target.named("target")
    if target.named("source") > source.named("source") or source.named("target") > target.named("target"):
        facts[Fact("the names are the other way round")] = -10.0
    if is_ordered:
        facts[Fact("the source comes first")] = 9.0
    if source.is_a("repeated texts") and not target.is_a("repeated texts"):
        facts[Fact("several are written for one")] = 10.0
    if source.is_named_as_identifier or target.is_named_as_identifier:
        facts[Fact("name of an identifier")] = -15.0
    return facts


def _is_unlikely(source: Field, target: Field, facts: Facts) -> bool:
    """Return whether two fields are no pair without further evidence: names and words of nothing in common."""
    is_unnamed = target.named("target") < 10
    if source.is_a("dates") or (target.is_a("amounts") and is_unnamed):
        return True
    if target.is_a("dates") and is_unnamed and facts[Fact("words recur")] < 8:
        return True
    evidence = facts[Fact("lengths go together")] + facts[Fact("words recur")]
    evidence += facts[fact("name of a source", source)] + facts[fact("name of a target", target)]
    are_words = all(field.is_a("names", "words", "few values") for field in (source, target))
    return are_words and evidence < 16


def read_media(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Pictures or sounds, as files or as they are, with the text of each."""
    for media in frame.get("media", "files")[:1]:
        for target in frame.get("texts", "repeated texts", "names", "words", "few values"):
            if file.request.target and not file.request.names(target):
                continue
            name = max(target.named("target"), target.named("text"))
            facts: Facts = frame.facts | {fact("media", media): CAP, Fact("texts"): textual(target) + name + 10}
            if target.is_a("texts", "repeated texts"):
                facts[Fact("texts differ")] = min(30.0, 0.3 * target.different)
            roles = {media.name: "media", target.name: "target"}
            yield reading_of("pictures or sounds with their texts", "Texts", file, frame, roles, facts)


def read_inflection(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A lemma, its features and the form to write, as of UniMorph and SIGMORPHON."""
    for features in frame.get("features"):
        words = [field for field in frame.get("words", "names", "few values", "texts") if field.words < 3]
        for lemma, form in itertools.permutations(words, 2):
            pairs = [*zip(lemma.cells, form.cells, strict=True)][:ALIKE_ROWS]
            alike = sum(SequenceMatcher(None, *pair).ratio() > 0.5 for pair in pairs) / max(1, len(pairs))
            if alike < 0.6:
                continue
            facts: Facts = frame.facts | {fact("features", features): each(features.size, 6)}
            facts.pop(Fact("empty lines end sentences"), None)  # which end paradigms
            facts[Fact("forms are like their lemmas")] = each(len(pairs), 3 * alike)
            facts[fact("name of a source", lemma)] = 12.0 if "lemma" in lemma.key else 0.0
            if form.different > lemma.different:
                facts[Fact("lemmas repeat")] = min(9.0, 9 * math.log2(form.different / lemma.different))
            facts[Fact("the source comes first")] = 2.0 * (frame.fields.index(lemma) < frame.fields.index(form))
            roles = {lemma.name: "text", features.name: "text_pair", form.name: "target"}
            yield reading_of("lemma, form and features", "Texts", file, frame, roles, facts)


def read_numbers_to_write(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A text to write for lists of numbers, which no reader has."""
    numbers = {field.name: "features" for field in frame.get("lists of numbers")}
    for target in frame.get("texts", "repeated texts"):
        if target.named("target") and numbers:
            more = {Fact("numbers"): 20.0, fact("name of a target", target): target.named("target")}
            fix = "features and texts need a YAML of your own: docs/data/formats.md"
            roles = numbers | {target.name: "target"}
            yield Reading("a text to write for numbers", None, roles, frame.facts | more, frame, fix)


def turns_of(value: Any) -> list[tuple[str, str]] | None:
    """Return the turns of a chat, the speaker and the text of each; None for other values."""
    if not isinstance(value, list) or not value or not all(isinstance(turn, dict) for turn in value):
        return None
    for who, what in itertools.product(_SPEAKERS, _UTTERANCES):
        if all(isinstance(turn.get(who), (str, int)) and isinstance(turn.get(what), str) for turn in value):
            return [(str(turn[who]), turn[what]) for turn in value]
    return None


def chat_facts(field: Field) -> Facts:
    """Return the facts that a field has chats; none if it has not."""
    chats = [chat for chat in map(turns_of, field.values) if chat]
    if not chats or len(chats) < 0.9 * sum(bool(value) for value in field.values):
        return {}
    speakers = Counter(who for chat in chats for who, _ in chat)
    return {
        fact("turns of a speaker and a text", field): each(len(chats), 8),
        Fact("few speakers"): repeats(speakers.total(), len(speakers)),
        fact("name", field): 10.0 if field.key in _CHATS else 0.0,
    }


def _named(frame: Frame, names: Sequence[str]) -> Field | None:
    """Return the first field with one of these names, or the text within an object of this name."""
    for name in names:
        for field in frame.fields:
            is_inner = field.name.lower().startswith(f"{name}.") and field.key in ("value", "content", "text")
            if field.key == name or is_inner:
                return field
    return None


def read_preferences(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """A prompt with a chosen and a rejected answer: the chosen one is learned."""
    good, bad = _named(frame, _CHOSEN), _named(frame, _REJECTED)
    if good is None or bad is None:
        return
    prompt = _named(frame, _PROMPTS)
    facts: Facts = frame.facts | pair_facts(good, bad) | {PREFERENCE: CAP, Fact("two texts"): 10.0}
    facts[Fact("a prompt")] = 20.0 if prompt else 0.0
    unused = {bad.name: "rejected answers, which are not learned"}
    name = "preferred and rejected answers"
    if prompt and prompt.is_a("texts", "repeated texts", "names") and not good.is_a("lists of objects"):
        roles = {prompt.name: "text", good.name: "target"}
        reading = reading_of(name, "Texts", file, frame, roles, facts)
        reading.unused = unused
        yield reading
        return
    fix = 'write the prompt and the chosen answer as two texts, `{"text": …, "target": …}` on each line'
    roles = {good.name: "target"} | ({prompt.name: "turns"} if prompt else {})
    unused |= {field.name: "" for field in frame.fields if field.is_a("lists of objects")}
    yield Reading(name, None, roles, facts, frame, fix, unused=unused)


def read_retrieval(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Queries with passages that answer them, and others that do not; no head learns from lists of them."""
    query = _named(frame, ("query", "anchor", "question", "q", "sent0"))
    right = _named(frame, _RIGHT_PASSAGES)
    wrong = _named(frame, _WRONG_PASSAGES)
    fix = "write each query with a passage that answers it as a row of two texts; docs/tasks/retrieval.md"
    if query and right:
        facts: Facts = frame.facts | {Fact("names of retrieval"): 30.0, Fact("two texts"): 10.0}
        facts[Fact("wrong passages")] = 12.0 if wrong else 0.0
        roles = {query.name: "text", right.name: "candidate"} | ({wrong.name: "wrong candidate"} if wrong else {})
        yield Reading("queries with passages that answer them", None, roles, facts, frame, fix)
    texts = frame.get("texts", "repeated texts")
    if not frame.header and len(texts) == len(frame.fields) == 3:
        first, second, third = texts
        is_alike = abs(math.log2(second.characters / third.characters)) < 0.5
        if is_alike and first.characters < 0.6 * min(second.characters, third.characters):
            facts = frame.facts | {Fact("three texts"): 10.0, Fact("lengths go together"): 10.0}
            facts[Fact("the second and third text are alike in length, and longer")] = 12.0
            roles = {first.name: "text", second.name: "candidate", third.name: "wrong candidate"}
            yield Reading("queries with a right and a wrong passage", None, roles, facts, frame, fix)


def read_choices(file: DataFile, frame: Frame) -> Iterator[Reading]:
    """Multiple choice: a question, its choices, and which of them is right."""
    lists = frame.get("lists of objects", "lists of texts", "lists of labels", "objects", "lists as text")
    choices = [field for field in lists if re.search("choice|option|candidate|endings|distractor", field.key)]
    pattern = r"(option|opt|choice|answer|ending|sol)[_ ]?([a-e]|[0-4])|[a-e]|(distractor|option|choice|ending|opt)_?\d"
    fields = [field for field in frame.fields if frame.header and not field.is_a("truth values")]
    columns = [field for field in fields if re.fullmatch(pattern, field.key)]
    is_several = len(columns) > (1 if frame.is_json else 2)
    is_annotated = any(field.key == "accept" for field in frame.fields)
    if not (choices or is_several) or not frame.get("texts", "repeated texts", "names") or is_annotated:
        return
    facts: Facts = frame.facts | {Fact("names of choices"): 50.0, Fact("texts"): 20.0}
    if any(re.search("answer|label|correct|gold|target|^cop$", field.key) for field in frame.fields):
        facts[Fact("name of the right choice")] = 30.0
    fix = "which choice is right cannot be learned from the question alone; write a row for each choice, labelled"
    yield Reading("questions with choices", None, {}, facts, frame, fix, unused={"*": ""})
