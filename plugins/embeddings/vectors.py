"""Token ids in, the vector that a file has for each word out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import DataError

from .lookup import SPECIALS, Lookup, Probability
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
        limit: Annotated[int, Field(gt=0)] | None = None,
        case: Literal["exact", "fold"] = "exact",
        train: bool = False,
        missing: Literal["trained", "random", "zero"] = "trained",
        scale: Annotated[float, Field(gt=0)] = 1.0,
        dropout: Probability = 0.0,
        locked_dropout: Probability = 0.0,
        word_dropout: Probability = 0.0,
        rare_dropout: Probability = 0.0,
    ):
        found = _found(vocabulary, path, format, limit, case == "fold")
        rows = scale * np.stack([*found.values()])  # (found, D)
        super().__init__(
            vocabulary,
            {},
            dim=rows.shape[1],
            dropout=dropout,
            locked_dropout=locked_dropout,
            word_dropout=word_dropout,
            rare_dropout=rare_dropout,
        )
        self.told = _coverage(vocabulary, found, path)
        with torch.no_grad():
            weight = self.table.weight  # (V, D), uniform within (3 / D) ** 0.5: a standard deviation of D ** -0.5
            weight.mul_(0.0 if missing == "zero" else float(rows.std()) * self.dim**0.5)
            weight[list(found)] = torch.from_numpy(rows)
        if not train:
            learned = [i for i in range(1, len(vocabulary)) if i not in found] if missing == "trained" else []
            self.register_module("table", FrozenRows(weight.detach(), learned))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # (B, T) -> (B, T, D)
        return {"x": self.looked_up(ids)}

    def messages(self) -> list[str]:
        """What a person should know of the file and the vocabulary: how many words have a vector."""
        return [self.told]

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
        made = {"table.place": place, "table.weight": torch.where(place[:, None] > 0, 0.0, weight)}
        learned = F.pad(weight[place > 0], (0, 0, 1, 0))  # (1 + learned, D), in the order of `place`
        return made if self.table.learned is None else made | {"table.learned": learned}


class FrozenRows(nn.Module):
    """A table (V, D) of which only some rows are learned; the others are part of what is saved all the same."""

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


def _found(vocabulary: Sequence[str], path: Path, form: Format, limit: int | None, fold: bool) -> dict[int, np.ndarray]:
    """The file's vector of each id that has one; of words that differ in case, the first in the file."""
    exact = {word: i for i, word in enumerate(vocabulary) if i >= SPECIALS}
    folded: dict[str, list[int]] = {}
    for word, i in exact.items() if fold else ():
        folded.setdefault(word.casefold(), []).append(i)
    places: dict[str, str] = {}
    own: dict[int, np.ndarray] = {}
    near: dict[int, np.ndarray] = {}
    for word, place, row in entries(path, lambda word: word in exact or word.casefold() in folded, form, limit):
        if word in places:
            first = places[word].removeprefix(str(path)).lstrip(": ")
            where = first if first.startswith("byte") else f"line {first}"
            raise DataError(f"{place}: the word {word!r} has a vector already ({where}); remove one of the two")
        places[word] = place
        if word in exact:
            own[exact[word]] = row
        for i in folded.get(word.casefold(), ()):
            near.setdefault(i, row)
    if not (own or near):
        cure = "are they of one language and one case (the tokenizer's `lowercase`, `case: fold`)?"
        raise DataError(f"{path}: no word of the vocabulary ({len(exact):,} words) is in this file; {cure}")
    return dict(sorted((near | own).items()))


def _coverage(vocabulary: Sequence[str], found: dict[int, np.ndarray], path: Path) -> str:
    words = len(vocabulary) - SPECIALS
    told = f"{len(found):,} of {words:,} words ({len(found) / words:.1%}) have a vector in {path.name}"
    counts = getattr(vocabulary, "counts", None)
    if counts is None:
        return told
    seen = sum(counts[SPECIALS:])
    return (
        f"{told}; these are {sum(counts[i] for i in found) / max(1, seen):.1%} of the known words in the training texts"
    )
