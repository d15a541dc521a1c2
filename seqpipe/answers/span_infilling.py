"""Answer kind span-infilling (T5): sentinels and the spans that they replace."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import no_targets
from seqpipe.answers.fill_mask import text_in
from seqpipe.answers.span_rules import SpanRules
from seqpipe.answers.text import Text, required
from seqpipe.answers.types import HeadInfo, MakeTargets
from seqpipe.features import splitting as subwords
from seqpipe.features.document import Doc, Record
from seqpipe.features.encoding import Alignment, encode
from seqpipe.features.vocabulary import MARKS, clean


class SpanInfilling(Text):
    """Text: `{"generated_text", "score"}`, each mark of the given text and behind it what it hides.

    It is evaluated without a reference: `question` hides spans of words of a record, the same whenever it is asked, and
    `gold` says what they were.

    Args:
        tokenizer: Of the text, and of what is written.
        share: Of the words that are hidden, at least one of a text.
        length: The mean number of tokens of a span.
        field: Of a record, with its text.
        bleu_tokenize: The tokenizer of the metric BLEU; None: chosen by the letters of the references.
    """

    kind = "span-infilling"
    settings = {"share": 0.15, "length": 3.0, "bleu_tokenize": None}
    has_target_text = False
    may_self_supervise = True

    def __init__(
        self, tokenizer: Tokenizer, *, share: float, length: float, field: str, bleu_tokenize: str | None = None
    ):
        super().__init__(tokenizer, bleu_tokenize=bleu_tokenize)
        self.share, self.length, self.field = share, length, field
        self._marks = [i for i in map(tokenizer.token_to_id, MARKS) if i is not None]
        self._alignment = Alignment(tokenizer)

    def question(self, record: Record) -> Record:
        """The record with marks for some of its words."""
        return {**record, "words": None, self.field: self._hidden(record)[0]}

    def gold(self, record: Record) -> str:
        """What stands behind the marks of `question`."""
        return str(self.tokenizer.decode(self._hidden(record)[1], skip_special_tokens=False))

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> SpanInfilling:
        return cls(required(tokenizer), **head.settings, field=head.fields[0])

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> SpanInfilling:
        stated = {name: manifest[name] for name in ("share", "length", "field")}
        return cls(required(tokenizer), **stated, bleu_tokenize=manifest.get("bleu_tokenize"))

    def manifest(self) -> dict[str, Any]:
        stated = {"kind": self.kind, "target": None, "share": self.share, "length": self.length, "field": self.field}
        return {**stated, **self._stated_bleu_tokenizer()}

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        return no_targets

    def unwritable(self, records: Sequence[Record], docs: Sequence[Doc], longest: int | None) -> Iterator[str]:
        yield from ()

    def _hidden(self, record: Record) -> tuple[str, list[int]]:
        """The text with marks, and the ids of what is to be written. Which words it are hangs on the text alone."""
        text = clean(text_in(record, self.field))
        words = self._words(text)
        digest = hashlib.sha256(text.encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        spans = self._spans(len(words), random)
        masked_text, at, answer = "", 0, list[int]()
        for mark, (first, end) in zip(self._marks, spans, strict=False):
            masked_text += text[at : words[first][0][1]] + str(self.tokenizer.id_to_token(mark))
            at = words[end - 1][-1][2]
            answer += [mark, *(i for pieces in words[first:end] for i, *_ in pieces)]
        return masked_text + text[at:], answer + self._marks[len(spans) : len(spans) + 1]

    def _spans(self, words: int, random: np.random.Generator) -> list[tuple[int, int]]:
        """Spans of so many words, no two of them side by side."""
        if not words:
            return []
        hidden = max(1, min(round(self.share * words), words - 1))
        count = min(max(1, round(hidden / self.length)), len(self._marks) - 1, hidden, words - hidden + 1)
        cuts = np.sort(random.choice(np.arange(1, hidden), count - 1, replace=False)) if count > 1 else np.zeros(0, int)
        gaps = np.sort(random.choice(words - hidden + 1, count, replace=False))
        bounds = [0, *cuts.tolist(), hidden]
        return [(int(gap) + a, int(gap) + b) for gap, a, b in zip(gaps, bounds[:-1], bounds[1:], strict=True)]

    def _words(self, text: str) -> list[list[subwords.Piece]]:
        encoding = encode(self.tokenizer, text)
        if subwords.splits_words(self.tokenizer):
            return subwords.of_text(self._alignment, encoding, text)
        return [
            [(i, *place)] for i, place in zip(encoding.ids, self._alignment.places(encoding.offsets, text), strict=True)
        ]
