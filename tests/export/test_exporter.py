"""A bundle is written once its graph answers as PyTorch does, whole, with all that a deployment needs."""

import ast
import contextlib
import copy
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factory import LEAN, QUIET, parts, tiny, toy_encoders
from huggingface_hub import ModelCard
from tokenizers import normalizers

from seqpipe import load
from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.types import Metric
from seqpipe.config.loader import Config
from seqpipe.console import Console, Tick
from seqpipe.errors import ConfigError, DataError, ExportError, ParityError
from seqpipe.export import exporter
from seqpipe.export.exporter import bundle_files, bundle_manifest, export, model_card
from seqpipe.export.graph import to_onnx, with_weights
from seqpipe.export.parity.answers import Comparison
from seqpipe.export.parity.gate import verify_parity
from seqpipe.features.sources import TextSource
from seqpipe.runtime import bundle
from seqpipe.runtime.manifest import Manifest
from seqpipe.runtime.model import TOLERANCE, Model, same_answer
from seqpipe.training.datasets import read
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.trainer import Trainer
from seqpipe.version import VERSION


class Trained:
    """A small pipeline that has learned something, and its graph."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)
        self.config: Config = tiny(folder, "embedding={use: lookup, dim: 8}", "train.epochs=8")
        self.pipeline: Pipeline
        self.pipeline, batches = parts(self.config)
        Trainer(self.pipeline, self.config, batches, None, folder / "checkpoints", QUIET).train()
        self.records = read(self.config.data.reader, self.config.data.tests["test"])
        self.path = folder / "bundle"
        self.scores = {"test": {"f1": 0.5, "precision": 0.5}}
        self.model = export(self.pipeline, self.config, self.records, self.path, QUIET, self.scores)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("export"))


def test_the_bundle_says_what_goes_in_and_what_comes_out(made: Trained) -> None:
    manifest = json.loads((made.path / "bundle.json").read_bytes())
    session = made.model.session
    assert list(manifest["inputs"]) == [i.name for i in session.get_inputs()]
    assert all(manifest["inputs"][i.name]["axes"] == i.shape for i in session.get_inputs())
    assert list(manifest["options"]) == [i.name for i in session.get_overridable_initializers()] == ["n_best"]
    assert set(manifest["outputs"]) <= {o.name for o in session.get_outputs()}
    assert manifest["answer"]["labels"] == list(made.pipeline.artifacts.tasks[0].labels)
    assert manifest["reader"] == {"use": "conll", "options": dict(made.config.data.reader.options)}
    assert manifest["made_with"]["components"]["encoder lstm"].startswith("seqpipe-nlp ")


def test_the_parity_that_was_shown_stands_in_it(made: Trained) -> None:
    parity = bundle.read(made.path).manifest.parity
    assert parity["decisions"] > 200
    assert parity["worst_score"] <= 1e-4
    assert parity["records"] == len(made.records)
    assert parity["metric"] == "f1"
    assert parity["pytorch"] == parity["onnxruntime"] > 0.5


def test_golden_examples_are_answered_again_with_and_without_words_and_options(made: Trained) -> None:
    model = load(made.path, "cpu")
    golden = model.manifest.golden
    assert {tuple(example.record) for example in golden} == {("text",), ("words", "text")}
    assert golden[-1].options == {"n_best": 3}
    assert len(golden[-1].answer) == 3
    assert model.verify() == []


def test_a_refused_graph_is_kept_as_arrays_beside_the_bundle_that_was_not_written(
    made: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copy.deepcopy(made.pipeline, {id(made.pipeline.artifacts): made.pipeline.artifacts})
    with torch.no_grad():
        other.head.emissions.weight.mul_(1.1)
    with monkeypatch.context() as patch:
        patch.setattr(exporter, "with_weights", lambda model, pipeline: with_weights(model, other))
        with pytest.raises(ParityError) as caught:
            export(made.pipeline, made.config, made.records, tmp_path / "bundle", QUIET)
    kept = tmp_path / "bundle-difference.npz"
    lines = str(caught.value).splitlines()
    assert "differ between PyTorch and onnxruntime" in lines[0]
    assert lines[1].startswith("at fault: head: head 'crf' of seqpipe-nlp: the stages before it export and answer the")
    assert lines[2] == f"its inputs, both answers and their margins are in {kept}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept.name]
    with np.load(kept) as arrays:
        rows, at = arrays["rows.different"], arrays["input.ids"].shape
        assert arrays["onnxruntime.tags"].shape == arrays["pytorch.tags"].shape == at
        near, far = (
            np.abs(arrays[f"{side}.opens"] - arrays["float64.opens"])[rows] for side in ("pytorch", "onnxruntime")
        )
        assert near.max() < 1e-5 < 1e-3 < far.max()
        assert arrays["margin.float64"].shape == (1, at[0])
    export(made.pipeline, made.config, made.records, tmp_path / "bundle", QUIET)
    assert not kept.exists()


class Recorded(Console):
    """A console that keeps the progress that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[str, int | None, list[tuple[int, str]]]] = []

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Tick]:
        ticks: list[tuple[int, str]] = []
        self.shown.append((what, total, ticks))
        yield lambda done, note="": ticks.append((done, note))


