"""Decide how a data file is read: all readings compete, and the best sum of evidence wins, asks or refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqpipe.errors import DataError, OpenChoiceError, did_you_mean
from seqpipe.init.datafile import DataFile
from seqpipe.init.evidence import Fact, Facts, Frame, Reading, Request, strongest
from seqpipe.init.fields import Field, Kind, kinds_of
from seqpipe.init.summary import MOST_LEFT_OUT, head_for

NEAR_BITS = 8.0  # bits; a rival that is so near to the best reading is asked about
MAX_QUESTIONS = 2  # commands of a question
UNUSED_FILE = Fact("a file beside it with as many lines is not used")
BESIDE = "as many lines"


# Kinds that are asked about if they stay unused; the others are only named.
LOUD: set[Kind] = {"texts", "repeated texts", "lists of texts", "lists of objects", "lists of labels", "files", "media"}
LOUD |= {"separated labels", "lists as text", "lists of numbers"}
VALUES: set[Kind] = {"numbers", "ratings", "amounts", "truth values"}
# Bits that content costs a reading that does not use it, by its kind; of other kinds OTHER_BITS.
CONTENT_BITS: dict[Kind, float] = dict.fromkeys(LOUD, 12.0) | dict.fromkeys(VALUES, 3.0) | {"texts": 15.0}
OTHER_BITS = 6.0
# Kinds that need no use.
IDLE: set[Kind] = {"identifiers", "row numbers", "dates", "addresses or licences", "the same value in every row"}
IDLE |= {"empty", "parses", "names of texts"}
CLASSES: set[Kind] = {"few values", "ratings", "truth values", "separated labels", "lists of labels", "numbers"}


@dataclass
class Decision:
    """The reading that leads, its rivals, and the fields that it leaves unused, with the reasons that allow it."""

    best: Reading
    rivals: list[Reading] = field(default_factory=list)  # as good, the likelier first
    others: list[Reading] = field(default_factory=list)  # that learn something else, the likelier first
    unused: dict[str, str | None] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """ "read", "ask" or "refuse"."""
        if self.best.learns is None:
            return "refuse"
        return "ask" if self.rivals or self.doubts else "read"

    def left_out(self) -> list[Field]:
        """Return the fields whose content stays unused without a reason, texts and lists first."""
        fields = self.best.frame.fields if self.best.frame else []
        open_fields = [field for field in fields if self.unused.get(field.name, "") is None]
        return sorted(open_fields, key=lambda field: -CONTENT_BITS.get(field.kind, OTHER_BITS))


def account(reading: Reading) -> tuple[dict[str, str | None], float]:
    """Return the fields that a reading leaves unused with the reasons that allow it, and the bits that it costs."""
    unused: dict[str, str | None] = {}
    cost = 0.0
    if reading.frame is None or "*" in reading.unused:
        return unused, cost
    for item in reading.frame.fields:
        if item.name in reading.roles:
            continue
        reason = unused[item.name] = _reason_unused(reading, item)
        if reason is None:
            cost += CONTENT_BITS.get(item.kind, OTHER_BITS)
            if item.is_a("few values", "lists of labels", "separated labels", "truth values"):
                cost += max(0.0, item.named("label") - item.named("unlearned"))
            elif item.is_a("numbers", "ratings", "amounts"):
                cost += item.named("score")
    return unused, cost


def _reason_unused(reading: Reading, item: Field) -> str | None:
    """Return the reason that allows a reading to leave a field unused; None if its content counts."""
    if reason := reading.unused.get(item.name):
        return reason
    if item.kind in IDLE:
        return item.kind
    if item.is_split:
        return "the split"
    for target in reading.of("label", "score"):
        if item.is_a("few values", "truth values", "ratings", "numbers") and is_renamed(item, target):
            return f"the values of {target.name!r} under other names"
    if item.is_named_as_identifier and not item.is_a("texts", "repeated texts"):
        return "an identifier or a remark by its name"
    if any(name.startswith(f"{item.name}.") or item.name.startswith(f"{name}.") for name in reading.roles):
        return "part of a key that is used"
    return None


def is_renamed(first: Field, second: Field) -> bool:
    """Return whether two fields have the same few values under other names."""
    number = first.different
    if not 1 < number == second.different < 0.5 * first.size:
        return False
    return number == len({*zip(first.cells, second.cells, strict=True)})


def score(readings: Sequence[Reading]) -> None:
    """Add what the readings leave unused to their facts."""
    is_beside = any(fact.property == BESIDE for reading in readings for fact in reading.facts)
    for reading in readings:
        if is_beside and not any(fact.property in (BESIDE, "files of one name") for fact in reading.facts):
            reading.facts[UNUSED_FILE] = -20.0
        _, cost = account(reading)
        if cost:
            reading.facts[Fact("content without use")] = -cost


def decide(file: DataFile, readings: Sequence[Reading]) -> Decision:
    """Return the decision among the readings of a file; DataError if none fits."""
    request = file.request
    score(readings)
    ranked = sorted(readings, key=lambda reading: -reading.bits)
    if not request.is_open:
        ranked = _requested(file, ranked)
    if not ranked or (request.is_open and ranked[0].bits < 0):
        raise DataError(f"{file.path}: {_unknown(file, ranked)}")
    best = ranked[0]
    if best.frame is not None and best.learns:
        best.roles |= {
            item.name: "split" for item in best.frame.fields if item.is_split and item.name not in best.roles
        }
    unused, _ = account(best)
    decision = Decision(best, unused=unused)
    decision.others = [
        reading for reading in ranked[1:] if reading.learns and _learns_other(reading, best) and _is_filled(reading)
    ]
    if request.is_open and best.learns:
        decision.rivals = [*_rivals(best, ranked[1:])]
        decision.doubts = [*_doubts(decision, ranked)]
    return decision


def _rivals(best: Reading, ranked: Sequence[Reading]) -> Iterator[Reading]:
    """Yield the readings within the margin that learn something else, and whose facts are no part of the best one's."""
    seen = {(best.learns, frozenset(best.roles.items()))}
    facts = _positive(best.facts)
    for reading in ranked:
        key = (reading.learns, frozenset(reading.roles.items()))
        if reading.learns is None or key in seen or best.bits - reading.bits >= NEAR_BITS:
            continue
        seen.add(key)
        is_same = not _learns_other(reading, best) and reading.roles.keys() >= best.roles.keys()
        is_part = reading.learns == best.learns and reading.roles.items() <= best.roles.items()
        if not (is_same or is_part or _positive(reading.facts) < facts or _learns_renamed(reading, best)):
            yield reading


