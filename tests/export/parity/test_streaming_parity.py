"""Answers in pieces are those to whole texts, for every encoder that claims it; planted faults are caught."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streamed_bundles import streaming_pipeline
from tiny_checkpoints import decoder
from tiny_pipelines import tiers
from torch import Tensor

from seqpipe.export.graph import random_batches, random_doc, to_onnx
from seqpipe.export.parity import gate
from seqpipe.export.parity.decisions import DecisionParity, Tally
from seqpipe.export.parity.gate import compare_streams, ragged_chunks
from seqpipe.nn.incremental import CacheSlots, PrefixCache
from seqpipe.testing.graphs import session_of
from seqpipe.training.evaluation import TrainedPipeline, predictor
from seqpipe_plugins.encoders.lstm import LSTM

FORWARD = {"hidden": 5, "direction": "forward"}
ENCODERS: list[Any] = [
    [{"use": "lstm", **FORWARD, "layers": 2}],
    [{"use": "gru", **FORWARD, "initial_state": {"column": "topic"}}],
    [{"use": "nested-lstm", **FORWARD}],
    [{"use": "lstm", **FORWARD, "peephole": "full"}],
    [{"use": "transformer", "causal": True, "heads": 2, "hidden": 8}, {"use": "rnn", **FORWARD}],
    *tiers(
        [{"use": "lstm", **FORWARD, "peephole": True}, {"use": "words"}],
        [{"use": "lstm", **FORWARD, "full_gate_recurrence": True}],
    ),
    pytest.param(
        [{"use": "transformer", "causal": True, "heads": 2, "positions": "learned", "longest": 6}],
        marks=pytest.mark.long,
    ),
    pytest.param([{"use": "lstm", **FORWARD, "coupled": True, "scan": True}], marks=pytest.mark.long),
]


def in_torch(pipeline: TrainedPipeline) -> Tally:
    run = predictor(pipeline.network).run
    parity = DecisionParity(pipeline.network, run, run, {})
    compare_streams(parity, 1)
    return parity.tally


def in_graph(pipeline: TrainedPipeline) -> Tally:
    graph = session_of(to_onnx(pipeline))
    parity = DecisionParity(pipeline.network, predictor(pipeline.network).run, graph, {})
    parity.compare_batches(random_batches(pipeline.artifacts, 1, (1, 3), (1, 7)), {})
    compare_streams(parity, 1)
    return parity.tally


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda stages: "-".join(stage["use"] for stage in stages))
def test_tags_in_pieces_are_those_of_the_whole_text(encoder: Any, tmp_path: Path) -> None:
    pipeline = streaming_pipeline(tmp_path, encoder)
    assert in_torch(pipeline) == Tally(decisions=24)
    tally = in_graph(pipeline)
    assert (tally.decisions, tally.different, tally.ties) == (24 + 8, 0, 0)


@pytest.mark.parametrize(("pool", "tally"), [("last", in_torch), ("first", in_torch), ("mean", in_graph)])
def test_the_label_of_the_text_so_far_is_in_the_end_that_of_the_whole(pool: str, tally: Any, tmp_path: Path) -> None:
    head = {"use": "label", "pool": pool, "target": "topic"}
    assert tally(streaming_pipeline(tmp_path, {"use": "gru", **FORWARD}, head=head)).different == 0


def test_a_pretrained_decoder_answers_in_pieces(tmp_path: Path) -> None:
    stage = {"checkpoint": str(decoder(tmp_path / "gpt2", "gpt2", ["Ada flew to Rome . it rains in Oslo today"] * 4))}
    encoder = [{"use": "pretrained-decoder", **stage}, {"use": "words", "pool": "mean"}]
    changes = {"embedding": [], "head": {"use": "tags", "scheme": "none"}, "tokenizer": {"use": "pretrained", **stage}}
    assert in_graph(streaming_pipeline(tmp_path, encoder, **changes)).different == 0


def test_the_texts_compared_are_ragged_and_begin_and_end_at_different_times(tmp_path: Path) -> None:
    network = streaming_pipeline(tmp_path, {"use": "gru", **FORWARD}).network
    random, source = np.random.default_rng(0), network.artifacts.featurizer
    docs = [random_doc(source, length, random) for length in (9, 4, 1, 6)]
    counts = [[len(doc) for doc in piece] for piece in ragged_chunks(docs, 1)]
    assert counts[0] == [1, 0, 1, 0]  # every second text begins later
    assert counts[2] == [1, 2, 0, 1]  # the third has ended
    assert [sum(of_text) for of_text in zip(*counts, strict=True)] == [9, 4, 1, 6]
    texts = ["".join(doc.text for doc in of_text) for of_text in zip(*ragged_chunks(docs, 2), strict=True)]
    assert texts == [doc.text for doc in docs]


IMPORT, EXPORT = LSTM.import_cache, LSTM.export_cache


def drop(self: LSTM, cache: Tensor) -> Any:
    return IMPORT(self, torch.zeros_like(cache))


def forget(self: LSTM, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
    """Keep no state of rows shorter than the longest of the batch, as of a text that waits."""
    return torch.where(prefix.real[:, -1:, None, None], EXPORT(self, prefix, slots), 0.0)


@pytest.mark.parametrize(("name", "method", "least"), [("import_cache", drop, 12), ("export_cache", forget, 0)])
def test_a_cache_that_is_dropped_or_not_kept_for_a_text_that_waits_is_caught(
    name: str, method: Any, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LSTM, name, method)
    tally = in_torch(streaming_pipeline(tmp_path, {"use": "lstm", **FORWARD}))
    assert tally.different > least
    assert tally.where == gate.CHUNKS_DIFFER


def test_a_bidirectional_encoder_that_slips_past_the_check_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LSTM, "causal_fix", staticmethod(lambda options: ""))
    encoder = {"use": "lstm", "hidden": 5, "direction": "both", "merge": "sum"}
    assert in_torch(streaming_pipeline(tmp_path, encoder)).different > 12


@pytest.mark.parametrize("name", ["stops", "past.head", "past.length"])
def test_an_input_or_output_of_the_graph_without_effect_is_caught(name: str, tmp_path: Path) -> None:
    encoder = {"use": "transformer", "causal": True, "heads": 2, "hidden": 8}
    network = streaming_pipeline(tmp_path, encoder, head={"use": "tags", "scheme": "IOB2"}).network
    run = predictor(network).run

    def planted(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        fed = {**feeds, name: np.zeros_like(feeds[name])} if name in feeds else feeds
        decision = run(fed)
        return {**decision, name: np.zeros_like(decision[name])} if name in decision else decision

    parity = DecisionParity(network, run, planted, {})
    compare_streams(parity, 1)
    assert parity.tally.different > 0
