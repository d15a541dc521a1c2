"""Data flow of a pipeline by names: the stage that provides each, and the signatures that require it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqpipe.answers.registry import TASKS
from seqpipe.answers.types import WHOLE_TEXT, Array
from seqpipe.config import contract
from seqpipe.config.checks import (
    candidate_problems,
    corruption_problems,
    language_model_problems,
    leak_problems,
    row_problems,
)
from seqpipe.config.contract import DECIDED, TARGETS, Component, HeadArrays, Input
from seqpipe.config.members import MEMBERS, REQUIRED, SHAPES, SOURCE_STATE
from seqpipe.config.signature import method_names, optional_names, wired
from seqpipe.console import text_table
from seqpipe.errors import PluginError, Problem, did_you_mean
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.registry import pair_features

# The names that pass between the stages of a pipeline, the stage that provides each, and the signatures that use it.

_METRICS_NAMES = ("options", "gold", "predicted")
_FIXES: Mapping[str, str] = {
    "vocabulary": "the source has no tokenizer; add one, or use an embedding of numbers, such as linear",
    "sources": "only a head may be built from all sources",
    "sizes": "a head of several inputs has no features",
    "dim": "there is no x yet: add one, such as `embedding: lookup`",
    "labels": "the answer of the head has none; use a head that answers with labels",
    "target_vocabulary": "there is none: add `target_tokenizer: {use: NAME}` to the head, or `target_tokenizer: same`",
}

_PAIR_FEATURES = pair_features()
_PROVIDED = {"ids", "mask", "x", "sources"} | _PAIR_FEATURES.keys() | TARGETS.keys() | DECIDED.keys()

Stages = Sequence[Component]


def problems(inputs: Sequence[Input], heads: Stages) -> list[Problem]:
    """Return a problem for each required name that nothing provides, and each component that is not a valid stage."""
    misspelt = [
        stage.problem(f"{contract.describe(stage)}: its member {name!r} is not read; did you mean {right!r}?")
        for stage in (*(stage for source in inputs for stage in source.stages), *heads)
        for name, right in contract.misspelt_members(stage.cls, stage.kind)
        if MEMBERS[right].default is REQUIRED  # a misspelt optional member is a warning
    ]
    try:
        unsound = [
            stage.problem(f"{contract.describe(stage)}: initial_state: {message}")
            for stage, message in source_state_problems(inputs)
        ]
    except PluginError as error:
        return [heads[0].problem(str(error))]
    return [*misspelt, *(unsound or trace(inputs, heads).problems)]


def explained_names(inputs: Sequence[Input], head: Stages) -> list[dict[str, Any]]:
    """Return all names with shape, dtype, provider and users."""
    return [
        {"name": name.name, "shape": name.shape, "dtype": name.dtype, "from": name.provider, "used_by": [*name.users]}
        for name in trace(inputs, head).names
    ]


def names_table(inputs: Sequence[Input], head: Stages) -> str:
    """Return a table of all names with shape, dtype, provider and users."""
    rows = [("name", "shape", "dtype", "from", "used by")]
    for name in explained_names(inputs, head):
        rows.append((*(name[key] for key in rows[0][:-1]), ", ".join(name["used_by"]) or "-"))
    note = "x and dim are listed once for each stage that provides them."
    axes = "B batch, T source time, N target time, D width, C characters, F numbers, L labels, K beams, V tokens"
    return "\n".join([*text_table(rows), "", note, axes])


# The flow of names through the stages of a pipeline, read from signatures only, and every missing name.


@dataclass
class ProvidedName:
    """A name that one stage provides, and its users."""

    name: str
    provider: str
    shape: str
    dtype: str
    users: list[str] = field(default_factory=list)


@dataclass
class Trace:
    """The names in the order of their creation (x may occur several times), and the problems of the stages."""

    names: list[ProvidedName] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    without_x: list[str] = field(default_factory=list)  # names of the inputs that heads read and that have no x
    # Keys of the stages that ask for a missing x: one problem per stage, not one per method.
    lacking_x: set[str] = field(default_factory=set)

    def error(self, stage: Component, message: str) -> None:
        self.problems.append(stage.problem(f"{contract.describe(stage)}: {message}"))

    @contextlib.contextmanager
    def reporting(self, stage: Component) -> Iterator[None]:
        """Report an error about the declarations of a stage as a problem; the rest of the block is left out."""
        try:
            yield
        except PluginError as error:
            self.problems.append(stage.problem(str(error)))


@dataclass
class Scope:
    """The names that are available at one position of the pipeline."""

    trace: Trace  # receives every name, and the problems of stages that ask for others
    available: dict[str, ProvidedName] = field(default_factory=dict)  # to the methods of a stage
    wired: dict[str, ProvidedName] = field(default_factory=dict)  # into its constructor

    def give(self, name: str, provider: str, stated: tuple[str, str] | None = None) -> None:
        shape, dtype = stated or SHAPES.get(name, ("as returned", "as returned"))
        self.available[name] = ProvidedName(name, provider, shape, dtype)
        self.trace.names.append(self.available[name])
        if name == "x":
            self.wire("dim", provider)

    def wire(self, name: str, provider: str) -> None:
        self.wired[name] = ProvidedName(name, provider, *SHAPES[f"{name}()" if f"{name}()" in SHAPES else name])
        self.trace.names.append(self.wired[name])

    def construct(self, stage: Component) -> None:
        """Check that all positional parameters of a constructor are available."""
        try:
            names = wired(stage.cls)
        except PluginError as error:
            self.trace.error(stage, str(error))
            return
        for name in names:
            if name in self.wired:
                self.wired[name].users.append(f"{stage.key}()")
            elif name not in optional_names(stage.cls):
                self.trace.lacking_x |= {stage.key} if name == "dim" else set()
                self.trace.error(stage, f"its constructor asks for {name!r}, and {_FIXES[name]}")
        if stage.common_keys.get("target_tokenizer") is not None and "target_vocabulary" not in names:
            self.trace.error(stage, "its constructor takes no target vocabulary; delete `target_tokenizer`")

    def method(self, stage: Component, method: str) -> None:
        """Check that a stage has the method, and that all its inputs are available."""
        function = contract.member(stage.cls, method)
        # A module without a `forward` inherits one of this name from nn.Module.
        if function is None or (inspect.isfunction(function) and function.__name__ == "_forward_unimplemented"):
            if method not in ("score", "margin", "explain", "measures"):
                self.trace.error(stage, f"its class has no `{method}`, which every {stage.kind} needs")
            return
        try:
            names, options = method_names(function)
        except (PluginError, ValueError, TypeError) as error:
            self.trace.error(stage, str(error))
            return
        if options and method != "decide":
            message = f"`{method}` has an option {options[0]!r} after the '*'; only `decide` has options"
            self.trace.error(stage, message)
        for name in names:
            if name == "sources" and self.trace.without_x:
                source = f" {self.trace.without_x[0]!r}" if self.trace.without_x[0] else ""
                message = f"`{method}` asks for the x of every source, and{source} has none; add an embedding"
                self.trace.error(stage, message)
            elif name in self.available:
                self.available[name].users.append(f"{stage.key}.{method}")
            elif name not in optional_names(function) and (name != "x" or stage.key not in self.trace.lacking_x):
                self.trace.lacking_x |= {stage.key} if name == "x" else set()
                message = f"`{method}` asks for {name!r}, which nothing provides{self.suggest_fix(name)}"
                self.trace.error(stage, message)

    def suggest_fix(self, name: str) -> str:
        """Return the fix for a stage that requires a name which is not available."""
        known = [available for available in self.available if available != "sources"] or ["sources"]
        alternatives = f" (there is: {', '.join(known)})"
        if name == "x":
            return f"; add an embedding{alternatives}"
        if name in _PAIR_FEATURES:
            return "; make the tokenizer read two texts of a record, such as field: [text, text_pair]"
        if name in TARGETS:
            return f" here; targets are passed to `loss`, if the head's answer kind has them{alternatives}"
        return did_you_mean(name, self.available) + alternatives

    def returned_names(self, stage: Component) -> dict[str, tuple[str, str] | None]:
        """Return the names that a stage returns, with shape and dtype where it declares them."""
        returns = contract.member(stage.cls, "returns")
        if not isinstance(returns, (tuple, list, Mapping)) or not all(isinstance(name, str) for name in returns):
            message = f"its `returns` must be a tuple of names such as ('x', 'state'), not {returns!r}"
            self.trace.error(stage, message)
            return {"x": None}
        shapes = contract.stated_shapes(stage.cls)
        return {name: shapes.get(name) for name in contract.expected_outputs(stage.cls, self.available)}

    def declare(self, stages: Iterable[Component], source: Input) -> None:
        """Add the features that the stages of a source declare; two features cannot share a name."""
        declared: dict[str, tuple[Component, FeatureKind]] = {}
        for stage in stages:
            features: Mapping[str, FeatureKind] = {}
            with self.trace.reporting(stage):
                features = contract.declared_features(stage)
            for name, feature in features.items():
                first, same = declared.setdefault(name, (stage, feature))
                if name in _PROVIDED:
                    message = f"feature {name!r} has a name that seqpipe itself provides; rename it"
                    self.trace.error(stage, message)
                elif same != feature:
                    message = f"feature {name!r} is {feature!r} here and {same!r} in {first.key} ({first.use!r})"
                    message = f"{message}; a name has one meaning in a pipeline: rename one of them"
                    self.trace.error(stage, message)
                elif message := feature.mismatch(source.tokenizer is not None, source.name):
                    self.trace.error(stage, message)
                elif first is stage:
                    self.give(name, f"data (feature of {stage.key})", stated=(feature.shape, feature.dtype))


def trace(inputs: Sequence[Input], heads: Stages) -> Trace:
    """Trace the names through the stages in the order of a batch."""
    trace = Trace()
    arrays = [_arrays(head, trace) for head in heads]
    joining = [bool(declared.task and declared.task.joins_sources) for declared in arrays]
    read = contract.read_by_heads(inputs)
    scopes: dict[str, Scope] = {}  # by source, the names after its stages
    for source in contract.run_order(inputs):
        scope = scopes[source.name] = Scope(trace)
        _give_data(scope, source, heads if len(inputs) == 1 else ())
        if source is inputs[0]:
            _check_corruption(scope, source, heads, alone=len(inputs) == len(heads) == 1)
        if len(heads) == 1:  # each of several heads has its own labels, so no earlier stage can have any
            _wire_answer(scope, heads[0], arrays[0])
        if name := contract.state_source(source):
            if "x" in scopes[name].available:
                scope.give(SOURCE_STATE, f"input {name}")
            else:
                message = f"initial_state: the input {name!r} has no x, and therefore no state; add an embedding to it"
                waiting = (stage for stage in source.encoder if contract.declaration(stage, "state_source"))
                trace.error(next(waiting), message)
        _run_stages(scope, source)
        if "x" not in scope.available and source in read:
            trace.without_x.append(source.name)
    ends = " + ".join([source.stages[-1].key for source in read if source.stages]) or "data"
    scope = scopes[inputs[0].name]
    if len(inputs) > 1:
        for head in heads:  # a feature belongs to one source
            with trace.reporting(head):
                if names := ", ".join(contract.declared_features(head)):
                    trace.error(head, f"it declares {names}, which a head of several inputs cannot have; use one input")
        if len(read) > 1:
            scope = _join_scopes(scope, read, heads[0]) if any(joining) else Scope(trace)
    scope.give("sources", ends)
    scope.wire("sources", ends)
    if any(map(contract.is_language_model_head, heads)):
        for stage, message in language_model_problems(inputs, heads):
            trace.error(stage, message)
        scope.give("incremental", ends)
    for stage, message in candidate_problems(inputs, heads):
        trace.error(stage, message)
    for head, declared, is_joining in zip(heads, arrays, joining, strict=True):
        if len(inputs) > 1 and not (is_joining or _reads_several(head, len(read), trace)):
            continue
        if len(heads) > 1 or len(inputs) > 1:
            _wire_answer(scope, head, declared)
        scope.construct(head)
        _check_head(scope, head, declared)
    if not trace.problems:
        for stage, message in (*leak_problems(inputs, heads), *row_problems(inputs[0], heads)):
            trace.error(stage, message)
    if not trace.problems and len(inputs) == 1 and inputs[0].encoder:
        last = inputs[0].encoder[-1]
        if not any(name.users for name in trace.names if name.provider == last.key and name.name != "dim"):
            names = ", ".join(contract.expected_outputs(last.cls, ()))
            trace.error(last, f"head {heads[0].use!r} reads none of what it returns ({names}); delete it")
    return trace


def _arrays(head: Component, trace: Trace) -> HeadArrays:
    """Return the arrays of a head's answer kind; record a problem and return the defaults if it declares no kind."""
    with trace.reporting(head):
        return contract.head_arrays(head)
    return HeadArrays()


