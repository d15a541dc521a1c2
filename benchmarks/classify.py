"""Labels and tags: quality from scratch and of a pretrained encoder, each trained, tested, exported and tested again.

    python benchmarks/classify.py quality clinc150 --seeds 3   # trains and tests; bundle and PyTorch must agree
    python benchmarks/classify.py quality all
    python benchmarks/classify.py quality banking77-bert --checkpoint FOLDER   # the same weights as on the hub

Run it on an otherwise idle machine. Its figures are recorded in runs/results; see report.py.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import common
import yaml
from common import HERE, PREPARED, ROOT

FIGURES: Mapping[str, tuple[str, ...]] = {
    "clinc150": ("accuracy",),
    "snips": ("intent.accuracy", "slots.f1", "exact"),
    "ud_english_ewt": ("accuracy",),
    "sentence_polarity": ("accuracy",),
    "subjectivity": ("accuracy",),
    "movie_reviews": ("accuracy",),
    "movie_reviews-bag": ("accuracy",),
    "crosswoz_intent": ("micro_f1", "exact_match"),
    "banking77-bert": ("accuracy",),
    "clinc150-bert": ("accuracy",),
    "snips-bert": ("intent.accuracy", "slots.f1", "exact"),
    "ncbi_disease-bert": ("f1",),
    "sentence_polarity-bert": ("accuracy",),
}


def quality(
    name: str, seeds: int, device: str, threads: int | None, checkpoint: Path | None, data: Path | None
) -> None:
    """Runs classify/NAME.yaml under seeds 1 to n, then scores each bundle with onnxruntime beside its run."""
    prepare(name.removesuffix("-bert"), data)
    more = common.data_overrides(HERE / "classify" / f"{name}.yaml", data)
    more += [f"{place}={checkpoint.absolute()}" for place in _checkpoints(name)] if checkpoint else []
    every: dict[str, list[list[float]]] = {who: [] for who, _ in PARTS}
    for seed in range(1, seeds + 1):
        run = f"bench-{name}-{seed}"
        minutes = _trained(name, run, device, threads, f"train.seed={seed}", *more)
        for who, part in PARTS:
            every[who].append(_figures(name, ROOT / "runs" / run / part))
        scores = ", ".join(f"{who} {_shown(every[who][-1:])}" for who, _ in PARTS)
        print(f"{name} seed {seed}: {scores}, {minutes:.1f} min", flush=True)
    question, row = ("fine_tuned", name.removesuffix("-bert")) if name.endswith("-bert") else ("scratch", name)
    figures = {"test (PyTorch)": _shown(every["PyTorch"]), "bundle": _shown(every["bundle"]), "minutes": round(minutes)}
    common.record("classify", question, [{"row": row, "figures": figures}])


def _checkpoints(name: str) -> tuple[str, str]:
    """Where the YAML names the checkpoint."""
    content = yaml.safe_load((HERE / "classify" / f"{name}.yaml").read_text())
    encoder = "encoder.0" if isinstance(content["encoder"], list) else "encoder"
    return "tokenizer.checkpoint", f"{encoder}.checkpoint"


def prepare(name: str, data: Path | None) -> None:
    """Makes JSON lines of CLINC150's one file; all other sets are read as they are."""
    folder = PREPARED / name
    if name != "clinc150" or folder.exists():
        return
    splits = json.loads(common.data_path(data, f"{name}/data_full.json").read_text())
    for split, file in (("train", "train"), ("val", "dev"), ("test", "test"), ("oos_test", "test-oos")):
        common.write_jsonl(folder / f"{file}.jsonl", ({"text": text, "label": label} for text, label in splits[split]))


PARTS = (("PyTorch", "."), ("bundle", "bundle"))


def _trained(name: str, run: str, device: str, threads: int | None, *more: str) -> float:
    """Runs the YAML under another name; how many minutes it took, export and tests included."""
    clock = time.perf_counter()
    overrides = [f"name={run}", *more] + ([f"train.threads={threads}"] if threads else [])
    common.seqpipe("run", HERE / "classify" / f"{name}.yaml", *overrides, "--device", device)
    return (time.perf_counter() - clock) / 60


def _figures(name: str, target: Path) -> list[float]:
    scores = _scores(target)
    return [100 * _figure(scores, figure) for figure in FIGURES[name]]


def _shown(seeds: list[list[float]]) -> str:
    """The mean of each figure over the seeds, and its standard deviation if there are several."""
    spreads = [f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "" for values in zip(*seeds, strict=True)]
    means = [f"{statistics.mean(values):.2f}" for values in zip(*seeds, strict=True)]
    return " / ".join(mean + spread for mean, spread in zip(means, spreads, strict=True))


def _figure(scores: Any, path: str) -> float:
    for key in path.split("."):
        scores = scores[key]
    return float(scores)


def _scores(target: Path) -> Any:
    return next(iter(common.seqpipe_json("evaluate", target, "-q").values()))


if __name__ == "__main__":
    parser = common.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    quality_parser = commands.add_parser("quality")
    quality_parser.add_argument("name", choices=(*FIGURES, "all"))
    quality_parser.add_argument("--seeds", type=int, default=1)
    quality_parser.add_argument("--device", default="auto")
    quality_parser.add_argument("--threads", type=int)
    quality_parser.add_argument("--checkpoint", type=Path, help="a folder in place of the name on the hub")
    common.add_data_option(quality_parser)
    arguments = parser.parse_args()
    ready = [name for name in FIGURES if arguments.checkpoint or not name.endswith("-bert")]
    for name in ready if arguments.name == "all" else (arguments.name,):
        quality(name, arguments.seeds, arguments.device, arguments.threads, arguments.checkpoint, arguments.data)
