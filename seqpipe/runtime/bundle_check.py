"""Bounds on what a bundle states: options, limits, features, tokenizers, labels. Its hashes tell damage, not malice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind
from seqpipe.errors import BundleError
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.runtime.decode_options import MOST_SIZE
from seqpipe.runtime.limits import TRAINED

MOST_TOKENS = 1_000_000  # that `limits` may let into one text
MOST_GROWTH = 100  # how many times longer a tokenizer may make a text by replacing


def limits_of(stated: Mapping[str, Any]) -> dict[str, int]:
    """The limits of a bundle; ValueError for one that is no limit."""
    limits = {name: stated[name] for name in ("tokens", "first_tokens", TRAINED) if name == "tokens" or name in stated}
    for name, value in limits.items():
        if type(value) is not int or not 1 <= value <= MOST_TOKENS:
            raise ValueError(f"limits.{name}: {value!r} is no whole number from 1 to {MOST_TOKENS:,}")
    return limits


def check_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """ValueError for a decode option with bounds that are none; its default is checked as any value is."""
    for name, option in options.items():
        bounds = [option.get("minimum"), option.get("maximum")]
        for bound in bounds:
            if bound is not None and (type(bound) not in (int, float) or not math.isfinite(bound)):
                raise ValueError(f"options.{name}: the bound {bound!r}")
            if option["type"] == "size" and bound is not None and not 0 <= bound <= MOST_SIZE:
                raise ValueError(f"options.{name}: {bound!r} is no bound of a size, which is at most {MOST_SIZE:,}")
        low, high = bounds
        if low is not None and high is not None and low > high:
            raise ValueError(f"options.{name}: the minimum {low} is over the maximum {high}")


def check_features(features: Iterable[FeatureKind]) -> None:
    """ValueError for a feature that would take any amount of memory, or divide by 0."""
    for feature in features:
        if message := feature.out_of_bounds():
            raise ValueError(message)


def check_labels(kind: AnswerKind, shapes: Mapping[str, Sequence[Any]], what: str) -> None:
    """BundleError for a graph that scores another number of labels than there are."""
    for head, part in kind.parts.items():
        if not part.scored_labels:
            continue
        prefix = f"{head}." if head else ""
        scored = (shapes[prefix + part.scored_labels] or [None])[-1]
        if isinstance(scored, int) and scored != len(part.labels):
            message = f"{prefix}labels: there are {len(part.labels)}, and model.onnx scores {scored}"
            raise BundleError(f"{what}: {message}; model.onnx and bundle.json do not belong together: export it again")


def check_tokenizer(tokenizer: Tokenizer, what: str) -> None:
    """BundleError for a tokenizer without the special tokens, or one that makes a text longer without bound."""
    missing = [token for token in SPECIALS if tokenizer.token_to_id(token) is None]
    if missing:
        raise BundleError(f"{what}: has no token {', '.join(missing)}; export it again")
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        raise BundleError(f"{what}: pads or truncates texts, which no bundle's tokenizer does; export it again")
    for part in (tokenizer.normalizer, tokenizer.decoder):
        if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > MOST_GROWTH:
            message = (
                f"makes a text up to {growth:.2g} times longer by replacing; at most {MOST_GROWTH} times is allowed"
            )
            raise BundleError(f"{what}: {message}")


def _growth(part: Mapping[str, Any]) -> float:
    """How many times longer than its input a normalizer or decoder can make a text by what it puts in."""
    growth = 1.0
    for step in _steps(part):
        if step["type"] == "Replace":
            text = step["pattern"].get("String", "")  # of a regular expression: it may match nothing
            inserted = len(step["content"])
            growth *= max(1.0, inserted / len(text) if text else 1.0 + inserted)
        elif step["type"] == "Prepend":
            growth *= 1.0 + len(step["prepend"])
    return growth


def _steps(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    inner = part.get("normalizers") or part.get("decoders")
    if part["type"] != "Sequence" or not inner:
        yield part
        return
    for part_inside in inner:
        yield from _steps(part_inside)
