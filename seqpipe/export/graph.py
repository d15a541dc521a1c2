"""The standard ONNX graph of a pipeline: from features and decode options to the whole decision."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import logging
import warnings
from collections.abc import Iterator, Mapping

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from seqpipe.config.names import ROWLESS
from seqpipe.errors import ExportError, SeqpipeError
from seqpipe.export.graph_inputs import Axes, example_cache, example_features, example_options, tensors_of
from seqpipe.export.graph_key import raw_bytes
from seqpipe.export.passes.linear_layers import rewrite_linear_layers
from seqpipe.export.passes.loop_invariants import hoist_loop_invariants
from seqpipe.features.document import Arrays
from seqpipe.runtime.bundle import MOST_FILE
from seqpipe.runtime.decode_options import Known, option_arrays
from seqpipe.training.pipeline import Pipeline


class _Graph(nn.Module):
    """The pipeline as a function of tensors alone."""

    def __init__(self, pipeline: Pipeline, features: list[str], options: Known, explain: bool):
        super().__init__()
        self.pipeline, self.features, self.options, self.explain = pipeline, features, options, explain

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        tensors = dict(zip([*self.features, *self.options], inputs, strict=True))
        return tuple(self.decision(tensors).values())

    def decision(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        options = {
            name: tensors[name].shape[0] if option["type"] == "size" else tensors[name]
            for name, option in self.options.items()
        }
        return self.pipeline.decide({name: tensors[name] for name in self.features}, options, self.explain)


class _Stages(nn.Module):
    """The first stages alone: what the last of them returns for the features."""

    def __init__(self, pipeline: Pipeline, features: list[str], count: int):
        super().__init__()
        self.pipeline, self.features, self.count = pipeline, features, count

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.returned(dict(zip(self.features, inputs, strict=True))).values())

    def returned(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        *_, (_, tensors) = itertools.islice(self.pipeline.trace(features), self.count)
        rows = {name: tensor for name, tensor in tensors.items() if name not in ROWLESS}
        return {name: tensor * 1 for name, tensor in rows.items()}  # an input passed through is no output of a graph


def to_onnx(pipeline: Pipeline, options: Known, opset: int, explain: bool = False) -> bytes:
    """The bytes of model.onnx, every decode option an input with its default; ExportError names what prevents it.

    Inputs: each feature, axes `batch_size` and `sequence_length` free; each option, a size n as a vector of length n.
    Outputs: the decision, and with `explain` the attention weights as `explain.<key>.<name>`.
    """
    return with_weights(graph_without_weights(pipeline, options, opset, explain), pipeline)


def graph_without_weights(pipeline: Pipeline, options: Known, opset: int, explain: bool = False) -> onnx.ModelProto:
    """The graph as a model whose weights have no values: what it is does not depend on them."""
    features, feature_axes = example_features(pipeline)
    cache, cache_axes = example_cache(pipeline)
    chosen, option_axes = example_options(options)
    features |= cache
    graph = _Graph(pipeline, list(features), options, explain).eval()
    with torch.no_grad():
        outputs = list(graph.decision(tensors_of(features | chosen)))
    axes = [*feature_axes, *cache_axes, *option_axes]
    model = _exported(pipeline, graph, features | chosen, axes, outputs, opset)
    return _finished(model, option_arrays(options, {}) | {entry.input: entry.zeros(1, 0) for entry in pipeline.cache})


def with_weights(model: onnx.ModelProto, pipeline: Pipeline) -> bytes:
    """The bytes of a model without weights with a pipeline's weights; the model itself is left as it is."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    weights = dict(pipeline.named_parameters()) | dict(pipeline.named_buffers())
    fill_weights(whole, {f"pipeline.{name}": weight for name, weight in weights.items()})
    data = bytes(whole.SerializeToString())
    if len(data) > MOST_FILE:
        raise ExportError(
            f"the graph has {len(data):,} bytes; a bundle's model may have {MOST_FILE:,}. Make the model smaller"
        )
    onnx.checker.check_model(data)
    return data


def fill_weights(model: onnx.ModelProto, weights: Mapping[str, Tensor]) -> None:
    """Give each initializer without values its weight."""
    for initializer in model.graph.initializer:
        if not initializer.raw_data and initializer.name in weights:
            initializer.raw_data = raw_bytes(weights[initializer.name])


def stages_to_onnx(pipeline: Pipeline, count: int, opset: int) -> bytes:
    """The graph of the first `count` stages; its outputs are what the last of them returns."""
    features, axes = example_features(pipeline)
    graph = _Stages(pipeline, list(features), count).eval()
    with torch.no_grad():
        outputs = [f"made.{name}" for name in graph.returned(tensors_of(features))]
    return with_weights(_finished(_exported(pipeline, graph, features, axes, outputs, opset), {}), pipeline)


def _exported(
    pipeline: Pipeline, graph: nn.Module, inputs: Arrays, axes: Axes, outputs: list[str], opset: int
) -> onnx.ModelProto:
    from seqpipe.export.tracing.conversion import (
        onnx_model,  # not above: it takes a second to import, and a cached graph does without
    )

    trainable = {name: p.requires_grad for name, p in pipeline.named_parameters()}
    try:
        pipeline.requires_grad_(False)
        with torch.no_grad(), _silent(), _uncollected():
            return onnx_model(graph, tensors_of(inputs), axes, outputs, opset)
    except Exception as error:  # PyTorch's exporter wraps what it is about
        cause = error if isinstance(error, SeqpipeError) else error.__cause__ or error
        raise ExportError(
            f"the pipeline does not export: {type(cause).__name__}: {' '.join(str(cause).split())[:600]}"
        ) from error
    finally:
        for name, parameter in pipeline.named_parameters():
            parameter.requires_grad_(trainable[name])


def _finished(model: onnx.ModelProto, defaults: Arrays) -> onnx.ModelProto:
    """Check that the operators are standard, make the graph fast, set the options' defaults, strip exporter's notes."""
    domains = {entry.domain for entry in model.opset_import} - {"", "ai.onnx"}
    if domains or model.functions:
        raise ExportError(
            f"the graph uses operators outside ai.onnx: {', '.join(sorted(domains)) or 'local functions'}"
        )
    hoist_loop_invariants(model.graph)
    rewrite_linear_layers(model.graph)
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
