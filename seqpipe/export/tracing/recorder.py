"""Record each operator that a program runs, and its loops, as nodes of FX graphs."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode_temporarily

from seqpipe.export.tracing.frame import Frame
from seqpipe.export.tracing.onnx_registry import OnnxRegistry, converted, decompositions, is_recorded, promotions

aten = torch.ops.aten
_SAME = {aten.detach.default, aten.alias.default}  # another tensor with the same content
_METADATA = {*FunctionalTensor.metadata_fns}  # the size, device or layout of a tensor
_ASSERTIONS = {
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range_for_size.default,
}


class UntraceableError(RuntimeError):
    """The program does what the recorder cannot take down, such as writing into a part of a tensor."""


class Recorder(TorchDispatchMode):
    """Records each operator that runs under it in the graph of the innermost frame."""

    supports_higher_order_operators = True  # to refuse them in words

    def __init__(self, fake: FakeTensorMode, registry: OnnxRegistry):
        super().__init__()
        self.fake, self.registry = fake, registry
        self.frame = Frame()
        self.untraceable = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            raise self._untraceable(f"it calls {func}")
        if func in _METADATA or func in _ASSERTIONS:
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default:
            return self._constant(args[0])
        if func is aten.detach_.default:
            return args[0]
        if func in _SAME:
            out = func(*args, **kwargs)
            self.frame.bind(out, self.frame.node(args[0]))
            return out
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        if not is_recorded(func, self.registry):
            with self:
                decompose = next((table[func] for table in decompositions() if func in table), func.decompose)
                out = decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if (promoted := self._promoted(func, args, kwargs)) is not None:
            return promoted
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and self.frame.knows(out):
            return out  # the operator returned its input
        arguments, named = self.frame.arguments((args, kwargs))
        self.frame.bind(out, self.frame.call(func, arguments, named, out))
        return out

    def _promoted(self, func: OpOverload, args: Any, kwargs: Any) -> Tensor | None:
        """The result for arguments of several types, converted as PyTorch does; None where they have one type."""
        rule = promotions().get_rule(func.overloadpacket)
        if rule is None:
            return None
        types = rule.preview_type_promotion(args, kwargs)
        before = (*args, *kwargs.values())
        dtypes = (*map(types.args_dtypes.get, range(len(args))), *map(types.kwargs_dtypes.get, kwargs))
        with self:
            after = [*map(converted, before, dtypes)]
            if all(map(operator.is_, before, after)):
                return None
            out = func.overloadpacket(*after[: len(args)], **dict(zip(kwargs, after[len(args) :], strict=True)))
            return converted(out, types.out_dtype)

    def _constant(self, tensor: Tensor) -> Tensor:
        """The stand-in of a tensor that the program makes of Python numbers."""
        if isinstance(tensor, FakeTensor):
            return tensor
        stand_in = self.fake.from_tensor(tensor.clone(), static_shapes=True)
        self.frame.constant(tensor, stand_in)
        return stand_in

    def _in_place(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """`x += y` as `x + y`, which from then on is x; more than that is for `torch.export`."""
        name = func._schema.name.removeprefix("aten::")
        functional_name = re.sub(r"^__i(\w+)__$", r"__\1__", name).removesuffix("_" if name[-2:] != "__" else "")
        functional = getattr(getattr(aten, functional_name, None), func._overloadname, None)
        if functional is not None and functional_name != name:
            with self:
                result = converted(functional(*args, **kwargs), args[0].dtype)
            if self.frame.overwrite(args[0], self.frame.node(result)):
                return args[0]
        raise self._untraceable(f"{func} writes into a tensor that has other views or comes from outside")

    def _untraceable(self, reason: str) -> UntraceableError:
        self.untraceable = reason  # what a component raises may be wrapped on its way out
        return UntraceableError(reason)

    def while_loop(
        self, condition: Callable[..., Tensor], step: Callable[..., Sequence[Tensor]], state: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As `seqpipe.nn.loops.while_loop`."""
        test = self._traced(lambda *now: (condition(*now),), state)
        body = self._traced(step, state)
        _check_state(state, body)
        functions, lifted = self._functions("while_loop", cond=test, body=body)
        last = tuple(map(_like, state))
        arguments = (*functions, self.frame.arguments(tuple(state)), lifted)
        self.frame.bind(last, self.frame.call(torch.ops.higher_order.while_loop, arguments, {}, last))
        return last

    def scan(
        self,
        step: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]],
        state: Sequence[Tensor],
        xs: Sequence[Tensor],
        reverse: bool,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """As `seqpipe.nn.loops.scan`."""
        count = len(state)

        def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
            after, row = step(inputs[:count], inputs[count:])
            return (*after, *row)

        with _unrecorded():
            rows = [x[0] for x in xs]
        body = self._traced(flat, (*state, *rows))
        _check_state(state, body)
        functions, lifted = self._functions("scan", body=body)
        row_outputs = [node.meta["val"] for node in body.results[count:]]
        with _unrecorded():
            ys = [row.new_empty((xs[0].shape[0], *row.shape)) for row in row_outputs]
        outputs = (*map(_like, state), *ys)
        arguments = (*functions, *self.frame.arguments((list(state), list(xs))), lifted)
        node = self.frame.call(torch.ops.higher_order.scan, arguments, {"reverse": reverse}, outputs)
        self.frame.bind(outputs, node)
        return outputs[:count], outputs[count:]

    def _traced(self, function: Callable[..., Sequence[Tensor]], like: Sequence[Tensor]) -> Frame:
        """The graph of a function of tensors like these, in a frame of its own."""
        self.frame = frame = Frame(self.frame)
        try:
            inputs = [*map(_like, like)]
            for tensor in inputs:
                frame.bind(tensor, frame.add_input("state", tensor))
            for tensor in function(*inputs):
                node = frame.node(tensor)
                if node.op != "call_function" or node in frame.results:  # each output of a body has a node of its own
                    node = frame.node(tensor.clone())
                frame.results.append(node)
            frame.graph.output(tuple(frame.results))
        finally:
            assert frame.outer is not None
            self.frame = frame.outer
        return frame

    def _functions(self, name: str, **frames: Frame) -> tuple[list[Any], tuple[Any, ...]]:
        """Nodes that refer to a loop's graphs, and what these read from outside: all of them take the same."""
        lifted: dict[Any, Any] = {}
        for frame in frames.values():
            lifted |= frame.lifted
        for frame in frames.values():
            frame.close(lifted)
        functions = [self.frame.submodule(f"{name}_{part}", frame) for part, frame in frames.items()]
        return functions, self.frame.arguments(tuple(value for value, _ in lifted.values()))


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    """Inside it operators run on fake tensors and leave no node."""
    modes = _get_current_dispatch_mode_stack()
    with _pop_mode_temporarily() if modes and isinstance(modes[-1], Recorder) else contextlib.nullcontext():
        yield


def _like(tensor: Tensor) -> Tensor:
    """Another fake tensor of this shape and type."""
    with _unrecorded():
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _check_state(state: Sequence[Tensor], body: Frame) -> None:
    """Raise if a step returns another type or number of axes than it was given, or another fixed size."""
    if len(body.results) < len(state):
        raise RuntimeError(f"a loop's step must return its {len(state)} tensors of state, not {len(body.results)}")
    for number, (before, node) in enumerate(zip(state, body.results, strict=False)):  # behind a scan's stand its rows
        after = node.meta["val"]
        fits = before.dtype == after.dtype and before.dim() == after.dim()
        sizes = zip(before.shape, after.shape, strict=True) if fits else ()
        if not fits or any(type(a) is type(b) is int and a != b for a, b in sizes):
            raise RuntimeError(
                f"a loop's step must keep shape and dtype of its state: tensor {number} was {tuple(before.shape)} "
                f"{before.dtype}, is {tuple(after.shape)} {after.dtype}"
            )
