"""Predict from a graph alone where onnxruntime runs its nodes on CUDA, and what each step of a loop copies to the host.

The kernels are those of onnxruntime's own table (tests/export/cuda_kernels.json); which operands a kernel reads on the
host, and which nodes onnxruntime moves to the CPU on purpose, follow its sources (kernel registrations of the CUDA
provider; core/framework/fallback_cpu_capability.cc). It predicts; `seqpipe verify --device cuda` reports.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper

KERNELS = json.loads((Path(__file__).parents[1] / "export/cuda_kernels.json").read_text(encoding="utf-8"))["operators"]
SMALL = 100  # elements of a constant that onnxruntime may use on the CPU in place of the GPU
# Inputs that a CUDA kernel reads on the host, and operators whose outputs are there.
_SHAPED = ("CumSum", "Expand", "Reshape", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze")
HOST_INPUTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(_SHAPED, (1,)),
    **{f"Reduce{kind}": (1,) for kind in ("LogSumExp", "Max", "Mean", "Min", "Sum")},
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (4,)),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "Pad": (1, 2),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
}
HOST_OUTPUTS = ("Shape", "Size")
HOST, DEVICE, CONSTANT = "host", "device", "constant"

Types = Mapping[str, int]
Places = Mapping[str, str]


def with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the type of every value, those of the bodies of its loops too."""
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def bodies(node: NodeProto) -> list[GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def types_in(graph: GraphProto, outer: Types) -> dict[str, int]:
    """The element types of the values that nodes of a graph may read and of those they make."""
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return {**outer, **types, **{tensor.name: tensor.data_type for tensor in graph.initializer}}


def missing_kernel(node: NodeProto, types: Types, opset: int) -> str:
    """The reason why CUDA does not run this node, or ""."""
    kernel = KERNELS.get(node.op_type)
    if kernel is None or not kernel["since"] <= opset <= (kernel["until"] or opset):
        return f"{node.op_type}: cuda_kernels.json has no row for opset {opset}"
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in ("GRU", "LSTM", "RNN"):  # what cuDNN does not compute goes to the CPU
        peephole = node.op_type == "LSTM" and len(node.input) > 7 and node.input[7]
        early_reset = node.op_type == "GRU" and not attributes.get("linear_before_reset")
        if peephole or early_reset or attributes.keys() & {"activations", "clip", "input_forget"}:
            return f"{node.op_type}: cuDNN has no such cell"
    schema = onnx.defs.get_schema(node.op_type, opset)
    for formal, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for place, name in enumerate(names):
            allowed = kernel["types"].get(formal[min(place, len(formal) - 1)].type_str)
            kind = TensorProto.DataType.Name(types[name]).lower() if name else ""
            if name and allowed is not None and kind not in allowed.split():
                return f"{node.op_type} of {kind}"
    return ""


def without_kernel(model: onnx.ModelProto) -> list[str]:
    """The nodes of a graph and of the bodies of its loops that CUDA does not run, and why."""
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))

    def walk(graph: GraphProto, outer: Types, where: str) -> Iterator[str]:
        types = types_in(graph, outer)
        for node in graph.node:
            if reason := missing_kernel(node, types, opset):
                yield f"{where}{node.name}: {reason}"
            for body in bodies(node):
                yield from walk(body, types, f"{where}{node.op_type} ")

    return [*walk(with_types(model).graph, {}, "")]


def copies_to_host(model: onnx.ModelProto) -> dict[str, list[str]]:
    """For each body of a Loop or Scan, the values that a step copies from the GPU to the host."""
    (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    steps: dict[str, list[str]] = {}

    def place(graph: GraphProto, outer: Types, around: Places, small: frozenset[str], loop: Any) -> list[str]:
        types = types_in(graph, outer)
        # A main graph's inputs come from the host. Those of a body lie where its nodes need them: see the end.
        inputs = {value.name for value in graph.input}
        at = {**around, **dict.fromkeys(inputs, HOST), **{tensor.name: CONSTANT for tensor in graph.initializer}}
        on_gpu = {node.output[0] for node in graph.node if not missing_kernel(node, types, opset)}
        users = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                users[name].append(node)
            for name in node.output:
                at[name] = DEVICE if node.output[0] in on_gpu and node.op_type not in HOST_OUTPUTS else HOST
        small |= {tensor.name for tensor in graph.initializer if math.prod(tensor.dims) <= SMALL}
        # onnxruntime moves a node behind a Shape to the CPU if all its inputs are there or may be.
        queue = [user for node in graph.node for name in node.output if at[name] == HOST for user in users[name]]
        while queue:
            node = queue.pop(0)
            host = [at.get(name) == HOST for name in node.input]
            read = [place in HOST_INPUTS.get(node.op_type, ()) for place in range(len(node.input))]
            free = [not name or name in inputs | small for name in node.input]
            movable = all(f or (h and not r) for f, h, r in zip(free, host, read, strict=True))
            if node.output[0] in on_gpu and movable and not bodies(node) and node.op_type not in HOST_OUTPUTS:
                on_gpu.remove(node.output[0])
                for name in node.output:
                    at[name] = HOST
                    queue += users[name]
        wanted = {
            name
            for node in graph.node
            for place, name in enumerate(node.input)
            if name and (node.output[0] not in on_gpu or place in HOST_INPUTS.get(node.op_type, ()))
        }
        carried: dict[str, str] = {}  # of a body: where the last step left what this one reads
        if loop is not None:
            skip = 2 if loop.op_type == "Loop" else 0
            results = graph.output[1:] if loop.op_type == "Loop" else graph.output
            carried = dict(zip([value.name for value in graph.input][skip:], [r.name for r in results], strict=False))
            if loop.op_type == "Loop":
                wanted.add(graph.output[0].name)  # the condition
        wanted -= {node.input[1] for node in graph.node if node.op_type == "Loop"}  # the first condition of a loop
        copied = [name for name in sorted(wanted) if at.get(carried.get(name, name)) == DEVICE]
        for node in graph.node:
            for body in bodies(node):
                inner = place(body, types, at, small, None if node.op_type == "If" else node)
                if node.op_type == "If":
                    copied += inner
                else:
                    steps[f"{node.op_type} {node.name}"] = inner
        return copied

    place(with_types(model).graph, {}, {}, frozenset(), None)
    return steps


def faults_on_cuda(path: Path) -> list[str]:
    """Nodes of a model.onnx that CUDA does not run, and loops whose steps copy more than the condition to the host."""
    model = onnx.load(path)
    too_many = (f"{step}: copies {copies}" for step, copies in copies_to_host(model).items() if len(copies) > 1)
    return [*without_kernel(model), *too_many]
