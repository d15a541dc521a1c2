"""Feature kind `chars`: the characters of each token."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from tokenizers import Tokenizer

from seqpipe.features.alignment import FORMS, Form, form_of
from seqpipe.features.document import Doc
from seqpipe.features.kinds.base import BATCH, TOKENS, FeatureKind
from seqpipe.features.vocabulary import PAD, UNK

MOST_CHARACTERS = 10_000  # of a token, as a bundle may state it
_CACHED = 100_000  # words whose rows are cached


@dataclass(frozen=True)
class Chars(FeatureKind):
    """The code points of each token as written: 0 padding, 1 a code point not in the alphabet.

    C is the longest token of the batch, at most `longest`; of a longer one the first and last halves are read. With
    the tokenizer's `normalize`, they are those of the token in that Unicode normalization form.
    """

    longest: int = 20
    alphabet: str = ""
    normalize: Form | None = None
    _rows: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    _ids: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    kind = "chars"
    shape = "(B, T, C)"
    axes = (BATCH, TOKENS, "word_length")
    shows_tokens = True

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """The same feature in the Unicode normalization form that the tokenizer begins with."""
        return replace(self, normalize=form_of(tokenizer), _rows={}, _ids={})

    def fit(self, docs: Iterable[Doc]) -> Self:
        """The same feature with the new characters of these texts behind its alphabet, in order of code points."""
        characters: set[str] = set()
        for doc in docs:
            characters.update(*map(self._in_form, doc.words))
        return self._extended(sorted(characters - {*self.alphabet}))

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """The same feature with the characters of an older one behind its alphabet."""
        characters = older.alphabet if isinstance(older, Chars) else ""
        return self._extended([c for c in characters if c not in self.alphabet])

    def _extended(self, characters: Iterable[str]) -> Self:
        return replace(self, alphabet=self.alphabet + "".join(characters), _rows={}, _ids={})

    @property
    def names(self) -> tuple[str, ...]:
        return (PAD, UNK, *self.alphabet)

    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        empty = bytes(8 * self.longest)
        rows: list[bytes] = []
        for doc in docs:
            rows += [self._rows.get(word) or self._row(word) for word in doc.words]
            rows += [empty] * (longest - len(doc.words))
        table = np.frombuffer(b"".join(rows), np.int64).reshape(len(docs), longest, self.longest)
        used = int(np.flatnonzero(table.any((0, 1))).max(initial=0)) + 1
        return table[:, :, :used]  # (B, T, C)

    def _row(self, word: str) -> bytes:
        if not self._ids:
            self._ids.update({c: i for i, c in enumerate(self.alphabet, 2)})
        if len(self._rows) >= _CACHED:
            self._rows.clear()
        half, written = self.longest // 2, self._in_form(word)
        short = written
        if len(written) > self.longest:
            short = written[: self.longest - half] + written[len(written) - half :]
        ids = np.zeros(self.longest, np.int64)
        ids[: len(short)] = [self._ids.get(c, 1) for c in short]
        row = self._rows[word] = ids.tobytes()  # another thread may clear the rows at any time
        return row

    def _in_form(self, word: str) -> str:
        return unicodedata.normalize(self.normalize, word) if self.normalize else word

    def manifest(self) -> dict[str, Any]:
        form = {"normalize": self.normalize} if self.normalize else {}
        return {"kind": self.kind, "longest": self.longest, "alphabet": self.alphabet, **form}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Any]) -> Self:
        return cls(int(manifest["longest"]), str(manifest["alphabet"]), manifest.get("normalize"))

    def out_of_bounds(self) -> str:
        if self.normalize is not None and self.normalize not in FORMS:
            return f"chars.normalize: {self.normalize!r} is none of {', '.join(FORMS)}"
        if 1 <= self.longest <= MOST_CHARACTERS:
            return ""
        return f"chars.longest: {self.longest} is not between 1 and {MOST_CHARACTERS:,}"
