"""Keys without effect: change one key of a YAML at a time, train five steps, and compare weights, decisions and graph.

    python benchmarks/option_effects.py                             # every component and section, up to an hour
    python benchmarks/option_effects.py --only encoder.gru train    # some of them

Each built-in stage and tokenizer is put into a small pipeline of its kind. For each of its options values are made from
the option's type. A key has an effect if for one of them the fitted artifacts, the weights after five steps, the
decision for a batch or the exported graph differ; it is refused if seqpipe refuses every value with a message. What
remains is listed as conditional in `CONDITIONAL`, with what the effect waits for, or is a fault. A value that fails
with another error than seqpipe's own is a fault too.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import common
import torch
from common import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))
from tiny_pipelines import QUIET, reversals, write_conll, write_jsonl, write_yaml

from seqpipe.config.loader import load_config
from seqpipe.config.plugins import Plugins
from seqpipe.config.schema import DataKeys, Export, Train
from seqpipe.config.signature import component_options
from seqpipe.errors import SeqpipeError
from seqpipe.export.graph import to_onnx
from seqpipe.features.sources import tokenizers_of
from seqpipe.training.data_forms import data_form
from seqpipe.training.evaluation import TrainedPipeline, calibrate
from seqpipe.training.network import Network
from seqpipe.training.trainer import Trainer

STEPS = ["train.epochs=1", "train.epoch_steps=5"]
VALUES = 3  # that are tried of each option
LOOKUP, GRU = {"use": "lookup", "dim": 8}, {"use": "gru", "hidden": 4}
# Stages without which an option has nothing to work on, by component.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "embedding.ngrams": {"encoder": None},
    "encoder.compare": {"tokenizer": {"use": "words", "field": ["text", "other"]}},
    "encoder.words": {"tokenizer": {"use": "bpe", "max_size": 60}},
    "head.skip-gram": {"encoder": None},
    "head.lm": {"encoder": {"use": "gru", "hidden": 8, "direction": "forward"}},
    "head.bilm": {"encoder": "bilm"},
    "encoder.bilm": {"head": "bilm"},
    "head.vector": {"train": {"batch_size": 8}},
}
TARGETS = {"seq2seq": "reversed", "copy-seq2seq": "reversed", "transformer-decoder": "reversed", "pointer": "places"}
NUMERIC = ("linear", "image", "mel", "pyramid", "subsample", "lenet", "resnet")
LEFT_OUT = {  # components that need files of a checkpoint, and are measured by benchmarks/random_checkpoints.py
    "pretrained", "pretrained-decoder", "pretrained-seq2seq", "fine-tuned", "static", "vectors", "elmo", "lexicon",
    "answer-span",
    "fine-tuned-reader",
}  # fmt: skip
WORDS = {"a": "Ada", "b": "b7", "c": "Été", "e": "ﬁn"}
# Keys whose effect waits for something that five steps of a small pipeline do not have.
CONDITIONAL: Mapping[str, str] = {
    "encoder.transformer.longest": "needs positions: learned",
    "encoder.self-attention.longest": "needs positions: learned, or score: location",
    "encoder.self-attention.scale": "needs positions",
    "encoder.self-attention.units": "needs score: additive or concat-tanh",
    "embedding.positions.longest": "needs positions: learned",
    "encoder.sentences.split": "needs a text with a line break",
    "encoder.words.joined": "of a converted checkpoint",
    "embedding.ngrams.labels": "needs ngrams of the whole text",
    "head.seq2seq.positions": "needs score: location",
    "head.seq2seq.combine": "needs several inputs",
    "head.seq2seq.sampling_floor": "needs scheduled_sampling",
    "head.seq2seq.sampling_steps": "needs scheduled_sampling",
    "head.copy-seq2seq.positions": "needs score: location",
    "head.skip-gram.window": "needs texts of which subsampling leaves several words",
    "export.precision": "weights are quantized after the graph that is compared here",
    "data.offsets": "needs spans after characters outside the basic plane",
    "head.mlm.pool": "needs next_sentence",
    "head.transformer-decoder.longest": "needs positions: learned",
    "head.transformer-decoder.combine": "needs several inputs",
    "head.transformer-decoder.span_length": "needs spans, a self-supervised target",
    "train.precision": "small recurrent models compute in fp32 on a CPU",
    "train.teacher": "needs a trained model",
    "train.patience": "ends training after many epochs",
    "train.checkpoint_steps": "how often the state is saved",
    "train.threads": "speed",
    "train.metric": "selects an epoch of several",
    "train.matmul_precision": "only devices with TF32",
    "train.too_long": "needs train.max_tokens and a longer text",
    "train.max_tokens": "refuses longer texts",
    "export.license": "the model card",
    "export.language": "the model card",
    "export.max_tokens": "a limit of the bundle",
    "export.max_beams": "a limit of the bundle",
    "data.split_seed": "needs a share",
    "data.group": "needs a share or folds",
    "data.bad_rows": "needs a bad row",
    "data.misaligned": "needs spans that cut a token",
    "data.overlaps": "needs overlapping spans",
    "data.unseen_labels": "needs a label that train lacks",
}


def records(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with a target of every kind: words with capitals, digits, accents and a ligature, some of them rare."""
    rows = reversals(count, seed)
    for number, row in enumerate(rows):
        words = [WORDS.get(letter, letter) for letter in row["text"]] + ([f"w{number}"] if number % 3 == 0 else [])
        starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
        row["spans"] = [
            {"start": start, "end": start + len(word), "label": "x" if word in "df" else "y"}
            for start, word in zip(starts, words, strict=True)
            if word in ("d", "f", "Ada")
        ]
        row |= {"text": " ".join(words), "reversed": " ".join(words[::-1]), "other": row["reversed"], "places": [0]}
        row |= {"label": "aaabbc"[number * 7 % 6], "labels": ["aab"[number % 3]], "score": float(number % 5)}
        row |= {"mood": "xy"[number % 2], "target": row["reversed"]}
    return rows


