"""Scores against seqeval and against Levenshtein's table filled cell by cell."""

import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import sacrebleu
import sklearn.metrics
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.base import HeadAnswer
from seqpipe.answers.candidates import Vector
from seqpipe.answers.classification import Label, Labels, Score
from seqpipe.answers.metrics import numbers
from seqpipe.answers.metrics import text as text_metrics
from seqpipe.answers.metrics.f1 import SPLIT_TAG, SpanCounter
from seqpipe.answers.metrics.numbers import format_score, scores_table
from seqpipe.answers.registry import task_of
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.text import Text
from seqpipe.answers.types import Metric, Scores
from seqpipe.errors import UsageError
from seqpipe_plugins.tokenizers.chars import CharsTokenizer

WRITER = Text(CharsTokenizer().train(["a"]))
KINDS: dict[str, HeadAnswer] = {
    kind.kind: kind
    for kind in (Tags(("O",)), Spans(("O",)), Label(("a",)), Labels(("a",)), Score(), Vector(("a",)), WRITER)
}
TAGS = ["O", "O", "O", *(f"{prefix}-{label}" for prefix in "BI" for label in ("PER", "ORG", "a-b"))]


def tag_pairs(records: int, seed: int, noise: float = 0.2) -> tuple[list[list[str]], list[list[str]]]:
    """Random gold tags, and the same with some replaced."""
    dice = random.Random(seed)
    gold = [dice.choices(TAGS, k=dice.randint(1, 15)) for _ in range(records)]
    return gold, [[dice.choice(TAGS) if dice.random() < noise else tag for tag in tags] for tags in gold]


def scored(kind: str, gold: Iterable[Any], predicted: Iterable[Any]) -> Scores:
    counter = task_of(KINDS[kind]).counter()
    for pair in zip(gold, predicted, strict=True):
        counter.add(*pair)
    return counter.result()


def check_labels(scores: Scores, report: Any, names: Mapping[str, str]) -> None:
    """Compare the scores of labels with a report of seqeval or scikit-learn, which has them by these names."""
    assert scores["labels"].keys() == names.keys()
    for label, name in names.items():
        expected = [report[name][key] for key in ("f1-score", "precision", "recall", "support")]
        values = [scores["labels"][label][key] for key in ("f1", "precision", "recall", "gold")]
        assert values == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
def test_span_scores_are_the_micro_average_of_seqeval(noise: float) -> None:
    gold, predicted = tag_pairs(1_000, seed=1, noise=noise)
    scores = scored("spans", map(schemes.spans, gold), map(schemes.spans, predicted))
    for key, oracle in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert scores[key] == pytest.approx(oracle(gold, predicted), abs=1e-12)
    report = classification_report(gold, predicted, output_dict=True)
    check_labels(scores, report, {label: label for label in ("PER", "ORG", "a-b")})


def test_each_of_thousands_of_single_records_scores_as_in_seqeval() -> None:
    for gold, predicted in zip(*tag_pairs(2_000, seed=2), strict=True):
        if schemes.spans(gold) and schemes.spans(predicted):  # seqeval warns otherwise
            scores = scored("spans", [schemes.spans(gold)], [schemes.spans(predicted)])
            assert scores["f1"] == pytest.approx(f1_score([gold], [predicted], zero_division=0), abs=1e-12)


@pytest.mark.parametrize(("golden", "guessed"), [("abcd", "abcd"), ("abc", "abcd"), ("abcd", "bcd"), ("ab", "cd")])
def test_label_scores_are_those_of_scikit_learn(golden: str, guessed: str) -> None:
    dice = random.Random(5)
    gold, predicted = (dice.choices(labels, weights=(5, 3, 1, 1)[: len(labels)], k=500) for labels in (golden, guessed))
    scores = scored("label", gold, predicted)
    report = sklearn.metrics.classification_report(gold, predicted, output_dict=True, zero_division=0)
    assert list(scores) == ["accuracy", "macro_f1", "labels"]
    assert scores["accuracy"] == pytest.approx(report["accuracy"], abs=1e-12)
    assert scores["macro_f1"] == pytest.approx(report["macro avg"]["f1-score"], abs=1e-12)
    check_labels(scores, report, {label: label for label in {*golden, *guessed}})


def test_a_text_without_a_label_is_missed_and_is_no_label_of_its_own() -> None:
    scores = scored("label", "aa", [None, "a"])
    assert (scores["accuracy"], list(scores["labels"])) == (0.5, ["a"])
    assert scores["labels"]["a"]["predicted"] == 1


