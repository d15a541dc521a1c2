"""The private parts of PyTorch and onnxscript that seqpipe uses, all in this file.

They may change with any release, so the extra `train` allows one minor version of each. All other code in seqpipe uses
documented interfaces.
"""

from __future__ import annotations

from onnxscript import rewriter
from onnxscript.optimizer import _constant_folding as constant_folding
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
from torch.onnx._internal.exporter import _core as exporter_core
from torch.onnx._internal.exporter import _ir_passes as ir_passes
from torch.onnx._internal.exporter import _registration as registration
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
    "FunctionalTensor", "HigherOrderOperator", "OpOverload", "PythonReferenceAnalysis", "ShapeEnv",
    "StatelessSymbolicContext", "SymNode", "TorchDispatchMode", "TypePromotionTable", "compiling_state",
    "constant_folding", "decomposition_table", "dispatch_modes", "enable_python_dispatcher", "exported_scan",
    "exported_while_loop", "exporter_core", "ir_passes", "is_composite", "is_valid_to_preserve", "registration",
    "shapes_config", "sympy_interp", "torchlib_registry", "tree_map", "without_fake_mode",
    "without_innermost_mode",
]  # fmt: skip

DEFAULT_REWRITE_RULES = rewriter._DEFAULT_REWRITE_RULES
