"""Pretrained word vectors from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.plugin import DataError, Probability, token_counts

from .lookup import SPECIALS, Lookup
from .vector_files import Format, entries


class Vectors(Lookup):
    """Pretrained word vectors: word2vec (Mikolov et al. 2013), GloVe (Pennington et al. 2014), fastText
    (Bojanowski et al. 2017).

    The file is streamed, and only the words of the vocabulary are kept. They are part of the weights of checkpoints and
    bundles, so a bundle does not need the file. Words are compared after the tokenizer's normalization: in lower case
    with its `lowercase`. Words without a vector, and [UNK], are initialised at random with the average length of the
    file's vectors.

    Args:
        path: The file, also compressed with gzip.
        format: Format of the file; auto detects it.
        limit: Maximum number of words to read, from the beginning; null: all.
        case: Whether a word without a vector gets the vector of the first word that differs only in case.
        train: Whether the vectors are fine-tuned; otherwise they are frozen.
        missing: Words without a vector are trained, or stay random or zero if `train` is false.
        scale: Factor of all vectors.
        dropout: Dropout probability of the vectors.
        locked_dropout: Variational dropout probability of the vectors' columns: one mask for all steps of a row.
        word_dropout: Probability that a word is replaced by [UNK] in training.
        rare_dropout: The same probability for words that occur once in the training data.
    """

    returns: ClassVar = {"x": ""}  # of the table, parts may be frozen

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        path: Path,
        format: Format = "auto",
        limit: PositiveInt | None = None,
        case: Literal["exact", "fold"] = "exact",
        train: bool = False,
        missing: Literal["trained", "random", "zero"] = "trained",
        scale: PositiveFloat = 1.0,
        dropout: Probability = 0.0,
        locked_dropout: Probability = 0.0,
        word_dropout: Probability = 0.0,
        rare_dropout: Probability = 0.0,
    ):
        rows_by_id = _matching_rows(vocabulary, path, format, limit, case == "fold")
        rows = scale * np.stack([*rows_by_id.values()])  # (found, D)
        super().__init__(
            vocabulary,
            {},
            dim=rows.shape[1],
            dropout=dropout,
            locked_dropout=locked_dropout,
            word_dropout=word_dropout,
            rare_dropout=rare_dropout,
        )
        self.coverage = _coverage(vocabulary, rows_by_id, path)
        with torch.no_grad():
            weight = self.table.weight  # (V, D), uniform within (3 / D) ** 0.5: a standard deviation of D ** -0.5
            weight.mul_(0.0 if missing == "zero" else float(rows.std()) * self.dim**0.5)
            weight[list(rows_by_id)] = torch.from_numpy(rows)
        if not train:
            learned = [i for i in range(1, len(vocabulary)) if i not in rows_by_id] if missing == "trained" else []
            self.register_module("table", FrozenRows(weight.detach(), learned))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # (B, T) -> (B, T, D)
        return {"x": self.looked_up(ids)}

    def messages(self) -> list[str]:
        """How many words of the vocabulary have a vector in the file."""
        return [self.coverage]

    @staticmethod
    def join_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state of such an embedding with one table of all words, of whichever some are learned."""
        if "table.place" not in state:
            return dict(state)
        place, weight = state["table.place"], state["table.weight"]
        if "table.learned" not in state:
            return {"table.weight": weight}
        return {"table.weight": torch.where(place[:, None] > 0, state["table.learned"][place], weight)}

    def split_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of this embedding that has such a table."""
        if not isinstance(self.table, FrozenRows):
            return dict(state)
        weight, place = state["table.weight"], self.table.place
        parts = {"table.place": place, "table.weight": torch.where(place[:, None] > 0, 0.0, weight)}
        learned = F.pad(weight[place > 0], (0, 0, 1, 0))  # (1 + learned, D), in the order of `place`
        return parts if self.table.learned is None else parts | {"table.learned": learned}


class FrozenRows(nn.Module):
    """A table (V, D) of which only some rows are trained; the state dict has all of them."""

    weight: Tensor
    place: Tensor

    def __init__(self, weight: Tensor, learned: Sequence[int]):
        super().__init__()
        place = torch.zeros(len(weight), dtype=torch.int64)  # (V,), 0 for rows that are not learned
        place[list(learned)] = torch.arange(1, len(learned) + 1)
        self.register_buffer("weight", torch.where(place[:, None] > 0, 0.0, weight))  # (V, D)
        self.register_buffer("place", place)
        self.learned = nn.Parameter(F.pad(weight[list(learned)], (0, 0, 1, 0))) if learned else None  # (1 + learned, D)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, D)
        x = F.embedding(ids, self.weight)
        return x if self.learned is None else x + F.embedding(self.place[ids], self.learned, padding_idx=0)


def _matching_rows(
    vocabulary: Sequence[str], path: Path, form: Format, limit: int | None, fold: bool
) -> dict[int, np.ndarray]:
    """The file's vector of each id that has one; of words that differ in case, the first in the file."""
    exact = {word: i for i, word in enumerate(vocabulary) if i >= SPECIALS}
    folded: dict[str, list[int]] = {}
    for word, i in exact.items() if fold else ():
        folded.setdefault(word.casefold(), []).append(i)
    places: dict[str, str] = {}
    same_case: dict[int, np.ndarray] = {}
    folded_case: dict[int, np.ndarray] = {}
    for word, place, row in entries(path, lambda word: word in exact or word.casefold() in folded, form, limit):
        if word in places:
            first = places[word].removeprefix(str(path)).lstrip(": ")
            where = first if first.startswith("byte") else f"line {first}"
            raise DataError(f"{place}: the word {word!r} has a vector already ({where}); remove one of the two")
        places[word] = place
        if word in exact:
            same_case[exact[word]] = row
        for i in folded.get(word.casefold(), ()):
            folded_case.setdefault(i, row)
    if not (same_case or folded_case):
        cure = "are they of one language and one case (the tokenizer's `lowercase`, `case: fold`)?"
        raise DataError(f"{path}: no word of the vocabulary ({len(exact):,} words) is in this file; {cure}")
    return dict(sorted((folded_case | same_case).items()))


def _coverage(vocabulary: Sequence[str], rows: dict[int, np.ndarray], path: Path) -> str:
    words = len(vocabulary) - SPECIALS
    coverage = f"{len(rows):,} of {words:,} words ({len(rows) / words:.1%}) have a vector in {path.name}"
    counts = token_counts(vocabulary)
    if counts is None:
        return coverage
    share = sum(counts[i] for i in rows) / max(1, sum(counts[SPECIALS:]))
    return f"{coverage}; these are {share:.1%} of the known words in the training texts"
