"""Explanations by occlusion against the truth: texts whose label one planted word decides.

    python benchmarks/explain.py                 # the four models, 500 test texts each; two or three minutes
    python benchmarks/explain.py lstm ngrams

Each text has 8 to 15 words drawn from 60, and at a random place one of 12 planted words, three for each of four labels.
In training there are also texts without one, of a fifth label: without them a model may answer one of the labels where
it finds no planted word of the others, and then no word decides. It is trained on 1,250 texts, and scored on 500 others
with a planted word: how often that word is the most important where the answer is right, and the mean area under the
deletion curve beside that of random orders. Its figures are recorded in runs/results.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import common
from common import PREPARED, RUNS, write_json, write_jsonl

import seqpipe

LABELS, PLANTED, FILLERS, TRAIN, TEST = 4, 3, 60, 1250, 500
WORDS = {"use": "words"}
LOOKUP = {"use": "lookup", "dim": 32}
ADAMW = {"optimizer": {"use": "adamw", "lr": 0.003}, "epochs": 15}
SGD = {"optimizer": {"use": "sgd", "lr": 1.0}, "epochs": 15}
NGRAMS = {"use": "ngrams", "dim": 32, "lr": 30}
MODELS = {
    "cnn": (LOOKUP, {"use": "cnn", "filters": 32, "widths": [1, 3]}, {"use": "label", "pool": "max"}, ADAMW),
    "lstm": (LOOKUP, {"use": "lstm", "hidden": 32}, {"use": "label", "pool": "mean"}, ADAMW),
    "transformer": (LOOKUP, {"use": "transformer", "layers": 2, "heads": 4}, {"use": "label", "pool": "mean"}, ADAMW),
    "ngrams": (NGRAMS, {"use": "bag", "pool": "sqrtn"}, {"use": "label"}, SGD),
}


def planted_texts(count: int, seed: int, without: bool) -> Iterator[dict[str, str]]:
    """Texts with the label that their planted word decides, and that word; some without a planted word."""
    draw = random.Random(seed)
    for _ in range(count):
        label, number = draw.randrange(LABELS + without), draw.randrange(PLANTED)
        words = [f"w{draw.randrange(FILLERS)}" for _ in range(draw.randint(8, 15))]
        if label == LABELS:
            yield {"text": " ".join(words), "label": "none"}
            continue
        planted = f"key{label * PLANTED + number}"
        words.insert(draw.randrange(len(words) + 1), planted)
        yield {"text": " ".join(words), "label": f"label{label}", "planted": planted}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; default: all")
    folder = PREPARED / "explain"
    tests = [*planted_texts(TEST, 2, False)]
    write_jsonl(folder / "train.jsonl", planted_texts(TRAIN, 1, True))
    write_jsonl(folder / "test.jsonl", tests)
    for name in parser.parse_args().models or MODELS:
        embedding, encoder, head, train = MODELS[name]
        parts = {"tokenizer": WORDS, "embedding": embedding, "encoder": encoder, "head": head}
        data = {"reader": "jsonl", "train": str(folder / "train.jsonl"), "test": str(folder / "test.jsonl")}
        content = {
            "name": f"explain-{name}",
            "data": data,
            **parts,
            "train": {"batch_tokens": 512, "threads": 1} | train,
        }
        write_json(folder / f"{name}.yaml", content)  # JSON is YAML
        common.seqpipe("run", folder / f"{name}.yaml", "--fresh", "--quiet")
        model = seqpipe.load(RUNS / f"explain-{name}" / "bundle", "cpu", threads=1)
        first, areas, others = [], [], []
        for record in tests:
            explanation = model.explain(record["text"])
            if explanation.answer["label"] != record["label"]:
                continue
            (importance,) = explanation.attentions
            start, end = importance.places[int(importance.weights.argmax())]
            first.append(record["text"][start:end] == record["planted"])
            areas.append(explanation.faithfulness["area"])
            others.append(explanation.faithfulness["random"])
        right = len(first)
        share, area, chance = sum(first) / right, sum(areas) / right, sum(others) / right
        print(
            f"{name}: accuracy {right / TEST:.1%}, planted word first {share:.1%}, area {area:.3f}, random {chance:.3f}"
        )
        figures = {"accuracy": round(100 * right / TEST, 1), "planted word first": round(100 * share, 1)}
        figures |= {"area": round(area, 3), "random order": round(chance, 3)}
        common.record(
            "explain", "planted words", [{"row": name, "figures": figures, "asked": "≥ 95 %", "met": share >= 0.95}]
        )


if __name__ == "__main__":
    main()
