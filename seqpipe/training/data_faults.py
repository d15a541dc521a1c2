"""Warnings about data that misleads: texts of dev or test in train, texts with several answers, empty targets."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from seqpipe.answers.types import PASSAGE
from seqpipe.config.contract import build_component, is_self_supervised
from seqpipe.config.loader import Config
from seqpipe.features.document import Record, resolve_overlaps
from seqpipe.features.sources import fields_of
from seqpipe.training.artifacts import Artifacts

# About 400 bytes are held for a record (two hashes, a hash of each answer, a place), never its text.
MOST = 200_000  # records of each file that are compared
SHOWN = 3  # examples of a fault
_FIELD, _WORD = "\x1e", "\x1f"  # separate the fields and the words of a record


class _Examples:
    """Number of records with a fault, and the places of the first."""

    def __init__(self) -> None:
        self.count, self._places = 0, list[str]()

    def add(self, place: str) -> None:
        self.count += 1
        if self.count <= SHOWN:
            self._places.append(place)

    def __str__(self) -> str:
        return listed(self._places, self.count)


def listed(examples: Sequence[str], count: int) -> str:
    """Return the first examples, and the number of the others."""
    rest = count - SHOWN
    return "; ".join(examples[:SHOWN]) + (f"; and {rest:,} more" if rest > 0 else "")


def data_faults(config: Config, artifacts: Artifacts, train: Iterable[Record], dev: Iterable[Record]) -> Iterator[str]:
    """Yield a line for each kind of fault in these records and in those of the test sets.

    Texts that a head learns from itself repeat by nature, so that nothing is said about them; a text to write, an
    answer in a passage and a candidate may be one of several that are right.
    """
    tasks = zip(config.head, artifacts.tasks, strict=True)
    parts = {
        fitted.name: fitted.head_task
        for head, fitted in tasks
        if not (is_self_supervised(head) or fitted.head_task.kind.is_generated)
    }
    if not parts:
        return
    judged = {
        head: part
        for head, part in parts.items()
        if not (part.has_target_text or part.subject == PASSAGE or (part.has_candidates and not part.answer_labels()))
    }
    written = [part for part in parts.values() if part.has_target_text]
    fields, reader, rule = fields_of(artifacts.featurizer), build_component(config.data.reader), config.data.overlaps
    sets: dict[str, Iterable[Record]] = {"train": train, "dev": dev}
    sets |= {name: resolve_overlaps(reader.read(path), rule) for name, path in config.data.tests.items()}
    # By the hash of an input: its first set, its first place, and the hash of the answer of each head there.
    first: dict[int, tuple[str, str, tuple[int, ...]]] = {}
    folded_train: dict[int, str] = {}
    different = {head: _Examples() for head in judged}
    contradicting: dict[str, Counter[int]] = {head: Counter() for head in judged}
    warnings, is_cut = list[str](), False
    for name, records in sets.items():
        count, same, similar, empty = 0, _Examples(), _Examples(), _Examples()
        for record in islice(records, MOST + 1):
            if count == MOST:
                is_cut = True
                break
            count += 1
            place = str(record.get("where", f"{name}: record {count:,}"))
            if any(not "".join(part.gold(record)).strip() for part in written):
                empty.add(place)
            values = [_value(record, field) for field in fields]
            if not any(str(value).strip() for value in values):
                continue
            key, folded = hash(_FIELD.join(map(str, values))), hash(_FIELD.join(map(_folded, values)))
            answers = tuple(hash(_canonical(part.gold(record))) for part in judged.values())
            first_set, first_place, first_answers = first.setdefault(key, (name, place, answers))
            if name == "train":
                folded_train.setdefault(folded, place)
            elif first_set == "train":
                same.add(f"{place} is {first_place}")
            elif folded in folded_train:
                similar.add(f"{place} is {folded_train[folded]}")
            for head, answer, other in zip(judged, answers, first_answers, strict=True):
                if answer != other:
                    if key not in contradicting[head]:
                        different[head].add(f"{first_place} and {place}")
                    contradicting[head][key] += 1
        fix = f"a score of them says nothing about new texts; remove them from train or {name}"
        of = f"{name}: {{}} of {count:,} records"
        if same.count:
            warnings.append(f"{of.format(f'{same.count:,}')} have a text that train has too: {same}; {fix}")
        if similar.count:
            alike = "have a text that differs from one of train by case, Unicode form, blanks or punctuation alone"
            warnings.append(f"{of.format(f'{similar.count:,}')} {alike}: {similar}; {fix}")
        if empty.count:
            learned = "the model learns to write nothing" if name == "train" else "any answer to them counts as wrong"
            warnings.append(f"{of.format(f'{empty.count:,}')} have an empty target: {empty}; {learned}; remove them")
    for head, examples in different.items():
        if examples.count:
            where, labels = f"{head}: " if head else "", "labels" if judged[head].has_labels else "answers"
            texts = "1 text has" if examples.count == 1 else f"{examples.count:,} texts have"
            records_in = f"{contradicting[head].total():,} of their records differ from the first"
            warnings.append(f"{where}{texts} different {labels}, {records_in}: {examples}; correct the data")
    note = f" (in the first {MOST:,} records of each file)" if is_cut else ""
    yield from (warning + note for warning in warnings)


def _value(record: Record, field: str) -> Any:
    """Return a field of a record; its words, joined, where its text is given as words."""
    words = record.get("words") if field == "text" else None
    return record.get(field) if words is None else _WORD.join(words)


class _Blanks(dict[int, str | None]):
    """Table for `str.translate`: punctuation and control characters to blanks; what is not seen is dropped."""

    def __missing__(self, code: int) -> str | None:
        category = unicodedata.category(chr(code))
        blank = category[0] in "PZ" or category == "Cc"
        self[code] = None if category == "Cf" else " " if blank else chr(code)
        return self[code]


_BLANKS = _Blanks()


def _folded(value: Any) -> str:
    """Return a text without differences of case, Unicode form, blanks and punctuation, unless it has nothing else."""
    if not isinstance(value, str):
        return str(value)
    return " ".join(unicodedata.normalize("NFKC", value).casefold().translate(_BLANKS).split()) or value


def _canonical(gold: Any) -> str:
    """Return a reference as text: the same for the same spans, labels or fields in another order."""
    if isinstance(gold, Mapping):
        return str(sorted((str(name), _canonical(value)) for name, value in gold.items()))
    return str(sorted(map(repr, gold))) if isinstance(gold, list) else repr(gold)
