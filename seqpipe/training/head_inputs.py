"""Checks that a source holds what the heads on it answer about: words to tag, a passage to choose spans of."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from seqpipe.answers.types import EACH_WORD, PASSAGE
from seqpipe.config.component import Input, describe
from seqpipe.config.contract import declared_features, replaces_mask
from seqpipe.config.head_answers import answer_kind, answer_settings
from seqpipe.config.model import Component
from seqpipe.errors import ConfigError
from seqpipe.features.kinds.base import SENTENCES, WORDS
from seqpipe.features.splitting import splits_words


def check_head_inputs(source: Input, heads: Sequence[Component], tokenizer: Tokenizer) -> None:
    """ConfigError for each head whose answer kind needs words, or a second text, that the source does not have."""
    _refuse(heads, (EACH_WORD,), _lacking_words(source, tokenizer))
    _refuse(heads, (PASSAGE,), _lacking_passage(source))


def check_first_source(source: Input, heads: Sequence[Component], tokenizer: Tokenizer) -> None:
    """ConfigError for each head that tags the first of several sources, if that has no words."""
    joining = [head for head in heads if answer_kind(head).joins_sources]
    _refuse(joining, (EACH_WORD,), _lacking_words(source, tokenizer))


def refuse_tagging_numbers(heads: Sequence[Component]) -> None:
    """ConfigError for heads that tag words or choose spans, on a source of numbers."""
    _refuse(heads, (EACH_WORD, PASSAGE), "rows of numbers have no words; take a source with a tokenizer")


def replacing_encoder(source: Input) -> Component | None:
    """The encoder whose output rows are no longer the tokens, if there is one."""
    return next((stage for stage in source.encoder if replaces_mask(stage)), None)


def _refuse(heads: Sequence[Component], subjects: tuple[str, ...], message: str) -> None:
    """ConfigError for heads whose decision is about one of these subjects, if there is a message."""
    refused = [head for head in heads if message and _subject(head) in subjects]
    if refused:
        raise ConfigError([head.problem(f"{describe(head)}: {message}") for head in refused])


def _subject(head: Component) -> str:
    return answer_kind(head).declared_subject(answer_settings(head))


def _lacking_words(source: Input, tokenizer: Tokenizer) -> str:
    """Why a source has no words to tag; "" if it has."""
    features = [feature for stage in source.encoder for feature in declared_features(stage).values()]
    axes = {axis for feature in features for axis in feature.axes}
    if source.pairs:
        return "a pair of texts has no words to tag; let the tokenizer read one field"
    if SENTENCES in axes:
        return "behind an encoder that makes sentences of words there are none to tag; leave that encoder out"
    if splits_words(tokenizer) and WORDS not in axes and source.tokenizer is not None:
        return (
            f"the tokenizer {source.tokenizer.use!r} splits words, and a tag belongs to a whole word; add "
            "{use: words} to the encoders, which makes words of pieces, or choose the tokenizer words"
        )
    return ""


def _lacking_passage(source: Input) -> str:
    """Why a source has no second text whose tokens can be chosen; "" if it has."""
    if not source.pairs:
        return "its answer is a span of the second text; let the tokenizer read two, such as field: [question, context]"
    if encoder := replacing_encoder(source):
        return f"behind the encoder {encoder.use!r} there are no tokens to choose from; leave that encoder out"
    return ""
