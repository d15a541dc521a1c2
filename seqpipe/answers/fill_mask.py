"""Answer kinds fill-mask and span-infilling: the text with each [MASK] filled, and spans after sentinels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.answer_types import FilledText, FilledTexts
from seqpipe.answers.base import HeadAnswer, best_of
from seqpipe.answers.metrics.numbers import PlaceCounter
from seqpipe.answers.task import HeadTask, no_targets
from seqpipe.answers.text import TARGET_TOKENS, TOKENS_AND_SCORES, Text, TextTask
from seqpipe.answers.types import Choice, Counts, MakeTargets, Masking, Metric, Part, ScoringRow, SpanRules
from seqpipe.errors import DataError
from seqpipe.features import splitting as subwords
from seqpipe.features.document import Arrays, Doc, Record, padded
from seqpipe.features.encoding import Alignment, decode, encode
from seqpipe.features.vocabulary import EOS, MASK, SPAN_MARKS, replace_surrogates, special_id


class FillMask(HeadAnswer[FilledTexts]):
    """A text whose gaps are filled: `{"generated_text", "score", "words"}`, or a list of them, best first.

    The text outside of gaps is unchanged; `words` are the filled tokens of the vocabulary. The score is their joint
    probability. A text without a gap is its own answer.

    Args:
        tokenizer: Tokenizer of the text.
        token: The token of a gap.
        share: Share of the words that are masked, at least one per text.
        fields: Fields of a record with texts.

    Raises:
        ValueError: if the tokenizer has no such token.
    """

    kind = "fill-mask"
    hub_task = "fill-mask"
    answer_type = FilledText
    nothing = {"generated_text": "", "score": 1.0, "words": []}
    text_key = "generated_text"
    decided = TOKENS_AND_SCORES
    manifest_keys = ("token", "share", "fields")
    needs_tokenizer = log_score = True
    scoring_options: ClassVar[Mapping[str, Any]] = {"filling": []}

    def __init__(self, tokenizer: Tokenizer, *, token: str, share: float, fields: Sequence[str]):
        self.tokenizer, self.token, self.share, self.fields = tokenizer, token, share, tuple(fields)
        gap = tokenizer.token_to_id(token)
        if gap is None:
            raise ValueError(f"fill-mask: the tokenizer has no token {token!r}")
        self.gap, self.end = int(gap), special_id(tokenizer, EOS)
        self.splits = subwords.splits_words(tokenizer)
        self.drawing = {"as": "filling", "gap": token}

    @property
    def optional_keys(self) -> Mapping[str, bool]:
        return {**super().optional_keys, "tokens": False}

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[FilledTexts]:
        return self.ranked(docs, decision, ("tokens",), self._answer)

    def _answer(self, doc: Doc, ids: Sequence[int], score: float) -> FilledText:
        words, filled, at = [self.token_text(ids[i]) for i in self._gaps(doc)], "", 0
        for first, end in self._runs(doc):  # white space is unchanged
            filled += doc.text[at : doc.offsets[first][0]] + self._filling(ids, first, end)
            at = doc.offsets[end - 1][1]
        return {"generated_text": filled + doc.text[at:], "score": score, "words": words}

    def scoring_rows(self, doc: Doc, part: Part | None, masking: Masking) -> list[ScoringRow]:
        """Return a row for each token, in which it is masked, for the pseudo-log-likelihood (Salazar et al. 2020).

        With masking "word" the later tokens of its word are masked too (Kauf and Ivanova 2023). For a part there is one
        row, in which all its tokens are masked. Unknown tokens, which are never predicted, are not counted.
        """
        if self.gap in doc.ids:
            raise DataError(f"{doc.text!r} contains {self.token}; a text to score must have no gap")
        tokens = [i for i in range(doc.second or 0, len(doc)) if doc.ids[i] > self.end]
        if part:
            start, end = part
            tokens = [i for i in tokens if doc.offsets[i][1] > start and doc.offsets[i][0] < end]
            return [self._scoring_row(doc, tokens, tokens)] if tokens else []
        ends = {i: i + 1 for i in tokens}
        if masking == "word" and doc.starts is not None:
            words = zip(doc.starts, [*doc.starts[1:], len(doc)], strict=True)
            ends = {i: end for start, end in words for i in range(start, end)}
        return [self._scoring_row(doc, [i], range(i, ends[i])) for i in tokens]

    def _scoring_row(self, doc: Doc, tokens: Sequence[int], masked: Sequence[int]) -> ScoringRow:
        ids = [self.gap if i in masked else number for i, number in enumerate(doc.ids)]
        return ScoringRow(ids, [*tokens], [doc.ids[i] if i in tokens else 0 for i in masked])

    def scoring_inputs(self, rows: Sequence[ScoringRow]) -> Arrays:
        return padded([row.ids for row in rows]) | {"filling": padded([row.filling for row in rows])["ids"]}

    def row_scores(self, rows: Sequence[ScoringRow], decision: Arrays) -> list[float]:
        return [float(log_p) for log_p in decision["scores"][:, 0]]

    @property
    def writer(self) -> Text:
        return Text(self.tokenizer)

    @property
    def scorer(self) -> FillMask:
        return self

    def _gaps(self, doc: Doc) -> list[int]:
        return [i for i, number in enumerate(doc.ids) if number == self.gap]

    def token_text(self, number: int) -> str:
        return decode(self.tokenizer, [number]).strip() or decode(self.tokenizer, [number])

    def _runs(self, doc: Doc) -> Iterator[tuple[int, int]]:
        """Yield runs of adjacent gaps as first and last (exclusive)."""
        gaps = self._gaps(doc)
        for i, first in enumerate(gaps):
            if i and gaps[i - 1] == first - 1 and doc.offsets[first - 1][1] == doc.offsets[first][0]:
                continue
            end = first + 1
            while end in gaps[i:] and doc.offsets[end - 1][1] == doc.offsets[end][0]:
                end += 1
            yield first, end

    def _filling(self, ids: Sequence[int], first: int, end: int) -> str:
        """Return a range of adjacent tokens as text."""
        if not self.splits:
            return "".join(decode(self.tokenizer, [number]) for number in ids[first:end])
        words = []
        for i in range(first, end):  # some tokens differ from a whole word only after another token
            head = decode(self.tokenizer, ids[max(0, i - 1) : i])
            whole = decode(self.tokenizer, ids[max(0, i - 1) : i + 1])
            words.append(
                (whole.removeprefix(head) if whole.startswith(head) else decode(self.tokenizer, ids[i : i + 1])).strip()
            )
        if any("\ufffd" in word for word in words):  # a character of several tokens, which are bytes
            return decode(self.tokenizer, ids[first:end]).strip()
        return "".join(words)


class FillMaskTask(HeadTask[FilledTexts, FillMask]):
    """Task of the words that `question` masks in a record, the same at each call, in place of a reference."""

    kind_type = FillMask
    settings = {"token": MASK, "share": 0.15}
    targets = TARGET_TOKENS
    metrics = {"masked_accuracy": Metric(), "exact_match": Metric()}
    choices = (Choice(("tokens",), ranked=True),)
    may_self_supervise = True
    is_stepwise = True
    counts_tokens = True

    def __init__(self, kind: FillMask):
        super().__init__(kind)
        self._alignment = Alignment(kind.tokenizer)

    def question(self, record: Record) -> Record:
        """Return the record with some of its words masked."""
        return {**record, "words": None} | {field: self._mask(record, field)[0] for field in self.kind.fields}

    def gold(self, record: Record) -> list[str]:
        """Return the words that `question` replaces by gaps."""
        return [self.kind.token_text(number) for field in self.kind.fields for number in self._mask(record, field)[1]]

    def predicted(self, answer: FilledTexts) -> list[str]:
        return list(best_of(answer)["words"])

    def counter(self) -> Counts:
        return PlaceCounter([*self.metrics])

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        return no_targets

    def _mask(self, record: Record, field: str) -> tuple[str, list[int]]:
        """Return a field's text with gaps, and the ids of the masked words, which depend on the text only."""
        end, gap = self.kind.end, self.kind.gap
        text, pieces_of_words, random = _words(self.kind.tokenizer, self._alignment, record, field)
        words = [pieces for pieces in pieces_of_words if all(i > end and i != gap for i, *_ in pieces)]
        drawn = random.random(len(words))
        hidden = [pieces for pieces, u in zip(words, drawn, strict=True) if u < self.kind.share or u == drawn.min()]
        masked_text, at = "", 0
        for pieces in hidden:
            masked_text += text[at : pieces[0][1]] + self.kind.token * len(pieces)
            at = pieces[-1][2]
        return masked_text + text[at:], [i for pieces in hidden for i, *_ in pieces]


