"""The biaffine dependency parser: the head and the relation of each word."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from acme_parser.tree import spanning_tree
from seqpipe.plugin import Metric

MASKED_LOGIT = -1e4


class Biaffine(nn.Module):
    """s_k(a, b) = [a; 1]' U_k [b; 1] (Dozat and Manning 2017, equations 2 and 3)."""

    def __init__(self, dim: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, dim + 1, dim + 1))
        nn.init.normal_(self.weight, std=dim**-0.5)

    def pairs(self, a: Tensor, b: Tensor) -> Tensor:  # (B, T, D), (B, S, D) -> (B, T, S), of the first output
        return _with_one(a) @ self.weight[0] @ _with_one(b).transpose(1, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:  # (B, T, D), (B, T, D) -> (B, T, K)
        left = torch.einsum("btd,kde->btke", _with_one(a), self.weight)
        return (left @ _with_one(b)[..., None])[..., 0]


class BiaffineParser(nn.Module):
    """Scores every word as the head of every other word by a biaffine product (Dozat and Manning 2017).

    p(head of i = j) is a softmax over j of s(dependent_i, head_j); p(relation | i, j) a softmax over relations of
    another biaffine product; each vector is an MLP of x, and the root has a learned x. It decides for the tree with the
    greatest probability.

    Args:
        arc_dim: Width of the MLPs of arcs.
        relation_dim: Width of the MLPs of relations.
        dropout: Dropout probability of x and of the MLPs.
    """

    answer = "structured"
    answer_settings: ClassVar = {
        "fields": {
            "head": {"per": "word", "type": "position", "target": "heads"},
            "relation": {"per": "word", "type": "label", "target": "relations"},
        }
    }
    score_types: ClassVar = {"las": Metric()}

    def __init__(
        self,
        dim: int,
        labels: Mapping[str, Sequence[str]],
        *,
        arc_dim: PositiveInt = 200,
        relation_dim: PositiveInt = 64,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.33,
    ):
        super().__init__()
        self.root = nn.Parameter(torch.randn(dim) / dim**0.5)
        self.dropout = nn.Dropout(dropout)
        self.arc_dependent, self.arc_head = _mlp(dim, arc_dim, dropout), _mlp(dim, arc_dim, dropout)
        self.relation_dependent = _mlp(dim, relation_dim, dropout)
        self.relation_head = _mlp(dim, relation_dim, dropout)
        self.arc = Biaffine(arc_dim, 1)
        self.relation = Biaffine(relation_dim, len(labels["relation"]))

    def loss(self, x: Tensor, mask: Tensor, head: Tensor, relation: Tensor) -> Tensor:  # targets: (B, T)
        arcs, relations = self._log_p(x, mask, head)
        at_heads = arcs.gather(2, _column(head, mask))[..., 0]
        at_relations = relations.gather(2, relation[..., None])[..., 0]
        return -(at_heads + at_relations)[mask].mean()

    def loss_count(self, mask: Tensor) -> Tensor:
        return mask.sum()

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = self._with_root(x, mask)
        arcs = self._arcs(x, mask)  # (B, T, 1 + T)
        head = spanning_tree(arcs, mask)  # (B, T)
        p_relation, relation = self._relations(x, mask, head).exp().max(2)
        p_head = arcs.gather(2, _column(head, mask))[..., 0].exp()
        return {"head": head, "relation": relation, "head_scores": p_head, "relation_scores": p_relation}

    def score(self, x: Tensor, mask: Tensor, head: Tensor, relation: Tensor) -> Tensor:  # (B,)
        arcs, relations = self._log_p(x, mask, head)
        words = arcs.gather(2, _column(head, mask)) + relations.gather(2, relation[..., None])
        return torch.where(mask, words[..., 0], 0.0).sum(1)

    def margin(
        self, x: Tensor, mask: Tensor, head: Tensor, relation: Tensor, other_head: Tensor, other_relation: Tensor
    ) -> Tensor:  # (B,): between the trees, and of either's relations to the best ones at its heads
        arcs, _ = self._log_p(x, mask, head)
        gap = arcs.gather(2, _column(head, mask)) - arcs.gather(2, _column(other_head, mask))
        regret = self._regret(x, mask, head, relation) + self._regret(x, mask, other_head, other_relation)
        return torch.where(mask, gap[..., 0], 0.0).sum(1).abs() + regret

    @staticmethod
    def metrics(options: Mapping[str, Any], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Labelled attachment: the share of words whose head and relation are both right."""
        words = right = 0
        for tree, answer in zip(gold, predicted, strict=True):
            for place, head in tree["head"].items():
                words += 1
                reference = (head, tree["relation"][place])
                right += (answer["head"].get(place, "missing"), answer["relation"].get(place)) == reference
        return {"las": right / max(1, words)}

    def _with_root(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D) -> (B, 1 + T, D)
        x = self.dropout(torch.where(mask[..., None], x, 0.0))
        return torch.cat([self.root.expand(x.shape[0], 1, -1), x], 1)

    def _log_p(self, x: Tensor, mask: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:  # (B, T, 1 + T), (B, T, L)
        x = self._with_root(x, mask)
        return self._arcs(x, mask), self._relations(x, mask, head)

    def _arcs(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, 1 + T, D) -> (B, T, 1 + T): log p(head)
        logits = self.arc.pairs(self.arc_dependent(x[:, 1:]), self.arc_head(x))
        position = torch.arange(mask.shape[1], device=x.device)
        possible = F.pad(mask[:, None, :] & (position[:, None] != position), (1, 0), value=True)  # no word heads itself
        return torch.where(possible, logits, MASKED_LOGIT).log_softmax(2)

    def _relations(self, x: Tensor, mask: Tensor, head: Tensor) -> Tensor:  # -> (B, T, L): log p(relation | head)
        heads = self.relation_head(x)
        heads = heads.gather(1, _column(head, mask).expand(-1, -1, heads.shape[2]))
        return self.relation(self.relation_dependent(x[:, 1:]), heads).log_softmax(2)

    def _regret(self, x: Tensor, mask: Tensor, head: Tensor, relation: Tensor) -> Tensor:  # -> (B,)
        _, relations = self._log_p(x, mask, head)
        below = relations.amax(2) - relations.gather(2, relation[..., None])[..., 0]
        return torch.where(mask, below, 0.0).sum(1)


def _mlp(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, hidden), nn.LeakyReLU(0.1), nn.Dropout(dropout))


def _with_one(x: Tensor) -> Tensor:  # (..., D) -> (..., D + 1)
    return F.pad(x, (0, 1), value=1.0)


def _column(head: Tensor, mask: Tensor) -> Tensor:  # (B, T) -> (B, T, 1): the column of a head, 0 is the root
    return torch.where(mask, head + 1, 0)[..., None]
