"""Record a program as a graph: its operators, its symbolic sizes, its loops as subgraphs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from onnx_ir import SymbolicDim
from torch import SymInt, Tensor, fx, nn

from seqpipe.export.tracing.onnx_registry import OnnxRegistry, convert_type, decomposition, promotions
from seqpipe.export.tracing.settings import temporarily
from seqpipe.nn import loops
from seqpipe.nn import torch_internals as internals


class Frame:
    """An FX graph, the nodes of its tensors and sizes, and its inputs from the outer frame.

    A tensor or a size of the outer frame becomes an input when it is first read (`lifted`). So sizes are computed once,
    in the frame of the tensor that has them, and never inside a loop.
    """

    def __init__(self, outer: Frame | None = None):
        self.outer = outer
        self.graph = fx.Graph()
        if outer is not None:  # names are unique in the whole program: ONNX passes look values up by name
            internals.share_names(self.graph, outer.graph)
        # The graphs of its loops and its constants, under the names that nodes use.
        self.module = nn.Module()
        self.module.__dict__["graph"] = self.graph
        self.results: list[fx.Node] = []
        self.lifted: dict[int | sympy.Expr, tuple[Any, fx.Node]] = {}  # a tensor by its id, a size by its expression
        self._appender = fx.proxy.GraphAppendingTracer(self.graph)
        self._tensors: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # the id of a deleted tensor could be reused
        self._sizes: dict[sympy.Expr, fx.Node] = {}
        self._sources: dict[sympy.Expr, tuple[fx.Node, int]] = {}  # a tensor, and its axis of this size

    def add_input(self, name: str, value: Any) -> fx.Node:
        """Add an input after the others."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        position = self.graph.inserting_after(inputs[-1]) if inputs else self.graph.inserting_before()
        with position:
            node = self.graph.placeholder(internals.unique_name(self.graph, name))
        return _with_value(node, value)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, value: Any) -> fx.Node:
        """Add a node that calls an operator; `value` is its fake result."""
        return _with_value(self.graph.call_function(function, args, kwargs), value)

    def bind(self, value: Any, node: fx.Node) -> None:
        """Register a tensor, a size, or a sequence of them as the result of a node."""
        if isinstance(value, Tensor):
            self._tensors[id(value)] = node
            self._alive.append(value)
            for axis, size in enumerate(value.shape):
                if isinstance(size, SymInt):
                    self._sources.setdefault(size.node.expr, (node, axis))
        elif isinstance(value, SymInt):
            self._sizes.setdefault(value.node.expr, node)
        elif isinstance(value, (tuple, list)):
            for i, part in enumerate(value):
                if part is not None:
                    self.bind(part, self.call(operator.getitem, (node, i), {}, part))

    def arguments(self, values: Any) -> Any:
        """Return nested arguments with nodes in place of tensors and sizes."""

        def swap(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.node(value)
            return self.size(value) if isinstance(value, SymInt) else value

        return internals.tree_map(swap, values)

    def knows(self, tensor: Tensor) -> bool:
        """Return whether a tensor was created in this frame or an outer one."""
        return id(tensor) in self._tensors or (self.outer is not None and self.outer.knows(tensor))

    def overwrite(self, tensor: Tensor, node: fx.Node) -> bool:
        """Make a tensor the result of another node; return False if that is not possible.

        It is possible only if an operator of this frame created it and no other tensor shares its memory.
        """
        memory, before = tensor.untyped_storage(), self._tensors.get(id(tensor))
        shared = [id(alias) for alias in self._alive if alias.untyped_storage() is memory]
        if before is None or before.op == "placeholder" or any(self._tensors[alias] is not before for alias in shared):
            return False
        self._tensors |= dict.fromkeys(shared, node)
        return True

    def node(self, tensor: Tensor) -> fx.Node:
        """Return the node of a tensor: of this frame, an input if an outer frame has it, else a constant."""
        if (node := self._tensors.get(id(tensor))) is not None:
            return node
        if self.outer is None:
            return self.constant(tensor, tensor)
        return self._lift(id(tensor), tensor)

    def constant(self, tensor: Tensor, stand_in: Tensor) -> fx.Node:
        """Return a node with a real tensor, whose fake tensor in the program is `stand_in`."""
        if self.outer is not None:
            return self.outer.constant(tensor, stand_in)
        name = f"constant_{len(self._alive)}"
        self.module.register_buffer(name, tensor)
        node = _with_value(self.graph.get_attr(name), tensor)
        self.bind(stand_in, node)
        return node

    def size(self, size: SymInt) -> fx.Node | int:
        """Return the node of a size, or its number if known."""
        expr = size.node.expr
        return int(expr) if expr.is_Integer else self._size(expr, size)

    def close(self, lifted: dict[int | sympy.Expr, tuple[Any, fx.Node]]) -> None:
        """Finish a loop's graph: its inputs are the state, then those of `lifted`, in that order."""
        # PyTorch's loop operators pass the condition and the body one list of inputs, so each graph also has the inputs
        # of the other one. Inputs were added in the order of first reading: moving each before the first operator
        # produces the common order.
        for key, (value, _) in lifted.items():
            if key not in self.lifted:
                self.lifted[key] = (value, self.add_input("unused", value))
        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        for key in lifted:
            first.prepend(self.lifted[key][1])

    def _lift(self, key: int | sympy.Expr, value: Any) -> fx.Node:
        node = self.add_input("outer", value)
        self.lifted[key] = (value, node)
        self.bind(value, node)
        return node

    def _size(self, expr: sympy.Expr, size: SymInt) -> fx.Node:
        if expr not in self._sizes:
            if self.outer is not None and self.outer._has(expr):
                return self._lift(expr, size)
            if expr in self._sources:
                self._sizes[expr] = self.call(torch.ops.aten.sym_size.int, self._sources[expr], {}, size)
                return self._sizes[expr]
            # No tensor has this size (for example 1.5 times the length of a cache): it is computed from sizes of
            # tensors. sympy's interpreter appends the operators through proxies, which lack the results that every
            # node needs.
            shapes = size.node.shape_env
            known = {
                s: self._size(s, SymInt(internals.SymNode(s, shapes, int, None)))
                for s in sorted(expr.free_symbols, key=str)
            }
            before = len(self.graph.nodes)
            proxies = {symbol: fx.Proxy(node, self._appender) for symbol, node in known.items()}
            self._sizes[expr] = internals.sympy_interp(internals.PythonReferenceAnalysis, proxies, expr).node
            for node in [*self.graph.nodes][before:]:
                values = internals.tree_map(lambda arg: arg.meta["val"] if isinstance(arg, fx.Node) else arg, node.args)
                _with_value(node, node.target(*values))
        return self._sizes[expr]

    def _has(self, expr: sympy.Expr) -> bool:
        """Return whether tensors of this frame or an outer one have the size."""
        computable = all(symbol in self._sources or symbol in self._sizes for symbol in expr.free_symbols)
        return computable or expr in self._sources or (self.outer is not None and self.outer._has(expr))


def _with_value(node: fx.Node, value: Any) -> fx.Node:
    node.meta |= {"val": value, "nn_module_stack": {}}  # the translation warns of a node without a stack
    return node


# Fake tensors to run a program on: only shapes and types, with symbols for free axes.


class FakeMode(internals.WithoutDynamo, internals.FakeTensorMode):
    """Fake tensor mode without a cache of results, which takes a third of a trace's time.

    Each operator of a program runs once, so the cache is filled and hardly read.
    """

    def __init__(self, shapes: internals.ShapeEnv):
        super().__init__(shape_env=shapes, allow_non_fake_inputs=True, export=True)
        self.cache_enabled = False

    __torch_dispatch__ = inspect.unwrap(internals.FakeTensorMode.__torch_dispatch__)


def axis_sizes(inputs: Mapping[str, Tensor], axes: Sequence[Mapping[int, str]]) -> dict[str, int]:
    """Return distinct sizes of the dynamic axes for tracing: the example's, or the next unused one."""
    sizes: dict[str, int] = {}
    for tensor, free in zip(inputs.values(), axes, strict=True):
        for axis, name in free.items():
            if name not in sizes:
                candidates = itertools.count(max(2, tensor.shape[axis]))
                sizes[name] = next(size for size in candidates if size not in sizes.values())
    return sizes


# Record each operator that a program runs, and its loops, as nodes of FX graphs.

aten = torch.ops.aten
_SAME = {aten.detach.default, aten.alias.default}  # another tensor with the same content
_METADATA = {*internals.FunctionalTensor.metadata_fns}  # the size, device or layout of a tensor
_ASSERTIONS = {
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range_for_size.default,
}


class UntraceableError(RuntimeError):
    """The program does something that cannot be recorded, such as writing into a part of a tensor."""


class Recorder(internals.WithoutDynamo, internals.TorchDispatchMode):
    """Records each operator that runs under it in the graph of the innermost frame."""

    supports_higher_order_operators = True  # to refuse them in words

    def __init__(self, fake: internals.FakeTensorMode, registry: OnnxRegistry):
        super().__init__()
        self.fake, self.registry = fake, registry
        self.frame = Frame()
        self.untraceable = ""
        # Sizes of free axes, for tracing: far from all others, so that none equals another by chance.
        self._examples = itertools.count(100_003, 1_009)
        self.free: list[sympy.Symbol] = []  # symbols of free sizes
        self.is_draft, self.skips_loops = False, False  # the trace of a step only finds the axes that it changes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, internals.HigherOrderOperator):
            raise self._untraceable(f"it calls {func}")
        if func in _METADATA or func in _ASSERTIONS:
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default:
            # The fake tensor of a tensor that the program creates from Python numbers.
            tensor = args[0]
            if isinstance(tensor, internals.FakeTensor):
                return tensor
            stand_in = self.fake.from_tensor(tensor.clone(), static_shapes=True)
            self.frame.constant(tensor, stand_in)
            return stand_in
        if func is aten.detach_.default:
            return args[0]
        if func is aten.nonzero.default:
            with _without_recording():
                out = args[0].new_empty((self._size(self._symbol()), args[0].dim()), dtype=torch.int64)
            self.frame.bind(out, self.frame.call(func, self.frame.arguments(args), {}, out))
            return out
        if func in _SAME:
            out = func(*args, **kwargs)
            self.frame.bind(out, self.frame.node(args[0]))
            return out
        if internals.is_mutable(func):
            # `x += y` becomes `x + y`, which replaces x; other in-place operators need `torch.export`.
            name, _, overload = func.name().removeprefix("aten::").partition(".")
            functional_name = re.sub(r"^__i(\w+)__$", r"__\1__", name).removesuffix("_" if name[-2:] != "__" else "")
            functional = getattr(getattr(aten, functional_name, None), overload or "default", None)
            if functional is not None and functional_name != name:
                with self:
                    result = convert_type(functional(*args, **kwargs), args[0].dtype)
                if self.frame.overwrite(args[0], self.frame.node(result)):
                    return args[0]
            raise self._untraceable(f"{func} writes into a tensor that has other views or comes from outside")
        if (decompose := decomposition(func, self.registry)) is not None:
            with self:
                out = decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if (promoted := self._promote(func, args, kwargs)) is not None:
            return promoted
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and self.frame.knows(out):
            return out  # the operator returned its input
        arguments, named = self.frame.arguments((args, kwargs))
        self.frame.bind(out, self.frame.call(func, arguments, named, out))
        return out

    def _promote(self, func: internals.OpOverload, args: Any, kwargs: Any) -> Tensor | None:
        """Return the result for arguments of several types, promoted like in PyTorch; None if they have one type."""
        rule = promotions().get_rule(func.overloadpacket)
        if rule is None:
            return None
        types = rule.preview_type_promotion(args, kwargs)
        before = (*args, *kwargs.values())
        dtypes = (*map(types.args_dtypes.get, range(len(args))), *map(types.kwargs_dtypes.get, kwargs))
        with self:
            after = [*map(convert_type, before, dtypes)]
            if all(map(operator.is_, before, after)):
                return None
            out = func.overloadpacket(*after[: len(args)], **dict(zip(kwargs, after[len(args) :], strict=True)))
            return convert_type(out, types.out_dtype)

    def _untraceable(self, reason: str) -> UntraceableError:
        self.untraceable = reason  # an exception of a component may be wrapped
        return UntraceableError(reason)

    def while_loop(
        self, condition: Callable[..., Tensor], step: Callable[..., Sequence[Tensor]], state: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As `seqpipe.nn.loops.while_loop`."""
        # Steps fill axes of size 0, such as those of caches, so these have a free size from the first trace on. Other
        # axes that a step changes get one when it is traced again; so the first trace, a draft, skips nested loops.
        empty = [(i, axis) for i, x in enumerate(state) for axis in range(x.dim()) if _expression(x.shape[axis]) == 0]
        free: Changes = dict.fromkeys(empty, (sympy.S.Zero, sympy.S.One))
        now = self._resized(state, free)
        if self.is_draft:
            self.skips_loops = True
            return now
        self.is_draft, self.skips_loops, is_guess = not free, False, True
        while (
            (changes := _changes(state, now, body := self._trace_function(step, now), free)).keys() != free.keys()
            or self.skips_loops
            or (is_guess and len({*changes.values()}) > 1)
        ):
            self.is_draft, self.skips_loops, is_guess = False, False, False
            now, free = self._resized(state, changes), changes
        self.is_draft = False
        self._check_changes(now, body, free)
        test = self._trace_function(lambda *now: (condition(*now),), now)
        functions, lifted = self._functions("while_loop", cond=test, body=body)
        last = self._resized(state, changes)
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

        with _without_recording():
            rows = [x[0] for x in xs]
        body = self._trace_function(flat, (*state, *rows))
        for number, axis in _changes(state, state, body, {}):
            raise RuntimeError(
                f"a scan's step must keep the shapes of its state: axis {axis} of tensor {number} changes"
            )
        functions, lifted = self._functions("scan", body=body)
        row_outputs = [node.meta["val"] for node in body.results[count:]]
        with _without_recording():
            ys = [row.new_empty((xs[0].shape[0], *row.shape)) for row in row_outputs]
        outputs = (*map(_like, state), *ys)
        arguments = (*functions, *self.frame.arguments((list(state), list(xs))), lifted)
        node = self.frame.call(torch.ops.higher_order.scan, arguments, {"reverse": reverse}, outputs)
        self.frame.bind(outputs, node)
        return outputs[:count], outputs[count:]

    def run_if(
        self, condition: Tensor, function: Callable[[], Sequence[Tensor]], otherwise: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As `seqpipe.nn.loops.run_if`."""
        then = self._trace_function(function, ())
        changes = _changes(otherwise, otherwise, then, {})
        functions, lifted = self._functions("run_if", then=then, other=self._trace_function(lambda: otherwise, ()))
        results = self._resized(otherwise, changes)
        arguments = (self.frame.node(condition), *functions, lifted)
        self.frame.bind(results, self.frame.call(torch.ops.higher_order.cond, arguments, {}, results))
        return results

    def _trace_function(self, function: Callable[..., Sequence[Tensor]], like: Sequence[Tensor]) -> Frame:
        """Return the graph of a function of tensors like these, in a new frame."""
        self.frame = frame = Frame(self.frame)
        try:
            inputs = [*map(_like, like)]
            for tensor in inputs:
                frame.bind(tensor, frame.add_input("state", tensor))
            for tensor in function(*inputs):
                node = frame.node(tensor)
                if node.op != "call_function" or node in frame.results:  # each output of a body has its own node
                    node = frame.node(tensor.clone())
                frame.results.append(node)
            frame.graph.output(tuple(frame.results))
        finally:
            assert frame.outer is not None
            self.frame = frame.outer
        return frame

    def _resized(self, state: Sequence[Tensor], changes: Changes) -> tuple[Tensor, ...]:
        """Return new fake tensors like a loop's state, with free sizes at the axes that a step changes.

        Axes with the same sizes before and after have one size. An axis that is a product before and after, such as
        that of all beams of all rows, has the product of two free sizes, or of one and a fixed size.
        """
        sizes: dict[tuple[sympy.Expr, sympy.Expr], sympy.Expr] = {}
        for before, after in sorted(set(changes.values()), key=lambda pair: (sympy.count_ops(pair), str(pair))):
            sizes[before, after] = self._symbol()
            for (old, new), size in [*sizes.items()][:-1] if before.free_symbols else []:
                factors = before / old if old else sympy.nan, after / new
                if factors in sizes:
                    sizes[before, after] = size * sizes[factors]
                elif factors[0] == factors[1] and factors[0].is_integer:
                    sizes[before, after] = size * factors[0]
        shapes: list[list[int | SymInt]] = [[*tensor.shape] for tensor in state]
        for (number, axis), pair in changes.items():
            shapes[number][axis] = self._size(sizes[pair])
        with _without_recording():
            return tuple(tensor.new_empty(shape) for tensor, shape in zip(state, shapes, strict=True))

    def _check_changes(self, now: Sequence[Tensor], body: Frame, free: Changes) -> None:
        """Raise if a step changes axes differently that had one size in its trace."""
        sizes = {}
        for number, axis in free:
            sizes[number, axis] = [_expression(x.shape[axis]) for x in (now[number], body.results[number].meta["val"])]
        after = {old: new for old, new in reversed(sizes.values()) if old.is_Symbol}  # the first counts
        for (number, axis), (old, new) in sizes.items():
            # Equal sizes may be different expressions, so examples are compared.
            if self._size(old.xreplace(after)).node.hint != self._size(new).node.hint:
                problem = (
                    f"axis {axis} of tensor {number} of a loop's state does not change like others of its first size"
                )
                raise RuntimeError(f"{problem}; begin with different sizes")

    def _symbol(self) -> sympy.Symbol:
        """Return the symbol of a new free size."""
        axis: Any = internals.StatelessSymbolicContext(dynamic_sizes=[internals.DimDynamic.DYNAMIC])
        with _without_recording(), internals.without_fake_mode():
            row = self.fake.from_tensor(torch.empty(next(self._examples)), symbolic_context=axis)
        self.free.append(_expression(row.shape[0]))
        return self.free[-1]

    def _size(self, expr: sympy.Expr) -> SymInt:
        return SymInt(internals.SymNode(expr, self.fake.shape_env, int, None))

    def _functions(self, name: str, **frames: Frame) -> tuple[list[Any], tuple[Any, ...]]:
        """Return nodes that refer to a loop's graphs, and their common inputs from outside."""
        lifted: dict[Any, Any] = {}
        for frame in frames.values():
            lifted |= frame.lifted
        for frame in frames.values():
            frame.close(lifted)
        functions = []
        for part, frame in frames.items():
            submodule = f"{name}_{part}_{sum(1 for _ in self.frame.module.children())}"
            self.frame.module.add_module(submodule, frame.module)
            functions.append(self.frame.graph.get_attr(submodule))
        return functions, self.frame.arguments(tuple(value for value, _ in lifted.values()))


@contextlib.contextmanager
def _without_recording() -> Iterator[None]:
    """Run operators on fake tensors without recording them."""
    modes = internals.dispatch_modes()
    with internals.without_innermost_mode() if modes and isinstance(modes[-1], Recorder) else contextlib.nullcontext():
        yield


def _like(tensor: Tensor) -> Tensor:
    """Return a new fake tensor of this shape and type."""
    with _without_recording():
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)


Changes = dict[tuple[int, int], tuple[sympy.Expr, sympy.Expr]]


def _changes(state: Sequence[Tensor], now: Sequence[Tensor], body: Frame, free: Changes) -> Changes:
    """Return the axes of a loop's state, (tensor, axis), that are free or that a step changes, with two sizes of each.

    They are its size in the first state, and after a step that was traced with `now`. Raise if a step returns fewer
    tensors, or one of another type or number of axes.
    """
    if len(body.results) < len(state):
        raise RuntimeError(f"a loop's step must return its {len(state)} tensors of state, not {len(body.results)}")
    changes: Changes = {}
    # In the results, the rows of a scan follow.
    for number, (first, before, node) in enumerate(zip(state, now, body.results, strict=False)):
        after = node.meta["val"]
        if before.dtype != after.dtype or before.dim() != after.dim():
            raise RuntimeError(
                f"a loop's step must keep dtype and number of axes of its state: tensor {number} was "
                f"{tuple(before.shape)} {before.dtype}, is {tuple(after.shape)} {after.dtype}"
            )
        for axis, sizes in enumerate(zip(first.shape, before.shape, after.shape, strict=True)):
            at_first, old, new = map(_expression, sizes)
            if old != new or (number, axis) in free:
                changes[number, axis] = (at_first, new)
    return changes


def _expression(size: int | SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, SymInt) else sympy.Integer(size)


# Trace a module once into FX graphs, including its loops, that PyTorch's ONNX exporter translates.
#
# `torch.export` runs a program with loops four times: Dynamo traces each loop, then shapes are collected, then the
# graph is recorded, then it is decomposed. Here one dispatch mode does all of this while the program runs once on fake
# tensors. It is below autograd, where composite operators such as `layer_norm` are still whole.


@dataclass(frozen=True)
class Traced:
    """A traced program.

    Attributes:
        frame: Its graph; inputs are the weights, then the program's own.
        weights: Parameters and buffers by name.
        axes: The name of each free axis by its symbol, as shapes in the graph show it.
    """

    frame: Frame
    weights: Mapping[str, Tensor]
    axes: dict[str | SymbolicDim, str]


def trace_module(
    module: nn.Module, inputs: Mapping[str, Tensor], axes: Sequence[Mapping[int, str]], registry: OnnxRegistry
) -> Traced:
    """Run a module in evaluation mode once, on fake tensors.

    Args:
        module: Takes the inputs by position and returns a tuple of tensors.
        inputs: Examples by name; only their shapes and types matter.
        axes: For each input, the names of its free axes.
        registry: The operators that the ONNX exporter translates; others are decomposed.

    Raises:
        UntraceableError: for a program that only `torch.export` can trace.
        RuntimeError: if a free axis turns out to be fixed; or any error of the module.
    """
    shapes = internals.ShapeEnv()
    fake = FakeMode(shapes)
    recorder = Recorder(fake, registry)
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    # Sizes of 0 and 1 must not be treated differently from others: `backed_size_oblivious`.
    with internals.shapes_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        sizes = axis_sizes(inputs, axes)
        examples: list[Any] = []
        for tensor, free in zip(inputs.values(), axes, strict=True):
            shape = [sizes[free[axis]] if axis in free else size for axis, size in enumerate(tensor.shape)]
            # Free axes of the same size become the same symbol (DUCK), so `axis_sizes` gives each name its own.
            kinds = internals.DimDynamic
            dims = [kinds.DUCK if axis in free else kinds.STATIC for axis in range(tensor.dim())]
            symbolic_context: Any = internals.StatelessSymbolicContext(dynamic_sizes=dims)
            example = torch.empty(shape, dtype=tensor.dtype)
            examples.append(fake.from_tensor(example, symbolic_context=symbolic_context))
        for name, tensor in (*weights.items(), *zip(inputs, examples, strict=True)):
            recorder.frame.bind(tensor, recorder.frame.add_input(name.replace(".", "_"), tensor))
        symbols: dict[Any, str] = {
            tensor.shape[axis].node.expr: name
            for tensor, free in zip(examples, axes, strict=True)
            for axis, name in free.items()
        }
        mha = torch.backends.mha  # its fused operator for `nn.TransformerEncoder` has no ONNX translation
        with (
            fake,
            internals.compiling_state(),
            temporarily(mha.get_fastpath_enabled, mha.set_fastpath_enabled, False),
            internals.enable_python_dispatcher(),
            internals.AutoDispatchBelowAutograd(),
            loops.exported_by(recorder),
            recorder,
        ):
            try:
                results = module(*examples)
            except Exception as error:
                if recorder.untraceable:
                    raise UntraceableError(recorder.untraceable) from error
                raise
    for symbol, name in symbols.items():
        if (size := shapes.replace(symbol)).is_Integer:
            raise RuntimeError(f"the axis {name!r} is specialized to {size}, its size in the example")
    for symbol in recorder.free:
        if (size := shapes.replace(symbol)).is_Integer:
            raise RuntimeError(f"a loop's step changes an axis of its state, but fixes its size to {size}")
    recorder.frame.results = [recorder.frame.node(tensor) for tensor in results]
    recorder.frame.graph.output(tuple(recorder.frame.results))
    return Traced(recorder.frame, weights, {str(symbol): name for symbol, name in symbols.items()})
