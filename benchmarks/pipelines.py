"""Run the shipped pipelines and write the table of docs/examples.md from their scores.

    python benchmarks/pipelines.py                      every pipeline (about an hour of one core)
    python benchmarks/pipelines.py --only ner sort      some, and those that they start from
    python benchmarks/pipelines.py --seeds 3 --only pos some, with more seeds, whose spread the table shows
    python benchmarks/pipelines.py --check              which rows are stale; trains nothing, exit code 1 if any is

They run one after the other, on one core, in a scratch folder (`--folder` keeps it). `benchmarks/pipelines.json` holds
what each reached, on which machine, and the sha256 of the YAML and the data that it was made from: a row is stale if
they have changed, or if it says something else. The share of `test` that stands in the training data is counted anew
each time.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import machine

from seqpipe.answers.tagging_schemes import spans
from seqpipe.config.contract import build_component, is_language_model_head, is_self_supervised, task_class
from seqpipe.config.loader import Config, load_config
from seqpipe.evaluation.scores import headline
from seqpipe.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
PAGE, RECORD = ROOT / "docs" / "examples.md", ROOT / "benchmarks" / "pipelines.json"
HEADER = ("pipeline", "what", "test", "new-templates", "of *test* in training", "`seqpipe run`")
ON = "Measured on "  # the beginning of a line
NUMBER = re.compile(r"[−-]?\d+(\.\d+)?")
ROW = re.compile(r"^\| \[`([\w-]+)\.yaml`\]")
FORMATS: Mapping[str, Callable[[float], str]] = {
    "f1": lambda value: f"{100 * value:.1f} F1",
    "accuracy": lambda value: f"{100 * value:.1f} % accuracy",
    "exact_match": lambda value: f"{100 * value:.1f} % exact",
    "hull_accuracy": lambda value: f"{100 * value:.1f} % exact hulls",
    "masked_accuracy": lambda value: f"{100 * value:.1f} % of masked words",
    "perplexity": lambda value: f"perplexity {value:.2f}",
    "mean_score": lambda value: f"log-probability {value:.2f} a word".replace("-", "−"),
}
Scores = Mapping[str, Any]
Record = Mapping[str, Any]


# -- what a row says


def shown(name: str, scores: Scores) -> str:
    """The scores of a test set as the table has them."""
    if name == "slots-and-intent":
        return f"{100 * scores['intent']['accuracy']:.1f} % intents, {FORMATS['f1'](scores['slots']['f1'])}"
    if name.startswith("translate"):
        return f"{100 * scores['bleu']:.1f} BLEU, {FORMATS['exact_match'](scores['exact_match'])}"
    if name == "spoken-digits":
        return f"{100 * scores['wer']:.1f} % word errors"
    if name == "tour":
        longer = 100 * (scores["tour_length"] / scores["optimal_length"] - 1)
        return (
            f"{longer:.1f} % over the optimum" if scores["valid"] == 1 else f"{100 * scores['valid']:.1f} % are tours"
        )
    metric, value = headline(scores)
    return FORMATS[metric](value)


def inputs(config: Config, record: Record) -> str:
    """What a model reads of a record."""
    fields = {field for source in config.inputs for field in _fields(source.field, source.tokenizer)}
    return json.dumps({field: record[field] for field in sorted(fields)}, ensure_ascii=False)


def _fields(field: str | None, tokenizer: Any) -> tuple[str, ...]:
    named = (tokenizer.common_keys.get("field") if tokenizer else None) or field or "text"
    return named if isinstance(named, tuple) else (named,)


def answers(config: Config, record: Record) -> Iterator[tuple[str, str]]:
    """What the answers to a record are made of, each with what to call it; labels and positions are left out."""
    for head in config.head:
        kind, target = task_class(head).kind_type.kind, head.common_keys.get("target")
        if is_self_supervised(head) or is_language_model_head(head):
            continue
        if kind == "tags":
            yield from (("words", word.lower()) for word in record["words"])
        elif kind == "spans":
            called = "words" if head.options["scheme"] == "BMES" else "names"
            for start, end in _places(record):
                yield called, record["text"][start:end].lower()
        elif kind == "text":
            yield "answers", record[target or "target"]
        elif kind == "span":
            yield from (("answers", text.lower()) for text in record[target or "answers"]["text"])


def _places(record: Record) -> list[tuple[int, int]]:
    """Where the spans of a record begin and end."""
    if "tags" not in record:
        return [(span["start"], span["end"]) for span in record["spans"]]
    ends, starts, at = [], [], 0
    for word in record["words"]:
        starts.append(record["text"].index(word, at))
        ends.append(at := starts[-1] + len(word))
    return [(starts[first], ends[behind - 1]) for _, first, behind in spans(record["tags"])]


def seen(config: Config) -> str:
    """Which share of the texts and answers of `test` stands in the training data, as the table has it."""
    reader, path = build_component(config.data.reader), config.data.train
    train = list(reader.read(path))
    texts = {inputs(config, record) for record in train}
    known = {answer for record in train for answer in answers(config, record)}
    test = list(reader.read(config.data.tests["test"]))
    called = "texts" if any(source.tokenizer for source in config.inputs) else "inputs"
    counts = {called: [inputs(config, record) in texts for record in test]}
    for record in test:
        for answer in answers(config, record):
            counts.setdefault(answer[0], []).append(answer in known)
    return ", ".join(f"{_percent(flags)} of {name}" for name, flags in counts.items())


def _percent(flags: Sequence[bool]) -> str:
    share = 100 * sum(flags) / len(flags)
    return f"{share:.0f} %" if share in (0, 100) or 1 <= share < 99.5 else f"{share:.1f} %"


# -- what is measured


def with_start(name: str) -> list[str]:
    """A pipeline behind those whose runs it starts from."""
    needs = load_config(_yaml(name), runs=False, files=False).needs
    return [*(need.run.stem for need in needs if need.run), name]


def made_from(name: str) -> str:
    """The sha256 of the YAML and the data files of a pipeline, and of what it starts from."""
    digest = hashlib.sha256()
    for pipeline in with_start(name):
        path = ROOT / "pipelines" / f"{pipeline}.yaml"
        data = load_config(path, runs=False, files=False).data
        files = [path, data.train, *([data.dev] if data.dev else []), *data.tests.values()]
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def run(name: str, folder: Path, seed: int = 1) -> dict[str, Any]:
    """Train, evaluate and export a pipeline in a folder that has a copy of `pipelines/`."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SEQPIPE_CACHE": str(folder / "cache")}
    environment |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins")))}
    command = [sys.executable, "-m", "seqpipe", "run", f"pipelines/{name}.yaml", "--device", "cpu", "--fresh", "--json"]
    command += [] if seed == 1 else [f"train.seed={seed}", f"name={name}-{seed}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{name}: `seqpipe run` ended with {done.returncode}; what it said is above")
    result = json.loads(done.stdout)
    bundle = folder / result["bundle"]
    return {
        "made_from": made_from(name),
        "scores": {test: _plain(scores) for test, scores in result["scores"].items()},
        "seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "bundle_bytes": sum(path.stat().st_size for path in bundle.iterdir()),
        "date": datetime.date.today().isoformat(),
        "seqpipe": VERSION,
        "machine": machine(),
    }


