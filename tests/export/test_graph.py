"""The graph takes features and decode options, decides, and has operators of ai.onnx alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tiny_pipelines import SMALL_TAGGER, build_parts, load_tagger, toy_encoders
from torch import Tensor, nn

from seqpipe.errors import ExportError, PluginError
from seqpipe.export.graph import graph_without_weights, random_doc, to_onnx, with_weights
from seqpipe.features.kinds.matrix import Matrix
from seqpipe.features.sources import MultiSource, NumericSource, keep_rows
from seqpipe.plugin import Chars
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.training.network import Network


class Letters(nn.Module):
    """A word's vector is the mean of its letters'."""

    features: ClassVar = {"chars": Chars(longest=6)}

    def __init__(self, sizes: Any, *, dim: int = 4):
        super().__init__()
        self.dim, self.table = dim, nn.Embedding(sizes["chars"], dim, padding_idx=0)

    def forward(self, chars: Tensor) -> Tensor:
        vectors: Tensor = self.table(chars)
        return vectors.sum(2) / (chars != 0).sum(2, keepdim=True).clamp(min=1)


def test_random_rows_are_those_of_records_if_these_are_known() -> None:
    linear = NumericSource({"matrix": Matrix(means=(0.5, 3.0), deviations=(1.0, 1.0))}, "points")
    words = NumericSource({"matrix": Matrix(means=(0.0,), deviations=(1.0,))}, "times")
    source = MultiSource({"points": linear, "times": words})
    random = np.random.default_rng(1)
    assert np.abs(random_doc(linear, 500, random).rows).max() > 2  # normal numbers
    records = [{"points": [[i / 9, 3], [i, 4]], "times": [[100 + i]]} for i in range(3)]
    keep_rows(source, source.docs(records))
    points, times = random_doc(source, 500, random).parts
    assert {tuple(row) for row in points.rows.tolist()} == {
        tuple(row) for record in records for row in np.float32(record["points"]).tolist()
    }
    assert {*times.rows[:, 0].tolist()} == {100.0, 101.0, 102.0}
    assert len(points.rows) == 500
    keep_rows(source, [])
    assert linear.known_rows is None


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, bytes]:
    """A pipeline with random weights, and its graph."""
    lookup = "embedding=[{use: lookup, dim: 4}, {use: letters}]"
    config = load_tagger(tmp_path_factory.mktemp("graph"), lookup, "head=crf", letters=("embedding", Letters))
    network: Network = build_parts(config)[0].eval()
    return network, to_onnx(TrainedPipeline(network, config))


def test_the_graph_takes_features_with_free_axes_and_options_and_returns_decisions(
    exported: tuple[Network, bytes],
) -> None:
    session = onnxruntime.InferenceSession(exported[1])
    assert {i.name: (i.type, i.shape) for i in session.get_inputs()} == {
        "ids": ("tensor(int64)", ["batch_size", "sequence_length"]),
        "mask": ("tensor(bool)", ["batch_size", "sequence_length"]),
        "chars": ("tensor(int64)", ["batch_size", "sequence_length", "word_length"]),
    }
    options = {i.name: (i.type, i.shape) for i in session.get_overridable_initializers()}
    assert options == {"n_best": ("tensor(int64)", ["n_best"])}
    names = [output.name for output in session.get_outputs()]
    assert names == ["tags", "scores", "opens", "closes", "paths", "path_scores"]


def test_every_operator_is_of_the_standard_and_nothing_is_left_of_the_exporter(
    exported: tuple[Network, bytes],
) -> None:
    network, graph = exported
    model = onnx.load_from_string(graph)
    assert {entry.domain for entry in model.opset_import} <= {"", "ai.onnx"}
    assert max(entry.version for entry in model.opset_import) == 18
    assert not model.functions
    assert b"/seqpipe/" not in graph
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert all(parameter.requires_grad for parameter in network.parameters())  # export leaves them as they were


class Raises(nn.Module):
    """Cannot be exported, and says so."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            raise NotImplementedError("not in a graph")
        return x


FAULTY = {
    "batched": r"^the pipeline does not export: .*(static|specialized|constant)",
    "raises": r"encoder 'raises' of toys.*NotImplementedError: not in a graph",
}


def test_the_same_pipeline_gives_the_same_bytes_and_a_component_that_does_not_export_is_named(tmp_path: Path) -> None:
    def toy(name: str) -> bytes:
        toys = {**toy_encoders(), "raises": ("encoder", Raises)}
        config = load_tagger(tmp_path, *SMALL_TAGGER, f"encoder={name}", **toys)
        return to_onnx(TrainedPipeline(build_parts(config)[0].eval(), config))

    assert toy("sound") == toy("sound")
    for name, message in FAULTY.items():
        with pytest.raises((ExportError, PluginError), match=message):
            toy(name)


def test_a_weightless_model_is_left_as_it_is_and_takes_the_weights_of_another_pipeline(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, *SMALL_TAGGER)
    network, reseeded = (
        build_parts(replace(config, train=config.train.model_copy(update={"seed": i})))[0].eval() for i in (1, 2)
    )
    model, other = graph_without_weights(TrainedPipeline(network, config)), TrainedPipeline(reseeded, config)
    before = model.SerializeToString()
    assert with_weights(model, reseeded) == to_onnx(other) != with_weights(model, network)
    assert model.SerializeToString() == before
