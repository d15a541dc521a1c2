"""ONNX graph of a pipeline, and random features for its trace and comparison."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from seqpipe.config.members import ROWLESS
from seqpipe.errors import ExportError, SeqpipeError
from seqpipe.export.passes.linear_layers import rewrite_linear_layers
from seqpipe.export.passes.loop_invariants import bodies, hoist_loop_invariants, place_weights, shape_of
from seqpipe.export.tracing.settings import temporarily
from seqpipe.features import vocabulary
from seqpipe.features.document import MASK_NAME, Arrays, Doc, join_docs
from seqpipe.features.sources import InputSource, MultiSource, NumericSource, mask_of, masks
from seqpipe.features.splitting import splits_words
from seqpipe.runtime.bundle import MOST_FILE
from seqpipe.runtime.decode_options import BEAMS, Known, option_arrays, sibling
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.training.network import Network
from seqpipe.types import OPTION_TYPES

# Random features for tracing and for comparisons, and two changes to them: other padding, and a row by itself.

RANDOM_SIZES, RANDOM_LENGTHS = (1, 2, 3, 7, 33), (1, 2, 5, 31, 128)  # texts of a batch, and tokens of the longest
TOKEN_AXIS = "sequence_length"  # name of the axis of tokens, after the prefix of one of several sources
MASKED_SHARE = 0.15  # of the tokens of a random text, if the vocabulary has a mask token
_LENGTH_STEP = 17  # tokens by which the examples of several sources differ


def random_batches(
    learned: Artifacts, seed: int, sizes: Sequence[int] = RANDOM_SIZES, lengths: Sequence[int] = RANDOM_LENGTHS
) -> Iterator[Arrays]:
    """Yield ragged batches of random words, of every size and length, each with a text of full length."""
    random = np.random.default_rng(seed)
    for rows in sizes:
        for longest in lengths:
            counts = random.integers(1, longest + 1, rows)
            counts[0] = longest
            yield learned.featurizer.collate([random_doc(learned.featurizer, int(n), random) for n in counts])


def random_doc(source: InputSource, length: int, random: np.random.Generator, distinct_lengths: bool = False) -> Doc:
    """Return a text of `length` random tokens, or as many random rows: of records if they are known, or numbers.

    Other sources have at most as many tokens; with `distinct_lengths`, their numbers differ, so that no two axes of an
    example for export have the same size.
    """
    if isinstance(source, MultiSource):
        lengths = [
            length + _LENGTH_STEP * i if distinct_lengths or not i else int(random.integers(1, length + 1))
            for i in range(len(source.sources))
        ]
        parts = zip(source.sources.values(), lengths, strict=True)
        return join_docs([random_doc(part, n, random) for part, n in parts])
    if isinstance(source, NumericSource):
        known = source.known_rows
        rows = random.normal(size=(length, source.width)) if known is None else random.choice(known, length)
        rows = rows.astype(np.float32)
        return Doc("", [row.tobytes().hex() for row in rows], [], [1] * length, rows=rows)
    # Words of random letters with random ids, in sentences of any length; in some texts the longest word is short. For
    # a tokenizer that splits words, some tokens continue a word. Texts of 5 tokens and more have two sentences and two
    # words, since an example for export must have no axis of 1.
    letters = [chr(c) for c in range(97, 123)] + ["é", "播", "9", "-"]
    longest = random.integers(2, 25)
    words = ["".join(random.choice(letters, random.integers(1, longest))) for _ in range(length)]
    for i in np.flatnonzero(random.random(length) < random.choice([0.0, 0.1, 0.4])):
        words[i] = "."
    if length > 4:
        words[1] = "."
    begins = np.ones(length, bool)
    if splits_words(source.tokenizer):
        begins = random.random(length) < random.choice([0.3, 0.7, 1.0])
        begins[[0, *range(2, min(length, 4))]] = True
    ids = random.integers(1, source.tokenizer.get_vocab_size(), length).tolist()
    mask_id = source.tokenizer.token_to_id(vocabulary.MASK)
    if mask_id is not None:  # a large vocabulary would hardly ever yield it
        ids = [mask_id if hidden else i for i, hidden in zip(ids, random.random(length) < MASKED_SHARE, strict=True)]
    for feature in source.features.values():
        words, ids = feature.example_tokens(words, ids, random)
    text, offsets = "", []
    for word, begin in zip(words, begins, strict=True):
        text += " " * bool(begin and text)
        offsets.append((len(text), len(text) + len(word)))
        text += word
    second = int(random.integers(1, length + 1)) if source.pairs else None
    columns: dict[str, str] = {}
    for feature in source.features.values():
        columns |= feature.example_fields(random.choice)
    if not splits_words(source.tokenizer):
        return Doc(text, words, offsets, ids, second=second, columns=columns)
    starts = np.flatnonzero(begins).tolist()
    ends = [*(start - 1 for start in starts[1:]), length - 1]
    places = [(offsets[first][0], offsets[last][1]) for first, last in zip(starts, ends, strict=True)]
    return Doc(text, words, offsets, ids, starts, places, second, columns=columns)


def with_other_padding(learned: Artifacts, feeds: Arrays) -> Arrays:
    """Return the features with other ids and numbers in the padding of the tokens."""
    polluted = {}
    for name, array in feeds.items():
        if name != mask_of(name) and str(learned.featurizer.axes(name)[1]).endswith(TOKEN_AXIS):
            array, outside = np.array(array), ~feeds[mask_of(name)]
            array[outside] = 1 if array.dtype.kind == "i" else np.nan
        polluted[name] = array
    return polluted


def shortest_row(learned: Artifacts, feeds: Arrays) -> tuple[int, Arrays]:
    """Return the position of the shortest row, and that row as a batch of one without padding."""
    counts = {at: mask.sum(1) for at, mask in masks(feeds).items()}
    row = int(np.sum([*counts.values()], 0).argmin())
    axes = learned.featurizer.axes
    alone: dict[str, np.ndarray] = {}
    for name, array in feeds.items():
        length = int(counts[mask_of(name).removesuffix(MASK_NAME)][row])
        array = array[row : row + 1]
        # An axis of tokens is cut at the row's length; any other free axis after the last nonzero value.
        for axis, axis_name in enumerate(axes(name)[1:], 1):
            if not isinstance(axis_name, int):
                remaining = tuple(i for i in range(array.ndim) if i != axis)
                used = int(np.flatnonzero(array.any(remaining)).max(initial=0)) + 1
                array = array.take(range(length if axis_name.endswith(TOKEN_AXIS) else used), axis)
        alone[name] = array
    return row, alone


# Example inputs of a pipeline's graph, with the names of their free axes.

Axes = list[dict[int, str]]
Compute = Callable[[dict[str, Tensor]], dict[str, Tensor]]

_SIZES = (2, 4, 6, 8, 9, 10, 11, 13)  # example sizes of decode options: unlike each other and the features' axes
_PAST_ROWS, _PAST_SLOTS = 46, 52


def example_features(network: Network) -> tuple[Arrays, Axes]:
    """Return features of three texts of different lengths, and the dynamic axes of each."""
    random = np.random.default_rng(0)
    featurizer = network.artifacts.featurizer
    docs = [random_doc(featurizer, n, random, distinct_lengths=True) for n in (max([7, *network.long]), 2, 3)]
    features = featurizer.collate(docs)
    axes = [{i: axis for i, axis in enumerate(featurizer.axes(name)) if isinstance(axis, str)} for name in features]
    return features, axes


def example_options(options: Known) -> tuple[Arrays, Axes]:
    """Return decode options with distinct sizes, and the dynamic axes of each."""
    arrays, axes = option_arrays(options, {}), []
    sizes, further = iter(_SIZES), itertools.count(max(_SIZES) + 1)
    for name, option in options.items():
        option_type = OPTION_TYPES[option["type"]]
        if option_type.is_size:
            arrays[name] = np.zeros(max(_SIZES) if name == sibling(name, BEAMS) else next(sizes), np.int64)
        elif option_type.axes:
            shape = [next(further) for _ in option_type.axes]
            arrays[name] = np.zeros([*shape, *option_type.fixed], option_type.dtype)
        axes.append({i: f"{name}_{axis}" if axis else name for i, axis in enumerate(option_type.axes)})
    return arrays, axes


def tensors_of(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


# The standard ONNX graph of a pipeline: from features and decode options to the whole decision.


class _Graph(nn.Module):
    """A function of named tensors and the pipeline, as a module whose inputs and outputs are tensors only."""

    def __init__(self, network: Network, names: list[str], compute: Compute):
        super().__init__()
        self.names, self.compute = names, compute
        self.pipeline = network  # the names of initializers in a bundle begin with it

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.compute(dict(zip(self.names, inputs, strict=True))).values())


def to_onnx(pipeline: TrainedPipeline) -> bytes:
    """Return the bytes of model.onnx, with decode options as inputs with defaults; ExportError if it fails.

    Inputs: each feature, axes `batch_size` and `sequence_length` free; each option, a size n as a vector of length n.
    Outputs: the decision, and with `export.explain` the attention weights as `explain.<key>.<name>`.
    """
    return with_weights(graph_without_weights(pipeline), pipeline.network)


def graph_without_weights(pipeline: TrainedPipeline) -> onnx.ModelProto:
    """Export the graph as a model without the values of its weights, which do not affect it."""
    network, options, settings = pipeline.network, pipeline.options, pipeline.config.export
    features, feature_axes = example_features(network)
    # The cache of an earlier call, and the free axes of each part; empty if the head has none.
    features |= {
        entry.input: np.zeros(entry.shape(_PAST_ROWS, _PAST_SLOTS + (not entry.grows)), entry.dtype)
        for entry in network.cache
    }
    cache_axes = [{i: axis for i, axis in enumerate(e.axes) if isinstance(axis, str)} for e in network.cache]
    chosen, option_axes = example_options(options)

    def decide(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        is_size = {name: OPTION_TYPES[option["type"]].is_size for name, option in options.items()}
        values = {name: tensors[name].shape[0] if is_size[name] else tensors[name] for name in options}
        return network.decide({name: tensors[name] for name in features}, values, settings.explain)

    axes = [*feature_axes, *cache_axes, *option_axes]
    model = _export_graph(network, decide, features | chosen, axes, settings.opset)
    cache = {entry.input: np.zeros(entry.shape(1, 0), entry.dtype) for entry in network.cache}
    return _finish(model, option_arrays(options, {}) | cache)


def with_weights(model: onnx.ModelProto, network: Network) -> bytes:
    """Return the bytes of a weightless model with a pipeline's weights; the model is not changed."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    weights = dict(network.named_parameters()) | dict(network.named_buffers())
    fill_weights(whole, {f"pipeline.{name}": weight for name, weight in weights.items()})
    data = bytes(whole.SerializeToString())
    if len(data) > MOST_FILE:
        raise ExportError(f"the graph has {len(data):,} bytes; the limit is {MOST_FILE:,}. Make the model smaller")
    onnx.checker.check_model(data)
    return data