def _give_data(scope: Scope, source: Input, heads: Stages) -> None:
    """Add the names that a source's data provide, for heads as well if there is no other source."""
    if source.tokenizer is not None:
        scope.give("ids", "data")
        scope.wire("vocabulary", "tokenizer")
    scope.give("mask", "data")
    if source.pairs:
        for name, feature in _PAIR_FEATURES.items():
            scope.give(name, "data", stated=(feature.shape, feature.dtype))
    scope.wire("sizes", "features")
    scope.declare([*source.stages, *heads], source)


def _run_stages(scope: Scope, source: Input) -> None:
    """Trace the names through the embeddings and encoders of a source."""
    for stage in source.embedding:
        scope.construct(stage)
        scope.method(stage, "forward")
    if source.embedding:
        scope.give("x", " + ".join([stage.key for stage in source.embedding]))
    for stage in source.embedding:
        for name, stated in scope.returned_names(stage).items():
            if name != "x":
                scope.give(name, stage.key, stated)
    for stage in source.encoder:
        scope.construct(stage)
        scope.method(stage, "forward")
        returned = scope.returned_names(stage)
        for name in contract.invalidated_names(returned):
            scope.available.pop(name, None)
        for name, stated in returned.items():
            scope.give(name, stage.key, stated)


def _check_corruption(scope: Scope, source: Input, heads: Stages, alone: bool) -> None:
    """Check heads that corrupt the batch before the first stage; the scope holds the names of the data."""
    for head in heads:
        with scope.trace.reporting(head):
            for stage, message in corruption_problems(head, source, alone):
                scope.trace.error(stage, message)
        if alone and _corrupted_names(head) and contract.has_member(head.cls, "corrupt_batch"):
            scope.method(head, "corrupt_batch")


