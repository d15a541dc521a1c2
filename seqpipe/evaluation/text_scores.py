"""Log-probabilities of texts: as answers to given sources, or under a language model, and those of minimal pairs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from seqpipe.answers.answer_types import WrittenText
from seqpipe.answers.base import TextScorer
from seqpipe.answers.text import END, MAX_LOGITS, SCORE_PROMPT, TOKEN_LOG_P, TOKEN_SCORES, Generation, Text
from seqpipe.answers.types import Masking, Metric, Part, Scores, ScoringRow
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record, field_names, location, padded
from seqpipe.features.encoding import text_excerpt
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import MASK, SPECIALS, UNK
from seqpipe.files import JSON_DECODER, file_lines
from seqpipe.runtime.decode_options import MAX_LENGTH, PREFIX, WIDTHS, length_options, resolve_options
from seqpipe.runtime.predictor import RUN_TOKENS, Predictor, batches, chunks, raise_error

TEXTS_PER_CHUNK = 256  # texts scored at a time
_UNKNOWN = SPECIALS.index(UNK)


@dataclass(frozen=True)
class ScoredText:
    """A record and the range of its text that is scored."""

    record: Record
    part: Part | None = None


@dataclass(frozen=True)
class TextScore:
    """Log-probability of a text, and the units that it covers.

    Args:
        log_p: The sum of the tokens' log-probabilities.
        tokens: Their number.
        characters: The number of characters that they span.
        unknown: The unknown words of the text.
        uncounted: Those of them that do not count: a masked language model never predicts an unknown word.
    """

    log_p: float
    tokens: int
    characters: int
    unknown: tuple[str, ...]
    uncounted: tuple[str, ...]


def text_scores(predictor: Predictor, texts: Iterable[ScoredText], masking: Masking = "token") -> Iterator[TextScore]:
    """Yield the scores of texts in order: log p for a causal, pseudo-log-likelihood for a masked language model.

    Args:
        predictor: A predictor with PyTorch or onnxruntime.
        texts: Texts whose records have the fields that the model reads.
        masking: For masked language models: mask each token by itself, or with those after it in its word.

    Raises:
        UsageError: if the model is not a language model.
        DataError: if a text has no token, too many, or a gap.
    """
    _, scorer = scored_source(predictor)
    if missing := sorted(scorer.scoring_options.keys() - predictor.options.keys()):
        raise UsageError(
            f"the model's head has no decode option {missing[0]!r}, which the log-probability of a text needs: export "
            "the run again; a head of a plugin must declare it"
        )
    options = resolve_options(predictor.options, scorer.scoring_options, predictor.kind).arrays
    for chunk in chunks(texts, TEXTS_PER_CHUNK):
        yield from _scores(predictor, chunk, masking, options)


def scored_source(predictor: Predictor) -> tuple[TextSource, TextScorer]:
    """Return the source of the scored text, the second of two fields, and the answer kind; UsageError without such."""
    source, kind = predictor.featurizer, predictor.kind
    if kind.scorer is None:
        raise UsageError(
            f"answers of kind {kind.kind} give no probability of a text: use a model whose only head is a causal or a "
            "masked language model"
        )
    if not isinstance(source, TextSource):
        raise UsageError("this model reads several inputs; the probability of a text needs a single input")
    return source, kind.scorer


def _scores(
    predictor: Predictor, texts: Sequence[ScoredText], masking: Masking, options: Arrays
) -> Iterator[TextScore]:
    (source, scorer), docs = scored_source(predictor), predictor.docs([text.record for text in texts])
    rows: list[tuple[int, ScoringRow]] = []
    for number, (doc, text) in enumerate(zip(docs, texts, strict=True)):
        if not len(doc):
            raise DataError(f"{location(text.record)}the text {doc.text!r} has no token; correct it")
        rows += [(number, row) for row in _rows(scorer, source, doc, text, masking)]
    sums = np.zeros(len(docs))
    counted: list[list[int]] = [[] for _ in docs]  # tokens of each text
    most = max(1, min(RUN_TOKENS, MAX_LOGITS // source.tokenizer.get_vocab_size()))
    for at in batches([len(row.ids) for _, row in rows], tokens=most):
        numbers, batch = [rows[i][0] for i in at], [rows[i][1] for i in at]
        features = source.collate([docs[i] for i in numbers])
        decision = predictor.run(features | options | scorer.scoring_inputs(batch))
        for number, row, log_p in zip(numbers, batch, scorer.row_scores(batch, decision), strict=True):
            sums[number] += log_p
            counted[number] += row.tokens
    for doc, text, log_p, tokens in zip(docs, texts, sums, counted, strict=True):
        if not math.isfinite(log_p):
            raise DataError(f"{location(text.record)}the log-probability of {doc.text!r} is {log_p}; train again")
        unknown = [i for i, number in enumerate(doc.ids) if number == _UNKNOWN]
        places = [doc.offsets[i] for i in tokens]
        characters = max((end for _, end in places), default=0) - min((start for start, _ in places), default=0)
        uncounted = tuple(doc.words[i] for i in unknown if i not in tokens)
        words = tuple(doc.words[i] for i in unknown)
        yield TextScore(float(log_p), len(tokens), characters, words, uncounted)


def _rows(scorer: TextScorer, source: TextSource, doc: Doc, text: ScoredText, masking: Masking) -> list[ScoringRow]:
    part = text.part
    if part and source.pairs:
        shift = len(doc.text) - len(source.text(text.record, source.fields[1]))
        part = part[0] + shift, part[1] + shift
    try:
        return scorer.scoring_rows(doc, part, masking)
    except DataError as error:
        raise DataError(f"{location(text.record)}{error}") from None


# Given texts as answers to given sources: the graph writes them, token by token (teacher forcing).


def target_scores(
    predictor: Predictor, pairs: Iterable[tuple[Record, str]], token_scores: bool = False
) -> Iterator[WrittenText]:
    """Yield each text as the answer to its record, with its score.

    Args:
        predictor: A predictor with PyTorch or onnxruntime.
        pairs: Records, each with a text that may answer it; of a language model a continuation of the prompt.
        token_scores: Whether the answers have their tokens, each with its log-probability.

    Raises:
        UsageError: if the model generates no text, or if its graph cannot be made to write a given one.
        DataError: for a record that cannot be answered, or a text that the model cannot write for it.
    """
    kind, known, only = cast(Text, predictor.kind), predictor.options, predictor.kind.parts.get("")
    if only is None or only.writer is None:
        fix = "use a bundle with a single head that generates text"
        raise UsageError(f"answers of kind {kind.kind!r} are no generated texts, which are scored; {fix}")
    needed = [SCORE_PROMPT] if kind.is_generated else [PREFIX, TOKEN_SCORES][: 1 + token_scores]
    if missing := [name for name in needed if name not in known]:
        fix = "export the run again; a head of a plugin must declare it"
        raise UsageError(f"the bundle has no decode option {missing[0]!r}, by which a given text is scored: {fix}")
    most = MAX_LOGITS // kind.tokenizer.get_vocab_size() if kind.is_generated else RUN_TOKENS
    for chunk in chunks(pairs, TEXTS_PER_CHUNK):
        records, texts = zip(*chunk, strict=True)
        docs, answers = predictor.docs(records), dict[int, Any]()
        rows = [[*raise_error(ids), END] for ids in kind.encode(texts, docs, records)]
        for record, doc, text, row in zip(records, docs, texts, rows, strict=True):
            if min(row) < END or not kind.text_length(doc):
                fault = f"{text_excerpt(text)} has a word that is in neither the vocabulary nor the source"
                raise DataError.at(record, f"{fault}; remove it" if min(row) < END else "the source has no token")
            if kind.is_generated and (count := len(doc) + len(row)) > (limit := predictor.limits.tokens):
                raise DataError.at(record, f"prompt, text and end have {count:,} tokens, over the limit of {limit:,}")
        lengths = [len(doc) + len(row) for doc, row in zip(docs, rows, strict=True)]
        for at in batches(lengths, tokens=max(1, min(RUN_TOKENS, most))):
            batch = [docs[i] for i in at], padded([rows[i] for i in at])["ids"]
            decision = (_scored_by_prompt if kind.is_generated else _scored_by_prefix)(predictor, *batch, token_scores)
            answers |= zip(at, predictor.read(batch[0], decision), strict=True)
            for i, row in zip(at, decision["tokens"][:, 0].tolist(), strict=True):
                if [token for token in row if token] != rows[i]:
                    fault = f"the model cannot write {text_excerpt(texts[i])} for this source, only another length"
                    raise DataError.at(records[i], f"{fault}; remove it")
        yield from (answers[i] for i in range(len(docs)))


def _scored_by_prefix(predictor: Predictor, docs: Sequence[Doc], tokens: np.ndarray, token_scores: bool) -> Arrays:
    """Return the decision about a batch of sources with the prefix (B, N), which includes an end."""
    chosen = dict.fromkeys(WIDTHS, 1) | ({TOKEN_SCORES: True} if token_scores else {})
    options = resolve_options(predictor.options, chosen, predictor.kind).of(docs) | {PREFIX: tokens}
    options |= length_options(0, tokens.shape[1]) if MAX_LENGTH in options else {}
    return predictor.run(predictor.featurizer.collate(docs) | options)


def _scored_by_prompt(predictor: Predictor, docs: Sequence[Doc], tokens: np.ndarray, token_scores: bool) -> Arrays:
    """Return the decision that a language model would make with these tokens (B, N), read as the end of the prompts."""
    kind, written = cast(Generation, predictor.kind), [[i for i in row if i] for row in tokens.tolist()]
    options = resolve_options(predictor.options, kind.scoring_options, kind).arrays
    prompts = padded([[*doc.ids, *row] for doc, row in zip(docs, written, strict=True)])
    scores = predictor.run(predictor.featurizer.collate(docs) | options | prompts)["prompt_scores"]
    log_p = np.zeros(tokens.shape)
    for row, (doc, ids) in enumerate(zip(docs, written, strict=True)):
        first = len(doc) - (not kind.adds_bos)
        log_p[row, : len(ids)] = scores[row, first : first + len(ids)]
    decision = {"tokens": tokens[:, None], "scores": log_p.sum(1, keepdims=True).astype(np.float32)}
    return decision | ({TOKEN_LOG_P: log_p[:, None]} if token_scores else {})


# Minimal pairs and alternatives, of which one is right, read from a file.

GOOD_KEY, BAD_KEY = "sentence_good", "sentence_bad"
ALTERNATIVES_KEY, ANSWER_KEY, TEXT_KEY = "alternatives", "answer", "text"
_EXAMPLE = f'{{"{GOOD_KEY}": "The cats sleep.", "{BAD_KEY}": "The cats sleeps."}}'
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Item:
    """Alternatives with one correct text: a minimal pair, or a context with each of several continuations.

    Args:
        record: The record of the file, with `where`.
        texts: The texts, with their white space unchanged.
        parts: Offsets of the alternative in each text; empty if the whole texts are compared.
        answer: The position of the right one.
    """

    record: Record
    texts: tuple[str, ...]
    parts: tuple[Part, ...]
    answer: int

    def scored(self, field: str) -> Iterator[ScoredText]:
        """Yield each text as a record with the text in this field."""
        for i, text in enumerate(self.texts):
            yield ScoredText({**self.record, field: text, "words": None}, self.parts[i] if self.parts else None)


def read_items(path: Path) -> Iterator[Item]:
    """Yield the items of a file of JSON lines, or of a table with a header if its name ends in .csv or .tsv.

    Raises:
        DataError: names file and line of an invalid item, or the file without items.
    """
    lines = (line.removeprefix("\ufeff") for line in file_lines(path))
    if delimiter := _DELIMITERS.get(path.suffix.lower()):
        rows = csv.DictReader(lines, delimiter=delimiter)
        records = ((rows.line_num, {key: x for key, x in row.items() if key and x is not None}) for row in rows)
    else:
        records = ((number, _object(line, f"{path}:{number}")) for number, line in enumerate(lines, 1) if line.strip())
    empty = True
    for number, record in records:
        empty = False
        yield item_of({**record, "where": f"{path}:{number}"})
    if empty:
        raise DataError(f"{path}: this file has no pairs; write one per line, such as {_EXAMPLE}")


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        record = JSON_DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: this is not JSON ({error}); write one object per line, {_EXAMPLE}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: must be an object such as {_EXAMPLE}, not {type(record).__name__}")
    return record


def item_of(record: Record) -> Item:
    """Return the item of a record; DataError if it is neither a pair nor a list of alternatives with its answer."""
    if ALTERNATIVES_KEY in record:
        return _alternatives(record)
    if GOOD_KEY not in record or BAD_KEY not in record:
        needed = f"{GOOD_KEY!r} and {BAD_KEY!r}, or {ALTERNATIVES_KEY!r} and {ANSWER_KEY!r}"
        raise DataError.at(record, f"needs {needed}; it has: {field_names(record)}")
    texts = _texts(record, [record[GOOD_KEY], record[BAD_KEY]], f"{GOOD_KEY!r} and {BAD_KEY!r}")
    if texts[0] == texts[1]:
        raise DataError.at(record, f"{GOOD_KEY!r} and {BAD_KEY!r} are the same text {texts[0]!r}; a pair has two")
    return Item(record, texts, (), 0)


def _alternatives(record: Record) -> Item:
    """Return the item of alternatives for [MASK] in a text, for its end, or for the whole text if there is none."""
    values, answer, text = record[ALTERNATIVES_KEY], record.get(ANSWER_KEY), record.get(TEXT_KEY, "")
    if not isinstance(values, list):
        raise DataError.at(record, f"{ALTERNATIVES_KEY!r} must be a list of texts, not {type(values).__name__}")
    alternatives = _texts(record, values, f"{ALTERNATIVES_KEY!r}")
    if len({*alternatives}) < max(2, len(alternatives)):
        raise DataError.at(record, f"{ALTERNATIVES_KEY!r} must be two or more texts that differ, not {values!r}")
    if type(answer) is not int or not 0 <= answer < len(alternatives):
        most = len(alternatives) - 1
        raise DataError.at(record, f"{ANSWER_KEY!r} must be the position of the right one, 0 to {most}, not {answer!r}")
    if not isinstance(text, str) or text.count(MASK) > 1:
        raise DataError.at(record, f"{TEXT_KEY!r} must be a text with {MASK} at most once, not {text!r}")
    if not text:
        return Item(record, alternatives, (), answer)
    before, _, after = text.partition(MASK)
    parts = tuple((len(before), len(before) + len(alternative)) for alternative in alternatives)
    return Item(record, tuple(f"{before}{alternative}{after}" for alternative in alternatives), parts, answer)


def _texts(record: Record, values: Sequence[Any], what: str) -> tuple[str, ...]:
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise DataError.at(record, f"{what} must be texts that are not empty, not {values!r}")
    return tuple(values)


# The preference of a language model in a minimal pair or among alternatives.

Normalize = Literal["none", "token", "character"]
BLIMP_GROUP_KEY = "UID"  # BLiMP's name of a phenomenon
SCORE_TIE = 1e-4  # scores that differ by less are equal: the margin of `seqpipe.export`
METRICS: Mapping[str, Metric] = {"accuracy": Metric(), "chance": Metric(), "mean_difference": Metric(percent=False)}


@dataclass(frozen=True)
class Judged:
    """Scores of an item's texts.

    Args:
        item: The texts.
        scores: The scores that are compared.
        unknown: The unknown words of the texts.
        is_comparable: Whether the same words of all texts are left out of the scores.
    """

    item: Item
    scores: tuple[float, ...]
    unknown: tuple[str, ...]
    is_comparable: bool

    @property
    def difference(self) -> float:
        """Margin of the correct text's score over the best of the others; 0 if incomparable."""
        if not self.is_comparable:
            return 0.0
        return self.scores[self.item.answer] - max(s for i, s in enumerate(self.scores) if i != self.item.answer)


