from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nn.exported import Graph, elsewhere, export, ragged
from torch import Tensor
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe_plugins.heads.label import Label

LABELS = ("bad", "fair", "good", "none")
POOLS = ("mean", "max", "first", "last")
AXES = {"x": ("b", "t"), "mask": ("b", "t")}


def head(pool: Any = "max", **options: Any) -> Label:
    """A head that is sure enough of itself to tell labels apart."""
    torch.manual_seed(1)
    made = Label(6, LABELS, pool=pool, **options)
    with torch.no_grad():
        made.output.weight.mul_(3)
    return made


@pytest.fixture(scope="module", params=POOLS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Label, Graph]:
    label, path = head(request.param), tmp_path_factory.mktemp("label") / "label.onnx"
    return label, export(path, label, label.decide, AXES, x=torch.randn(3, 5, 6), mask=ragged(5, 2, 4))


def probabilities(label: Label, x: Tensor, mask: Tensor) -> np.ndarray:
    """(B, L) in NumPy, in double precision, a row at a time without its padding."""
    weight, bias = (p.detach().double().numpy() for p in (label.output.weight, label.output.bias))
    pools = {
        "mean": lambda row: row.mean(0),
        "max": lambda row: row.max(0),
        "first": lambda row: row[0],
        "last": lambda row: row[-1],
    }
    found = []
    for row, real in zip(x.double().numpy(), mask.numpy(), strict=True):
        logits = weight @ pools[label.pool](row[real]) + bias
        found.append(np.exp(logits) / np.exp(logits).sum())
    return np.array(found)


@pytest.mark.parametrize("pool", POOLS)
def test_probabilities_are_the_softmax_of_the_pooled_text_step_by_step(pool: str) -> None:
    label, x, mask = head(pool), torch.randn(40, 7, 6) - 1, ragged(*torch.randint(1, 8, (39,)).tolist(), 7)
    made, expected = label.decide(x, mask), probabilities(label, x, mask)
    assert np.abs(made["scores"].detach().numpy() - expected).max() < 1e-6
    assert made["label"].tolist() == expected.argmax(1).tolist()
    assert set(made["label"].tolist()) == {0, 1, 2, 3}
    others = [probabilities(head(other), x, mask) for other in POOLS if other != pool]
    assert min(np.abs(other - expected).max() for other in others) > 0.01


@pytest.mark.parametrize("mask", [ragged(1), ragged(8), ragged(3, 9, 1)])
def test_the_graph_decides_the_same_whatever_stands_in_the_padding(pair: tuple[Label, Graph], mask: Tensor) -> None:
    label, graph = pair
    x = torch.randn(*mask.shape, 6) - 3  # all below zero: a maximum must not find the padding
    made, expected = graph(x=x.masked_fill(~mask[..., None], float("nan")), mask=mask), probabilities(label, x, mask)
    assert made["label"].tolist() == expected.argmax(1).tolist()
    assert np.abs(made["scores"] - expected).max() < 1e-5


@pytest.mark.parametrize("pool", POOLS)
def test_the_score_is_the_log_probability_of_any_label(pool: str) -> None:
    label, x, mask = head(pool), torch.randn(5, 4, 6), ragged(4, 2, 1, 3, 4)
    expected = np.log(probabilities(label, x, mask))
    for n in range(len(LABELS)):
        assert np.abs(label.score(x, mask, torch.full((5,), n)).detach().numpy() - expected[:, n]).max() < 1e-5


def test_equally_likely_labels_go_to_the_first_in_torch_and_in_the_graph_and_score_the_same(tmp_path: Path) -> None:
    label, x, mask = Label(6, LABELS), torch.randn(3, 5, 6), ragged(5, 2, 4)
    with torch.no_grad():
        label.output.weight.zero_()
        label.output.bias.copy_(torch.tensor([0.0, 1.0, 0.0, 1.0]))
    graph = export(tmp_path / "tie.onnx", label, label.decide, AXES, x=x, mask=mask)
    assert label.decide(x, mask)["label"].tolist() == graph(x=x, mask=mask)["label"].tolist() == [1, 1, 1]
    first, second = (label.score(x, mask, torch.full((3,), n)) for n in (1, 3))
    assert torch.equal(first, second)  # what tells a tie from an error


def test_the_loss_is_the_mean_over_texts_and_reaches_every_weight() -> None:
    label, x, mask, gold = head(), torch.randn(4, 5, 6), ragged(5, 1, 3, 2), torch.tensor([2, 0, 3, 1])
    loss = label.loss(x, mask, gold)
    assert loss.item() == pytest.approx(-np.log(probabilities(label, x, mask)[range(4), gold]).mean(), abs=1e-6)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in label.parameters())


def test_smoothing_spreads_the_target_over_all_labels() -> None:
    label, x, mask = head(label_smoothing=0.2), torch.randn(3, 5, 6), ragged(5, 2, 4)
    gold = torch.tensor([2, 0, 3])
    target = 0.8 * np.eye(4)[gold] + 0.2 / 4  # Szegedy et al. (2016), equation 6
    expected = -(target * np.log(probabilities(label, x, mask))).sum(1).mean()
    assert label.loss(x, mask, gold).item() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(label.decide(x, mask)["scores"], head().decide(x, mask)["scores"])


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_a_text_of_weight_two_counts_as_two_texts(label_smoothing: float) -> None:
    label = head(class_weights={"good": 2.0}, label_smoothing=label_smoothing)
    x, mask, gold = torch.randn(3, 5, 6), ragged(5, 2, 4), torch.tensor([2, 0, 2])
    twice = [0, 0, 1, 2, 2]
    logits = torch.from_numpy(np.log(probabilities(label, x, mask)))[twice]
    expected = F.cross_entropy(logits, gold[twice], reduction="sum", label_smoothing=label_smoothing) / 3
    assert label.loss(x, mask, gold).item() == pytest.approx(expected.item(), abs=1e-6)


def test_class_weights_count_in_a_batch_of_one_text_too() -> None:
    x, mask, gold = torch.randn(1, 3, 6), ragged(3), torch.tensor([2])
    plain, weighted = (head(class_weights=given).loss(x, mask, gold).item() for given in (None, {"good": 5.0}))
    assert weighted == pytest.approx(5 * plain, abs=1e-5)


def test_a_weight_for_a_label_that_no_text_has_is_an_error_with_a_cure() -> None:
    with pytest.raises(UsageError, match=r"no text that was read has the label 'goood'; .* did you mean 'good'\?"):
        Label(6, LABELS, class_weights={"goood": 2.0})


def test_dropout_is_for_training_only() -> None:
    label, x, mask, gold = head(dropout=0.5), torch.randn(2, 4, 6), ragged(4, 2), torch.tensor([0, 1])
    losses = {label.loss(x, mask, gold).item() for _ in range(5)}
    assert len(losses) > 1
    assert torch.equal(label.decide(x, mask)["scores"], label.eval().decide(x, mask)["scores"])
    assert torch.equal(label.loss(x, mask, gold), head().loss(x, mask, gold))


@pytest.mark.parametrize("pool", POOLS)
def test_everything_is_made_where_the_input_is(pool: str) -> None:
    label, x, mask = head(pool), torch.randn(2, 4, 6), ragged(4, 2)
    with elsewhere():
        made = label.decide(x, mask)
        loss = label.loss(x, mask, made["label"])
    assert {tensor.device.type for tensor in (*made.values(), loss)} == {"cpu"}
