"""Metrics of generated text: equal texts, token accuracy, error rates; BLEU, chrF and ROUGE by packages."""

from __future__ import annotations

import importlib.util
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, get_args

import numpy as np

from seqpipe.answers.metrics.numbers import SumCounter, mean_of, ratio, whole_scores
from seqpipe.answers.types import Pair, Scores, Statistics
from seqpipe.errors import DataError, UsageError, did_you_mean

BleuTokenizer = Literal["13a", "char", "intl", "ja-mecab", "none", "zh"]

WIDE_CHARACTERS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # written without spaces
_TOKEN = re.compile(f"[{WIDE_CHARACTERS}]|[^\\s{WIDE_CHARACTERS}]+")


def has(package: str) -> bool:
    """Return True if a package is installed."""
    return importlib.util.find_spec(package) is not None


def tokenizer_fault(tokenize: str | None) -> str:
    """Return the reason why BLEU cannot use this tokenizer, with the fix; "" if it can or sacrebleu is absent."""
    if tokenize is not None and tokenize not in (names := get_args(BleuTokenizer)):
        fix = f"{did_you_mean(tokenize, names)}; choose one of {', '.join(names)}"
        return f"bleu_tokenize: unknown tokenizer {tokenize!r}{fix}"
    if tokenize == "ja-mecab" and has("sacrebleu") and not (has("MeCab") and has("ipadic")):
        return "bleu_tokenize: ja-mecab needs MeCab and its dictionary: pip install 'sacrebleu[ja]', or choose char"
    return ""


class TextCounter(SumCounter):
    """Exact match, token accuracy, edit rates over characters and words; BLEU, chrF and ROUGE.

    A token is text between white space, or a Chinese or Japanese character; `token_accuracy` is the share of positions
    of the longer text at which both texts have the same token. BLEU (Papineni et al. 2002) and chrF (Popović 2015) are
    sacrebleu's over all texts, which are stored: BLEU with the tokenizer `bleu_tokenize`; by default `zh` if most
    letters of the references are Chinese or Japanese, else `13a`. ROUGE-1, 2 and L (Lin 2004) are the mean F1 of the
    package rouge-score with stemming; if most letters are Chinese or Japanese, over the tokens above.

    `wer` is the word error rate: the minimum number of insertions, deletions and substitutions over all texts, divided
    by the number of reference words. `per` ignores the word order (Tillmann et al. 1997): the words of the longer text
    missing from the shorter, divided by the number of reference words. Both may exceed 1; a word is a token as above.

    With several references, a text may equal any of them, its tokens and edits are counted against the reference of the
    fewest edits, and its ROUGE is the greatest; BLEU and chrF use all. `wer` and `per` use the reference with their
    fewest errors, the longest of several.

    For copied words, `copy_precision` is the share of generated out-of-vocabulary words that are in the reference, and
    `copy_recall` the share of the reference's that are generated; words count as often as they occur.

    Args:
        unknown: Function that returns the out-of-vocabulary words of a text; None without copying.
        bleu_tokenize: BLEU's tokenizer; None: chosen by the letters of the references.

    Raises:
        UsageError: BLEU cannot be computed with this tokenizer.
    """

    def __init__(self, unknown: Callable[[str], list[str]] | None = None, bleu_tokenize: str | None = None) -> None:
        if fault := tokenizer_fault(bleu_tokenize):
            raise UsageError(fault)
        super().__init__()
        self.unknown, self.bleu_tokenize = unknown, bleu_tokenize
        self.kept: list[Pair] | None = [] if has("sacrebleu") or has("rouge_score") else None

    def terms(self, gold: str | Sequence[str], predicted: str) -> dict[str, float]:
        """Return the terms of one record's text, and its reference or references."""
        references = _references(gold)
        distances = [edit_distance(reference, predicted) for reference in references]
        nearest = references[distances.index(min(distances))]
        words, written = _TOKEN.findall(nearest), _TOKEN.findall(predicted)
        terms: dict[str, float] = {
            "texts": 1,
            "equal": predicted in references,
            "characters": len(nearest),
            "wide": len(re.findall(f"[{WIDE_CHARACTERS}]", nearest)),
            "edits": min(distances),
            "tokens": max(len(words), len(written)),
            "same": sum(a == b for a, b in zip(words, written, strict=False)),
        }
        tokenized = [_TOKEN.findall(reference) for reference in references]
        for name, distance in (("wer", edit_distance), ("per", unordered_distance)):
            # The reference of the fewest errors, the longest of several.
            errors, words_less = min((distance(reference, written), -len(reference)) for reference in tokenized)
            terms |= {name: errors, f"{name}_words": -words_less}
        if self.unknown:
            right, copied = Counter(self.unknown(nearest)), Counter(self.unknown(predicted))
            both = (right & copied).total()
            terms |= {"copied_gold": right.total(), "copied": copied.total(), "copied_both": both}
        return terms

    def add(self, gold: str | Sequence[str], predicted: str) -> None:
        super().add(gold, predicted)
        if self.kept is not None:
            self.kept.append((gold, predicted))

    def scores(self, sums: Counter[Any]) -> Scores:
        scores = {
            "exact_match": ratio(sums["equal"], sums["texts"]),
            "token_accuracy": ratio(sums["same"], sums["tokens"]),
            "character_error_rate": ratio(sums["edits"], sums["characters"]),
            **{name: ratio(sums[name], sums[f"{name}_words"]) for name in ("wer", "per")},
        }
        if self.unknown:
            scores["copy_precision"] = ratio(sums["copied_both"], sums["copied"])
            scores["copy_recall"] = ratio(sums["copied_both"], sums["copied_gold"])
        return scores

    def result(self) -> Scores:
        scores = super().result()
        if self.kept == [] and has("sacrebleu"):
            scores |= {"bleu": 0.0, "chrf": 0.0}
        return scores | whole_scores(self._corpus_statistics(self.kept or []))

    def statistics(self, sides: Sequence[Sequence[Pair]], at: Sequence[int]) -> Iterator[Statistics]:
        yield from super().statistics(sides, at)
        yield from self._corpus_statistics([side[i] for side in sides for i in at])

    def _corpus_statistics(self, pairs: Sequence[Pair]) -> Iterator[Statistics]:
        """Yield the sums of each text that BLEU, chrF and ROUGE are computed from."""
        kept = [(_references(gold), predicted) for gold, predicted in pairs]
        is_wide = 2 * self.sums["wide"] > self.sums["characters"]
        if kept and has("sacrebleu"):
            from sacrebleu.metrics import BLEU, CHRF

            predicted = [text for _, text in kept]
            streams = [*zip_longest(*(references for references, _ in kept))]  # records may have fewer references
            # force: no warnings about texts that end in " .", as in data with spaces between tokens
            tokenize = self.bleu_tokenize or ("zh" if is_wide else "13a")
            metrics: dict[str, Any] = {"bleu": BLEU(tokenize=tokenize, force=True), "chrf": CHRF()}
            for name, metric in metrics.items():
                # sacrebleu's public functions score whole sets only; its own significance tests call these methods.
                rows = np.array(metric._extract_corpus_statistics(predicted, streams))
                yield rows, partial(_corpus_scores, name, metric)
        if kept and has("rouge_score"):
            from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

            names = {"rouge1": "rouge_1", "rouge2": "rouge_2", "rougeL": "rouge_l"}
            scorer = RougeScorer([*names], use_stemmer=True, tokenizer=_Characters() if is_wide else None)
            best = [scorer.score_multi(references, predicted) for references, predicted in kept]
            for theirs, ours in names.items():
                yield mean_of(ours, [scores[theirs].fmeasure for scores in best])


