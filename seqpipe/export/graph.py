"""A PyTorch pipeline in, one standard ONNX graph out: features and decode options to the whole decision."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from seqpipe.config.names import ROWLESS
from seqpipe.errors import ExportError, SeqpipeError
from seqpipe.export.graph_key import raw_bytes
from seqpipe.export.parity import random_doc
from seqpipe.export.passes.linear_layers import rewritten
from seqpipe.export.passes.loop_invariants import hoisted
from seqpipe.features.document import Arrays
from seqpipe.runtime.bundle import MOST_FILE
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.training.pipeline import Pipeline

_SIZES = (2, 4, 6, 8, 9, 10, 11, 13)  # example sizes of decode options: unlike each other and the features' axes
_PAST_ROWS, _PAST_SLOTS = 46, 52  # example sizes of the cache
_OPTION_AXES: Mapping[str, tuple[str, ...]] = {
    "size": ("",),
    "tokens": ("rows", "length"),
    "uniform": ("rows", "beams", "length"),
}


class _Graph(nn.Module):
    """The pipeline as a function of tensors alone."""

    def __init__(
        self, pipeline: Pipeline, features: list[str], options: Mapping[str, Mapping[str, Any]], explain: bool
    ):
        super().__init__()
        self.pipeline, self.features, self.options, self.explain = pipeline, features, options, explain

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip([*self.features, *self.options], inputs, strict=True))
        options = {
            name: given[name].shape[0] if o["type"] == "size" else given[name] for name, o in self.options.items()
        }
        decision = self.pipeline.decide({name: given[name] for name in self.features}, options, self.explain)
        return tuple(decision.values())


class _Stages(nn.Module):
    """The first stages alone: what the last of them makes of the features."""

    def __init__(self, pipeline: Pipeline, features: list[str], count: int):
        super().__init__()
        self.pipeline, self.features, self.count = pipeline, features, count

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.made(dict(zip(self.features, inputs, strict=True))).values())

    def made(self, names: dict[str, Any]) -> dict[str, Tensor]:
        *_, (_, made) = itertools.islice(self.pipeline.trace(names), self.count)
        rows = {name: tensor for name, tensor in made.items() if name not in ROWLESS}
        return {name: tensor * 1 for name, tensor in rows.items()}  # an input given on is no output of a graph


def to_onnx(pipeline: Pipeline, options: Mapping[str, Mapping[str, Any]], opset: int, explain: bool = False) -> bytes:
    """The bytes of model.onnx, every decode option an input with its default; ExportError says what hinders it.

    Inputs: each feature, axes `batch_size` and `sequence_length` free; each option, a size n as a vector of length n.
    Outputs: the decision, and with `explain` the attention weights as `explain.<key>.<name>`.
    """
    return weighted(weightless(pipeline, options, opset, explain), pipeline)


def weightless(
    pipeline: Pipeline, options: Mapping[str, Mapping[str, Any]], opset: int, explain: bool = False
) -> onnx.ModelProto:
    """The same as a model whose weights have no values: what it is does not depend on them."""
    features, given = _example(pipeline, options)
    axes: list[dict[int, str]] = [_axes(pipeline, name) for name in features]
    for entry in pipeline.cache:
        axes.append({number: axis for number, axis in enumerate(entry.axes) if isinstance(axis, str)})
        features[entry.input] = entry.zeros(_PAST_ROWS, _PAST_SLOTS + (not entry.grows))
    for name, option in options.items():
        parts = _OPTION_AXES.get(option["type"], ())
        axes.append({i: f"{name}_{part}" if part else name for i, part in enumerate(parts)})
    names = list(_outputs(pipeline, features, given, options, explain))
    graph = _Graph(pipeline, list(features), options, explain).eval()
    model = _exported(pipeline, graph, features | given, axes, names, opset)
    return _finished(model, option_arrays(options, {}) | {entry.input: entry.zeros(1, 0) for entry in pipeline.cache})


def weighted(model: onnx.ModelProto, pipeline: Pipeline) -> bytes:
    """The bytes of a weightless model with a pipeline's weights; the model given is left as it is."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    fill_weights(
        whole, {f"pipeline.{name}": one for name, one in (*pipeline.named_parameters(), *pipeline.named_buffers())}
    )
    data = bytes(whole.SerializeToString())
    if len(data) > MOST_FILE:
        raise ExportError(
            f"the graph has {len(data):,} bytes; a bundle's model may have {MOST_FILE:,}. Make the model smaller"
        )
    onnx.checker.check_model(data)
    return data


