"""Checks that a source holds what the heads on it answer about: words to tag, a passage to choose spans of."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from seqpipe.config.component import Input, describe
from seqpipe.config.contract import answer_kind, declared_features, replaces_mask
from seqpipe.config.loader import Component
from seqpipe.errors import ConfigError
from seqpipe.features.word_pieces import splits_words


def check_head_inputs(source: Input, heads: Sequence[Component], tokenizer: Tokenizer) -> None:
    """ConfigError for each head whose answer kind needs words, or a second text, that the source does not have."""
    _refuse(heads, ("tags", "spans"), _lacking_words(source, tokenizer))
    _refuse(heads, ("span",), _lacking_passage(source))


def refuse_tagging_numbers(heads: Sequence[Component]) -> None:
    """ConfigError for heads that tag words or choose spans, on a source of numbers."""
    _refuse(heads, ("tags", "spans", "span"), "rows of numbers have no words; take a source with a tokenizer")


def replacing_encoder(source: Input) -> Component | None:
    """The encoder whose output rows are no longer the tokens, if there is one."""
    return next((stage for stage in source.encoder if replaces_mask(stage)), None)


def _refuse(heads: Sequence[Component], answers: tuple[str, ...], message: str) -> None:
    refused = [head for head in heads if answer_kind(head) in answers] if message else []
    if refused:
        raise ConfigError([head.problem(f"{describe(head)}: {message}") for head in refused])


def _lacking_words(source: Input, tokenizer: Tokenizer) -> str:
    """Why a source has no words to tag; "" if it has."""
    kinds = {feature.kind for stage in source.encoder for feature in declared_features(stage).values()}
    if source.pairs:
        return "a pair of texts has no words to tag; let the tokenizer read one field"
    if "sentences" in kinds:
        return "behind an encoder that makes sentences of words there are none to tag; leave that encoder out"
    if splits_words(tokenizer) and "pieces" not in kinds and source.tokenizer is not None:
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