def _words(
    tokenizer: Tokenizer, alignment: Alignment, record: Record, field: str
) -> tuple[str, list[list[subwords.Piece]], np.random.Generator]:
    """Return a field's text, the pieces of each word or token with offsets, and random numbers that depend on it only.

    The words of a record replace a missing text; DataError if it has neither.
    """
    text, words = record.get(field), record.get("words")
    if field == "text" and words is not None and not isinstance(text, str):
        text = " ".join(words)
    if not isinstance(text, str):
        raise DataError.at(record, f"no text in the field {field!r}; it has: {', '.join(record)}")
    text = replace_surrogates(text)
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))
    encoding = encode(tokenizer, text)
    if subwords.splits_words(tokenizer):
        return text, subwords.of_text(alignment, encoding, text), random
    places = alignment.places(encoding.offsets, text)
    return text, [[(i, *place)] for i, place in zip(encoding.ids, places, strict=True)], random


# Answer kind span-infilling (T5): sentinels and the spans that they replace.


class SpanInfilling(Text):
    """Text: `{"generated_text", "score"}`, each sentinel of the input followed by the span that it replaces.

    Args:
        tokenizer: Tokenizer of the text and of the answer.
        share: Share of the words that are masked, at least one per text.
        length: Mean number of tokens of a span.
        field: Field of a record with the text.
        bleu_tokenize: The tokenizer of the metric BLEU; None: chosen by the letters of the references.
    """

    kind = "span-infilling"
    manifest_keys, manifest_defaults = ("share", "length", "field"), {"bleu_tokenize": None}

    def __init__(
        self, tokenizer: Tokenizer, *, share: float, length: float, field: str, bleu_tokenize: str | None = None
    ):
        super().__init__(tokenizer, bleu_tokenize=bleu_tokenize)
        self.share, self.length, self.field = share, length, field


