"""Limits of this machine: rate of matrix products in fp32 and int8, and memory bandwidth, by threads.

    python benchmarks/limits.py                   # all cores, and one
    python benchmarks/limits.py --bundle FOLDER   # … and the share of them that a bundle reaches

Products are those of onnxruntime, as in a bundle. The share counts two operations for each weight and token of a text,
so not attention, padding, the [CLS] and [SEP] of a BERT, or the further characters of a word. Run it on an otherwise
idle machine, in the same minutes as the figures that it is compared with. Recorded in runs/results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import common
import numpy as np

SIZE, ROWS = 1024, 512  # of a square matrix of weights, and rows of inputs
SECONDS = 0.4  # of one measurement; the best of several counts
READ = 1 << 28  # bytes, more than any cache
WRITTEN = 100  # tokens of a language model


def matrix_session(int8: bool, onnxruntime: Any) -> tuple[Any, dict[str, Any]]:
    """A session on one thread that multiplies by constant weights, and its input."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    dtype, output = (np.uint8, TensorProto.INT32) if int8 else (np.float32, TensorProto.FLOAT)
    x, w = (random.integers(0, 9, (n, SIZE)).astype(dtype) for n in (ROWS, SIZE))
    nodes = [helper.make_node("MatMulInteger" if int8 else "MatMul", ["x", "w"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), [ROWS, SIZE])]
    outputs = [helper.make_tensor_value_info("y", output, [ROWS, SIZE])]
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(w.astype(np.int8) if int8 else w, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]), {"x": x}


def rate(work: Callable[[], object], amount: float, threads: int) -> float:
    """Amount a second of so many threads, each of which repeats the work; the best of five measurements."""
    work()
    best = 0.0
    for _ in range(5):
        end = time.perf_counter() + SECONDS / 5

        def repeat(end: float = end) -> int:
            count = 0
            while time.perf_counter() < end:
                work()
                count += 1
            return count

        with ThreadPoolExecutor(threads) as pool:
            clock = time.perf_counter()
            counts = list(pool.map(lambda _: repeat(), range(threads)))
            best = max(best, sum(counts) * amount / (time.perf_counter() - clock))
    return best


def limits(threads: int) -> dict[str, float]:
    """The limits of so many threads: operations and bytes a second."""
    from seqpipe.runtime.session import import_onnxruntime

    rates = {}
    for name, int8 in (("fp32", False), ("int8", True)):
        session, feeds = matrix_session(int8, import_onnxruntime())
        rates[name] = rate(lambda s=session, f=feeds: s.run(None, f), 2.0 * ROWS * SIZE * SIZE, threads)  # type: ignore[misc]
    memory = np.ones(READ // 4, np.float32)
    parts = np.array_split(memory, threads)
    place = iter(range(1 << 30))
    rates["memory"] = rate(lambda: parts[next(place) % threads].max(), READ / threads, threads)
    return rates


def weights(bundle: Path) -> int:
    """Weights of a bundle's products and recurrent layers: initializers that no Gather reads."""
    import onnx
    from onnx import GraphProto

    def count(graph: GraphProto) -> int:
        inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
        tables = {node.input[0] for part in (graph, *inner) for node in part.node if node.op_type == "Gather"}
        here = sum(int(np.prod(t.dims)) for t in graph.initializer if len(t.dims) > 1 and t.name not in tables)
        return here + sum(map(count, inner))

    return count(onnx.load(bundle / "model.onnx").graph)


def share(bundle: Path, fp32: float, memory: float) -> None:
    """Record the share of a limit that a bundle reaches, on its golden examples.

    Batches are compared with the fp32 rate of all cores, the generation of one text by a language model, which reads
    all weights for each token, with the bandwidth of one.
    """
    import seqpipe
    from seqpipe.answers.text import Generation

    model, size = seqpipe.load(bundle, "cpu"), weights(bundle)
    records = [dict(golden.record) for golden in model.manifest.golden]
    figures: dict[str, float] = {}
    if isinstance(model.predictor.kind.parts.get(""), Generation):
        *_, last = model.stream(records[0], max_length=WRITTEN, temperature=0)
        tokens = rate(lambda: [*model.stream(records[0], max_length=WRITTEN, temperature=0)], last.tokens, 1)
        figures = {"tokens/s": round(tokens), "share of the memory bandwidth": round(4 * size * tokens / memory, 2)}
    else:
        docs = sorted(model.predictor.featurizer.docs(records), key=len)
        docs = [docs[len(docs) // 2]] * 32  # of medium length, without padding
        feeds = model.predictor.featurizer.collate(docs) | model.predictor.defaults.of(docs)
        tokens = rate(lambda: model.run(feeds), sum(map(len, docs)), model.graph.workers)
        figures = {"tokens/s": round(tokens), "share of the fp32 rate": round(2 * size * tokens / fp32, 2)}
    print(f"{bundle}: {figures}")
    common.record("limits", "share", [{"row": f"`{bundle.parent.name}`", "figures": figures}])


if __name__ == "__main__":
    parser = common.parser(__doc__)
    parser.add_argument("--bundle", type=Path, nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sys.path.insert(0, str(common.ROOT))
    from seqpipe.runtime.predictor import cores

    print(common.machine())
    table = common.Table("limits", "limits", "threads", "fp32, GFLOP/s", "int8, GOP/s", "memory read, GB/s")
    bests = []
    for threads in sorted({1, cores()}):
        rounds = [limits(threads) for _ in range(arguments.rounds)]
        best = {name: max(rates[name] for rates in rounds) / 1e9 for name in rounds[0]}
        bests.append(best)
        table.row(threads, round(best["fp32"]), round(best["int8"]), round(best["memory"], 1))
    for bundle in arguments.bundle:
        share(bundle, bests[-1]["fp32"] * 1e9, bests[0]["memory"] * 1e9)