def _positive(facts: Facts) -> set[Fact]:
    return {fact for fact, bits in facts.items() if bits > 0}


def _is_filled(reading: Reading) -> bool:
    """Return whether nearly all records have what is learned, so that its command works."""
    return all(item.size > (1 - MOST_LEFT_OUT) * len(item.values) for item in reading.of("label", "score", "target"))


def _learns_other(reading: Reading, best: Reading) -> bool:
    return reading.learns != best.learns or reading.targets != best.targets


def _learns_renamed(reading: Reading, best: Reading) -> bool:
    """Return whether both learn the same values, under other names."""
    first, second = reading.of("label", "score"), best.of("label", "score")
    return reading.learns == best.learns and len(first) == len(second) == 1 and is_renamed(first[0], second[0])


def _doubts(decision: Decision, ranked: Sequence[Reading]) -> Iterator[str]:
    """Yield the reasons to ask, though no rival is near: a role lacks a piece of evidence, or content stays unused."""
    best = decision.best
    if best.doubt:
        yield best.doubt
    for reading in ranked[1:]:
        is_near = reading.learns is None and best.bits - reading.bits < NEAR_BITS
        if is_near and _positive(reading.facts) - _positive(best.facts):
            yield f"it may be {reading.name}"
            break
    for item in decision.left_out():
        if item.kind in LOUD:
            yield f"{item.title} ({item.kind}) is not used"
    open_fields = decision.left_out()
    if best.frame is None:
        return
    if best.learns in ("Labels", "Numbers"):
        yield from _doubts_of_target(best, open_fields)
        if pair := _named_pair(best, ranked):
            decision.rivals.append(pair)
    elif best.learns == "Texts" and Fact("names of a preference") not in best.facts:
        yield from _doubts_of_written(best, open_fields)


