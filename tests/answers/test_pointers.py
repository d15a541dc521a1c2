"""Pointing from data to answers: words of a text, points of a plane, and what cannot be pointed at."""

import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gallery import LONGER, RECIPES, capitals, gallery, train_settings, write_hulls
from second_runtime import Bundle, matches_golden
from tiny_pipelines import QUIET, seqpipe, succeed, write_jsonl

from seqpipe import Model, load
from seqpipe.answers.pointers import PointerGold, Pointers, PointersTask, same_cycle
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.sources import NumericSource
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.runtime.explanation import figure
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import Batches, epoch_examples, examples, load_records
from seqpipe.training.fit import fit_artifacts

WORDS, POINTS = RECIPES["pointers"], RECIPES["points"]


def names_config(folder: Path, *overrides: str, **changes: Any) -> Config:
    return load_config(WORDS.write(folder, **WORDS.content | changes), overrides)


def points_config(folder: Path, *overrides: str) -> Config:
    return load_config(write_hulls(folder), overrides)


def artifacts_of(config: Config) -> tuple[Artifacts, list[Any]]:
    """The fitted artifacts of a config, and its training records."""
    records = load_records(config.data.reader, config.data.train)
    return fit_artifacts(config, records), records


@pytest.fixture(scope="module")
def names() -> Model:
    return load(gallery("pointers").bundle, "cpu")


@pytest.fixture(scope="module")
def corners() -> Model:
    return load(gallery("points").bundle, "cpu")


def test_words_are_chosen_in_the_order_that_was_learned(names: Model) -> None:
    assert names.manifest.metrics["test"]["exact_match"] > 0.9
    answer = names("red Gold green Ruby")
    assert (answer["pointers"], answer["words"]) == ([3, 1], ["Ruby", "Gold"])
    assert 0 < answer["score"] <= 1
    assert names("") == {"pointers": [], "words": [], "score": 1.0, "log_score": 0.0}


def test_an_answer_to_a_longer_input_than_any_in_training_warns(names: Model, corners: Model, tmp_path: Path) -> None:
    assert names.manifest.limits.trained == 6
    warning = "longer than any input in training (8 tokens; at most 6 in training)"
    assert names(LONGER)["warning"] == names.explain(LONGER).answer["warning"] == warning
    assert [answer["warning"] for answer in names(LONGER, beams=3, n_best=3)] == [warning] * 3
    assert "warning" not in names(" ".join(LONGER.split()[:6]))
    assert [example.answer for example in names.manifest.golden if "warning" in str(example.answer)] == []
    points = [[i / 8, i % 2] for i in range(7)]
    assert corners({"points": points})["warning"].startswith("longer than any input in training (7 tokens")
    (tmp_path / "in.txt").write_text(f"red Gold\n{LONGER}\n{LONGER}\n")
    result = seqpipe("predict", gallery("pointers").bundle, "-i", tmp_path / "in.txt", "--device", "cpu")
    assert [json.loads(line).get("warning") for line in result.out.splitlines()] == [None, warning, warning]
    assert result.err == f"warning: input 2 is {warning}; each such answer has the key 'warning'\n"


def test_several_answers_come_best_first(names: Model) -> None:
    scores = [answer["score"] for answer in names("red Gold", beams=9, n_best=9)]
    assert len(scores) == 5  # of two words: none, one, the other, both in two orders
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-4)
    assert names("", beams=2, n_best=2) == [{"pointers": [], "words": [], "score": 1.0, "log_score": 0.0}]


def plane(dice: random.Random, count: int) -> dict[str, Any]:
    return {"points": [[dice.random(), dice.random()] for _ in range(count)]}


@pytest.mark.parametrize("name", ["pointers", "points"])
def test_a_runtime_written_from_the_page_answers_the_same(name: str) -> None:
    model, independent = load(gallery(name).bundle, "cpu"), Bundle(gallery(name).bundle)
    inputs: list[Any] = [*(record["text"] for record in capitals(30, 9)), "", "Ruby", LONGER]
    if name == "points":
        dice = random.Random(1)
        inputs = [plane(dice, count) for count in (3, 5, 1, 0, 9, 2, 30)]
    for options in ({}, {"beams": 4, "n_best": 3}):
        for record in inputs:
            assert matches_golden(model(record, **options), independent(record, **options))


def test_evaluate_lists_mistakes(tmp_path: Path) -> None:
    example, data = gallery("points"), tmp_path / "some.txt"
    flags = ("evaluate", example.bundle, "--device", "cpu", "--json")
    assert [*example.scores] == ["hull_accuracy", "area_covered", "valid", "exact_match", "position_accuracy"]
    data.write_text("0 0 1 0 1 1 0 1 output 1 2 3 4 1\n0 0 1 0 1 1 output 2 3 1 2\n0 0 1 0 0 1 1 1 output 1 2 3 1\n")
    succeed(*flags, "--data", data, "--errors", tmp_path / "wrong")
    wrong = [json.loads(line) for line in (tmp_path / "wrong").read_text().splitlines()]
    assert f"{data}:2" not in [row["where"] for row in wrong]  # of three points there is one polygon
    assert wrong[-1]["expected"] == [0, 1, 2, 0]