def test_export_and_comparison_say_what_they_do_and_show_progress_up_to_their_totals(
    made: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Recorded()
    export(made.pipeline, made.config, made.records[:4], made.path.parent / "progress", console)
    said = capsys.readouterr().err.splitlines()
    assert (said[0], said[2]) == ("exporting to ONNX", "comparing onnxruntime with PyTorch")
    assert re.fullmatch(r"  [0-9,]+ bytes \([0-9.]+ s\)", said[1])
    assert [what for what, _, _ in console.shown] == ["exporting", "comparing random inputs", "comparing texts"]
    for _, total, ticks in console.shown[1:]:
        done = [count for count, _ in ticks]
        assert done == sorted({*done})
        assert done[-1] == total
    stages = dict.fromkeys(stage for _, stage in console.shown[-1][2])
    assert list(stages) == ["features", "answers", "answers with decode options"]


HUB_TASKS = {  # of https://huggingface.co/tasks that an answer kind has
    *("text-classification", "token-classification", "question-answering", "text2text-generation", "text-generation"),
    *("fill-mask", "feature-extraction", "sentence-similarity", "other"),
}
PARITY = {"decisions": 7, "ties": 0}
BY_LABEL = {"f1": 0.5, "precision": 1.0, "recall": 1 / 3, "gold": 12, "predicted": 4, "correct": 4}


def card_of(manifest: Manifest) -> ModelCard:
    return ModelCard(model_card(manifest, {"f1": Metric()}, 1_250_000))


def test_the_model_card_names_labels_scores_and_makers(made: Trained) -> None:
    card = (made.path / "README.md").read_text()
    assert f'pip install "./seqpipe_nlp-{VERSION}-py3-none-any.whl[cpu,serve]"\nseqpipe serve ' in card
    for part in ("# tiny", "`B-PER`", "| test | f1 | 50.00 |", "- torch: ", "- encoder lstm: seqpipe-nlp", "agreed on"):
        assert part in card
    assert sum(path.stat().st_size for path in made.path.iterdir()) / 1e6 == pytest.approx(
        float(re.search(r"files have ([0-9.]+) MB", card)[1]),
        abs=0.1,  # type: ignore[index]
    )
    assert "train: train.conll" in card.partition("```yaml")[2]


def test_the_model_hub_reads_the_head_of_the_card(made: Trained) -> None:
    data = ModelCard.load(made.path / "README.md").data
    assert (data.library_name, data.pipeline_tag, data.tags) == ("seqpipe", "token-classification", ["seqpipe", "onnx"])
    assert (data.metrics, data.license, data.language) == (["f1"], None, None)
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_name, result.metric_type, result.metric_value) == (
        *("token-classification", "test", "f1", 0.5),
    )


