"""The head of one label or several, of a scope, and of thresholds: against NumPy, scikit-learn and every threshold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import AXES, ExportedGraph, export, meta_device, ragged_mask
from sklearn.metrics import f1_score
from torch import Tensor
from torch.nn import functional as F

from seqpipe.answers.classification import Label as LabelAnswer
from seqpipe.answers.registry import task_of
from seqpipe.errors import DataError, UsageError
from seqpipe.features.vocabulary import Vocabulary
from seqpipe_plugins.heads.label import LabelHead

LABELS = ("bad", "fair", "good", "none")
POOLS = ("mean", "max", "first", "last", "attention")


def head(pool: Any = "max", **options: Any) -> LabelHead:
    """A head that is sure enough of itself to tell labels apart."""
    torch.manual_seed(1)
    label = LabelHead(6, LABELS, pool=pool, **options)
    with torch.no_grad():
        label.output.weight.mul_(3)
    return label


def export_head(folder: Path, label: LabelHead, x: Tensor, mask: Tensor) -> ExportedGraph:
    return export(folder / "label.onnx", label, label.decide, AXES, x=x[:3], mask=mask[:3])


@pytest.fixture(scope="module", params=POOLS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabelHead, ExportedGraph]:
    label = head(request.param)
    return label, export_head(tmp_path_factory.mktemp("label"), label, torch.randn(3, 5, 6), ragged_mask(5, 2, 4))


def attended(label: LabelHead, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Yang et al. (2016), equations 5 to 7, with the learned query for b and v for u: the vector and the weights."""
    named = {name.rpartition("attention.")[2]: p.detach().double().numpy() for name, p in label.pool.named_parameters()}
    u = np.tanh(row @ named["key.weight"].T + named["query.vector"].reshape(-1)) @ named["v.weight"][0]
    weights = np.exp(u) / np.exp(u).sum()
    return weights @ row, weights


def logits(label: LabelHead, x: Tensor, mask: Tensor) -> np.ndarray:
    """(B, L) in NumPy, in double precision, a row at a time without its padding."""
    pools: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "attention": lambda row: attended(label, row)[0],
        "mean": lambda row: row.mean(0),
        "max": lambda row: row.max(0),
        "first": lambda row: row[0],
        "last": lambda row: row[-1],
    }
    rows = zip(x.double().numpy(), mask.numpy(), strict=True)
    pooled = np.array([pools[label.pool.how](row[real]) for row, real in rows])
    if label.hidden is not None:
        weight, bias = (p.detach().double().numpy() for p in label.hidden.parameters())
        pooled = np.maximum(pooled @ weight.T + bias, 0)
    weight, bias = (p.detach().double().numpy() for p in label.output.parameters())
    return np.asarray(pooled @ weight.T + bias)


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))


def probabilities(label: LabelHead, x: Tensor, mask: Tensor) -> np.ndarray:
    return softmax(logits(label, x, mask))


def decisions(label: LabelHead, graph: ExportedGraph, x: Tensor, mask: Tensor) -> list[Any]:
    """The decisions of PyTorch and of the graph."""
    return [{name: array.numpy() for name, array in label.decide(x, mask).items()}, graph(x=x, mask=mask)]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("hidden", [None, 4])
def test_probabilities_are_the_softmax_of_the_pooled_text_step_by_step(pool: str, hidden: Any) -> None:
    label, x, mask = (
        head(pool, hidden=hidden),
        3 * torch.randn(40, 7, 6) - 1,
        ragged_mask(*torch.randint(1, 8, (39,)), 7),
    )
    decision, expected = label.decide(x, mask), probabilities(label, x, mask)
    assert np.abs(decision["scores"].detach().numpy() - expected).max() < 1e-6
    assert decision["label"].tolist() == expected.argmax(1).tolist()
    assert hidden or set(decision["label"].tolist()) == {0, 1, 2, 3}
    others = [probabilities(head(other, hidden=hidden), x, mask) for other in POOLS if other != pool]
    assert min(np.abs(other - expected).max() for other in others) > 0.01
    assert ("attention" in decision) == (pool == "attention")
    if pool == "attention":
        for row, real, weights in zip(x.double().numpy(), mask.numpy(), decision["attention"].detach(), strict=True):
            assert np.abs(weights[real].numpy() - attended(label, row[real])[1]).max() < 1e-6
            assert not weights[~real].any()


