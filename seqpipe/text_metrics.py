"""Gold and predicted texts in, scores out: equal texts, tokens in place, edits, and sacrebleu's BLEU and chrF."""

from __future__ import annotations

import importlib.util
import re

WIDE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # written without blanks
_TOKEN = re.compile(f"[{WIDE}]|[^\\s{WIDE}]+")


def has_bleu() -> bool:
    """Whether sacrebleu is installed."""
    return importlib.util.find_spec("sacrebleu") is not None


class TextCounter:
    """The share of equal texts, that of equal tokens, edits over characters of gold; and BLEU and chrF.

    A token is what stands between blanks, or a Chinese or Japanese character; `token_accuracy` is the share of places
    at which both texts have the same one, of as many as the longer has. BLEU (Papineni et al. 2002) and chrF (Popović
    2015) are sacrebleu's over all texts, which are kept for them: BLEU with its tokenizer `zh` where most letters of
    gold are Chinese or Japanese, else `13a`.
    """

    def __init__(self) -> None:
        self.texts = self.equal = self.characters = self.edits = self.tokens = self.same = self.wide = 0
        self.kept: list[tuple[str, str]] | None = [] if has_bleu() else None

    def add(self, gold: str, predicted: str) -> None:
        """One record's text."""
        words, written = _TOKEN.findall(gold), _TOKEN.findall(predicted)
        self.texts += 1
        self.equal += gold == predicted
        self.characters += len(gold)
        self.edits += edit_distance(gold, predicted)
        self.tokens += max(len(words), len(written))
        self.same += sum(a == b for a, b in zip(words, written, strict=False))
        if self.kept is not None:
            self.kept.append((gold, predicted))
            self.wide += len(re.findall(f"[{WIDE}]", gold))

    def result(self) -> dict[str, float]:
        scores = {
            "exact_match": self.equal / max(1, self.texts),
            "token_accuracy": self.same / max(1, self.tokens),
            "character_error_rate": self.edits / self.characters if self.characters else 0.0,
        }
        if self.kept is None:
            return scores
        return scores | dict.fromkeys(("bleu", "chrf"), 0.0) | self._sacrebleu(self.kept)

    def _sacrebleu(self, kept: list[tuple[str, str]]) -> dict[str, float]:
        if not kept:
            return {}
        from sacrebleu.metrics import BLEU, CHRF

        gold, predicted = ([*column] for column in zip(*kept, strict=True))
        bleu = BLEU(tokenize="zh" if 2 * self.wide > self.characters else "13a")
        found = {"bleu": bleu.corpus_score(predicted, [gold]), "chrf": CHRF().corpus_score(predicted, [gold])}
        return {name: score.score / 100 for name, score in found.items()}


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's distance over code points, each column of its table as the bits of one integer (Hyyrö, 2003)."""
    if not a or not b:
        return len(a) + len(b)
    where: dict[str, int] = {}  # each character's positions in a, as bits
    for i, character in enumerate(a):
        where[character] = where.get(character, 0) | 1 << i
    every, top = (1 << len(a)) - 1, len(a) - 1
    up, down, distance = every, 0, len(a)  # vertical differences of +1 and -1
    for character in b:
        equal = where.get(character, 0)
        still = (((equal & up) + up) ^ up) | equal | down
        rises, falls = down | every & ~(still | up), up & still  # horizontal differences
        distance += (rises >> top & 1) - (falls >> top & 1)
        rises, falls = rises << 1 | 1, falls << 1
        equal |= down
        up, down = (falls | ~(equal | rises)) & every, rises & equal & every
    return distance
