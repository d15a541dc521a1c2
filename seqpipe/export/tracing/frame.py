"""One graph of a traced program in the making: the program itself, or the body or the condition of one of its loops."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import SymInt, Tensor, fx, nn
from torch.fx.experimental.sym_node import SymNode
from torch.utils._pytree import tree_map
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis


class Frame:
    """An FX graph, the nodes of its tensors and sizes, and what it reads of the frame around it.

    A tensor or a size of the outer frame becomes an input when it is first read (`lifted`). So sizes are computed once,
    where the tensor stands that has them, and never inside a loop.
    """

    def __init__(self, outer: Frame | None = None):
        self.outer = outer
        self.graph = fx.Graph()
        if outer is not None:  # names are unique in the whole program: ONNX passes look values up by name
            self.graph._graph_namespace = outer.graph._graph_namespace
        # The graphs of its loops and its constants, under the names that nodes use.
        self.module = nn.Module()
        self.module.__dict__["graph"] = self.graph
        self.results: list[fx.Node] = []
        self.lifted: dict[int | sympy.Expr, tuple[Any, fx.Node]] = {}  # a tensor by its id, a size by its expression
        self._appender = fx.proxy.GraphAppendingTracer(self.graph)
        self._tensors: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # a tensor that is gone could give its id to another one
        self._sizes: dict[sympy.Expr, fx.Node] = {}
        self._sources: dict[sympy.Expr, tuple[fx.Node, int]] = {}  # a tensor, and which of its axes has this size

    def add_input(self, name: str, value: Any) -> fx.Node:
        """A new input, behind the others."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        position = self.graph.inserting_after(inputs[-1]) if inputs else self.graph.inserting_before()
        with position:
            node = self.graph.placeholder(self.graph._graph_namespace.create_name(name, None))
        return _with_value(node, value)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any, value: Any) -> fx.Node:
        """A new node that calls an operator; `value` is its result, fake."""
        return _with_value(self.graph.call_function(function, args, kwargs), value)

    def submodule(self, name: str, frame: Frame) -> fx.Node:
        """A node that refers to another frame's finished graph."""
        count = sum(1 for _ in self.module.children())
        self.module.add_module(f"{name}_{count}", frame.module)
        return self.graph.get_attr(f"{name}_{count}")

    def bind(self, value: Any, node: fx.Node) -> None:
        """Note that a node's result is this tensor, size, or sequence of them."""
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
        """Nested arguments with nodes in the place of tensors and sizes."""

        def swap(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.node(value)
            return self.size(value) if isinstance(value, SymInt) else value

        return tree_map(swap, values)

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor was made in this frame or an outer one."""
        return id(tensor) in self._tensors or (self.outer is not None and self.outer.knows(tensor))

    def overwrite(self, tensor: Tensor, node: fx.Node) -> bool:
        """Let a tensor be another node's result from now on: False if others would have to see only a part of it.

        That is so unless an operator of this very frame made it and all that share its memory are the same tensor.
        """
        memory, before = tensor.untyped_storage()._cdata, self._tensors.get(id(tensor))
        shared = [id(alias) for alias in self._alive if alias.untyped_storage()._cdata == memory]
        if before is None or before.op == "placeholder" or any(self._tensors[alias] is not before for alias in shared):
            return False
        self._tensors |= dict.fromkeys(shared, node)
        return True

    def node(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor: of this frame, an input if an outer frame has it, else a constant."""
        if (node := self._tensors.get(id(tensor))) is not None:
            return node
        if self.outer is None:
            return self.constant(tensor, tensor)
        return self._lift(id(tensor), tensor)

    def constant(self, tensor: Tensor, stand_in: Tensor) -> fx.Node:
        """A node that holds a real tensor, which the program knows as `stand_in`."""
        if self.outer is not None:
            return self.outer.constant(tensor, stand_in)
        name = f"constant_{len(self._alive)}"
        self.module.register_buffer(name, tensor)
        node = _with_value(self.graph.get_attr(name), tensor)
        self.bind(stand_in, node)
        return node

    def size(self, size: SymInt) -> fx.Node | int:
        """The node of a size, or the number that it is known to be."""
        expr = size.node.expr
        return int(expr) if expr.is_Integer else self._size(expr, size)

    def close(self, lifted: dict[int | sympy.Expr, tuple[Any, fx.Node]]) -> None:
        """Finish a loop's graph: behind its state it takes what `lifted` names, in that order."""
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
            else:
                self._sizes[expr] = self._computed(expr, size.node.shape_env)
        return self._sizes[expr]

    def _has(self, expr: sympy.Expr) -> bool:
        """Whether tensors of this frame or an outer one have the size."""
        computable = all(symbol in self._sources or symbol in self._sizes for symbol in expr.free_symbols)
        return computable or expr in self._sources or (self.outer is not None and self.outer._has(expr))

    def _computed(self, expr: sympy.Expr, shapes: Any) -> fx.Node:
        """A size that no tensor has, such as the length of a cache and a half: computed from those that some have."""
        known = {s: self._size(s, SymInt(SymNode(s, shapes, int, None))) for s in expr.free_symbols}
        before = len(self.graph.nodes)
        proxies = {symbol: fx.Proxy(node, self._appender) for symbol, node in known.items()}
        result: fx.Node = sympy_interp(PythonReferenceAnalysis, proxies, expr).node
        for node in [*self.graph.nodes][before:]:
            values = tree_map(lambda arg: arg.meta["val"] if isinstance(arg, fx.Node) else arg, node.args)
            _with_value(node, node.target(*values))
        return result


def _with_value(node: fx.Node, value: Any) -> fx.Node:
    node.meta |= {"val": value, "nn_module_stack": {}}  # the translation warns of a node without a stack
    return node
