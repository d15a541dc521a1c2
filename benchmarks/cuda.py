"""Bundles on a GPU beside the CPU: golden examples, equal answers, times, and where the nodes of the graph run.

    python benchmarks/cuda.py runs/*/bundle --out cuda.json   # --device cpu is a dry run

It needs the extra `gpu` of seqpipe and the bundles, and neither PyTorch nor a network. Each bundle goes through all of
it and a bundle that fails does not stop the others; the script ends with 1 if one failed, if an answer differs, or if a
node in a loop runs on the CPU though the rest does not.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import parser, record

import seqpipe
from seqpipe.errors import SeqpipeError
from seqpipe.runtime.onnx_runtime import onnxruntime
from seqpipe.runtime.opened import same_answer
from seqpipe.runtime.session import placement

TEXTS, BATCHES, SINGLES = 256, 5, 20  # answers compared, and times that a batch and a single text are run
TOLERANCE = 1e-3  # of numbers: a GPU adds in another order


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """The median of several times, behind a run that allocates memory and is not counted."""
    work()
    times = []
    for _ in range(repeats):
        clock = time.perf_counter()
        work()
        times.append(time.perf_counter() - clock)
    return statistics.median(times)


def measure(path: Path, device: str, texts: int = TEXTS) -> dict[str, Any]:
    """One bundle on the CPU and on the device."""
    cpu, on_device = seqpipe.load(path, "cpu"), seqpipe.load(path, device)
    records = [example.record for example in cpu.manifest.golden]
    if not records:
        raise SeqpipeError(f"{path}: it holds no golden examples to run; export it again")
    batch, single = (records * (texts // len(records) + 1))[:texts], records[0]
    pairs = zip(cpu(batch), on_device(batch), strict=True)
    placed = placement(on_device.session, (path / "model.onnx").read_bytes())
    models = {"cpu": cpu, device: on_device}
    return {
        "device": on_device.device,
        "golden_wrong": on_device.verify(),
        "answers": texts,
        "answers_differ": sum(not same_answer(theirs, ours, TOLERANCE) for ours, theirs in pairs),
        "batch_s": {name: median_seconds(lambda m=model: m(batch), BATCHES) for name, model in models.items()},
        "single_ms": {name: 1e3 * median_seconds(lambda m=model: m(single), SINGLES) for name, model in models.items()},
        "placement": placed,
        "nodes_on_cpu_within_loops": placed["CPU within loops"].total() if on_device.device == "cuda" else 0,
    }


def record_bundle(path: Path, result: dict[str, Any], device: str) -> None:
    """Record the times and differences of one bundle."""
    figures = (
        {"error": result["error"]}
        if "error" in result
        else {
            "answers that differ": f"{result['answers_differ']} of {result['answers']}",
            "batch, s, CPU": round(result["batch_s"]["cpu"], 4),
            "batch, s, device": round(result["batch_s"][device], 4),
            "one text, ms, CPU": round(result["single_ms"]["cpu"], 2),
            "one text, ms, device": round(result["single_ms"][device], 2),
            "nodes of loops on the CPU": result["nodes_on_cpu_within_loops"],
        }
    )
    name = path.resolve().parent.name if path.name == "bundle" else path.name
    record("cuda", f"on_{device}", [{"row": name, "figures": figures}])


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("bundles", type=Path, nargs="+")
    flags.add_argument("--device", default="cuda", help="default: cuda")
    flags.add_argument("--texts", type=int, default=TEXTS, help=f"texts of a batch; default: {TEXTS}")
    flags.add_argument("--out", type=Path, default=Path("cuda.json"), help="default: cuda.json")
    options = flags.parse_args()
    results: dict[str, Any] = {}
    for path in options.bundles:
        try:
            results[str(path)] = measure(path, options.device, options.texts)
        except Exception as error:  # the next bundle is still worth its time
            traceback.print_exc()
            results[str(path)] = {"error": f"{type(error).__name__}: {error}"}
        print(path, json.dumps(results[str(path)]), flush=True)
        if options.device != "cpu":  # else it is a dry run
            record_bundle(path, results[str(path)], options.device)
        versions = {"onnxruntime": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}
        options.out.write_text(json.dumps({**versions, "bundles": results}, indent=1), encoding="utf-8")
    failures = ("error", "golden_wrong", "answers_differ", "nodes_on_cpu_within_loops")
    sys.exit(any(result.get(key) for result in results.values() for key in failures))


if __name__ == "__main__":
    main()