def _doubts_of_target(best: Reading, open_fields: Sequence[Field]) -> Iterator[str]:
    """Yield what makes the target of a label or a number doubtful."""
    assert best.frame is not None
    targets, texts = best.of("label", "labels", "score"), best.of("text", "text_pair")
    if not targets:
        return
    target, has_names = targets[0], best.frame.header
    classes = [item for item in open_fields if item.kind in CLASSES or item.is_a("amounts")]
    name = max(10.0 if item.key == "target" else max(item.named("label"), item.named("score")) for item in targets)
    if name < 8 and classes and has_names:
        yield f"{target.title} is not named as what is learned, nor is {classes[0].title}"
    elif target.named("unlearned") and (open_fields or target.is_named_as_identifier or target.key == "role"):
        yield f"{target.title} is not named as what is learned"
    rivals = [item for item in classes if 6 <= item.named("label") > name - 6]
    if rivals and len(targets) == 1:
        yield f"{' and '.join(item.title for item in (target, *rivals[:3]))} are named as labels"
    alike = best.facts.get(Fact("lengths go together"), 0.0) + best.facts.get(Fact("words recur"), 0.0)
    if len(texts) == 2:
        second = texts[1]
        is_repeated = any(text.is_a("repeated texts") for text in texts)
        if alike < 8 and not (second.named("text_pair") or is_repeated or second.key[-1:] in {*"12ab"}):
            yield f"{second.title} may belong to the text, or be another one"
        is_similarity = target.is_a("numbers") and texts[0].is_ascii == second.is_ascii and not has_names
        if name < 8 and not (is_similarity or is_repeated or (target.is_a("truth values") and has_names)):
            yield f"{second.title} may be written, or {target.title} learned"
    is_short = texts and texts[0].words < 4 and not texts[0].named("text") and not texts[0].is_unspaced
    if is_short and (len(open_fields) > 1 or best.learns == "Numbers" or len(texts) == 2):
        yield f"{texts[0].title} has few words for a text"


def _doubts_of_written(best: Reading, open_fields: Sequence[Field]) -> Iterator[str]:
    """Yield what makes the text to write doubtful."""
    assert best.frame is not None
    targets, texts = best.of("target"), best.of("text")
    if len(texts) != 1 or not targets:
        return
    text, target = texts[0], targets[0]
    alike = best.facts.get(Fact("lengths go together"), 0.0) + best.facts.get(Fact("words recur"), 0.0)
    is_unnamed = best.frame.header and target.named("target") < 10 <= text.named("text") and text.named("source") < 14
    if is_unnamed or (open_fields and target.named("target") < 6 and alike < 10):
        yield f"{target.title} is not named as what is written"


def _named_pair(best: Reading, ranked: Sequence[Reading]) -> Reading | None:
    """Return the reading of two texts whose names say source and target, beside a label that wins."""
    targets = {field.name for field in best.of("label", "labels", "score")}
    for reading in ranked:
        sources, written = reading.of("text"), reading.of("target")
        if reading.learns == "Texts" and sources and written and reading.roles.keys() & best.roles.keys():
            are_named = all(item.named("source") >= 10 for item in sources)
            if are_named and written[0].named("target") >= 10:
                return None if targets & reading.roles.keys() else reading
    return None


def _requested(file: DataFile, ranked: Sequence[Reading]) -> list[Reading]:
    """Return the readings that the options ask for; DataError if there is none."""
    request = file.request
    for name in (*request.texts, *([request.target] if request.target else [])):
        _check_exists(file, name)
    fitting = [reading for reading in ranked if reading.learns and _fits(reading, request)]
    if fitting:
        return fitting
    assert request.task or request.target or request.texts
    if request.task is None:
        raise DataError(f"{file.path}: nothing can be learned so: {_kinds(file)}; leave an option out")
    problem = f"--task {request.task.head} needs {request.task.needs}"
    for reading in ranked:
        is_form = reading.frame is None or reading.frame.is_json or reading.frame.groups is not None
        if reading.learns and is_form and _fits(reading, Request(None, request.target)):
            fix = f"the file is {reading.name}, for --task {head_for(reading.learns)}"
            raise DataError(f"{file.path}: {problem}; {fix}")
    raise DataError(f"{file.path}: {problem}, and {_kinds(file)}")


def _fits(reading: Reading, request: Request) -> bool:
    """Return whether a reading learns what is asked for, from the texts that are asked for."""
    is_tagged = reading.learns == "Entities" and "tags" in reading.roles.values()
    is_plain = is_tagged and request.task is not None and request.task.head == "tags"
    if request.task and reading.learns not in request.task.kinds and not is_plain:
        return False
    if reading.frame is None:
        return True
    learned = reading.of("label", "labels", "score", "target", "tags", "spans")
    if request.target and not any(map(request.names, learned)):
        return False
    return {*request.texts} <= {item.option for item in reading.of("text", "text_pair", "words")}


