"""The keys of a YAML for labels of whole texts: a linear model over n-grams, by the rules of one table.

`benchmarks/defaults.py` compares what they give with a linear SVM and with fastText, by data set and size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from seqpipe.commands.init.summary import DataSummary
from seqpipe.commands.init.tokenizer import tokenizer_line

BATCH = 32
STEPS, FEWEST_EPOCHS, MOST_EPOCHS, EPOCHS_OF_LONG_TEXTS = 1_500, 5, 60, 15
LONG_TEXT = 150  # words on average
BUNDLE = 15_000_000  # bytes that the vectors take at most


@dataclass(frozen=True)
class Ngrams:
    """N-grams of words, and of characters as YAML, that suit a kind of text."""

    words: int
    chars: str
    binary: bool = False


@dataclass(frozen=True)
class Rates:
    """Width of the vectors, learning rate of the head and of the n-grams, dropout and weighting of these."""

    dim: int
    head: float
    ngrams: float
    dropout: float
    weighting: str = "tfidf"


# What the text is like → which n-grams are read.
UNSPACED = Ngrams(3, "null")  # characters are tokens
SPACED = Ngrams(2, "[2, 5]")
LONG = Ngrams(2, "[3, 4]", True)  # how often an n-gram occurs says how long the text is

# What the labels are like → how the model learns. A head that learns slowly beside the n-grams makes a linear model,
# which is best between two or three labels; of many labels, those that resemble each other gain by shared directions.
# Of two labels, an n-gram whose frequency differs between them weighs more; not in long texts, which have hundreds.
TWO_LABELS = Rates(16, 0.1, 5.0, 0.3, "nb")
FEW_LABELS = Rates(16, 0.1, 10.0, 0.3)
LABELS = Rates(32, 1.0, 20.0, 0.3)
MANY_LABELS = Rates(64, 1.0, 20.0, 0.3)
SEVERAL_LABELS = Rates(64, 1.0, 20.0, 0.5)  # a text has any number of them
FEW, MANY = 3, 20


def label_keys(summary: DataSummary, has_dev: bool) -> Iterator[str]:
    """Yield the lines of the model and of its training."""
    ngrams, rates = _ngrams(summary), _rates(summary)
    yield tokenizer_line(summary, "use: words, lowercase: true")
    yield "embedding:  # n-grams of words and characters, TF-IDF: best on up to some 10,000 texts, and fast"
    yield "  use: ngrams"
    yield f"  dim: {rates.dim}"
    yield f"  words: {ngrams.words}  # longest n-gram of {'characters' if summary.unspaced else 'words'}"
    yield f"  chars: {ngrams.chars}  # shortest and longest n-gram of characters within a word"
    if ngrams.binary:
        yield "  binary: true  # an n-gram counts once in a text"
    if rates.weighting != "tfidf":
        yield f"  weighting: {rates.weighting}  # naive-Bayes features: what differs between the labels weighs more"
    yield f"  max_size: {BUNDLE // (4 * rates.dim) // 1000 * 1000}  # n-grams that are kept, the most frequent"
    yield f"  dropout: {rates.dropout}"
    yield f"  lr: {rates.ngrams}"
    yield "encoder: {use: bag, pool: sqrtn}"
    yield f"head: {{use: label, pool: mean, {_head(summary, has_dev)}}}"
    yield "train:"
    yield f"  epochs: {_epochs(summary)}"
    yield f"  batch_size: {BATCH}"
    yield f"  optimizer: {{use: sgd, lr: {rates.head}}}  # frequent n-grams learn first; adamw overfits rare ones"
    yield "  schedule: {use: linear, warmup_ratio: 0.1}"
    yield "  seed: 1"


def _ngrams(summary: DataSummary) -> Ngrams:
    if summary.unspaced:
        return UNSPACED
    return LONG if summary.words > LONG_TEXT * summary.records else SPACED


def _rates(summary: DataSummary) -> Rates:
    if summary.multi:
        return SEVERAL_LABELS
    labels = len(summary.labels)
    if labels == 2 and _ngrams(summary) is not LONG:
        return TWO_LABELS
    return FEW_LABELS if labels <= FEW else LABELS if labels <= MANY else MANY_LABELS


def _head(summary: DataSummary, has_dev: bool) -> str:
    if not summary.multi:
        return "label_smoothing: 0.1"
    return "multi: true, threshold: dev" if has_dev else "multi: true"


def _epochs(summary: DataSummary) -> int:
    if _ngrams(summary) is LONG:
        return EPOCHS_OF_LONG_TEXTS
    epochs = math.ceil(STEPS * BATCH / max(1, summary.records))
    return min(MOST_EPOCHS, max(FEWEST_EPOCHS, epochs))
