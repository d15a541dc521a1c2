"""Every answer kind by its name, which a head's `answer` and a bundle's manifest use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind, HeadAnswer
from seqpipe.answers.candidates import Candidate
from seqpipe.answers.classification import Label, Labels
from seqpipe.answers.embedding import Vector
from seqpipe.answers.extractive_span import ExtractiveSpan
from seqpipe.answers.fill_mask import FillMask
from seqpipe.answers.generation import Generation
from seqpipe.answers.multi_head import MultiHead
from seqpipe.answers.pointers import Pointers
from seqpipe.answers.regression import Score
from seqpipe.answers.span_infilling import SpanInfilling
from seqpipe.answers.structured import Structured
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.text import Text
from seqpipe.answers.types import Metric
from seqpipe.errors import BundleError, nearest

ANSWER_KINDS: Mapping[str, type[HeadAnswer]] = {
    kind.kind: kind
    for kind in (
        *(Tags, Spans, Label, Labels, Score, Vector, Candidate, ExtractiveSpan, Pointers, Structured),
        *(Text, Generation, FillMask, SpanInfilling),
    )
}


def head_answer_from(manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> HeadAnswer:
    """The answer kind of one head that a bundle or a run states; BundleError for one that is not known.

    Raises:
        KeyError, TypeError, ValueError: The kind is known, and what is stated of it is none of its kind.
    """
    name = manifest.get("kind")
    if not isinstance(name, str) or name not in ANSWER_KINDS:
        hint = nearest(str(name), ANSWER_KINDS)
        raise BundleError(f"answer kind {name!r} is not known to this version{hint}; update seqpipe")
    if ANSWER_KINDS[name].needs_tokenizer and tokenizer is None:
        raise BundleError(f"answer kind {name!r} lacks its target tokenizer; export it again")
    return ANSWER_KINDS[name].from_manifest(manifest, tokenizer)


def joined(parts: Mapping[str, HeadAnswer]) -> AnswerKind:
    """The answer kind of a head alone, whose name is "", or of several heads together."""
    return parts[""] if "" in parts else MultiHead(parts)


def answer_from(manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer]) -> AnswerKind:
    """The answer kind, of one head or several, that a bundle states; tokenizers of heads that write text, by head."""
    stated = manifest["parts"] if manifest.get("kind") == MultiHead.kind else {"": manifest}
    return joined({head: head_answer_from(part, tokenizers.get(head)) for head, part in stated.items()})


def metric_types(kind: AnswerKind) -> dict[str, Metric]:
    """What is known of the scores of a kind, and of each of its heads."""
    return {**kind.metrics, **{name: metric for part in kind.parts.values() for name, metric in part.metrics.items()}}
