"""The checks of a language model: one tokenized input, and stages that decode incrementally."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.config.component import Component, Input
from seqpipe.config.contract import declared_features, has_member, member
from seqpipe.config.corpus import corpus_settings

_CUT_ANYWHERE = "a column is of one text, and packed texts are cut anywhere: set packed: false"


def language_model_problems(inputs: Sequence[Input], heads: Sequence[Component]) -> Iterator[tuple[Component, str]]:
    """What hinders a pipeline from being a language model, each at its stage."""
    source, head = inputs[0], heads[-1]
    corpus = corpus_settings(head)
    is_packed, is_stateful = (True, False) if corpus is None else (corpus.packed, corpus.stateful)
    asks = f"the head {head.use!r} writes token by token"
    if len(heads) > 1 or len(inputs) > 1 or source.tokenizer is None:
        yield head, "a language-model head must be the only head, on one tokenized input"
    if source.pairs and is_packed:
        yield head, "it continues the second of two texts, which are no single text: set packed: false"
    if not source.encoder:
        yield head, "a language model needs a causal encoder: add one, such as gru"
    if is_stateful and not is_packed:
        yield head, "separate documents start from the initial state: set packed: true, or stateful: false"
    for stage in source.embedding:
        if not member(stage.cls, "tokenwise"):
            yield stage, f"{asks}, and this embedding knows whole texts only; choose lookup"
        elif _has_tokens(stage):
            yield stage, f"{asks}, and this embedding reads more of a token than its id; choose lookup"
        elif is_packed and _has_column(stage):
            yield stage, _CUT_ANYWHERE
    for stage in source.encoder:
        if is_packed and _has_column(stage):
            yield stage, _CUT_ANYWHERE
        if cure := causal_cure(stage):
            yield stage, f"{asks}, and this encoder is not causal, or does not support incremental decoding; {cure}"
        elif is_stateful and not has_member(stage.cls, "set_stateful"):
            yield stage, "it has no state to carry; choose lstm, gru or rnn, or set head.stateful: false"


def causal_cure(encoder: Component) -> str:
    """What makes an encoder causal; "" if it is."""
    causal_fix = member(encoder.cls, "causal_fix")
    if causal_fix is None:
        return "choose transformer, lstm, gru, rnn or pretrained-decoder"
    if not encoder.options:  # they are wrong, and that is reported
        return ""
    setting = causal_fix(dict(encoder.options))
    return f"set {setting}" if setting else ""


def _has_tokens(stage: Component) -> bool:
    return any(not feature.of_whole_text for feature in declared_features(stage).values())


def _has_column(stage: Component) -> bool:
    return any(feature.of_whole_text for feature in declared_features(stage).values())
