"""The names that pass between the stages of a pipeline: which stage provides each, and which signature asks for it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqpipe.answers.types import Array
from seqpipe.config.checks import candidate_problems, corruption_problems, language_model_problems
from seqpipe.config.contract import (
    DECIDED,
    TARGETS,
    Component,
    HeadArrays,
    Input,
    declaration,
    declared_corrupted_inputs,
    declared_features,
    decode_options,
    describe,
    dev_option,
    expected_outputs,
    has_member,
    head_arrays,
    invalidated_names,
    is_language_model_head,
    is_self_supervised,
    member,
    misspelt_members,
    read_by_heads,
    reads_whole_text,
    run_order,
    state_source,
    stated_shapes,
)
from seqpipe.config.members import SHAPES, SOURCE_STATE
from seqpipe.config.signature import method_names, optional_names, wired
from seqpipe.console import text_table
from seqpipe.errors import PluginError, Problem, did_you_mean
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.registry import pair_features

_OPTIONAL_METHODS = ("score", "margin", "explain", "measures")


@dataclass
class ProvidedName:
    """A name as one stage provides it, and all who ask for that."""

    name: str
    provider: str
    shape: str
    dtype: str
    users: list[str] = field(default_factory=list)


class ProvidedNames:
    """The names that are available at one place of the pipeline, and the problems of the stages that ask for others."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.names: list[ProvidedName] = []  # in the order in which they come to be; x may be there several times
        self.available: dict[str, ProvidedName] = {}  # what the methods of a stage see now
        self.wired: dict[str, ProvidedName] = {}  # what its constructor sees
        self.without_x: list[str] = []  # names of the inputs that have no x

    def give(self, name: str, provider: str, stated: tuple[str, str] | None = None) -> None:
        shape, dtype = stated or SHAPES.get(name, ("as returned", "as returned"))
        self.available[name] = ProvidedName(name, provider, shape, dtype)
        self.names.append(self.available[name])
        if name == "x":
            self.wire("dim", provider)

    def wire(self, name: str, provider: str) -> None:
        self.wired[name] = ProvidedName(name, provider, *SHAPES[f"{name}()" if f"{name}()" in SHAPES else name])
        self.names.append(self.wired[name])

    def complain(self, stage: Component, message: str) -> None:
        self.problems.append(stage.problem(f"{describe(stage)}: {message}"))

    def construct(self, stage: Component) -> None:
        try:
            names = wired(stage.cls)
        except PluginError as error:
            self.complain(stage, str(error))
            return
        for name in names:
            if name in self.wired:
                self.wired[name].users.append(f"{stage.key}()")
            else:
                self.complain(stage, f"it is built from {name!r}, and {_CURES[name]}")
        if stage.common_keys.get("target_tokenizer") is not None and "target_vocabulary" not in names:
            self.complain(stage, "it is built without a target vocabulary; delete `target_tokenizer`")

    def method(self, stage: Component, method: str) -> None:
        """Checks that a stage has the method, and that all it asks for is given."""
        function = member(stage.cls, method)
        # A module without a `forward` inherits one of this name from nn.Module.
        if function is None or (inspect.isfunction(function) and function.__name__ == "_forward_unimplemented"):
            if method not in _OPTIONAL_METHODS:
                self.complain(stage, f"its class has no `{method}`, which every {stage.kind} needs")
            return
        try:
            names, options = method_names(function)
        except (PluginError, ValueError, TypeError) as error:
            self.complain(stage, str(error))
            return
        if options and method != "decide":
            self.complain(stage, f"`{method}` has an option {options[0]!r} after the '*'; only `decide` has options")
        for name in names:
            if name == "sources" and self.without_x:
                source = f" {self.without_x[0]!r}" if self.without_x[0] else ""
                message = f"`{method}` asks for the x of every source, and{source} has none; add an embedding"
                self.complain(stage, message)
            elif name in self.available:
                self.available[name].users.append(f"{stage.key}.{method}")
            elif name not in optional_names(function):
                self.complain(stage, f"`{method}` asks for {name!r}, which nothing provides{self.cure(name)}")

    def cure(self, name: str) -> str:
        known = [available for available in self.available if available != "sources"] or ["sources"]
        there_is = f" (there is: {', '.join(known)})"
        if name == "x":
            return f"; add an embedding{there_is}"
        if name in pair_features():
            return "; let the tokenizer read two texts of a record, such as field: [text, text_pair]"
        if name in TARGETS:
            return f" here; a target is given to `loss`, if the head's answer kind has it{there_is}"
        return did_you_mean(name, self.available) + there_is

    def returned(self, stage: Component) -> Sequence[str]:
        returns = member(stage.cls, "returns")
        if isinstance(returns, (tuple, list, Mapping)) and all(isinstance(name, str) for name in returns):
            return expected_outputs(stage.cls, self.available)
        self.complain(stage, f"its `returns` must be a tuple of names such as ('x', 'state'), not {returns!r}")
        return ("x",)


