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
from factory import QUIET, Watched, seqpipe, train_run, write_jsonl
from independent import Bundle, same

from seqpipe import load
from seqpipe.answers.pointers import PointerGold, Pointers, PointersTask, same_cycle
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.config.loader import load as load_config
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError
from seqpipe.pipeline.full_run import run_all
from seqpipe.training.datasets import Batches, epoch_examples, examples, read
from seqpipe.training.fit import fit_artifacts

WORDS = ("red", "green", "Blue", "Pink", "grey", "Gold", "teal", "Ruby")
LONGER = "red Gold green teal red grey red Ruby"  # than any that `capitals` makes
POINTS: dict[str, Any] = {"field": "points", "embedding": {"use": "linear", "dim": 16}}
HULL = {"use": "pointer", "task": "hull", "close": True, "hidden": 16, "score": "bilinear"}


def capitals(count: int, seed: int) -> list[dict[str, Any]]:
    """Words, and the positions of those with a capital, from the last to the first."""
    dice, made = random.Random(seed), []
    for _ in range(count):
        words = dice.choices(WORDS, k=dice.randint(1, 6))
        chosen = [i for i, word in enumerate(words) if word[0].isupper()]
        made.append({"text": " ".join(words), "names": chosen[::-1]})
    return made


def write(folder: Path, name: str, **changes: Any) -> Path:
    """The YAML of a small pipeline, with what it reads."""
    content: dict[str, Any] = {
        "name": name,
        "train": {"epochs": 8, "batch_tokens": 128, "optimizer": {"use": "adamw", "lr": 0.01}, "threads": 1},
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(dump(content))
    return path


def of_words(folder: Path, **changes: Any) -> Path:
    for part, count, seed in (("train", 300, 1), ("dev", 30, 2), ("test", 40, 3)):
        longer = [{"text": LONGER, "names": [7, 1]}] if part == "test" else []
        write_jsonl(folder / f"{part}.jsonl", longer + capitals(count, seed))
    given: dict[str, Any] = {
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": {"use": "words"},
        "embedding": {"use": "lookup", "dim": 12},
        "encoder": {"use": "lstm", "hidden": 12},
        "head": {"use": "pointer", "target": "names", "hidden": 12, "score": "bilinear"},
        "export": {"explain": True},
    }
    return write(folder, "names", **(given | changes))


def of_points(folder: Path, **changes: Any) -> Path:
    for part, records, seed in (("train", 200, 5), ("dev", 30, 6)):
        recipe = {"task": "hull", "points": [3, 6], "records": records, "seed": seed}
        (folder / f"{part}.json").write_text(json.dumps(recipe))
    given = {"data": {"reader": "points", "train": "train.json", "dev": "dev.json"}, "inputs": {"it": POINTS}}
    return write(folder, "corners", **({**given, "head": HULL} | changes))


def bundle_of(path: Path) -> Path:
    torch.set_num_threads(1)
    with contextlib.chdir(path.parent):
        run_all(load_config(path), QUIET, "cpu")
    return path.parent / "runs" / path.stem / "bundle"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(of_words(tmp_path_factory.mktemp("names")))


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(of_points(tmp_path_factory.mktemp("corners")))


def test_words_are_chosen_in_the_order_that_was_learned(names: Path) -> None:
    model = load(names, "cpu")
    assert model.manifest.metrics["test"]["exact_match"] > 0.9
    answer = model("red Gold green Ruby")
    assert (answer["pointers"], answer["words"]) == ([3, 1], ["Ruby", "Gold"])
    assert 0 < answer["score"] <= 1
    assert model("") == {"pointers": [], "words": [], "score": 1.0}


def test_an_answer_to_an_input_longer_than_any_in_training_says_so(names: Path, corners: Path, tmp_path: Path) -> None:
    model = load(names, "cpu")
    assert model.manifest.limits.trained == 6
    warning = "longer than any input in training (8 tokens; at most 6 in training)"
    assert model(LONGER)["warning"] == model.explain(LONGER).answer["warning"] == warning
    assert [one["warning"] for one in model(LONGER, beams=3, n_best=3)] == [warning] * 3
    assert "warning" not in model(" ".join(LONGER.split()[:6]))
    assert [example.answer for example in model.manifest.golden if "warning" in str(example.answer)] == []
    points = [[i / 8, i % 2] for i in range(7)]
    assert load(corners, "cpu")({"points": points})["warning"].startswith("longer than any input in training (7 tokens")
    (tmp_path / "in.txt").write_text(f"red Gold\n{LONGER}\n{LONGER}\n")
    done = seqpipe("predict", names, "-i", tmp_path / "in.txt", "--device", "cpu")
    assert [json.loads(line).get("warning") for line in done.out.splitlines()] == [None, warning, warning]
    assert done.err == f"warning: input 2 is {warning}; each such answer has the key 'warning'\n"


def test_several_answers_stand_best_first(names: Path) -> None:
    model = load(names, "cpu")
    several = model("red Gold", beams=9, n_best=9)
    assert len(several) == 5  # of two words: none, one, the other, both in two orders
    assert [one["score"] for one in several] == sorted((one["score"] for one in several), reverse=True)
    assert sum(one["score"] for one in several) == pytest.approx(1, abs=1e-4)
    assert model("", beams=2, n_best=2) == [{"pointers": [], "words": [], "score": 1.0}]


@pytest.mark.parametrize("which", ["names", "corners"])
def test_a_runtime_written_from_the_page_answers_the_same(which: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(which)
    ours, theirs = load(path, "cpu"), Bundle(path)
    given: list[Any] = [record["text"] for record in capitals(30, 9)] + ["", "Ruby", LONGER]
    if which == "corners":
        dice = random.Random(1)
        given = [{"points": [[dice.random(), dice.random()] for _ in range(n)]} for n in (3, 5, 1, 0, 9, 2, 30)]
    for options in ({}, {"beams": 4, "n_best": 3}):
        for record in given:
            assert same(ours(record, **options), theirs(record, **options))


def test_the_bundle_scores_as_the_run_did(corners: Path) -> None:
    done = seqpipe("evaluate", corners, "--data", corners.parents[2] / "dev.json", "--device", "cpu", "--json")
    scores = load(corners, "cpu").manifest.metrics["dev"]
    assert [*json.loads(done.out).values()] == [scores]
    assert [*scores] == ["hull_accuracy", "area_covered", "valid", "exact_match", "position_accuracy"]


def test_what_is_wrong_is_listed(corners: Path, tmp_path: Path) -> None:
    data = tmp_path / "some.txt"
    data.write_text("0 0 1 0 1 1 0 1 output 1 2 3 4 1\n0 0 1 0 1 1 output 2 3 1 2\n0 0 1 0 0 1 1 1 output 1 2 3 1\n")
    done = seqpipe("evaluate", corners, "--data", data, "--errors", tmp_path / "wrong", "--device", "cpu")
    assert done.code == 0, done.err
    wrong = [json.loads(line) for line in (tmp_path / "wrong").read_text().splitlines()]
    assert f"{data}:2" not in [row["where"] for row in wrong]  # of three points there is one polygon
    assert wrong[-1]["expected"] == [0, 1, 2, 0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_points_have_the_only_hull_there_is(corners: Path, count: int) -> None:
    dice = random.Random(count)
    model = load(corners, "cpu")
    for _ in range(20):
        points = [[dice.random(), dice.random()] for _ in range(count)]
        pointers = model({"points": points})["pointers"]
        assert sorted(pointers[:-1]) == [*range(count)]
        assert pointers[0] == pointers[-1]


def test_points_on_one_place_have_an_answer(corners: Path) -> None:
    for points in ([[0.5, 0.5]] * 4, [[0, 0], [1, 0], [1, 0], [0, 1]]):
        pointers = load(corners, "cpu")({"points": points})["pointers"]
        assert pointers[0] == pointers[-1]
        assert len(pointers) >= 4


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"points": [[0, 1e999]]}', ":1: field 'points' has a number that is not finite"),
        ('{"points": [[0, NaN]]}', ":1: not JSON"),
        ('{"points": [[0, 1, 2]]}', ":1: field 'points' has rows of 3 numbers, but the training data had 2; give 2"),
        ('{"points": [[0, 1], [2]]}', ":1: field 'points' must have rows of numbers of one length"),
        ('{"points": "a"}', ":1: field 'points' must have rows of numbers"),
    ],
)
def test_points_that_are_none_are_told_with_their_line(corners: Path, tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "in.jsonl").write_text(line + "\n")
    done = seqpipe("predict", corners, "-i", tmp_path / "in.jsonl", "--device", "cpu")
    assert done.code == 3
    assert f"{tmp_path / 'in.jsonl'}{told}" in done.err


