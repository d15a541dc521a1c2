"""Component classes in, every name that nothing provides out: who gives and who asks for what, read from signatures alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqpipe.errors import PluginError, Problem, nearest
from seqpipe.plugins import Offer
from seqpipe.signature import decode_options, method_names, wired


@dataclass(frozen=True)
class Component:
    """One component that a YAML names: its class, its options with every default, its frame keys, and where it stands.

    `frame` holds the frame keys that its kind has (name, field, target, weight, init, freeze, lr), with their defaults;
    a head's `target_tokenizer` is a Component, "same" or None.
    """

    kind: str
    use: str
    options: Mapping[str, Any]
    frame: Mapping[str, Any]
    offer: Offer
    cls: type
    file: str = field(compare=False)
    line: int = field(compare=False)
    column: int = field(compare=False)
    key: str = field(compare=False)

    def problem(self, message: str) -> Problem:
        return Problem(self.file, self.line, self.column, self.key, message)


@dataclass(frozen=True)
class Answer:
    """What the frame gives to a head's `loss` for an answer kind, and what its `decide` returns."""

    targets: tuple[str, ...]
    decided: tuple[str, ...]
    has_labels: bool


_TAGS = Answer(("tags",), ("tags", "scores", "opens", "closes", "paths", "path_scores"), True)
ANSWERS: Mapping[str, Answer] = {
    "tags": _TAGS,
    "spans": _TAGS,
    "label": Answer((), (), True),
    "labels": Answer((), (), True),
    "score": Answer((), (), False),
    "text": Answer(("target_ids", "target_mask"), ("tokens", "scores"), False),
    "pointers": Answer((), (), False),
    "vector": Answer((), (), False),
}

_SHAPES: Mapping[str, tuple[str, str]] = {
    "ids": ("(B, T)", "int64"),
    "mask": ("(B, T)", "bool"),
    "x": ("(B, T, D)", "float32"),
    "chars": ("(B, T, C)", "int64"),
    "target_ids": ("(B, N)", "int64"),
    "target_mask": ("(B, N)", "bool"),
    "tags": ("(B, T)", "int64"),
    "scores": ("(B, T)", "float32"),
    "opens": ("(B, T)", "float32"),
    "closes": ("(B, T)", "float32"),
    "paths": ("(B, K, T)", "int64"),
    "path_scores": ("(B, K)", "float32"),
    "tokens": ("(B, K, N)", "int64"),
    "dim": ("", "int"),
    "vocabulary": ("V", "text"),
    "target_vocabulary": ("V", "text"),
    "labels": ("L", "text"),
    "sizes": ("", "name: int"),
}


@dataclass
class _Name:
    """A name as one stage provides it, and all who ask for that."""

    name: str
    provider: str
    shape: str
    dtype: str
    users: list[str] = field(default_factory=list)


def problems(embedding: Sequence[Component], encoder: Sequence[Component], head: Sequence[Component]) -> list[Problem]:
    """Every name that a stage asks for and nothing provides, and every stage that is none, at the component's place."""
    return _Trace(embedding, encoder, head).problems