_CURES: Mapping[str, str] = {
    "vocabulary": "the source has no tokenizer; add one, or take an embedding of numbers, linear",
    "sources": "only a head is built from all sources",
    "sizes": "a head of several inputs has no features",
    "dim": "there is no x yet whose width that could be: add an embedding",
    "labels": "the answer of the head has none; use a head that gives labels",
    "target_vocabulary": "there is none: add `target_tokenizer: {use: NAME}` to the head, or `target_tokenizer: same`",
}


# The checks of encoders that start from the state of another source.

_INPUTS = "inputs: {NAME: {field: …}, …}"


def source_state_problems(inputs: Sequence[Input]) -> Iterator[tuple[Component, str]]:
    """What hinders encoders from starting from the state of another source, each at its stage."""
    names, is_sound = [source.name for source in inputs], True
    starts = {
        source.name: [(stage, name) for stage in source.encoder if (name := declaration(stage, "state_source"))]
        for source in inputs
    }
    for source, stages in starts.items():
        for stage, name in stages:
            if message := _unsound(source, name, names) or _unlike(stages[0][1], name):
                is_sound = False
                yield stage, message
    if not is_sound:
        return
    ordered = [source.name for source in run_order(inputs)]
    for source in names:
        if source not in ordered:
            stage, name = starts[source][0]
            message = f"it starts from the state of {name!r}, which waits for itself in a cycle of initial states"
            yield stage, f"{message}; let one of the inputs in it start otherwise"
    if len(ordered) == len(names) and inputs[0] not in read_by_heads(inputs):
        stage, name = next(start for of_source in starts.values() for start in of_source if start[1] == names[0])
        yield stage, f"it starts from {name!r}, which no head reads, so it cannot be the first input; move it down"


def _unsound(source: str, name: str, names: Sequence[str]) -> str:
    if name == source:
        return f"it cannot start from the state of its own source {name!r}; name another input"
    if not source:
        return f"it starts from the state of another input, {name!r}, and there is one input only; write {_INPUTS}"
    if name not in names:
        others = ", ".join(other for other in names if other != source)
        message = f"it starts from the state of input {name!r}, which does not exist"
        return f"{message}{did_you_mean(name, names)} (there is: {others})"
    return ""


def _unlike(first: str, name: str) -> str:
    if name == first:
        return ""
    return f"it starts from the state of {name!r}, and an encoder before it from that of {first!r}; name the same"


# The flow of names through the stages of a pipeline, read from signatures alone, and every name that is missing.

Stages = Sequence[Component]


def problems(inputs: Sequence[Input], head: Stages) -> list[Problem]:
    """Every name that a stage asks for and nothing provides, and every stage that is none, at the component's place."""
    try:
        unsound = [
            stage.problem(f"{describe(stage)}: initial_state: {message}")
            for stage, message in source_state_problems(inputs)
        ]
    except PluginError as error:
        return [head[0].problem(str(error))]
    return [*_misspelt(inputs, head), *(unsound or _Trace(inputs, head).problems)]


def _misspelt(inputs: Sequence[Input], head: Stages) -> Iterator[Problem]:
    """Members of stages that seqpipe does not read, though it reads one of nearly that name."""
    for stage in (*(stage for source in inputs for stage in source.stages), *head):
        for name, right in misspelt_members(stage.cls, stage.kind):
            yield stage.problem(f"{describe(stage)}: its member {name!r} is not read; did you mean {right!r}?")


def explained_names(inputs: Sequence[Input], head: Stages) -> list[dict[str, Any]]:
    """Every name: its shape and dtype, who provides it, who uses it."""
    return [
        {"name": name.name, "shape": name.shape, "dtype": name.dtype, "from": name.provider, "used_by": [*name.users]}
        for name in _Trace(inputs, head).names
    ]


def explain(inputs: Sequence[Input], head: Stages) -> str:
    """A table of every name: its shape and dtype, who provides it, who uses it."""
    rows = [("name", "shape", "dtype", "from", "used by")]
    for name in explained_names(inputs, head):
        rows.append((*(name[key] for key in rows[0][:-1]), ", ".join(name["used_by"]) or "-"))
    return "\n".join(
        [
            *text_table(rows),
            "",
            "x and dim stand once for each place that gives them.",
            "B batch, T source time, N target time, D width, C characters, F numbers, L labels, K beams, V tokens",
        ]
    )


_METRICS = ("options", "gold", "predicted")


