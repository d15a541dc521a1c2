"""Span corruption: a sequence-to-sequence head learns to write the hidden spans of a text, without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe.features.vocabulary import MARKS
from seqpipe.nn.corruption import Drawn, spans_hidden


class SpanCorruption(nn.Module):
    """A part of a head that writes: with an option `spans` that is no null it learns from texts alone.

    The text with a mark for each hidden span is read, the marks and what they hide are written (Raffel et al. 2020).
    """

    marks: Tensor

    @staticmethod
    def self_supervised(options: Mapping[str, Any]) -> bool:
        return options.get("spans") is not None

    @staticmethod
    def corrupted_inputs(options: Mapping[str, Any]) -> tuple[str, ...]:
        return () if options.get("spans") is None else ("ids", "mask", "target_ids", "target_mask")

    @staticmethod
    def answer(options: Mapping[str, Any]) -> str:
        return "text" if options.get("spans") is None else "span-infilling"

    @staticmethod
    def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
        """The share of hidden tokens and the mean length of spans in evaluation; without spans those of any text."""
        bleu = {"bleu_tokenize": options.get("bleu_tokenize")}
        if options["spans"] is None:
            return {"equal_length": options.get("equal_length", False), **bleu}
        return {"share": options["spans"], "length": options["span_length"], **bleu}

    def learn_spans(self, vocabulary: Sequence[str], spans: float | None, length: float) -> None:
        """Finds the marks among the tokens; UsageError where there are none and there is to be a use for them."""
        ids = {token: i for i, token in enumerate(vocabulary)}
        marks = [ids[mark] for mark in MARKS if mark in ids]
        if spans is not None and len(marks) < 2:
            cure = "take the tokenizer of another run, or learn one"
            raise UsageError(f"spans: the vocabulary lacks {MARKS[0]} and {MARKS[1]}, which stand for spans; {cure}")
        self.spans, self.span_length = spans, length
        self.register_buffer("marks", torch.tensor(marks, dtype=torch.int64), persistent=False)

    def corrupt_batch(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> dict[str, Tensor]:
        """The text with sentinels, `ids` and `mask` (B, T'); its spans, `target_ids` and `target_mask` (B, N)."""
        if segments is not None:
            raise UsageError(
                "spans: it hides spans of one text; let the tokenizer read one field, or write spans: null"
            )
        assert self.spans is not None
        drawn = Drawn(self.training, ids.device)
        return spans_hidden(ids, mask, self.marks, self.spans, self.span_length, drawn)._asdict()
