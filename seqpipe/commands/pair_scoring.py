"""Score a language model, a run or a bundle, on minimal pairs and alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.numbers import table
from seqpipe.answers.types import Masking
from seqpipe.commands.scoring import open_target
from seqpipe.console import Console
from seqpipe.files import json_bytes, write
from seqpipe.runtime.text_scores import METRICS, Judged, Normalize, judge, pair_scores, read_items, wrong_preferences

_EXAMPLES = 5  # unknown words that a warning names


def score_pairs(
    target: Path,
    console: Console,
    *,
    pairs: Path,
    normalize: Normalize = "none",
    masking: Masking = "token",
    by: str | None = None,
    errors: Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Return and print the accuracy of `target` on the file `pairs`, of all its items and of each group."""
    predictor, _, _ = open_target(target, device, pairs, console)
    judged = judge(predictor, [*read_items(pairs)], normalize=normalize, masking=masking)
    scores = pair_scores(judged, by)
    rows = {**scores, "labels": scores["groups"]}
    del rows["groups"]
    console.say(f"\n{pairs.name}\n{table(rows, METRICS)}")
    _warn_of_unknown(judged, pairs.name, console)
    if errors:
        write(errors, b"".join(json_bytes(line) + b"\n" for line in wrong_preferences(judged)))
    return {pairs.name: scores}


def _warn_of_unknown(judged: Sequence[Judged], name: str, console: Console) -> None:
    unknown = [result.unknown for result in judged if result.unknown]
    if unknown:
        words = list(dict.fromkeys(word for some in unknown for word in some))[:_EXAMPLES]
        console.say(
            f"warning: {name}: {len(unknown)} of {len(judged)} have words that the model does not know, such as "
            f"{', '.join(map(repr, words))}; what they say of the model is little"
        )