def with_spread(name: str, test: str, record: Mapping[str, Any]) -> str:
    """The scores of a test set as the table has them, with the lowest and highest of several seeds."""
    texts = [shown(name, scores[test]) for scores in (record["scores"], *record.get("seeds", {}).values())]
    numbers = [float(NUMBER.search(text)[0].replace("−", "-")) for text in texts]  # type: ignore[index]
    low, high = (texts[numbers.index(bound(numbers))] for bound in (min, max))
    spread = f" ({NUMBER.search(low)[0]} to {NUMBER.search(high)[0]})"  # type: ignore[index]
    return texts[0] + spread * (len(texts) > 1)


def _plain(scores: Scores) -> dict[str, Any]:
    """Scores without those of each label."""
    return {
        key: _plain(value) if isinstance(value, dict) else value for key, value in scores.items() if key != "labels"
    }


# -- the table


def records() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return known


def expected(line: str, known: Mapping[str, Any]) -> str:
    """A row as it should be: its cells for scores and time from the record, if there is one, the share counted."""
    match = ROW.match(line)
    assert match
    name, cells = match[1], re.split(r"\s*\|\s*", line.strip()[1:-1].strip())
    what, test, new_templates, seconds = cells[1], cells[2], cells[3], cells[-1]
    if record := known.get(name):
        scores = record["scores"]
        test = with_spread(name, "test", record)
        named = ("new-templates", "new-voices", "new-pairs")
        others = [with_spread(name, test, record) for test in named if test in scores]
        new_templates = others[0] if others else ""
        if "new-names" in scores:
            new_templates += f"{', ' if others else ''}{with_spread(name, 'new-names', record)} with new names"
        seconds = f"{record['seconds']:.0f} s of one core"
    config = load_config(ROOT / "pipelines" / f"{name}.yaml", runs=False, files=False)
    row = " | ".join((cells[0], what, test, new_templates, seen(config), seconds))
    return f"| {row} |".replace("|  |", "| |")


