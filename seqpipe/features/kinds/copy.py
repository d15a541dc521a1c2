"""Feature kind `copy`: a source's tokens as ids of a head that copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from tokenizers import Tokenizer

from seqpipe.features.document import Doc
from seqpipe.features.extended_vocabulary import ExtendedVocabulary
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.vocabulary import SPECIALS, UNK


@dataclass(frozen=True)
class Copy(FeatureKind):
    """Each token of a source as an id that a head may write: of the V target tokens, or of a word that they lack.

    A word that they lack is V, V + 1, … as `ExtendedVocabulary` has it. Padding is 0.

    Args:
        same: Whether source and target have one tokenizer.
        file: The target tokenizer's file in a bundle.
        tokenizer: The target tokenizer; none before it is fitted.
    """

    same: bool = False
    file: str = ""
    tokenizer: Tokenizer | None = field(default=None, compare=False, repr=False)
    kind = "copy"
    shape = "(B, T)"
    shows_tokens = True
    copies_tokens = True

    def with_target_tokenizer(self, same: bool, file: str, tokenizer: Tokenizer) -> Self:
        return replace(self, same=same, file=file, tokenizer=tokenizer)

    @property
    def vocabulary(self) -> ExtendedVocabulary:
        """The tokens that the head may write."""
        if self.tokenizer is None:
            raise ValueError("a feature `copy` has no array before the head's target tokenizer is fitted")
        return ExtendedVocabulary(self.tokenizer, self.same)

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        ids, vocabulary = np.zeros((len(docs), longest), np.int64), self.vocabulary
        for row, doc in zip(ids, docs, strict=True):
            row[: len(doc)] = vocabulary.read(doc)[0]
        return ids

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "same": self.same, "tokenizer": self.file}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer]) -> Self:
        file = manifest["tokenizer"]
        return cls(bool(manifest["same"]), file, tokenizers[file])

    def example_tokens(
        self, words: list[str], ids: list[int], random: np.random.Generator
    ) -> tuple[list[str], list[int]]:
        """Words and ids of which none, half or all are in the target vocabulary; the others can only be copied."""
        known = random.random(len(words)) < random.choice([0.0, 0.5, 1.0])
        tokens, unknown = sorted(self.vocabulary.tokenizer.get_vocab()), SPECIALS.index(UNK)
        words = [str(random.choice(tokens)) if is_known else word for word, is_known in zip(words, known, strict=True)]
        return words, [i if is_known or not self.same else unknown for i, is_known in zip(ids, known, strict=True)]
