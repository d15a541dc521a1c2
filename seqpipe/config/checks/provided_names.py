"""The names that pass between the stages of a pipeline: which stage provides each, and which signature asks for it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seqpipe.config.component import Component, describe
from seqpipe.config.contract import expected_outputs, member
from seqpipe.config.head_answers import TARGETS
from seqpipe.config.names import SHAPES
from seqpipe.config.signature import method_names, optional_names, wired
from seqpipe.errors import PluginError, Problem, nearest
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
        return nearest(name, self.available) + there_is

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
