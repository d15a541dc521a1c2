"""A component that a YAML names, and the inputs of a pipeline that components make up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqpipe.config.plugins import Offer
from seqpipe.errors import ConfigError, PluginError, Problem, SeqpipeError, UsageError


@dataclass(frozen=True)
class Component:
    """One component of a YAML: its class, its options with every default, its common keys and its place.

    `common_keys` holds those of its kind (name, field, target, weight, init, freeze, lr), defaults included; `init` is
    the absolute path of a run or None, a head's `target_tokenizer` is a Component, "same" or None.
    """

    kind: str
    use: str
    options: Mapping[str, Any]
    common_keys: Mapping[str, Any]
    offer: Offer
    cls: type
    file: str = field(compare=False)
    line: int = field(compare=False)
    column: int = field(compare=False)
    key: str = field(compare=False)

    @property
    def name(self) -> str:
        """What it is called among several: the common key `name`, else its `use`."""
        return self.common_keys.get("name") or self.offer.name

    @property
    def pairs(self) -> bool:
        """Whether a tokenizer reads two texts of a record."""
        return isinstance(self.common_keys.get("field"), tuple)

    def problem(self, message: str) -> Problem:
        return Problem(self.file, self.line, self.column, self.key, message)


@dataclass(frozen=True)
class Input:
    """One input of a pipeline and the stages that read it; `name` is empty where the YAML names none.

    Without a tokenizer its `field` holds numbers.
    """

    name: str
    field: str | None
    tokenizer: Component | None
    embedding: tuple[Component, ...]
    encoder: tuple[Component, ...]

    @property
    def stages(self) -> tuple[Component, ...]:
        return (*self.embedding, *self.encoder)

    @property
    def pairs(self) -> bool:
        """Whether its tokenizer reads two texts of a record."""
        return self.tokenizer is not None and self.tokenizer.pairs


def by_source(inputs: Sequence[Input]) -> dict[str, Input]:
    """The inputs by the prefix of their features: "" for a single input, else the input's name."""
    if len(inputs) == 1:
        return {"": inputs[0]}
    return {source.name: source for source in inputs}


def describe(component: Component) -> str:
    """The component as errors name it: kind, `use` and distribution."""
    return f"{component.kind} {component.use!r} of {component.offer.distribution}"


def build_component(component: Component, *wired: Any) -> Any:
    """Construct the component from what is wired in and its options.

    Raises:
        ConfigError: if the constructor refuses its options by a UsageError: reported at the component's place.
        PluginError: if it raises anything else that is not seqpipe's own.
    """
    try:
        return component.cls(*wired, **component.options)
    except UsageError as error:
        raise ConfigError([component.problem(f"{describe(component)}: {error}")]) from error
    except (SeqpipeError, MemoryError):
        raise
    except Exception as error:  # a plugin may raise anything at all
        message = f"its constructor raised {type(error).__name__}: {error} (--debug shows where)"
        raise PluginError(f"{component.key}: {describe(component)}: {message}") from error
