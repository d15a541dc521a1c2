"""The private parts of PyTorch and onnxscript that seqpipe uses, all in this file.

They may change with any release, so the extra `train` allows one minor version of each. All other code in seqpipe uses
documented interfaces.
"""

from __future__ import annotations

from typing import Any

from onnxscript import rewriter
from onnxscript.optimizer import _constant_folding as constant_folding
from torch import fx
from torch._C import _AutoDispatchBelowAutograd as AutoDispatchBelowAutograd
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _check_valid_to_preserve as is_valid_to_preserve
from torch._export.utils import _compiling_state_context as compiling_state
from torch._export.utils import _is_cia_op as is_composite
from torch._higher_order_ops.scan import scan as exported_scan
from torch._higher_order_ops.while_loop import while_loop as exported_while_loop
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily as without_fake_mode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import _config as shapes_config
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.onnx._internal.exporter import _ir_passes as ir_passes
from torch.onnx._internal.exporter import _registration as registration
from torch.onnx._internal.exporter._core import _exported_program_to_onnx_program as translate
from torch.onnx._internal.exporter._torchlib import _torchlib_registry as torchlib_registry
from torch.onnx._internal.fx.passes.type_promotion import TypePromotionTable
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils._python_dispatch import _pop_mode_temporarily as without_innermost_mode
from torch.utils._pytree import tree_map
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

# A trace runs the program on fake tensors with symbolic sizes below autograd, records each operator, and decides with
# the exporter's own registry which ones are in the graph unchanged. PyTorch's public `torch.export` does the same five
# times slower, since it also proves guards and copies the graph for passes that are not needed here.
__all__ = [
    "DEFAULT_REWRITE_RULES", "AutoDispatchBelowAutograd", "DimDynamic", "FakeTensor", "FakeTensorMode",
    "FunctionalTensor", "HigherOrderOperator", "OpOverload", "OperatorRegistry", "PythonReferenceAnalysis", "ShapeEnv",
    "StatelessSymbolicContext", "SymNode", "TorchDispatchMode", "TypePromotionTable", "WithoutDynamo",
    "compiling_state", "constant_folding", "decomposition_table", "dispatch_modes", "enable_python_dispatcher",
    "exported_scan", "exported_while_loop", "ir_passes", "is_composite", "is_mutable", "is_valid_to_preserve",
    "shapes_config", "share_names", "sympy_interp", "target_pattern", "translate", "tree_map", "unique_name",
    "without_fake_mode", "without_innermost_mode",
]  # fmt: skip

DEFAULT_REWRITE_RULES = rewriter._DEFAULT_REWRITE_RULES


class OperatorRegistry(registration.ONNXRegistry):
    """Registry of the operators that the ONNX exporter translates by itself, for one opset."""

    def __init__(self, opset: int):
        super().__init__()
        self._opset_version = opset
        for meta in torchlib_registry.get_torchlib_ops():
            self._register(meta.fx_target, meta)
        self._cleanup_registry_based_on_opset_version()

    def register(self, target: Any, function: Any, is_complex: bool) -> None:
        """Add a function that translates an operator."""
        meta = registration.OnnxDecompMeta(function, target, signature=None, is_complex=is_complex)
        self._register(target, meta)


class WithoutDynamo:
    """Mixin of dispatch modes without the wrapper that excludes Dynamo from every call, a fifth of a trace's time."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def is_mutable(operator: OpOverload) -> bool:
    """Return whether an operator writes into one of its arguments."""
    return bool(operator._schema.is_mutable)


def share_names(graph: fx.Graph, other: fx.Graph) -> None:
    """Make the names of nodes unique in both graphs."""
    graph._graph_namespace = other._graph_namespace


def unique_name(graph: fx.Graph, name: str) -> str:
    """Return a name that no node has: this one, or one with a number."""
    return graph._graph_namespace.create_name(name, None)


def target_pattern(rule: rewriter.RewriteRule) -> Any:
    """Return the pattern of the nodes that a rule replaces."""
    return rule._target_pattern