@pytest.mark.parametrize(
    ("names", "changes", "told"),
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
def test_positions_that_cannot_be_learned_are_told_with_their_line(
    tmp_path: Path, names: Any, changes: Mapping[str, Any], told: str
) -> None:
    path = of_words(tmp_path, head={"use": "pointer", "target": "names", **changes})
    right = [2, 0, 1, 2] if "close" in changes else [2, 0, 1]
    records = [{"text": "red Gold blue", "names": right}] * 2 + [{"text": "red Gold blue", "names": names}]
    write_jsonl(tmp_path / "train.jsonl", records)
    config = load_config(path)
    with pytest.raises(DataError) as caught:
        examples(config, fit_artifacts(config, read(config.data.reader, config.data.train)), records_of(config))
    assert str(caught.value).startswith(f"{tmp_path / 'train.jsonl'}:3: ")
    assert told in str(caught.value)


def records_of(config: Any) -> list[Any]:
    return read(config.data.reader, config.data.train)


def test_a_hull_of_points_on_one_line_is_refused(tmp_path: Path) -> None:
    path = of_points(tmp_path)
    (tmp_path / "train.txt").write_text("0 0 1 0 0 1 output 1 2 3 1\n0 0 1 1 2 2 output 1 3 1\n")
    config = load_config(path, ["data.train=train.txt"])
    with pytest.raises(DataError, match=r"train\.txt:2: .*has 2 positions, but needs 3: remove it"):
        examples(config, fit_artifacts(config, records_of(config)), records_of(config))


def test_a_task_of_the_plane_needs_points(tmp_path: Path) -> None:
    config = load_config(of_words(tmp_path, head=HULL | {"target": "names"}))
    with pytest.raises(ConfigError, match="its task needs points, but this input is a text; give points"):
        fit_artifacts(config, records_of(config))


def test_sentences_cannot_be_pointed_at(tmp_path: Path) -> None:
    config = load_config(of_words(tmp_path, encoder={"use": "sentences", "hidden": 4}))
    with pytest.raises(ConfigError, match="it points at tokens, words or rows of numbers"):
        fit_artifacts(config, records_of(config))


def test_behind_pieces_made_words_it_points_at_words(tmp_path: Path) -> None:
    pieces = {"tokenizer": {"use": "wordpiece", "max_size": 24}, "encoder": ["lstm", "words"]}
    path = bundle_of(of_words(tmp_path, **pieces))
    model, theirs = load(path, "cpu"), Bundle(path)
    assert model.manifest.answer["axis"] == "word_count"
    for record in capitals(20, 8):
        answer = model(record["text"])
        assert answer["words"] == [record["text"].split()[at] for at in answer["pointers"]]
        assert same(answer, theirs(record["text"]))


def test_each_epoch_of_a_recipe_has_its_own_points_whatever_ran_before(tmp_path: Path) -> None:
    config = load_config(of_points(tmp_path))
    artifacts = fit_artifacts(config, records_of(config))
    first = examples(config, artifacts, records_of(config))
    batches, other = (Batches(artifacts, first, 64, None, 1, epoch_examples(config, artifacts)) for _ in range(2))
    one = [[batches(rows)["matrix"] for rows in batches.order(epoch)] for epoch in (0, 1, 2, 1)]
    assert not any(torch.equal(a, b) for a, b in zip(one[0], one[1], strict=False))
    straight = [other(rows)["matrix"] for rows in other.order(1)]
    for again in (one[1], one[3]):
        assert all(torch.equal(a, b) for a, b in zip(again, straight, strict=True))
    assert epoch_examples(load_config(of_words(tmp_path)), artifacts) is None


def test_stopped_in_a_later_epoch_training_ends_bit_equal(tmp_path: Path) -> None:
    weights = []
    for stops in (False, True):
        folder = tmp_path / str(stops)
        folder.mkdir()
        config = load_config(of_points(folder), ["train.epochs=3", "train.checkpoint_steps=1"])
        artifacts = fit_artifacts(config, records_of(config))
        first = Batches(artifacts, examples(config, artifacts, records_of(config)), 128, None, config.train.seed)
        last = 2 * len(first.order(0)) - 2  # in the second epoch

        def cut(count: int, last: int = last) -> None:
            if count == last:
                raise InterruptedError

        with contextlib.chdir(folder):
            if stops:
                with pytest.raises(InterruptedError):
                    train_run(config, Watched(cut))
            weights.append(train_run(config).state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_numbers_may_be_taken_as_they_are(tmp_path: Path) -> None:
    plain = {**POINTS, "embedding": {"use": "linear", "dim": 16, "normalise": False}}
    made = []
    for inputs in (POINTS, plain):
        config = load_config(of_points(tmp_path, inputs={"it": inputs}))
        artifacts = fit_artifacts(config, records_of(config))
        doc = artifacts.featurizer.docs([{"points": [[0.25, 3], [1, 0]]}])
        made.append(artifacts.featurizer.collate(doc)["matrix"][0])
    assert np.array_equal(made[1], np.array([[0.25, 3], [1, 0]], np.float32))
    assert not np.allclose(made[0], made[1], atol=0.1)


def test_points_and_the_way_are_drawn(corners: Path, tmp_path: Path) -> None:
    given = json.dumps({"points": [[0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5]]})
    for ending in ("html", "json"):
        done = seqpipe("explain", corners, given, "-o", tmp_path / f"it.{ending}", "--device", "cpu")
        assert done.code == 0, done.err
    page = (tmp_path / "it.html").read_text()
    pointers = json.loads((tmp_path / "it.json").read_text())["answer"]["pointers"]
    assert page.count("<circle") == 5
    assert page.count("<polyline") == 1
    places = {0: "40.0,520.0", 1: "520.0,520.0", 2: "520.0,40.0", 3: "40.0,40.0", 4: "280.0,280.0"}
    assert f'points="{" ".join(places[at] for at in pointers)}"' in page
    assert 'cx="280.0" cy="280.0"' in page


def test_what_was_likely_at_each_step_is_shown(names: Path, tmp_path: Path) -> None:
    found = load(names, "cpu").explain("red Gold green Ruby")
    (weights,) = found.attentions
    assert (weights.over, weights.written) == ("written", ("Ruby", "Gold"))
    assert [row.argmax() for row in weights.weights[0]] == [3, 1]
    done = seqpipe("explain", names, "red Gold", "-o", tmp_path / "it.html", "--device", "cpu")
    assert done.code == 0, done.err


def test_rows_of_three_numbers_have_no_picture(tmp_path: Path) -> None:
    rows = [{"points": [[i, j, 1] for j in range(3)], "pointers": [2, 1, 0]} for i in range(8)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    path = bundle_of(
        of_points(
            tmp_path,
            data={"reader": {"use": "jsonl", "text": None}, "train": "train.jsonl"},
            head={"use": "pointer", "every": True, "hidden": 8},
        )
    )
    model = load(path, "cpu")
    assert sorted(model({"points": [[1, 2, 3], [4, 5, 6]]})["pointers"]) == [0, 1]
    assert model.explain({"points": [[1, 2, 3], [4, 5, 6]]}).figure is None


def test_it_may_stand_beside_other_heads(tmp_path: Path) -> None:
    heads = [{"use": "pointer", "target": "names", "hidden": 8}, {"use": "label", "target": "first"}]
    path = of_words(tmp_path, head=heads, export={})
    for part in ("train", "dev", "test"):
        rows = [json.loads(line) for line in (tmp_path / f"{part}.jsonl").read_text().splitlines()]
        write_jsonl(tmp_path / f"{part}.jsonl", [{**row, "first": row["text"][0]} for row in rows])
    found = bundle_of(path)
    model, theirs = load(found, "cpu"), Bundle(found)
    assert {*model("red Gold")} == {"pointer", "label"}
    for record in [row["text"] for row in capitals(10, 8)] + [""]:
        for options in ({}, {"pointer.beams": 3, "pointer.n_best": 2}):
            assert same(model(record, **options), theirs(record, **options))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_learns_in_any_precision_of_a_processor(tmp_path: Path, precision: str) -> None:
    config = load_config(of_words(tmp_path), [f"train.precision={precision}", "train.epochs=2"])
    with contextlib.chdir(tmp_path):
        train_run(config)
        rows = map(json.loads, (tmp_path / "runs/names/checkpoints/metrics.jsonl").read_text().splitlines())
    losses = [row["loss"] for row in rows]
    assert losses[1] < losses[0]


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


@pytest.mark.parametrize(
    "kind",
    [
        Pointers("names"),
        Pointers(axis="word_count", cyclic=True),
        Pointers("corners", "points", figure_style="polygon"),
    ],
)
def test_a_bundle_states_what_is_pointed_at_and_how_it_is_drawn(kind: Pointers) -> None:
    again = head_answer_from(kind.manifest(), None)
    assert isinstance(again, Pointers)
    assert vars(again) == vars(kind)
    assert kind.figure_style == (None if kind.points is None else "polygon")


@pytest.mark.parametrize("changes", [{"figure_style": "hull"}, {"figure_style": 3}, {"figure_style": None}])
def test_a_way_of_drawing_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"figure_style: .* is neither line nor polygon"):
        head_answer_from(Pointers("corners", "points").manifest() | changes, None)
