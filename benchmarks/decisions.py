"""Calibration and class weights: expected calibration error of `init`'s defaults, and recall of rare labels.

    python benchmarks/decisions.py --data FOLDER                     # all, about 15 minutes of one core
    python benchmarks/decisions.py --data FOLDER --only calibration
    python benchmarks/decisions.py --data FOLDER --only weights

Calibration: `init` and `train` on the whole of clinc150, banking77 and ncbi_disease. The errors are those of one model
on the test set, at the temperature that was chosen on dev (after) and at 1 (before), over 15 bins; of spans, each span
that is answered counts.

Weights: in clinc150, one of the ten domains is the label and `travel` is made 1 % of the training texts; of
ncbi_disease, mentions without a lower-case letter, such as abbreviations, are a label of their own: 1.2 % of all tags.
Each is trained without and with a weight of the rare label, which is the only difference: clinc150 with a third of
`init`'s learning rates, ncbi_disease with a small tagger on 1,500 sentences.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import defaults
import torch
from common import PREPARED, RUNS

from seqpipe.console import Console
from seqpipe.evaluation.scores import answered, score_answers
from seqpipe.nn.calibration import calibration_error
from seqpipe.runs.run_folder import load_trained, open_run
from seqpipe.training.data_forms import data_form
from seqpipe.training.evaluation import predictor

PLACE = PREPARED / "decisions"
SENTENCES = 1_500  # of ncbi_disease
SMALL = (  # a tagger with which the rare label is hard
    "embedding=[{use: lookup, dim: 50, dropout: 0.3, word_dropout: 0.15}, "
    "{use: char-cnn, dim: 30, widths: [3], dropout: 0.3}]",
    "encoder.hidden=64",
    "head.dropout=0.3",
    "train.epochs=10",
)
RARE_DOMAIN, RARE_SHARE = "travel", 0.01
WEIGHTS = (1.0, 5.0)  # before and after
DOMAIN_WEIGHTS = (1.0, 20.0)
SLOWER = ("train.optimizer.lr=0.3", "embedding.lr=6")  # at `init`'s learning rates weights over 10 diverge
Sentence = list[tuple[str, str]]


def train(name: str, train_file: Path, *settings: str) -> Path:
    """Write `init`'s YAML for a file, train it with one thread, and return the run's folder."""
    config, run = PLACE / f"{name}.yaml", RUNS / f"decisions-{name}"
    config.unlink(missing_ok=True)
    common.seqpipe("init", train_file, "-o", config)
    common.seqpipe("train", config, f"name={run.name}", "train.threads=1", *settings, "--fresh", "-q")
    return run


def evaluate(folder: Path, temperature: float | None = None) -> tuple[dict[str, Any], float, float]:
    """Return the test scores of a run, its calibration error, and its temperature, which may be set."""
    torch.set_num_threads(1)
    run = open_run(folder, Console(-1))
    network = load_trained(run).network
    if temperature is not None:
        network.head.temperature.fill_(temperature)
    model = predictor(network)
    pairs = [*answered(model, data_form(run.config).read(run.config.data.tests["test"]))]
    scores, right = list[float](), list[bool]()
    for record, answer in pairs:
        gold, parts = model.task.gold(record), answer if isinstance(answer, list) else [answer]
        for part in parts:
            predicted = model.task.predicted([part] if isinstance(answer, list) else part)
            scores.append(part["score"])
            right.append(predicted[0] in gold if isinstance(answer, list) else predicted == gold)
    error = calibration_error(torch.tensor(scores), torch.tensor(right))
    return score_answers(model, pairs)[""], error, float(network.head.temperature)


def calibration_rows(data: Path) -> list[dict[str, Any]]:
    rows = []
    for name in ("clinc150", "banking77", "ncbi_disease"):
        if name == "ncbi_disease":
            run = train(name, common.data_path(data, name) / "train.tsv")
        else:
            for part, records in defaults.read(name, data).items():
                common.write_jsonl(PLACE / name / f"{part}.jsonl", records)
            run = train(name, PLACE / name / "train.jsonl")
        (before, error_before, _), (after, error_after, temperature) = evaluate(run, 1.0), evaluate(run)
        metric = next(iter(after))
        figures = {
            "ECE before": f"{100 * error_before:.2f} %",
            "ECE after": f"{100 * error_after:.2f} %",
            "temperature": round(temperature, 2),
            f"{metric} before": round(100 * before[metric], 2),
            f"{metric} after": round(100 * after[metric], 2),
        }
        print(name, figures, flush=True)
        rows.append({"row": name, "figures": figures})
    return rows


def sentences(data: Path) -> dict[str, list[Sentence]]:
    """Return the sentences of ncbi_disease, by part."""
    folder = common.data_path(data, "ncbi_disease")
    parts = {}
    for part in ("train", "dev", "test"):
        blocks = (folder / f"{part}.tsv").read_text(encoding="utf-8").strip().split("\n\n")
        parts[part] = [[tuple(line.split("\t")) for line in block.split("\n")] for block in blocks]
    return parts


def write_sentences(folder: Path, parts: dict[str, list[Sentence]], count: int) -> Path:
    """Write random sentences of the training part, and all of the others."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {**parts, "train": random.Random(1).sample(parts["train"], count)}
    for part, listed in chosen.items():
        blocks = ("\n".join(map("\t".join, sentence)) + "\n" for sentence in listed)
        (folder / f"{part}.tsv").write_text("\n".join(blocks), encoding="utf-8")
    return folder


