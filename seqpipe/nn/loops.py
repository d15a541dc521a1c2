"""Loops and conditions over functions: plain Python in training and evaluation, ONNX Loop, Scan and If in export.

In export an `Exporter` records the loop (`exported_by`). Under a `torch.export` of somebody else's the loop is one of
PyTorch's own operators, whose state keeps its shapes. Rules for a step, which is traced, then run at any length:

- it keeps the number of tensors of the state, their dtypes and their numbers of axes;
- in a `while_loop` axes may grow and shrink: `torch.cat([cache, new], 2)` from a cache of length 0, or
  `x.index_select(0, rows)` with rows from `nonzero`. Axes of the same size at first and after a step change alike. In a
  `scan` the state keeps its shapes;
- it takes sizes from tensors, closed over or in the state (`x.shape[1]`), not from numbers closed over;
- it branches by `torch.where` or `run_if`, and `loop_condition` joins its conditions by `&`, `|` and `~`;
- it picks position t by `x.index_select(0, t[None])`: `x[t]` would ask for the value of t;
- it may close over parameters and other tensors, not over a view of one of them (`weight.T`; `F.linear` is fine);
- a loop may stand in the step of another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["State", "run_if", "scan", "while_loop"]

State = tuple[Tensor, ...]
RowStep = Callable[[State, State], tuple[State, State]]


class Exporter(Protocol):
    """Records loops; its methods take and return what the functions of this module do."""

    def while_loop(self, loop_condition: Callable[..., Tensor], step: Callable[..., State], state: State) -> State: ...

    def scan(self, step: RowStep, state: State, xs: State, reverse: bool) -> tuple[State, State]: ...

    def run_if(self, condition: Tensor, function: Callable[[], State], otherwise: State) -> State: ...


_exporter: ContextVar[Exporter | None] = ContextVar("exporter", default=None)


@contextlib.contextmanager
def exported_by(exporter: Exporter) -> Iterator[None]:
    """Record loops with this exporter inside the block."""
    token = _exporter.set(exporter)
    try:
        yield
    finally:
        _exporter.reset(token)


def while_loop(loop_condition: Callable[..., Tensor], step: Callable[..., State], state: State) -> State:
    """Repeat `state = step(*state)` while `loop_condition(*state)`, a scalar bool, is true; return the last state."""
    if (exporter := _exporter.get()) is not None:
        return exporter.while_loop(loop_condition, step, state)
    if torch.compiler.is_exporting():
        from seqpipe.nn.torch_internals import exported_while_loop  # it loads the exporter, which takes a second

        return tuple(exported_while_loop(loop_condition, lambda *now: _fresh(step(*now)), _fresh(state)))
    while loop_condition(*state):
        state = step(*state)
    return state


def scan(step: RowStep, state: State, xs: State, reverse: bool = False) -> tuple[State, State]:
    """Run `state, ys[t] = step(state, xs[t])` for every t of the first axis; return the last state and ys.

    `reverse` walks from the last t to the first; ys stand at the t they were made at either way.
    """
    if (exporter := _exporter.get()) is not None:
        return exporter.scan(step, state, xs, reverse)
    if torch.compiler.is_exporting():
        from seqpipe.nn.torch_internals import exported_scan

        def fresh_step(now: State, rows: State) -> tuple[State, State]:
            after, outputs = step(now, rows)
            return _fresh(after), _fresh(outputs)

        last, ys = exported_scan(fresh_step, _fresh(state), _fresh(xs), dim=0, reverse=reverse)
        return tuple(last), tuple(ys)
    steps = list(zip(*(x.unbind() for x in xs), strict=True))  # `x[t]` would make a gradient of x's size at every t
    outputs: list[State] = []
    for rows in reversed(steps) if reverse else steps:
        state, row = step(state, rows)
        outputs.append(row)
    return state, tuple(torch.stack(column) for column in zip(*(outputs[::-1] if reverse else outputs), strict=True))


def run_if(condition: Tensor, function: Callable[[], State], otherwise: State) -> State:
    """Return `function()` if the condition, a scalar bool, is true, else the tensors `otherwise`.

    A graph computes the function only then. Axes of its results may differ from those of `otherwise`.
    """
    if (exporter := _exporter.get()) is not None:
        return exporter.run_if(condition, function, otherwise)
    if torch.compiler.is_exporting():

        def step(left: Tensor, *_: Tensor) -> State:
            return (left & False, *function())

        return while_loop(lambda left, *_: left & True, step, (condition, *otherwise))[1:]
    return function() if condition else otherwise


def _fresh(tensors: State) -> State:
    """Copy tensors: the operators accept neither a tensor twice nor views as state. ONNX has no such copies."""
    return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors)
