"""The stages of a source: built from their components, called with the names they ask for, their errors reported."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqpipe.config.component import build_component, describe
from seqpipe.config.contract import expected_outputs, invalidated_names, member
from seqpipe.config.loader import Component
from seqpipe.config.signature import call
from seqpipe.errors import ConfigError, PluginError, SeqpipeError, UsageError

Names = dict[str, Any]
Stage = tuple[Component, nn.Module]


def build_stage(component: Component, wired: Names) -> nn.Module:
    """The module of a component, given what its constructor asks for by position."""
    parameters = list(inspect.signature(component.cls).parameters.values())
    module = build_component(component, *[wired[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY])
    if not isinstance(module, nn.Module):
        raise stage_error(component, "it is not a torch.nn.Module")
    return module


def width_of(component: Component, module: nn.Module) -> int:
    """The width of the x that an embedding or encoder states to return."""
    dim = member(module, "dim")
    if not isinstance(dim, int):
        raise stage_error(component, "it must state its width as `self.dim`, an int")
    return dim


def trace_source(stages: Sequence[Stage], names: Names) -> Iterator[tuple[Component, Names]]:
    """Run the stages of one source; yield each with what it returned, which is joined to the names on the way."""
    embedded: list[Tensor] = []
    count = sum(component.kind == "embedding" for component, _ in stages)
    for component, module in stages:
        outputs = _run_forward(component, module, names)
        yield component, outputs
        if component.kind == "embedding":
            embedded.append(outputs["x"])
            x = torch.cat(embedded, -1) if len(embedded) == count > 1 else outputs["x"]
            names |= {**{name: outputs[name] for name in expected_outputs(component.cls, names)}, "x": x}
        else:
            for name in invalidated_names(outputs):
                names.pop(name, None)
            names |= outputs


def _run_forward(component: Component, module: nn.Module, names: Names) -> Names:
    """What a stage returns, by name; PluginError if that is not what it stated."""
    returned = call_stage(component, module.forward, names)
    outputs: Names = returned if isinstance(returned, dict) else {"x": returned}
    for name in expected_outputs(component.cls, names):
        if not isinstance(outputs.get(name), Tensor):
            raise stage_error(component, f"`forward` returned no tensor {name!r}, which its `returns` states")
    if "x" in outputs and (outputs["x"].dim() != 3 or outputs["x"].shape[2] != module.dim):
        shape = tuple(outputs["x"].shape)
        raise stage_error(component, f"`forward` returned x of shape {shape}; (B, T, {module.dim}) was stated")
    return outputs


def call_stage(component: Component, method: Callable[..., Any], names: Names, **options: Any) -> Any:
    """Call a method of a stage with the names that its parameters ask for."""
    with errors_of(component, f"`{method.__name__}`"):
        return call(method, names, **options)


@contextlib.contextmanager
def errors_of(component: Component, what: str) -> Iterator[None]:
    """Report whatever a component raises as its own error: the boundary to plugin code."""
    try:
        yield
    except ConfigError:
        raise
    except UsageError as error:  # its options do not fit what it is given
        raise ConfigError([component.problem(f"{describe(component)}: {error}")]) from error
    except (SeqpipeError, MemoryError):
        raise
    except Exception as error:  # a plugin may raise anything at all
        message = f"{what} raised {type(error).__name__}: {error} (--debug shows where)"
        raise stage_error(component, message) from error


def stage_error(component: Component, message: str) -> PluginError:
    return PluginError(f"{component.key}: {describe(component)}: {message}")
