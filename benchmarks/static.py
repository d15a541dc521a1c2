"""Vectors distilled from a sentence encoder against random ones of the same size: Banking77 with few records.

    python benchmarks/static.py --checkpoint FOLDER              # 3,000 training records, a tenth of them for dev
    python benchmarks/static.py --checkpoint FOLDER --records 1000 --seeds 3

Both have the subwords of the checkpoint, the mean of their vectors and a linear head, and are trained alike.
"""

from __future__ import annotations

import csv
import random
import statistics
from pathlib import Path

import common
from common import HERE, PREPARED, ROOT

DIM = 256
SHOWN = {
    "static": "`static`, fine-tuned",
    "random": "random (`lookup`), trained alike",
    "static, frozen": "`static`, frozen",
}


def prepare(records: int, data: Path | None) -> Path:
    """The folder of a seeded subset of the training set, a tenth of it for dev, and of the test set."""
    folder = PREPARED / f"banking77-{records}"
    for split in ("train", "test"):
        with common.data_path(data, f"banking77/{split}.csv").open(encoding="utf-8", newline="") as file:
            rows = [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]
        if split == "train":
            rows = random.Random(1).sample(rows, records)
            common.write_jsonl(folder / "dev.jsonl", rows[: records // 10])
            rows = rows[records // 10 :]
        common.write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


def compare(checkpoint: Path, records: int, seeds: int, data: Path | None) -> None:
    """Distil, then train and test each embedding under seeds 1 to n."""
    folder, vectors = prepare(records, data), PREPARED / f"static-{DIM}.bin"
    common.seqpipe("distill-vectors", checkpoint, "-o", vectors, "--dim", DIM, "--binary", "-q")
    embeddings = {
        "static": f"{{use: static, path: {vectors}}}",
        "static, frozen": f"{{use: static, path: {vectors}, train: false}}",
        "random": f"{{use: lookup, dim: {DIM}}}",
    }
    every: dict[str, list[float]] = {}
    for name, embedding in embeddings.items():
        for seed in range(1, seeds + 1):
            run = f"bench-static-{name.replace(', ', '-')}-{records}-{seed}"
            overrides = [f"data.{split}={folder / split}.jsonl" for split in ("train", "dev", "test")]
            overrides += [f"tokenizer.checkpoint={checkpoint}", f"embedding={embedding}", f"train.seed={seed}"]
            common.seqpipe("run", HERE / "classify" / "banking77-static.yaml", f"name={run}", *overrides, "--fresh")
            scores = common.seqpipe_json("evaluate", ROOT / "runs" / run / "bundle", "-q")
            accuracy = next(iter(scores.values()))["accuracy"]
            print(f"{name}, {records} records, seed {seed}: {100 * accuracy:.2f}", flush=True)
            every.setdefault(SHOWN[name], []).append(100 * accuracy)
    figures = {what: round(statistics.mean(values), 2) for what, values in every.items()}
    common.record("static", "static", [{"row": f"{records:,}", "figures": figures}])


if __name__ == "__main__":
    parser = common.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder; measured: all-MiniLM-L6-v2")
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=1)
    common.add_data_option(parser)
    arguments = parser.parse_args()
    compare(arguments.checkpoint.absolute(), arguments.records, arguments.seeds, arguments.data)
