"""A bundle of each answer kind, in int8, with a plugin's head or streaming, does all that a bundle can do."""

import json
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import second_tokenizer
from cuda_placement import faults_on_cuda
from gallery import RECIPES, Example, gallery
from hostile_inputs import Comparison
from huggingface_hub import ModelCard
from tiny_pipelines import seqpipe, succeed

from seqpipe import load
from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.batch.job import Shard
from seqpipe.console import Console
from seqpipe.errors import UsageError
from seqpipe.evaluation import scores as evaluate
from seqpipe.runs import scoring


def flat(scores: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Scores by their paths."""
    parts = [flat(value, f"{prefix}{name}.") for name, value in scores.items() if isinstance(value, dict)]
    numbers = {f"{prefix}{name}": value for name, value in scores.items() if not isinstance(value, dict)}
    return dict(ChainMap(numbers, *parts))


@pytest.fixture(params=RECIPES)
def example(request: pytest.FixtureRequest) -> Example:
    return gallery(request.param)


def test_every_answer_kind_has_a_model() -> None:
    assert {load(gallery(kind).bundle, "cpu").manifest.answer["kind"] for kind in ANSWER_KINDS} == {*ANSWER_KINDS}


def test_a_bundle_verifies_has_a_card_and_kernels_of_cuda_for_every_node(example: Example) -> None:
    succeed("verify", example.bundle, "--device", "cpu")
    if example.folder.name != "int8":  # which is for CPUs
        assert faults_on_cuda(example.bundle / "model.onnx") == []
    card = (example.bundle / "README.md").read_text(encoding="utf-8")
    assert ModelCard(card).data.eval_results
    assert str(example.folder) not in card


def test_a_bundle_has_the_scores_of_pytorch_in_one_run_and_in_shards(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = flat(json.loads((example.run / "metrics.json").read_text(encoding="utf-8"))["test"])
    if example.folder.name == "plugin":  # without which its own metric is unknown
        del expected["mean_absolute_error"]
    scored = json.loads(seqpipe("evaluate", example.bundle, "--device", "cpu", "--json").out)["test"]
    assert flat(scored) == pytest.approx(expected, rel=1e-5)  # of means of numbers; others are equal
    for module in (scoring, evaluate):
        monkeypatch.setattr(module, "CHUNK", 4)
    opened = scoring.open_target(example.bundle, "cpu", None, Console(-1))
    if opened.predictor.kind.is_generated:
        with pytest.raises(UsageError, match="without --shard"):
            scoring.answer_shard(example.bundle, opened, Console(-1), Shard(1, 2), tmp_path)
        return
    for number in (2, 1):
        scoring.answer_shard(example.bundle, opened, Console(-1), Shard(number, 2), tmp_path)
    whole = scoring.score_target(opened, Console(-1))
    assert scoring.score_shards(example.bundle, tmp_path, Console(-1)) == whole


def test_a_second_runtime_answers_hostile_inputs_alike(example: Example) -> None:
    compared = Comparison(example.bundle, 25)
    assert compared.differences == []
    assert compared.failed_golden == []
    assert compared.tokenizers <= {"Tokenizer"}  # read by the page, without the library
    assert len({json.dumps(answer) for answer in compared.answers}) > 5


def test_a_runtime_that_reads_classes_as_javascript_does_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(second_tokenizer.CLASSES, "w", "A-Za-z0-9_")
    monkeypatch.setattr(second_tokenizer, "oniguruma", second_tokenizer.oniguruma.__wrapped__)  # without its cache
    assert Comparison(gallery("label").bundle, 60).differences


def test_an_explanation_by_occlusion_has_finite_weights_and_the_answer(example: Example) -> None:
    model = load(example.bundle, "cpu", threads=1)
    record = next(iter(model.manifest.golden)).record
    explanation = model.explain(record, method="occlusion", faithfulness=True)
    assert all(np.isfinite(part.weights).all() and len(part.places) for part in explanation.attentions)
    assert explanation.answer == model(record)
