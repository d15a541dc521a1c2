"""Toy records, and toy components for the other places of a pipeline under test."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.features.document import Record
from seqpipe.features.vocabulary import SPECIALS, UNK, word_level
from seqpipe.nn.incremental import CacheSlots, PrefixCache

LABELS = ("a", "b", "c")
TOY_WORDS = ("Ada", "met", "Bo", "in", "Oslo", ".", "née", "extraordinarily", "播放", "9", "x-y", "too")
_TAGS = {"Ada": "B-PER", "Bo": "B-PER", "Oslo": "B-LOC", "播放": "I-LOC"}
_LENGTHS = (1, 4, 2, 7, 3, 1, 9, 5, 2, 6, 3, 8)


def records() -> list[Record]:
    """Short sentences with every kind of target: tags, labels, a number, another text, an answer, an order."""
    toy_records: list[Record] = []
    for i, length in enumerate(_LENGTHS):
        words = word_list(i, length)
        tags = [_TAGS.get(word, "O") for word in words]
        target = " ".join(reversed(words))
        toy_records.append(
            {"text": " ".join(words), "words": words, "tags": tags, "label": LABELS[i % 3], "target": target}
            | {"labels": sorted({LABELS[i % 3], LABELS[i // 3 % 3]}), "score": i * 1.5 - 4, "where": f"toy:{i + 1}"}
            | {"numbers": number_rows(i, length), "pointers": [*range(length)][::-1]}
            | {"question": " ".join(word_list(i + 3, i % 3)), "context": " ".join(words), "answers": _answer(words, i)}
        )
    return toy_records


def _answer(words: Sequence[str], i: int) -> dict[str, Any]:
    """Some of the words as an answer in SQuAD's format."""
    first = i % len(words)
    text = " ".join(words[first : first + 1 + i % 4])
    return {"text": [text], "answer_start": [len(" ".join(words[:first])) + (first > 0)]}


def number_rows(i: int, length: int) -> list[list[float]]:
    """As many vectors as there are words."""
    return [[(i * 5 + j * 7) % 11 / 4.0, float(i + j), 1.0] for j in range(length)]


def word_list(i: int, length: int) -> list[str]:
    return [TOY_WORDS[(i * 5 + j * 7) % len(TOY_WORDS)] for j in range(length)]


def text_pair(i: int, tokens: int) -> Record:
    """Two texts with a separator; in every third record the second text is empty."""
    first = tokens - 1 if tokens == 3 else (tokens - 1) // 3
    words = word_list(i, max(1, tokens - 1))
    return {"question": " ".join(words[:first]), "context": " ".join(words[first:])}


# Toy components: the rest of the pipeline around a component under test.

DIM = 6


class ToyReader:
    """Returns the toy records; reads no file."""

    fields: ClassVar = (
        *("text", "words", "tags", "label", "labels", "score", "target", "where"),
        *("question", "context", "answers", "numbers", "pointers"),
    )

    def read(self, path: Path) -> list[Record]:
        return records()


class ToyTokenizer:
    """Splits at spaces."""

    _max_size: ClassVar[int | None] = None

    def train(self, texts: Any) -> Tokenizer:
        split = pre_tokenizers.WhitespaceSplit()
        return word_level(texts, normalizer=normalizers.Sequence([]), splitter=split, max_size=self._max_size)


class ToyFewWords(ToyTokenizer):
    """Splits at spaces, with a vocabulary of the most frequent words only: the others can only be copied."""

    _max_size = 6


class ToyPieces:
    """Splits at spaces, and each word into its letters."""

    def train(self, texts: Any) -> Tokenizer:
        letters = sorted(set("".join(TOY_WORDS)))
        tokens = [*SPECIALS, *letters, *("##" + letter for letter in letters)]
        tokenizer = Tokenizer(WordPiece({token: i for i, token in enumerate(tokens)}, unk_token=UNK))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer


class ToyEmbedding(nn.Module):
    """A vector per word, the embedding table, and three layers; row 0 is the padding, with arbitrary values."""

    returns: ClassVar = {"x": "", "table": "(V, D) float32", "layers": "(B, T, L, D) float32"}

    tokenwise: ClassVar = True

    def __init__(self, vocabulary: Sequence[str]):
        super().__init__()
        self.dim = DIM
        self.table = nn.Parameter(torch.randn(len(vocabulary), DIM).index_fill(0, torch.tensor(0), 0.0))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:  # (B, T) -> (B, T, D), (V, D)
        rows = torch.arange(len(self.table), device=ids.device)[:, None]
        x, table = F.embedding(ids, self.table), torch.where(rows == 0, 0.0, self.table)
        return {"x": x, "table": table, "layers": torch.stack([x, 2 * x, x + 1], 2)}


