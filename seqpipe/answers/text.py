"""Answer kind text: generated sequences, with copied words where the head copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import Answer, probability, required_field
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.encoding import encode
from seqpipe.features.extended_vocabulary import ExtendedVocabulary
from seqpipe.features.vocabulary import EOS, UNK, clean, special_id

_NO_TEXT = -1e8  # the log-probability of what is no text is below


class Text:
    """Text: `{"generated_text", "score"}`, or a list of them, best first; score: the probability of the sequence.

    Args:
        tokenizer: Of what is written.
        target: The record's field with the reference, or a list of them.
        copies: What it may write, where words of the source may be copied that the tokenizer lacks.
    """

    kind = "text"
    outputs: tuple[str, ...] = ("tokens", "scores")

    def __init__(self, tokenizer: Tokenizer, target: str | None = None, copies: ExtendedVocabulary | None = None):
        self.tokenizer, self.target, self.copies = tokenizer, target, copies
        self._end = special_id(tokenizer, EOS)

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        answers = []
        for doc, row, log_p in zip(docs, decision["tokens"].tolist(), decision["scores"], strict=True):
            hypotheses = [
                {"generated_text": self.decode(tokens, doc), "score": probability(np.exp(p))}
                for tokens, p in zip(row, log_p, strict=True)
                if p > _NO_TEXT or len(row) == 1
            ]
            answers.append(hypotheses if len(row) > 1 else hypotheses[0])
        return answers

    def encode(self, text: str, doc: Doc, at: str = "") -> list[int]:
        """The ids of a text that answers this one, without an end; DataError, prefixed with `at`, if there are none."""
        if self.copies:
            return self.copies.written(text, doc, at)
        return list(encode(self.tokenizer, text, at).ids)

    def decode(self, tokens: list[int], doc: Doc) -> str:
        """Token ids up to the end token, as text; copied words as they stand in the source."""
        kept = self.kept(tokens)
        if self.copies is None or all(token < self.tokenizer.get_vocab_size() for token in kept):
            return str(self.tokenizer.decode(kept, skip_special_tokens=False))
        words, decoder = self.tokens(tokens, doc), self.tokenizer.decoder
        return str(decoder.decode(words)) if decoder else " ".join(words)

    def tokens(self, tokens: list[int], doc: Doc) -> list[str]:
        """Token ids up to the end token, each as the vocabulary has it, or as it stands in the source."""
        kept, V = self.kept(tokens), self.tokenizer.get_vocab_size()
        new = self.copies.read(doc)[1] if self.copies else []
        return [new[token - V] if token >= V else str(self.tokenizer.id_to_token(token)) for token in kept]

    @property
    def unknown_words(self) -> Callable[[str], list[str]] | None:
        """Where words are copied: those of a text that the vocabulary lacks."""
        return self._unknown_words if self.copies else None

    def _unknown_words(self, text: str) -> list[str]:
        encoding = encode(self.tokenizer, clean(text))
        return [text[a:b] for (a, b), i in zip(encoding.offsets, encoding.ids, strict=True) if i <= self._end]

    def kept(self, tokens: list[int]) -> list[int]:
        """Token ids up to the end token, without special ones."""
        kept = tokens[: tokens.index(self._end)] if self._end in tokens else tokens
        return [token for token in kept if token > self._end]

    def ids(self, option: str, given: str | list[str | int]) -> list[int]:
        """Tokens of the target vocabulary: of a text, which is split, or of a list of tokens or of their ids.

        A list may name the unknown token; a text that holds what is unknown is refused.

        Raises:
            UsageError: if a token is not in the vocabulary, or is one that no text holds.
        """
        unknown, size = special_id(self.tokenizer, UNK), self.tokenizer.get_vocab_size()
        found = self._pieces(given) if isinstance(given, str) else [(one, self._id(one)) for one in given]
        for token, number in found:
            if number is None or not 0 <= number < size or (number == unknown and isinstance(given, str)):
                told = f"the target vocabulary, which has {size:,}; choose others ({given!r})"
                raise UsageError(f"{option}: {token!r} is no token of {told}")
            if number <= self._end and number != unknown:
                raise UsageError(f"{option}: {token!r} stands in no text; leave it out ({given!r})")
        return [number for _, number in found if number is not None]

    def _pieces(self, text: str) -> list[tuple[str | int, int | None]]:
        encoding = encode(self.tokenizer, clean(text))
        return [(text[a:b], number) for (a, b), number in zip(encoding.offsets, encoding.ids, strict=True)]

    def _id(self, token: Any) -> int | None:
        if isinstance(token, str):
            return self.tokenizer.token_to_id(token)
        return token if type(token) is int else None

    def empty(self, several: bool) -> Answer:
        nothing = {"generated_text": "", "score": 1.0}
        return [nothing] if several else nothing

    def gold(self, record: Record) -> str | list[str]:
        """The reference, or several."""
        first, *others = references(record, self.target or "target")
        return [first, *others] if others else first

    def predicted(self, answer: Answer) -> str:
        best = answer[0] if isinstance(answer, list) else answer
        return str(best["generated_text"])

    def manifest(self) -> dict[str, Any]:
        copies = {"copies": {"same": self.copies.same}} if self.copies else {}
        return {"kind": self.kind, "target": self.target, **copies}


def references(record: Record, field: str) -> list[str]:
    """The text of a record's field, or the texts of a list, any of which is right; DataError if there is none."""
    given = required_field(record, field)
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        told = f"field {field!r} must be a text, or a list of texts any of which is right, not {type(given).__name__}"
        raise DataError(f"{record.get('where', 'record')}: {told}")
    return [clean(text) for text in texts]