def test_licence_and_language_of_the_yaml_stand_in_the_card(made: Trained, tmp_path: Path) -> None:
    config = tiny(tmp_path, "embedding={use: lookup, dim: 8}", "export={license: apache-2.0, language: 'no'}")
    data = card_of(bundle_manifest(made.pipeline, config, {}, {}).model_copy(update={"parity": PARITY})).data
    assert (data.license, data.language, data.eval_results) == ("apache-2.0", "no", None)
    with pytest.raises(ConfigError, match=r"export.license"):
        tiny(tmp_path, "export.license=My Own")


@pytest.mark.parametrize("kind", ANSWER_KINDS)
def test_every_answer_kind_has_a_card_with_a_task_of_the_hub(made: Trained, kind: str) -> None:
    changes = {"answer": {"kind": kind}, "metrics": {"test": {"f1": 0.25, "labels": {"a|b": BY_LABEL}}}}
    card = card_of(made.model.manifest.model_copy(update=changes))
    assert card.data.pipeline_tag in HUB_TASKS
    assert f"answers with {kind}." in card.text
    assert "| a&#124;b | 100.00 | 33.33 | 50.00 | 12 |" in card.text
    assert "1.2 MB" in card.text


def test_a_card_of_two_heads_has_the_tasks_and_tables_of_both(made: Trained) -> None:
    parts = {"mood": {"kind": "label", "labels": ["a"]}, "names": {"kind": "spans"}}
    scores = {"mean": 0.5, "mood": {"accuracy": 0.25, "labels": {"a": BY_LABEL}}, "names": {"f1": 0.75}}
    changes = {
        "answer": {"kind": "joint", "parts": parts},
        "metrics": {"test": scores, "raw": {"mean": math.nan, "mood": {"accuracy": 0.5}, "names": {"f1": 0.5}}},
    }
    card = card_of(made.model.manifest.model_copy(update=changes | {"golden": (), "no_golden": "all are ties"}))
    assert (card.data.pipeline_tag, card.data.tags[2:]) == ("text-classification", ["token-classification"])
    assert [(r.metric_type, r.metric_name, r.metric_value) for r in card.data.eval_results] == [
        *(("mean", "mean", 0.5), ("accuracy", "mood.accuracy", 0.25), ("f1", "names.f1", 0.75)),
        *(("accuracy", "mood.accuracy", 0.5), ("f1", "names.f1", 0.5)),
    ]
    assert "test, `mood`:" in card.text
    assert "all are ties" in card.text


def test_the_example_of_the_card_is_answered_as_it_says(made: Trained) -> None:
    card = (made.path / "README.md").read_text()
    given, answer = (json.loads(block) for block in re.findall(r"```json\n(.*)\n```", card))
    assert same_answer(load(made.path, "cpu")(given), answer, TOLERANCE)
    (call,) = re.findall(r"print\(model\((.*)\)\)", card)
    assert ast.literal_eval(call) == given


def test_nothing_of_this_machine_stands_in_the_bundle(made: Trained) -> None:
    for path in made.path.iterdir():
        assert str(made.path.parent).encode() not in path.read_bytes()
        assert str(Path.home()).encode() + b"/" not in path.read_bytes()
        assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()


def test_a_bundle_that_is_there_is_replaced_and_nothing_is_left_over(made: Trained) -> None:
    export(made.pipeline, made.config, made.records[:5], made.path, QUIET)
    assert bundle.read(made.path).manifest.parity["records"] == 5
    assert not [path.name for path in made.path.parent.iterdir() if path.name.startswith(".")]