class ToyEncoder(nn.Module):
    """x plus sinusoids of the position, its halves as `forwards` and `backwards`, and the mean of each row.

    The mean is `state`, and the only row of `around`.

    Without the position, equal words would have equal vectors: a head that points at or copies words would give them
    the same probability, and rounding errors would decide.
    """

    returns: ClassVar = {
        "x": "",
        "state": "",
        "around": "(B, E, D) float32",
        "forwards": "(B, T, H) float32",
        "backwards": "(B, T, H) float32",
    }

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T, D), (B, T) -> (B, T, D), (B, D)
        places, rates = (torch.arange(1, n + 1, device=x.device) for n in x.shape[1:])
        x = x + (places[:, None] * rates).float().sin()
        real = torch.where(mask[..., None], x, 0.0)
        halves = dict(zip(("forwards", "backwards"), x.chunk(2, 2), strict=True))
        state = real.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return {"x": x, "state": state, "around": state[:, None], **halves}


class ToyCausal(nn.Module):
    """x(t) is tanh of the sum of all x up to t; it supports incremental decoding."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.cache_shape = dim, (1, dim)

    @staticmethod
    def causal_fix(options: Mapping[str, Any]) -> str:
        return ""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        return torch.where(mask[..., None], x, 0.0).cumsum(1).tanh()

    def import_cache(self, cache: Tensor) -> tuple[Tensor, ...]:  # (B, C, 1, D) -> (B, D)
        return (nn.functional.pad(cache, (0, 0, 0, 0, 1, 0))[:, -1, 0].clone(),)

    def export_cache(self, prefix: PrefixCache, slots: CacheSlots) -> Tensor:
        return torch.where(slots.unfinished[:, None, None, None], prefix.memory[0][:, None, None], 0.0)

    def prefill(self, x: Tensor, mask: Tensor, prefix: PrefixCache) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = torch.where(mask[..., None], x, 0.0)
        return (prefix.memory[0][:, None] + x.cumsum(1)).tanh(), (prefix.memory[0] + x.sum(1),)

    def init_cache(self, prefix: PrefixCache) -> tuple[Tensor, ...]:
        return prefix.memory

    def extend_memory(self, memory: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return state

    def step(
        self, x: Tensor, t: Tensor, prefix: PrefixCache, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return (state[0] + x).tanh(), (state[0] + x,)


def watching(names: Sequence[str], by_token: Sequence[str], tagging: bool = True) -> type[nn.Module]:
    """Return a head whose loss and decision depend on x and on each of these names.

    It tags tokens or, after a stage that replaces the rows of tokens, gives each text a label.
    """

    class ToyHead(nn.Module):
        answer = "tags" if tagging else "label"

        def __init__(self, dim: int, labels: Sequence[str]):
            super().__init__()
            self.emissions = nn.Linear(dim, len(labels))

        def loss(self, x: Tensor, mask: Tensor, target: Tensor, *others: Tensor) -> Tensor:
            real = target if tagging else target[:, None].expand(mask.shape)
            error = F.cross_entropy(self.emissions(x[mask]), real[mask])
            for tensor in others:
                if tensor.is_floating_point() and tensor.numel():  # attention weights may be left out
                    error = error + tensor.square().mean()
            return error

        def decide(self, x: Tensor, mask: Tensor, *others: Tensor) -> dict[str, Tensor]:
            score = torch.where(mask, self.emissions(x).sigmoid().amax(2), 0.0)
            outputs = dict(zip(names, others, strict=True)) | {"x": x}
            for name, value in outputs.items():
                value = value if value.is_floating_point() else value.long()
                if name in (*by_token, "x"):
                    real = mask.reshape(*mask.shape, *[1] * (value.dim() - 2))
                    value = torch.where(real, value, torch.zeros_like(value))
                outputs[name] = value + 0
            tags = torch.where(mask, 0 * score.long(), 0)
            if not tagging:
                scores = torch.where(mask[..., None], self.emissions(x), 0.0).sum(1).sigmoid()
                return {"label": tags[:, 0], "scores": scores, **outputs}
            return {"tags": tags, "scores": score, "opens": score + 1, "closes": score + 2, **outputs}

    methods: list[tuple[Any, tuple[str, ...]]] = [
        (ToyHead.loss, ("x", "mask", "tags" if tagging else "label")),
        (ToyHead.decide, ("x", "mask")),
    ]
    for method, fixed in methods:  # the names that it asks for are known only here
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *fixed, *names)]
        method.__signature__ = inspect.Signature(parameters)
    return ToyHead