def test_few_points_have_the_only_hull_and_points_in_one_place_an_answer(corners: Model) -> None:
    dice = random.Random(1)
    for count in (1, 2, 3) * 20:
        pointers = corners(plane(dice, count))["pointers"]
        assert sorted(pointers[:-1]) == [*range(count)]
        assert pointers[0] == pointers[-1]
    for points in ([[0.5, 0.5]] * 4, [[0, 0], [1, 0], [1, 0], [0, 1]]):
        pointers = corners({"points": points})["pointers"]
        assert pointers[0] == pointers[-1]
        assert len(pointers) >= 4


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        ([3], {}, "position 3 is outside the input, which has 3"),
        ([0, 0], {}, "names position 0 twice; correct it, or set the head's option once: false"),
        ([-1], {}, "it must be a list of positions"),
        ([True], {}, "it must be a list of positions"),
        ("1", {}, "it must be a list of positions"),
        (None, {}, "no field 'names' with positions"),
        ([0, 2], {"close": True}, "does not end with its first position"),
        ([], {"close": True}, "does not end with its first position"),
        ([0, 2], {"every": True}, "lacks position 1; the head's option every requires all 3"),
    ],
)
def test_wrong_positions_have_their_line(tmp_path: Path, names: Any, changes: Mapping[str, Any], message: str) -> None:
    config = names_config(tmp_path, head={"use": "pointer", "target": "names", **changes})
    right = [2, 0, 1, 2] if "close" in changes else [2, 0, 1]
    write_jsonl(tmp_path / "train.jsonl", [{"text": "red Gold blue", "names": at} for at in (right, right, names)])
    with pytest.raises(DataError) as caught:
        examples(config, *artifacts_of(config))
    assert str(caught.value).startswith(f"{tmp_path / 'train.jsonl'}:3: ")
    assert message in str(caught.value)


def test_a_hull_of_points_on_one_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("0 0 1 0 0 1 output 1 2 3 1\n0 0 1 1 2 2 output 1 3 1\n")
    config = points_config(tmp_path, "data.train=train.txt")
    with pytest.raises(DataError, match=r"train\.txt:2: .*has 2 positions, but needs 3: remove it"):
        examples(config, *artifacts_of(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"head": {"use": "pointer", "task": "hull", "close": True, "target": "names"}},
            "its task needs points, but this input is a text; give points",
        ),
        ({"encoder": {"use": "sentences", "hidden": 4}}, "it points at tokens, words or rows of numbers"),
    ],
)
def test_inputs_without_points_or_tokens_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        artifacts_of(names_config(tmp_path, **changes))


def test_behind_an_encoder_of_words_and_beside_another_head_it_points_at_words(tmp_path: Path) -> None:
    def records(count: int, seed: int) -> list[dict[str, Any]]:
        return [{**row, "first": row["text"][0]} for row in capitals(count, seed)]

    heads = [{"use": "pointer", "target": "names", "hidden": 8}, {"use": "label", "target": "first"}]
    stages = {"tokenizer": {"use": "wordpiece", "max_size": 24}, "encoder": ["lstm", "words"], "head": heads}
    small = {"records": records, "counts": (60, 8, 8), "train": train_settings(2), "export": {}}
    config = names_config(tmp_path, **stages, **small)
    with contextlib.chdir(tmp_path):
        run_all(config, QUIET, RunOptions("cpu"))
    bundle = tmp_path / "runs/names/bundle"
    model, independent = load(bundle, "cpu"), Bundle(bundle)
    assert model.manifest.answer["parts"]["pointer"]["axis"] == "word_count"
    for text in (*(record["text"] for record in capitals(20, 8)), ""):
        answer = model(text)
        assert {*answer} == {"pointer", "label"}
        assert answer["pointer"]["words"] == [text.split()[at] for at in answer["pointer"]["pointers"]]
        for options in ({}, {"pointer.beams": 3, "pointer.n_best": 2}):
            assert matches_golden(model(text, **options), independent(text, **options))


