"""The contexts of several sources become one as NumPy says, weights sum to 1, and one source is its own attention."""

from typing import Any

import numpy as np
import pytest
import torch
from nn.test_attention import one_query, softmax, weights_of
from torch import Tensor

from seqpipe.nn.attention import Attention
from seqpipe.nn.multi_source_attention import SourceAttention, join_masks, summarize_sources

LENGTHS = ((4, 2), (3, 5), (1, 6))  # of two rows in each of three sources
DIMS, HIDDEN = (5, 3, 4), 6


def sources(padding: float = 0.0) -> list[dict[str, Tensor]]:
    made = []
    for dim, lengths in zip(DIMS, LENGTHS, strict=True):
        torch.manual_seed(dim)
        mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        made.append({"x": torch.where(mask[..., None], torch.randn(2, max(lengths), dim), padding), "mask": mask})
    return made


def build(combine: Any, dims: tuple[int, ...] = DIMS) -> SourceAttention:
    torch.manual_seed(0)
    return SourceAttention(HIDDEN, dims, combine=combine, units=7).eval()


def expected(attention: SourceAttention, q: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The context of one query and its weights of all real positions, step by step."""
    contexts, weights = [], []
    for each, source, lengths in zip(attention.attentions, sources(), LENGTHS, strict=True):
        context, of_source = one_query(each, q, source["x"][row, : lengths[row]].double().numpy())
        contexts.append(context)
        weights.append(of_source[0])
    if attention.second is None:
        return np.concatenate(contexts), np.concatenate(weights) / 3
    p = weights_of(attention.second)
    query = p["query.weight"] @ q + p["query.bias"]
    scores = [p["v.weight"][0] @ np.tanh(query + p[f"keys.{i}.weight"] @ c) for i, c in enumerate(contexts)]
    shares = softmax(np.array(scores))
    values = np.array([p[f"values.{i}.weight"] @ c for i, c in enumerate(contexts)])
    return shares @ values, np.concatenate(
        [share * of_source for share, of_source in zip(shares, weights, strict=True)]
    )


@pytest.mark.parametrize("combine", ["concatenation", "hierarchy"])
def test_contexts_become_one_as_numpy_says(combine: str) -> None:
    made, query = build(combine), torch.randn(2, 3, HIDDEN)
    with torch.no_grad():
        context, weights = made.attend(query, made.project(sources()))
    assert context.shape == (2, 3, made.dim)
    real = join_masks(sources())
    for row in range(2):
        for n in range(3):
            vector, shares = expected(made, query[row, n].double().numpy(), row)
            assert np.abs(context[row, n].numpy() - vector).max() < 1e-5
            assert np.abs(weights[row, 0, n][real[row]].numpy() - shares).max() < 1e-6
            assert float(weights[row, 0, n][~real[row]].sum()) == 0


@pytest.mark.parametrize("combine", ["concatenation", "hierarchy"])
def test_the_padding_of_a_source_is_never_read_and_its_weights_sum_to_one(combine: str) -> None:
    made, query = build(combine), torch.randn(2, 3, HIDDEN)
    clean, dirty = (made.attend(query, made.project(sources(padding))) for padding in (0.0, float("nan")))
    assert torch.equal(clean[0], dirty[0])
    assert torch.allclose(dirty[1].sum(3), torch.ones(2, 1, 3))
    assert torch.isfinite(summarize_sources(sources(float("nan")))).all()


def test_one_source_is_its_own_attention() -> None:
    made, query = build("hierarchy", DIMS[:1]), torch.randn(2, 3, HIDDEN)
    (source,), alone = sources()[:1], Attention(HIDDEN, DIMS[0], units=7).eval()
    alone.load_state_dict(made.attentions[0].state_dict())
    for one, other in zip(
        made.attend(query, made.project([source])),
        alone.attend(query, alone.project(source["x"], source["mask"]), source["mask"]),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_a_decoder_begins_with_the_state_of_each_source_or_the_mean_of_its_x() -> None:
    given = sources()
    given[1] |= {"state": torch.full((2, DIMS[1]), 7.0)}
    given[2] |= {"state": torch.full((2, 99), 7.0)}  # not as wide as x
    made = summarize_sources(given)
    assert made.shape == (2, sum(DIMS))
    assert torch.equal(made[:, DIMS[0] : DIMS[0] + DIMS[1]], torch.full((2, DIMS[1]), 7.0))
    for start, number in ((0, 0), (DIMS[0] + DIMS[1], 2)):
        for row in range(2):
            mean = given[number]["x"][row, : LENGTHS[number][row]].mean(0)
            assert torch.allclose(made[row, start : start + DIMS[number]], mean)