def table(text: str, known: Mapping[str, Any]) -> str:
    """The page with every row of the table as it should be."""
    lines = text.split("\n")
    first = next(number for number, line in enumerate(lines) if ROW.match(line))
    lines[first - 2 : first] = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    machines = dict.fromkeys(record["machine"] for record in known.values() if "machine" in record)
    lines = [f"{ON}{'; '.join(machines)}." if line.startswith(ON) else line for line in lines]
    return "\n".join(expected(line, known) if ROW.match(line) else line for line in lines)


def stale(known: Mapping[str, Any]) -> list[str]:
    """What of the table is not so, or not known to be so, a line each."""
    faults, rows = [], {match[1]: line for line in PAGE.read_text().split("\n") if (match := ROW.match(line))}
    for name in sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml")):
        if name not in rows:
            faults.append(f"{name}: has no row")
        elif name not in known:
            faults.append(f"{name}: was not measured by this script")
        elif known[name]["made_from"] != made_from(name):
            faults.append(f"{name}: its YAML or data changed since {known[name]['date']}")
        elif rows[name] != expected(rows[name], known):
            faults.append(f"{name}: the page says something else than was measured on {known[name]['date']}")
    return [*faults, *(f"{name}: there is no such pipeline" for name in rows if not _yaml(name).exists())]


def _yaml(name: str) -> Path:
    return ROOT / "pipelines" / f"{name}.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="pipelines to run; none: only write the table anew")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each, with seeds from 1 on")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--folder", type=Path, help="to run in; the runs stay there")
    arguments = parser.parse_args()
    names = (
        sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml")) if arguments.only is None else arguments.only
    )
    if unknown := [name for name in names if not _yaml(name).exists()]:
        parser.error(f"no pipeline is named {', '.join(unknown)}")
    if arguments.check:
        lines = stale(records())
        print("\n".join(lines) or "every row is what was measured")
        raise SystemExit(bool(lines))
    with tempfile.TemporaryDirectory(prefix="seqpipe-pipelines-") as parent:
        folder = (arguments.folder or Path(parent)).resolve()
        ignored = shutil.ignore_patterns("__pycache__", "tiny-bert*")
        shutil.copytree(ROOT / "pipelines", folder / "pipelines", ignore=ignored, dirs_exist_ok=True)
        for name in dict.fromkeys(name for chosen in names for name in with_start(chosen)):
            print(f"== {name}", file=sys.stderr, flush=True)
            record = run(name, folder)
            others = {str(seed): run(name, folder, seed)["scores"] for seed in range(2, arguments.seeds + 1)}
            known = records() | {name: record | ({"seeds": others} if others else {})}
            RECORD.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
            PAGE.write_text(table(PAGE.read_text(encoding="utf-8"), known), encoding="utf-8")
    PAGE.write_text(table(PAGE.read_text(encoding="utf-8"), records()), encoding="utf-8")


if __name__ == "__main__":
    main()
