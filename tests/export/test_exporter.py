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
import onnx
import pytest
import torch
from huggingface_hub import ModelCard
from tiny_pipelines import QUIET, SMALL_TAGGER, build_parts, load_tagger, toy_encoders
from tokenizers import Tokenizer, normalizers
from trained_pipeline import Trained, trained_example

from seqpipe import load
from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.types import Metric
from seqpipe.api.model import Model
from seqpipe.console import Console, Tick
from seqpipe.errors import ConfigError, DataError, ExportError, ParityError
from seqpipe.export import exporter
from seqpipe.export.exporter import bundle_files, bundle_manifest, export_bundle, model_card
from seqpipe.export.graph import to_onnx
from seqpipe.export.parity.gate import verify_parity
from seqpipe.features.sources import TextSource
from seqpipe.runtime import bundle
from seqpipe.runtime.manifest import Manifest
from seqpipe.runtime.opened import SCORE_TOLERANCE, same_answer
from seqpipe.training.datasets import load_records
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.version import VERSION


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A trained pipeline, exported with scores."""
    trained = trained_example("spans", tmp_path_factory.mktemp("export"))
    trained.bundle = trained.folder / "bundle"
    trained.export("bundle", scores={"test": {"f1": 0.5, "precision": 0.5}})
    return trained


def test_the_bundle_states_inputs_outputs_and_components(trained: Trained) -> None:
    manifest, session = json.loads((trained.bundle / "bundle.json").read_bytes()), load(trained.bundle).session
    assert list(manifest["inputs"]) == [i.name for i in session.get_inputs()]
    assert all(manifest["inputs"][i.name]["axes"] == i.shape for i in session.get_inputs())
    assert list(manifest["options"]) == [i.name for i in session.get_overridable_initializers()] == ["n_best"]
    assert set(manifest["outputs"]) <= {o.name for o in session.get_outputs()}
    assert manifest["answer"]["labels"] == list(trained.network.artifacts.tasks[0].labels)
    assert manifest["reader"] == {"use": "conll", "options": dict(trained.config.data.reader.options)}
    assert manifest["made_with"]["components"]["encoder lstm"].startswith("seqpipe-nlp ")


def test_the_bundle_states_its_parity_and_answers_golden_examples_of_each_form(trained: Trained) -> None:
    model = load(trained.bundle, "cpu")
    parity, golden = model.manifest.parity, model.manifest.golden
    assert parity["decisions"] > 200
    assert parity["worst_score"] <= 1e-4
    assert (parity["records"], parity["metric"]) == (len(trained.records), "f1")
    assert parity["pytorch"] == parity["onnxruntime"] > 0.5
    assert {tuple(example.record) for example in golden} == {("text",), ("words", "text")}
    assert (golden[-1].options, len(golden[-1].answer)) == ({"n_best": 3}, 3)
    assert model.verify() == []


def test_a_refused_graph_is_kept_as_arrays_beside_the_bundle_that_was_not_written(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = trained.network
    other = copy.deepcopy(network, {id(network.artifacts): network.artifacts})
    with torch.no_grad():
        other.head.emissions.weight.mul_(1.1)
    with monkeypatch.context() as patch:
        patch.setattr(exporter, "to_onnx", lambda pipeline: to_onnx(replace(pipeline, network=other)))
        with pytest.raises(ParityError) as caught:
            trained.export(tmp_path / "bundle")
    kept = tmp_path / "bundle-difference.npz"
    lines = str(caught.value).splitlines()
    assert "differ between PyTorch and onnxruntime" in lines[0]
    assert lines[1].startswith("at fault: head: head 'crf' of seqpipe-nlp: the stages before it export and answer the")
    assert lines[2] == f"its inputs, both answers and their margins are in {kept}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept.name]
    with np.load(kept) as arrays:
        rows, shape, exact = arrays["rows.different"], arrays["input.ids"].shape, arrays["float64.opens"]
        assert arrays["onnxruntime.tags"].shape == arrays["pytorch.tags"].shape == shape
        near, far = (np.abs(arrays[f"{side}.opens"] - exact)[rows].max() for side in ("pytorch", "onnxruntime"))
        assert near < 1e-5 < 1e-3 < far
        assert arrays["margin.float64"].shape == (1, shape[0])
    trained.export(tmp_path / "bundle")
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


def test_export_and_comparison_show_their_progress_up_to_their_totals_and_replace_a_bundle(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    console, path = Recorded(), trained.folder / "progress"
    trained.export("progress")
    export_bundle(trained.pipeline, trained.records[:4], path, console)
    assert bundle.read(path).manifest.parity["records"] == 4
    assert not [path.name for path in trained.folder.iterdir() if path.name.startswith(".")]
    messages = capsys.readouterr().err.splitlines()
    assert (messages[0], messages[2]) == ("exporting to ONNX", "comparing onnxruntime with PyTorch")
    assert re.fullmatch(r"  [0-9,]+ bytes \([0-9.]+ s\)", messages[1])
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


def test_the_model_card_names_labels_scores_and_makers_and_has_a_head_that_the_hub_reads(trained: Trained) -> None:
    card = (trained.bundle / "README.md").read_text()
    assert f'pip install "./seqpipe_nlp-{VERSION}-py3-none-any.whl[cpu,serve]"\nseqpipe serve ' in card
    for part in ("# tiny", "`B-PER`", "| test | f1 | 50.00 |", "- torch: ", "- encoder lstm: seqpipe-nlp", "agreed on"):
        assert part in card
    (megabytes,) = re.findall(r"files have ([0-9.]+) MB", card)
    size = sum(path.stat().st_size for path in trained.bundle.iterdir())
    assert size / 1e6 == pytest.approx(float(megabytes), abs=0.1)
    assert "train: train.conll" in card.partition("```yaml")[2]
    data = ModelCard(card).data
    assert (data.library_name, data.pipeline_tag, data.tags) == ("seqpipe", "token-classification", ["seqpipe", "onnx"])
    assert (data.metrics, data.license, data.language) == (["f1"], None, None)
    (result,) = data.eval_results
    assert (result.task_type, result.dataset_name) == ("token-classification", "test")
    assert (result.metric_type, result.metric_value) == ("f1", 0.5)


def test_licence_and_language_of_the_yaml_stand_in_the_card(trained: Trained, tmp_path: Path) -> None:
    config = load_tagger(tmp_path, "export={license: apache-2.0, language: 'no'}")
    pipeline = replace(trained.pipeline, config=config)
    data = card_of(bundle_manifest(pipeline).model_copy(update={"parity": PARITY})).data
    assert (data.license, data.language, data.eval_results) == ("apache-2.0", "no", None)
    with pytest.raises(ConfigError, match=r"export.license"):
        load_tagger(tmp_path, "export.license=My Own")


@pytest.mark.parametrize("kind", ANSWER_KINDS)
def test_every_answer_kind_has_a_card_with_a_task_of_the_hub(trained: Trained, kind: str) -> None:
    changes = {"answer": {"kind": kind}, "metrics": {"test": {"f1": 0.25, "labels": {"a|b": BY_LABEL}}}}
    card = card_of(bundle.read(trained.bundle).manifest.model_copy(update=changes))
    assert card.data.pipeline_tag in HUB_TASKS
    assert f"answers with {kind}." in card.text
    assert "| a&#124;b | 100.00 | 33.33 | 50.00 | 12 |" in card.text
    assert "1.2 MB" in card.text


def test_a_card_of_two_heads_has_the_tasks_and_tables_of_both(trained: Trained) -> None:
    parts = {"mood": {"kind": "label", "labels": ["a"]}, "names": {"kind": "spans"}}
    test = {"mean": 0.5, "mood": {"accuracy": 0.25, "labels": {"a": BY_LABEL}}, "names": {"f1": 0.75}}
    raw = {"mean": math.nan, "mood": {"accuracy": 0.5}, "names": {"f1": 0.5}}
    changes = {"answer": {"kind": "joint", "parts": parts}, "metrics": {"test": test, "raw": raw}}
    changes |= {"golden": (), "no_golden": "all are ties"}
    card = card_of(bundle.read(trained.bundle).manifest.model_copy(update=changes))
    assert (card.data.pipeline_tag, card.data.tags[2:]) == ("text-classification", ["token-classification"])
    assert [(r.metric_type, r.metric_name, r.metric_value) for r in card.data.eval_results] == [
        *(("mean", "mean", 0.5), ("accuracy", "mood.accuracy", 0.25), ("f1", "names.f1", 0.75)),
        *(("accuracy", "mood.accuracy", 0.5), ("f1", "names.f1", 0.5)),
    ]
    assert "test, `mood`:" in card.text
    assert "all are ties" in card.text


def test_the_example_of_the_card_is_answered_as_it_says(trained: Trained) -> None:
    card = (trained.bundle / "README.md").read_text()
    example, answer = (json.loads(block) for block in re.findall(r"```json\n(.*)\n```", card))
    assert same_answer(load(trained.bundle, "cpu")(example), answer, SCORE_TOLERANCE)
    (call,) = re.findall(r"print\(model\((.*)\)\)", card)
    assert ast.literal_eval(call) == example


def test_no_path_of_this_machine_is_in_the_bundle(trained: Trained) -> None:
    for path in trained.bundle.iterdir():
        for folder in (f"{trained.folder}", f"{Path.home()}/", f"{Path(__file__).parents[2]}"):
            assert folder.encode() not in path.read_bytes()


def bundled_with(trained: Trained, **changes: Any) -> Model:
    """A model whose bundle has these changes of the fitted artifacts."""
    artifacts, content = trained.network.artifacts, bundle.read(trained.bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained.network, "artifacts", replace(artifacts, **changes))
        files = bundle_files(trained.pipeline, content.files["model.onnx"])
        manifest = bundle_manifest(trained.pipeline)
        return Model(bundle.BundleContent(trained.bundle, manifest, files), "cpu")


def test_a_bundle_that_reads_words_otherwise_is_refused(trained: Trained) -> None:
    assert verify_parity(trained.comparison(bundled_with(trained)), trained.records, QUIET)["ties"] == 0
    featurizer = trained.network.artifacts.featurizer
    tokenizer = Tokenizer.from_str(featurizer.tokenizer.to_str())
    tokenizer.normalizer = normalizers.Sequence([])  # no longer in lower case: names become unknown words
    model = bundled_with(trained, featurizer=TextSource(tokenizer, featurizer.features))
    with pytest.raises(ParityError, match=r"test\.conll:\d+ .+ differently from .+: its input 'ids' differs"):
        verify_parity(trained.comparison(model), trained.records, QUIET)


@pytest.mark.parametrize(("toy", "error"), [("nomask", ParityError), ("unrolled", ExportError)])
def test_a_pipeline_that_fails_leaves_no_bundle_and_an_old_one_as_it_was(
    tmp_path: Path, toy: str, error: type[Exception]
) -> None:
    config, path = load_tagger(tmp_path, *SMALL_TAGGER, f"encoder={toy}", **toy_encoders()), tmp_path / "bundle"
    pipeline = TrainedPipeline(build_parts(config)[0], config)
    records = load_records(config.data.reader, config.data.train)
    with pytest.raises(error):
        export_bundle(pipeline, records, path, QUIET)
    assert not path.exists()
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(error):
        export_bundle(pipeline, records, path, QUIET)
    assert [file.name for file in path.iterdir()] == ["old"]
    assert not list(tmp_path.glob(".*"))


def test_an_opset_of_the_yaml_is_the_graphs(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, *SMALL_TAGGER, "encoder=sound", "export.opset=20", **toy_encoders())
    data = to_onnx(TrainedPipeline(build_parts(config)[0].eval(), config))
    assert {entry.version for entry in onnx.load_from_string(data).opset_import} == {20}


def test_a_bundle_states_the_length_for_which_attention_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_tagger(tmp_path, *SMALL_TAGGER, "encoder={use: transformer, hidden: 8, heads: 2, layers: 1}")
    pipeline = TrainedPipeline(build_parts(config)[0], config)
    records = load_records(config.data.reader, config.data.tests["test"])
    for name, value in {"LEAST_LIMIT": 1, "LIMIT_FACTOR": 1000, "MOST_BYTES": 2 * 4 * 300**2}.items():
        monkeypatch.setattr(exporter, name, value)
    model = export_bundle(pipeline, records, tmp_path / "bundle", QUIET)
    assert model.manifest.limits.tokens == load(tmp_path / "bundle").manifest.limits.tokens == 300
    with pytest.raises(DataError, match="301 tokens exceed the limit of 300; split the text"):
        model(" ".join(["Anna"] * 301))


def test_the_graph_runs_once_for_a_batch_that_both_sides_read_alike(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(trained.bundle, "cpu")
    comparison = trained.comparison(model)
    monkeypatch.setattr(model.graph, "run", lambda feeds: pytest.fail("the graph ran a second time"))
    expected, answers = comparison.answer_both(trained.records)
    assert len(answers) == len(expected) == len(trained.records)
