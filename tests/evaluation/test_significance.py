"""Comparisons of two models' answers, against brute force, scipy, scikit-learn and sacrebleu."""

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import scipy.stats
import sklearn.metrics
from tokenizers import Tokenizer

from seqpipe import compare
from seqpipe.answers.base import AnswerKind
from seqpipe.answers.candidates import Vector
from seqpipe.answers.classification import Label, Labels, Score
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.registry import MultiHead
from seqpipe.answers.structured import Field, Structured
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.text import Generation, Text
from seqpipe.answers.types import Metric
from seqpipe.errors import PluginError, UsageError
from seqpipe.evaluation.scores import new_counter, score_answers
from seqpipe.evaluation.significance import (
    AnsweredSets,
    Difference,
    ScoreContext,
    SetComparison,
    compare_answers,
    score_contexts,
)
from seqpipe.features.sources import source_from
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.predictor import Predictor
from seqpipe_plugins.tokenizers.chars import CharsTokenizer

LETTERS: Tokenizer = CharsTokenizer().train(["abcdefgh"])
Rows = Sequence[tuple[dict[str, Any], Any]]


def side(name: str, kind: AnswerKind, rows: Rows, **sets: Rows) -> AnsweredSets:
    predictor = Predictor(source_from("text", {}, {"": LETTERS}, False, False), kind, dict, {}, Limits(tokens=9))
    return AnsweredSets(name, predictor, sets or {"test": rows})


def compared(kind: AnswerKind, records: Sequence[Any], first: Any, second: Any, **options: Any) -> SetComparison:
    """The comparison of two lists of answers to records, with scores that are those of `evaluate`."""
    sides = [side(name, kind, [*zip(records, answers, strict=True)]) for name, answers in (("a", first), ("b", second))]
    (result,) = compare_answers(*sides, **options)
    for name, answered in zip(("first", "second"), sides, strict=True):
        scores = score_answers(answered.predictor, answered.sets["test"])[""]
        for row in result.scores:
            expected: Any = scores
            for part in row.name.split("."):
                expected = expected[part]
            assert getattr(row, name) == pytest.approx(expected, abs=1e-9)
    return result


def row(result: SetComparison, name: str) -> Difference:
    return next(row for row in (*result.scores, *result.labels) if row.name == name)


def mid_p(score: Callable[[Sequence[Any]], float], first: Sequence[Any], second: Sequence[Any]) -> float:
    """The exact p of swapped answers, by all ways to swap them."""
    observed, differences = abs(score(second) - score(first)), []
    for swaps in itertools.product((False, True), repeat=len(first)):
        a = [y if swap else x for x, y, swap in zip(first, second, swaps, strict=True)]
        b = [x if swap else y for x, y, swap in zip(first, second, swaps, strict=True)]
        differences.append(abs(score(b) - score(a)))
    values = np.array(differences)
    return float(np.mean(values > observed + 1e-12) + np.mean(np.isclose(values, observed, atol=1e-12)) / 2)


def ends(score: Callable[[Sequence[int]], float], records: int) -> np.ndarray:
    """The exact 2.5 % and 97.5 % points of a difference in all samples of the records."""
    return np.percentile([score(at) for at in itertools.product(range(records), repeat=records)], [2.5, 97.5])


def difference(second: Any, first: Any, axis: int) -> Any:
    return second.mean(axis) - first.mean(axis)


def label_data(records: int, seed: int, errors: float = 0.3) -> tuple[list[str], list[str], list[str]]:
    draw = random.Random(seed)
    gold = draw.choices("abc", k=records)
    rates = (errors, errors / 3)
    first, second = ([x if draw.random() > rate else draw.choice("abc") for x in gold] for rate in rates)
    return gold, first, second


def as_labels(labels: Sequence[str]) -> list[dict[str, Any]]:
    return [{"label": label, "score": 0.5} for label in labels]


def compared_labels(gold: Sequence[str], first: Sequence[str], second: Sequence[str], **options: Any) -> SetComparison:
    records = [{"text": "a", "label": label} for label in gold]
    return compared(Label("abc"), records, as_labels(first), as_labels(second), **options)


