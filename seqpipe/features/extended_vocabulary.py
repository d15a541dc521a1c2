"""The vocabulary that a copying head writes with: that of a target tokenizer, then the source's words that it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from seqpipe.features.document import Doc
from seqpipe.features.encoding import encode
from seqpipe.features.vocabulary import EOS, SPECIALS, UNK, normal, token_id

_LAST_SPECIAL = SPECIALS.index(EOS)


@dataclass(frozen=True)
class ExtendedVocabulary:
    """The V tokens of a target tokenizer, then V, V + 1, … for the words of a source that it lacks, as they come.

    Words that are written the same have the same id (See, Liu and Manning 2017).

    Args:
        tokenizer: The target tokenizer.
        same: Whether source and target have one tokenizer: then a token has the id that it has already. Otherwise that
            of the token as it is written, normalised as the target tokenizer does.
    """

    tokenizer: Tokenizer
    same: bool

    def read(self, doc: Doc) -> tuple[list[int], list[str]]:
        """Each token's id, and the words that the vocabulary lacks, as written, in the order of their ids."""
        ids = doc.ids if self.same else [token_id(self.tokenizer, word) or 0 for word in doc.words]
        V, new = self.tokenizer.get_vocab_size(), dict[str, int]()
        pairs = zip(ids, doc.words, strict=True)
        return [i if i > _LAST_SPECIAL else V + new.setdefault(word, len(new)) for i, word in pairs], [*new]

    def written(self, text: str, doc: Doc, place: str = "") -> list[int]:
        """The ids of a text that a head is to write of this source.

        A word that the vocabulary lacks has the id of the source's word that is written the same, else of the first
        that the target tokenizer normalises to the same; else that of [UNK].
        """
        _, new = self.read(doc)
        encoding = encode(self.tokenizer, text, place)
        V, positions = self.tokenizer.get_vocab_size(), {word: i for i, word in enumerate(new)}
        normalised = {normal(self.tokenizer, word): i for word, i in reversed(positions.items())}
        ids = []
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if i <= _LAST_SPECIAL:
                word = text[start:end]
                position = positions.get(word, normalised.get(normal(self.tokenizer, word)))
                i = SPECIALS.index(UNK) if position is None else V + position
            ids.append(i)
        return ids
