"""Compare the graphs of two versions of seqpipe: the same outputs, the nodes of each loop, the time in onnxruntime.

    python benchmarks/graphs.py --beside PYTHON --checkout FOLDER [PIPELINE …]

PYTHON is the Python of the other version's environment, FOLDER its checkout. Both sides build each pipeline small, with
the same random weights, and export it. Time is the ratio of the least of `--times` runs, in turns, on one thread.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PIPELINES = (
    *("ner", "dates", "chat", "couplet", "describe", "summarise"),
    *("gpt", "poem", "reviews", "hull", "tour", "mlm", "bilm", "document-han"),
)
SIZES, LENGTHS = (1, 3, 8), (2, 9, 24)


def export(folder: Path, names: Sequence[str]) -> None:
    """Write the graph of each pipeline, and inputs of several shapes and options, to a folder."""
    import torch

    from seqpipe.config.loader import load_config
    from seqpipe.export.graph import random_batches, to_onnx
    from seqpipe.export.parity.decisions import Trials, option_inputs
    from seqpipe.training.datasets import load_records
    from seqpipe.training.evaluation import TrainedPipeline, option_trials
    from seqpipe.training.fit import fit_artifacts
    from seqpipe.training.network import Network

    torch.set_num_threads(1)
    for name in names:
        config = load_config(Path("pipelines", f"{name}.yaml"))
        artifacts = fit_artifacts(config, load_records(config.data.reader, config.data.train, 200))
        torch.manual_seed(1)
        pipeline = TrainedPipeline(Network(config, artifacts).eval(), config)
        options, trials = pipeline.options, option_trials(pipeline.network)
        (folder / f"{name}.onnx").write_bytes(to_onnx(pipeline))
        feeds = [
            batch | option_inputs(batch, options, chosen)
            for chosen in Trials(options, trials).together()
            for batch in random_batches(artifacts, 1, SIZES, LENGTHS)
        ]
        (folder / f"{name}.inputs").write_bytes(pickle.dumps(feeds))


def nodes(graph: Any) -> Iterator[Any]:
    """All nodes of a graph and of the graphs in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes(attribute.g) if attribute.HasField("g") else ()


def loops(graph: Any) -> list[int]:
    """How many nodes each Loop and Scan has, the loops inside it counted in."""
    return [
        sum(1 for _ in nodes(attribute.g))
        for node in nodes(graph)
        if node.op_type in ("Loop", "Scan")
        for attribute in node.attribute
        if attribute.HasField("g")
    ]


def compare(name: str, folders: Sequence[Path], times: int, table: common.Table) -> None:
    import onnx

    from seqpipe.runtime.onnx_runtime import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    paths = [folder / f"{name}.onnx" for folder in folders]
    models = [onnx.load(path) for path in paths]
    sessions = [onnxruntime.InferenceSession(path, options) for path in paths]
    feeds = pickle.loads((folders[1] / f"{name}.inputs").read_bytes())  # written by this program a moment ago
    outputs = [[output.name for output in session.get_outputs()] for session in sessions]
    assert outputs[0] == outputs[1], outputs
    different, worst, count = 0, 0.0, 0
    for feed in feeds:
        for before, after in zip(*(session.run(None, feed) for session in sessions), strict=True):
            count += 1
            if before.shape != after.shape or before.dtype != after.dtype:
                different += 1
            elif before.dtype.kind == "f":
                worst = max(worst, float(np.abs(before - after)[np.isfinite(before)].max(initial=0)))
            else:
                different += int((before != after).any())
    taken: list[list[float]] = [[], []]
    for _ in range(times):
        for seconds, session in zip(taken, sessions, strict=True):
            clock = time.perf_counter()
            for feed in feeds:
                session.run(None, feed)
            seconds.append(time.perf_counter() - clock)
    inside = [loops(model.graph) for model in models]
    everything = [sum(1 for _ in nodes(model.graph)) for model in models]
    in_loops = [", ".join(map(str, numbers)) for numbers in inside]
    ratio = min(taken[1]) / min(taken[0])
    table.row(f"`{name}`", f"{different} of {count}", f"{worst:.1g}", *in_loops, *everything, f"{ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipelines", nargs="*", default=PIPELINES)
    parser.add_argument("--beside", metavar="PYTHON", help="the Python of another version's environment")
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="… and its checkout")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="only write graphs there; what both sides do")
    arguments = parser.parse_args()
    if arguments.export:
        export(arguments.export, arguments.pipelines)
        return
    with tempfile.TemporaryDirectory() as parent:
        folders = [Path(parent, side) for side in ("before", "now")]
        sides = ((arguments.beside, arguments.checkout.resolve()), (sys.executable, ROOT))
        for folder, (python, checkout) in zip(folders, sides, strict=True):
            folder.mkdir()
            command = [python, __file__, "--export", str(folder), *arguments.pipelines]
            environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
            subprocess.run(command, cwd=checkout, check=True, env=environment, stderr=subprocess.DEVNULL)
        nodes_columns = ("nodes in each loop before", "nodes in each loop now", "nodes before", "nodes now")
        columns = ("outputs that differ", "worst difference", *nodes_columns, "time")
        table = common.Table("graphs", "graphs", "pipeline", *columns)
        for name in arguments.pipelines:
            compare(name, folders, arguments.times, table)


if __name__ == "__main__":
    main()
