"""The encoder `sentences`: hierarchical attention's lower half, step by step from the encoder_equations."""

from pathlib import Path
from typing import Any

import encoder_equations
import numpy as np
import pytest
import torch
from encoder_equations import arrays, noisy
from exported_graphs import export, ragged_mask
from numpy_cells import Array, Step, elman_tanh, gru_reset_after, layer, lstm
from torch import Tensor

from seqpipe.errors import UsageError
from seqpipe_plugins.encoders.sentences import SentencesEncoder

AXES = {**encoder_equations.AXES, "sentences": ("b", "s", "w")}
DOCUMENTS = [  # the lengths of the sentences of each row
    [[3, 1, 4], [2], [5, 2]],
    [[1]],
    [[7, 2, 1, 1, 3], [1], [4], [2, 2, 9], [1, 1], [12], [6, 5]],
]
STEPS: dict[str, Step] = {"gru": gru_reset_after, "lstm": lstm, "rnn": elman_tanh}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"cell": "lstm", "direction": "forward"},
    {"cell": "rnn", "direction": "backward", "pool": "last"},
    {"cell": "gru", "pool": "last"},
    {"cell": "none"},
    {"cell": "none", "pool": "max"},
    {"cell": "none", "pool": "last"},
    {"cell": "lstm", "pool": "mean"},
    {"cell": "rnn", "pool": "max"},
]


def inputs(rows: list[list[int]]) -> dict[str, Tensor]:
    mask = ragged_mask(*map(sum, rows))
    array = torch.zeros(len(rows), max(map(len, rows)), max(map(max, rows)), dtype=torch.int64)
    for b, lengths in enumerate(rows):
        at = 0
        for s, n in enumerate(lengths):
            array[b, s, :n] = torch.arange(at + 1, at + n + 1)
            at += n
    return {"x": noisy(mask), "mask": mask, "sentences": array}


def sentence(encoder: SentencesEncoder, words: Array, options: dict[str, Any]) -> tuple[Array, Array]:
    """The vector of one sentence (W, D) and the weights of its words (W,), from the published encoder_equations."""
    cell, pool = options.get("cell", "gru"), options.get("pool", "attention")
    states, last = words, words[-1]
    if cell != "none":
        ways = layer(STEPS[cell], encoder.cell, words, options.get("direction", "both"))  # type: ignore[arg-type]
        states, last = np.concatenate([way[0] for way in ways], 1), np.concatenate([way[1] for way in ways])
    one = np.eye(len(words))
    if pool == "last":
        return last, one[-1]
    if pool == "mean":
        return states.mean(0), np.full(len(words), 1 / len(words))
    if pool == "max":
        return states.max(0), one[states.argmax(0)].mean(0)
    p = {name: w.detach().double().numpy() for name, w in encoder.attention.named_parameters()}  # type: ignore[union-attr]
    v, U = p["attention.v.weight"][0], p["attention.key.weight"]
    scores = np.tanh(states @ U.T + p["attention.query.vector"][0, 0]) @ v
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights @ states, weights


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()) or "default")
def test_the_graph_and_pytorch_follow_the_equations(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder = SentencesEncoder(5, hidden=4, units=3, **options)
    graph = export(tmp_path / "sentences.onnx", encoder, encoder.forward, AXES, **inputs(DOCUMENTS[0]))
    for rows in DOCUMENTS:
        feed = inputs(rows)
        x = feed["x"].double().numpy()
        for output in (graph(**feed), arrays(encoder(**feed))):
            assert tuple(output) == tuple(SentencesEncoder.returns)
            assert output["mask"].sum(1).tolist() == [*map(len, rows)]
            for b, lengths in enumerate(rows):
                parts = np.split(x[b, : sum(lengths)], np.cumsum(lengths)[:-1])
                vectors, weights = zip(*(sentence(encoder, part, options) for part in parts), strict=True)
                assert np.abs(output["x"][b, : len(lengths)] - np.stack(vectors)).max() < 1e-5
                assert np.abs(output["state"][b] - vectors[-1]).max() < 1e-5
                assert np.abs(output["word_attention"][b, : sum(lengths)] - np.concatenate(weights)).max() < 1e-5
            assert not output["x"][~output["mask"]].any()
            assert not output["word_attention"][~feed["mask"].numpy()].any()


def test_a_text_without_any_word_gives_zeros_and_no_nan() -> None:
    feed = {"x": torch.full((2, 1, 5), float("nan")), "mask": torch.zeros(2, 1, dtype=torch.bool)}
    for options in OPTIONS:
        output = SentencesEncoder(5, hidden=4, **options)(**feed, sentences=torch.zeros(2, 1, 1, dtype=torch.int64))
        assert not output["mask"].any()
        assert not output["x"].any()
        assert not output["word_attention"].any()


def test_training_reads_what_evaluation_reads_and_its_gradient_is_finite() -> None:
    encoder, feed = SentencesEncoder(5, hidden=4), inputs(DOCUMENTS[2])
    output = encoder.train()(**feed)
    assert torch.equal(output["x"], encoder.eval()(**feed)["x"])
    output["x"].square().sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) and bool(p.grad.any()) for p in encoder.parameters())  # type: ignore[union-attr, arg-type]


def test_heads_that_do_not_fit_are_refused_with_their_place() -> None:
    with pytest.raises(UsageError, match=r"^sentences\.heads: 3 heads do not divide the width 8"):
        SentencesEncoder(5, hidden=4, score="multi-head", heads=3)


def test_where_sentences_end_is_the_features_option() -> None:
    assert SentencesEncoder.features({})["sentences"].split == "punctuation"
    assert SentencesEncoder.features({"split": "lines"})["sentences"].split == "lines"


@pytest.mark.parametrize("pool", [None, "attention", "last", "mean", "max"])
def test_only_attention_has_weights_of_words_to_explain(pool: str | None) -> None:
    explained = SentencesEncoder.explains({} if pool is None else {"pool": pool})
    assert explained == ({"word_attention": "words"} if pool in (None, "attention") else {})
