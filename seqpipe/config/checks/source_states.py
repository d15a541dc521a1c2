"""The checks of encoders that start from the state of another source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.config.component import Component, Input
from seqpipe.config.contract import declaration, read_by_heads, run_order
from seqpipe.errors import nearest

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
        return f"{message}{nearest(name, names)} (there is: {others})"
    return ""


def _unlike(first: str, name: str) -> str:
    if name == first:
        return ""
    return f"it starts from the state of {name!r}, and an encoder before it from that of {first!r}; name the same"