def test_scores_of_several_labels_are_those_of_scikit_learn() -> None:
    dice = random.Random(1)
    gold, predicted = ([[label for label in "abcd" if dice.random() < 0.3] for _ in range(200)] for _ in range(2))
    scores = scored("labels", gold, predicted)
    assert list(scores)[:3] == ["micro_f1", "macro_f1", "exact_match"]
    matrices = [[[label in labels for label in "abcd"] for labels in side] for side in (gold, predicted)]
    report = sklearn.metrics.classification_report(*matrices, output_dict=True, zero_division=0)
    for name, key in (("micro_f1", "f1-score"), ("precision", "precision"), ("recall", "recall")):
        assert scores[name] == pytest.approx(report["micro avg"][key], abs=1e-12)
    assert scores["macro_f1"] == pytest.approx(report["macro avg"]["f1-score"], abs=1e-12)
    assert scores["exact_match"] == pytest.approx(sklearn.metrics.accuracy_score(*matrices))
    check_labels(scores, report, {label: str(i) for i, label in enumerate("abcd")})
    empty = scored("labels", [[]], [[]])
    assert (empty["exact_match"], empty["micro_f1"], empty["labels"]) == (1.0, 0.0, {})


@pytest.mark.parametrize("far", [0.0, 1e8])
def test_scores_of_numbers_are_those_of_numpy_also_far_from_zero(far: float) -> None:
    dice = np.random.default_rng(4)
    gold = dice.normal(far, 3, 500)
    predicted = gold + dice.normal(0, 2, 500)
    errors = gold - predicted
    expected = {"r2": sklearn.metrics.r2_score(gold, predicted), "pearson": np.corrcoef(gold, predicted)[0, 1]}
    expected |= {"mae": np.abs(errors).mean(), "rmse": np.sqrt((errors**2).mean())}
    assert scored("score", gold.tolist(), predicted.tolist()) == pytest.approx(expected, abs=1e-6)


def test_a_text_without_a_number_is_counted_and_numbers_that_are_all_equal_explain_nothing() -> None:
    nothing = {"r2": 0.0, "pearson": 0.0, "mae": 0.0, "rmse": 0.0}
    assert scored("score", [], []) == nothing
    assert scored("score", [2.0, 2.0], [3.0, None]) == nothing | {"mae": 1.0, "rmse": 1.0, "unanswered": 1}


@pytest.mark.parametrize("block", [1, 7, 512])
def test_precision_at_one_is_of_the_nearest_neighbour_by_cosine(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "VECTORS_PER_BLOCK", block)
    dice = np.random.default_rng(5)
    labels, vectors = dice.choice(list("abc"), 60), dice.normal(0, 1, (60, 4)) * dice.uniform(0.1, 9, (60, 1))
    vectors[labels == "a", 0] += 2
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = (units @ units.T - 3 * np.eye(60)).argmax(1)
    right = (labels[nearest] == labels).sum()
    gold, predicted = labels.tolist(), vectors.tolist()
    assert scored("vector", gold, predicted) == {"precision_at_1": right / 60}
    assert scored("vector", [*gold, "a"], [*predicted, None]) == {"precision_at_1": right / 61}


def test_one_vector_has_no_neighbour_and_a_vector_of_zeros_is_counted() -> None:
    assert scored("vector", ["a"], [[0.0, 0.0]]) == {"precision_at_1": 0.0}
    assert scored("vector", ["a", "a"], [[0.0, 0.0], [1.0, 0.0]]) == {"precision_at_1": 1.0}


def test_only_fractions_are_shown_in_per_cent() -> None:
    lines = scores_table({"accuracy": 0.5, "mean_absolute_error": 1.25}, task_of(KINDS["label"]).metrics).splitlines()
    assert lines[1].split() == ["overall", "50.00", "1.25"]
    assert format_score("tour_length", 2.1341, {"tour_length": Metric(percent=False)}) == "2.134"
    assert format_score("topic.accuracy", 0.925, task_of(KINDS["label"]).metrics) == "92.50"


def test_a_span_is_right_as_a_whole_belongs_to_its_record_and_counts_once() -> None:
    scores = scored("spans", [[("PER", 0, 2)]], [[("PER", 0, 3)]])
    assert (scores["correct"], scores["f1"]) == (0, 0.0)
    scores = scored("spans", [[("A", 0, 1), ("A", 0, 1)], []], [[], [("A", 0, 1)]])
    assert (scores["gold"], scores["predicted"], scores["correct"]) == (1, 1, 0)


