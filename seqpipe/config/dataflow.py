"""Component classes in, every name that nothing provides out: who gives what to whom, read from signatures alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.types import Array
from seqpipe.config.component import Component, Input, describe
from seqpipe.config.contract import (
    declared_corrupted_inputs,
    declared_features,
    decode_options,
    dev_option,
    expected_outputs,
    feature_kind,
    has_member,
    invalidated_names,
    is_language_model_head,
    is_self_supervised,
    is_stateful,
    member,
    misspelt_members,
    replaces_mask,
    stated_shapes,
)
from seqpipe.config.head_answers import answer_kind, answer_settings
from seqpipe.config.names import SHAPES
from seqpipe.config.signature import method_names, optional_names, wired
from seqpipe.console import text_table
from seqpipe.errors import PluginError, Problem, nearest


@dataclass
class _Name:
    """A name as one stage provides it, and all who ask for that."""

    name: str
    provider: str
    shape: str
    dtype: str
    users: list[str] = field(default_factory=list)


Stages = Sequence[Component]
Arrays = Mapping[str, Array]


def problems(inputs: Sequence[Input], head: Stages) -> list[Problem]:
    """Every name that a stage asks for and nothing provides, and every stage that is none, at the component's place."""
    return [*_misspelt(inputs, head), *_Trace(inputs, head).problems]


def _misspelt(inputs: Sequence[Input], head: Stages) -> Iterator[Problem]:
    """Members of stages that seqpipe does not read, though it reads one of nearly that name."""
    for stage in (*(stage for one in inputs for stage in one.stages), *head):
        for name, right in misspelt_members(stage.cls, stage.kind):
            yield stage.problem(f"{describe(stage)}: its member {name!r} is not read; did you mean {right!r}?")


def explain(inputs: Sequence[Input], head: Stages) -> str:
    """A table of every name: its shape and dtype, who provides it, who uses it."""
    rows = [("name", "shape", "dtype", "from", "used by")]
    for name in _Trace(inputs, head).names:
        rows.append((name.name, name.shape, name.dtype, name.provider, ", ".join(name.users) or "-"))
    return "\n".join(
        [
            *text_table(rows),
            "",
            "x and dim stand once for each place that gives them.",
            "B batch, T source time, N target time, D width, C characters, F numbers, L labels, K beams, V tokens",
        ]
    )


_METRICS = ("options", "gold", "predicted")
_TARGETS: Arrays = {name: array for kind in ANSWER_KINDS.values() for name, array in kind.targets.items()}
_DECIDED: Arrays = {name: array for kind in ANSWER_KINDS.values() for name, array in kind.decided.items()}


@dataclass(frozen=True)
class _Answer:
    """What a head's answer kind gives to its methods; of a head that does not say its kind all that any gives."""

    targets: Arrays
    decided: Arrays
    has_labels: bool = True
    refused: str = ""  # why a self-supervised head cannot give it


_ANY = _Answer(_TARGETS, _DECIDED)


