"""Faults planted into components that decode incrementally or answer a stream, each caught by the kit's check."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqpipe.nn.incremental import CacheSlots, PrefixCache
from seqpipe.nn.loops import State
from seqpipe.testing.bench import Bench
from seqpipe.testing.incremental import CHUNKS, STREAMED_ANSWERS, incremental_checks, streaming_checks
from seqpipe.testing.report import Subject, run_checks
from seqpipe.testing.stages import quiet
from seqpipe_plugins.encoders.lstm import LSTM
from seqpipe_plugins.encoders.transformer import Transformer
from seqpipe_plugins.encoders.words import WordsEncoder
from seqpipe_plugins.heads.label import LabelHead
from seqpipe_plugins.heads.tags import TagsHead

FORWARD = {"direction": "forward"}
CAUSAL = {"causal": True, "heads": 2}


class ForgetsItsCache(LSTM):
    def import_cache(self, cache: Tensor) -> State:
        return tuple(torch.zeros_like(part) for part in super().import_cache(cache))


class SwapsItsStates(LSTM):
    def step(self, x: Tensor, t: Tensor, prefix: PrefixCache, state: State) -> tuple[Tensor, State]:
        x_next, (hidden, cell) = super().step(x, t, prefix, state)
        return x_next, (cell, hidden)


class ReadsPromptsFromNothing(LSTM):
    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        return super().prefill(x, mask, prefix._replace(memory=tuple(torch.zeros_like(part) for part in prefix.memory)))


class ReadsPastThePrompt(LSTM):
    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, State]:
        return super().prefill(x, torch.ones_like(mask), prefix)


class StatesTheWrongSlots(LSTM):
    cache_per_token = True


class ReturnsOtherRows(Transformer):
    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache, rows: Tensor | None = None) -> tuple[Tensor, State]:
        return super().prefill(x, mask, prefix, rows if rows is None else rows * 0)


class ForgetsWaitingRows(LSTM):
    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        return torch.where(prefix.real[:, -1:, None, None], super().export_cache(prefix, slots), 0.0)


class MixesUpItsSlots(Transformer):
    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        return super().export_cache(prefix, slots._replace(order=slots.order.flip(1)))


class ReadsTheNeighbour(WordsEncoder):
    def forward(self, x: Tensor, mask: Tensor, pieces: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        outputs = super().forward(x, mask, pieces)
        return {**outputs, "x": outputs["x"] + outputs["x"].roll(1, 1)}


class LosesItsMean(LabelHead):
    def decide_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> dict[str, Tensor]:
        return super().decide_chunk(x, mask, state * 0.5)


class NeverStops(TagsHead):
    def decide_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> dict[str, Tensor]:
        decision = super().decide_chunk(x, mask, state)
        return {**decision, "tags": decision["tags"].roll(1, 1)}


def failed(checks_of: Any, kind: str, cls: type, folder: Path, options: dict[str, Any]) -> set[str] | None:
    """The checks that failed; None if there is none for this component."""
    checks = checks_of(Bench(Subject(kind, cls, options), folder))
    with quiet():
        return {finding.check for finding in run_checks("planted", checks).failed} if checks else None


@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (LSTM, FORWARD, set()),
        (Transformer, CAUSAL, set()),
        (LSTM, {"direction": "both"}, None),
        *((cls, FORWARD, {CHUNKS}) for cls in (ForgetsItsCache, SwapsItsStates, ReadsPromptsFromNothing)),
        *((cls, FORWARD, {CHUNKS}) for cls in (ReadsPastThePrompt, StatesTheWrongSlots)),
        (ReturnsOtherRows, CAUSAL, {CHUNKS}),
    ],
)
def test_incremental_decoding_passes_its_check_unless_it_has_a_fault(
    cls: type, options: dict[str, Any], expected: set[str] | None, tmp_path: Path
) -> None:
    assert failed(incremental_checks, "encoder", cls, tmp_path, options) == expected


@pytest.mark.parametrize(
    ("kind", "cls", "options", "expected"),
    [
        ("encoder", LSTM, {**FORWARD, "layers": 2}, set()),
        ("encoder", Transformer, CAUSAL, set()),
        ("encoder", WordsEncoder, {"pool": "mean"}, set()),
        ("head", TagsHead, {"scheme": "IOB2"}, set()),
        ("head", LabelHead, {"pool": "mean"}, set()),
        ("head", LabelHead, {"pool": "max", "multi": True}, set()),
        ("encoder", ForgetsItsCache, FORWARD, {STREAMED_ANSWERS}),
        ("encoder", ForgetsWaitingRows, FORWARD, {STREAMED_ANSWERS}),
        ("encoder", MixesUpItsSlots, CAUSAL, {STREAMED_ANSWERS}),
        ("encoder", ReadsTheNeighbour, {}, {STREAMED_ANSWERS}),
        ("head", LosesItsMean, {"pool": "mean"}, {STREAMED_ANSWERS}),
        ("head", NeverStops, {"scheme": "none"}, {STREAMED_ANSWERS}),
        ("encoder", LSTM, {"direction": "both"}, None),
        ("head", LabelHead, {"pool": "attention"}, None),
    ],
)
def test_streaming_passes_its_check_unless_it_has_a_fault(
    kind: str, cls: type, options: dict[str, Any], expected: set[str] | None, tmp_path: Path
) -> None:
    assert failed(streaming_checks, kind, cls, tmp_path, options) == expected
