"""Comparison of two texts, against the formulas written out token by token in NumPy."""

from pathlib import Path

import encoder_equations
import numpy as np
import pytest
import torch
from encoder_equations import arrays
from exported_graphs import export
from numpy_cells import Array
from torch import Tensor

from seqpipe_plugins.encoders.compare import Compare

D, H = 5, 4
AXES = {**encoder_equations.AXES, "segments": ("b", "t")}


def batch(*sizes: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of texts of so many tokens, a separator between the two; what stands in the padding is arbitrary."""
    longest = max(a + 1 + b for a, b in sizes)
    x, segments = torch.randn(len(sizes), longest, D), torch.randint(0, 3, (len(sizes), longest))
    mask = torch.zeros(len(sizes), longest, dtype=torch.bool)
    for row, (a, b) in enumerate(sizes):
        mask[row, : a + 1 + b] = True
        segments[row, : a + 1], segments[row, a + 1 : a + 1 + b] = 1, 2
    return x, mask, segments


def expected(encoder: Compare, first: Array, second: Array) -> tuple[Array, dict[str, Array]]:
    """The state of one pair, and the alignment of each text."""
    w = {name: value.detach().double().numpy() for name, value in encoder.named_parameters()}

    def compared(own: Array, other: Array) -> tuple[list[float], Array]:
        def unit(rows: Array) -> Array:
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

        def p(rows: Array) -> Array:
            return np.tanh(unit(rows) * D**0.5 @ w["project.weight"].T + w["project.bias"])

        if not len(own):
            return [0.0] * (H + 2), np.zeros((0, len(other)))
        cosines = unit(own) @ unit(other).T if len(other) else np.zeros((len(own), 0))
        matched = np.maximum(0, cosines.max(1)) if len(other) else np.zeros(len(own))
        alignment = np.exp(w["sharpness"] * cosines)
        alignment /= alignment.sum(1, keepdims=True)
        q = alignment @ p(other) if len(other) else np.zeros((len(own), H))
        parts = np.concatenate([p(own), q, abs(p(own) - q), p(own) * q, matched[:, None]], 1)
        z = torch.tensor(np.maximum(0, parts @ w["compare.weight"].T + w["compare.bias"])).float()[None]
        pooled = encoder.pool(z, torch.ones(1, len(own), dtype=torch.bool))[0][0].detach().numpy()
        lengths = np.linalg.norm(own, axis=1)
        return [*pooled, (lengths * matched).sum() / lengths.sum(), matched.mean()], alignment

    (a, forward), (b, backward) = compared(first, second), compared(second, first)
    u, v = first.sum(0), second.sum(0)
    cosine = u @ v / max(1e-6, np.linalg.norm(u) * np.linalg.norm(v)) if len(first) and len(second) else 0.0
    total = max(1, len(first) + len(second))
    state = np.array([*a, *b, cosine, (len(first) - len(second)) / total])
    return state, {"forward": forward, "backward": backward}


SIZES = [(3, 2), (1, 1), (4, 6), (0, 3), (2, 0)]


def assert_follows(encoder: Compare, sizes: list[tuple[int, int]], x: Tensor, output: dict[str, Array]) -> None:
    for row, (a, b) in enumerate(sizes):
        own = x[row].double().numpy()
        state, alignment = expected(encoder, own[:a], own[a + 1 : a + 1 + b])
        assert np.abs(output["state"][row] - state).max() < 1e-5
        n = a + 1 + b
        assert np.abs(output["x"][row, :n] - state).max() < 1e-5
        assert not output["x"][row, n:].any()
        weights = output["attention"][row, 0]
        assert np.abs(weights[:a, a + 1 : n] - alignment["forward"]).max(initial=0) < 1e-5
        assert np.abs(weights[a + 1 : n, :a] - alignment["backward"]).max(initial=0) < 1e-5
        assert weights.sum() == pytest.approx((a + b) * (a > 0) * (b > 0), abs=1e-4)  # nothing else


def test_the_graph_and_pytorch_compare_two_texts_as_the_formulas_say(tmp_path: Path) -> None:
    encoder = Compare(D, hidden=H).eval()
    names = ("x", "mask", "segments")
    example = dict(zip(names, batch((3, 2), (5, 1)), strict=True))
    graph = export(tmp_path / "encoder.onnx", encoder, encoder.forward, AXES, **example)
    for sizes in ([(1, 1)], SIZES, [(9, 12)], [(2, 2)] * 7):
        feed = dict(zip(names, batch(*sizes), strict=True))
        for output in (graph(**feed), arrays(encoder(**feed))):
            assert tuple(output) == tuple(encoder.returns)
            assert_follows(encoder, sizes, feed["x"], output)