@pytest.mark.parametrize("mask", [ragged_mask(1), ragged_mask(8), ragged_mask(3, 9, 1)])
def test_the_graph_decides_the_same_whatever_stands_in_the_padding(
    pair: tuple[LabelHead, ExportedGraph], mask: Tensor
) -> None:
    label, graph = pair
    x = torch.randn(*mask.shape, 6) - 3  # all below zero: a maximum must not find the padding
    decision, expected = (
        graph(x=x.masked_fill(~mask[..., None], float("nan")), mask=mask),
        probabilities(label, x, mask),
    )
    assert decision["label"].tolist() == expected.argmax(1).tolist()
    assert np.abs(decision["scores"] - expected).max() < 1e-5


def test_the_state_of_an_encoder_may_stand_for_the_text() -> None:
    label, x, mask, state = head("state"), torch.randn(3, 4, 6), ragged_mask(4, 2, 1), torch.randn(3, 6)
    decision = label.decide(x, mask, state)
    logits = state @ label.output.weight.T + label.output.bias
    assert torch.allclose(decision["scores"], logits.softmax(1), atol=1e-6)
    assert torch.equal(decision["label"], logits.argmax(1))
    narrow = torch.randn(3, 5)
    for state, message in (
        (None, "no encoder returns a state"),
        (narrow, "the state has another width than x; choose"),
    ):
        with pytest.raises(UsageError, match=message):
            label.decide(x, mask, state)


@pytest.mark.parametrize("pool", POOLS)
def test_the_margin_is_how_much_likelier_an_answer_is_than_another(pool: str) -> None:
    label, x, mask = head(pool), torch.randn(5, 4, 6), ragged_mask(4, 2, 1, 3, 4)
    log_p = np.log(probabilities(label, x, mask))
    own, other = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([3, 0, 1, 2, 1])
    expected = np.abs(log_p[range(5), own] - log_p[range(5), other])
    assert np.abs(label.margin(x, mask, label=own, other_label=other).detach().numpy() - expected).max() < 1e-5


def test_equally_likely_labels_go_to_the_first_in_torch_and_in_the_graph_and_are_a_tie(tmp_path: Path) -> None:
    label, x, mask = LabelHead(6, LABELS), torch.randn(3, 5, 6), ragged_mask(5, 2, 4)
    with torch.no_grad():
        label.output.weight.zero_()
        label.output.bias.copy_(torch.tensor([0.0, 1.0, 0.0, 1.0]))
    for decision in decisions(label, export_head(tmp_path, label, x, mask), x, mask):
        assert decision["label"].tolist() == [1, 1, 1]
    own, second, wrong = (torch.full((3,), i) for i in (1, 3, 0))
    assert not label.margin(x, mask, label=own, other_label=second).any()  # what tells a tie from an error
    assert (label.margin(x, mask, label=own, other_label=wrong) > 0.5).all()


def test_the_loss_is_the_mean_over_texts_and_reaches_every_weight() -> None:
    label, x, mask, gold = head(), torch.randn(4, 5, 6), ragged_mask(5, 1, 3, 2), torch.tensor([2, 0, 3, 1])
    loss = label.loss(x, mask, gold)
    assert loss.item() == pytest.approx(-np.log(probabilities(label, x, mask)[range(4), gold]).mean(), abs=1e-6)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in label.parameters())


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_a_text_of_weight_two_counts_as_two_texts(label_smoothing: float) -> None:
    label = head(class_weights={"good": 2.0}, label_smoothing=label_smoothing)
    x, mask, gold = torch.randn(3, 5, 6), ragged_mask(5, 2, 4), torch.tensor([2, 0, 2])
    twice = [0, 0, 1, 2, 2]
    logits = torch.from_numpy(np.log(probabilities(label, x, mask)))[twice]
    expected = F.cross_entropy(logits, gold[twice], reduction="sum", label_smoothing=label_smoothing) / 3
    assert label.loss(x, mask, gold).item() == pytest.approx(expected.item(), abs=1e-6)


def test_dropout_is_for_training_only() -> None:
    label, x, mask, gold = head(dropout=0.5), torch.randn(2, 4, 6), ragged_mask(4, 2), torch.tensor([0, 1])
    losses = {label.loss(x, mask, gold).item() for _ in range(5)}
    assert len(losses) > 1
    assert torch.equal(label.decide(x, mask)["scores"], label.eval().decide(x, mask)["scores"])
    assert torch.equal(label.loss(x, mask, gold), head().loss(x, mask, gold))