def with_short_names(sentence: Sentence) -> Sentence:
    """Give mentions without a lower-case letter the label Short."""
    relabelled, label = Sentence(), ""
    for i, (word, tag) in enumerate(sentence):
        if tag.startswith("B-"):
            rest = i + 1
            while rest < len(sentence) and sentence[rest][1].startswith("I-"):
                rest += 1
            mention = "".join(word for word, _ in sentence[i:rest])
            label = "Disease" if mention.upper() != mention else "Short"
        relabelled.append((word, tag if tag == "O" else f"{tag[:2]}{label}"))
    return relabelled


def domains(data: Path) -> Path:
    """Write clinc150 with its domains as labels, one of them rare."""
    names = json.loads((common.data_path(data, "clinc150") / "domains.json").read_text(encoding="utf-8"))
    domain_of = {intent: domain for domain, intents in names.items() for intent in intents}
    dice = random.Random(1)
    for part, records in defaults.read("clinc150", data).items():
        kept = [{**record, "label": domain_of[record["label"]]} for record in records]
        if part == "train":
            rare = [record for record in kept if record["label"] == RARE_DOMAIN]
            others = [record for record in kept if record["label"] != RARE_DOMAIN]
            kept = others + dice.sample(rare, round(len(others) * RARE_SHARE / (1 - RARE_SHARE)))
            dice.shuffle(kept)
        common.write_jsonl(PLACE / "domains" / f"{part}.jsonl", kept)
    return PLACE / "domains" / "train.jsonl"


def weight_rows(data: Path) -> list[dict[str, Any]]:
    parts = {part: [*map(with_short_names, listed)] for part, listed in sentences(data).items()}
    short = write_sentences(PLACE / "short", parts, SENTENCES) / "train.tsv"
    cases: Sequence[tuple[str, str, Path, Sequence[float], Sequence[str]]] = (
        ("clinc150, a domain", RARE_DOMAIN, domains(data), DOMAIN_WEIGHTS, SLOWER),
        ("ncbi_disease, crf", "Short", short, WEIGHTS, SMALL),
        ("ncbi_disease, tags", "Short", short, WEIGHTS, (*SMALL, "head.use=tags")),
    )
    rows = []
    for name, label, file, weights, settings in cases:
        figures: dict[str, Any] = {}
        for weight in weights:
            weighted = f"head.class_weights={{{label}: {weight}}}"
            run = train(f"weights-{file.parent.name}", file, *settings, weighted)
            scores, _, _ = evaluate(run)
            rest = [of_label["f1"] for each, of_label in scores["labels"].items() if each != label]
            figures[f"recall, weight {weight:g}"] = round(100 * scores["labels"][label]["recall"], 1)
            figures[f"its F1, weight {weight:g}"] = round(100 * scores["labels"][label]["f1"], 1)
            figures[f"F1 of the rest, weight {weight:g}"] = round(100 * sum(rest) / len(rest), 1)
        print(name, figures, flush=True)
        rows.append({"row": name, "figures": figures})
    return rows


def main() -> None:
    parser = common.parser(__doc__)
    common.add_data_option(parser)
    parser.add_argument("--only", choices=("calibration", "weights"))
    arguments = parser.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    for question, measure in (("calibration", calibration_rows), ("weights", weight_rows)):
        if arguments.only in (None, question):
            common.record("decisions", question, measure(arguments.data))


if __name__ == "__main__":
    main()
