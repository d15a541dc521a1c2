"""The checks of the exported graph: free axes, standard operators, and the answers of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx

from seqpipe.errors import EnvError, ExportError, ParityError, install_command
from seqpipe.export.graph import random_batches, to_onnx
from seqpipe.export.parity.decisions import DecisionParity, option_inputs
from seqpipe.export.parity.gate import compare_runs
from seqpipe.runtime.predictor import Run
from seqpipe.runtime.session import CPU, import_onnxruntime
from seqpipe.testing.bench import SHAPES, Bench
from seqpipe.testing.report import Check, FaultError, NotApplicableError
from seqpipe.training.evaluation import TrainedPipeline, predictor

EXPORT, STANDARD, PARITY = "export with free axes", "standard operators only", "onnxruntime parity on ragged shapes"
NAN = float("nan")
_OUTSIDE = "outside ai.onnx"  # in the message about operators that are not standard

_EXPORT_FIX = (
    "Keep sizes symbolic: read them from tensors (x.shape[1]) where they are used, branch with torch.where, loop over "
    "a text with seqpipe.nn.loops.scan or while_loop, and never convert a tensor to a Python number (.item(), int(), "
    "len())"
)
_NUMBER_FIX = (
    "A Python number or branch depends on the value of a tensor (.item(), .tolist(), float(), if): use torch.where, "
    "and tensors throughout"
)
_SIZE_FIX = (
    "A size of the example is fixed in the graph, for instance by a Python loop over x.shape[1] or a fixed reshape: "
    "loop with seqpipe.nn.loops.scan or while_loop, and take sizes from tensors"
)
_OPERATOR_FIX = (
    "PyTorch has no ONNX translation of this operator: write it with simpler ones (gather, where, matmul, cumsum), or "
    "under torch.compiler.is_exporting() as a standard node with torch.onnx.ops.symbolic"
)
_FIXES: Mapping[str, tuple[str, ...]] = {  # each with the words of the exporter's message that it answers
    _NUMBER_FIX: ("data-dependent", "GuardOnDataDependent", ".item", "tolist", "_local_scalar_dense"),
    _SIZE_FIX: ("Constraints violated", "specialized", "constant value", "marked as dynamic"),
    _OPERATOR_FIX: ("No ONNX function", "No decompositions", "Unsupported FX nodes", "DispatchError"),
}
_STANDARD_FIX = (
    "Use operators of ai.onnx only: every onnxruntime has those and no others. In torch.onnx.ops.symbolic give the "
    "operator's name without a domain"
)
_PARITY_FIX = (
    "Look for differences in export: branches on torch.compiler.is_exporting(), Python numbers and sizes fixed "
    "at the example's shape, sorts and maxima of equal values, and padding that is not masked with torch.where"
)


class Graph:
    """The exported pipeline of a bench, exported once."""

    def __init__(self, bench: Bench):
        self.bench = bench

    def checks(self) -> list[Check]:
        return [
            Check(EXPORT, self.exports, _EXPORT_FIX, (SHAPES,)),
            Check(STANDARD, self.is_standard, _STANDARD_FIX, (SHAPES, EXPORT)),
            Check(PARITY, self.answers_alike, _PARITY_FIX, (SHAPES, EXPORT, STANDARD)),
        ]

    @cached_property
    def pipeline(self) -> TrainedPipeline:
        # NaN in the padding of x reveals a missing mask.
        return TrainedPipeline(self.bench.network(2, NAN).eval(), self.bench.config)

    @cached_property
    def exported(self) -> bytes | ExportError:
        try:
            return to_onnx(self.pipeline)
        except ExportError as error:
            return error

    def exports(self) -> None:
        if isinstance(self.exported, bytes):
            known = self.bench.artifacts.featurizer
            features = {name: known.axes(name) for name in known.manifest()}
            for node in onnx.load_from_string(self.exported).graph.input:
                if node.name not in features:
                    continue
                axes = [dim.dim_param for dim in node.type.tensor_type.shape.dim]
                if not all(axis for axis, name in zip(axes, features[node.name], strict=True) if isinstance(name, str)):
                    raise FaultError(f"the graph's input {node.name!r} has fixed axes: {axes}")
        elif _OUTSIDE not in str(self.exported):
            message = str(self.exported)
            fix = next((fix for fix, signs in _FIXES.items() if any(sign in message for sign in signs)), "")
            raise FaultError(message, fix)

    def is_standard(self) -> None:
        if isinstance(self.exported, ExportError):
            raise FaultError(str(self.exported))

    def answers_alike(self) -> None:
        assert isinstance(self.exported, bytes)
        network, artifacts, options = self.pipeline.network, self.pipeline.artifacts, self.pipeline.options
        parity = DecisionParity(network, predictor(network).run, session_of(self.exported), options)
        for chosen in parity.trials.together():
            for feeds in random_batches(artifacts, 1, (1, 2, 3, 7), (1, 5, 13)):
                parity.compare(feeds, option_inputs(feeds, options, chosen))
        if network.cache:
            compare_runs(parity, random_batches(artifacts, 1, (1, 3), (1, 7)))
        try:
            parity.resolve_ties()
        except ParityError as error:
            raise FaultError(str(error)) from error


def session_of(data: bytes) -> Run:
    try:
        onnxruntime = import_onnxruntime()
    except EnvError as error:
        raise NotApplicableError("onnxruntime is not installed", install_command("cpu")) from error
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(data, settings, providers=[CPU])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))