def other(made: Trained, **changes: Any) -> Model:
    """A model whose bundle was made from other inputs than the pipeline it is compared with."""
    artifacts = replace(made.pipeline.artifacts, **changes)
    kept, made.pipeline.artifacts = made.pipeline.artifacts, artifacts
    try:
        files = bundle_files(made.pipeline, bundle.read(made.path).files["model.onnx"])
        manifest = bundle_manifest(made.pipeline, made.config, bundle.read(made.path).manifest.options, {})
        return Model(bundle.BundleContent(made.path, manifest, files), "cpu")
    finally:
        made.pipeline.artifacts = kept


def test_the_same_pipeline_is_the_same(made: Trained) -> None:
    assert verify_parity(Comparison(made.pipeline, made.config, other(made)), made.records, QUIET)["ties"] == 0


def test_a_bundle_that_reads_words_otherwise_is_refused(made: Trained) -> None:
    from tokenizers import Tokenizer

    featurizer = made.pipeline.artifacts.featurizer
    tokenizer = Tokenizer.from_str(featurizer.tokenizer.to_str())
    tokenizer.normalizer = normalizers.Sequence([])  # no longer in lower case: names become unknown words
    model = other(made, featurizer=TextSource(tokenizer, featurizer.features))
    with pytest.raises(ParityError, match=r"test\.conll:\d+ .+ differently from .+: its input 'ids' differs"):
        verify_parity(Comparison(made.pipeline, made.config, model), made.records, QUIET)


def test_weights_that_changed_after_the_export_are_found(made: Trained) -> None:
    weight = made.pipeline.head.emissions.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight += 0.05 * torch.randn_like(weight)
    try:
        with pytest.raises(ParityError, match="decisions differ"):
            verify_parity(Comparison(made.pipeline, made.config, other(made)), made.records, QUIET)
    finally:
        with torch.no_grad():
            weight.copy_(kept)


@pytest.mark.parametrize(("toy", "error"), [("nomask", ParityError), ("unrolled", ExportError)])
def test_a_pipeline_that_fails_leaves_no_bundle_and_an_old_one_as_it_was(
    tmp_path: Path, toy: str, error: type[Exception]
) -> None:
    config = tiny(tmp_path, *LEAN, f"encoder={toy}", **toy_encoders())
    pipeline, _ = parts(config)
    records = read(config.data.reader, config.data.train)
    with pytest.raises(error):
        export(pipeline, config, records, tmp_path / "bundle", QUIET)
    assert not (tmp_path / "bundle").exists()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "old").touch()
    with pytest.raises(error):
        export(pipeline, config, records, tmp_path / "bundle", QUIET)
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["old"]
    assert not list(tmp_path.glob(".*"))


def test_an_opset_of_the_yaml_is_the_graphs(tmp_path: Path) -> None:
    import onnx

    config = tiny(tmp_path, *LEAN, "encoder=sound", "export.opset=20", **toy_encoders())
    data = to_onnx(parts(config)[0].eval(), {}, config.export.opset)
    assert {entry.version for entry in onnx.load_from_string(data).opset_import} == {20}


def test_a_bundle_states_the_length_for_which_attention_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, *LEAN, "encoder={use: transformer, hidden: 8, heads: 2, layers: 1}")
    pipeline, _ = parts(config)
    records = read(config.data.reader, config.data.tests["test"])
    for name, value in {"LEAST_LIMIT": 1, "MARGIN": 1000, "MOST_BYTES": 2 * 4 * 300**2}.items():
        monkeypatch.setattr(exporter, name, value)
    model = export(pipeline, config, records, tmp_path / "bundle", QUIET)
    assert model.manifest.limits.tokens == load(tmp_path / "bundle").manifest.limits.tokens == 300
    with pytest.raises(DataError, match="301 tokens exceed the limit of 300; split the text"):
        model(" ".join(["Anna"] * 301))


def test_the_graph_runs_once_for_a_batch_that_both_sides_read_alike(made: Trained) -> None:
    comparison = Comparison(made.pipeline, made.config, made.model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made.model.graph, "run", lambda feeds: pytest.fail("the graph ran a second time"))
        expected, got = comparison.answer_both(made.records)
    assert len(got) == len(expected) == len(made.records)