def test_the_interval_of_accuracy_is_scipys_and_p_that_of_its_permutation_test() -> None:
    gold, first, second = label_data(80, seed=3)
    accuracy = row(compared_labels(gold, first, second, resamples=20_000), "accuracy")
    right = [np.array([x == y for x, y in zip(gold, labels, strict=True)], float) for labels in (second, first)]
    assert accuracy.difference == pytest.approx(right[0].mean() - right[1].mean())
    settings: Any = {"n_resamples": 20_000, "rng": 1}
    bootstrap = scipy.stats.bootstrap(right, difference, paired=True, method="percentile", **settings)
    assert [accuracy.low, accuracy.high] == pytest.approx([*bootstrap.confidence_interval], abs=0.013)  # of a record
    test = scipy.stats.permutation_test(right, difference, permutation_type="samples", vectorized=True, **settings)
    size = np.abs(test.null_distribution)
    expected = np.mean(size > abs(test.statistic) + 1e-9) + np.mean(np.isclose(size, abs(test.statistic))) / 2
    assert accuracy.p == pytest.approx(expected, abs=0.01)


def test_macro_f1_and_the_f1_of_each_label_are_resampled_as_scikit_learn_scores_them() -> None:
    gold, first, second = label_data(6, seed=5, errors=0.6)
    result = compared_labels(gold, first, second, resamples=20_000)
    assert len({row.p for row in result.labels}) > 1
    for name, labels in (("macro_f1", None), *((label, [label]) for label in "abc")):

        def f1(answers: Sequence[str], labels: list[str] | None = labels) -> float:
            return sklearn.metrics.f1_score(gold, answers, labels=labels, average="macro", zero_division=0.0)

        change = f1(second) - f1(first)
        assert row(result, name).difference == pytest.approx(change)
        assert row(result, name).p == pytest.approx(mid_p(f1, first, second) if change else 1.0, abs=0.015)


def test_errors_of_numbers_far_from_0_have_the_exact_interval_and_p() -> None:
    draw = np.random.default_rng(2)
    gold = 1e6 + draw.normal(size=5)
    numbers = [gold + draw.normal(size=5), gold + 0.3 * draw.normal(size=5)]
    answers = [[{"score": float(number)} for number in side] for side in numbers]
    result = compared(Score(), [{"text": "a", "score": float(number)} for number in gold], *answers, resamples=20_000)
    pairs = [np.stack([gold, side], 1) for side in numbers]

    def mae(side: Any) -> float:
        return float(np.mean([abs(x - y) for x, y in side]))

    def pearson(side: Any) -> float:
        return float(np.corrcoef(np.array(side).T)[0, 1])

    assert row(result, "mae").p == pytest.approx(mid_p(mae, *pairs), abs=0.02)
    assert row(result, "pearson").p == pytest.approx(mid_p(pearson, *pairs), abs=0.02)
    exact = ends(lambda at: mae(pairs[1][[*at]]) - mae(pairs[0][[*at]]), 5)
    assert [row(result, "mae").low, row(result, "mae").high] == pytest.approx(exact, rel=0.05)
    assert row(result, "mae").gain == -row(result, "mae").difference > 0


def test_bleu_is_resampled_as_sacrebleu_scores_it() -> None:
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "in", "rain"]
    draw = random.Random(4)
    gold = [" ".join(draw.choices(words, k=8)) for _ in range(4)]
    texts = [[" ".join(w if draw.random() > e else "x" for w in text.split()) for text in gold] for e in (0.4, 0.1)]
    answers = [[{"generated_text": text, "score": 0.5} for text in side] for side in texts]
    result = compared(Text(LETTERS), [{"text": "a", "target": text} for text in gold], *answers, resamples=2_000)

    def bleu(pairs: Sequence[tuple[str, str]]) -> float:
        return sacrebleu.corpus_bleu([y for _, y in pairs], [[x for x, _ in pairs]], force=True).score / 100

    first, second = ([*zip(gold, side, strict=True)] for side in texts)
    assert row(result, "bleu").p == pytest.approx(mid_p(bleu, first, second), abs=0.04)
    exact = ends(lambda at: bleu([second[i] for i in at]) - bleu([first[i] for i in at]), 4)
    assert [row(result, "bleu").low, row(result, "bleu").high] == pytest.approx(exact, abs=0.02)
    assert {"chrf", "rouge_1", "rouge_l", "wer", "exact_match"} <= {row.name for row in result.scores}