def fill_weights(model: onnx.ModelProto, weights: Mapping[str, Tensor]) -> None:
    """Fill each initializer without values with its weight."""
    for initializer in model.graph.initializer:
        if not initializer.raw_data and initializer.name in weights:
            content = weights[initializer.name].detach().cpu().contiguous().flatten().view(torch.uint8)
            initializer.raw_data = content.numpy().tobytes()


def bytes_per_pair(graph: bytes) -> int:
    """Return the bytes, for each pair of tokens of a text, of the largest value of a graph with two axes of tokens.

    It is 0 if there is none, as without attention of each token to each other one.
    """
    graphs, largest = [onnx.load_from_string(graph).graph], 0
    for part in graphs:  # grows: the bodies of a graph's nodes follow it
        for value in part.value_info:
            sizes = shape_of(value)
            if sum(TOKEN_AXIS in str(size) for size in sizes) > 1:
                itemsize = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).itemsize
                largest = max(largest, itemsize * math.prod(size for size in sizes if isinstance(size, int)))
        graphs += [body for node in part.node for body in bodies(node)]
    return largest


def stages_to_onnx(network: Network, count: int, opset: int) -> bytes:
    """Export the graph of the first `count` stages, with the outputs of the last of them."""

    def run_stages(features: dict[str, Tensor]) -> dict[str, Tensor]:
        *_, (_, tensors) = itertools.islice(network.trace(features), count)
        rows = {name: tensor for name, tensor in tensors.items() if name not in ROWLESS}
        return {f"made.{name}": tensor * 1 for name, tensor in rows.items()}  # an input cannot be an output of a graph

    return with_weights(_finish(_export_graph(network, run_stages, *example_features(network), opset), {}), network)


