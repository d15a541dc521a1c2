"""The checks of a head that answers with a candidate: one text, no other head, and a set to choose from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.config.component import Component, Input
from seqpipe.config.head_answers import answer_kind
from seqpipe.errors import PluginError


def has_candidates(head: Component) -> bool:
    """Whether a head answers with one of a set of texts."""
    try:
        return answer_kind(head).has_candidates
    except PluginError:  # the head's answer is wrong, and that is reported
        return False


def candidate_problems(inputs: Sequence[Input], heads: Sequence[Component]) -> Iterator[tuple[Component, str]]:
    """What hinders a pipeline from encoding candidates as it encodes its input, each at its head."""
    for head in filter(has_candidates, heads):
        if len(heads) > 1 or len(inputs) > 1 or inputs[0].tokenizer is None or inputs[0].pairs:
            yield head, "its candidates are encoded as its input is: it must be the only head, on one text"