def score_items(
    predictor: Predictor, items: Sequence[Item], *, normalize: Normalize = "none", masking: Masking = "token"
) -> list[Judged]:
    """Score the texts of each item under a language model.

    Args:
        predictor: A predictor with PyTorch or onnxruntime.
        items: The result of `read_items`.
        normalize: Divisor of the log-probability: none, the number of tokens or of characters.
        masking: See `text_scores`.
    """
    source, _ = scored_source(predictor)
    field = source.fields[-1]
    all_scores = text_scores(predictor, (text for item in items for text in item.scored(field)), masking)
    judged = []
    for item in items:
        scores: list[float] = []
        unknown: list[str] = []
        uncounted = set()
        for score in islice(all_scores, len(item.texts)):
            lengths = {"none": 1, "token": score.tokens, "character": score.characters}
            scores.append(score.log_p / max(1, lengths[normalize]))
            unknown += score.unknown
            uncounted.add(score.uncounted)
        judged.append(Judged(item, tuple(scores), tuple(dict.fromkeys(unknown)), len(uncounted) == 1))
    return judged


def pair_scores(judged: Sequence[Judged], by: str | None = None) -> Scores:
    """Return accuracy and other scores of all items and, under `groups`, for each value of the field `by`.

    By default that field is `UID`, if every item has it.
    """
    if by is None and all(BLIMP_GROUP_KEY in result.item.record for result in judged):
        by = BLIMP_GROUP_KEY
    groups: dict[str, list[Judged]] = {}
    if by:
        for result in judged:
            record = result.item.record
            if by not in record:
                raise DataError.at(record, f"no field {by!r} to split by; it has: {field_names(record)}")
            groups.setdefault(str(record[by]), []).append(result)
    return _pair_scores(judged) | {"groups": {name: _pair_scores(group) for name, group in groups.items()}}


def _pair_scores(judged: Sequence[Judged]) -> Scores:
    differences = [result.difference for result in judged]
    return {
        "accuracy": sum(difference >= SCORE_TIE for difference in differences) / len(judged),
        "chance": sum(1 / len(result.item.texts) for result in judged) / len(judged),
        "mean_difference": sum(differences) / len(judged),
        "ties": sum(abs(difference) < SCORE_TIE for difference in differences),
        "items": len(judged),
    }


def wrong_preferences(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Return the records of items whose correct text is not preferred, each with the scores of its texts."""
    return [
        {**result.item.record, "scores": [*result.scores], "difference": result.difference}
        for result in judged
        if result.difference < SCORE_TIE
    ]