@pytest.mark.parametrize("pool", POOLS)
def test_everything_is_made_where_the_input_is(pool: str) -> None:
    label, x, mask = head(pool), torch.randn(2, 4, 6), ragged_mask(4, 2)
    with meta_device():
        decision = label.decide(x, mask)
        loss = label.loss(x, mask, decision["label"])
    assert {tensor.device.type for tensor in (*decision.values(), loss)} == {"cpu"}


def test_balanced_weights_let_every_label_count_the_same_in_all() -> None:
    counts = [30, 5, 10, 3]
    label = LabelHead(6, Vocabulary(LABELS, counts), class_weights="balanced")
    assert label.weights.tolist() == pytest.approx([48 / 4 / n for n in counts])


# -- any number of labels


def test_each_of_several_labels_has_the_sigmoid_and_is_answered_from_the_threshold_on(tmp_path: Path) -> None:
    label, x, mask = (
        head("mean", multi=True, threshold=0.3),
        torch.randn(9, 5, 6),
        ragged_mask(5, 2, 4, 1, 3, 5, 5, 2, 1),
    )
    expected = 1 / (1 + np.exp(-logits(label, x, mask)))
    for decision in decisions(label, export_head(tmp_path, label, x, mask), x, mask):
        assert np.abs(decision["scores"] - expected).max() < 1e-6
        assert (decision["labels"] == (expected >= 0.3)).all()
    assert len(set((expected >= 0.3).sum(1).tolist())) > 1
    own = torch.from_numpy((expected >= 0.3).astype(np.int64))
    for i in range(own.shape[1]):  # all labels that differ must be near the threshold
        other = own.clone()
        other[:, : i + 1] = 1 - other[:, : i + 1]
        margin = label.margin(x, mask, labels=own, other_labels=other).detach().numpy()
        assert np.abs(margin - np.abs(expected - 0.3)[:, : i + 1].max(1)).max() < 1e-6


def test_the_loss_of_several_labels_is_the_likelihood_of_their_set_and_weights_count_where_they_are() -> None:
    label, x, mask = head("mean", multi=True, class_weights={"fair": 3.0}), torch.randn(2, 4, 6), ragged_mask(4, 2)
    gold = torch.tensor([[1.0, 1, 0, 0], [0, 0, 0, 1]])
    p = label.decide(x, mask)["scores"].detach().double().numpy()
    chosen = np.where(gold.numpy() > 0, np.log(p) * [1, 3, 1, 1], np.log(1 - p))
    assert label.loss(x, mask, gold).item() == pytest.approx(-chosen.sum(1).mean(), abs=1e-5)


# -- two labels, and labels that none fits


def test_of_two_labels_the_positive_one_is_answered_from_the_threshold_on() -> None:
    torch.manual_seed(2)
    label, mask = LabelHead(6, ("no", "yes"), pool="mean", threshold=0.7, positive="yes"), ragged_mask(*[3] * 40)
    x = 3 * torch.randn(40, 3, 6)
    decision = label.decide(x, mask)
    assert decision["label"].tolist() == (decision["scores"][:, 1] >= 0.7).long().tolist()
    assert decision["label"].tolist() != decision["scores"].argmax(1).tolist()
    margin = label.margin(x, mask, label=decision["label"], other_label=1 - decision["label"])
    assert torch.allclose(margin, (decision["scores"][:, 1] - 0.7).abs())


def outside(**options: Any) -> LabelHead:
    return head("mean", **{"out_of_scope": "none", "threshold": 0.6, **options})


def in_scope(label: LabelHead, x: Tensor, mask: Tensor) -> np.ndarray:
    """The softmax over all labels but the last, (B, 3)."""
    return softmax(logits(label, x, mask)[:, :3])


def test_a_text_whose_likeliest_label_is_under_the_threshold_is_out_of_scope(tmp_path: Path) -> None:
    label, x, mask = outside(), torch.randn(30, 4, 6), ragged_mask(*[4, 2, 1] * 10)
    p = in_scope(label, x, mask)
    refused, best = p.max(1) < 0.6, p.max(1)
    assert 5 < refused.sum() < 25
    for decision in decisions(label, export_head(tmp_path, label, x, mask), x, mask):
        assert (decision["label"] == np.where(refused, 3, p.argmax(1))).all()
        assert np.abs(decision["scores"][~refused] - np.pad(p[~refused], ((0, 0), (0, 1)))).max() < 1e-6
        assert np.abs(decision["scores"][refused, 3] - (1 - best[refused])).max() < 1e-6
        assert np.abs(decision["scores"].sum(1) - 1).max() < 1e-6
    own, next_best = np.where(refused, 3, p.argmax(1)), np.argsort(p, 1)[:, -2]
    gap = np.log(best) - np.log(np.sort(p, 1)[:, -2])
    for other, expected in (
        (np.where(refused, p.argmax(1), 3), np.abs(best - 0.6)),
        (np.where(refused, p.argmax(1), next_best), np.where(refused, 0.6 - best, gap)),
    ):
        given = {"label": torch.from_numpy(own), "other_label": torch.from_numpy(other)}
        assert np.abs(label.margin(x, mask, **given).detach().numpy() - expected).max() < 1e-5


