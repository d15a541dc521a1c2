"""Checks of a pipeline beyond its data flow: what heads learn, attention, candidates, language models, streaming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqpipe.answers.types import AXES, EACH_WORD, OVER, Attended
from seqpipe.config import contract
from seqpipe.config.contract import Component, Input
from seqpipe.config.signature import INIT, component_options, method_names, option_fields
from seqpipe.config.yaml import Tree, flatten
from seqpipe.errors import PluginError, Problem
from seqpipe.features.kinds.base import PLACE_AXIS, SENTENCE_AXIS, TOKEN_AXIS, WORD_AXIS
from seqpipe.features.kinds.registry import picture_size
from seqpipe.types import CHECKPOINT

if TYPE_CHECKING:
    from seqpipe.config.schema import Export

# The attention weights that stages return for users: their names, and the positions they refer to.
#
# Read from classes and options only. A stage declares the names in `explains`, which may depend on its options.


def attended(inputs: Sequence[Input], head: Sequence[Component]) -> dict[str, dict[str, Attended]]:
    """Return the attention weights of each stage, by its key and their name; none for several inputs."""
    every = [*(stage for source in inputs for stage in source.stages), *head]
    if len(inputs) > 1:
        return {stage.key: {} for stage in every}
    features = {name: feature for stage in every for name, feature in contract.declared_features(stage).items()}
    axis, grid, attentions = TOKEN_AXIS, None, {}
    for stages in (inputs[0].embedding, inputs[0].encoder, head):
        for stage in stages:
            # A list of one is the same pipeline as its entry alone, with the same names of weights.
            key = stage.key.removesuffix(".0") if len(stages) == 1 else stage.key
            attentions[stage.key] = {
                name: _resolve_axis(f"{key}.{name}", over, axis, grid) for name, over in explains(stage).items()
            }
            if stage.kind == "encoder" and contract.replaces_mask(stage):
                size = picture_size(features.values()) if axis == TOKEN_AXIS else None
                grid = None
                if size and contract.has_member(stage.cls, "grid"):
                    grid = contract.member(stage.cls, "grid")(stage.options, *size)
            axis = _axis_after(stage, axis, features)
    return attentions


def axis_of(source: Input) -> str:
    """Return the axis that the positions of a source's x count after its encoders; "" if unknown."""
    features = {name: feature for stage in source.stages for name, feature in contract.declared_features(stage).items()}
    axis = TOKEN_AXIS
    for stage in source.stages:
        axis = _axis_after(stage, axis, features)
    return axis


def explains(stage: Component) -> Mapping[str, str]:
    """Return the attention weights that a stage declares, each with its axis; PluginError if it is not valid."""
    weights = contract.declaration(stage, "explains")
    if not isinstance(weights, Mapping) or not all(over in OVER for over in weights.values()):
        fault = f"`explains` must be a dict from names to one of {', '.join(OVER)}, not {weights!r}"
        raise stage.error(fault)
    return weights


def attention_problems(inputs: Sequence[Input], head: Sequence[Component], wanted: Problem | None) -> list[Problem]:
    """Return the problems of the stages' declared attention; `wanted`: weights are required but there are none."""
    misstated = []
    for stage in (*(stage for source in inputs for stage in source.stages), *head):
        try:
            explains(stage)
        except PluginError as error:
            misstated.append(stage.problem(str(error)))
    if misstated or wanted is None:
        return misstated
    if len(inputs) > 1:
        return [replace(wanted, message="a pipeline of several inputs has no attention weights; delete it")]
    every = attended(inputs, head)
    lost = [weights.key for names in every.values() for weights in names.values() if weights.axis not in AXES]
    if lost:
        message = f"an encoder before it replaces the tokens, so {lost[0]} has no place in the text"
        return [replace(wanted, message=f"{message}; delete it")]
    return [] if any(every.values()) else [wanted]


def _resolve_axis(key: str, over: str, axis: str, grid: tuple[int, int] | None) -> Attended:
    """Resolve the axis `words` to that of the stage's input, which may be sentences."""
    if over == "sentences" or (over == "words" and axis == SENTENCE_AXIS):
        return Attended(key, "sentences", SENTENCE_AXIS)
    return Attended(key, over, axis, grid)


