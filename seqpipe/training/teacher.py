"""Knowledge distillation: the answers of a trained model to the training texts, computed once and kept with the run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seqpipe.answers.registry import part_of
from seqpipe.config.contract import build_component, changes_by_epoch, corpus_settings, has_member
from seqpipe.config.init_from import relative_path, run_problem
from seqpipe.config.loader import Component, Config, load_config
from seqpipe.config.run_layout import BUNDLE, TEACHER, YAML
from seqpipe.console import Console
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Doc, Record
from seqpipe.runtime.decode_options import BEAMS
from seqpipe.runtime.opened import open_bundle
from seqpipe.runtime.predictor import CHUNK, Predictor, batches, chunks
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.datasets import Example, collate
from seqpipe.training.evaluation import TrainedPipeline, evaluation, predictor
from seqpipe.training.network import Network

# The answer to a text by head: probabilities at the temperature, (n, …, L) of the text or its n words; or a text.
Answers = Mapping[str, Any]


def teacher_answers(
    config: Config, artifacts: Artifacts, records: Sequence[Record], folder: Path | None, console: Console, device: str
) -> list[Answers]:
    """Return the teacher's answers to records: those in the folder of a run, where they are written at first.

    Raises:
        UsageError: if there is no such teacher, or it answers with another kind or other labels.
        DataError: if it splits a text into other words.
    """
    path = folder and folder / TEACHER
    if path and path.exists():
        return _unpack(checkpoint.load(path))
    clock, settings = time.monotonic(), config.train.teacher
    assert settings is not None
    teacher, run = _open(config, Path(settings.path), device)
    heads = [_Lesson(config, *pair, teacher, run) for pair in zip(config.head, artifacts.tasks, strict=True)]
    columns: dict[str, list[Any]] = {head.task.name: [] for head in heads}
    with console.progress("the teacher answers", len(records)) as tick:
        for chunk in chunks(records, CHUNK):
            docs = teacher.docs(chunk)
            for head in heads:
                if head.reads_tokens:
                    head.refuse_other_words(artifacts.featurizer.docs(chunk), docs, chunk)
                columns[head.task.name] += head.texts(chunk) if head.writes else head.distributions(docs)
            tick(len(columns[heads[0].task.name]))
    state: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column[0], str):
            state[name] = column
        else:
            state[name] = {"rows": torch.from_numpy(np.concatenate(column)), "counts": [*map(len, column)]}
    if path:
        checkpoint.save(path, state)
    seconds = time.monotonic() - clock
    console.say(f"  teacher: {relative_path(Path(settings.path))} answers {len(records):,} texts ({seconds:.1f} s)")
    return _unpack(state)


def _unpack(state: Mapping[str, Any]) -> list[Answers]:
    columns = [part if isinstance(part, list) else part["rows"].split(part["counts"]) for part in state.values()]
    return [dict(zip(state, row, strict=True)) for row in zip(*columns, strict=True)]


def _open(config: Config, path: Path, device: str) -> tuple[Predictor, Network | None]:
    """Open a run, or a bundle without its run."""
    if (path / BUNDLE).is_file():
        return open_bundle(path, "cpu", 1).predictor, None
    if problem := run_problem(path):
        raise UsageError(f"train.teacher: {problem}, or a bundle")
    trained = load_config(path / YAML, files=False, runs=False, plugin_files=config.plugin_files)
    network = TrainedPipeline.load(trained, path).network.to(device)
    return predictor(network, device), network


class _Lesson:
    """A head of the student, and that of the teacher which it learns from; UsageError if they do not match."""

    def __init__(self, config: Config, head: Component, task: FittedTask, teacher: Predictor, run: Network | None):
        reader, parts = build_component(config.data.reader), teacher.kind.parts
        self.task, self.teacher, self.run = task, teacher, run
        self.settings: Any = config.train.teacher
        corpus, self.writes = corpus_settings(head), task.head_task.has_target_text
        self.reads_tokens = task.kind.tags_words or corpus is not None
        self.name = next((name for name in (task.name, head.name) if name in parts), "")
        if self.name not in parts:
            raise self._error(f"has no head {head.name!r} (it has: {', '.join(parts)}); give both the same name")
        self.kind = parts[self.name]
        if self.kind.kind != task.kind.kind:
            problem = f"answers with {self.kind.kind}, and the head {head.use!r} with {task.kind.kind}"
            raise self._error(f"{problem}; name a teacher that answers alike")
        if changes_by_epoch(reader, config.data.train):
            raise self._error("answers once, but the reader yields other records in each epoch; write them to a file")
        if corpus and (corpus.packed or config.data.unlabelled):
            fix = "set head.packed: false" if corpus.packed else "move those of data.unlabelled to data.add"
            raise self._error(f"answers whole texts, from each of which a language model learns; {fix}")
        if self.writes:
            return
        stages = run.head_stages if run else []
        self.stage = next((stage for stage in stages if stage.name == self.name), None)
        if not has_member(head.cls, "distribution") or task.kind.self_supervised:
            fix = "a head with a `distribution` can, such as label, tags, crf or lm, or one that generates text"
            raise self._error(f"cannot teach the head {head.use!r}; {fix}")
        if self.stage and not has_member(self.stage.module, "distribution"):
            raise self._error(f"has the head {self.stage.component.use!r}, which has no `distribution`; name another")
        if not self.stage and not self.kind.scored_labels:
            raise self._error(f"is a bundle, which returns no distribution of {self.kind.kind}; name its run")
        known = [fitted for fitted in run.artifacts.tasks if fitted.name == self.name] if run else []
        labels, *theirs = [fitted.target_vocabulary or fitted.labels for fitted in (task, *known)]
        others = theirs[0] if theirs else self.kind.labels
        for names, known_names, whose in ((labels, {*others}, "it lacks"), (others, {*labels}, "only it has")):
            if lacking := [name for name in names if name not in known_names]:
                listed = ", ".join(map(repr, lacking[:5])) + (", …" if len(lacking) > 5 else "")
                fix = "both need the same labels, scheme of tags, or vocabulary; only their order may differ"
                raise self._error(f"has other labels: {whose} {len(lacking):,}, {listed}; {fix}")
        places = {label: place for place, label in enumerate(others)}
        self.columns = [places[label] for label in labels]

    def _error(self, problem: str) -> UsageError:
        return UsageError(f"train.teacher: {relative_path(Path(self.settings.path))} {problem}")

    def texts(self, records: Sequence[Record]) -> Iterator[str]:
        """Yield the likeliest text of a beam search for each record."""
        option = f"{self.name}.{BEAMS}" if self.name else BEAMS
        answers: Iterator[Any] = self.teacher.stream(records, **{option: self.settings.beams})
        for answer in answers:
            yield str(self.teacher.task.parts[self.name].predicted(answer[self.name] if self.name else answer))

    def distributions(self, docs: Sequence[Doc]) -> list[np.ndarray]:
        """Return the probabilities (n, …, L) of each text, in the order of the student's labels; n is 0 if empty."""
        rows, generates = dict[int, np.ndarray](), self.task.kind.is_generated
        for places in batches([self.teacher.kind.text_length(doc) for doc in docs]):
            batch_docs, counts = [docs[place] for place in places], [1] * len(places)
            if self.reads_tokens:  # after the last token of a language model, [EOS] is predicted
                counts = [len(doc) + 1 if generates else len(doc.first.word_offsets) for doc in batch_docs]
            p = self._probabilities(batch_docs)[..., self.columns]
            rows |= zip(places, np.split(p, np.cumsum(counts)[:-1]), strict=True)
        empty = next(iter(rows.values()), np.zeros((0, len(self.columns)), np.float32))[:0]
        return [rows.get(place, empty) for place in range(len(docs))]

    def _probabilities(self, docs: Sequence[Doc]) -> np.ndarray:
        if self.run is None or self.stage is None:
            arrays = self.teacher.featurizer.collate(docs) | self.teacher.defaults.of(docs)
            p = self.kind.label_probabilities(part_of(self.teacher.run(arrays), self.name))
            powers = p ** (1 / self.settings.temperature)
            return np.asarray(powers / powers.sum(1, keepdims=True), np.float32)
        with evaluation(self.run):
            batch, device = (
                collate(self.run.artifacts, [Example(doc, {}) for doc in docs]),
                next(self.run.parameters()).device,
            )
            names = self.run({name: tensor.to(device) for name, tensor in batch.items()})
            log_p = self.stage.call(self.stage.module.distribution, names, temperature=self.settings.temperature)
        return np.asarray(log_p.exp().cpu().numpy())

    def refuse_other_words(self, docs: Sequence[Doc], teacher_docs: Sequence[Doc], records: Sequence[Record]) -> None:
        """Raise DataError for a text of which the teacher reads other words, or a language model other tokens."""
        for doc, teacher_doc, record in zip(docs, teacher_docs, records, strict=True):
            is_same = doc.first.word_offsets == teacher_doc.first.word_offsets
            if not is_same or (self.task.kind.is_generated and doc.words != teacher_doc.words):
                fix = "write `words` in the records, or initialise the tokenizer from the teacher's run (init)"
                raise DataError.at(record, f"{self._error('splits it into other words')}; {fix}")