def test_texts_out_of_scope_teach_nothing_but_by_exposure_that_all_labels_are_alike() -> None:
    x, mask, gold = torch.randn(3, 4, 6), ragged_mask(4, 2, 3), torch.tensor([0, 3, 2])
    p = in_scope(outside(), x, mask)
    right = -np.log(p[[0, 2], [0, 2]]).sum()
    assert outside().loss(x, mask, gold).item() == pytest.approx(right / 3, abs=1e-6)
    even = -np.log(p[1]).mean()
    assert outside(exposure=0.5).loss(x, mask, gold).item() == pytest.approx((right + 0.5 * even) / 3, abs=1e-6)
    smoothed = sum(0.9 * -np.log(p[i, i]) + 0.1 * -np.log(p[i]).mean() for i in (0, 2))
    assert outside(label_smoothing=0.1).loss(x, mask, gold).item() == pytest.approx(smoothed / 3, abs=1e-6)
    alone = outside()
    alone.loss(x[1:2], mask[1:2], gold[1:2]).backward()
    assert all(p.grad is not None and not p.grad.any() for p in alone.parameters())


def test_in_scope_accuracy_and_out_of_scope_recall_stand_beside_accuracy() -> None:
    counter = task_of(LabelAnswer(LABELS, out_of_scope="none")).counter()
    for gold, predicted in zip(("a", "b", "a", "none", "none"), ("a", "none", None, "none", "a"), strict=True):
        counter.add(gold, predicted)
    scores = counter.result()
    assert list(scores) == ["accuracy", "macro_f1", "in_scope_accuracy", "out_of_scope_recall", "labels"]
    assert (scores["in_scope_accuracy"], scores["out_of_scope_recall"]) == (1 / 3, 1 / 2)
    assert "in_scope_accuracy" not in task_of(LabelAnswer(LABELS)).counter().result()


# -- what is chosen on dev


def test_what_was_chosen_is_told_and_decides_in_the_graph(tmp_path: Path) -> None:
    label, x, mask = outside(threshold="dev", calibrate=True), torch.randn(60, 4, 6), ragged_mask(*[4, 2, 1] * 20)
    gold = torch.randint(0, 4, (60,))
    with torch.no_grad():
        label.calibrate(label.evidence(x, mask, gold))
    choice = label.calibration()
    assert set(choice) == {"temperature", "threshold", "ece_before", "ece_after"}
    assert choice["temperature"] > 1  # labels by chance: it was too sure
    assert choice["ece_after"] < choice["ece_before"]
    p = softmax(logits(label, x, mask)[:, :3] / choice["temperature"])
    answered = np.where(p.max(1) < choice["threshold"], 3, p.argmax(1))
    for decision in decisions(label, export_head(tmp_path, label, x, mask), x, mask):
        assert (decision["label"] == answered).all()
    places = [*np.sort(p.max(1)), 1.0]
    by_search = max((np.where(p.max(1) < t, 3, p.argmax(1)) == gold.numpy()).mean() for t in places)
    assert (answered == gold.numpy()).mean() == pytest.approx(by_search)


@pytest.mark.parametrize("kind", ["several labels", "a positive label"])
def test_the_threshold_chosen_on_dev_gives_the_best_micro_f1(kind: str) -> None:
    x, mask = torch.randn(50, 3, 6), ragged_mask(*[3, 2] * 25)
    if kind == "several labels":
        label, gold = head("mean", multi=True, threshold="dev"), (torch.rand(50, 4) < 0.3).float()
    else:
        label, gold = LabelHead(6, ("no", "yes"), threshold="dev", positive="yes"), (torch.rand(50) < 0.3).long()
    with torch.no_grad():
        label.calibrate(label.evidence(x, mask, gold))
        decision = label.decide(x, mask)
    p = (decision["scores"] if label.multi else decision["scores"][:, 1]).numpy().ravel()
    right, answered = (rows.numpy().ravel() > 0 for rows in (gold, decision["labels" if label.multi else "label"]))
    assert f1_score(right, answered) == pytest.approx(max(f1_score(right, p >= t) for t in p))
    assert label.calibration() == {"threshold": pytest.approx(label.threshold.item())}


