"""Tags chosen one by one: probabilities of spans against the sum over all sequences, weights and temperature."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import AXES, ExportedGraph, export, meta_device, ragged_mask
from torch import Tensor

from seqpipe.answers.tagging_schemes import continues
from seqpipe.errors import UsageError
from seqpipe.features.vocabulary import Vocabulary
from seqpipe.nn.calibration import GRID
from seqpipe.nn.layers import RealRows
from seqpipe_plugins.heads.tags import TagsHead

LABELS = ("O", "B-a", "I-a", "B-b", "I-b")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[TagsHead, ExportedGraph]:
    torch.manual_seed(1)
    tags, path = TagsHead(6, LABELS, scheme="IOB2"), tmp_path_factory.mktemp("tags") / "tags.onnx"
    with torch.no_grad():
        tags.emissions.weight.mul_(3)
        tags.temperature.fill_(1.6)
    return tags, export(path, tags, tags.decide, AXES, x=torch.randn(3, 5, 6), mask=ragged_mask(5, 2, 4))


def span_probability(p: np.ndarray, path: list[int], i: int, j: int, span_continues: np.ndarray) -> float:
    """Summed over all sequences of tags: the path's tags stand at i to j, and the tag after does not go on."""
    total = 0.0
    for tags in itertools.product(range(p.shape[1]), repeat=len(p)):
        if list(tags[i : j + 1]) == path[i : j + 1] and (j + 1 == len(p) or not span_continues[tags[j], tags[j + 1]]):
            total += np.prod([p[t, tag] for t, tag in enumerate(tags)])
    return total


@pytest.mark.parametrize(("scheme", "span_continues"), [("IOB2", continues(LABELS)), ("none", np.zeros((5, 5), bool))])
def test_opens_and_closes_give_the_probability_of_every_span(scheme: str, span_continues: np.ndarray) -> None:
    tags, x, mask = TagsHead(6, LABELS, scheme=scheme), torch.randn(2, 4, 6), ragged_mask(4, 3)
    tags.temperature.fill_(0.6)
    made = {name: rows.detach().numpy() for name, rows in tags.decide(x, mask).items()}
    p = (tags.emissions(x) / 0.6).softmax(2).detach().double().numpy()
    for b, n in enumerate((4, 3)):
        path = made["tags"][b, :n].tolist()
        assert path == p[b, :n].argmax(1).tolist()
        assert made["scores"][b, :n] == pytest.approx(p[b, :n].max(1), abs=1e-6)
        for i, j in itertools.combinations_with_replacement(range(n), 2):
            found = np.exp(made["opens"][b, i] + made["closes"][b, j])
            assert found == pytest.approx(span_probability(p[b, :n], path, i, j, span_continues), abs=1e-6)
    assert scheme == "none" or not np.allclose(
        made["closes"], TagsHead(6, LABELS, scheme="none").decide(x, mask)["closes"].detach()
    )


def test_the_loss_is_the_same_where_padding_is_not_selected_away(monkeypatch: pytest.MonkeyPatch) -> None:
    tags, x, mask = TagsHead(6, LABELS, scheme="IOB2"), torch.randn(2, 4, 6), ragged_mask(4, 3)
    loss = tags.loss(x, mask, torch.ones(2, 4, dtype=torch.long))
    monkeypatch.setattr(RealRows, "_are_selected", False)  # as on a GPU
    assert tags.loss(x, mask, torch.ones(2, 4, dtype=torch.long)).item() == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("mask", [ragged_mask(1), ragged_mask(8), ragged_mask(3, 9, 1)])
def test_the_graph_decides_the_same_whatever_stands_in_the_padding(
    pair: tuple[TagsHead, ExportedGraph], mask: Tensor
) -> None:
    tags, graph = pair
    x = torch.randn(*mask.shape, 6)
    made, expected = graph(x=x.masked_fill(~mask[..., None], float("nan")), mask=mask), tags.decide(x, mask)
    assert np.array_equal(made["tags"], expected["tags"].numpy())
    assert all(np.abs(made[name] - expected[name].numpy()).max() < 1e-5 for name in expected)
    assert not any(made[name][~mask.numpy()].any() for name in expected)


def test_the_score_is_the_log_probability_of_the_tags() -> None:
    tags, x, mask = TagsHead(6, LABELS), torch.randn(2, 4, 6), ragged_mask(4, 2)
    made = tags.decide(x, mask)
    expected = torch.where(mask, made["scores"], 1.0).log().sum(1)
    assert torch.allclose(tags.score(x, mask, made["tags"]), expected, atol=1e-5)
    assert (tags.score(x, mask, (made["tags"] + 1) % 5) < expected).all()