def test_f1_of_spans_has_the_exact_interval_and_p() -> None:
    draw = random.Random(8)

    def placed(labels: Sequence[str]) -> set[tuple[str, int]]:
        return {(label, i) for i, label in enumerate(labels)}

    def answer(error: float, gold: Sequence[str]) -> set[tuple[str, int]]:
        kept = [label for label in gold if draw.random() > error / 2]
        return placed([draw.choice("xy") if draw.random() < error else label for label in kept])

    golds = [draw.choices("xy", k=draw.randint(0, 3)) for _ in range(5)]
    first, second = ([(placed(gold), answer(error, gold)) for gold in golds] for error in (0.5, 0.2))
    records = [{"text": "a", "spans": [{"label": s, "start": i, "end": i + 1} for i, s in enumerate(g)]} for g in golds]
    answers = [
        [[{"entity_group": s, "word": "a", "start": i, "end": i + 1} for s, i in sorted(spans)] for _, spans in side]
        for side in (first, second)
    ]
    result = compared(Spans(("O", "B-x", "B-y")), records, *answers, resamples=20_000)

    def f1(pairs: Sequence[tuple[set[Any], set[Any]]]) -> float:
        total = sum(len(gold) + len(spans) for gold, spans in pairs)
        return 2 * sum(len(gold & spans) for gold, spans in pairs) / total if total else 0.0

    assert row(result, "f1").p == pytest.approx(mid_p(f1, first, second), abs=0.015)
    exact = ends(lambda at: f1([second[i] for i in at]) - f1([first[i] for i in at]), 5)
    assert [row(result, "f1").low, row(result, "f1").high] == pytest.approx(exact, abs=0.03)


def test_every_metric_of_every_kind_has_an_interval() -> None:
    answers = {"text": ["a"], "answer_start": [0]}
    common = {"text": "a b", "words": ["a", "b"], "tags": ["O", "B-x"], "second": "abc", "answers": answers}
    records = [{**common, "label": label, "labels": [label]} for label in "abab"]
    words = [{"word": w, "start": 2 * i, "end": 2 * i + 1} for i, w in enumerate("ab")]
    tags = [[{**w, "entity": tag} for w, tag in zip(words, pair, strict=True)] for pair in (("O", "B-x"), ("B-x", "O"))]
    spans: Any = [[{**words[1], "entity_group": "x"}], []]
    labels, vectors = as_labels("ab"), ({"vector": [0.0, 1.0]}, {"vector": [1.0, 1.0]})
    joint = MultiHead({"mood": Label("ab"), "slots": Spans(("O", "B-x")), "place": Vector("ab")})
    fields = Field("label", "text", "label", "label", ("a", "b")), Field("tags", "word", "label", "tags", ("O", "B-x"))
    structures = [
        {"label": x, "words": [{**word, "tags": tag["entity"]} for word, tag in zip(words, of_text, strict=True)]}
        for x, of_text in zip("ab", tags, strict=True)
    ]
    names: set[str] = set()
    cases: list[tuple[AnswerKind, Any]] = [
        (Labels("ab"), ([labels[0]], labels)),
        (Tags(("O", "B-x")), tags),
        (Vector("ab"), vectors),
        (ExtractiveSpan(), [{"answer": x, "start": 0, "end": 1} for x in "ab"]),
        (joint, [{"mood": x, "slots": y, "place": z} for x, y, z in zip(labels, spans, vectors, strict=True)]),
        (Structured(fields), structures),
    ]
    for kind, (one, two) in cases:
        result = compared(kind, records, [one, two, one, two], [one, one, two, two], resamples=100)
        assert [row.name for row in (*result.scores, *result.labels) if row.p is None] == [], kind.kind
        names |= {row.name for row in (*result.scores, *result.labels)}
    assert {"slots.f1", "mood.accuracy", "exact", "mean", "slots.x", "mood.a", "tags_accuracy"} <= names


def test_perplexity_is_resampled_by_text_as_scipy_does_it() -> None:
    draw = np.random.default_rng(3)
    tokens = draw.integers(2, 9, 60)
    losses = [tokens * draw.normal(mean, 0.4, 60) for mean in (2.0, 1.8)]
    records = [{"text": f"text {i}"} for i in range(60)]
    answers = [
        [{"loss": float(x), "tokens": int(n), "characters": 3 * int(n)} for x, n in zip(side, tokens, strict=True)]
        for side in losses
    ]
    kind = Generation(LETTERS, False, 8)
    result = compared(kind, records, *answers, resamples=20_000)
    perplexity = row(result, "perplexity")
    assert perplexity.first == pytest.approx(np.exp(losses[0].sum() / tokens.sum()))
    assert (result.scores[0].name, result.changes, result.examples) == ("perplexity", {}, [])

    def change(first: Any, second: Any, number: Any, axis: int) -> Any:
        return np.exp(second.sum(axis) / number.sum(axis)) - np.exp(first.sum(axis) / number.sum(axis))

    settings: Any = {"method": "percentile", "n_resamples": 20_000, "rng": 1}
    expected = [*scipy.stats.bootstrap((*losses, tokens), change, paired=True, **settings).confidence_interval]
    assert [perplexity.low, perplexity.high] == pytest.approx(expected, abs=0.08)  # of a width of 1.2
    assert row(result, "bits_per_character").gain > 0
    finer = [{**answer, "tokens": 2 * answer["tokens"]} for answer in answers[1]]  # of another tokenizer
    assert [row.name for row in compared(kind, records, answers[0], finer).scores] == ["bits_per_character"]


