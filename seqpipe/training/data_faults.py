"""Warnings about data that misleads: texts of dev or test in train, fields that tell the label, empty targets."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from seqpipe.answers.task import list_examples
from seqpipe.answers.types import PASSAGE, WHOLE_TEXT
from seqpipe.config.contract import build_component, is_self_supervised
from seqpipe.config.loader import Config
from seqpipe.features.document import Record
from seqpipe.features.parts import read_part
from seqpipe.features.sources import read_fields
from seqpipe.training.artifacts import Artifacts

# About 400 bytes are kept of a record: the hashes of its input and its answers, and its place, never its text.
MAX_COMPARED_RECORDS = 200_000  # records of each file that are compared
MAX_VALUES = 1_000  # of a field that may tell the label; each of them is counted
TELLING_SHARE = 0.99  # of the records, from which on a field tells their label
MIN_RECORDS_OF_VALUE = 10  # on average; the values of fewer records tell any label
MAX_SPLITS = 20
SPLIT_FIELDS = ("split", "fold")  # by which other tools divide a file


def data_faults(
    config: Config,
    artifacts: Artifacts,
    train: Iterable[Record],
    dev: Iterable[Record],
    counts: dict[str, dict[str, int]] | None = None,
    tests: Mapping[str, Iterable[Record]] | None = None,
) -> Iterator[str]:
    """Yield a line for each kind of fault in these records and in those of the test sets, which are read if not given.

    Texts that a head learns from itself repeat by nature, so that nothing is said about them; a text to write, an
    answer in a passage and a candidate may be one of several that are right. `counts` receives, for each set, how many
    of its texts train has too (`in_train`), or with differences of form (`like_train`).
    """
    tasks = [(head, fitted.name, fitted.head_task) for head, fitted in zip(config.head, artifacts.tasks, strict=True)]
    parts = {name: task for head, name, task in tasks if not (is_self_supervised(head) or task.kind.is_generated)}
    if not parts:
        return
    written, judged = [part for part in parts.values() if part.has_target_text], dict(parts)
    for head, part in parts.items():
        if part.has_target_text or part.subject == PASSAGE or (part.has_candidates and not part.answer_labels()):
            del judged[head]

    def answers_of(record: Record) -> tuple[int, ...]:
        return tuple([_digest(part.gold(record)) for part in judged.values()])

    fields, data, reader = read_fields(artifacts.featurizer), config.data, build_component(config.data.reader)
    if tests is None:
        left_out: list[str] | None = [] if data.bad_rows == "skip" else None
        tests = {name: read_part(reader, path, data.overlaps, left_out) for name, path in data.tests.items()}
    sets: dict[str, Any] = {"train": train, "dev": dev, **tests}
    # By the hash of an input: the set, the place and the answers of its first record. The answers are hashes, or the
    # position of the record where the caller has it: few inputs repeat, and the answers of tagged words cost most.
    first: dict[int, tuple[str, str, int | tuple[int, ...]]] = {}
    folded_train: dict[int, str] = {}
    # By head and the hash of an input: the place of its first record, and of those that contradict it.
    contradicting: dict[str, dict[int, list[str]]] = {head: {} for head in judged}
    # By head and field, where several fields are read: for each value of the field, how many records have each label.
    labelled = [head for head, part in judged.items() if part.has_labels and part.subject == WHOLE_TEXT]
    told: dict[tuple[str, str], dict[str, Counter[int]]] = {
        (head, field): defaultdict(Counter) for head in labelled for field in fields if len(fields) > 1
    }
    splits: dict[str, Counter[str]] = {field: Counter() for field in SPLIT_FIELDS if field not in (*fields, data.group)}
    note = ""
    for name, records in sets.items():
        same, similar, empty, count = list[str](), list[str](), list[str](), 0
        for count, record in enumerate(records, 1):
            if count > MAX_COMPARED_RECORDS:
                note, count = f" (in the first {MAX_COMPARED_RECORDS:,} records of each file)", MAX_COMPARED_RECORDS
                break
            place = str(record.get("where", f"{name}: record {count:,}"))
            if any(not "".join(part.gold(record)).strip() for part in written):
                empty.append(place)
            values = {field: record.get(field) for field in fields}
            if "text" in values and record.get("words") is not None:
                values["text"] = "\n".join(record["words"])
            if not any(str(value).strip() for value in values.values()):
                continue
            key, folded = (hash("\x1e".join(map(form, values.values()))) for form in (str, _folded))
            if key in first:
                first_set, first_place, stored = first[key]
                others = answers_of(sets[first_set][stored]) if isinstance(stored, int) else stored
                for head, answer, first_answer in zip(judged, answers_of(record), others, strict=True):
                    if answer != first_answer:
                        contradicting[head].setdefault(key, [first_place]).append(place)
            else:
                first_set, first_place = name, place
                first[key] = name, place, count - 1 if isinstance(records, Sequence) else answers_of(record)
            if name == "train":
                folded_train.setdefault(folded, place)
                for (head, field), by_value in told.items():
                    if len(by_value) < MAX_VALUES:
                        by_value[str(values[field])][_digest(judged[head].gold(record))] += 1
                for field in splits.keys() & record.keys():
                    splits[field][str(record[field])] += 1
            elif first_set == "train":
                same.append(f"{place} is {first_place}")
            elif folded in folded_train:
                similar.append(f"{place} is {folded_train[folded]}")
        if counts is not None and name != "train":
            counts[name] = {"in_train": len(same), "like_train": len(similar)}
        alike = "have a text that differs from one of train only by case, Unicode form, spaces or punctuation"
        fix = f"a score of them says nothing about new texts; remove them from train or {name}"
        repeated = (same, "have a text that train has too", fix), (similar, alike, fix)
        for places, what, cure in (*repeated, (empty, "have an empty target", "write their targets, or remove them")):
            if places:
                yield f"{name}: {len(places):,} of {count:,} records {what}: {list_examples(places)}; {cure}{note}"
    yield from (f"{line}{note}" for line in _unused_splits(splits))
    yield from (f"{line}{note}" for line in _telling_fields(told))
    for head, groups in contradicting.items():
        if groups:
            where, labels = f"{head}: " if head else "", "labels" if judged[head].has_labels else "answers"
            yield f"{where}{_contradictions(groups, labels)}{note}"


def _unused_splits(splits: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yield a line for each field, with the counts of its values, by which other tools divide a file."""
    for field, counts in splits.items():
        if 1 < len(counts) <= MAX_SPLITS:
            listed = ", ".join(f"{part!r} ({count:,})" for part, count in counts.most_common())
            unused = f"train: nothing reads the field {field!r}, so records of all its values are trained on: {listed}"
            yield f"{unused}; write each to a file of its own, of data.train, dev or test, or remove the field"


