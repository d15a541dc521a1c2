"""Faults planted into an encoder that decodes incrementally, each caught by the kit's check."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqpipe.nn.incremental import PrefixCache
from seqpipe.nn.loops import State
from seqpipe.testing.bench import Bench
from seqpipe.testing.incremental import CHUNKS, incremental_checks
from seqpipe.testing.report import Subject, run_checks
from seqpipe.testing.stages import quiet
from seqpipe_plugins.encoders.lstm import LSTM
from seqpipe_plugins.encoders.transformer import Transformer


class ForgetsWhatWasKept(LSTM):
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


def failed(cls: type, folder: Path, **options: Any) -> set[str]:
    bench = Bench(Subject("encoder", cls, options), folder)
    with quiet():
        return {finding.check for finding in run_checks("planted", incremental_checks(bench)).failed}


def test_a_sound_encoder_passes(tmp_path: Path) -> None:
    assert failed(LSTM, tmp_path, direction="forward") == set()


@pytest.mark.parametrize(
    "cls", [ForgetsWhatWasKept, SwapsItsStates, ReadsPromptsFromNothing, ReadsPastThePrompt, StatesTheWrongSlots]
)
def test_a_planted_fault_is_caught(cls: type, tmp_path: Path) -> None:
    assert failed(cls, tmp_path, direction="forward") == {CHUNKS}


def test_rows_of_a_prompt_that_are_not_those_requested_are_caught(tmp_path: Path) -> None:
    assert failed(Transformer, tmp_path, causal=True, heads=2) == set()
    assert failed(ReturnsOtherRows, tmp_path, causal=True, heads=2) == {CHUNKS}


def test_an_encoder_of_both_directions_is_not_checked(tmp_path: Path) -> None:
    assert incremental_checks(Bench(Subject("encoder", LSTM, {"direction": "both"}), tmp_path)) == []
