"""Faults planted into an encoder and a head that answer in pieces, each caught by the kit's check."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqpipe.nn.incremental import CacheSlots, PrefixCache
from seqpipe.nn.loops import State
from seqpipe.testing.bench import Bench
from seqpipe.testing.incremental import STREAMS, streaming_checks
from seqpipe.testing.report import Subject, run_checks
from seqpipe.testing.stages import quiet
from seqpipe_plugins.encoders.lstm import LSTM
from seqpipe_plugins.encoders.transformer import Transformer
from seqpipe_plugins.encoders.words import Words
from seqpipe_plugins.heads.label import Label
from seqpipe_plugins.heads.tags import Tags


class ForgetsItsCache(LSTM):
    def import_cache(self, cache: Tensor) -> State:
        return tuple(torch.zeros_like(part) for part in super().import_cache(cache))


class ForgetsWhoWaits(LSTM):
    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        return torch.where(prefix.real[:, -1:, None, None], super().export_cache(prefix, slots), 0.0)


class MixesUpItsSlots(Transformer):
    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        return super().export_cache(prefix, slots._replace(order=slots.order.flip(1)))


class ReadsTheNeighbour(Words):
    def forward(self, x: Tensor, mask: Tensor, pieces: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        outputs = super().forward(x, mask, pieces)
        return {**outputs, "x": outputs["x"] + outputs["x"].roll(1, 1)}


class LosesItsMean(Label):
    def decide_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> dict[str, Tensor]:
        return super().decide_chunk(x, mask, state * 0.5)


class NeverStops(Tags):
    def decide_chunk(self, x: Tensor, mask: Tensor, state: Tensor) -> dict[str, Tensor]:
        decision = super().decide_chunk(x, mask, state)
        return {**decision, "tags": decision["tags"].roll(1, 1)}


def failed(kind: str, cls: type, folder: Path, **options: Any) -> set[str] | None:
    """The checks that failed; None if there is none."""
    checks = streaming_checks(Bench(Subject(kind, cls, options), folder))
    if not checks:
        return None
    with quiet():
        return {finding.check for finding in run_checks("planted", checks).failed}


@pytest.mark.parametrize(
    ("kind", "cls", "options"),
    [
        ("encoder", LSTM, {"direction": "forward", "layers": 2}),
        ("encoder", Transformer, {"causal": True, "heads": 2}),
        ("encoder", Words, {"pool": "mean"}),
        ("head", Tags, {"scheme": "IOB2"}),
        ("head", Label, {"pool": "mean"}),
        ("head", Label, {"pool": "max", "multi": True}),
    ],
)
def test_a_sound_component_passes(kind: str, cls: type, options: dict[str, Any], tmp_path: Path) -> None:
    assert failed(kind, cls, tmp_path, **options) == set()


@pytest.mark.parametrize(
    ("kind", "cls", "options"),
    [
        ("encoder", ForgetsItsCache, {"direction": "forward"}),
        ("encoder", ForgetsWhoWaits, {"direction": "forward"}),
        ("encoder", MixesUpItsSlots, {"causal": True, "heads": 2}),
        ("encoder", ReadsTheNeighbour, {}),
        ("head", LosesItsMean, {"pool": "mean"}),
        ("head", NeverStops, {"scheme": "none"}),
    ],
)
def test_a_planted_fault_is_caught(kind: str, cls: type, options: dict[str, Any], tmp_path: Path) -> None:
    assert failed(kind, cls, tmp_path, **options) == {STREAMS}


def test_what_does_not_claim_it_is_not_checked(tmp_path: Path) -> None:
    assert failed("encoder", LSTM, tmp_path, direction="both") is None
    assert failed("head", Label, tmp_path, pool="attention") is None
