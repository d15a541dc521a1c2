"""Banking77 by retrieval: the intent of the nearest training example, before and after MiniLM is fine-tuned.

    python benchmarks/retrieval.py --checkpoint FOLDER
    python benchmarks/retrieval.py --checkpoint FOLDER --before    # only the checkpoint as it is

The candidates are all training records. Fine-tuning takes four epochs over every other one, each beside another of
its intent. Before it, one step is taken with a learning rate that moves no weight.
"""

from __future__ import annotations

import csv
from pathlib import Path

import common
from common import HERE, PREPARED, ROOT

CONFIG = HERE / "classify" / "banking77-retrieval.yaml"
METRICS = {"accuracy": "accuracy", "mrr": "MRR (5 nearest)", "recall_at_k": "recall of 5"}
ROWS = {"before": "the checkpoint as it is", "after": "fine-tuned for four epochs"}
UNMOVED = ("train.epochs=1", "encoder.lr=1e-15", "train.optimizer.lr=1e-15")


def prepare(data: Path | None) -> Path:
    """The folder of the candidates, every other of them as a text to train on, and the test set."""
    folder = PREPARED / "banking77-retrieval"
    parts = {}
    for split in ("train", "test"):
        with common.data_path(data, f"banking77/{split}.csv").open(encoding="utf-8", newline="") as file:
            parts[split] = [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]
    common.write_jsonl(folder / "candidates.jsonl", parts["train"])
    common.write_jsonl(folder / "texts.jsonl", parts["train"][::2])
    common.write_jsonl(folder / "few.jsonl", parts["train"][::500])
    common.write_jsonl(folder / "test.jsonl", parts["test"])
    return folder


def measure(name: str, checkpoint: Path, *overrides: str) -> None:
    """Train and print the scores on the test set."""
    checkpoints = [f"tokenizer.checkpoint={checkpoint}", f"encoder.checkpoint={checkpoint}"]
    common.seqpipe("train", CONFIG, f"name=bench-retrieval-{name}", *checkpoints, *overrides, "--fresh")
    scores = next(iter(common.seqpipe_json("evaluate", ROOT / "runs" / f"bench-retrieval-{name}", "-q").values()))
    print(f"{name}: {', '.join(f'{metric} {100 * score:.2f}' for metric, score in scores.items())}", flush=True)
    figures = {shown: round(100 * scores[metric], 2) for metric, shown in METRICS.items()}
    common.record("retrieval", "banking77", [{"row": ROWS[name], "figures": figures}])


if __name__ == "__main__":
    parser = common.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder; measured: all-MiniLM-L6-v2")
    parser.add_argument("--before", action="store_true", help="only the checkpoint as it is")
    common.add_data_option(parser)
    arguments = parser.parse_args()
    folder, checkpoint = prepare(arguments.data), arguments.checkpoint.absolute()
    measure("before", checkpoint, f"data.train={folder / 'few.jsonl'}", *UNMOVED)
    if not arguments.before:
        measure("after", checkpoint)