def _axis_after(stage: Component, axis: str, features: Mapping[str, Any]) -> str:
    """Return the axis of x after a stage: that of the feature that replaces the mask, of rows of numbers their places.

    It is "" without such a feature.
    """
    if stage.kind != "encoder" or not contract.replaces_mask(stage):
        return axis
    names, _ = method_names(stage.cls.forward)  # type: ignore[attr-defined]
    axes = [features[name].axes[1] for name in names if name in features]
    replaced = PLACE_AXIS if any(feature.reads_numbers for feature in features.values()) else ""
    return next((feature_axis for feature_axis in axes if feature_axis != TOKEN_AXIS), replaced)


# The checks of what a head can learn: its input has the answer, or nothing that tells one answer from another.


def leak_problems(inputs: Sequence[Input], heads: Sequence[Component]) -> Iterator[tuple[Component, str]]:
    """Yield the reasons to refuse components that read the target of a head, each with the key that names the field.

    A text may be its own target: a sequence autoencoder (Dai and Le 2015) writes what it reads.
    """
    read = [entry for source in inputs for entry in _fields_read(source)]
    for head in heads:
        if contract.is_self_supervised(head) or contract.is_language_model_head(head):
            continue
        task = contract.task_class(head)
        targets = task.reference_fields(contract.answer_settings(head), head.common_keys.get("target"))
        for component, field in read:
            is_own = component.kind == "tokenizer" and component.common_keys.get("field", "text") == field
            if field in targets and not (is_own and task.has_target_text):
                answer = f"which head {head.use!r} ({head.key}, line {head.line}) has to predict"
                yield component, f"it reads the field {field!r}, {answer}; read another field, or change `target`"


def _fields_read(source: Input) -> Iterator[tuple[Component, str]]:
    """Yield the record fields that a source reads, each with its component, whose key is that of the field."""
    fields = source.field if source.tokenizer is None else source.tokenizer.common_keys.get("field", "text")
    reader = source.tokenizer or source.stages[0]
    yield from ((reader, field) for field in ([fields] if isinstance(fields, str) else fields or ()))
    for stage in source.stages:
        keys = {value: f"{stage.key}.{key}" for key, value in flatten(stage.options) if isinstance(value, str)}
        for feature in contract.declared_features(stage).values():
            for field in {*feature.fields} - {*feature.fitting_fields}:
                yield replace(stage, key=keys.get(field, stage.key)), field


def row_problems(source: Input, heads: Sequence[Component]) -> Iterator[tuple[Component, str]]:
    """Yield heads with an answer for each word after an encoder that leaves no vector of each word, with the reason."""
    reason = ""
    for number, stage in enumerate(source.encoder, 1):
        where = f"the encoder {stage.use!r} ({stage.key}, line {stage.line})"
        if axis_of(replace(source, encoder=source.encoder[:number])) not in (TOKEN_AXIS, WORD_AXIS):
            reason = f"{where} replaces the words with other rows, so there are no words to tag"
            break
        is_known = stage.options or not callable(contract.member(stage.cls, "context"))  # invalid ones are reported
        if is_known and not contract.member(stage.cls, "tokenwise"):
            is_same = contract.declaration(stage, "context") == "same"
            reason = f"{where} gives all words of a text one vector, and so one tag" if is_same else ""
    for head in heads if reason else ():
        subject = contract.task_class(head).declared_subject(contract.answer_settings(head))
        if subject == EACH_WORD and not contract.is_self_supervised(head):
            yield head, f"{reason}; delete that encoder"