def _check_exists(file: DataFile, name: str) -> None:
    """DataError if no column or key has this name or number."""
    fields = [item for frame in file.frames for item in frame.fields]
    if not fields or any(name in (item.name, item.option, str(item.number)) for item in fields):
        return
    frame = file.frames[0]
    hint = did_you_mean(name, [item.option for item in frame.fields])
    if not frame.header:
        numbers = f"give a number from 1 to {len(frame.fields)}"
        hint = f" by name: {numbers}, or take the first row as names by `--header yes`"
    raise DataError(f"{file.path}: there is no {frame.noun} {name!r}{hint}")


def _kinds(file: DataFile) -> str:
    """Return what the fields of the likeliest frame are."""
    frame = file.frames[0] if file.frames else None
    return f"the {frame.noun}s are: {kinds_of(frame.fields)}" if frame else "the file has no columns or keys"


def _unknown(file: DataFile, ranked: Sequence[Reading]) -> str:
    """Return why no reading fits."""
    if ranked and ranked[0].frame:
        fix = f"give texts with a {ranked[0].frame.noun} of labels (few values), of numbers, or of texts to write"
        return f"nothing to learn in it: {_kinds(file)}; {fix}"
    return f"nothing to learn in it: {file.describe()}; give a table or JSON Lines, a text and its label in each row"


def options_of(reading: Reading) -> list[str]:
    """Return the options of `seqpipe init` that choose a reading."""
    options = ["--task", head_for(reading.learns)] if reading.learns else []
    texts = reading.of("text", "text_pair", "words")
    for item in reading.of("label", "labels", "score", "target", "tags")[:1]:
        options += ["--target", item.option]
    if reading.frame is not None and reading.frame.groups is None:
        for item in texts:
            options += ["--text", item.option]
    return options


def ask(file: DataFile, decision: Decision) -> OpenChoiceError:
    """Return the question between the best reading and the next, with the facts that differ."""
    best = decision.best
    rivals = decision.rivals or [reading for reading in decision.others[:1] if 2 * reading.bits > best.bits]
    choices = list(dict.fromkeys(tuple(options_of(reading)) for reading in (best, *rivals)))
    question = describe(best)
    if decision.rivals:
        first, second = strongest(best.facts, rivals[0].facts), strongest(rivals[0].facts, best.facts)
        reasons = [f"for the {word}: {fact}" for word, fact in (("first", first), ("second", second)) if fact]
        question += f", or {describe(rivals[0])}" + (f" ({'; '.join(reasons)})" if reasons else "")
    elif decision.doubts:
        question += f"; {decision.doubts[0]}"
    return OpenChoiceError(file.path, question, [list(options) for options in choices[:MAX_QUESTIONS]])


def describe(reading: Reading) -> str:
    """Return the name of a reading with its roles, for people."""
    frame = reading.frame
    if frame is None or not reading.roles:
        return reading.name
    nouns = {"text_pair": "second text", "target": "text to write"}
    fields = {item.name: item for item in frame.fields}
    roles = [(fields[name], role) for name, role in reading.roles.items() if name in fields]
    listed = ", ".join(f"{item.title} is the {nouns.get(role, role)}" for item, role in roles[:5])
    return f"{reading.name}: {listed}"


ReadingFunction = Callable[[DataFile, Frame], Iterator[Reading]]
FileReadingFunction = Callable[[DataFile], Iterator[Reading]]


def collect(
    file: DataFile,
    of_frames: Sequence[ReadingFunction],
    of_words: Sequence[ReadingFunction],
    of_file: Sequence[FileReadingFunction],
) -> list[Reading]:
    """Return all readings of a file: those of its frames, and those of its lines, keys and neighbours."""
    readings: list[Reading] = []
    for frame in file.frames:
        for function in of_words if frame.groups is not None else of_frames:
            readings += function(file, frame)
    for file_function in of_file:
        readings += file_function(file)
    return readings


def to_json(decision: Decision) -> dict[str, Any]:
    """Return the decision with the bits of its facts."""
    best, facts = decision.best, list[dict[str, Any]]()
    for fact, bits in best.facts.items():
        if bits:
            facts.append({"fact": fact.property, "fields": list(fact.fields), "bits": round(bits, 1)})
    return {"reading": best.name, "roles": best.roles, "unused": decision.unused, "facts": facts}