def _export_graph(network: Network, compute: Compute, inputs: Arrays, axes: Axes, opset: int) -> onnx.ModelProto:
    # This import takes a second, and only an export needs it.
    from seqpipe.export.tracing.conversion import onnx_model

    graph = _Graph(network, [*inputs], compute).eval()
    with torch.no_grad():
        outputs = [*compute(tensors_of(inputs))]
    try:
        with torch.no_grad(), _undisturbed():
            return onnx_model(graph, tensors_of(inputs), axes, outputs, opset)
    except Exception as error:  # PyTorch's exporter wraps the cause
        cause = error if isinstance(error, SeqpipeError) else error.__cause__ or error
        message = f"{type(cause).__name__}: {' '.join(str(cause).split())[:600]}"
        raise ExportError(f"the pipeline does not export: {message}") from error


def _finish(model: onnx.ModelProto, defaults: Arrays) -> onnx.ModelProto:
    """Check for standard operators, optimise the graph, set the options' defaults, strip the exporter's metadata."""
    domains = {entry.domain for entry in model.opset_import} - {"", "ai.onnx"}
    if domains or model.functions:
        names = ", ".join(sorted(domains)) or "local functions"
        raise ExportError(f"the graph uses operators outside ai.onnx: {names}")
    hoist_loop_invariants(model.graph)
    rewrite_linear_layers(model.graph)
    place_weights(model.graph)
    for name, array in defaults.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    _strip(model.graph)
    return model


def _strip(graph: onnx.GraphProto) -> None:
    """Remove the exporter's metadata, which contains local paths, from a graph and the bodies of its loops."""
    del graph.metadata_props[:]
    for value in (*graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del value.metadata_props[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
        for body in bodies(node):
            _strip(body)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Suppress the exporter's output, and the collection of cyclic garbage; exceptions are raised.

    With millions of long-lived objects, the collection takes 10 % of tracing.
    """
    with (
        temporarily(gc.isenabled, lambda enabled: gc.enable() if enabled else gc.disable(), False),
        temporarily(lambda: logging.root.manager.disable, logging.disable, logging.WARNING),
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield
