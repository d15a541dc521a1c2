"""Which text of a minimal pair, or which of several alternatives, a language model prefers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from seqpipe.answers.types import Masking, Metric, Scores
from seqpipe.errors import DataError
from seqpipe.features.document import field_names
from seqpipe.runtime.pair_items import Item
from seqpipe.runtime.predictor import Predictor
from seqpipe.runtime.text_scores import scored_source, text_scores

Normalize = Literal["none", "token", "character"]
GROUP = "UID"  # BLiMP's name of a phenomenon
TIE = 1e-4  # scores that differ by less are equal: the margin of `seqpipe.export`
METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(),
    "chance": Metric(),
    "mean_difference": Metric(percent=False),
}


@dataclass(frozen=True)
class Judged:
    """The scores of an item's texts.

    Args:
        item: The texts.
        scores: What is compared.
        unknown: The unknown words of the texts.
        is_comparable: Whether the same words of all texts are left out of the scores.
    """

    item: Item
    scores: tuple[float, ...]
    unknown: tuple[str, ...]
    is_comparable: bool

    @property
    def difference(self) -> float:
        """By how much the score of the right text is greater than the greatest of the others; 0 if incomparable."""
        if not self.is_comparable:
            return 0.0
        return self.scores[self.item.answer] - max(s for i, s in enumerate(self.scores) if i != self.item.answer)


def judge(
    predictor: Predictor, items: Sequence[Item], *, normalize: Normalize = "none", masking: Masking = "token"
) -> list[Judged]:
    """The scores of the texts of each item under a language model.

    Args:
        predictor: Answers with PyTorch or onnxruntime.
        items: Of `read_items`.
        normalize: What the log-probability is divided by: nothing, the number of its tokens or of its characters.
        masking: As `seqpipe.runtime.text_scores` has it.
    """
    field = scored_source(predictor).fields[-1]
    found = text_scores(predictor, (text for item in items for text in item.scored(field)), masking)
    judged = []
    for item in items:
        scores: list[float] = []
        unknown: list[str] = []
        uncounted = set()
        for score in islice(found, len(item.texts)):
            lengths = {"none": 1, "token": score.tokens, "character": score.characters}
            scores.append(score.log_p / max(1, lengths[normalize]))
            unknown += score.unknown
            uncounted.add(score.uncounted)
        judged.append(Judged(item, tuple(scores), tuple(dict.fromkeys(unknown)), len(uncounted) == 1))
    return judged


def pair_scores(judged: Sequence[Judged], by: str | None = None) -> Scores:
    """Accuracy and the like of all items and, under `groups`, of those with each value of the field `by`.

    By default that field is `UID`, if every item has it.
    """
    if by is None and all(GROUP in result.item.record for result in judged):
        by = GROUP
    groups = _groups(judged, by) if by else {}
    return _scores(judged) | {"groups": {name: _scores(some) for name, some in groups.items()}}


def _groups(judged: Sequence[Judged], by: str) -> dict[str, list[Judged]]:
    groups: dict[str, list[Judged]] = {}
    for result in judged:
        record = result.item.record
        if by not in record:
            raise DataError.at(record, f"no field {by!r} to split by; it has: {field_names(record)}")
        groups.setdefault(str(record[by]), []).append(result)
    return groups


def _scores(judged: Sequence[Judged]) -> Scores:
    differences = [result.difference for result in judged]
    return {
        "accuracy": sum(difference >= TIE for difference in differences) / len(judged),
        "chance": sum(1 / len(result.item.texts) for result in judged) / len(judged),
        "mean_difference": sum(differences) / len(judged),
        "ties": sum(abs(difference) < TIE for difference in differences),
        "items": len(judged),
    }


def wrong_preferences(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """The records of the items whose right text is not preferred, each with the scores of its texts."""
    return [
        {**result.item.record, "scores": [*result.scores], "difference": result.difference}
        for result in judged
        if result.difference < TIE
    ]
