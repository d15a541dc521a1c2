"""Corruption of inputs for self-supervised heads: masked tokens, removed spans, swapped second texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqpipe.errors import UsageError
from seqpipe.features.vocabulary import EOS, SPAN_MARKS, SPECIALS

__all__ = ["BatchRandom", "SpanCorruption", "choose_tokens", "guessable_tokens", "replace_second_texts", "word_starts"]

_FIRST_WORD = len(SPECIALS)  # earlier ids are special tokens
_EVALUATION = 20_191  # the seed in evaluation
_EOS = SPECIALS.index(EOS)


class BatchRandom:
    """Random numbers for one batch: in training torch's own, in evaluation the same in every epoch."""

    def __init__(self, training: bool, device: torch.device):
        self.device = device
        self.generator = None if training else torch.Generator(device).manual_seed(_EVALUATION)

    def uniform(self, *sizes: int) -> Tensor:
        """Return uniform samples from [0, 1)."""
        return torch.rand(sizes, generator=self.generator, device=self.device)


class Pairs(NamedTuple):
    """Pairs of texts, and the mask of unchanged pairs."""

    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    segments: Tensor  # (B, T)
    begins: Tensor  # (B, T) which tokens begin a word
    follows: Tensor  # (B,)


def word_starts(mask: Tensor, pieces: Tensor | None) -> Tensor:
    """Return the mask of word-initial tokens (B, T) from the feature `pieces` (B, N); without it, all real tokens."""
    if pieces is None:
        return mask
    flags = torch.zeros(mask.shape[0], mask.shape[1] + 1, dtype=torch.bool, device=mask.device)
    return flags.scatter(1, pieces, torch.ones_like(pieces, dtype=torch.bool))[:, 1:] & mask


def choose_tokens(candidates: Tensor, mask: Tensor, begins: Tensor, share: float, drawn: BatchRandom) -> Tensor:
    """Sample the tokens to predict (B, T): each word with a probability of `share`, at least one in each text.

    Args:
        candidates: Mask of possible tokens, (B, T); a word is possible if all of its tokens are.
        mask: Mask of real tokens, (B, T).
        begins: Mask of tokens that begin a word, (B, T).
        share: The probability.
        drawn: Source of random numbers.
    """
    B, T = candidates.shape
    word = (begins.long().cumsum(1) - 1).clamp(min=0)  # (B, T) the number of each token's word
    barred = torch.zeros(B, T, device=candidates.device).scatter_add(1, word, (mask & ~candidates).float())
    number = drawn.uniform(B, T).gather(1, word)
    number = torch.where(candidates & (barred.gather(1, word) == 0), number, 2.0)
    least = number.amin(1, keepdim=True)
    return (number < share) | ((number == least) & (least < 1))


def guessable_tokens(ids: Tensor, mask: Tensor, gap: int) -> Tensor:
    """Return the mask of tokens that can be predicted: neither special, nor unknown, nor a gap."""
    return mask & (ids >= _FIRST_WORD) & (ids != gap)


class Hidden(NamedTuple):
    """Texts with removed spans, and the tokens of these spans as targets."""

    ids: Tensor  # (B, T')
    mask: Tensor  # (B, T')
    target_ids: Tensor  # (B, N)
    target_mask: Tensor  # (B, N)


def remove_spans(ids: Tensor, mask: Tensor, marks: Tensor, share: float, length: float, drawn: BatchRandom) -> Hidden:
    """Replace spans of tokens by sentinels, in order; return also the targets: sentinels followed by their tokens.

    The target ends with another sentinel and [EOS] (Raffel et al. 2020, section 3.1.4). Spans are not adjacent; their
    lengths and positions are sampled uniformly.

    Args:
        ids: (B, T).
        mask: Mask of real tokens, (B, T).
        marks: Ids of sentinels, at least two; a text has at most one span less.
        share: Share of a text's tokens that is removed, at least one; of several tokens at least one remains.
        length: The mean length of a span.
        drawn: Source of random numbers.
    """
    lengths = mask.sum(1, keepdim=True)  # (B, 1), as all counts here
    hidden = (lengths * share).round().long().clamp(min=1).minimum((lengths - 1).clamp(min=1)).minimum(lengths)
    count = (hidden / length).round().long().clamp(1, len(marks) - 1).minimum(hidden).minimum(lengths - hidden + 1)
    i = torch.arange(ids.shape[1] + 1, device=ids.device).expand(len(ids), -1)  # (B, T + 1)
    begins = (_sample_positions(i >= 1, i < hidden, count - 1, drawn) | (i == 0)) & (i < hidden)  # among removed tokens
    number = (begins.long().cumsum(1) - 1).clamp(min=0)  # the span of each
    gaps = _sample_positions(i >= 0, i <= lengths - hidden, count, drawn)  # number of other tokens before each span
    before = (~gaps).long().sort(dim=1, stable=True).indices
    place = (i + before.gather(1, number)).clamp(max=ids.shape[1] - 1)  # in the text
    away = _scatter(i < hidden, place, torch.ones_like(i), ids.shape[1]) > 0  # (B, T)
    starts = _scatter(begins, place, torch.ones_like(i), ids.shape[1]) > 0
    kept = mask & (~away | starts)
    seen = torch.where(starts, marks[(starts.long().cumsum(1) - 1).clamp(0, len(marks) - 1)], ids)
    new = lengths - hidden + count
    width, most = int(new.max()), int((hidden + count).max()) + 2
    targets = _scatter(i < hidden, i + number + 1, ids.gather(1, place), most)
    targets = targets + _scatter(begins, i + number, marks[number.clamp(max=len(marks) - 1)], most)
    n = torch.arange(most, device=ids.device)
    targets = torch.where(n == hidden + count, marks[count], torch.where(n == hidden + count + 1, _EOS, targets))
    t = torch.arange(width, device=ids.device)
    return Hidden(_scatter(kept, kept.long().cumsum(1) - 1, seen, width), t < new, targets, n <= hidden + count + 1)


