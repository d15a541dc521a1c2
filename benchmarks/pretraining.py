"""What one's own masked language model is worth: a classifier of few labelled texts, begun with it and from scratch.

    python benchmarks/pretraining.py   # CLINC150, 150 intents, ten labelled texts of each; one core

The model reads all 15,000 training texts without their labels; both classifiers learn from the same 1,500 with theirs.
Run it on an otherwise idle machine. Its figures are recorded in runs/results; see report.py.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import common
from common import HERE, PREPARED

FOLDER = PREPARED / "clinc150-tenth"
SHOWN = {"scratch": "from scratch", "from-mlm": "fine-tuned from its own `mlm`"}
EACH = {"tenth": 10, "dev": 2}  # labelled texts of each intent


def prepare(data: Path | None) -> None:
    """JSON lines of the in-scope texts: all of train and test, a tenth of train, and a tenth of the validation set."""
    splits = json.loads(common.data_path(data, "clinc150/data_full.json").read_text(encoding="utf-8"))
    parts = {"train": splits["train"], "test": splits["test"]}
    parts |= {"tenth": few(splits["train"], EACH["tenth"]), "dev": few(splits["val"], EACH["dev"])}
    for name, rows in parts.items():
        common.write_jsonl(FOLDER / f"{name}.jsonl", ({"text": text, "label": label} for text, label in rows))


def few(rows: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """The first rows of each label, as many of each."""
    seen: dict[str, int] = defaultdict(int)
    kept = []
    for text, label in rows:
        seen[label] += 1
        if seen[label] <= count:
            kept.append((text, label))
    return kept


def ran(name: str, more: list[str]) -> tuple[Any, float]:
    """What comes of one of the YAMLs, and how many minutes it took."""
    clock = time.perf_counter()
    result = common.seqpipe_json("run", HERE / "pretraining" / f"{name}.yaml", *more)
    return result, (time.perf_counter() - clock) / 60


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    common.add_data_option(parser)
    arguments = parser.parse_args()
    prepare(arguments.data)
    more = ["--fresh", "--device", arguments.device, f"train.seed={arguments.seed}"]
    minutes = {}
    _, minutes["mlm"] = ran("mlm", more)
    accuracy = {}
    for name in ("scratch", "from-mlm"):
        result, minutes[name] = ran(name, more)
        accuracy[name] = 100 * result["scores"]["test"]["accuracy"]
    gain = accuracy["from-mlm"] - accuracy["scratch"]
    for name, value in accuracy.items():
        print(f"{name}: test accuracy {value:.2f} in {minutes[name]:.1f} min")
    figures = {shown: round(accuracy[name], 1) for name, shown in SHOWN.items()}
    common.record("pretraining", "mlm", [{"row": "as in `benchmarks/pretraining/`", "figures": figures}])
    print(f"gain {gain:.2f} points; the masked language model took {minutes['mlm']:.1f} min")


if __name__ == "__main__":
    main()
