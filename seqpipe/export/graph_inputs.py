"""Example inputs of a pipeline's graph, with the names of their free axes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqpipe.export.example_inputs import random_doc
from seqpipe.features.document import Arrays
from seqpipe.runtime.decode_options import Known, option_arrays
from seqpipe.training.pipeline import Pipeline

Axes = list[dict[int, str]]

_SIZES = (2, 4, 6, 8, 9, 10, 11, 13)  # example sizes of decode options: unlike each other and the features' axes
_PAST_ROWS, _PAST_SLOTS = 46, 52
_OPTION_AXES: Mapping[str, tuple[str, ...]] = {
    "size": ("",),
    "tokens": ("rows", "length"),
    "uniform": ("rows", "beams", "length"),
}


def example_features(pipeline: Pipeline) -> tuple[Arrays, Axes]:
    """Features of three texts of unlike lengths, and the free axes of each."""
    random = np.random.default_rng(0)
    featurizer = pipeline.artifacts.featurizer
    docs = [random_doc(featurizer, n, random, unlike=True) for n in (max([7, *pipeline.long]), 2, 3)]
    features = featurizer.collate(docs)
    axes = [{i: axis for i, axis in enumerate(featurizer.axes(name)) if isinstance(axis, str)} for name in features]
    return features, axes


def example_options(options: Known) -> tuple[Arrays, Axes]:
    """Decode options in sizes unlike all others, and the free axes of each."""
    sizes = iter(_SIZES)
    chosen = {name: next(sizes) for name, option in options.items() if option["type"] == "size"}
    chosen |= {name: max(_SIZES) for name in chosen if name.rpartition(".")[2] == "beams"}
    arrays = option_arrays(options, {}) | {name: np.zeros(size, np.int64) for name, size in chosen.items()}
    further = itertools.count(max(_SIZES) + 1)
    types: Mapping[str, tuple[int, Any]] = {"tokens": (2, np.int64), "uniform": (3, np.float32)}
    axes = []
    for name, option in options.items():
        if option["type"] in types:
            dimensions, dtype = types[option["type"]]
            arrays[name] = np.zeros([next(further) for _ in range(dimensions)], dtype)
        parts = _OPTION_AXES.get(option["type"], ())
        axes.append({i: f"{name}_{part}" if part else name for i, part in enumerate(parts)})
    return arrays, axes


def example_cache(pipeline: Pipeline) -> tuple[Arrays, Axes]:
    """A cache of an earlier call, and the free axes of each part; empty unless the head takes one."""
    cache = {entry.input: entry.zeros(_PAST_ROWS, _PAST_SLOTS + (not entry.grows)) for entry in pipeline.cache}
    return cache, [{i: axis for i, axis in enumerate(e.axes) if isinstance(axis, str)} for e in pipeline.cache]


def tensors_of(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
