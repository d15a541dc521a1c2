"""Who else is in a batch, and how many threads ask, changes no answer."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import TAG_OF, WORDS, Build
from tiny_pipelines import tiers

from seqpipe import Model, load
from seqpipe.runtime.opened import same_answer


def sentences(count: int) -> list[Any]:
    """Texts and split words of 0 to 60 words, many short and few long, known and unknown, in mixed order."""
    dice, records = random.Random(1), list[Any]()
    for i in range(count):
        length = dice.choice((0, 1, 2, 3, 5, 8, dice.randint(9, 60)))
        words = [dice.choice((*WORDS, "Zoe", "x" * dice.randint(1, 12), "诸葛")) for _ in range(length)]
        records.append({"words": words} if i % 3 == 0 else " ".join(words))
    return records


@pytest.fixture(scope="module", params=tiers(1_000, long=10_000))
def mixed(request: pytest.FixtureRequest) -> list[Any]:
    return sentences(request.param)


@pytest.fixture(scope="module")
def one_by_one(tiny: Model, mixed: list[Any]) -> list[Any]:
    return [tiny(sentence) for sentence in mixed]


def differing(answers: list[Any], expected: list[Any]) -> int:
    return sum(not same_answer(answer, alone) for answer, alone in zip(answers, expected, strict=True))


def test_the_answers_are_those_of_the_table(one_by_one: list[Any]) -> None:
    """The power of what follows: most sentences have spans, of every label."""
    labels = [span["entity_group"] for answer in one_by_one for span in answer]
    assert labels.count("person") > len(one_by_one) / 2
    assert labels.count("city") > len(one_by_one) / 2
    known = [span["word"] for answer in one_by_one for span in answer if span["word"] in TAG_OF]
    assert set(known) == {"Anna", "Ben", "Bern", "New", "York"}


@pytest.mark.parametrize("chunk", [1, 10, 1024])
def test_batches_are_answered_as_one_by_one(chunk: int, tiny: Model, mixed: list[Any], one_by_one: list[Any]) -> None:
    assert differing(tiny(mixed, chunk=chunk), one_by_one) == 0


def test_eight_threads_of_one_model_answer_as_one(tiny_bundle: Path, mixed: list[Any], one_by_one: list[Any]) -> None:
    model = load(tiny_bundle, "cpu", threads=8)
    assert differing(model(mixed, chunk=100), one_by_one) == 0


def test_eight_threads_at_once_are_answered_as_one(tiny: Model, mixed: list[Any], one_by_one: list[Any]) -> None:
    def ask(thread: int) -> int:
        first = thread * len(mixed) // 8
        answers = tiny(iter(mixed[first:] + mixed[:first]), chunk=50)
        return differing(list(answers), one_by_one[first:] + one_by_one[:first])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [0] * 8


def test_a_graph_in_which_the_longest_neighbour_counts_would_be_found(build: Build, tmp_path: Path) -> None:
    model = load(build(tmp_path / "leaky", leaks=True), "cpu", threads=1)
    asked = sentences(1_000)
    alone = [model(sentence) for sentence in asked]
    assert differing(model(asked), alone) > 100