def test_a_metric_of_a_plugins_head_is_resampled_if_it_is_a_mean_over_records() -> None:
    def metrics(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
        right = [x == y for x, y in zip(gold, predicted, strict=True)]
        if len(right) < 2 and gold == ["c"]:
            raise PluginError("one record is too few")
        return {"share": float(np.mean(right)), "root": float(np.mean(right)) ** 0.5}

    data = [*zip(*label_data(60, seed=3), strict=True)]
    for absent in ("", "c"):  # with and without a label that has no score alone
        gold, *answers = zip(*[labels for labels in data if labels[0] != absent], strict=True)
        records = [{"text": "a", "label": label} for label in gold]
        sides = [side("ab"[i], Label("abc"), [*zip(records, as_labels(answers[i]), strict=True)]) for i in (0, 1)]
        for answered in sides:
            answered.predictor.metrics[""] = metrics
            answered.predictor.metric_types |= {"share": Metric(), "root": Metric()}
        (result,) = compare_answers(*sides)
        share, accuracy = row(result, "share"), row(result, "accuracy")
        assert row(result, "root").p is None
        assert row(result, "root").difference == pytest.approx(share.second**0.5 - share.first**0.5)
        expected = (accuracy.low, accuracy.high, accuracy.p) if absent else (None, None, None)
        assert (share.low, share.high, share.p) == expected


def test_answers_that_became_right_and_wrong_are_counted_and_shown() -> None:
    gold, topics = "aabbb", "pqpqp"
    records = [{"text": f"t {i}", "label": gold[i], "where": f"x:{i}", "topic": topics[i]} for i in range(5)]
    sides = Label("ab"), records, as_labels("abbba"), as_labels("aabab")
    result = compared(*sides, by="topic", examples=1)
    assert result.changes == {"fixed": 2, "broken": 1, "changed": 0}
    examples = [(example["change"], example["where"], example["expected"]) for example in result.examples]
    assert examples == [("fixed", "x:1", "a"), ("broken", "x:3", "b")]
    assert result.examples[0]["answers"] == ["b (0.5000)", "a (0.5000)"]
    groups = [(row.name, row.first, row.second) for row in result.groups]
    assert groups == [("topic=p", pytest.approx(2 / 3), 1.0), ("topic=q", 0.5, 0.5)]


@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        (40, "b is better than a by 20.00 points of accuracy (95 % interval 1"),
        (2, "no difference that this test set can show: 1.00 points of accuracy (95 % interval 0.00 to "),
    ],
)
def test_a_sentence_says_who_is_better_or_that_nothing_is_seen(errors: int, sentence: str) -> None:
    gold, answers = "a" * 200, "b" * errors + "a" * (200 - errors)
    assert compared_labels(gold, answers, gold).sentence.startswith(sentence)
    worse = compared_labels(gold, gold, answers)
    assert worse.scores[0].gain == pytest.approx(-errors / 2)
    assert errors < 40 or worse.sentence.startswith("a is better than b by 20.00")
    same = compared_labels(gold, answers, answers)
    assert (same.scores[0].p, same.scores[0].low, same.scores[0].high, same.changes["fixed"]) == (1.0, 0.0, 0.0, 0)


def test_records_are_compared_in_any_order_and_file_and_other_data_is_refused() -> None:
    kind, rows = Label("ab"), []
    for i in range(6):
        rows.append(({"text": f"t{i}", "label": "a", "where": f"a:{i}"}, {"label": "ab"[i % 2], "score": 0.5}))
    moved = [({**record, "where": "elsewhere"}, answer) for record, answer in reversed(rows)]
    first = side("a", kind, rows)
    (result,) = compare_answers(first, side("b", kind, moved))
    assert (result.records, sum(result.changes.values())) == (6, 0)
    changed = [*moved[1:], ({"text": "new", "label": "a", "where": "b:7"}, rows[0][1])]
    with pytest.raises(UsageError) as refused:
        compare_answers(first, side("b", kind, changed))
    message = str(refused.value)
    assert '1 of 6 records only in a\n  a:5: \'a\', {"label": "a", "text": "t5"}' in message
    assert "1 of 6 records only in b\n  b:7: " in message
    assert "--data FILE" in message
    for second, reason in (
        (side("b", Label("ab", "text"), rows), "6 of 6 records only in a"),  # another target
        (side("b", Labels("ab"), rows), r"a has the answer kinds \{'': 'label'\}, b \{'': 'labels'\}"),
        (side("b", kind, [], new=rows), r"\['test'\], b to \['new'\]: no test set in common"),
    ):
        with pytest.raises(UsageError, match=reason):
            compare_answers(first, second)