def _corrupted_names(head: Component) -> tuple[str, ...]:
    """Return the names that a head's `corrupt_batch` returns; () if it is undeclared, which is reported elsewhere."""
    try:
        return contract.declared_corrupted_inputs(head)
    except PluginError:
        return ()


def _join_scopes(first: Scope, inputs: Sequence[Input], head: Component) -> Scope:
    """Return the scope of the first of several sources, whose x holds the vectors of the others as well."""
    trace = first.trace
    if inputs[0].tokenizer is None:
        trace.error(head, f"it answers for the words of the first input, and {inputs[0].name!r} is not a text")
    elif trace.without_x:
        trace.error(head, f"it reads the x of every input, and {trace.without_x[0]!r} has none; add an embedding")
    scope = Scope(trace, dict(first.available))
    scope.give("x", " + ".join([source.stages[-1].key for source in inputs if source.stages]))
    return scope


def _reads_several(head: Component, count: int, trace: Trace) -> bool:
    """Return whether a head supports this number of inputs; record a problem if not."""
    try:
        several = "sources" in wired(head.cls)
        if count == 1 and not several:
            subject = contract.task_class(head).declared_subject(contract.answer_settings(head))
            several = not contract.is_self_supervised(head) and subject == WHOLE_TEXT
    except PluginError as error:
        trace.error(head, str(error))
        return False
    if not several:
        trace.error(head, "it supports one input only; use a head of tags or spans, or one with a `sources` argument")
    return several


