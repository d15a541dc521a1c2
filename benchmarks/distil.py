"""Knowledge distillation: a linear model over n-grams learns from a fine-tuned MiniLM, at many times its speed.

    python benchmarks/distil.py banking77 --checkpoint FOLDER            # teacher, three seeds of both students, speed
    python benchmarks/distil.py clinc150 --checkpoint FOLDER --mixed 2
    python benchmarks/distil.py banking77 --checkpoint FOLDER --held-out 1000   # scores on held-out training texts

FOLDER has the weights of all-MiniLM-L6-v2. The student is trained twice, with the teacher and on the labels alone; all
other settings are equal. `--mixed` adds unlabelled texts, that number for each training text: the beginning of one text
and the end of another, each without some words (after Tang et al. 2019). Figures are recorded in runs/results.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import classify
import common
from common import HERE, PREPARED, ROOT

DROPPED = 0.1  # share of words left out of a mixed text
ANSWERS = "teacher.ckpt"  # in the folder of a run; they are the same for every seed


def prepare(name: str, held_out: int, mixed: int, data: Path | None) -> Path:
    """Return the folder of the training, test and mixed texts; held-out texts are in place of the test set."""
    folder, sets = PREPARED / f"distil-{name}-{held_out}-{mixed}", dict[str, list[dict[str, Any]]]()
    if name == "clinc150":
        classify.prepare(name, data)
    for split in ("train", "test"):
        if name == "clinc150":
            lines = (PREPARED / name / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
            sets[split] = [json.loads(line) for line in lines]
        else:
            with common.data_path(data, f"{name}/{split}.csv").open(encoding="utf-8", newline="") as file:
                sets[split] = [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]
    if held_out:
        random.Random(1).shuffle(sets["train"])
        sets["test"], sets["train"] = sets["train"][:held_out], sets["train"][held_out:]
    if mixed:
        sets["mixed"] = mix([row["text"] for row in sets["train"]], mixed * len(sets["train"]))
    for split, rows in sets.items():
        common.write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


def mix(texts: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Return texts of the beginning of one and the end of another."""
    dice, mixtures = random.Random(1), list[dict[str, Any]]()
    while len(mixtures) < count:
        first, second = (dice.choice(texts).split() for _ in range(2))
        words = first[: dice.randint(1, len(first))] + second[dice.randint(0, len(second) - 1) :]
        if kept := [word for word in words if dice.random() >= DROPPED]:
            mixtures.append({"text": " ".join(kept)})
    return mixtures


def train_teacher(name: str, folder: Path, checkpoint: Path, more: Sequence[str]) -> Path:
    """Fine-tune the teacher with the settings of classify.py, once; return the folder of its run."""
    run = ROOT / "runs" / f"bench-{folder.name}-teacher"
    overrides = ["data.reader={use: jsonl}", f"data.train={folder}/train.jsonl", f"data.test={folder}/test.jsonl"]
    overrides += [f"{stage}.checkpoint={checkpoint}" for stage in ("tokenizer", "encoder")]
    if not (run / "metrics.json").exists():
        common.seqpipe(
            "run", HERE / "classify" / f"{name}-bert.yaml", f"name={run.name}", *overrides, "data.dev=null", *more
        )
    return run


def train_student(kind: str, folder: Path, seed: int, overrides: Sequence[str]) -> Path:
    """Train one student; a later seed begins with the answers that the teacher gave the first one."""
    from seqpipe.config.loader import load_config
    from seqpipe.console import Console
    from seqpipe.runs.run_folder import start_run

    run, yaml = ROOT / "runs" / f"bench-{folder.name}-{kind}-{seed}", HERE / "classify" / "student.yaml"
    settings = [f"name={run.name}", f"train.seed={seed}", *overrides]
    settings += [f"data.{split}={folder}/{split}.jsonl" for split in ("train", "test")]
    first = run.with_name(f"bench-{folder.name}-{kind}-1") / ANSWERS
    if first.exists() and not run.exists():
        with start_run(load_config(yaml, settings), Console(-1), runs=run.parent):
            shutil.copy(first, run / ANSWERS)
    common.seqpipe("run", yaml, *settings)
    return run


def accuracy(run: Path) -> float:
    scores = next(iter(json.loads((run / "metrics.json").read_text()).values()))
    return 100 * float(scores["accuracy"])


def speeds(runs: Sequence[Path], folder: Path) -> list[dict[str, float]]:
    """Return texts a second of each bundle on one thread, one at a time and in batches of 32, best of three rounds."""
    best: list[dict[str, float]] = [{} for _ in runs]
    for _ in range(3):
        for run, result in zip(runs, best, strict=True):
            limits = ("--batches", "1,32", "--clients", "1", "--threads", "1", "--seconds", "6", "-q")
            measured = common.seqpipe_json("bench", run / "bundle", "-i", folder / "test.jsonl", *limits)
            for row in measured["batches"]:
                size = str(row["size"])
                result[size] = max(result.get(size, 0.0), row["per_second"])
    return best


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("name", choices=("banking77", "clinc150"))
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder; measured: all-MiniLM-L6-v2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mixed", type=int, default=0, metavar="N", help="mixed texts for each training text")
    parser.add_argument("--held-out", type=int, default=0, metavar="N", help="training texts that are the test set")
    parser.add_argument("--teacher", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the teacher's YAML")
    parser.add_argument(
        "--student", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of both students' YAML"
    )
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="keys of train.teacher")
    common.add_data_option(parser)
    arguments = parser.parse_args()
    folder = prepare(arguments.name, arguments.held_out, arguments.mixed, arguments.data)
    teacher = train_teacher(
        arguments.name,
        prepare(arguments.name, arguments.held_out, 0, arguments.data),
        arguments.checkpoint.absolute(),
        arguments.teacher,
    )
    settings = [f"train.teacher.path={teacher}", *(f"train.teacher.{text}" for text in arguments.settings)]
    settings += [f"data.unlabelled={folder}/mixed.jsonl"] if arguments.mixed else []
    kinds = {"alone": arguments.student, "distilled": [*arguments.student, *settings]}
    every: dict[str, list[float]] = {kind: [] for kind in kinds}
    for seed in range(1, arguments.seeds + 1):
        for kind, overrides in kinds.items():
            run = train_student(kind, folder, seed, overrides)
            every[kind].append(accuracy(run))
            print(f"{arguments.name}, {kind}, seed {seed}: {every[kind][-1]:.2f}", flush=True)
    alone, distilled = (statistics.mean(every[kind]) for kind in kinds)
    of_teacher = accuracy(teacher)
    slow, fast = speeds([teacher, run], folder)
    figures = {
        "teacher": round(of_teacher, 2),
        "student, labels alone": round(alone, 2),
        "student, with the teacher": round(distilled, 2),
        "points": round(distilled - alone, 2),
        "share of the teacher": f"{100 * distilled / of_teacher:.1f} %",
        "by seed": ", ".join(f"{a:.2f} → {b:.2f}" for a, b in zip(*every.values(), strict=True)),
        "times as fast, one text / 32": " / ".join(f"{fast[size] / slow[size]:.0f}" for size in ("1", "32")),
    }
    print(json.dumps(figures, indent=1, ensure_ascii=False))
    met = (
        distilled - alone >= 1
        and distilled / of_teacher >= 0.98
        and min(fast[size] / slow[size] for size in slow) >= 20
    )
    row = {"row": arguments.name, "figures": figures, "asked": "+1 point, 98 %, 20 times", "met": bool(met)}
    if not arguments.held_out:
        common.record("distil", "students", [row])


if __name__ == "__main__":
    main()
