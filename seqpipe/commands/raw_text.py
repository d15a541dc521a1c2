"""Report how raw text, which is what a deployment gets, is split and scored where the data gives words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seqpipe.answers.metrics.numbers import metric_of, shown
from seqpipe.console import Console
from seqpipe.errors import DataError
from seqpipe.features.document import Record
from seqpipe.features.raw_text import compare
from seqpipe.features.sources import InputSource
from seqpipe.runtime.evaluate import evaluate, headline
from seqpipe.runtime.predictor import Predictor

RAW = "(raw)"  # behind the name of a set, in scores
SPLIT = "split_otherwise"  # among the scores on raw text: the share of words
LOSS = 0.02  # of a score between 0 and 1, above which a warning is due


def report_splitting(source: InputSource, name: str, records: Iterable[Record], console: Console) -> None:
    """Print the share of words that raw text is split into otherwise, with a warning and the cure if it is large."""
    raw = compare(source, records)
    if raw.is_large:
        console.say(f"warning: {name}: {raw.summary()}: {raw.cure()}")
    elif raw.words:
        console.say(f"{name}: {raw.summary()}")


def score_raw_text(
    predictor: Predictor, name: str, records: Sequence[Record], scores: Mapping[str, Any], console: Console
) -> dict[str, Any]:
    """Return and print the scores on raw text beside those on the words of the data; none where both are the same."""
    raw = compare(predictor.featurizer, records)
    if not raw.words:
        return {}
    on_raw: dict[str, Any] = {}
    message, loses = raw.summary(), False
    if not raw.same and not any(part.counts_words or part.kind.is_generated for part in predictor.task.parts.values()):
        try:
            raw_scores = evaluate(predictor, records, raw=True)[""]
        except DataError as error:  # such as a text of too many tokens, which has few words
            console.say(f"  warning: {message}: it cannot be scored: {error}; {raw.cure()}")
            return {}
        on_raw = {f"{name} {RAW}": {**raw_scores, SPLIT: raw.share}}
        (metric, score), (_, raw_score) = headline(scores), headline(raw_scores)
        values = [shown(metric, value, predictor.metric_types) for value in (raw_score, score)]
        message += f": {metric} {values[0]} on raw text, {values[1]} on the words of the data"
        known = metric_of(metric, predictor.metric_types)
        loses = known.percent and known.more_is_better and score - raw_score >= LOSS
    warn = raw.is_large or loses
    console.say(f"  warning: {message}; {raw.cure()}" if warn else f"  {message}")
    return on_raw