def _wire_answer(scope: Scope, head: Component, arrays: HeadArrays) -> None:
    """Wire the constructor arguments of a head's answer kind and target tokenizer, in place of another head's."""
    for name in ("labels", "target_vocabulary"):
        scope.wired.pop(name, None)
    if arrays.task is None or arrays.task.has_labels:
        scope.wire("labels", f"data (target of {head.key})")
    if head.common_keys.get("target_tokenizer") is not None or contract.is_self_supervised(head):
        scope.wire("target_vocabulary", f"{head.key}.target_tokenizer")


def _check_head(scope: Scope, head: Component, arrays: HeadArrays) -> None:
    """Check a head's methods: only `loss` gets targets, and `score` and similar methods get the outputs of `decide`."""
    trace = scope.trace
    scope.method(head, "decide")
    try:
        for name in [name for name in contract.decode_options(head.cls) if name in scope.available]:
            trace.error(head, f"decode option {name!r} has a name that seqpipe itself provides; rename it")
    except (PluginError, ValueError, TypeError) as error:
        trace.error(head, str(error))
    targets: Mapping[str, Array | None] = arrays.targets
    provider = f"data (target of {head.key})"
    if contract.is_self_supervised(head):
        if arrays.task and not arrays.task.may_self_supervise:
            names = ", ".join(name for name, task in TASKS.items() if task.may_self_supervise)
            message = f"a self-supervised head answers with {names}, not with {arrays.task.kind_type.kind}"
            trace.error(head, f"{message}: no record has the right answer")
        if head.common_keys.get("target") is not None:
            trace.error(head, "it learns from the text itself; delete `target`")
        targets = {name: arrays.targets.get(name) for name in _corrupted_names(head)}
        provider = f"{head.key}.corrupt_batch"
    decided, others = arrays.decided, {f"other_{name}": array for name, array in arrays.decided.items()}
    decision_provider = f"{head.key}.decide"
    for methods, tensors, source in (
        (("loss", "measures"), targets, provider),
        *([(("evidence",), targets, provider)] if contract.dev_option(head) else []),
        (("score",), decided, decision_provider),
        (("explain",), decided, decision_provider),
        (("margin",), {**decided, **others}, decision_provider),
    ):
        method_scope = Scope(trace, dict(scope.available), scope.wired)
        for name, array in tensors.items():
            method_scope.give(name, source, stated=None if array is None else (array.shape, array.dtype))
        for method in methods:
            method_scope.method(head, method)
    metrics = contract.member(head.cls, "metrics")
    if metrics is not None and not (callable(metrics) and method_names(metrics)[0] == _METRICS_NAMES):
        trace.error(head, f"`metrics` must be a static method of {', '.join(_METRICS_NAMES)}, which returns a dict")
    trace.names = [name for name in trace.names if name.users or name.provider != decision_provider]