class _Trace:
    """Goes through the stages once, forward, as a batch would."""

    def __init__(self, inputs: Sequence[Input], head: Stages):
        self.problems: list[Problem] = []
        self.names: list[_Name] = []  # in the order in which they come to be; x may be there several times
        self.given: dict[str, _Name] = {}  # what the methods of a stage see now
        self.wired: dict[str, _Name] = {}  # what its constructor sees
        self.lacking: list[Input] = []  # sources without x
        kinds = [self.answer(stage) for stage in head]
        for one in inputs:
            self.given, self.wired = {}, {}
            self.begin(one, head if len(inputs) == 1 else ())
            if one is inputs[0]:
                self.corruption(one, head, alone=len(inputs) == len(head) == 1)
            if len(head) == 1:  # of several heads each has its own labels, so no stage before them can have any
                self.wire_answer(head[0], kinds[0])
            self.source(one)
            if "x" not in self.given:
                self.lacking.append(one)
        ends = " + ".join(one.stages[-1].key for one in inputs if one.stages) or "data"
        if len(inputs) > 1:
            self.given, self.wired = {}, {}
            self.refuse_features(head)
        self.give("sources", ends)
        self.wire("sources", ends)
        if any(map(is_language_model_head, head)):
            self.incremental(inputs, head)
            self.give("incremental", ends)
        for stage, kind in zip(head, kinds, strict=True):
            if len(inputs) > 1 and not self.reads_several(stage):
                continue
            if len(head) > 1 or len(inputs) > 1:
                self.wire_answer(stage, kind)
            self.construct(stage)
            self.decide(stage, kind)

    def begin(self, one: Input, head: Stages) -> None:
        """What the data of a source provide."""
        if one.tokenizer is not None:
            self.give("ids", "data")
            self.wire("vocabulary", "tokenizer")
        self.give("mask", "data")
        if one.pairs:
            self.give("segments", "data")
        self.wire("sizes", "features")
        self.declare([*one.stages, *head], one)

    def source(self, one: Input) -> None:
        """The stages of one source."""
        for stage in one.embedding:
            self.construct(stage)
            self.method(stage, "forward")
        if one.embedding:
            self.give("x", " + ".join(stage.key for stage in one.embedding))
        for stage in one.embedding:
            for name in self.returned(stage):
                if name != "x":
                    self.give(name, stage.key, stated=stated_shapes(stage.cls).get(name))
        for stage in one.encoder:
            self.construct(stage)
            self.method(stage, "forward")
            returned = self.returned(stage)
            for name in invalidated_names(returned):
                self.given.pop(name, None)
            for name in returned:
                self.give(name, stage.key, stated=stated_shapes(stage.cls).get(name))

    def incremental(self, inputs: Sequence[Input], head: Stages) -> None:
        """Complains of stages that cannot go token by token, where the head is a language model."""
        asks = f"the head {head[-1].use!r} writes token by token"
        if len(head) > 1 or len(inputs) > 1 or inputs[0].tokenizer is None:
            self.complain(head[-1], "a language-model head must be the only head, on one tokenized input")
        if inputs[0].pairs and head[-1].options.get("packed") is not False:
            self.complain(head[-1], "it continues the second of two texts, which are no single text: set packed: false")
        if not inputs[0].encoder:
            self.complain(head[-1], "a language model needs a causal encoder: add one, such as gru")
        if is_stateful(head[-1]) and head[-1].options.get("packed") is False:
            self.complain(head[-1], "separate documents start from a zero state: set packed: true, or stateful: false")
        for stage in inputs[0].embedding:
            if not member(stage.cls, "tokenwise"):
                self.complain(stage, f"{asks}, and this embedding knows whole texts only; choose lookup")
            elif head[-1].options.get("packed") is not False and _has_column(stage):
                self.complain(stage, "a column is of one text, and packed texts are cut anywhere: set packed: false")
        for stage in inputs[0].encoder:
            causal_fix = member(stage.cls, "causal_fix")
            cure = (
                "choose transformer, lstm, gru, rnn or pretrained-decoder"
                if causal_fix is None
                else causal_fix(dict(stage.options))
            )
            if cure:
                told = f"{asks}, and this encoder is not causal, or does not support incremental decoding"
                self.complain(stage, f"{told}; {cure if causal_fix is None else f'set {cure}'}")
            elif is_stateful(head[-1]) and not has_member(stage.cls, "set_stateful"):
                self.complain(stage, "it has no state to carry; choose lstm, gru or rnn, or set head.stateful: false")

    def corruption(self, source: Input, heads: Stages, alone: bool) -> None:
        """A head that changes the batch before the first stage: what it asks for, and that nothing shows what it hides.

        `self.given` is then what the data provide.
        """
        for head in heads:
            try:
                names = declared_corrupted_inputs(head)
            except PluginError as error:
                self.problems.append(head.problem(str(error)))
                continue
            has_method = has_member(head.cls, "corrupt_batch")
            if not names and (not has_method or callable(member(head.cls, "corrupted_inputs"))):
                continue
            if not names or not has_method:
                self.complain(head, "`corrupted_inputs` must name what `corrupt_batch` returns; add both, or neither")
            elif not alone:
                self.complain(head, "it changes the text that every stage reads; let it be the only head of one source")
            else:
                self.method(head, "corrupt_batch")
                for stage in source.stages:
                    if told := _shows(stage, names):
                        self.complain(stage, f"{told}, which head {head.use!r} has to learn; leave one of the two out")

    def corrupted_by(self, head: Component) -> tuple[str, ...]:
        """What a head's `corrupt_batch` returns; nothing if it does not say, which is reported elsewhere."""
        try:
            return declared_corrupted_inputs(head)
        except PluginError:
            return ()

    def reads_several(self, head: Component) -> bool:
        """Whether a head is made for several sources; a problem if not."""
        try:
            several = "sources" in wired(head.cls)
        except PluginError as error:
            self.complain(head, str(error))
            return False
        if not several:
            self.complain(head, "it supports one input; take a head with a `sources` argument, such as seq2seq")
        return several

    def refuse_features(self, head: Stages) -> None:
        """Of several sources nobody knows which one a head's features would be made of."""
        for stage in head:
            try:
                if names := ", ".join(declared_features(stage)):
                    self.complain(stage, f"it declares {names}, and of several inputs it cannot say of which; take one")
            except PluginError as error:
                self.problems.append(stage.problem(str(error)))

    def give(self, name: str, provider: str, kind: str = "", stated: tuple[str, str] | None = None) -> None:
        shape, dtype = stated or SHAPES.get(kind or name, ("as returned", "as returned"))
        self.given[name] = _Name(name, provider, shape, dtype)
        self.names.append(self.given[name])
        if name == "x":
            self.wire("dim", provider)

    def wire(self, name: str, provider: str) -> None:
        self.wired[name] = _Name(name, provider, *SHAPES[f"{name}()" if f"{name}()" in SHAPES else name])
        self.names.append(self.wired[name])

    def complain(self, stage: Component, message: str) -> None:
        self.problems.append(stage.problem(f"{describe(stage)}: {message}"))

    def declare(self, stages: Iterable[Component], source: Input) -> None:
        """The features that the stages of a source declare; one name means one feature."""
        found: dict[str, tuple[Component, object]] = {}
        for stage in stages:
            try:
                features = declared_features(stage)
            except PluginError as error:
                self.problems.append(stage.problem(str(error)))
                continue
            for name, feature in features.items():
                first, same = found.setdefault(name, (stage, feature))
                if name in {"ids", "mask", "segments", "x", "sources"} | _TARGETS.keys() | _DECIDED.keys():
                    self.complain(stage, f"feature {name!r} has a name of the frame's own; it needs another")
                elif same != feature:
                    told = f"feature {name!r} is {feature!r} here and {same!r} in {first.key} ({first.use!r})"
                    self.complain(stage, f"{told}; in one pipeline it can be one thing only: leave one of the two out")
                elif told := _unfit(feature_kind(feature), source):
                    self.complain(stage, told)
                elif first is stage:
                    self.give(name, f"data (feature of {stage.key})", feature_kind(feature) or name)

    def answer(self, head: Component) -> _Answer:
        """What the answer kind of a head gives; a problem if it states none, or one with other settings."""
        try:
            kind, settings = answer_kind(head), answer_settings(head)
        except PluginError as error:
            self.problems.append(head.problem(str(error)))
            return _ANY
        refused = ""
        if not kind.may_self_supervise:
            names = ", ".join(name for name, other in ANSWER_KINDS.items() if other.may_self_supervise)
            refused = f"a self-supervised head answers with {names}, not with {kind.kind}"
        return _Answer(kind.declared_targets(settings), kind.declared_decided(settings), kind.has_labels, refused)

    def wire_answer(self, head: Component, answer: _Answer) -> None:
        """What a head's answer kind and its target tokenizer provide to constructors, in place of another head's."""
        for name in ("labels", "target_vocabulary"):
            self.wired.pop(name, None)
        if answer.has_labels:
            self.wire("labels", f"data (target of {head.key})")
        if head.frame.get("target_tokenizer") is not None or is_self_supervised(head):
            self.wire("target_vocabulary", f"{head.key}.target_tokenizer")

    def construct(self, stage: Component) -> None:
        try:
            asked = wired(stage.cls)
        except PluginError as error:
            self.complain(stage, str(error))
            return
        for name in asked:
            if name in self.wired:
                self.wired[name].users.append(f"{stage.key}()")
            else:
                self.complain(stage, f"it is built from {name!r}, and {_CURES[name]}")
        if stage.frame.get("target_tokenizer") is not None and "target_vocabulary" not in asked:
            self.complain(stage, "it is built without a target vocabulary; delete `target_tokenizer`")

    def method(self, stage: Component, method: str) -> None:
        """Checks that a stage has the method, and that all it asks for is given."""
        function = member(stage.cls, method)
        if function is None or getattr(function, "__name__", "") == "_forward_unimplemented":
            if method not in ("score", "margin", "explain", "measures"):
                self.complain(stage, f"its class has no `{method}`, which every {stage.kind} needs")
            return
        try:
            asked, options = method_names(function)
        except (PluginError, ValueError, TypeError) as error:
            self.complain(stage, str(error))
            return
        if options and method != "decide":
            self.complain(stage, f"`{method}` has an option {options[0]!r} after the '*'; only `decide` has options")
        for name in asked:
            if name == "sources" and self.lacking:
                named = f" {self.lacking[0].name!r}" if self.lacking[0].name else ""
                self.complain(
                    stage, f"`{method}` asks for the x of every source, and{named} has none; add an embedding"
                )
            elif name in self.given:
                self.given[name].users.append(f"{stage.key}.{method}")
            elif name not in optional_names(function):
                self.complain(stage, f"`{method}` asks for {name!r}, which nothing provides{self.cure(name)}")

    def cure(self, name: str) -> str:
        there_is = f" (there is: {', '.join(one for one in self.given if one != 'sources') or 'sources'})"
        if name == "x":
            return f"; add an embedding{there_is}"
        if name == "segments":
            return "; let the tokenizer read two texts of a record, such as field: [text, text_pair]"
        if name in _TARGETS:
            return f" here; a target is given to `loss`, if the head's answer kind has it{there_is}"
        return nearest(name, self.given) + there_is

    def returned(self, stage: Component) -> Sequence[str]:
        returns = member(stage.cls, "returns")
        if isinstance(returns, (tuple, list, Mapping)) and all(isinstance(name, str) for name in returns):
            return expected_outputs(stage.cls, self.given)
        self.complain(stage, f"its `returns` must be a tuple of names such as ('x', 'state'), not {returns!r}")
        return ("x",)

    def decide(self, head: Component, answer: _Answer) -> None:
        """A head's three methods: targets are given to `loss` alone, what `decide` returns to `score`."""
        self.method(head, "decide")
        try:
            for name in [name for name in decode_options(head.cls) if name in self.given]:
                self.complain(head, f"decode option {name!r} has the name of what the frame gives; it needs another")
        except (PluginError, ValueError, TypeError) as error:
            self.complain(head, str(error))
        before = dict(self.given)
        targets: Mapping[str, Array | None] = answer.targets
        of_data = f"data (target of {head.key})"
        if is_self_supervised(head) and answer.refused:
            self.complain(head, f"{answer.refused}: no record says what is right")
        if is_self_supervised(head) and head.frame.get("target") is not None:
            self.complain(head, "it learns from the text itself; delete `target`")
        if is_self_supervised(head):
            targets = {name: answer.targets.get(name) for name in self.corrupted_by(head)}
            of_data = f"{head.key}.corrupt_batch"
        decided, others = answer.decided, {f"other_{name}": array for name, array in answer.decided.items()}
        for methods, arrays, provider in (
            (("loss", "measures"), targets, of_data),
            *([(("evidence",), targets, of_data)] if dev_option(head) else []),
            (("score",), decided, f"{head.key}.decide"),
            (("explain",), decided, f"{head.key}.decide"),
            (("margin",), {**decided, **others}, f"{head.key}.decide"),
        ):
            for name, array in arrays.items():
                self.give(name, provider, stated=None if array is None else (array.shape, array.dtype))
            for method in methods:
                self.method(head, method)
            self.given = dict(before)
        metrics = member(head.cls, "metrics")
        if metrics is not None and not (callable(metrics) and method_names(metrics)[0] == _METRICS):
            self.complain(head, f"`metrics` must be a static method of {', '.join(_METRICS)}, which returns a dict")
        self.names = [name for name in self.names if name.users or name.provider != f"{head.key}.decide"]


