"""Records with their references in, warnings with numbers out: data of which a score says nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from seqpipe.answers.base import Kind
from seqpipe.answers.generation import Continuation
from seqpipe.answers.multi_head import Joint
from seqpipe.features.document import Record

LABELLED = ("label", "labels", "tags", "spans")
SHOWN = 5  # labels that a warning lists


def warnings_about(kind: Kind, name: str, records: Iterable[Record]) -> Iterator[str]:
    """The warnings about a set of records, a line each."""
    census = Census(kind)
    for _ in census.watch(records):
        pass
    yield from census.warnings(name)


class Census:
    """What the references of records hold, counted as they pass by."""

    def __init__(self, kind: Kind):
        parts = kind.parts if isinstance(kind, Joint) else {"": kind}
        judged = {head: part for head, part in parts.items() if not _self_supervised(part)}
        self._heads = {head: part for head, part in judged.items() if part.kind in LABELLED}
        self._counted = bool(judged)
        self._labels: dict[str, Counter[str]] = {head: Counter() for head in self._heads}
        self._unknown: dict[str, Counter[str]] = {head: Counter() for head in self._heads}
        self._missed: Counter[str] = Counter()  # records with a label that the model does not know, by head
        self._records = 0

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, each counted."""
        known = {head: _known(kind) for head, kind in self._heads.items()}
        for record in records:
            self._records += 1
            for head, kind in self._heads.items():
                labels = _labels_of(kind.kind, kind.gold(record))
                self._labels[head].update(labels)
                unknown = [label for label in labels if label not in known[head]]
                self._unknown[head].update(unknown)
                self._missed[head] += bool(unknown)
            yield record

    def warnings(self, name: str) -> Iterator[str]:
        """What a score of these records cannot say, and which labels the model does not know, a line each."""
        if self._counted and self._records == 1:
            yield f"{name}: there is 1 record; a score of one record says nothing, give more"
        for head, kind in self._heads.items():
            where, labels = f"{name}: {head}: " if head else f"{name}: ", self._labels[head]
            if self._records > 1 and (told := _one_sided(kind.kind, labels, self._records)):
                yield f"{where}{told}; a score of them says nothing about other answers, give records of each"
            yield from (where + told for told in _alike(labels))
            if unknown := self._unknown[head]:
                told = f"{self._missed[head]:,} of {self._records:,} records hold labels that the model does not know"
                yield f"{where}{told}, and that count as missed: {_listed(unknown)}"


def _known(kind: Any) -> set[str]:
    """What a reference may hold that the model can answer with."""
    if kind.kind == "spans":
        return {label.partition("-")[2] or label for label in kind.labels}
    return {*kind.labels, getattr(kind, "out_of_scope", None)}


def _alike(labels: Counter[str]) -> Iterator[str]:
    """Which labels differ by white space alone, a line each."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for label, count in labels.items():
        groups[" ".join(label.split())][label] = count
    for group in groups.values():
        if len(group) > 1:
            yield f"the labels {_listed(group)} differ by white space alone, and count as different; correct the data"


def _self_supervised(kind: Any) -> bool:
    return isinstance(kind, Continuation) or bool(getattr(kind, "self_supervised", False))


def _labels_of(kind: str, gold: Any) -> list[str]:
    if kind == "label":
        return [gold]
    return [one if isinstance(one, str) else one[0] for one in gold]


def _one_sided(kind: str, labels: Counter[str], records: int) -> str:
    """What all records have in common; nothing where there is a choice."""
    if not labels:
        return f"none of {records:,} records holds a {'span' if kind == 'spans' else 'label'}"
    if len(labels) > 1 or kind == "spans":  # one kind of span is found among words that are none
        return ""
    told = "every word has the tag" if kind == "tags" else "all have the label"
    return f"{told} {next(iter(labels))!r} ({records:,} records)"


def _listed(labels: Counter[str]) -> str:
    rest = len(labels) - SHOWN
    shown = ", ".join(f"{label!r} ({count:,})" for label, count in labels.most_common(SHOWN))
    return shown + (f" and {rest:,} more" if rest > 0 else "")