class _Trace(ProvidedNames):
    """One pass through the stages, forward, as a batch takes it."""

    def __init__(self, inputs: Sequence[Input], head: Stages):
        super().__init__()
        arrays = [self.arrays(stage) for stage in head]
        read = read_by_heads(inputs)
        traced: dict[str, dict[str, ProvidedName]] = {}  # what the stages of each source provide
        for source in run_order(inputs):
            self.available, self.wired = {}, {}
            self.begin(source, head if len(inputs) == 1 else ())
            if source is inputs[0]:
                self.corruption(source, head, alone=len(inputs) == len(head) == 1)
            if len(head) == 1:  # of several heads each has its own labels, so no stage before them can have any
                self.wire_answer(head[0], arrays[0])
            if name := state_source(source):
                self.start_from(source, name, "x" in traced[name])
            self.source(source)
            if "x" not in self.available and source in read:
                self.without_x.append(source.name)
            traced[source.name] = self.available
            if source is inputs[0]:
                of_first = self.wired
        first = traced[inputs[0].name]
        ends = " + ".join(source.stages[-1].key for source in read if source.stages) or "data"
        if len(inputs) > 1:
            self.available, self.wired = {}, {}
            self.refuse_features(head)
            if len(read) == 1:
                self.available, self.wired = dict(first), of_first
            elif any(of_head.joins_sources for of_head in arrays):
                self.join(read, first, head[0])
        self.give("sources", ends)
        self.wire("sources", ends)
        if any(map(is_language_model_head, head)):
            for stage, message in language_model_problems(inputs, head):
                self.complain(stage, message)
            self.give("incremental", ends)
        for stage, message in candidate_problems(inputs, head):
            self.complain(stage, message)
        for stage, of_head in zip(head, arrays, strict=True):
            if len(inputs) > 1 and not (of_head.joins_sources or self.reads_several(stage, len(read))):
                continue
            if len(head) > 1 or len(inputs) > 1:
                self.wire_answer(stage, of_head)
            self.construct(stage)
            self.decide(stage, of_head)

    def begin(self, source: Input, head: Stages) -> None:
        """What the data of a source provide."""
        if source.tokenizer is not None:
            self.give("ids", "data")
            self.wire("vocabulary", "tokenizer")
        self.give("mask", "data")
        if source.pairs:
            for name, feature in pair_features().items():
                self.give(name, "data", stated=(feature.shape, feature.dtype))
        self.wire("sizes", "features")
        self.declare([*source.stages, *head], source)

    def source(self, source: Input) -> None:
        """The stages of one source."""
        for stage in source.embedding:
            self.construct(stage)
            self.method(stage, "forward")
        if source.embedding:
            self.give("x", " + ".join(stage.key for stage in source.embedding))
        for stage in source.embedding:
            for name in self.returned(stage):
                if name != "x":
                    self.give(name, stage.key, stated=stated_shapes(stage.cls).get(name))
        for stage in source.encoder:
            self.construct(stage)
            self.method(stage, "forward")
            returned = self.returned(stage)
            for name in invalidated_names(returned):
                self.available.pop(name, None)
            for name in returned:
                self.give(name, stage.key, stated=stated_shapes(stage.cls).get(name))

    def start_from(self, source: Input, name: str, has_x: bool) -> None:
        """The state of the source of this name, for the encoders of another."""
        if has_x:
            self.give(SOURCE_STATE, f"input {name}")
        else:
            message = f"initial_state: the input {name!r} has no x, and so no state; add an embedding to it"
            self.complain(next(stage for stage in source.encoder if declaration(stage, "state_source")), message)

    def corruption(self, source: Input, heads: Stages, alone: bool) -> None:
        """Heads that change the batch before the first stage; `self.available` is then what the data provide."""
        for head in heads:
            try:
                for stage, message in corruption_problems(head, source, alone):
                    self.complain(stage, message)
            except PluginError as error:
                self.problems.append(head.problem(str(error)))
            if alone and self.corrupted_by(head) and has_member(head.cls, "corrupt_batch"):
                self.method(head, "corrupt_batch")

    def corrupted_by(self, head: Component) -> tuple[str, ...]:
        """What a head's `corrupt_batch` returns; nothing if it does not say, which is reported elsewhere."""
        try:
            return declared_corrupted_inputs(head)
        except PluginError:
            return ()

    def join(self, inputs: Sequence[Input], first: Mapping[str, ProvidedName], head: Component) -> None:
        """What the first of several sources provides, with the vectors of the others beside its x."""
        if inputs[0].tokenizer is None:
            self.complain(head, f"it answers for the words of the first input, and {inputs[0].name!r} is no text")
        elif self.without_x:
            self.complain(head, f"it reads the x of every input, and {self.without_x[0]!r} has none; add an embedding")
        self.available = dict(first)
        self.give("x", " + ".join(source.stages[-1].key for source in inputs if source.stages))

    def reads_several(self, head: Component, count: int) -> bool:
        """Whether a head is made for several inputs of which it reads so many; a problem if not."""
        try:
            several = "sources" in wired(head.cls)
            if count == 1 and not several:
                several = not is_self_supervised(head) and reads_whole_text(head)
        except PluginError as error:
            self.complain(head, str(error))
            return False
        if not several:
            self.complain(head, "it supports one input; take a head of tags or spans, or one with a `sources` argument")
        return several

    def refuse_features(self, head: Stages) -> None:
        """Report features of a head that reads several sources: they cannot be made of all of them."""
        for stage in head:
            try:
                if names := ", ".join(declared_features(stage)):
                    self.complain(stage, f"it declares {names}, and of several inputs it cannot say of which; take one")
            except PluginError as error:
                self.problems.append(stage.problem(str(error)))

    def declare(self, stages: Iterable[Component], source: Input) -> None:
        """The features that the stages of a source declare; one name means one feature."""
        declared: dict[str, tuple[Component, FeatureKind]] = {}
        for stage in stages:
            try:
                features = declared_features(stage)
            except PluginError as error:
                self.problems.append(stage.problem(str(error)))
                continue
            for name, feature in features.items():
                first, same = declared.setdefault(name, (stage, feature))
                if name in {"ids", "mask", "x", "sources"} | pair_features().keys() | TARGETS.keys() | DECIDED.keys():
                    self.complain(stage, f"feature {name!r} has a name that seqpipe itself provides; it needs another")
                elif same != feature:
                    message = f"feature {name!r} is {feature!r} here and {same!r} in {first.key} ({first.use!r})"
                    self.complain(stage, f"{message}; in one pipeline it can be one thing only: leave one out")
                elif message := feature.mismatch(source.tokenizer is not None, source.name):
                    self.complain(stage, message)
                elif first is stage:
                    self.give(name, f"data (feature of {stage.key})", stated=(feature.shape, feature.dtype))

    def arrays(self, head: Component) -> HeadArrays:
        """What the answer kind of a head gives; of one that does not say its kind, a problem, all that any gives."""
        try:
            return head_arrays(head)
        except PluginError as error:
            self.problems.append(head.problem(str(error)))
            return HeadArrays()

    def wire_answer(self, head: Component, arrays: HeadArrays) -> None:
        """What a head's answer kind and its target tokenizer provide to constructors, in place of another head's."""
        for name in ("labels", "target_vocabulary"):
            self.wired.pop(name, None)
        if arrays.has_labels:
            self.wire("labels", f"data (target of {head.key})")
        if head.common_keys.get("target_tokenizer") is not None or is_self_supervised(head):
            self.wire("target_vocabulary", f"{head.key}.target_tokenizer")

    def decide(self, head: Component, arrays: HeadArrays) -> None:
        """A head's three methods: targets are given to `loss` alone, what `decide` returns to `score`."""
        self.method(head, "decide")
        try:
            for name in [name for name in decode_options(head.cls) if name in self.available]:
                self.complain(head, f"decode option {name!r} has a name that seqpipe itself provides; it needs another")
        except (PluginError, ValueError, TypeError) as error:
            self.complain(head, str(error))
        before = dict(self.available)
        targets: Mapping[str, Array | None] = arrays.targets
        provider = f"data (target of {head.key})"
        if is_self_supervised(head):
            if arrays.no_self_supervision:
                self.complain(head, f"{arrays.no_self_supervision}: no record says what is right")
            if head.common_keys.get("target") is not None:
                self.complain(head, "it learns from the text itself; delete `target`")
            targets = {name: arrays.targets.get(name) for name in self.corrupted_by(head)}
            provider = f"{head.key}.corrupt_batch"
        decided, others = arrays.decided, {f"other_{name}": array for name, array in arrays.decided.items()}
        of_decide = f"{head.key}.decide"
        for methods, tensors, source in (
            (("loss", "measures"), targets, provider),
            *([(("evidence",), targets, provider)] if dev_option(head) else []),
            (("score",), decided, of_decide),
            (("explain",), decided, of_decide),
            (("margin",), {**decided, **others}, of_decide),
        ):
            for name, array in tensors.items():
                self.give(name, source, stated=None if array is None else (array.shape, array.dtype))
            for method in methods:
                self.method(head, method)
            self.available = dict(before)
        metrics = member(head.cls, "metrics")
        if metrics is not None and not (callable(metrics) and method_names(metrics)[0] == _METRICS):
            self.complain(head, f"`metrics` must be a static method of {', '.join(_METRICS)}, which returns a dict")
        self.names = [name for name in self.names if name.users or name.provider != of_decide]