def test_the_loss_is_the_mean_of_real_tokens_and_reaches_every_weight() -> None:
    tags, x, mask, gold = TagsHead(6, LABELS), torch.randn(2, 4, 6), ragged_mask(4, 2), torch.randint(0, 5, (2, 4))
    loss = tags.loss(x, mask, gold)
    assert loss.item() == pytest.approx(-tags.score(x, mask, gold).sum().item() / 6, abs=1e-6)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in tags.parameters())


LOGS = np.random.default_rng(1).normal(size=(2, 4, 5))
GOLD = np.array([[1, 2, 0, 0], [3, 4, 0, 0]])


def with_logits(tags: TagsHead) -> tuple[TagsHead, Tensor, Tensor, Tensor]:
    """A head whose emissions are LOGS, and what it is called with."""
    with torch.no_grad():
        tags.emissions.weight.copy_(torch.eye(5))
        tags.emissions.bias.zero_()
    return tags, torch.from_numpy(LOGS).float(), ragged_mask(4, 2), torch.from_numpy(GOLD)


BALANCED = Vocabulary(LABELS, [0, 30, 30, 10, 10])  # spans of the label of each tag
WEIGHTS: dict[str, tuple[Any, Any, list[float]]] = {
    "by span label": (LABELS, {"scheme": "IOB2", "class_weights": {"b": 3.0, "O": 0.5}}, [0.5, 1, 1, 3, 3]),
    "by tag": (LABELS, {"scheme": "none", "class_weights": {"I-a": 3.0}}, [1, 1, 3, 1, 1]),
    "balanced": (BALANCED, {"scheme": "IOB2", "class_weights": "balanced"}, [1, 2 / 3, 2 / 3, 2, 2]),
    "none": (LABELS, {}, [1, 1, 1, 1, 1]),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_a_tag_of_weight_two_counts_as_two_tokens(case: str) -> None:
    labels, options, weights = WEIGHTS[case]
    tags, x, mask, gold = with_logits(TagsHead(5, labels, **options))
    p = np.exp(LOGS) / np.exp(LOGS).sum(2, keepdims=True)
    real = [(b, t) for b, n in enumerate((4, 2)) for t in range(n)]
    expected = sum(-weights[GOLD[place]] * np.log(p[place][GOLD[place]]) for place in real) / 6
    assert tags.loss(x, mask, gold).item() == pytest.approx(expected, abs=1e-6)
    tags.temperature.fill_(3.0)
    assert tags.loss(x, mask, gold).item() == pytest.approx(expected, abs=1e-6)


def test_a_weight_of_a_label_that_no_span_has_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"head.class_weights: the training data has no label 'B-a'; .* \(O, a, b\)"):
        TagsHead(6, LABELS, class_weights={"B-a": 2.0})
    with pytest.raises(UsageError, match=r"head.class_weights: the counts of the labels are unknown here"):
        TagsHead(6, LABELS, class_weights="balanced")


def test_the_temperature_is_the_likeliest_of_the_tags_and_in_the_state() -> None:
    tags, x, mask, gold = with_logits(TagsHead(5, LABELS, calibrate=True))
    rows = tags.evidence(x, mask, gold)["losses"]
    for i, T in enumerate(GRID):
        tags.temperature.fill_(T)
        assert torch.allclose(-rows[:, i], tags.score(x, mask, gold), atol=1e-5)
    sure = with_logits(TagsHead(5, LABELS, calibrate=True))[0]
    dice = torch.Generator().manual_seed(1)
    z = torch.randn(500, 4, 5, generator=dice)
    drawn = torch.multinomial(z.softmax(2).flatten(0, 1), 1, generator=dice).view(500, 4)
    sure.calibrate(sure.evidence(3 * z, ragged_mask(*[4] * 500), drawn))
    assert sure.calibration()["temperature"] == pytest.approx(3.0, rel=0.1)
    p = sure.decide(3 * z, ragged_mask(*[4] * 500))
    right = p["tags"] == drawn
    assert p["scores"].mean().item() == pytest.approx(right.float().mean().item(), abs=0.03)
    assert sure.state_dict()["temperature"] == sure.temperature


def test_everything_is_made_where_the_input_is() -> None:
    tags, x, mask = TagsHead(6, LABELS), torch.randn(2, 4, 6), ragged_mask(4, 2)
    with meta_device():
        made = tags.decide(x, mask)
    assert {rows.device.type for rows in made.values()} == {"cpu"}


def test_plain_tags_are_answered_as_tags() -> None:
    assert TagsHead.answer({"scheme": "none"}) == "tags"
    assert TagsHead.answer({"scheme": "BIOES"}) == TagsHead.answer({}) == "spans"