def _shows(stage: Component, corrupted: Sequence[str]) -> str:
    """By what a stage would show the text as it was before `corrupt_batch`, or its places; nothing if it does not."""
    if "ids" in corrupted and replaces_mask(stage):
        return "it makes other rows of the tokens"
    try:
        features = declared_features(stage)
    except PluginError:  # told where features are declared
        return ""
    kinds = {name: feature_kind(feature) for name, feature in features.items() if name not in corrupted}
    shown = [name for name, kind in kinds.items() if kind in _WRITTEN or "mask" in corrupted]
    return f"its feature {shown[0]!r} is of the text as it was" if shown else ""


_WRITTEN = ("chars", "copy")  # kinds of feature by which a token is known whatever its id is


def _has_column(stage: Component) -> bool:
    return any(feature_kind(feature) == "column" for feature in declared_features(stage).values())


def _unfit(kind: str, source: Input) -> str:
    """Why a feature cannot be made of a source, and what to do; nothing if it can."""
    where = f"inputs: {{{source.name or 'numbers'}: {{field: NAME, embedding: …}}}}"
    if kind == "matrix" and source.tokenizer is not None:
        return f"it reads rows of numbers, and this source is a text: give them a source of their own, {where}"
    if kind != "matrix" and source.tokenizer is None:
        return f"its feature {kind!r} is made of a text, and this source has no tokenizer; add one, or take linear"
    return ""


_CURES: Mapping[str, str] = {
    "vocabulary": "the source has no tokenizer; add one, or take an embedding of numbers, linear",
    "sources": "a stage of one source knows of no other; they are for heads",
    "sizes": "of several inputs nobody knows whose features they would be",
    "dim": "there is no x yet whose width that could be: add an embedding",
    "labels": "the answer of the head has none; use a head that gives labels",
    "target_vocabulary": "there is none: add `target_tokenizer: {use: NAME}` to the head, or `target_tokenizer: same`",
}
