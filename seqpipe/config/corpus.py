"""How a language-model head reads its training texts."""

from __future__ import annotations

from dataclasses import dataclass

from seqpipe.config.component import Component, describe
from seqpipe.config.contract import declaration
from seqpipe.errors import PluginError


@dataclass(frozen=True)
class CorpusSettings:
    """What a language-model head states by its `corpus`.

    Attributes:
        packed: Whether the records are one token corpus, cut into windows anywhere; else each is a text of its own.
        context: Tokens of a window.
        stateful: Whether recurrent states are carried from a window to the next (truncated BPTT).
    """

    packed: bool
    context: int
    stateful: bool


def corpus_settings(head: Component) -> CorpusSettings | None:
    """How a head reads its texts under its options; None of a head that is no language model.

    Raises:
        PluginError: It does not state all three settings.
    """
    settings = declaration(head, "corpus")
    if settings is None:
        return None
    try:
        return CorpusSettings(**settings)
    except TypeError as error:
        message = f"its `corpus` must return a dict of packed, context and stateful, not {settings!r}"
        raise PluginError(f"{describe(head)}: {message}") from error