def notes(inputs: Sequence[Input], heads: Sequence[Component]) -> Iterator[tuple[Component, str]]:
    """Yield the components that train without error but learn little, each with the reason."""
    for stage in (*(stage for source in inputs for stage in source.stages), *heads):
        fields, keys = option_fields(component_options(stage.kind, stage.cls)), stage.common_keys
        files = [name for name, value in stage.options.items() if isinstance(value, Path)]
        files += [name for name in stage.options if CHECKPOINT in fields[name].metadata]  # perhaps on the hub
        if keys.get("freeze") and not (keys.get(INIT) or INIT in stage.options or files):
            yield stage, "freeze: its weights are random and stay so; load them by `init`, or delete freeze"
    for source in inputs:
        for stage in source.encoder if source.tokenizer else ():
            if contract.member(stage.cls, "reads_columns"):
                message = "it compares neighbouring columns, which have no order in vectors of words"
                yield stage, f"{message}; put it after an embedding of pictures or sounds"
    source, seen = contract.read_by_heads(inputs)[0], set[str]()  # what the vector of a token depends on besides it
    if not all(contract.member(stage.cls, "tokenwise") for stage in source.embedding):
        return
    for stage in source.encoder:
        if not contract.member(stage.cls, "tokenwise"):
            context = str(contract.declaration(stage, "context"))
            is_causal = contract.member(stage.cls, "causal_fix") is not None and not causal_fix(stage)
            seen |= {"left"} if is_causal else {"left", "right"} if context in ("both", "same") else {context}
    for head in heads:
        place = str(contract.declaration(head, "reads_token"))
        if place and ("right" if place == "first" else "left") not in seen:
            others = "after" if place == "first" else "before"
            message = f"it reads only the {place} token of a text, whose vector depends on no token {others} it"
            yield head, f"{message}; choose another pooling, or an encoder that reads both directions"


# The checks of a head that answers with a candidate: one text, no other head, and a candidate set.


def has_candidates(head: Component) -> bool:
    """Return whether a head answers with one of a set of texts."""
    try:
        return contract.task_class(head).has_candidates
    except PluginError:  # the head's invalid answer kind is reported elsewhere
        return False


def candidate_problems(inputs: Sequence[Input], heads: Sequence[Component]) -> Iterator[tuple[Component, str]]:
    """Yield the reasons, each at its head, why a pipeline cannot encode candidates like its input."""
    for head in filter(has_candidates, heads):
        if len(heads) > 1 or len(inputs) > 1 or inputs[0].tokenizer is None or inputs[0].pairs:
            yield head, "its candidates are encoded as its input is: it must be the only head, on one text"


# The checks of a head that corrupts the inputs of a batch before the first stage reads them.


def corruption_problems(head: Component, source: Input, alone: bool) -> Iterator[tuple[Component, str]]:
    """Yield the problems of a head's input corruption, each at its stage; no stage may reveal masked tokens.

    Raises:
        PluginError: The declaration is not a tuple of names.
    """
    names, has_method = contract.declared_corrupted_inputs(head), contract.has_member(head.cls, "corrupt_batch")
    if not names and (not has_method or callable(contract.member(head.cls, "corrupted_inputs"))):
        return
    if not names or not has_method:
        yield head, "`corrupted_inputs` must name what `corrupt_batch` returns; add both, or neither"
    elif not alone:
        yield head, "it changes the text that every stage reads; make it the only head, on one source"
    else:
        for stage in source.stages:
            if problem := _shows(stage, names):
                yield stage, f"{problem}, which reveals what head {head.use!r} has to learn; delete one of the two"


def _shows(stage: Component, corrupted: Sequence[str]) -> str:
    """Return how a stage would reveal the text before `corrupt_batch`, or the masked places; "" if it does not."""
    if "ids" in corrupted and contract.replaces_mask(stage):
        return "it replaces the rows of tokens"
    try:
        features = contract.declared_features(stage)
    except PluginError:  # reported with the declaration of features
        return ""
    kept = {name: feature for name, feature in features.items() if name not in corrupted}
    revealing = [name for name, feature in kept.items() if feature.shows_tokens or "mask" in corrupted]
    return f"its feature {revealing[0]!r} is of the uncorrupted text" if revealing else ""


# The checks of a language model: one tokenized input, and stages that decode incrementally.

_CUT_ANYWHERE = "a column belongs to one text, and packed texts are cut anywhere: set packed: false"


