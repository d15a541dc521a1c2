"""Candidates in training: one of its label stands beside each text, and all are encoded after an epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from seqpipe.answers.candidate_set import Candidates
from seqpipe.errors import DataError
from seqpipe.features.document import Doc
from seqpipe.runtime.limits import refuse_long
from seqpipe.runtime.predictor import batches
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import Example
from seqpipe.training.measures import evaluation
from seqpipe.training.pipeline import Pipeline


def candidates_of(artifacts: Artifacts) -> Candidates | None:
    """The texts that a pipeline chooses from; None where it does not."""
    sets = [kind.candidates for task in artifacts.tasks if (kind := task.kind).candidates]
    return sets[0] if sets else None


def candidate_docs(artifacts: Artifacts, texts: Sequence[str]) -> list[Doc]:
    """These candidates split; DataError for one without a token."""
    field = artifacts.featurizer.fields[0]
    docs = artifacts.featurizer.docs([{field: text} for text in texts])
    for text, doc in zip(texts, docs, strict=True):
        if not len(doc):
            raise DataError(f"the candidate {text!r} has no token; leave it out")
    return docs


def refuse_long_candidates(pipeline: Pipeline) -> None:
    """DataError, before training, for a candidate that is longer than a stage can read."""
    if candidates := candidates_of(pipeline.artifacts):
        docs = candidate_docs(pipeline.artifacts, candidates.texts)
        refuse_long(docs, [{"where": f"the candidate {doc.text!r}"} for doc in docs], pipeline.limits)


def with_matches(artifacts: Artifacts, data: Sequence[Example]) -> list[Example]:
    """The examples, each with a candidate of its label that is another text, taking turns; without where none is."""
    candidates = candidates_of(artifacts)
    if candidates is None:
        return list(data)
    ids = {label: i for i, label in enumerate(artifacts.tasks[0].kind.labels)}
    by_label: dict[int, list[Example]] = defaultdict(list)
    for key, doc in zip(candidates.keys, candidate_docs(artifacts, candidates.texts), strict=True):
        by_label[ids[key]].append(Example(doc, {"label": ids[key]}))
    turns: dict[int, int] = defaultdict(int)
    matched = []
    for example in data:
        label = example.targets["label"]
        assert isinstance(label, int)
        alike = by_label[label]
        in_turn = (alike[(turns[label] + i) % len(alike)] for i in range(len(alike)))
        match = next((candidate for candidate in in_turn if candidate.doc.text != example.doc.text), None)
        turns[label] += 1
        matched.append(replace(example, match=match))
    return matched


def encode_candidates(pipeline: Pipeline, device: torch.device | str = "cpu") -> None:
    """Give the head the vectors of its candidates, by the weights as they are; equal texts have equal vectors."""
    candidates = candidates_of(pipeline.artifacts)
    if candidates is None:
        return
    texts = list(dict.fromkeys(candidates.texts))
    vectors = _encode(pipeline, candidate_docs(pipeline.artifacts, texts), device)
    numbers = {text: i for i, text in enumerate(texts)}
    pipeline.head.set_candidates(vectors[[numbers[text] for text in candidates.texts]])


def _encode(pipeline: Pipeline, docs: Sequence[Doc], device: torch.device | str) -> torch.Tensor:  # (N, D)
    vectors: dict[int, torch.Tensor] = {}
    with evaluation(pipeline):
        for rows in batches([len(doc) for doc in docs]):
            arrays = pipeline.artifacts.featurizer.collate([docs[i] for i in rows])
            features = {
                name: torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
                for name, array in arrays.items()
            }
            vectors |= dict(zip(rows, pipeline.decide(features, {})["vector"], strict=True))
    return torch.stack([vectors[i] for i in range(len(docs))])
