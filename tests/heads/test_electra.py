"""ELECTRA: what the generator replaces, and a loss of its guesses and of their detection."""

from typing import Any

import pytest
import torch
from exported_graphs import ragged_mask
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe.features.vocabulary import MASK, SPECIALS, Vocabulary
from seqpipe_plugins.heads.electra import Electra

WORDS = Vocabulary([*SPECIALS, *"abcdefgh", MASK])
GAP = len(WORDS) - 1


def electra(**options: Any) -> Electra:
    torch.manual_seed(1)
    head = Electra(6, WORDS, generator=8, heads=2, **options)
    with torch.no_grad():
        head.table.weight.mul_(3)
    return head


def corrupted() -> tuple[Electra, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """A head, x and mask, and what `corrupt_batch` says of them."""
    head, mask = electra(share=0.6), ragged_mask(9, 7)
    names = head.corrupt_batch(torch.where(mask, torch.randint(4, GAP, mask.shape), 0), mask)
    return head, torch.randn(2, 9, 6), mask, {name: names[name] for name in ("replaced", "guessed", "guess_log_p")}


def test_only_hidden_tokens_are_replaced_and_what_is_drawn_may_be_right() -> None:
    head, mask = electra(share=0.5), ragged_mask(60, 50, 40)
    ids = torch.where(mask, torch.randint(4, GAP, mask.shape, generator=torch.Generator().manual_seed(2)), 0)
    found = head.corrupt_batch(ids, mask)
    assert not (found["replaced"] & ~found["guessed"]).any()
    assert torch.equal(found["replaced"], found["ids"] != ids)
    assert found["guessed"].sum() > found["replaced"].sum() > 0
    assert not (found["guessed"] & ~mask).any()
    assert set(found["ids"][mask].tolist()) <= set(range(4, GAP))


def test_tokens_are_drawn_as_likely_as_the_generator_thinks() -> None:
    head, ids = electra(share=0.001), torch.tensor([[4, 5, 6]]).expand(9000, 3)
    mask = torch.ones_like(ids, dtype=torch.bool)
    names = head.corrupt_batch(ids, mask)  # one gap in each row
    assert names["guessed"].sum(1).unique().tolist() == [1]
    for place in range(3):
        hidden = torch.tensor([[4, 5, 6]])
        hidden[0, place] = GAP
        z = head.guess(head.generator(head.table(hidden), mask[:1])["x"][0, place])
        p = (head.table.weight @ z + head.bias + head.logit_mask).softmax(0)
        drawn = names["ids"][names["guessed"][:, place], place]
        assert torch.allclose(drawn.bincount(minlength=len(WORDS)) / len(drawn), p, atol=0.05)


def test_the_loss_is_the_guesses_and_fifty_times_the_detection() -> None:
    head, x, mask, names = corrupted()
    missed = -names["guess_log_p"][names["guessed"]].mean()
    error = F.binary_cross_entropy(head.detect(x)[..., 0].sigmoid()[mask], names["replaced"][mask].float())
    assert head.loss(x, mask, **names).item() == pytest.approx((missed + 50 * error).item(), rel=1e-5)
    measures = {name: (pair[0] / pair[1]).item() for name, pair in head.measures(x, mask, **names).items()}
    assert measures["detection_perplexity"] == pytest.approx(error.item(), rel=1e-5)
    doubted = head.detect(x)[..., 0] > 0
    right = (doubted == names["replaced"])[mask].float()
    assert measures["detection_accuracy"] == pytest.approx(right.mean().item())
    assert measures["detection_recall"] == pytest.approx(doubted[names["replaced"]].float().mean().item())
    assert next(iter(measures)) == "detection_perplexity"
    assert measures["generator_perplexity"] == pytest.approx(missed.item(), rel=1e-5)
    expected = [(1 - head.detect(x)[row, :n, 0].sigmoid()).mean().item() for row, n in enumerate((9, 7))]
    assert head.decide(x, mask)["score"].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_generator_learns_by_its_own_guesses_alone() -> None:
    head, x, mask, names = corrupted()
    head.loss(x, mask, **names).backward()
    assert head.table.weight.grad is not None
    assert head.table.weight.grad.any()
    head.zero_grad()
    head.loss(x, mask, **names | {"guess_log_p": names["guess_log_p"].detach()}).backward()
    assert head.table.weight.grad is None


def test_a_vocabulary_without_a_mask_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the vocabulary has no \[MASK\]"):
        Electra(6, Vocabulary(WORDS[:-1]))
