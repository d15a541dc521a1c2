"""The log-probabilities of texts under a language model: one code for PyTorch and bundles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from seqpipe.answers.base import NO_TEXT_SCORES, AnswerKind
from seqpipe.answers.text import ENOUGH
from seqpipe.answers.types import Masking, Part, ScoringRow
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record, place_of
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import SPECIALS, UNK
from seqpipe.runtime.decode_options import chosen
from seqpipe.runtime.predictor import TOKENS, Predictor, batches, chunks

CHUNK = 256  # texts scored at a time
_UNKNOWN = SPECIALS.index(UNK)


@dataclass(frozen=True)
class ScoredText:
    """A record whose text is scored, or a part of it: start and end in the text."""

    record: Record
    part: Part | None = None


@dataclass(frozen=True)
class TextScore:
    """The log-probability of a text, and what it is of.

    Args:
        log_p: The sum of the tokens' log-probabilities.
        tokens: How many they are.
        characters: How many characters of the text they span.
        unknown: The unknown words of the text.
        uncounted: Those of them that add nothing: a masked language model never predicts an unknown word.
    """

    log_p: float
    tokens: int
    characters: int
    unknown: tuple[str, ...]
    uncounted: tuple[str, ...]


def text_scores(predictor: Predictor, texts: Iterable[ScoredText], masking: Masking = "token") -> Iterator[TextScore]:
    """Yield the scores of texts in their order: log p of a causal, pseudo-log-likelihood of a masked language model.

    Args:
        predictor: Answers with PyTorch or onnxruntime.
        texts: Their records have the fields that the model reads.
        masking: For masked language models: mask each token by itself, or with those behind it in its word.

    Raises:
        UsageError: if the model is no language model.
        DataError: if a text has no token, too many, or a gap.
    """
    source, wanted = scored_source(predictor), predictor.kind.scoring_options or {}
    if missing := sorted(wanted.keys() - predictor.options.keys()):
        raise UsageError(
            f"the model's head has no decode option {missing[0]!r}, which the log-probability of a text needs: export "
            "the run again; a head of a plugin must declare it"
        )
    options = chosen(predictor.options, wanted, predictor.kind).arrays
    for some in chunks(texts, CHUNK):
        yield from _scores(predictor, source, some, masking, options)


def scored_source(predictor: Predictor) -> TextSource:
    """The source whose text is scored, of two fields the second; UsageError if the model is no language model."""
    source = predictor.featurizer
    if predictor.kind.scoring_options is None:
        raise UsageError(NO_TEXT_SCORES.format(predictor.kind.kind))
    if not isinstance(source, TextSource):
        raise UsageError(
            "this model reads several inputs; only of a text that is the only input is there a probability"
        )
    return source


def _scores(
    predictor: Predictor, source: TextSource, texts: Sequence[ScoredText], masking: Masking, options: Arrays
) -> Iterator[TextScore]:
    kind, docs = predictor.kind, predictor.docs([text.record for text in texts])
    rows: list[tuple[int, ScoringRow]] = []
    for number, (doc, text) in enumerate(zip(docs, texts, strict=True)):
        if not len(doc):
            raise DataError(f"{place_of(text.record)}the text {doc.text!r} has no token; write one")
        rows += [(number, row) for row in _rows(kind, source, doc, text, masking)]
    sums = np.zeros(len(docs))
    counted: list[list[int]] = [[] for _ in docs]  # tokens of each text
    most = max(1, min(TOKENS, ENOUGH // source.tokenizer.get_vocab_size()))
    for at in batches([len(row.ids) for _, row in rows], tokens=most):
        numbers, batch = [rows[i][0] for i in at], [rows[i][1] for i in at]
        features = source.collate([docs[i] for i in numbers])
        decision = predictor.run(features | options | kind.scoring_inputs(batch))
        for number, row, log_p in zip(numbers, batch, kind.row_scores(batch, decision), strict=True):
            sums[number] += log_p
            counted[number] += row.tokens
    for doc, text, log_p, tokens in zip(docs, texts, sums, counted, strict=True):
        if not math.isfinite(log_p):
            raise DataError(f"{place_of(text.record)}the log-probability of {doc.text!r} is {log_p}; train again")
        unknown = [i for i, number in enumerate(doc.ids) if number == _UNKNOWN]
        places = [doc.offsets[i] for i in tokens]
        characters = max((end for _, end in places), default=0) - min((start for start, _ in places), default=0)
        uncounted = tuple(doc.words[i] for i in unknown if i not in tokens)
        words = tuple(doc.words[i] for i in unknown)
        yield TextScore(float(log_p), len(tokens), characters, words, uncounted)


def _rows(kind: AnswerKind, source: TextSource, doc: Doc, text: ScoredText, masking: Masking) -> list[ScoringRow]:
    part = text.part
    if part and source.pairs:
        shift = len(doc.text) - len(source.text(text.record, source.fields[1]))
        part = part[0] + shift, part[1] + shift
    try:
        return kind.scoring_rows(doc, part, masking)
    except DataError as error:
        raise DataError(f"{place_of(text.record)}{error}") from None
