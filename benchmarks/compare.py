"""False alarms and power of `seqpipe compare`, by simulated models of known quality.

    python benchmarks/compare.py             # 1,000 pairs of models for each row: some minutes on one core
    python benchmarks/compare.py --pairs 100

Each pair answers the same records: labels (accuracy), or 0 to 3 spans a sentence (F1), of which at most one is wrong.
The models disagree on 9 % of the records. Equal models are right on as many of these; with a gap, the better one is
right on 2 % of all records more. A false alarm, and a gap found, is p < 0.05 in `compare`; the share of intervals
without 0 stands beside. The figures are recorded in runs/results.
"""

from __future__ import annotations

import random
import time
from typing import Any

import common
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from seqpipe.answers.base import HeadAnswer
from seqpipe.answers.classification import Label
from seqpipe.answers.tagging import Spans
from seqpipe.evaluation.significance import LEVEL, AnsweredSets, compare_answers
from seqpipe.features.sources import source_from
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.predictor import Predictor

LABELS = ("person", "place", "time")
DISAGREE, ERRORS, GAP = 0.09, 0.08, 0.02  # shares of records: one is right, both are wrong; the gap
SPANS = ((0, 1, 2, 3), (0.35, 0.4, 0.15, 0.1))  # numbers of spans of a sentence, 1 on average
KINDS: dict[str, HeadAnswer] = {"label": Label(LABELS), "spans": Spans(("O", *(f"B-{label}" for label in LABELS)))}


def models(kind: str, records: int, gap: float, draw: random.Random) -> list[AnsweredSets]:
    """Two models with their answers; the second is better by the gap."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, "[UNK]"))
    predictor = Predictor(
        source_from("text", {}, {"": tokenizer}, False, False), KINDS[kind], dict, {}, Limits(tokens=9)
    )
    answers: list[list[tuple[Any, Any]]] = [[], []]
    for _ in range(records):
        labels = [draw.choice(LABELS) for _ in range(1 if kind == "label" else draw.choices(*SPANS)[0])]
        # Sentences without a span have no error, so those of the others are as many more.
        scale = 1 if kind == "label" else 1 / (1 - SPANS[1][0])
        sort, right = draw.random() / scale, (True, True)
        if labels and sort < DISAGREE:
            right = (False, True) if sort < (DISAGREE + gap) / 2 else (True, False)
        elif labels and sort < DISAGREE + ERRORS:
            right = (False, False)
        record = {"text": "", "label": labels[0] if labels else "", "spans": spans(labels)}
        for side, is_right in zip(answers, right, strict=True):
            chosen = labels if is_right else [LABELS[(LABELS.index(labels[0]) + 1) % len(LABELS)], *labels[1:]]
            side.append((record, {"label": chosen[0], "score": 1.0} if kind == "label" else answer(chosen)))
    return [AnsweredSets(name, predictor, {"test": side}) for name, side in zip("ab", answers, strict=True)]


def spans(labels: list[str]) -> list[dict[str, Any]]:
    return [{"label": label, "start": 2 * i, "end": 2 * i + 1} for i, label in enumerate(labels)]


def answer(labels: list[str]) -> list[dict[str, Any]]:
    return [{"entity_group": label, "word": "a", "start": 2 * i, "end": 2 * i + 1} for i, label in enumerate(labels)]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    arguments = parser.parse_args()
    rows = []
    for kind, metric in (("label", "accuracy"), ("spans", "F1")):
        for records, gap in ((100, 0.0), (500, 0.0), (2000, 0.0), (2000, GAP)):
            draw, clock = random.Random(records), time.perf_counter()
            significant = without_zero = 0
            for _ in range(arguments.pairs):
                (comparison,) = compare_answers(*models(kind, records, gap, draw), examples=0)
                row = comparison.scores[0]
                significant += (row.p or 0.0) < LEVEL
                without_zero += not (row.low or 0.0) <= 0 <= (row.high or 0.0)
            name = f"{metric}, {records:,} records, " + (f"gap of {100 * gap:g} points" if gap else "equal models")
            figures = {
                "p < 0.05": round(100 * significant / arguments.pairs, 1),
                "interval without 0": round(100 * without_zero / arguments.pairs, 1),
                "s": round((time.perf_counter() - clock) / arguments.pairs, 3),
            }
            print(f"{name}: {figures}", flush=True)
            rows.append({"row": name, "figures": figures})
    common.record("compare", "compare", rows)


if __name__ == "__main__":
    main()