def test_each_epoch_of_a_recipe_has_points_of_its_own_also_when_it_is_repeated(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    artifacts, records = artifacts_of(config)
    first = examples(config, artifacts, records)
    batches, straight = (Batches(artifacts, first, 64, None, 1, epoch_examples(config, artifacts)) for _ in range(2))
    epochs = [[batches(rows)["matrix"] for rows in batches.order(epoch)] for epoch in (0, 1, 2, 1)]
    assert not any(torch.equal(a, b) for a, b in zip(epochs[0], epochs[1], strict=False))
    expected = [straight(rows)["matrix"] for rows in straight.order(1)]
    for again in (epochs[1], epochs[3]):
        assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    assert epoch_examples(names_config(tmp_path), artifacts) is None


def test_numbers_may_be_used_without_normalisation(tmp_path: Path) -> None:
    matrices = []
    for normalise in ("true", "false"):
        embedding = f"inputs.it.embedding={{use: linear, dim: 16, normalise: {normalise}}}"
        featurizer = artifacts_of(points_config(tmp_path, embedding))[0].featurizer
        matrices.append(featurizer.collate(featurizer.docs([{"points": [[0.25, 3], [1, 0]]}]))["matrix"][0])
    assert np.array_equal(matrices[1], np.array([[0.25, 3], [1, 0]], np.float32))
    assert not np.allclose(*matrices, atol=0.1)


def test_points_and_the_polygon_are_drawn(tmp_path: Path) -> None:
    record = json.dumps({"points": [[0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5]]})
    for file in ("it.html", "it.json"):
        succeed("explain", gallery("points").bundle, record, "-o", tmp_path / file, "--device", "cpu")
    page = (tmp_path / "it.html").read_text()
    pointers = json.loads((tmp_path / "it.json").read_text())["answer"]["pointers"]
    assert (page.count("<circle"), page.count("<polyline")) == (5, 1)
    places = ["40.0,520.0", "520.0,520.0", "520.0,40.0", "40.0,40.0", "280.0,280.0"]
    assert f'points="{" ".join(places[at] for at in pointers)}"' in page
    assert 'cx="280.0" cy="280.0"' in page


def test_the_probabilities_of_each_step_are_shown(names: Model, tmp_path: Path) -> None:
    (attention,) = names.explain("red Gold green Ruby").attentions
    assert (attention.over, attention.written) == ("written", ("Ruby", "Gold"))
    assert [row.argmax() for row in attention.weights[0]] == [3, 1]
    bundle = gallery("pointers").bundle
    succeed("explain", bundle, "red Gold", "-o", tmp_path / "it.html", "--device", "cpu")


def test_rows_of_three_numbers_have_positions_and_no_figure(tmp_path: Path) -> None:
    rows = [{"points": [[i, j, 1] for j in range(3)], "pointers": [2, 1, 0]} for i in range(8)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    data = "data={reader: {use: jsonl, text: null}, train: train.jsonl}"
    config = points_config(tmp_path, data, "head={use: pointer, every: true, hidden: 8}")
    artifacts, records = artifacts_of(config)
    assert [row.targets["pointers"] for row in examples(config, artifacts, records)] == [[2, 1, 0]] * 8
    kind = artifacts.tasks[0].kind
    for points, is_drawn in (([[1, 2, 3], [4, 5, 6]], False), ([[1, 2], [4, 5]], True)):
        (doc,) = NumericSource({}, "points").docs([{"points": points}])
        assert (figure(kind, doc, {"pointers": [1, 0], "score": 1.0}) is not None) == is_drawn


# The answer kind


def test_a_sequence_is_right_as_a_whole_and_in_its_places() -> None:
    counter = task_of(Pointers()).counter()
    assert counter.result() == {"exact_match": 0, "position_accuracy": 0}
    for answer in ([2, 0, 1], [2, 1], [2, 0, 1, 1]):
        counter.add(PointerGold((2, 0, 1)), answer)
    assert counter.result() == {"exact_match": 1 / 3, "position_accuracy": 7 / 9}
    assert [*counter.result()] == [*PointersTask.metrics]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_cycles_are_the_same_exactly_where_they_have_the_same_sides(size: int) -> None:
    def sides(cycle: tuple[int, ...]) -> Counter[frozenset[int]]:
        return Counter(frozenset((cycle[i - 1], at)) for i, at in enumerate(cycle))

    cycles = [*itertools.permutations(range(5), size)]
    for first, second in itertools.product(cycles[:30], cycles):
        right = sides(first) == sides(second)
        assert same_cycle([*first, first[0]], [*second, second[0]]) is right
        assert same_cycle(first, [*second, second[0]]) is right


def test_where_an_answer_begins_and_its_direction_matter_only_of_a_sequence() -> None:
    gold = PointerGold((0, 1, 2, 3, 0))
    sequence, cycle = Pointers(), Pointers(cyclic=True)
    for answer in ([2, 3, 0, 1, 2], [3, 2, 1, 0, 3], [0, 1, 2, 3]):
        assert task_of(cycle).is_right(gold, answer)
        assert not task_of(sequence).is_right(gold, answer)
    for answer in ([0, 2, 1, 3, 0], [0, 1, 2, 0], []):
        assert not task_of(cycle).is_right(gold, answer)
        assert task_of(cycle).mistakes(gold, answer) == {"expected": gold.pointers, "got": answer}
    assert task_of(sequence).is_right(gold, [0, 1, 2, 3, 0])


POLYGON = Pointers("corners", "points", figure_style="polygon")


@pytest.mark.parametrize("kind", [Pointers("names"), Pointers(axis="word_count", cyclic=True), POLYGON])
def test_a_manifest_has_the_axis_and_the_style_of_the_figure(kind: Pointers) -> None:
    again = head_answer_from(kind.manifest(), None)
    assert isinstance(again, Pointers)
    assert vars(again) == vars(kind)
    assert kind.figure_style == (None if kind.points is None else "polygon")


@pytest.mark.parametrize("changes", [{"figure_style": "hull"}, {"figure_style": 3}, {"figure_style": None}])
def test_an_unknown_style_of_the_figure_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"figure_style: .* is neither line nor polygon"):
        head_answer_from(Pointers("corners", "points").manifest() | changes, None)
