"""The keys of a YAML for pointers and for language models, which have no embedding of words and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from seqpipe.commands.init.summary import DataSummary
from seqpipe.commands.init.tokenizer import tokenizer_line

_BPE = {200_000: 600, 5_000_000: 4_000}  # characters of a text, and the size of a vocabulary for up to so many


def pointer_keys(summary: DataSummary, flow: Callable[[Any], str]) -> Iterator[str]:
    """Yield the lines of a pointer network."""
    options = "".join(f"{key}: {flow(value)}, " for key, value in summary.pointer.items())
    positions = "none" if summary.options.get("width") == 1 else "learned"
    yield "inputs:"
    yield "  points:"
    yield "    field: points"
    yield "    embedding: {use: linear, dim: 64}"
    yield "    encoder:"
    yield "      use: transformer"
    yield "      layers: 2"
    yield "      feedforward: 128"
    yield f"      positions: {positions}"
    yield "      scale: false"
    yield "      dropout: 0.0"
    yield f"head: {{use: pointer, {options}hidden: 64, score: bilinear}}  # the answer is a sequence of positions"
    yield "train:"
    yield "  epochs: 25"
    yield "  batch_tokens: 640"
    yield "  clip: 1.0"
    yield "  optimizer: {use: adamw, lr: 0.002}"
    yield "  schedule: {use: cosine, warmup_ratio: 0.05}"
    yield "  seed: 1"


def language_model_keys(summary: DataSummary) -> Iterator[str]:
    """Yield the lines of a causal Transformer."""
    size = next((size for most, size in _BPE.items() if summary.characters <= most), 8_000)
    is_small = size == 600
    yield tokenizer_line(summary, f"use: bpe, max_size: {size}, byte_level: true")
    yield f"embedding: {{use: lookup, dim: {128 if is_small else 256}}}"
    yield "encoder:"
    yield "  use: transformer"
    yield "  causal: true"
    yield f"  layers: {3 if is_small else 6}"
    yield "  heads: 4"
    yield "  positions: learned"
    yield "  longest: 128  # tokens of a prompt and its continuation"
    yield "  scale: false"
    yield "  activation: gelu"
    yield "  dropout: 0.1"
    yield "head: {use: lm, context: 128}  # a pretrained one writes far better: docs/tasks/language-models.md"
    yield "train:"
    yield "  epochs: 10"
    yield "  epoch_steps: 150"
    yield "  batch_size: 8"
    yield "  clip: 1.0"
    yield "  optimizer: {use: adamw, lr: 0.002, weight_decay: 0.1}"
    yield "  schedule: {use: cosine, warmup_ratio: 0.05}"
    yield "  seed: 1"