def test_span_scores_by_hand() -> None:
    scores = scored("spans", [[("A", 0, 1), ("B", 1, 2)], [("A", 0, 1)]], [[("A", 0, 1), ("A", 1, 2)], []])
    a = {"f1": 0.5, "precision": 0.5, "recall": 0.5, "gold": 2, "predicted": 2, "correct": 1}
    b = {"f1": 0.0, "precision": 0.0, "recall": 0.0, "gold": 1, "predicted": 0, "correct": 0}
    overall = {"f1": 0.4, "precision": 0.5, "recall": 1 / 3, "gold": 3, "predicted": 2, "correct": 1}
    assert scores == {**overall, "labels": {"A": a, "B": b}}


def words(*tags: str) -> list[schemes.Span]:
    """Tags of words of one letter each."""
    return [(tag, 2 * i, 2 * i + 1) for i, tag in enumerate(tags)]


def test_tag_scores_by_hand() -> None:
    scores = scored("tags", [words("N", "V"), words("N", "X")], [words("N", "N"), words("V", "X")])
    assert scores["accuracy"] == 0.5
    assert {tag: part["f1"] for tag, part in scores["labels"].items()} == {"N": 0.5, "V": 0.0, "X": 1.0}


def test_text_scores_are_over_all_characters() -> None:
    scores = scored("text", ["abcd", "日本"], ["abcd", "日木語"])
    names = ("exact_match", "character_error_rate", "token_accuracy")
    assert [scores[name] for name in names] == [0.5, 2 / 6, 2 / 4]  # of one token and three characters


@pytest.mark.parametrize(
    ("gold", "predicted", "wer", "per"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", 0, 0),
        ("the cat sat on the mat", "on the mat sat the cat", 4 / 6, 0),  # sat and the second the stay in place
        ("the cat sat on the mat", "the cat sat the mat", 1 / 6, 1 / 6),  # a word is missing
        ("the cat sat", "the big cat sat the", 2 / 3, 2 / 3),  # two are added
        ("a b c", "c x", 3 / 3, 2 / 3),  # replaced, replaced, missing; without order c is right
        ("a", "b c d", 3, 3),
        ("a b", "", 1, 1),
        ("床前 moon", "前床 moon", 2 / 3, 0),  # a Chinese character is a word
        ("", "a b", 0, 0),
    ],
)
def test_word_error_rates_by_hand(gold: str, predicted: str, wer: float, per: float) -> None:
    scores = scored("text", [gold], [predicted])
    assert (scores["wer"], scores["per"]) == pytest.approx((wer, per))


def test_word_error_rates_are_over_the_words_of_all_texts_and_take_the_best_reference() -> None:
    scores = scored("text", ["a b c d", ["x y", "b a"]], ["a b c", "a b"])
    assert (scores["wer"], scores["per"]) == (3 / 6, 1 / 6)  # 1 and 2 errors; 1 and, against "b a", none
    scores = scored("text", [["a b", "a b c d"]], ["a b c"])
    assert (scores["wer"], scores["per"]) == (1 / 4, 1 / 4)  # of references with as many errors the longest


def test_a_text_is_right_if_it_equals_one_of_its_references_and_less_errors_are_better() -> None:
    task = task_of(KINDS["text"])
    right = [task.is_right(gold, "a b") for gold in ("a b", ["x", "a b"], "a b c", ["a", "b"])]
    assert right == [True, True, False, False]
    lower = {name for name, metric in task.metrics.items() if not metric.more_is_better}
    assert lower == {"character_error_rate", "wer", "per", "perplexity"}
    assert task.metrics.keys() >= scored("text", ["a"], ["a"]).keys()


@pytest.mark.parametrize("tokenize", ["13a", "char", "intl", "none", "zh"])
def test_bleu_is_by_the_tokenizer_that_is_chosen(tokenize: str) -> None:
    gold, predicted = ["the cat (a tabby) isn't in, is it?"], ["the cat (a tabby), isn't in, it is?"]
    counts = text_metrics.TextCounter(bleu_tokenize=tokenize)
    counts.add(gold, *predicted)
    expected = sacrebleu.corpus_bleu(predicted, [gold], tokenize=tokenize).score / 100
    assert 0 < counts.result()["bleu"] == pytest.approx(expected)
    default = scored("text", gold, predicted)["bleu"]
    assert (counts.result()["bleu"] == default) == (tokenize in {"13a", "zh"})


def test_bleu_and_chrf_take_all_references_also_where_records_have_different_numbers() -> None:
    town, go = ["it rains today in the town"], ["no", "we must go now", "then we go home at once"]
    gold = [["a dog sat there", "the cat sat on the mat"], town, go]
    predicted = ["the cat sat on a mat", "it rains in the town", "we go home at once"]
    streams = [[references[i] if i < len(references) else None for references in gold] for i in range(3)]
    scores = scored("text", gold, predicted)
    for name, metric in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):
        expected = metric(predicted, streams).score / 100
        assert scores[name] == pytest.approx(expected)
        assert expected > metric(predicted, streams[:1]).score / 100 + 0.05
        assert expected > metric(predicted, streams[:2]).score / 100 + 0.005