def test_a_single_model_or_one_named_twice_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    for paths in ([], [tmp_path], [tmp_path, tmp_path]):
        with pytest.raises(UsageError, match="name two or more different runs or bundles to compare"):
            compare(*paths)


def contexts_of(kind: AnswerKind, golds: Sequence[Any], predictions: Sequence[Any]) -> list[ScoreContext]:
    """The main scores of references and predictions, in the form in which a task compares them."""
    predictor, pairs = side("a", kind, []).predictor, [*zip(golds, predictions, strict=True)]
    counter = new_counter(predictor)
    for pair in pairs:
        counter.add(*pair)
    return score_contexts(predictor, pairs, counter.result())


LABEL = Label(labels=["a", "b", "c"])


@pytest.mark.parametrize(("right", "records"), [(80, 100), (6_300, 9_000), (30, 40)])
def test_the_interval_of_an_accuracy_is_that_of_a_binomial_distribution(right: int, records: int) -> None:
    (context,) = contexts_of(LABEL, ["a"] * records, ["a"] * right + ["b"] * (records - right))
    expected = scipy.stats.binom(records, right / records).ppf([0.025, 0.975]) / records
    assert (context.low, context.high) == pytest.approx(tuple(expected), abs=3 / records + 0.002)


@pytest.mark.parametrize("right", [0, 42])
def test_the_interval_where_all_or_no_records_are_right_is_exact(right: int) -> None:
    (context,) = contexts_of(LABEL, ["a"] * 42, ["a"] * right + ["b"] * (42 - right))
    exact = scipy.stats.binomtest(right, 42).proportion_ci(0.95, "exact")
    assert (context.low, context.high) == pytest.approx((exact.low, exact.high))


def test_one_record_has_no_interval() -> None:
    (context,) = contexts_of(LABEL, ["a"], ["a"])
    assert (context.interval, context.line) == ("", "accuracy 100.00; always 'a': 100.00")


TAGGED = [[("N", 0, 1), ("V", 2, 3)], [("N", 0, 1), ("N", 2, 3)]]


@pytest.mark.parametrize(
    ("kind", "golds", "answer", "baseline"),
    [
        (LABEL, ["a", "b", "b", "c"], "always 'b'", 0.5),
        (Labels(labels=["a", "b"]), [["a"], ["a"], ["b"]], "always ['a']", None),
        (Score(), [1.0, 2.0, 6.0], "always their mean 3", 0.0),  # of R²
        (Tags(labels=["N", "V"]), TAGGED, "always 'N'", 0.75),
        (Spans(labels=["N"]), [[("N", 0, 1)], []], "never a span", 0.0),
    ],
)
def test_the_baseline_is_the_score_of_the_most_frequent_answer_or_the_mean(
    kind: AnswerKind, golds: list[Any], answer: str, baseline: float | None
) -> None:
    (context, *_) = contexts_of(kind, golds, golds)
    assert context.constant == answer
    assert baseline is None or context.baseline == pytest.approx(baseline)


def test_a_model_at_the_level_of_a_constant_prediction_is_told_so() -> None:
    golds = ["a", "b", "c"] * 30
    guesses = golds[1:] + golds[:1]  # all wrong
    (wrong,) = contexts_of(LABEL, golds, guesses)
    (good,) = contexts_of(LABEL, golds, golds)
    (few,) = contexts_of(LABEL, golds[:12], ["c", *golds[1:12]])
    assert (wrong.is_chance, good.is_chance) == (True, False)
    assert [remark.partition(",")[0] for remark in wrong.remarks()] == ["no better than a constant prediction"]
    assert [*good.remarks()] == []
    assert next(few.remarks()).startswith("12 records are few: the interval is ")


def test_several_heads_have_an_interval_each_and_the_mean_has_the_baseline() -> None:
    kind = MultiHead({"topic": LABEL, "spans": Spans(labels=["N"])})
    golds = [{"topic": label, "spans": [("N", 0, 1)]} for label in "aab" * 10]
    mean, *parts = contexts_of(kind, golds, [*golds[1:], golds[0]])
    assert mean.constant == "topic always 'a', spans never a span"
    assert [part.metric for part in parts] == ["topic.accuracy", "spans.f1"]
    assert all(part.interval and not part.constant for part in parts)