def fill_weights(model: onnx.ModelProto, weights: Mapping[str, Tensor]) -> None:
    """Gives those initializers that have no values theirs."""
    for initializer in model.graph.initializer:
        if not initializer.raw_data and initializer.name in weights:
            initializer.raw_data = raw_bytes(weights[initializer.name])


def stages_to_onnx(pipeline: Pipeline, count: int, opset: int) -> bytes:
    """The graph of the first `count` stages; its outputs are what the last of them makes."""
    features, _ = _example(pipeline, {})
    graph = _Stages(pipeline, list(features), count).eval()
    with torch.no_grad():
        names = list(graph.made({name: torch.from_numpy(array) for name, array in features.items()}))
    axes = [_axes(pipeline, name) for name in features]
    model = _exported(pipeline, graph, features, axes, [f"made.{name}" for name in names], opset)
    return weighted(_finished(model, {}), pipeline)


def _exported(
    pipeline: Pipeline, graph: nn.Module, inputs: Arrays, axes: list[dict[int, str]], outputs: list[str], opset: int
) -> onnx.ModelProto:
    from seqpipe.export.conversion import (
        onnx_model,  # not above: it takes a second to import, and a cached graph does without
    )

    kept = {name: p.requires_grad for name, p in pipeline.named_parameters()}
    try:
        pipeline.requires_grad_(False)
        with torch.no_grad(), _silent(), _uncollected():
            tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
            return onnx_model(graph, tensors, axes, outputs, opset)
    except Exception as error:  # PyTorch's exporter wraps what it is about
        cause = error if isinstance(error, SeqpipeError) else error.__cause__ or error
        raise ExportError(
            f"the pipeline does not export: {type(cause).__name__}: {' '.join(str(cause).split())[:600]}"
        ) from error
    finally:
        for name, parameter in pipeline.named_parameters():
            parameter.requires_grad_(kept[name])


def _example(pipeline: Pipeline, options: Mapping[str, Mapping[str, Any]]) -> tuple[Arrays, Arrays]:
    random = np.random.default_rng(0)
    docs = [random_doc(pipeline.learned.featurizer, n, random, apart=True) for n in (max([7, *pipeline.long]), 2, 3)]
    chosen: dict[str, Any] = {}
    sizes = iter(_SIZES)
    for name, option in options.items():
        if option["type"] == "size":
            chosen[name] = next(sizes)
    chosen |= {name: max(_SIZES) for name in chosen if name.rpartition(".")[2] == "beams"}
    given = option_arrays(options, {}) | {name: np.zeros(size, np.int64) for name, size in chosen.items()}
    return pipeline.learned.featurizer.collate(docs), given | _unlike(options)


def _unlike(options: Mapping[str, Mapping[str, Any]]) -> Arrays:
    """Tokens and random numbers, in sizes unlike all others."""
    sizes = itertools.count(max(_SIZES) + 1)
    kinds: Mapping[str, tuple[int, Any]] = {"tokens": (2, np.int64), "uniform": (3, np.float32)}
    found = {}
    for name, option in options.items():
        if option["type"] in kinds:
            axes, dtype = kinds[option["type"]]
            found[name] = np.zeros([next(sizes) for _ in range(axes)], dtype)
    return found


def _axes(pipeline: Pipeline, name: str) -> dict[int, str]:
    axes = enumerate(pipeline.learned.featurizer.axes(name))
    return {number: axis for number, axis in axes if isinstance(axis, str)}


def _outputs(
    pipeline: Pipeline, features: Arrays, given: Arrays, options: Mapping[str, Mapping[str, Any]], explain: bool
) -> Iterator[str]:
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in features.items()}
    chosen = {
        n: len(given[n]) if o["type"] == "size" else torch.from_numpy(np.array(given[n])) for n, o in options.items()
    }
    with torch.no_grad():
        yield from pipeline.decide(tensors, chosen, explain)


def _finished(model: onnx.ModelProto, defaults: Arrays) -> onnx.ModelProto:
    """Checks that the graph is standard, makes it fast, gives options their defaults, strips the exporter's notes."""
    domains = {entry.domain for entry in model.opset_import} - {"", "ai.onnx"}
    if domains or model.functions:
        raise ExportError(
            f"the graph uses operators outside ai.onnx: {', '.join(sorted(domains)) or 'local functions'}"
        )
    hoisted(model.graph)
    rewritten(model.graph)
    for name, array in defaults.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    _strip(model.graph)
    return model


def _strip(graph: onnx.GraphProto) -> None:
    """Removes the exporter's notes, which hold paths of this machine, from a graph and the bodies of its loops."""
    del graph.metadata_props[:]
    for value in (*graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del value.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip(body)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles meanwhile: tracing makes millions of objects that live on, a tenth of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps the exporter's notes to itself; what fails is raised."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