def test_a_tokenizer_that_sacrebleu_lacks_or_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="bleu_tokenize: unknown tokenizer '13b'; did you mean '13a'"):
        text_metrics.TextCounter(bleu_tokenize="13b")
    monkeypatch.setattr(text_metrics, "has", lambda package: package == "sacrebleu")
    with pytest.raises(UsageError, match=r"ja-mecab needs MeCab and its dictionary: pip install 'sacrebleu\[ja\]'"):
        text_metrics.TextCounter(bleu_tokenize="ja-mecab")


def test_texts_with_blanks_before_their_periods_are_scored_without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"text number {i} ." for i in range(100)]
    assert scored("text", texts, texts)["bleu"] == pytest.approx(1.0)
    assert [record.getMessage() for record in caplog.records if record.name == "sacrebleu"] == []


def by_table(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[:], i
        for j, y in enumerate(b, 1):
            row[j] = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y))
    return row[-1]


@pytest.mark.parametrize("longest", [3, 12, 150])
def test_edit_distance_is_levenshteins(longest: int) -> None:
    dice = random.Random(longest)
    for _ in range(60_000 // longest**2 + 20):
        a, b = ("".join(dice.choices("ab𝒜語", k=dice.randint(0, longest))) for _ in "ab")
        if dice.random() < 0.5:
            b = a[: dice.randint(0, longest)] + b[:2] + a[dice.randint(0, longest) :]
        assert text_metrics.edit_distance(a, b) == by_table(a, b), (a, b)


@pytest.mark.parametrize(("kind", "empty"), [("spans", []), ("tags", []), ("text", "")])
def test_nothing_at_all_scores_zero_or_equal(kind: str, empty: Any) -> None:
    assert {value for value in scored(kind, [], []).values() if isinstance(value, float)} == {0.0}
    assert scored(kind, [empty], [empty]).get("exact_match", 1.0) == 1.0
    assert scored("text", [""], ["abc"])["character_error_rate"] == 0.0


def test_a_counter_keeps_no_records() -> None:
    counts = SpanCounter()
    for i in range(10_000):
        counts.add([("A", i, i + 1)], [("A", i, i + 1)])
    assert vars(counts) == {"sums": dict.fromkeys(itertools.product(("gold", "predicted", "correct"), "A"), 10_000)}


def test_a_word_that_the_model_splits_otherwise_has_no_tag_and_is_missed() -> None:
    gold = [("A", 0, 9), ("B", 10, 11)]
    scores = scored("tags", [gold], [[("A", 0, 4), ("A", 5, 9), ("B", 10, 11)]])
    counts = {tag: (part["gold"], part["predicted"]) for tag, part in scores["labels"].items()}
    assert (scores["accuracy"], counts) == (0.5, {SPLIT_TAG: (0, 1), "A": (1, 0), "B": (1, 1)})
    assert scored("tags", [gold], [[]])["labels"][SPLIT_TAG]["predicted"] == 2


def test_the_table_of_spans_is_aligned_in_per_cent() -> None:
    gold, predicted = [[("PER", 0, 1), ("地名", 1, 2), ("PER", 3, 4)]], [[("PER", 0, 1), ("地名", 1, 2)]]
    assert scores_table(scored("spans", gold, predicted), task_of(KINDS["spans"]).metrics).splitlines() == [
        "             f1  precision  recall  gold  predicted  correct",
        "PER       66.67     100.00   50.00     2          1        1",
        "地名     100.00     100.00  100.00     1          1        1",
        "overall   80.00     100.00   66.67     3          2        2",
    ]


def test_the_tables_of_tags_and_texts_end_with_all() -> None:
    tags = scores_table(
        scored("tags", [words("N", "V")], [words("N", "N")]), task_of(KINDS["tags"]).metrics
    ).splitlines()
    assert tags[0].split() == ["accuracy", "f1", "precision", "recall", "gold", "predicted", "correct"]
    assert [line.split()[0] for line in tags[1:]] == ["N", "V", "overall"]
    assert tags[-1].split() == ["overall", "50.00"]
    header, row = scores_table(scored("text", ["ab"], ["ac"]), task_of(KINDS["text"]).metrics).splitlines()
    names = "exact match token accuracy character error rate wer per bleu chrf rouge 1 rouge 2 rouge l"
    assert " ".join(header.split()) == names
    assert " ".join(row.split()) == "overall 0.00 0.00 50.00 100.00 100.00 0.00 25.00 0.00 0.00 0.00"
    assert len(row) == len(header)
