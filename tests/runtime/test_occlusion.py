"""Importances by occlusion: of toys whose answers a person can compute, and of a model whose label one word decides.

The toy tagger knows each word by itself: a known one with SURE, an unknown one as outside with GUESS.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import GUESS, SURE
from gallery import gallery
from tiny_pipelines import fail_with, labelled_texts, seqpipe, succeed, write_jsonl

from seqpipe import Model, load
from seqpipe.errors import UsageError
from seqpipe.explain.html import page
from seqpipe.runtime.explanation import MOST_UNITS

KEYS = {"awful", "sad", "fair", "usual", "lovely", "glad"}


@pytest.fixture(scope="module")
def labeller() -> Model:
    """A model of texts whose label one of their words gives away."""
    return load(gallery("label").bundle, "cpu", threads=1)


def test_an_importance_is_the_drop_of_the_log_probability_without_the_word(labeller: Model) -> None:
    words = ["a", "lovely", "x", "day", "but", "sad"]

    def log_p(some: list[str], label: str) -> float:
        scores = {answer["label"]: answer["score"] for answer in labeller({"words": some}, n_best="all")}
        return float(np.log(scores[label]))

    explanation = labeller.explain(" ".join(words))
    (importance,) = explanation.attentions
    label = explanation.answer["label"]
    expected = [log_p(words, label) - log_p(words[:i] + words[i + 1 :], label) for i in range(len(words))]
    assert importance.weights.tolist() == pytest.approx(expected, abs=1e-3)  # an answer has six digits
    assert [explanation.text[a:b] for a, b in importance.places] == words
    assert (importance.label, importance.measure) == (label, "log-probability")


def test_a_planted_word_comes_first_in_texts_and_for_its_label(labeller: Model) -> None:
    records = labelled_texts(30, 7)
    for record in records:
        (importance,) = labeller.explain(record["text"], faithfulness=False).attentions
        start, end = importance.places[int(importance.weights.argmax())]
        assert record["text"][start:end] in KEYS
    rows = labeller.explain_data(records, top=2)
    assert {row["word"] for row in rows} == KEYS
    assert [row["label"] for row in rows] == ["bad", "bad", "fine", "fine", "good", "good"]
    awful = sum("awful" in record["text"] for record in records)
    assert [row["count"] for row in rows if row["word"] == "awful"] == [awful]


def test_the_deletion_curve_falls_faster_than_in_random_order(labeller: Model) -> None:
    explanation = labeller.explain("a lovely x day")
    curve = explanation.faithfulness
    assert curve is not None
    assert curve["deleted"] == [0, 0.25, 0.5, 0.75, 1]
    order = np.argsort(-explanation.attentions[0].weights, kind="stable")
    words = np.array(["a", "lovely", "x", "day"])
    for scores, count in zip(curve["scores"], range(4), strict=False):
        left = [word for i, word in enumerate(words) if i not in order[:count]]
        answers = labeller({"words": left}, n_best="all")
        (score,) = [a["score"] for a in answers if a["label"] == explanation.answer["label"]]
        assert scores == pytest.approx(score, abs=2e-6)
    assert curve["area"] == pytest.approx(np.trapezoid(curve["scores"], curve["deleted"]), abs=1e-5)
    assert curve["area"] < curve["random"] - 0.1
    assert curve == labeller.explain("a lovely x day").faithfulness  # the random orders have a seed
    assert labeller.explain("a lovely x day", faithfulness=False).faithfulness is None


def test_a_word_that_speaks_against_an_answer_is_below_0_and_drawn_as_such(labeller: Model) -> None:
    explanation = labeller.explain("a lovely sad day")
    (importance,) = explanation.attentions
    weights = {explanation.text[a:b]: w for (a, b), w in zip(importance.places, importance.weights, strict=True)}
    decides, against = ("lovely", "sad") if explanation.answer["label"] == "good" else ("sad", "lovely")
    assert weights[decides] > 0 > weights[against]
    source = page(explanation)
    assert f'<mark class="heat" title="{weights[decides]:.3f}"' in source
    assert f'<mark class="heat against" title="{weights[against]:.3f}"' in source
    assert "Importance of each word of the input" in source
    assert f"  {weights[against]:+.4f}  {against}" in explanation.table()


def test_a_span_or_tag_has_the_importance_of_each_word_for_it(tiny: Model, tiny_tagger: Model) -> None:
    explanation = tiny.explain("Anna in New York")
    anna, city = explanation.attentions
    assert (anna.label, city.label, anna.measure) == ("person", "city", "probability")
    assert city.name == f"New York: city ({SURE**2:.4f}) at 8"
    # An unknown word is outside with GUESS, so no tag of a span has more than the rest.
    assert anna.weights.tolist() == pytest.approx([SURE - (1 - GUESS), 0, 0, 0], abs=1e-6)
    assert city.weights.tolist() == pytest.approx([0, 0] + [SURE**2 - (1 - GUESS)] * 2, abs=1e-6)
    assert tiny.explain("in in").attentions == tiny.explain("").attentions == ()
    parts = tiny_tagger.explain("Anna calls Ben").attentions
    assert [part.label for part in parts] == ["B-person", "O", "B-person"]
    expected = np.diag([SURE - (1 - GUESS), SURE - GUESS, SURE - (1 - GUESS)])
    assert np.array([part.weights for part in parts]) == pytest.approx(expected, abs=1e-6)


def test_a_vector_has_the_loss_of_its_cosine(vector_bundle: Path) -> None:
    model = load(vector_bundle, "cpu", threads=1)
    (importance,) = model.explain("Anna in Ben").attentions
    whole = np.array(model("Anna in Ben")["vector"])
    for weight, rest in zip(importance.weights, ("in Ben", "Anna Ben", "Anna in"), strict=True):
        part = np.array(model(rest)["vector"])
        cosine = whole @ part / np.linalg.norm(whole) / np.linalg.norm(part)
        assert weight == pytest.approx(1 - cosine, abs=1e-5)


def test_neighbours_of_a_long_text_are_left_out_together(tiny: Model) -> None:
    (first, *_) = tiny.explain("Anna " + "in " * 2 * MOST_UNITS, faithfulness=False).attentions
    assert MOST_UNITS / 2 < len(first.places) <= MOST_UNITS
    assert first.places[0] == (0, len("Anna in in"))
    assert first.weights.argmax() == 0


def test_several_answers_are_refused(labeller: Model) -> None:
    with pytest.raises(UsageError, match="n_best: only the best answer is explained"):
        labeller.explain("a day", n_best=2)


def test_the_command_explains_several_texts_files_and_data(tmp_path: Path) -> None:
    texts, bundle = ["a sad x day", "a glad day"], gallery("label").bundle
    lines = succeed("explain", bundle, *texts, "--json")
    explanations = [json.loads(line) for line in lines.out.splitlines()]
    assert [explanation["text"] for explanation in explanations] == texts
    assert {*explanations[0]["faithfulness"]} == {"deleted", "scores", "area", "random"}
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    assert seqpipe("explain", bundle, "--file", tmp_path / "texts.txt", "--json").out == lines.out
    single = seqpipe("explain", bundle, texts[0])
    assert "drop of its log-probability without each word:\n" in single.out
    assert "area under the deletion curve: " in single.out
    command = ("explain", bundle, "--data", write_jsonl(tmp_path / "data.jsonl", labelled_texts(12, 4)), "--top", "1")
    head, *table = (line.split() for line in seqpipe(*command).out.splitlines())
    assert head == ["label", "word", "importance", "count"]
    rows = json.loads(seqpipe(*command, "--json").out)
    assert [line[:2] for line in table] == [[row["label"], row["word"]] for row in rows]


WRONG_ARGUMENTS = [
    ([], "give texts, or one of --file and --data"),
    (["a text", "--data", "x.jsonl"], "give texts, or one of --file and --data"),
    (["a", "b", "-o", "page.html"], "a page shows one text"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_ARGUMENTS)
def test_the_command_refuses_what_it_cannot_show(arguments: list[str], message: str) -> None:
    fail_with(2, message, "explain", gallery("label").bundle, *arguments)
