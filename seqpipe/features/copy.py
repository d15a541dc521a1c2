"""A source's tokens in, their ids to a head that copies out: those of the target vocabulary, then words it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.features.document import AXES, Doc, Fixed
from seqpipe.features.encoding import encode
from seqpipe.features.vocabulary import EOS, SPECIALS, UNK, normal, token_id

_LAST_SPECIAL = SPECIALS.index(EOS)


@dataclass(frozen=True)
class Copy(Fixed):
    """What each token of a source is to a head that may copy it, (B, T) int64: an id of the target vocabulary of V.

    A token that the vocabulary lacks is a word of its own: V, V + 1, … as they come in the record, the same for tokens
    that are written the same (See, Liu and Manning 2017). Padding is 0.

    Args:
        same: Whether source and target have one tokenizer: then a token has the id that it has already. Otherwise that
            of the token as it is written, normalised as the target tokenizer does.
        file: The target tokenizer's file in a bundle.
        tokenizer: The target tokenizer; none until it is learned.
    """

    same: bool = False
    file: str = ""
    tokenizer: Tokenizer | None = field(default=None, compare=False, repr=False)
    kind = "copy"
    axes = AXES
    size = 0  # ids of the target vocabulary have a size of their own

    def read(self, doc: Doc) -> tuple[list[int], list[str]]:
        """Each token's id, and the words that the vocabulary lacks, as written, in the order of their ids."""
        tokenizer = self.learned
        ids = doc.ids if self.same else [token_id(tokenizer, word) or 0 for word in doc.words]
        V, new = tokenizer.get_vocab_size(), dict[str, int]()
        pairs = zip(ids, doc.words, strict=True)
        return [i if i > _LAST_SPECIAL else V + new.setdefault(word, len(new)) for i, word in pairs], [*new]

    def written(self, text: str, doc: Doc, at: str = "") -> list[int]:
        """The ids of a text that a head is to write of this source.

        A word that the vocabulary lacks has the id of the source's word that is written the same, else of the first
        that the target tokenizer normalises to the same; else that of [UNK].
        """
        tokenizer, (_, new) = self.learned, self.read(doc)
        encoding = encode(tokenizer, text, at)
        V, places = tokenizer.get_vocab_size(), {word: i for i, word in enumerate(new)}
        alike = {normal(tokenizer, word): i for word, i in reversed(places.items())}
        ids = []
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if i <= _LAST_SPECIAL:
                word = text[start:end]
                place = places.get(word, alike.get(normal(tokenizer, word)))
                i = SPECIALS.index(UNK) if place is None else V + place
            ids.append(i)
        return ids

    @property
    def learned(self) -> Tokenizer:
        """The target tokenizer."""
        if self.tokenizer is None:
            raise ValueError("a feature `copy` is made once the head's target tokenizer is learned")
        return self.tokenizer

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        made = np.zeros((len(docs), longest), np.int64)
        for row, doc in zip(made, docs, strict=True):
            row[: len(doc)] = self.read(doc)[0]
        return made

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "same": self.same, "tokenizer": self.file}
