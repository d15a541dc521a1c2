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

from seqpipe.answers.metrics.numbers import mean_of, ratio, whole_scores
from seqpipe.answers.types import Statistics
from seqpipe.errors import DataError, UsageError, did_you_mean

BleuTokenizer = Literal["13a", "char", "intl", "ja-mecab", "none", "zh"]

WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # written without spaces
_TOKEN = re.compile(f"[{WIDE}]|[^\\s{WIDE}]+")


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


class TextCounter:
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
        self.bleu_tokenize = bleu_tokenize
        self.texts = self.equal = self.characters = self.edits = self.tokens = self.same = self.wide = 0
        self.unknown, self.copied = unknown, Counter[str]()
        self.word_errors = {"wer": ErrorRate(edit_distance), "per": ErrorRate(unordered_distance)}
        self.kept: list[tuple[list[str], str]] | None = [] if has("sacrebleu") or has("rouge_score") else None

    def add(self, gold: str | Sequence[str], predicted: str) -> None:
        """Add one record's text, and its reference or references."""
        references = [gold] if isinstance(gold, str) else list(gold)
        distances = [edit_distance(reference, predicted) for reference in references]
        nearest = references[distances.index(min(distances))]
        words, written = _TOKEN.findall(nearest), _TOKEN.findall(predicted)
        self.texts += 1
        self.equal += predicted in references
        self.characters += len(nearest)
        self.edits += min(distances)
        self.tokens += max(len(words), len(written))
        self.same += sum(a == b for a, b in zip(words, written, strict=False))
        for rate in self.word_errors.values():
            rate.add([_TOKEN.findall(reference) for reference in references], written)
        if self.unknown:
            right, copied = Counter(self.unknown(nearest)), Counter(self.unknown(predicted))
            self.copied.update(gold=right.total(), written=copied.total(), both=(right & copied).total())
        if self.kept is not None:
            self.kept.append((references, predicted))
            self.wide += len(re.findall(f"[{WIDE}]", nearest))

    def result(self) -> dict[str, float]:
        scores = {
            "exact_match": ratio(self.equal, self.texts),
            "token_accuracy": ratio(self.same, self.tokens),
            "character_error_rate": ratio(self.edits, self.characters),
            **{name: rate.result() for name, rate in self.word_errors.items()},
        }
        if self.unknown:
            scores["copy_precision"] = ratio(self.copied["both"], self.copied["written"])
            scores["copy_recall"] = ratio(self.copied["both"], self.copied["gold"])
        if self.kept == [] and has("sacrebleu"):
            scores |= {"bleu": 0.0, "chrf": 0.0}
        return scores | whole_scores(self.statistics())

    @property
    def _mostly_wide(self) -> bool:
        return 2 * self.wide > self.characters

    def statistics(self) -> Iterator[Statistics]:
        """Yield the sums of each text that BLEU, chrF and ROUGE are computed from."""
        kept = self.kept or []
        if kept and has("sacrebleu"):
            from sacrebleu.metrics import BLEU, CHRF

            predicted = [text for _, text in kept]
            streams = [*zip_longest(*(references for references, _ in kept))]  # records may have fewer references
            # force: no warnings about texts that end in " .", as in data with spaces between tokens
            tokenize = self.bleu_tokenize or ("zh" if self._mostly_wide else "13a")
            metrics: dict[str, Any] = {"bleu": BLEU(tokenize=tokenize, force=True), "chrf": CHRF()}
            for name, metric in metrics.items():
                # sacrebleu's public functions score whole sets only; its own significance tests call these methods.
                rows = np.array(metric._extract_corpus_statistics(predicted, streams))
                yield rows, partial(_corpus_scores, name, metric)
        if kept and has("rouge_score"):
            from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

            names = {"rouge1": "rouge_1", "rouge2": "rouge_2", "rougeL": "rouge_l"}
            scorer = RougeScorer([*names], use_stemmer=True, tokenizer=_Characters() if self._mostly_wide else None)
            best = [scorer.score_multi(references, predicted) for references, predicted in kept]
            for theirs, ours in names.items():
                yield mean_of(ours, [scores[theirs].fmeasure for scores in best])


def _corpus_scores(name: str, metric: Any, sums: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.array([metric._compute_score_from_stats([*row]).score / 100 for row in sums])}


class ErrorRate:
    """The errors of all texts divided by the words of their references; 0 if these have none.

    Args:
        distance: Function that returns the number of errors of a text against a reference.
    """

    def __init__(self, distance: Callable[[Sequence[str], Sequence[str]], int]) -> None:
        self.distance, self.errors, self.words = distance, 0, 0

    def add(self, references: Sequence[Sequence[str]], written: Sequence[str]) -> None:
        """Add one record's words, against the reference of the fewest errors, the longest of several."""
        counts = [(self.distance(reference, written), len(reference)) for reference in references]
        errors, words = min(counts, key=lambda count: (count[0], -count[1]))
        self.errors += errors
        self.words += words

    def result(self) -> float:
        return ratio(self.errors, self.words)


class PerplexityCounter:
    """Perplexity, mean loss of a token in nats, and bits per character of texts."""

    def __init__(self) -> None:
        self.loss, self.tokens, self.characters = 0.0, 0, 0

    def add(self, gold: None, predicted: Mapping[str, Any]) -> None:
        self.loss += predicted["loss"]
        self.tokens += predicted["tokens"]
        self.characters += predicted["characters"]

    def result(self) -> dict[str, Any]:
        if not np.any(self.tokens):
            raise DataError("perplexity needs a text of at least two tokens")
        loss, bits = ratio(self.loss, self.tokens), ratio(self.loss / math.log(2), self.characters)
        exp = np.exp if isinstance(loss, np.ndarray) else math.exp
        return {"perplexity": exp(np.minimum(loss, 700.0)), "loss": loss, "bits_per_character": bits}


class FillingCounter:
    """Share of masked words that are restored, and of texts in which all are."""

    def __init__(self) -> None:
        self.hidden = self.right = self.texts = self.equal = 0

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """Add one record's masked words, and the word filled in for each."""
        self.hidden += len(gold)
        self.right += sum(a == b for a, b in zip(gold, predicted, strict=False))
        self.texts += 1
        self.equal += list(gold) == list(predicted)

    def result(self) -> dict[str, float]:
        return {"masked_accuracy": ratio(self.right, self.hidden), "exact_match": ratio(self.equal, self.texts)}


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
