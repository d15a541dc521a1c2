"""The graph takes features and decode options, decides, and has operators of ai.onnx alone."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from factory import LEAN, parts, tiny, toy_encoders
from torch import Tensor, nn

from seqpipe.errors import ExportError, PluginError
from seqpipe.export.graph import random_doc, to_onnx
from seqpipe.features.kinds.matrix import Matrix
from seqpipe.features.sources import MultiSource, NumericSource, keep_rows
from seqpipe.plugin import Chars
from seqpipe.training.evaluation import option_table
from seqpipe.training.pipeline import Pipeline


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
    linear = NumericSource({"matrix": Matrix((0.5, 3.0), (1.0, 1.0))}, "points")
    words = NumericSource({"matrix": Matrix((0.0,), (1.0,))}, "times")
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


class Exported:
    """A pipeline with random weights, its graph, and a session."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)
        lookup = "embedding=[{use: lookup, dim: 4}, {use: letters}]"
        self.config = tiny(folder, lookup, "head=crf", letters=("embedding", Letters))
        self.pipeline: Pipeline = parts(self.config)[0].eval()
        self.data = to_onnx(self.pipeline, option_table(self.config.head[0]), self.config.export.opset)
        self.model = onnx.load_from_string(self.data)
        self.session = onnxruntime.InferenceSession(self.data)

    def feeds(self, *texts: str) -> dict[str, np.ndarray]:
        featurizer = self.pipeline.artifacts.featurizer
        return featurizer.collate(featurizer.docs([{"text": text} for text in texts]))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("graph"))


def test_the_inputs_are_the_features_with_free_axes_and_the_options(exported: Exported) -> None:
    found = {i.name: (i.type, i.shape) for i in exported.session.get_inputs()}
    assert found == {
        "ids": ("tensor(int64)", ["batch_size", "sequence_length"]),
        "mask": ("tensor(bool)", ["batch_size", "sequence_length"]),
        "chars": ("tensor(int64)", ["batch_size", "sequence_length", "word_length"]),
    }
    options = {i.name: (i.type, i.shape) for i in exported.session.get_overridable_initializers()}
    assert options == {"n_best": ("tensor(int64)", ["n_best"])}


def test_the_outputs_are_what_the_head_decides(exported: Exported) -> None:
    names = [output.name for output in exported.session.get_outputs()]
    assert names == ["tags", "scores", "opens", "closes", "paths", "path_scores"]


def test_an_option_that_is_not_fed_has_its_default_and_another_value_is_taken(exported: Exported) -> None:
    feeds = exported.feeds("Ada flew to Rome .", "nobody came .")
    usual = dict(zip((o.name for o in exported.session.get_outputs()), exported.session.run(None, feeds), strict=True))
    assert usual["paths"].shape == (2, 1, 5)
    for n in (1, 2, 7):
        (paths,) = exported.session.run(["paths"], feeds | {"n_best": np.zeros(n, np.int64)})
        assert paths.shape == (2, n, 5)
        assert (paths[:, 0] == usual["tags"]).all()


def test_every_operator_is_of_the_standard_and_nothing_is_left_of_the_exporter(exported: Exported) -> None:
    assert {entry.domain for entry in exported.model.opset_import} <= {"", "ai.onnx"}
    assert max(entry.version for entry in exported.model.opset_import) == exported.config.export.opset
    assert not exported.model.functions
    assert b"/seqpipe/" not in exported.data
    assert not any(node.doc_string or node.metadata_props for node in exported.model.graph.node)
    assert not any(tensor.external_data for tensor in exported.model.graph.initializer)


def test_export_leaves_the_pipeline_as_it_was(exported: Exported) -> None:
    assert all(parameter.requires_grad for parameter in exported.pipeline.parameters())


def test_the_same_pipeline_gives_the_same_bytes(tmp_path: Path) -> None:
    config = tiny(tmp_path, *LEAN, "encoder=sound", **toy_encoders())
    pipeline = parts(config)[0].eval()
    assert to_onnx(pipeline, {}, 18) == to_onnx(pipeline, {}, 18)


@pytest.mark.parametrize("toy", ["unrolled", "batched"])
def test_a_component_that_makes_numbers_of_the_examples_sizes_does_not_export(tmp_path: Path, toy: str) -> None:
    config = tiny(tmp_path, *LEAN, f"encoder={toy}", **toy_encoders())
    with pytest.raises(ExportError, match=r"^the pipeline does not export: .*(static|specialized|constant)"):
        to_onnx(parts(config)[0].eval(), {}, 18)


def test_a_component_that_raises_is_named_not_the_exporter(tmp_path: Path) -> None:
    sound = toy_encoders()["sound"][1]

    class Raises(sound):  # type: ignore[misc,valid-type]
        """Cannot be exported, and says so."""

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if torch.compiler.is_exporting():
                raise NotImplementedError("not in a graph")
            return x

    config = tiny(tmp_path, *LEAN, "encoder=raises", raises=("encoder", Raises))
    with pytest.raises(
        (ExportError, PluginError), match=r"encoder 'raises' of toys.*NotImplementedError: not in a graph"
    ):
        to_onnx(parts(config)[0].eval(), {}, 18)
