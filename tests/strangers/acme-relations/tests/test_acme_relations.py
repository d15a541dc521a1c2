import pytest
import torch
from acme_relations.head import Relations

from seqpipe.plugin import check_head

LABELS = {"relations": ["none", "lives-in", "works-for"], "topic": ["home", "work"]}


@pytest.mark.parametrize("outside", ["none", "unrelated"])
def test_it_keeps_the_contract_of_heads(outside: str) -> None:
    check_head(Relations, outside=outside, hidden=8, dropout=0.1)


def test_the_logits_of_a_pair_are_biaffine() -> None:
    head = Relations(5, LABELS, hidden=4).eval()
    x = torch.randn(1, 3, 5)
    with torch.no_grad():
        log_p = head._log_p(x, torch.ones(1, 3).bool())[0][0]
        for i in range(3):
            for j in range(3):
                u, v = head.source(x[0, i]), head.target(x[0, j])
                a, b, c = head.source_bias.weight, head.target_bias.weight, head.source_bias.bias
                logits = torch.stack([u @ head.product[k] @ v + a[k] @ u + b[k] @ v + c[k] for k in range(3)])
                torch.testing.assert_close(log_p[i, j], logits.log_softmax(0))


def test_pair_recall_ignores_the_relation() -> None:
    first, second, third = (0, 3), (14, 18), (23, 27)
    gold = [{"relations": {(first, second): "works-for", (second, third): "lives-in"}, "topic": "work"}]
    answer = [{"relations": {(first, second): "lives-in", (third, first): "lives-in"}, "topic": "work"}]
    assert Relations.metrics({}, gold, answer) == {"pair_recall": 0.5}
    assert Relations.metrics({}, [{"relations": {}}], [{"relations": {}}]) == {"pair_recall": 0.0}
