"""Knowledge distillation: the answers of a trained model to the training texts, computed once and kept with the run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqpipe.answers.registry import part_of
from seqpipe.config.contract import build_component, corpus_settings, has_member
from seqpipe.config.init_from import relative_path, run_problem
from seqpipe.config.loader import Config, load
from seqpipe.config.run_layout import BUNDLE, CHECKPOINTS, STATE, TEACHER, YAML
from seqpipe.config.schema import Teacher
from seqpipe.console import Console
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Doc, Record
from seqpipe.runtime import model
from seqpipe.runtime.predictor import CHUNK, Predictor, batches, chunks
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.datasets import Example, collate
from seqpipe.training.evaluation import evaluation, predictor
from seqpipe.training.pipeline import Pipeline

SHOWN = 5  # labels in a message
LEAST = 1e-12  # the least probability of a bundle that is raised to a power
# The answer to a text by head: probabilities at the temperature, (n, …, L) of the text or its n words; or a text.
Answers = Mapping[str, Any]


def teacher_answers(
    config: Config,
    settings: Teacher,
    artifacts: Artifacts,
    records: Sequence[Record],
    folder: Path | None,
    console: Console,
    device: str = "cpu",
) -> list[Answers]:
    """Return the teacher's answers to records: those in the folder of a run, where they are written at first.

    Raises:
        UsageError: if there is no such teacher, or it answers with another kind or other labels.
        DataError: if it splits a text into other words.
    """
    path = folder and folder / TEACHER
    if path and path.exists():
        return _unpack(checkpoint.load(path))
    clock, opened = time.monotonic(), _open(config, settings, device)
    heads = [_Lesson(config, settings, opened, number, task) for number, task in enumerate(artifacts.tasks)]
    columns: dict[str, list[Any]] = {head.task.name: [] for head in heads}
    with console.progress("the teacher answers", len(records)) as tick:
        for some in chunks(records, CHUNK):
            docs = opened.predictor.docs(some)
            for head in heads:
                if head.reads_tokens:
                    head.refuse_other_words(artifacts.featurizer.docs(some), docs, some)
                columns[head.task.name] += head.texts(some) if head.writes else head.distributions(docs)
            tick(len(columns[heads[0].task.name]))
    state = {name: _pack(column) for name, column in columns.items()}
    if path:
        checkpoint.save(path, state)
    console.say(f"  teacher: {opened.name} answers {len(records):,} texts ({time.monotonic() - clock:.1f} s)")
    return _unpack(state)


def _pack(column: Sequence[Any]) -> dict[str, Any]:
    if isinstance(column[0], str):
        return {"texts": [*column]}
    return {"rows": torch.from_numpy(np.concatenate(column)), "counts": [*map(len, column)]}


def _unpack(state: Mapping[str, Mapping[str, Any]]) -> list[Answers]:
    """Return the answers to each text, from the texts of a head or the rows of all its distributions."""
    columns: dict[str, list[Any]] = {}
    for name, part in state.items():
        is_text = "texts" in part
        columns[name] = part["texts"] if is_text else [rows.numpy() for rows in part["rows"].split(part["counts"])]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True)
class _Opened:
    """An open teacher."""

    name: str  # in messages
    predictor: Predictor
    pipeline: Pipeline | None  # None for a bundle
    device: str


def _open(config: Config, settings: Teacher, device: str) -> _Opened:
    """Open a run or a bundle; a bundle in the folder of its run stands for the run."""
    path = Path(settings.path)
    name, is_bundle = relative_path(path), (path / BUNDLE).is_file()
    run = path.parent if is_bundle and (path.parent / STATE).is_file() else path
    if is_bundle and run == path:
        return _Opened(name, model.load(path, "cpu", 1).predictor, None, "cpu")
    if problem := run_problem(run):
        raise UsageError(f"train.teacher: {problem}, or a bundle")
    trained = load(run / YAML, files=False, runs=False, plugin_files=config.plugin_files)
    pipeline = Pipeline(trained, Artifacts.load(run))
    pipeline.load_state_dict(checkpoint.load_best(run / CHECKPOINTS))
    pipeline.to(device).eval()
    return _Opened(name, predictor(pipeline, trained, device), pipeline, device)


class _Lesson:
    """A head of the student, and that of the teacher which it learns from; UsageError if they do not match."""

    def __init__(self, config: Config, settings: Teacher, teacher: _Opened, number: int, task: FittedTask):
        component, reader, parts = (
            config.head[number],
            build_component(config.data.reader),
            teacher.predictor.kind.parts,
        )
        self.task, self.teacher, self.settings, corpus = task, teacher, settings, corpus_settings(component)
        self.writes = task.head_task.has_target_text
        self.reads_tokens = task.kind.tags_words or corpus is not None
        self.name = next((name for name in (task.name, component.name) if name in parts), "")
        if self.name not in parts:
            raise self._error(f"has no head {component.name!r} (it has: {', '.join(parts)}); give both the same name")
        self.kind = parts[self.name]
        if self.kind.kind != task.kind.kind:
            problem = f"answers with {self.kind.kind}, and the head {component.use!r} with {task.kind.kind}"
            raise self._error(f"{problem}; name a teacher that answers alike")
        if has_member(reader, "epoch") and reader.changes(config.data.train):
            raise self._error("answers once, but the reader yields other records in each epoch; write them to a file")
        if corpus and corpus.packed:
            raise self._error("answers whole texts, but packed texts are cut anywhere; set head.packed: false")
        if corpus and config.data.unlabelled:
            raise UsageError("data.unlabelled: a language model learns from every text; move the file to data.add")
        if self.writes:
            return
        stages = teacher.pipeline.head_stages if teacher.pipeline else []
        self.stage = next((head for head in stages if head.name == self.name), None)
        if not has_member(component.cls, "distribution") or task.kind.self_supervised:
            fix = "a head with a `distribution` can, such as label, tags, crf or lm, or one that generates text"
            raise self._error(f"cannot teach the head {component.use!r}; {fix}")
        if self.stage and not has_member(self.stage.module, "distribution"):
            raise self._error(f"has the head {self.stage.component.use!r}, which has no `distribution`")
        if not self.stage and not self.kind.scored_labels:
            raise self._error(f"is a bundle, which returns no distribution of {self.kind.kind}; name its run")
        pipeline = teacher.pipeline
        theirs = next(fitted for fitted in pipeline.artifacts.tasks if fitted.name == self.name) if pipeline else None
        labels, others = _labels(task), _labels(theirs) if theirs else self.kind.labels
        for names, known, whose in ((labels, {*others}, "the teacher lacks"), (others, {*labels}, "only it has")):
            if lacking := [name for name in names if name not in known]:
                listed = ", ".join(map(repr, lacking[:SHOWN])) + (", …" if len(lacking) > SHOWN else "")
                fix = "both need the same labels, scheme of tags, or vocabulary; only their order may differ"
                raise self._error(f"has other labels: {whose} {len(lacking):,}, {listed}; {fix}")
        places = {label: place for place, label in enumerate(others)}
        self.columns = [places[label] for label in labels]

    def _error(self, problem: str) -> UsageError:
        return UsageError(f"train.teacher: {self.teacher.name} {problem}")

    def texts(self, records: Sequence[Record]) -> Iterator[str]:
        """Yield the likeliest text of a beam search for each record."""
        option = f"{self.name}.beams" if self.name else "beams"
        answers: Iterator[Any] = self.teacher.predictor.stream(records, **{option: self.settings.beams})
        for answer in answers:
            yield str(
                self.teacher.predictor.task.parts[self.name].predicted(answer[self.name] if self.name else answer)
            )

    def distributions(self, docs: Sequence[Doc]) -> list[np.ndarray]:
        """Return the probabilities (n, …, L) of each text, in the order of the student's labels; n is 0 if empty."""
        rows: dict[int, np.ndarray] = {}
        for places in batches([self.teacher.predictor.kind.text_length(doc) for doc in docs]):
            some = [docs[place] for place in places]
            p = (self._of_run(some) if self.stage else self._of_bundle(some))[..., self.columns]
            counts = [1] * len(some)
            if self.reads_tokens:
                generates = self.task.kind.is_generated  # after its last token [EOS] is predicted
                counts = [len(doc) + 1 if generates else len(doc.first.word_offsets) for doc in some]
            rows |= zip(places, np.split(p, np.cumsum(counts)[:-1]), strict=True)
        empty = next(iter(rows.values()), np.zeros((0, len(self.columns)), np.float32))[:0]
        return [rows.get(place, empty) for place in range(len(docs))]

    def _of_run(self, docs: Sequence[Doc]) -> np.ndarray:
        pipeline, head = self.teacher.pipeline, self.stage
        assert pipeline is not None
        assert head is not None
        with evaluation(pipeline):
            batch = collate(pipeline.artifacts, [Example(doc, {}) for doc in docs])
            names = pipeline({name: tensor.to(self.teacher.device) for name, tensor in batch.items()})
            log_p: Tensor = head.call(head.module.distribution, names, temperature=self.settings.temperature)
        return np.asarray(log_p.exp().cpu().numpy())

    def _of_bundle(self, docs: Sequence[Doc]) -> np.ndarray:
        reads = self.teacher.predictor
        decision = reads.run(reads.featurizer.collate(docs) | reads.defaults.of(docs))
        p = self.kind.label_probabilities(part_of(decision, self.name))
        powers = np.where(p > 0, np.maximum(p, LEAST) ** (1 / self.settings.temperature), 0.0)
        return np.asarray(powers / powers.sum(1, keepdims=True), np.float32)

    def refuse_other_words(self, docs: Sequence[Doc], theirs: Sequence[Doc], records: Sequence[Record]) -> None:
        """Raise DataError for a text of which the teacher reads other words, or a language model other tokens."""
        for doc, other, record in zip(docs, theirs, records, strict=True):
            words, others = doc.first.word_offsets, other.first.word_offsets
            if words != others or (self.task.kind.is_generated and doc.words != other.words):
                fix = "write `words` in the records, or initialise the tokenizer from the teacher's run (init)"
                raise DataError.at(record, f"train.teacher: {self.teacher.name} splits it into other words; {fix}")


def _labels(task: FittedTask) -> Sequence[str]:
    """Return the names of the columns of a head's distribution: labels, tags, or the tokens of a language model."""
    return task.target_vocabulary or task.labels
