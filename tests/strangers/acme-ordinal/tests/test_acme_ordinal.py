import numpy as np
import pytest
import torch
from acme_ordinal.head import Ordinal

from seqpipe.plugin import UsageError, check_head

LABELS = ["awful", "fair", "good", "poor"]  # sorted as texts
ORDER = ["awful", "poor", "fair", "good"]


def head_with(thresholds: list[float], labels: list[str] = LABELS, order: list[str] = ORDER) -> Ordinal:
    """A head whose s is the mean of the one number of x."""
    head = Ordinal(1, labels, order=order).eval()
    with torch.no_grad():
        head.slope.weight.fill_(1.0)
        head.lowest.fill_(thresholds[0])
        head.gaps.copy_(torch.tensor(thresholds).diff().expm1().log())
    return head


def texts(*scores: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of one token with the given s."""
    return torch.tensor(scores, dtype=torch.float32)[:, None, None], torch.ones(len(scores), 1).bool()


@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "a", "b"]])
def test_it_keeps_the_contract_of_heads(order: list[str]) -> None:
    check_head(Ordinal, order=order, dropout=0.1)


def test_the_probabilities_are_mccullaghs() -> None:
    head = head_with([-1.5, 0.25, 3.0])
    s = np.array([-2.0, 0.0, 0.7, 9.0])
    below = 1 / (1 + np.exp(-(np.array([-1.5, 0.25, 3.0]) - s[:, None])))  # P(rank <= k)
    by_rank = np.diff(below, axis=1, prepend=0, append=1)
    scores = head.decide(*texts(*s))["scores"].detach().numpy()
    np.testing.assert_allclose(scores[:, [LABELS.index(label) for label in ORDER]], by_rank, atol=1e-6)
    np.testing.assert_allclose(scores.sum(1), 1, atol=1e-6)


def test_the_decision_has_the_smallest_expected_error() -> None:
    head = head_with([-1.0, -0.8, 1.2])
    decided = head.decide(*texts(*np.linspace(-4, 4, 50)))
    by_rank = decided["scores"][:, head.positions]  # (B, L)
    apart = (torch.arange(4)[:, None] - torch.arange(4)).abs().float()
    assert torch.equal(head.ranks[decided["label"]], (by_rank @ apart).argmin(1))


def test_far_texts_keep_a_finite_loss_and_a_gradient() -> None:
    head = head_with([-1.0, 0.0, 1.0])
    head.loss(*texts(500.0), torch.tensor([LABELS.index("poor")])).backward()
    assert head.slope.weight.grad is not None
    assert head.slope.weight.grad.item() == pytest.approx(500, rel=1e-3)


def test_errors_count_in_ranks() -> None:
    scores = Ordinal.metrics({"order": ORDER}, ["good", "good", "poor", "odd"], ["good", "awful", "fair", None])
    assert scores == {"mean_absolute_error": (0 + 3 + 1 + 3) / 4}


@pytest.mark.parametrize("order", [["awful", "poor"], [*ORDER, "great"], [*ORDER, "good"]])
def test_an_order_of_other_labels_is_refused(order: list[str]) -> None:
    with pytest.raises(UsageError, match="each label of the training data once"):
        Ordinal(4, LABELS, order=order)