# The checks of encoders whose initial state is the final state of another source.


def source_state_problems(inputs: Sequence[Input]) -> Iterator[tuple[Component, str]]:
    """Yield the reasons why an encoder cannot start from the state of another source, each with its stage."""
    names, is_sound = [source.name for source in inputs], True
    starts = {
        source.name: [
            (stage, name) for stage in source.encoder if (name := contract.declaration(stage, "state_source"))
        ]
        for source in inputs
    }
    for source, stages in starts.items():
        for stage, name in stages:
            if message := _state_problem(source, name, names, stages[0][1]):
                is_sound = False
                yield stage, message
    if not is_sound:
        return
    ordered = [source.name for source in contract.run_order(inputs)]
    for source in names:
        if source not in ordered:
            stage, name = starts[source][0]
            message = f"it starts from the state of {name!r}, which depends on itself in a cycle of initial states"
            yield stage, f"{message}; change `initial_state` of one of the inputs in it"
    if len(ordered) == len(names) and inputs[0] not in contract.read_by_heads(inputs):
        stage, name = next(start for input_starts in starts.values() for start in input_starts if start[1] == names[0])
        yield stage, f"it starts from {name!r}, which no head reads, so it cannot be the first input; list it later"


def _state_problem(source: str, name: str, names: Sequence[str], first: str) -> str:
    if name == source:
        return f"it cannot start from the state of its own source {name!r}; name another input"
    if not source:
        fix = "write inputs: {NAME: {field: …}, …}"
        return f"it starts from the state of another input, {name!r}, but there is only one input; {fix}"
    if name not in names:
        others = ", ".join(known for known in names if known != source)
        message = f"it starts from the state of input {name!r}, which does not exist"
        return f"{message}{did_you_mean(name, names)} (there is: {others})"
    if name != first:
        return f"it starts from the state of {name!r}, an earlier encoder from that of {first!r}; use the same for both"
    return ""