class SpanInfillingTask(TextTask[SpanInfilling]):
    """Task of the spans that `question` masks in a record, the same at each call, in place of a reference."""

    kind_type = SpanInfilling
    settings = {"share": 0.15, "length": 3.0, "bleu_tokenize": None}
    has_target_text = False
    may_self_supervise = True

    def __init__(self, kind: SpanInfilling):
        super().__init__(kind)
        self._marks = [i for i in map(kind.tokenizer.token_to_id, SPAN_MARKS) if i is not None]
        self._alignment = Alignment(kind.tokenizer)

    def question(self, record: Record) -> Record:
        """Return the record with sentinels for some of its words."""
        return {**record, "words": None, self.kind.field: self._mask(record)[0]}

    def gold(self, record: Record) -> str:
        """Return the spans that `question` replaces by sentinels, each after its sentinel."""
        return decode(self.kind.tokenizer, self._mask(record)[1])

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        return no_targets

    def _mask(self, record: Record) -> tuple[str, list[int]]:
        """Return the text with sentinels, and the ids of the target. The masked words depend on the text only."""
        text, words, random = _words(self.kind.tokenizer, self._alignment, record, self.kind.field)
        spans = self._spans(len(words), random)
        masked_text, at, answer = "", 0, list[int]()
        for mark, (first, end) in zip(self._marks, spans, strict=False):
            masked_text += text[at : words[first][0][1]] + str(self.kind.tokenizer.id_to_token(mark))
            at = words[end - 1][-1][2]
            answer += [mark, *(i for pieces in words[first:end] for i, *_ in pieces)]
        return masked_text + text[at:], answer + self._marks[len(spans) : len(spans) + 1]

    def _spans(self, words: int, random: np.random.Generator) -> list[tuple[int, int]]:
        """Return non-adjacent spans of this many words in total."""
        if not words:
            return []
        hidden = max(1, min(round(self.kind.share * words), words - 1))
        count = min(max(1, round(hidden / self.kind.length)), len(self._marks) - 1, hidden, words - hidden + 1)
        cuts = np.sort(random.choice(np.arange(1, hidden), count - 1, replace=False)) if count > 1 else np.zeros(0, int)
        gaps = np.sort(random.choice(words - hidden + 1, count, replace=False))
        bounds = [0, *cuts.tolist(), hidden]
        return [(int(gap) + a, int(gap) + b) for gap, a, b in zip(gaps, bounds[:-1], bounds[1:], strict=True)]
