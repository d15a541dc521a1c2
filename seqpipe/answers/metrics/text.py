"""Metrics of generated text: equal texts, token accuracy, error rates; BLEU, chrF and ROUGE by packages."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Literal, get_args

from seqpipe.errors import UsageError, did_you_mean

BleuTokenizer = Literal["13a", "char", "intl", "ja-mecab", "none", "zh"]

WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # written without blanks
_TOKEN = re.compile(f"[{WIDE}]|[^\\s{WIDE}]+")


def has(package: str) -> bool:
    """Return True if a package is installed."""
    return importlib.util.find_spec(package) is not None


def tokenizer_fault(tokenize: str | None) -> str:
    """Return the reason why BLEU cannot use this tokenizer, with the fix; "" if it can or sacrebleu is absent."""
    if tokenize is not None and tokenize not in (names := get_args(BleuTokenizer)):
        fix = f"{did_you_mean(tokenize, names)}; choose of {', '.join(names)}"
        return f"bleu_tokenize: unknown tokenizer {tokenize!r}{fix}"
    if tokenize == "ja-mecab" and has("sacrebleu") and not (has("MeCab") and has("ipadic")):
        return "bleu_tokenize: ja-mecab needs MeCab and its dictionary: pip install 'sacrebleu[ja]', or choose char"
    return ""


class TextCounter:
    """The shares of equal texts and of equal tokens, edits over characters and words of gold; BLEU, chrF and ROUGE.

    A token is what stands between blanks, or a Chinese or Japanese character; `token_accuracy` is the share of places
    at which both texts have the same one, of as many as the longer has. BLEU (Papineni et al. 2002) and chrF (Popović
    2015) are sacrebleu's over all texts, which are kept for them: BLEU with the tokenizer `bleu_tokenize`, or without
    one with `zh` where most letters of gold are Chinese or Japanese, else `13a`. ROUGE-1, 2 and L (Lin 2004) are the
    mean F1 of the package rouge-score, with stems; where most letters are Chinese or Japanese, of tokens as above.

    `wer` is the word error rate: the fewest words to insert, delete and replace, of all texts together, over the words
    of gold. `per` is the same without regard to word order (Tillmann et al. 1997): of the longer text's words those
    that the shorter lacks, over the words of gold. Both may exceed 1; a word is a token as above.

    Of several references a text is equal to any of them, its tokens and edits are counted against the one of the
    fewest edits, and its ROUGE is the greatest; BLEU and chrF take all. `wer` and `per` take the one of the fewest
    errors of their own, and of several such ones the longest.

    Where words are copied: of the words written that the vocabulary lacks, the share that gold has too is
    `copy_precision`, and of gold's the share that is written `copy_recall`; words count as often as they occur.

    Args:
        unknown: The words of a text that the vocabulary lacks; None where nothing is copied.
        bleu_tokenize: BLEU's tokenizer; None: chosen by the letters of gold.

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
        """One record's text, and its reference or several."""
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
            "exact_match": self.equal / max(1, self.texts),
            "token_accuracy": self.same / max(1, self.tokens),
            "character_error_rate": self.edits / self.characters if self.characters else 0.0,
            **{name: rate.result() for name, rate in self.word_errors.items()},
        }
        if self.unknown:
            both = self.copied["both"]
            scores["copy_precision"] = both / max(1, self.copied["written"])
            scores["copy_recall"] = both / max(1, self.copied["gold"])
        if self.kept is not None and has("sacrebleu"):
            scores |= self._sacrebleu(self.kept)
        if self.kept is not None and has("rouge_score"):
            scores |= self._rouge(self.kept)
        return scores

    @property
    def _mostly_wide(self) -> bool:
        return 2 * self.wide > self.characters

    def _sacrebleu(self, kept: list[tuple[list[str], str]]) -> dict[str, float]:
        if not kept:
            return {"bleu": 0.0, "chrf": 0.0}
        from sacrebleu.metrics import BLEU, CHRF

        predicted = [text for _, text in kept]
        streams = [*zip_longest(*(references for references, _ in kept))]  # a record may lack the later ones
        # force: no warnings of many texts that end in " .", as they do where the data has blanks between its tokens
        bleu = BLEU(tokenize=self.bleu_tokenize or ("zh" if self._mostly_wide else "13a"), force=True)
        scores = {"bleu": bleu.corpus_score(predicted, streams), "chrf": CHRF().corpus_score(predicted, streams)}
        return {name: score.score / 100 for name, score in scores.items()}

    def _rouge(self, kept: list[tuple[list[str], str]]) -> dict[str, float]:
        from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

        names = {"rouge1": "rouge_1", "rouge2": "rouge_2", "rougeL": "rouge_l"}
        scorer = RougeScorer([*names], use_stemmer=True, tokenizer=_Characters() if self._mostly_wide else None)
        sums = dict.fromkeys(names.values(), 0.0)
        for references, predicted in kept:
            best = scorer.score_multi(references, predicted)
            for theirs, ours in names.items():
                sums[ours] += best[theirs].fmeasure
        return {name: total / max(1, len(kept)) for name, total in sums.items()}


class ErrorRate:
    """The errors of all texts over the words of their references; 0 where these have none.

    Args:
        distance: The number of errors between a reference and what is written.
    """

    def __init__(self, distance: Callable[[Sequence[str], Sequence[str]], int]) -> None:
        self.distance, self.errors, self.words = distance, 0, 0

    def add(self, references: Sequence[Sequence[str]], written: Sequence[str]) -> None:
        """One record's words, against the reference of the fewest errors, of several such ones the longest."""
        counts = [(self.distance(reference, written), len(reference)) for reference in references]
        errors, words = min(counts, key=lambda count: (count[0], -count[1]))
        self.errors += errors
        self.words += words

    def result(self) -> float:
        return self.errors / self.words if self.words else 0.0


class FillingCounter:
    """Share of hidden words that are filled in again, and of texts in which all are."""

    def __init__(self) -> None:
        self.hidden = self.right = self.texts = self.equal = 0

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """One record's hidden words, and what was filled in for each."""
        self.hidden += len(gold)
        self.right += sum(a == b for a, b in zip(gold, predicted, strict=False))
        self.texts += 1
        self.equal += list(gold) == list(predicted)

    def result(self) -> dict[str, float]:
        return {
            "masked_accuracy": self.right / max(1, self.hidden),
            "exact_match": self.equal / max(1, self.texts),
        }


class _Characters:
    """Splits as `token_accuracy` does, for rouge-score, whose own tokenizer drops all but a to z and digits."""

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
    where: dict[str, int] = {}  # positions of each in a, as bits
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
