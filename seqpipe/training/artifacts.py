"""Fitted artifacts of a run: tokenizers, vocabularies, features and labels, saved in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind, HeadAnswer
from seqpipe.answers.registry import head_answer_from, head_task, join_kinds, task_of, tokenizer_file
from seqpipe.answers.task import HeadTask, Task
from seqpipe.answers.types import CandidateTexts
from seqpipe.config.run_layout import LEARNED, RUN_FORMAT, refuse_other_format
from seqpipe.errors import DataError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.sources import InputSource, source_from, tokenizer_file_of, tokenizers_of
from seqpipe.features.vocabulary import Vocabulary, vocabulary_of
from seqpipe.files import read_json, write


@dataclass(frozen=True)
class FittedTask:
    """Task of one head, with its fitted labels or target tokenizer; the name of a single head is empty."""

    name: str
    answer: Mapping[str, Any]
    labels: Vocabulary
    target_tokenizer: Tokenizer | None
    longest: int = 0  # tokens of the longest target text in training; 0 if targets are not separate texts

    @property
    def target_vocabulary(self) -> Vocabulary | None:
        return vocabulary_of(self.target_tokenizer) if self.target_tokenizer else None

    @property
    def kind(self) -> HeadAnswer:
        return head_answer_from(self.answer, self.target_tokenizer)

    @property
    def head_task(self) -> HeadTask:
        return head_task(self.kind)


@dataclass(frozen=True)
class Artifacts:
    """Fitted artifacts: computed from the training records before any weight, and stored in a bundle with the graph."""

    featurizer: InputSource  # converts records to arrays, with the fitted tokenizers and features
    counts: Mapping[str, Sequence[int]]  # number of occurrences of each token in training, by source
    tasks: tuple[FittedTask, ...]  # one per head
    longest: int = 0  # tokens of the longest training text

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """Vocabulary of every text source, by its name; the name of a single source is empty."""
        tokenizers = tokenizers_of(self.featurizer)
        return {name: vocabulary_of(tokenizer, self.counts[name]) for name, tokenizer in tokenizers.items()}

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of a single text source; empty for rows of numbers and for several sources."""
        return self.vocabularies.get("", Vocabulary([]))

    @property
    def target_tokenizers(self) -> dict[str, Tokenizer]:
        """Target tokenizers by the name of their head."""
        return {task.name: task.target_tokenizer for task in self.tasks if task.target_tokenizer}

    @property
    def candidates(self) -> CandidateTexts | None:
        """Candidates that the pipeline chooses from; None if it does not choose."""
        sets = [kind.candidates for task in self.tasks if (kind := task.kind).candidates]
        return sets[0] if sets else None

    @cached_property
    def candidate_docs(self) -> dict[str, Doc]:
        """Doc of each text of the candidates; DataError for one without a token."""
        texts = list(dict.fromkeys(self.candidates.texts)) if self.candidates else []
        docs = self.featurizer.docs([{self.featurizer.fields[0]: text} for text in texts])
        if empty := [text for text, doc in zip(texts, docs, strict=True) if not len(doc)]:
            raise DataError(f"the candidate {empty[0]!r} has no token; remove it")
        return dict(zip(texts, docs, strict=True))

    @property
    def kind(self) -> AnswerKind:
        """Answer kind of a single head, or the joint one of several."""
        return join_kinds({task.name: task.kind for task in self.tasks})

    @property
    def task(self) -> Task:
        """Task of a single head, or the joint one of several."""
        return task_of(self.kind)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, a target tokenizer for each head that generates text, and learned.json."""
        for name, tokenizer in tokenizers_of(self.featurizer).items():
            write(folder / tokenizer_file_of(name), tokenizer.to_str(pretty=True))
        for name, tokenizer in self.target_tokenizers.items():
            write(folder / tokenizer_file(name), tokenizer.to_str(pretty=True))
        state = {
            "form": RUN_FORMAT,
            "field": self.featurizer.field,
            "features": {name: feature.manifest() for name, feature in self.featurizer.features.items()},
            "counts": {name: list(counts) for name, counts in self.counts.items()},
            "longest": self.longest,
            "tasks": [
                {
                    "name": t.name,
                    "answer": t.answer,
                    "labels": t.labels,
                    "counts": t.labels.counts,
                    "longest": t.longest,
                }
                for t in self.tasks
            ],
        }
        write(folder / LEARNED, json.dumps(state, ensure_ascii=False))

    @staticmethod
    def load(folder: Path) -> Artifacts:
        state = read_json(folder / LEARNED)
        refuse_other_format(folder / LEARNED, state.get("form", 1))
        counts = state["counts"]
        tokenizers = {name: _read_tokenizer(folder / tokenizer_file_of(name)) for name in counts}
        tasks: list[FittedTask] = []
        writers: dict[str, Tokenizer] = {}
        for task in state["tasks"]:
            path = folder / tokenizer_file(task["name"])
            writer = _read_tokenizer(path) if path.exists() else None
            labels = Vocabulary(task["labels"], task["counts"])
            tasks.append(FittedTask(task["name"], task["answer"], labels, writer, task.get("longest", 0)))
            if writer is not None:
                writers[path.name] = writer
        features = {name: feature_from(manifest, writers) for name, manifest in state["features"].items()}
        lossless = all(task.kind.every_token for task in tasks)
        source = source_from(state["field"], features, tokenizers, lossless)
        return Artifacts(source, counts, tuple(tasks), state.get("longest", 0))


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other class
        raise DataError(f"{path}: damaged: {error}; run with --fresh to move the run aside and start anew") from error
