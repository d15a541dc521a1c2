"""One layer of attention of a text to itself; the scores themselves are tested where attention is."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from encoder_equations import outputs
from exported_graphs import ragged_mask
from nn.test_attention import one_query

from seqpipe.errors import UsageError
from seqpipe.nn.attention import AttentionScore
from seqpipe_plugins.encoders.self_attention import SelfAttention

OPTIONS: list[dict[str, Any]] = [{}, {"residual": True, "combine": True}, {"residual": True, "causal": True}]


def build(score: AttentionScore, **options: Any) -> SelfAttention:
    return SelfAttention(6, score=score, heads=2 if score == "multi-head" else 1, units=5, **options).eval()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("score", get_args(AttentionScore))
def test_tokens_attend_to_the_text_by_the_score(score: AttentionScore, options: dict[str, Any], tmp_path: Path) -> None:
    causal = options.get("causal", False) and score != "location"  # which reads the last token
    encoder = build(score, **{**options, "causal": causal})
    in_graph = (causal and score in ("additive", "multi-head")) or (score == "location" and not options)
    for x, mask, output in outputs(encoder, tmp_path if in_graph else None, dim=6):
        assert tuple(output) == tuple(encoder.returns)
        for b, n in enumerate(mask.sum(1).tolist()):
            row = x[b, :n].double().numpy()
            for t in range(n):
                seen = t + 1 if causal else n
                context, weights = one_query(encoder.attention, row[t], row[:seen])
                context = context + row[t] if encoder.residual else context
                assert np.abs(output["x"][b, t] - context).max() < 1e-5
                assert np.abs(output["attention"][b, :, t, :seen] - weights).max() < 1e-5
                assert not output["attention"][b, :, t, seen:].any()
            assert not output["x"][b, n:].any()
            assert not output["attention"][b, :, n:].any()


def test_weights_by_location_cannot_be_causal() -> None:
    with pytest.raises(UsageError, match="causal: the score location reads the last token; choose another score"):
        build("location", causal=True)


def test_positions_are_added_to_x() -> None:
    plain, placed = build("dot"), build("dot", positions="learned", longest=3)
    x, mask = torch.randn(2, 5, 6), ragged_mask(5, 3)
    read = 6**0.5 * x + placed.positions.table[torch.tensor([0, 1, 2, 2, 2])]
    assert torch.allclose(placed(x, mask)["x"], plain(read, mask)["x"], atol=1e-5)