def _sample_positions(first: Tensor, second: Tensor, count: Tensor, drawn: BatchRandom) -> Tensor:
    """Sample this many (B, 1) of the positions (B, N) where both are true."""
    number = torch.where(first & second, drawn.uniform(*first.shape), 2.0)
    return number.argsort(1).argsort(1) < count


def _scatter(real: Tensor, places: Tensor, values: Tensor, width: int) -> Tensor:
    """Return (B, width): the real values at their places, 0 elsewhere."""
    empty = values.new_zeros(len(values), width + 1)
    return empty.scatter(1, torch.where(real, places, width), torch.where(real, values, 0))[:, :width]


def replace_second_texts(ids: Tensor, mask: Tensor, segments: Tensor, begins: Tensor, drawn: BatchRandom) -> Pairs:
    """Give half of the pairs the second text of another row of the batch; a single row is unchanged."""
    B, T = ids.shape
    rows = torch.arange(B, device=ids.device)
    shift = 1 + (drawn.uniform(1) * (B - 1)).long()
    others = (drawn.uniform(B) < 0.5) & (shift < B)
    partner = torch.where(others, (rows + shift) % B, rows)
    first = ((segments == 1) & mask).sum(1)
    lengths = first + (mask.sum(1) - first)[partner]  # (B,)
    t = torch.arange(int(lengths.max()), device=ids.device)[None]  # (1, T')
    in_first, real = t < first[:, None], t < lengths[:, None]
    row = torch.where(in_first, rows[:, None], partner[:, None])
    place = torch.where(in_first, t, t - first[:, None] + first[partner][:, None]).clamp(0, T - 1)
    return Pairs(
        torch.where(real, ids[row, place], 0),
        real,
        torch.where(real, torch.where(in_first, 1, 2), 0),
        begins[row, place] & real,
        ~others,
    )


# Span corruption: a sequence-to-sequence head learns to generate the removed spans of a text, without labels.


class SpanCorruption(nn.Module):
    """Mixin of generative heads: with an option `spans` that is not null, training is self-supervised.

    The input has a sentinel for each removed span, the target the sentinels and their spans (Raffel et al. 2020).
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
        """Return the share of removed tokens and the mean span length in evaluation, or the settings without spans."""
        bleu = {"bleu_tokenize": options.get("bleu_tokenize")}
        if options["spans"] is None:
            return {"equal_length": options.get("equal_length", False), **bleu}
        return {"share": options["spans"], "length": options["span_length"], **bleu}

    def learn_spans(self, vocabulary: Sequence[str], spans: float | None, length: float) -> None:
        """Find the sentinels among the tokens; UsageError if there are none and they are needed."""
        ids = {token: i for i, token in enumerate(vocabulary)}
        marks = [ids[mark] for mark in SPAN_MARKS if mark in ids]
        if spans is not None and len(marks) < 2:
            fix = "use the tokenizer of another run, or train one"
            raise UsageError(f"spans: the vocabulary lacks the sentinels {SPAN_MARKS[0]} and {SPAN_MARKS[1]}; {fix}")
        self.spans, self.span_length = spans, length
        self.register_buffer("marks", torch.tensor(marks, dtype=torch.int64), persistent=False)

    def corrupt_batch(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> dict[str, Tensor]:
        """Return the text with sentinels, `ids` and `mask` (B, T'), and the spans, `target_ids` and `target_mask`."""
        if segments is not None:
            fix = "make the tokenizer read one field, or write spans: null"
            raise UsageError(f"spans: it removes spans of one text; {fix}")
        assert self.spans is not None
        drawn = BatchRandom(self.training, ids.device)
        return remove_spans(ids, mask, self.marks, self.spans, self.span_length, drawn)._asdict()