def _telling_fields(told: Mapping[tuple[str, str], Mapping[str, Counter[int]]]) -> Iterator[str]:
    """Yield a line for each head and input field of which nearly every value has one label, with several records."""
    for (head, field), by_value in told.items():
        every = sum(by_value.values(), Counter[int]())
        known, size = sum(max(counts.values()) for counts in by_value.values()), every.total()
        if len(by_value) * MIN_RECORDS_OF_VALUE <= size and known >= TELLING_SHARE * size > max(every.values()):
            where, tells = f"{head}: " if head else "", f"tells the label of {known:,} of {size:,} records"
            yield f"{where}the input field {field!r} {tells}; read it only if new texts have it too"


def _contradictions(groups: Mapping[int, Sequence[str]], labels: str) -> str:
    """Return a line about the texts, each with the places of its records, that have different labels or answers."""
    texts = "1 text has" if len(groups) == 1 else f"{len(groups):,} texts have"
    differ = f"{sum(map(len, groups.values())) - len(groups):,} of their records differ from the first"
    pairs = list_examples([" and ".join(places[:2]) for places in groups.values()])
    return f"{texts} different {labels}, {differ}: {pairs}; correct the data"


class _Blanks(dict[int, str]):
    """Table for `str.translate`: punctuation and control characters to blanks; what is not seen is dropped."""

    def __missing__(self, code: int) -> str:
        category = unicodedata.category(chr(code))
        blank = " " if category[0] in "PZ" or category == "Cc" else chr(code)
        return self.setdefault(code, "" if category == "Cf" else blank)


_BLANKS = _Blanks()


def _folded(value: Any) -> str:
    """Return a text without differences of case, Unicode form, blanks and punctuation, unless it has nothing else."""
    if not isinstance(value, str):
        return str(value)
    return " ".join(unicodedata.normalize("NFKC", value).casefold().translate(_BLANKS).split()) or value


def _digest(gold: Any) -> int:
    """Return a hash of a reference: the same for the same spans, labels or fields in another order."""
    if isinstance(gold, Mapping):
        gold = [(name, _digest(value)) for name, value in gold.items()]
    try:
        # A number is hashed as it is written, since Python gives -1 and -2 the same hash.
        return hash(frozenset(gold) if isinstance(gold, list) else repr(gold))
    except TypeError:  # a list of what has no hash, such as a plugin's dictionaries
        return hash(repr(gold))
