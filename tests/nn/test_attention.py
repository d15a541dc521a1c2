"""Every attention score against its published equation in NumPy, in PyTorch and as a graph."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from exported_graphs import export, meta_device, ragged_mask
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe.nn.attention import Attention, AttentionPool, AttentionScore, CoverageAttention, fused_attention

SCORES: tuple[AttentionScore, ...] = get_args(AttentionScore)
POOLED = [score for score in SCORES if score != "location"]  # which has nothing to read without a query
EQUAL = ("dot", "scaled-dot")  # what needs queries as wide as keys
MASKS = [ragged_mask(1), ragged_mask(9), ragged_mask(2, 1), ragged_mask(3, 12, 1, 7, 12)]
Array = np.ndarray


def softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max())
    return shifted / shifted.sum()


def weights_of(attention: nn.Module) -> dict[str, Array]:
    return {name: value.detach().double().numpy() for name, value in attention.named_parameters()}


def one_score(p: dict[str, Array], score: str, q: Array, k: Array) -> float:
    """The published score of one query and one key."""
    match score:
        case "dot":
            return float(q @ k)
        case "scaled-dot":
            return float(q @ k / np.sqrt(len(q)))
        case "bilinear":
            return float(q @ p["key.weight"] @ k)
        case "additive":
            return float(p["v.weight"][0] @ np.tanh(p["query.weight"] @ q + p["query.bias"] + p["key.weight"] @ k))
        case "key-only":  # a layer over [q; k], whatever the query's weights are
            w = np.concatenate([np.full(len(q), 0.7), p["key.weight"][0]])
            return float(w @ np.concatenate([q, k]) + 0.3)
        case "concat-tanh":
            W = np.concatenate([p["query.weight"], p["key.weight"]], 1)
            return float(np.tanh(W @ np.concatenate([q, k]) + p["query.bias"]).sum())
    raise AssertionError(score)


def one_query(attention: Attention, q: Array, keys: Array) -> tuple[Array, Array]:
    """The context and the weights (H, T) of one query over the keys (T, Dk) of a text without padding."""
    p, score, H = weights_of(attention), attention.score, attention.heads
    if score == "location":
        places = p["location.weight"] @ np.concatenate([q, keys[-1]]) + p["location.bias"]  # of all positions
        weights = softmax(places[: len(keys)])[None]
        context = weights[0] @ keys
    elif score != "multi-head":
        weights = softmax(np.array([one_score(p, score, q, k) for k in keys]))[None]
        context = weights[0] @ keys
    else:
        queries = np.split(p["query.weight"] @ q + p["query.bias"], H)
        projected, values = (np.split(keys @ p[f"{name}.weight"].T, H, 1) for name in ("key", "value"))
        weights = np.stack([softmax(k @ a / np.sqrt(len(a))) for a, k in zip(queries, projected, strict=True)])
        context = np.concatenate([w @ v for w, v in zip(weights, values, strict=True)]) + p["value.bias"]
        context = p["output.weight"] @ context + p["output.bias"]
    if attention.combine is not None:
        context = p["combine.weight"] @ np.concatenate([q, context]) + p["combine.bias"]
    return context, weights


def build(score: AttentionScore, **options: Any) -> Attention:
    heads, keys = 3 if score == "multi-head" else 1, 6 if score in EQUAL else 4
    return Attention(6, keys, score=score, units=5, heads=heads, positions=13, **options).eval()


def test_a_learned_query_is_drawn_so_that_scores_begin_near_one_whatever_the_width() -> None:
    for width in (16, 400):
        query = Attention(None, width, score="dot").query.vector * width**0.5
        assert query.abs().max().item() == pytest.approx(1, abs=0.3)
        assert query.abs().max() <= 1


def given(attention: Attention, mask: Tensor, queries: int) -> tuple[Tensor, Tensor]:
    """Queries, and keys with NaN in the padding."""
    keys = torch.randn(*mask.shape, 6 if attention.score in EQUAL else 4)
    return torch.randn(len(mask), queries, 6), keys.masked_fill(~mask[..., None], float("nan"))


def assert_follows(attention: Attention, query: Tensor, keys: Tensor, mask: Tensor, made: tuple[Any, Any]) -> None:
    context, weights = (np.asarray(array) for array in made)  # (B, N, D), (B, H, N, T)
    assert context.shape == (*query.shape[:2], attention.dim)
    for b, n in enumerate(mask.sum(1).tolist()):
        for i in range(query.shape[1]):
            expected = one_query(attention, query[b, i].double().numpy(), keys[b, :n].double().numpy())
            assert np.abs(context[b, i] - expected[0]).max() < 1e-5
            assert np.abs(weights[b, :, i, :n] - expected[1]).max() < 1e-6
        assert not weights[b, :, :, n:].any()


@pytest.mark.parametrize("combine", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_every_score_follows_its_equation_whatever_stands_in_the_padding(score: AttentionScore, combine: bool) -> None:
    attention, mask = build(score, combine=combine), ragged_mask(4, 6, 1)
    query, keys = given(attention, mask, 3)
    with torch.no_grad():
        made = attention.attend(query, attention.project(keys, mask), mask)
        context, weights = attention(query, keys, mask)
    assert_follows(attention, query, keys, mask, made)
    assert torch.equal(context, made[0])
    assert torch.equal(weights, made[1].mean(1))
    assert torch.allclose(weights.sum(2), torch.ones(3, 3))


@pytest.mark.parametrize("score", SCORES)
def test_the_graph_gives_the_same_for_every_size(score: AttentionScore, tmp_path: Path) -> None:
    attention, mask = build(score, combine=True), ragged_mask(7, 2, 4)
    axes = {"query": ("b", "n"), "keys": ("b", "t"), "mask": ("b", "t")}
    query, keys = given(attention, mask, 5)

    def call(query: Tensor, keys: Tensor, mask: Tensor) -> dict[str, Tensor]:
        context, weights = attention.attend(query, attention.project(keys, mask), mask)
        return {"context": context, "weights": weights}

    graph = export(tmp_path / "attention.onnx", attention, call, axes, query=query, keys=keys, mask=mask)
    for mask in MASKS:
        for queries in (1, 4):
            query, keys = given(attention, mask, queries)
            made = graph(query=query, keys=keys, mask=mask)
            assert_follows(attention, query, keys, mask, (made["context"], made["weights"]))


@pytest.mark.parametrize("score", POOLED)
def test_a_text_without_a_real_position_gives_zeros(score: AttentionScore) -> None:
    heads = 2 if score == "multi-head" else 1
    pool, mask = AttentionPool(4, score=score, units=5, heads=heads), torch.tensor([[True, True], [False, False]])
    x = torch.randn(2, 2, 4).masked_fill(~mask[..., None], float("nan")).requires_grad_()
    pooled, weights = pool(x, mask)
    assert not weights[1].any()
    assert score == "multi-head" or not pooled[1].any()
    pooled.square().sum().backward()
    grads = [x.grad[0] if x.grad is not None else None, *(p.grad for p in pool.parameters())]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize("score", SCORES)
def test_scores_of_any_size_give_weights_that_sum_to_one(score: AttentionScore) -> None:
    attention, mask = build(score), ragged_mask(4, 6)
    query, keys = given(attention, mask, 3)
    _, weights = attention(1e6 * query, -1e6 * keys, mask)
    assert torch.allclose(weights.sum(2), torch.ones(2, 3), atol=1e-5)
    assert not weights[0, :, 4:].any()


@pytest.mark.parametrize("score", SCORES)
def test_every_weight_learns(score: AttentionScore) -> None:
    attention, pool = build(score, combine=True), AttentionPool(6, score="dot" if score == "location" else score)
    mask = ragged_mask(13, 4, 5)
    query, keys = given(attention, mask, 3)
    (attention(query, keys, mask)[0].square().sum() + pool(query, ragged_mask(3, 2, 3))[0].square().sum()).backward()
    assert all(p.grad is not None and p.grad.any() for m in (attention, pool) for p in m.parameters())


def test_dropout_silences_weights_in_training_only() -> None:
    attention, mask = build("additive", dropout=0.5), ragged_mask(4, 6)
    query, keys = given(attention, mask, 3)
    assert torch.equal(attention(query, keys, mask)[0], attention(query, keys, mask)[0])
    attention.train()
    assert not torch.equal(attention(query, keys, mask)[0], attention(query, keys, mask)[0])


@pytest.mark.parametrize("score", SCORES)
def test_everything_is_made_where_the_input_is(score: AttentionScore) -> None:
    attention, mask = build(score), ragged_mask(4, 2)
    query, keys = given(attention, mask, 3)
    with meta_device():
        assert {tensor.device.type for tensor in attention(query, keys, mask)} == {"cpu"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "dot"}, "score: dot needs queries as wide as keys, not 6 and 4; choose bilinear or additive"),
        ({"score": "scaled-dot"}, "score: scaled-dot needs queries as wide as keys, not 6 and 4; choose bilinear"),
        ({"score": "multi-head", "heads": 4}, "heads: 4 heads do not divide the width 6; choose 1, 2, 3, 6"),
        ({"score": "additive", "heads": 2}, "heads: the score additive has one head, not 2; choose the score multi"),
        ({"score": "concat"}, "not 'concat'; it is now called 'key-only': its term of the query has no effect"),
        ({"score": "dott"}, "score: should be 'dot', "),
    ],
)
def test_what_does_not_fit_is_refused_with_its_cure(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Attention(6, 4, **options)
    assert message in str(refused.value)


def test_weights_by_location_read_the_query_and_the_last_real_key_and_no_other() -> None:
    attention, mask = build("location"), ragged_mask(5, 3)
    query, keys = given(attention, mask, 2)
    other_query, other_keys, other_last = query + 1, keys.clone(), keys.clone()
    other_keys[:, :2] += 1
    other_last[0, 4] += 1
    _, weights = attention(query, keys, mask)
    assert torch.equal(attention(query, other_keys, mask)[1], weights)
    assert not torch.allclose(attention(other_query, keys, mask)[1], weights, atol=1e-3)
    _, changed = attention(query, other_last, mask)
    assert not torch.allclose(changed[0], weights[0], atol=1e-3)
    assert torch.equal(changed[1], weights[1])  # whose last key is the third


def test_a_pool_which_has_no_query_refuses_weights_by_location() -> None:
    with pytest.raises(UsageError, match="without a query, location reads only the last position; choose another"):
        AttentionPool(4, score="location")


def test_padding_beyond_the_positions_of_weights_by_location_changes_nothing() -> None:
    attention, mask = build("location"), ragged_mask(13, 3)
    query, keys = given(attention, mask, 2)
    padded = attention(query, nn.functional.pad(keys, (0, 0, 0, 5)), nn.functional.pad(mask, (0, 5)))
    for part, alone in zip(padded, attention(query, keys, mask), strict=True):
        torch.testing.assert_close(part[..., : alone.shape[2]], alone)


@pytest.mark.parametrize("score", SCORES)
def test_contexts_without_weights_and_their_gradients_are_those_of_the_formula(score: AttentionScore) -> None:
    torch.manual_seed(0)
    heads = 2 if score == "multi-head" else 1
    attention = Attention(8, 8, score=score, units=5, heads=heads).double()
    query, keys = torch.randn(3, 40, 8).double(), torch.randn(3, 30, 8).double()
    mask = torch.rand(3, 40, 30) < 0.6
    mask[1], mask[0, 3] = False, False  # a text, and a query, without a position
    results = []
    for weights in (True, False):
        inputs = [query.clone().requires_grad_(), keys.clone().requires_grad_()]
        projected = attention.project(inputs[1], torch.ones(3, 30, dtype=torch.bool))
        context, returned = attention.attend(inputs[0], projected, mask, weights=weights)
        context.sin().sum().backward()
        results.append((context, *(x.grad for x in inputs)))
    assert weights or returned.shape[-1] in (0, 30)
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("block", [20, 1 << 16])
def test_additive_scores_in_blocks_have_the_gradients_of_autograd(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("seqpipe.nn.attention.VALUES_PER_BLOCK", block)
    attention = CoverageAttention(4, 3, units=5).double()
    names = ("query.weight", "query.bias", "key.weight", "v.weight", "coverage.weight")
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])

    def contexts(query: Tensor, keys: Tensor, covered: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        for name, weight in zip(names, weights, strict=True):
            owner, kind = name.split(".")
            module = getattr(attention, owner)
            delattr(module, kind)
            setattr(module, kind, weight)
        return attention.attend_covered(query, attention.project(keys, mask), mask, covered)

    weights = [attention.get_parameter(name).detach().clone().requires_grad_() for name in names]
    sizes = ((2, 3, 4), (2, 6, 3), (2, 3, 6))
    inputs = [torch.rand(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    assert torch.autograd.gradcheck(contexts, (*inputs, *weights))


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_of_weights_in_blocks_is_the_same_in_both_passes(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    monkeypatch.setattr("seqpipe.nn.attention.WEIGHTS_PER_BLOCK", 40)
    inputs = [torch.randn(2, 2, 6, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.tensor([[True] * 6, [True] * 6 if causal else [True] * 4 + [False] * 2])

    def context(*inputs: Tensor, dropout: float = 0.4) -> Tensor:
        torch.manual_seed(1)
        return fused_attention(*inputs, mask, causal=causal, dropout=dropout)

    assert torch.autograd.gradcheck(context, inputs)
    assert not torch.equal(context(*inputs), context(*inputs, dropout=0.0))
    monkeypatch.setattr("seqpipe.nn.attention.WEIGHTS_PER_BLOCK", 1 << 20)
    torch.testing.assert_close(context(*inputs, dropout=1e-12), context(*inputs, dropout=0.0))