def write_files(folder: Path) -> None:
    for seed, part in enumerate(("train", "dev"), 1):
        write_jsonl(folder / f"{part}.jsonl", records(60, seed))
        write_conll(folder / f"{part}.conll", 40, seed)


def base(place: str, use: str) -> dict[str, Any]:
    """The content of a small pipeline with a component."""
    content: dict[str, Any] = {"data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl"}}
    content |= {"tokenizer": "words", "embedding": LOOKUP, "encoder": GRU, "head": "label"}
    content["train"] = {"batch_tokens": 64, "threads": 1}
    content |= BESIDE.get(f"{place}.{use}", {})
    if place != "section":
        content[place] = {"use": use}
    if place == "head" and use in TARGETS:
        content["head"] = {"use": use, "target": TARGETS[use]} | (
            {"target_tokenizer": "words"} if use != "pointer" else {}
        )
    return content


def values(schema: Mapping[str, Any], definitions: Mapping[str, Any], default: Any) -> Iterator[Any]:
    """Yield values of an option's type, other than its default."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for part in schema.get("anyOf", schema.get("oneOf", ())):
        yield from values(part, definitions, default)
    kind = schema.get("type")
    if "enum" in schema or "const" in schema:
        yield from (value for value in schema.get("enum", [schema.get("const")]) if value != default)
    elif kind == "boolean":
        yield not default
    elif kind in ("integer", "number"):
        start = default if isinstance(default, (int, float)) and not isinstance(default, bool) else 1
        tried = [start + 1, max(1, start // 2), 20, 2, 1] if kind == "integer" else [0.5, 0.1, start * 2.0, 2.0]
        yield from (value for value in tried if value != default)
    elif kind == "array":
        inner = [*values(schema.get("items", {"type": "integer"}), definitions, None)]
        yield from ([value] * max(1, schema.get("minItems", 1)) for value in inner if [value] != default)
        yield [1, 2]
    elif kind == "string":
        yield "mood"
    elif kind == "object":
        yield {"column": "mood"}


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def outcomes(path: Path, overrides: list[str]) -> Iterator[str]:
    """Yield hashes of what a YAML comes to: weights after five steps, answer kinds, tokenizers, decision, graph."""
    config = load_config(path, [*STEPS, *overrides])
    form = data_form(config)
    train = form.read(config.data.train)
    artifacts = form.fit(train)
    torch.manual_seed(config.train.seed)
    data = form.load(artifacts, train)
    network = Network(config, data.artifacts)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(network, config, data.batches, None, Path(folder) / "checkpoints", QUIET).train()
    if data.dev_batches:
        calibrate(network, data.dev_batches)
    yield digest([(name, tensor.numpy().tobytes()) for name, tensor in network.state_dict().items()])
    yield digest([task.answer for task in data.artifacts.tasks])
    yield digest([tokenizer.to_str() for tokenizer in tokenizers_of(data.artifacts.featurizer).values()])
    with torch.no_grad():
        batch = data.batches(data.batches.order(0)[0])
        torch.manual_seed(1)
        yield digest(sorted((name, tensor.numpy().tobytes()) for name, tensor in network.decide(batch, {}).items()))
    yield digest(to_onnx(TrainedPipeline(network, config)))


def effect(path: Path, key: str, tried: list[Any], plain: list[str]) -> tuple[str, str]:
    """Return what a key does: effect, refused, none or error, with the last message."""
    result, message = "refused", ""
    for value in tried[:VALUES]:
        override = f"{key}={json.dumps(value)}"
        try:
            # The graph is exported only if all before it is equal.
            if any(changed != before for changed, before in zip(outcomes(path, [override]), plain, strict=False)):
                return "effect", override
            result, message = "none", override
        except SeqpipeError as error:
            message = message or f"{override}: {str(error).splitlines()[0][-200:]}"
        except Exception as error:  # a fault of a component, which is what is looked for
            return "error", f"{override}: {type(error).__name__}: {error}"
    return result, message


def keys_of(place: str, use: str, plugins: Plugins) -> dict[str, list[Any]]:
    """Return the keys of a component or section, each with values to try."""
    model: Any = {"train": Train, "export": Export, "data": DataKeys}.get(use) if place == "section" else None
    prefix = use if place == "section" else place
    if model is None:
        model = component_options(place, plugins.find(place, use).load())
    schema = model.model_json_schema()
    found = {
        f"{prefix}.{name}": [*values(entry, schema.get("$defs", {}), entry.get("default"))]
        for name, entry in schema["properties"].items()
        if name not in ("train", "dev", "test", "add", "unlabelled", "candidates", "epochs", "epoch_steps", "fold")
    }
    if place in ("embedding", "encoder", "head"):
        found |= {f"{place}.freeze": [True], f"{place}.lr": [0.1]}
    return found


def measure(name: str, plugins: Plugins) -> dict[str, Any]:
    """Return the figures of a component or section: the number of its keys with each result."""
    place, _, use = name.partition(".") if "." in name else ("section", "", name)
    counts: dict[str, int] = dict.fromkeys(("keys", "effect", "refused", "conditional", "none", "error"), 0)
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        path = write_yaml(Path(folder), "small", **base(place, use))
        plain = [*outcomes(path, [])]
        for key, tried in keys_of(place, use, plugins).items():
            result, message = effect(path, key, tried, plain)
            qualified = key if place == "section" else f"{name}.{key.partition('.')[2]}"
            if result == "none" and qualified in CONDITIONAL:
                result = "conditional"
            counts["keys"] += 1
            counts[result] += 1
            if result in ("none", "error"):
                faults.append(f"{qualified}: {result} ({message.replace(folder, '')})")
            print(f"  {qualified}: {result} {message.replace(folder, '')[:150]}", flush=True)
    return {"row": name, "figures": counts, "note": "; ".join(faults) or None, "met": not faults}


def names(plugins: Plugins) -> list[str]:
    """The components and sections that are measured."""
    stages = ("tokenizer", "embedding", "encoder", "head")
    every = [f"{place}.{use}" for place in stages for use in plugins.names(place) if use not in (*LEFT_OUT, *NUMERIC)]
    return [*every, "train", "export", "data"]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="such as encoder.gru or train")
    torch.set_num_threads(1)
    plugins = Plugins()
    only, rows = parser.parse_args().only, []
    for name in only or names(plugins):
        rows.append(measure(name, plugins))
        print(name, rows[-1]["figures"], rows[-1]["note"] or "", flush=True)
        common.record("option_effects", "keys", rows[-1:])
    if not only:
        total = {what: sum(row["figures"][what] for row in rows) for what in rows[0]["figures"]}
        common.record(
            "option_effects", "keys", [{"row": "all", "figures": total, "met": all(row["met"] for row in rows)}]
        )


if __name__ == "__main__":
    main()
