"""Convert a module to an ONNX model: trace it, translate the trace, simplify the model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir
import torch
from onnx_ir.passes import PassManager, Sequential, common
from onnxscript import rewriter, version_converter
from onnxscript.rewriter.pattern import RewriteRule, RewriteRuleSet
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from seqpipe.export.tracing.onnx_registry import onnx_registry
from seqpipe.export.tracing.recorder import Traced, UntraceableError, trace_module
from seqpipe.nn.torch_internals import DEFAULT_REWRITE_RULES, constant_folding, ir_passes, target_pattern, translate

_LEAST_OPSET = 18  # the lowest that PyTorch translates to; lower ones are converted

Axes = Sequence[Mapping[int, str]]


def onnx_model(
    module: nn.Module, inputs: Mapping[str, Tensor], axes: Axes, outputs: Sequence[str], opset: int
) -> onnx.ModelProto:
    """Return the ONNX model of a module in evaluation mode, without the values of its weights (see `fill_weights`).

    So the model does not depend on the weights. A model of PyTorch's own exporter contains them.

    Args:
        module: Takes the inputs by position and returns a tuple of tensors.
        inputs: Examples by name; axes of the same name have the same size, and none has 0 or 1.
        axes: For each input, the names of its free axes.
        outputs: The names of what the module returns.
        opset: The version of ai.onnx.

    Raises:
        RuntimeError: if a free axis turns out to be fixed; or any error of the module or the translation.
    """
    try:
        model = _translate(trace_module(module, inputs, axes, onnx_registry(max(opset, _LEAST_OPSET))), opset)
    except UntraceableError:
        # PyTorch's own exporter takes several times as long, but records writes into views.
        shapes = tuple(map(dict, axes))
        parameters = inspect.signature(module.forward).parameters.values()
        variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            input_names=[*inputs],
            output_names=[*outputs],
            dynamic_shapes=(shapes,) if variadic else shapes,
            opset_version=opset,
            verbose=False,
        )
        assert program is not None
        return program.model_proto
    ir_passes.rename_outputs(model, [*outputs])
    weights = [model.graph.inputs.pop() for _ in range(len(model.graph.inputs) - len(inputs))]
    ir_passes.rename_inputs(model, [*inputs])
    proto = onnx_ir.to_proto(model)
    for value in reversed(weights):
        if value.uses():
            assert value.dtype is not None
            assert value.shape is not None
            proto.graph.initializer.add(name=value.name, data_type=value.dtype, dims=value.shape.numpy())
    return proto


def _translate(traced: Traced, opset: int) -> onnx_ir.Model:
    """Return the traced program as a simplified ONNX model, with its loops as Loop and Scan."""
    frame = traced.frame
    inputs = [node for node in frame.graph.nodes if node.op == "placeholder"]
    names = [*traced.weights, *[None] * (len(inputs) - len(traced.weights))]
    specs = [
        InputSpec(InputKind.USER_INPUT if name is None else InputKind.PARAMETER, TensorArgument(node.name), name)
        for name, node in zip(names, inputs, strict=True)
    ]
    results = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in frame.results]
    program: Any = SimpleNamespace(  # the parts of a torch.export.ExportedProgram that the translation reads
        graph_module=frame.module,
        graph_signature=SimpleNamespace(
            input_specs=specs,
            output_specs=results,
            inputs_to_parameters={spec.arg.name: spec.target for spec in specs if spec.target is not None},
            inputs_to_buffers={},
            inputs_to_lifted_tensor_constants={},
        ),
        range_constraints={},
        named_parameters=traced.weights.items,
        named_buffers=tuple,
        constants={},
    )
    registry = onnx_registry(max(opset, _LEAST_OPSET))
    model = translate(program, registry=registry).model
    for graph in (model.graph, *model.functions.values()):
        for node in graph:
            if node.op_type == "Loop":  # the exporter gives the state in the body the shapes of the first state
                body = node.attributes["body"].as_graph()
                inner = model.functions[body[0].op_identifier()].inputs
                for value, traced_value in zip(body.inputs[2:], inner, strict=False):
                    value.shape = traced_value.shape
    for function in model.functions.values():  # of nested loops; the inliner requires equal versions
        function.opset_imports.update(model.opset_imports)
    for name in [name for name in model.graph.initializers if name in traced.weights]:  # no pass may read a value
        weight = model.graph.initializers.pop(name)
        weight.const_value = None
        model.graph.inputs.append(weight)
    version_converter.convert_version(model, opset, fallback=True)
    ir_passes.rename_axis(model, traced.axes)
    return _simplify(model)


class _Rule:
    """A rewrite rule that is tried only on nodes of its own operator, since trying others takes most of the time.

    Rules for several results at once compare all pairs of nodes without gain for our graphs, so they are never tried.
    """

    def __init__(self, rule: RewriteRule):
        self._rule, pattern = rule, target_pattern(rule)
        self.operators = {str(node.op) for node in pattern}
        self._operator = str(pattern.output_node.op) if pattern.has_single_output_node else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def try_rewrite(self, model: Any, graph: Any, node: onnx_ir.Node, **options: Any) -> Any:
        return self._rule.try_rewrite(model, graph, node, **options) if node.op_type == self._operator else None


def _simplify(model: onnx_ir.Model) -> onnx_ir.Model:
    """Simplify a model like `onnxscript.optimizer.optimize`, in a fraction of the time: see `_Rule`."""
    operators = {node.op_type for node in model.graph.all_nodes()}
    operators |= {node.op_type for function in model.functions.values() for node in function.all_nodes()}
    rules: Any = [rule for rule in map(_Rule, DEFAULT_REWRITE_RULES) if rule.operators <= operators]
    fold = PassManager(
        [
            constant_folding.FoldConstantsPass(
                shape_inference=True,
                input_size_limit=constant_folding.DEFAULT_CONSTANT_FOLD_INPUT_SIZE_LIMIT,
                output_size_limit=constant_folding.DEFAULT_CONSTANT_FOLD_OUTPUT_SIZE_LIMIT,
            ),
            *([rewriter.RewritePass(RewriteRuleSet(rules))] if rules else []),
            common.RemoveUnusedNodesPass(),
            common.RemoveUnusedFunctionsPass(),
            common.RemoveUnusedOpsetsPass(),
        ],
        steps=2,
        early_stop=True,
    )
    passes = Sequential(
        common.InlinePass(),
        fold,
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )
    return passes(model).model