def language_model_problems(inputs: Sequence[Input], heads: Sequence[Component]) -> Iterator[tuple[Component, str]]:
    """Yield the reasons, each at its stage, why a pipeline is not a language model."""
    source, head = inputs[0], heads[-1]
    corpus = contract.corpus_settings(head)
    is_packed, is_stateful = (True, False) if corpus is None else (corpus.packed, corpus.stateful)
    asks = f"the head {head.use!r} generates token by token"
    if len(heads) > 1 or len(inputs) > 1 or source.tokenizer is None:
        yield head, "a language-model head must be the only head, on one tokenized input"
    if source.pairs and is_packed:
        yield head, "it continues the second of two texts, which cannot be packed: set packed: false"
    if not source.encoder:
        yield head, "a language model needs a causal encoder: add one, such as gru"
    if is_stateful and not is_packed:
        yield head, "separate documents start from the initial state: set packed: true, or stateful: false"
    for stage in source.embedding:
        if not contract.member(stage.cls, "tokenwise"):
            yield stage, f"{asks}, and this embedding reads whole texts only; choose lookup"
        elif any(not feature.of_whole_text for feature in contract.declared_features(stage).values()):
            yield stage, f"{asks}, and this embedding reads more of a token than its id; choose lookup"
        elif is_packed and _has_column(stage):
            yield stage, _CUT_ANYWHERE
    for stage in source.encoder:
        if is_packed and _has_column(stage):
            yield stage, _CUT_ANYWHERE
        if fix := causal_fix(stage):
            yield stage, f"{asks}, and this encoder is not causal, or does not support incremental decoding; {fix}"
        elif is_stateful and not contract.has_member(stage.cls, "set_stateful"):
            yield stage, "it has no state for stateful training; choose lstm, gru or rnn, or set head.stateful: false"


def causal_fix(encoder: Component) -> str:
    """Return how to make an encoder causal; "" if it is."""
    causal_fix = contract.member(encoder.cls, "causal_fix")
    if causal_fix is None:
        return "choose transformer, lstm, gru, rnn or pretrained-decoder"
    if not encoder.options:  # invalid options are reported elsewhere
        return ""
    setting = causal_fix(dict(encoder.options))
    return f"set {setting}" if setting else ""


def _has_column(stage: Component) -> bool:
    return any(feature.of_whole_text for feature in contract.declared_features(stage).values())


# The checks of `export.streaming`: one text, one head, and stages in which no token depends on a later one.


def streaming_problems(
    inputs: Sequence[Input], heads: Sequence[Component], export: Export, tree: Tree
) -> list[Problem]:
    """Yield the reasons, each at its stage or key, why a pipeline cannot answer streamed texts."""
    messages = []
    if any(map(contract.is_language_model_head, heads)):
        messages.append("a language model streams without it; delete it")
    if len(heads) > 1:
        messages.append("a pipeline that answers in chunks has one head; train one per answer, or delete it")
    if len(inputs) > 1 or inputs[0].tokenizer is None or inputs[0].pairs:
        messages.append("only a single text can be read in chunks; delete it")
    if export.explain:
        messages.append("attention weights need whole texts; delete explain, or this")
    if messages:
        return [tree.problem(("export", "streaming"), message) for message in messages]
    return [
        stage.problem(f"{contract.describe(stage)}: {message}")
        for stage, message in _stage_problems(inputs[0], heads[0])
    ]


def _stage_problems(source: Input, head: Component) -> Iterator[tuple[Component, str]]:
    for stage in source.embedding:
        if not contract.member(stage.cls, "tokenwise"):
            yield stage, "it reads whole texts only, and export.streaming reads chunks; choose lookup"
    for stage in source.encoder:
        if not contract.member(stage.cls, "tokenwise") and (fix := causal_fix(stage)):
            message = "a token depends on later ones, which export.streaming cannot wait for"
            yield stage, f"{message}; {fix}"
    problem = contract.member(head.cls, "streaming_problem")
    if problem is None:
        yield head, "it answers whole texts only, and export.streaming reads chunks; use tags or label"
    elif head.options and (message := problem(dict(head.options))):
        yield head, f"export.streaming reads chunks: {message}"
