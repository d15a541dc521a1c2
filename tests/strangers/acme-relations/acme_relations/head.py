"""Relations between the words of a text, and its topic."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F


class Relations(nn.Module):
    """A softmax over relations for every ordered pair of words, and one over topics for the text.

    The logits of a pair are u' W_k v + a_k' u + b_k' v + c_k, with u and v two MLPs of the words' x: the biaffine
    scorer of Dozat and Manning (2017), as Nguyen and Verspoor (2019) use it. The topic is read from the mean of x.

    Args:
        outside: Label of the pairs that are not related.
        hidden: Width of the MLPs.
        dropout: Dropout probability of x.
    """

    answer = "structured"

    batch_dependent = True  # its loss is the sum of a mean over words and one over texts

    def __init__(
        self,
        dim: int,
        labels: Mapping[str, Sequence[str]],
        *,
        outside: Annotated[str, Field(min_length=1)] = "none",
        hidden: PositiveInt = 48,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ):
        super().__init__()
        count = len(labels["relations"])
        self.dropout = nn.Dropout(dropout)
        self.source = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU())
        self.target = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU())
        self.product = nn.Parameter(torch.randn(count, hidden, hidden) / hidden)
        self.source_bias, self.target_bias = nn.Linear(hidden, count), nn.Linear(hidden, count, bias=False)
        self.topic = nn.Linear(dim, len(labels["topic"]))

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        pairs = {"per": "pair", "type": "label", "outside": options.get("outside", "none")}
        return {"fields": {"relations": pairs, "topic": {"per": "text", "type": "label"}}}

    def loss(self, x: Tensor, mask: Tensor, relations: Tensor, topic: Tensor) -> Tensor:  # (B, T, T), (B,) targets
        of_pairs, of_topics = self._log_p(x, mask)
        pairs = -of_pairs.gather(3, relations[..., None])[..., 0]  # (B, T, T)
        words = mask.sum()
        return pairs[_pairs(mask)].sum() / words + F.nll_loss(of_topics, topic)  # most pairs are outside

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        of_pairs, of_topics = self._log_p(x, mask)
        p_pair, relations = of_pairs.exp().max(3)  # (B, T, T)
        p_topic, topic = of_topics.exp().max(1)  # (B,)
        return {"relations": relations, "relations_scores": p_pair, "topic": topic, "topic_scores": p_topic}

    def score(self, x: Tensor, mask: Tensor, relations: Tensor, topic: Tensor) -> Tensor:  # (B,)
        of_pairs, of_topics = self._log_p(x, mask)
        pairs = of_pairs.gather(3, torch.where(_pairs(mask), relations, 0)[..., None])[..., 0]
        return torch.where(_pairs(mask), pairs, 0.0).sum((1, 2)) + of_topics.gather(1, topic[:, None])[:, 0]

    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """The share of related pairs that are found, whatever their relation."""
        related = hits = 0
        for row, answer in zip(gold, predicted, strict=True):
            related += len(row["relations"])
            hits += len(row["relations"].keys() & answer["relations"].keys())
        return {"pair_recall": hits / max(1, related)}

    def _log_p(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # -> (B, T, T, K), (B, L)
        x = self.dropout(torch.where(mask[..., None], x, 0.0))
        source, target = self.source(x), self.target(x)  # (B, T, H)
        products = torch.einsum("bth,khg,bsg->btsk", source, self.product, target)
        logits = products + self.source_bias(source)[:, :, None] + self.target_bias(target)[:, None]
        mean = x.sum(1) / mask.sum(1, keepdim=True)
        return logits.log_softmax(3), self.topic(mean).log_softmax(1)


def _pairs(mask: Tensor) -> Tensor:  # (B, T) -> (B, T, T)
    return mask[:, :, None] & mask[:, None, :]
