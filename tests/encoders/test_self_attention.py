"""One layer of attention of a text to itself; the scores themselves are tested where attention is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from exported import elsewhere, export, ragged
from nn.test_attention import one_query
from torch import Tensor

from seqpipe.nn.attention import AttentionScore
from seqpipe_plugins.encoders.self_attention import SelfAttention

AXES = {"x": ("b", "t"), "mask": ("b", "t")}
Array = np.ndarray


def built(score: AttentionScore, **options: Any) -> SelfAttention:
    return SelfAttention(6, score=score, heads=2 if score == "multi-head" else 1, units=5, **options).eval()


def noisy(mask: Tensor) -> Tensor:
    return torch.randn(*mask.shape, 6).masked_fill(~mask[..., None], float("nan"))


def assert_follows(encoder: SelfAttention, x: Tensor, mask: Tensor, made: dict[str, Array], causal: bool) -> None:
    for b, n in enumerate(mask.sum(1).tolist()):
        row = x[b, :n].double().numpy()
        for t in range(n):
            seen = t + 1 if causal else n
            context, weights = one_query(encoder.attention, row[t], row[:seen])
            context = context + row[t] if encoder.residual else context
            assert np.abs(made["x"][b, t] - context).max() < 1e-5
            assert np.abs(made["attention"][b, :, t, :seen] - weights).max() < 1e-5
            assert not made["attention"][b, :, t, seen:].any()
        assert not made["x"][b, n:].any()
        assert not made["attention"][b, :, n:].any()


@pytest.mark.parametrize("options", [{}, {"residual": True, "combine": True}, {"causal": True}])
@pytest.mark.parametrize("score", get_args(AttentionScore))
def test_each_token_attends_to_its_text_as_the_score_says(score: AttentionScore, options: dict[str, Any]) -> None:
    encoder, mask = built(score, **options), ragged(4, 6, 1)
    x = noisy(mask)
    made = {name: value.detach().numpy() for name, value in encoder(x, mask).items()}
    assert tuple(made) == tuple(encoder.returns)
    assert_follows(encoder, x, mask, made, options.get("causal", False))


@pytest.mark.parametrize("score", ["additive", "multi-head"])
def test_the_graph_does_the_same_at_every_size(score: AttentionScore, tmp_path: Path) -> None:
    encoder, example = built(score, residual=True, causal=True), ragged(7, 2, 4)
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, AXES, x=noisy(example), mask=example)
    for mask in (ragged(1), ragged(9), ragged(2, 1), ragged(3, 12, 1, 7, 12)):
        x = noisy(mask)
        assert_follows(encoder, x, mask, graph(x=x, mask=mask), causal=True)


def test_positions_are_added_to_what_is_read() -> None:
    plain, placed = built("dot"), built("dot", positions="learned", longest=3)
    assert placed.positions is not None
    assert placed.positions.table is not None
    x, mask = torch.randn(2, 5, 6), ragged(5, 3)
    read = 6**0.5 * x + placed.positions.table[torch.tensor([0, 1, 2, 2, 2])]
    assert torch.allclose(placed(x, mask)["x"], plain(read, mask)["x"], atol=1e-5)


def test_everything_is_made_where_the_input_is() -> None:
    encoder, x, mask = built("dot", positions="sinusoidal", causal=True), torch.randn(2, 4, 6), ragged(4, 2)
    with elsewhere():
        assert {tensor.device.type for tensor in encoder(x, mask).values()} == {"cpu"}
