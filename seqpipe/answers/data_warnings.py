"""Warnings about records with references: data of which a score says nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from seqpipe.answers.task import Task
from seqpipe.features.document import Record

SHOWN = 5  # labels that a warning lists


def warnings_about(task: Task, name: str, records: Iterable[Record], trains: bool = False) -> Iterator[str]:
    """The warnings about a set of records, that a model is trained on or scored on, a line each."""
    census = Census(task)
    for _ in census.watch(records):
        pass
    yield from census.warnings(name, trains)


class Census:
    """What the references of records hold, counted as they pass by."""

    def __init__(self, task: Task):
        compared = {
            head: part for head, part in task.parts.items() if not (part.kind.self_supervised or part.kind.is_generated)
        }
        self._heads = {head: part for head, part in compared.items() if part.answer_labels()}
        self._counted = bool(compared)
        self._labels: dict[str, Counter[str]] = {head: Counter() for head in self._heads}
        self._unknown: dict[str, Counter[str]] = {head: Counter() for head in self._heads}
        self._missed: Counter[str] = Counter()  # records with a label that the model does not know, by head
        self._records = 0

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, each counted."""
        known = {head: part.answer_labels() for head, part in self._heads.items()}
        for record in records:
            self._records += 1
            for head, part in self._heads.items():
                labels = part.labels_in(part.gold(record))
                self._labels[head].update(labels)
                unknown = [label for label in labels if label not in known[head]]
                self._unknown[head].update(unknown)
                self._missed[head] += bool(unknown)
            yield record

    def warnings(self, name: str, trains: bool = False) -> Iterator[str]:
        """What cannot be learned from these records, or seen in a score of them, and unknown labels, a line each."""
        if self._counted and self._records == 1:
            little = "nothing can be learned from one" if trains else "a score of one record says nothing"
            yield f"{name}: there is 1 record; {little}, give more"
        one_sided = "no other answer can be learned" if trains else "a score of them says nothing about other answers"
        for head, part in self._heads.items():
            where, labels = f"{name}: {head}: " if head else f"{name}: ", self._labels[head]
            if self._records > 1 and (message := part.one_sided(labels, self._records)):
                yield f"{where}{message}; {one_sided}, give records of each"
            yield from (where + message for message in _alike(labels))
            if unknown := self._unknown[head]:
                message = (
                    f"{self._missed[head]:,} of {self._records:,} records hold labels that the model does not know"
                )
                yield f"{where}{message}, and that count as missed: {_listed(unknown)}"


def _alike(labels: Counter[str]) -> Iterator[str]:
    """Which labels differ by white space alone, a line each."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for label, count in labels.items():
        groups[" ".join(label.split())][label] = count
    for group in groups.values():
        if len(group) > 1:
            yield f"the labels {_listed(group)} differ by white space alone, and count as different; correct the data"


def _listed(labels: Counter[str]) -> str:
    rest = len(labels) - SHOWN
    shown = ", ".join(f"{label!r} ({count:,})" for label, count in labels.most_common(SHOWN))
    return shown + (f" and {rest:,} more" if rest > 0 else "")