def test_a_threshold_per_label_gives_each_frequent_label_its_best_f1_and_a_rare_one_that_of_all(tmp_path: Path) -> None:
    options: dict[str, Any] = {"multi": True, "calibrate": True}
    label, x, mask = head("mean", threshold="per_label", **options), torch.randn(80, 3, 6), ragged_mask(*[3, 2] * 40)
    gold = (torch.rand(80, 4) < torch.tensor([0.5, 0.3, 0.2, 0.0])).float()
    gold[:9, 3] = 1.0  # fewer than 10 texts
    common = head("mean", threshold="dev", **options)
    with torch.no_grad():
        for each in (label, common):
            each.calibrate(each.evidence(x, mask, gold))
    chosen = label.calibration()["threshold"]
    assert list(chosen) == list(LABELS)
    assert chosen["none"] == pytest.approx(common.calibration()["threshold"])
    assert len(set(chosen.values())) == 3
    for decision in decisions(label, export_head(tmp_path, label, x, mask), x, mask):
        for i in range(3):
            p, right = decision["scores"][:, i], gold[:, i].numpy()
            best = max(f1_score(right, p >= t) for t in p)
            assert f1_score(right, decision["labels"][:, i]) == pytest.approx(best)
    loaded = head("mean", threshold="per_label", **options)
    loaded.load_state_dict(label.state_dict())
    assert loaded.calibration() == label.calibration()


def test_dev_data_that_lack_what_is_to_be_chosen_are_told() -> None:
    label, x, mask = outside(threshold="dev"), torch.randn(2, 3, 6), ragged_mask(3, 2)
    with pytest.raises(DataError, match="no dev text has the label of out_of_scope"):
        label.calibrate(label.evidence(x, mask, torch.tensor([0, 1])))
    many = head("mean", multi=True, threshold="dev")
    with pytest.raises(DataError, match="no dev text has a label to choose it by"):
        many.calibrate(many.evidence(x, mask, torch.zeros(2, 4)))


def test_only_what_is_chosen_on_dev_needs_dev_data() -> None:
    assert LabelHead.needs_dev({"threshold": 0.5, "calibrate": False}) == ""
    assert LabelHead.needs_dev({"threshold": "dev", "calibrate": True}) == "threshold"
    assert LabelHead.needs_dev({"threshold": "per_label", "calibrate": False}) == "threshold"
    assert LabelHead.needs_dev({"threshold": None, "calibrate": True}) == "calibrate"


SCOPE = {"out_of_scope": "none", "threshold": 0.5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multi": True, "label_smoothing": 0.1}, r"label\.label_smoothing: it is for one label per text"),
        ({"multi": True, **SCOPE}, r"label\.out_of_scope: it is for one label per text"),
        ({"multi": True, "positive": "good"}, r"label\.positive: it is for one label per text"),
        ({"threshold": 0.5}, r"label\.threshold: the answer is the likeliest of several labels; name its label"),
        ({"threshold": 0.5, "positive": "good"}, r"\.positive: it must be one of two labels; .* 'bad', 'fair', 'g"),
        ({"threshold": "per_label"}, r"label\.threshold: per_label is for any number of labels per text; set multi"),
        ({"positive": "good"}, r"label\.positive: it needs a threshold"),
        ({"out_of_scope": "none"}, r"label\.out_of_scope: it needs a threshold"),
        ({"positive": "good", **SCOPE}, r"delete one of the two"),
        ({"exposure": 0.5}, r"label\.exposure: it is for texts of out_of_scope"),
        ({"class_weights": {"none": 2.0}, **SCOPE}, r"is out of scope; .* `exposure`"),
        ({"labels": ["none"], **SCOPE}, "every training text has the label 'none'"),
        ({"class_weights": {"goood": 2.0}}, r"the training data has no label 'goood'; .* did you mean 'good'\?"),
        ({"class_weights": "balanced"}, "the counts of the labels are unknown here"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_a_cure(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LabelHead(6, **{"labels": LABELS, **options})
