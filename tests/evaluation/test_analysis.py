"""Confusion, kinds of span errors, calibration and findings, against scikit-learn, torchmetrics and brute force."""

import random
import re
from collections import Counter
from typing import Any

import pytest
import torch
from room_calls import calls_between_rooms
from sklearn.metrics import confusion_matrix
from torchmetrics.classification import BinaryCalibrationError

from seqpipe.answers.classification import Label, LabelTask
from seqpipe.answers.comparison import MISSED, RIGHT, SPAN_KINDS, SPURIOUS, pair_spans
from seqpipe.answers.metrics.f1 import SpanCounter
from seqpipe.answers.tagging import Spans, SpansTask
from seqpipe.answers.text import Text, TextTask
from seqpipe.evaluation.analysis import calibration, confusion, errors, judge, scored, training_findings
from seqpipe.features.sources import TextSource
from seqpipe.report.plots import histogram
from seqpipe_plugins.tokenizers.words import WordsTokenizer

NAMES = ("food", "mood", "wood")


def judged_labels(count: int) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Rows of `judge` for random labels, with the labels of the references and of the answers."""
    dice = random.Random(5)
    gold, got = (dice.choices(NAMES, (3, 2, 1), k=count) for _ in range(2))
    rows = [
        {"set": "test", "record": {"text": f"w{i}", "label": a}, "answer": {"label": b, "score": dice.random()}}
        for i, (a, b) in enumerate(zip(gold, got, strict=True))
    ]
    source = TextSource(WordsTokenizer().train([["w1"]]), {})
    return [*judge(LabelTask(Label(NAMES)), source, rows)], gold, got


def test_the_confusion_of_labels_is_that_of_scikit_learn_and_the_most_confident_errors_come_first() -> None:
    rows, gold, got = judged_labels(300)
    counted = {(row["gold"], row["predicted"]): row["count"] for row in confusion(rows)}
    expected = confusion_matrix(gold, got, labels=NAMES)
    assert counted == {(a, b): expected[i, j] for i, a in enumerate(NAMES) for j, b in enumerate(NAMES)}
    assert all({"set", "gold", "predicted", "count"} == row.keys() for row in confusion(rows))
    wrong = errors(rows)
    assert len(wrong) == sum(a != b for a, b in zip(gold, got, strict=True))
    assert [row["wrongness"] for row in wrong] == sorted((row["wrongness"] for row in wrong), reverse=True)
    assert all(row["score"] == row["wrongness"] == row["answer"]["score"] for row in wrong)
    assert {row["tokens"] for row in wrong} == {1}


def test_calls_between_subpackages_are_for_chunks_of_answers() -> None:
    source, spans = TextSource(WordsTokenizer().train([["w1"]]), {}), SpansTask(Spans(["O", "B-PER", "I-PER"]))
    answers: list[tuple[Any, list[dict[str, Any]]]] = []
    for task, target, answer in (
        (LabelTask(Label(NAMES)), {"label": "food"}, {"label": "wood", "score": 0.5}),
        (spans, {"spans": [{"label": "PER", "start": 0, "end": 2}]}, []),
        (spans, {"words": ["a", "b"], "tags": ["O", "B-PER"]}, []),
        (TextTask(Text(WordsTokenizer().train(["a b"]))), {"target": "b a"}, {"generated_text": "b", "score": 0.5}),
    ):
        answers.append((task, [{"set": "test", "record": {"text": "a b", **target}, "answer": answer}]))
    for task, rows in answers:
        counts = []
        for times in (50, 200):

            def analyse(task: Any = task, answers: Any = rows * times) -> None:
                judged = [*judge(task, source, answers)]
                assert len(errors(judged)) == len(answers)
                assert confusion(judged) or isinstance(task, TextTask)
                scored(judged)

            counts.append(calls_between_rooms(analyse))
        assert counts[0] == counts[1]
        assert ("evaluation", "answers: compare_answers") in counts[0]


@pytest.mark.parametrize(
    ("gold", "got", "kinds"),
    [
        ([("A", 0, 5)], [("A", 0, 5)], [RIGHT]),
        ([("A", 0, 5)], [("B", 0, 5)], ["wrong type"]),
        ([("A", 0, 5)], [("A", 0, 4)], ["wrong boundary"]),
        ([("A", 0, 5)], [("B", 3, 9)], ["wrong type and boundary"]),
        ([("A", 0, 5)], [], [MISSED]),
        ([], [("A", 0, 5)], [SPURIOUS]),
        ([("A", 0, 5)], [("A", 5, 9)], [MISSED, SPURIOUS]),
        # The answer that is right takes the reference, and the other one beside it is spurious.
        ([("A", 0, 5)], [("A", 0, 3), ("A", 0, 5)], [RIGHT, SPURIOUS]),
        ([("A", 0, 9)], [("A", 0, 2), ("A", 3, 9)], ["wrong boundary", SPURIOUS]),
        ([("A", 0, 5), ("B", 0, 5)], [("B", 0, 5)], [RIGHT, MISSED]),
    ],
)
def test_planted_errors_of_spans_have_their_kind(gold: list[Any], got: list[Any], kinds: list[str]) -> None:
    assert [kind for kind, _, _ in pair_spans(gold, got)] == kinds


def test_kinds_of_span_errors_add_up_to_the_counts_of_the_scores() -> None:
    dice = random.Random(3)

    def spans() -> list[tuple[str, int, int]]:
        starts = sorted(dice.sample(range(0, 60, 3), dice.randint(0, 6)))
        return [(dice.choice("AB"), start, start + dice.randint(1, 3)) for start in starts]

    counter, counts = SpanCounter(), Counter[str]()
    for _ in range(200):
        gold, got = spans(), spans()
        counter.add(gold, got)
        counts.update(kind for kind, _, _ in pair_spans(gold, got))
    scores = counter.result()
    assert counts.keys() == {*SPAN_KINDS}
    assert counts[RIGHT] == scores["correct"]
    assert counts.total() - counts[SPURIOUS] == scores["gold"]
    assert counts.total() - counts[MISSED] == scores["predicted"]


def test_the_calibration_error_is_that_of_torchmetrics_and_of_its_definition() -> None:
    dice = random.Random(1)
    pairs = [(score, dice.random() < score**2) for score in (dice.random() for _ in range(1000))]
    scores, right = torch.tensor([pair[0] for pair in pairs]), torch.tensor([pair[1] for pair in pairs])
    measured = calibration(pairs)
    assert measured["ece"] == pytest.approx(float(BinaryCalibrationError(n_bins=15)(scores, right.int())), abs=1e-6)
    brute = 0.0
    for lower in range(15):
        inside = [(s, r) for s, r in pairs if lower / 15 < s <= (lower + 1) / 15]
        brute += abs(sum(r for _, r in inside) - sum(s for s, _ in inside)) / len(pairs)
    assert measured["ece"] == pytest.approx(brute)
    assert measured["ece"] > 0.1
    assert sum(row["count"] for row in measured["bins"]) == measured["count"] == 1000
    assert calibration([])["ece"] is None


def test_a_histogram_counts_every_value_once() -> None:
    rows, _, _ = judged_labels(100)
    page = histogram("Scores", scored(rows), [i / 10 for i in range(11)], "probability")
    description = page[: page.index("</desc>")].partition("<desc>")[2]
    counted = [(int(right), int(wrong)) for right, wrong in re.findall(r"(\d+) right, (\d+) wrong", description)]
    assert sum(map(sum, counted)) == 100
    assert sum(right for right, _ in counted) == sum(row["right"] for row in rows)


def epoch(number: int, loss: float, dev_loss: float, encoder: float | None = 1.0, **more: Any) -> dict[str, Any]:
    row = {"epoch": number, "step": number, "loss": loss, "best": number == 1, "lr": 1.0}
    dev = {"accuracy": 0.7, "loss": dev_loss}
    return {**row, "dev": dev, "gradients": {"encoder": encoder, "head": 1.0}, **more}


CALM = epoch(1, 1.0, 1.0)


@pytest.mark.parametrize(
    ("history", "kinds"),
    [
        ([], []),
        ([CALM, epoch(2, 0.5, 0.9)], []),
        ([CALM, epoch(2, 5.0, 5.0, 500.0)], ["explodes"]),
        ([CALM, epoch(2, 5.0, 5.0, None)], ["explodes"]),
        ([epoch(1, 1.0, 1.0, 1e-8), epoch(2, 1.0, 1.0, 1e-8)], ["vanishes"]),
        ([CALM, epoch(2, 0.1, 2.0)], ["overfits"]),
        ([epoch(1, 1.0, 1.0, train={"accuracy": 0.99})], ["overfits"]),
    ],
)
def test_planted_explosions_vanishing_gradients_and_overfitting_are_found(history: list[Any], kinds: list[str]) -> None:
    findings = training_findings(history, "accuracy")
    assert [finding["kind"] for finding in findings] == kinds
    if kinds == ["overfits"] and len(history) == 2:
        text = "after epoch 1 the dev loss rises from 1 to 2 while the training loss falls from 1 to 0.1"
        assert text in findings[0]["text"]