def _references(gold: str | Sequence[str]) -> Sequence[str]:
    return [gold] if isinstance(gold, str) else gold


def _corpus_scores(name: str, metric: Any, sums: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.array([metric._compute_score_from_stats([*row]).score / 100 for row in sums])}


class PerplexityCounter(SumCounter):
    """Perplexity, mean loss of a token in nats, and bits per character of texts."""

    def terms(self, gold: None, predicted: Mapping[str, Any]) -> dict[str, float]:
        return {name: predicted[name] for name in ("loss", "tokens", "characters")}

    def scores(self, sums: Counter[Any]) -> Scores:
        if not np.any(sums["tokens"]):
            raise DataError("perplexity needs a text of at least two tokens")
        loss, bits = ratio(sums["loss"], sums["tokens"]), ratio(sums["loss"] / math.log(2), sums["characters"])
        exp = np.exp if isinstance(loss, np.ndarray) else math.exp
        return {"perplexity": exp(np.minimum(loss, 700.0)), "loss": loss, "bits_per_character": bits}


class _Characters:
    """Splits texts like `token_accuracy`, for rouge-score, whose own tokenizer keeps only a to z and digits."""

    def tokenize(self, text: str) -> list[str]:
        return _TOKEN.findall(text.lower())


def unordered_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Count the words of the longer sequence that the shorter lacks, with multiplicity."""
    return max(len(a), len(b)) - (Counter(a) & Counter(b)).total()


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the Levenshtein distance over code points or words, with each table column as the bits of an integer.

    By the algorithm of Hyyrö (2003).
    """
    if not a or not b:
        return len(a) + len(b)
    where: dict[str, int] = {}  # positions of each unit in a, as bits
    for i, item in enumerate(a):
        where[item] = where.get(item, 0) | 1 << i
    every, top = (1 << len(a)) - 1, len(a) - 1
    up, down, distance = every, 0, len(a)  # vertical differences of +1 and -1
    for item in b:
        equal = where.get(item, 0)
        still = (((equal & up) + up) ^ up) | equal | down
        rises, falls = down | every & ~(still | up), up & still  # horizontal differences
        distance += (rises >> top & 1) - (falls >> top & 1)
        rises, falls = rises << 1 | 1, falls << 1
        equal |= down
        up, down = (falls | ~(equal | rises)) & every, rises & equal & every
    return distance