def explain(embedding: Sequence[Component], encoder: Sequence[Component], head: Sequence[Component]) -> str:
    """A table of every name: its shape and dtype, who provides it, who uses it."""
    rows = [("name", "shape", "dtype", "from", "used by")]
    for name in _Trace(embedding, encoder, head).names:
        rows.append((name.name, name.shape, name.dtype, name.provider, ", ".join(name.users) or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", "B batch, T source time, N target time, D width, C characters, L labels, K beams, V vocabulary"])


def answer_kind(head: Component) -> str:
    """The head's answer kind, which may depend on its options; PluginError if it is none of the closed set."""
    answer = getattr(head.cls, "answer", None)
    if callable(answer):
        try:
            answer = answer(dict(head.options))
        except Exception as error:  # a plugin may raise anything at all
            raise PluginError(f"{_who(head)} cannot tell its answer kind: {type(error).__name__}: {error}") from error
    if not isinstance(answer, str) or answer not in ANSWERS:
        said = f"its class has answer = {answer!r}{nearest(str(answer), ANSWERS)}" if answer is not None else "its class has no `answer`"
        raise PluginError(f"{_who(head)}: {said}; an answer kind is one of {', '.join(ANSWERS)}")
    return answer


def _who(component: Component) -> str:
    return f"{component.kind} {component.use!r} of {component.offer.distribution}"


class _Trace:
    """Goes through the stages once, forward, as a batch would."""

    def __init__(self, embedding: Sequence[Component], encoder: Sequence[Component], head: Sequence[Component]):
        self.problems: list[Problem] = []
        self.names: list[_Name] = []  # in the order in which they come to be; x may be there several times
        self.given: dict[str, _Name] = {}  # what a stage sees now
        self.wired: dict[str, _Name] = {}
        for name in ("ids", "mask"):
            self.give(name, "data")
        self.declare([*embedding, *encoder, *head])
        self.wire("vocabulary", "tokenizer")
        self.wire("sizes", "features")
        self.prepare(head)
        for stage in embedding:
            self.construct(stage)
            self.method(stage, "forward", self.given)
        if embedding:
            self.give("x", " + ".join(stage.key for stage in embedding))
            self.wire("dim", self.given["x"].provider)
        for stage in encoder:
            self.construct(stage)
            self.method(stage, "forward", self.given)
            for name in self.returned(stage):
                self.give(name, stage.key)
            if "x" in self.returned(stage):
                self.wire("dim", stage.key)
        for stage in head:
            self.construct(stage)
            self.decide(stage)

    def give(self, name: str, provider: str, kind: str = "") -> None:
        shape, dtype = _SHAPES.get(kind or name, ("as returned", "as returned"))
        self.given[name] = _Name(name, provider, shape, dtype)
        self.names.append(self.given[name])

    def wire(self, name: str, provider: str) -> None:
        self.wired[name] = _Name(name, provider, *_SHAPES[name])
        self.names.append(self.wired[name])

    def complain(self, stage: Component, message: str) -> None:
        self.problems.append(stage.problem(message))

    def declare(self, stages: Iterable[Component]) -> None:
        """The features that the stages declare; one name means one feature."""
        declared: dict[str, tuple[Component, object]] = {}
        taken = {"ids", "mask", "x", *(name for answer in ANSWERS.values() for name in (*answer.targets, *answer.decided))}
        for stage in stages:
            features = getattr(stage.cls, "features", {})
            if not isinstance(features, Mapping):
                self.complain(stage, f"{_who(stage)}: its `features` must be a dict from names to features, not {type(features).__name__}")
                continue
            for name, feature in features.items():
                if name in taken:
                    self.complain(stage, f"{_who(stage)} declares a feature {name!r}, a name of the frame's own; it needs another name")
                elif name not in declared:
                    declared[name] = (stage, feature)
                    self.give(name, f"data (feature of {stage.key})", str(getattr(feature, "kind", name)))
                elif declared[name][1] != feature:
                    other, first = declared[name]
                    message = f"declares feature {name!r} as {feature!r}, but {other.key} ({other.use}) declares it as {first!r}"
                    self.complain(stage, f"{_who(stage)} {message}; a name means one feature in a pipeline: leave one of the two out")

    def prepare(self, heads: Sequence[Component]) -> None:
        """What the heads' answer kinds and target tokenizers provide to constructors."""
        self.answers: dict[str, Answer] = {}
        for head in heads:
            try:
                self.answers[head.key] = ANSWERS[answer_kind(head)]
                asked = wired(head.cls)
            except PluginError as error:
                self.complain(head, str(error))
                continue
            if self.answers[head.key].has_labels:
                self.wire("labels", f"data (target of {head.key})")
            if head.frame.get("target_tokenizer") is not None:
                self.wire("target_vocabulary", f"{head.key}.target_tokenizer")
                if "target_vocabulary" not in asked:
                    self.complain(head, f"{_who(head)} writes no text, so `target_tokenizer` has no use here; delete it")

    def construct(self, stage: Component) -> None:
        try:
            asked = wired(stage.cls)
        except PluginError as error:
            if str(error) not in [problem.message for problem in self.problems]:
                self.complain(stage, str(error))
            return
        for name in asked:
            if name in self.wired:
                self.wired[name].users.append(f"{stage.key}()")
            else:
                self.complain(stage, f"{_who(stage)} is built from {name!r}; {_CURES[name]}")

    def method(self, stage: Component, method: str, given: Mapping[str, _Name], *, options: bool = False, must: bool = True) -> None:
        """Checks what one method of a stage asks for."""
        function = getattr(stage.cls, method, None)
        if function is None or getattr(function, "__name__", "") == "_forward_unimplemented":
            if must:
                self.complain(stage, f"{_who(stage)}: its class has no `{method}`, which every {stage.kind} needs")
            return
        try:
            asked, keywords = method_names(function)
        except (PluginError, ValueError, TypeError) as error:
            self.complain(stage, f"{_who(stage)}: {error}")
            return
        if keywords and not options:
            text = f"`{method}` has the keyword-only parameter {keywords[0]!r}; only `decide` has options"
            self.complain(stage, f"{_who(stage)}: {text}, what a stage asks for comes by position")
        for name in asked:
            if name in given:
                given[name].users.append(f"{stage.key}.{method}")
            else:
                self.complain(stage, f"{_who(stage)}: `{method}` asks for {name!r}, which nothing provides{self.cure(name, given)}")

    def cure(self, name: str, given: Mapping[str, _Name]) -> str:
        if name == "x":
            return f"; add an embedding (there is: {', '.join(given)})"
        if any(name in answer.targets for answer in ANSWERS.values()):
            return f" here; a target is there in `loss` alone, if the head's answer kind has it (there is: {', '.join(given)})"
        return f"{nearest(name, given)} (there is: {', '.join(given)})"

    def returned(self, stage: Component) -> tuple[str, ...]:
        returns = getattr(stage.cls, "returns", ("x",))
        if isinstance(returns, (tuple, list)) and all(isinstance(name, str) for name in returns):
            return tuple(returns)
        message = f"{_who(stage)}: its `returns` must be a tuple of names such as ('x', 'state'), not {returns!r}"
        if message not in [problem.message for problem in self.problems]:
            self.complain(stage, message)
        return ("x",)

    def decide(self, head: Component) -> None:
        """A head's three methods: targets are there in `loss`, what `decide` returns is there in `score`."""
        answer = self.answers.get(head.key, Answer((), (), False))
        self.method(head, "decide", self.given, options=True)
        try:
            for name in decode_options(head.cls):
                if name in self.given:
                    self.complain(head, f"{_who(head)}: decode option {name!r} has the name of something the frame gives; it needs another")
        except (PluginError, ValueError, TypeError) as error:
            self.complain(head, str(error))
        before = dict(self.given)
        for name in answer.targets:
            self.give(name, f"data (target of {head.key})")
        if head.key in self.answers or not answer.targets:
            self.method(head, "loss", self.given)
        self.given = before
        asked = _asked(head.cls, "score")
        for name in answer.decided:
            if name in asked:
                self.give(name, f"{head.key}.decide")
        self.method(head, "score", self.given | {n: _Name(n, "", "", "") for n in answer.decided if n not in self.given}, must=False)


def _asked(cls: type, method: str) -> tuple[str, ...]:
    try:
        return method_names(getattr(cls, method))[0]
    except (AttributeError, PluginError, ValueError, TypeError):
        return ()


_CURES: Mapping[str, str] = {
    "dim": "there is no x yet whose width that could be: add an embedding, or an encoder that asks for ids",
    "vocabulary": "there is none",
    "sizes": "there are none",
    "labels": "the head's answer kind has none; use a head that gives labels",
    "target_vocabulary": "add `target_tokenizer: {use: …}` to the head, or `target_tokenizer: same`",
    "sources": "a pipeline has one input as yet, so there are none",
}
