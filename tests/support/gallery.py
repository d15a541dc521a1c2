"""Small trained and exported models for all tests that need a run or a bundle: `gallery("label")`.

A model is made when a test first asks for it, in a folder that all workers and all later runs of pytest share, as long
as no file of the sources and no version of torch, onnx or onnxruntime changes. There is one for each answer kind.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import torch
from filelock import FileLock
from tiny_pipelines import (
    PARTS,
    QUIET,
    Records,
    labelled_texts,
    plugins,
    reversals,
    tagged_sentences,
    toy_heads,
    train_settings,
    write_classifier,
    write_jsonl,
    write_pipeline,
    write_seq2seq,
    write_tagger,
    write_yaml,
)
from torch import Tensor, nn

from seqpipe.config.loader import load_config
from seqpipe.runs.full_run import RunOptions, run_all

ROOT = Path(__file__).parents[2]
UNUSED_DAYS = 7  # after which the models of other sources are deleted


@dataclass(frozen=True)
class Example:
    """A trained and exported model: a folder with its YAML, its data files and `runs/NAME`. Read it, or take a copy."""

    folder: Path

    @property
    def yaml(self) -> Path:
        (path,) = self.folder.glob("*.yaml")
        return path

    @property
    def run(self) -> Path:
        (path,) = (self.folder / "runs").iterdir()
        return path

    @property
    def bundle(self) -> Path:
        return self.run / "bundle"

    @property
    def scores(self) -> dict[str, Any]:
        """The scores of the test set."""
        scores: dict[str, Any] = json.loads((self.run / "metrics.json").read_text(encoding="utf-8"))["test"]
        return scores

    def copy(self, folder: Path) -> Example:
        return Example(Path(shutil.copytree(self.folder, folder, dirs_exist_ok=True)))


# Records


def several_labels(count: int, seed: int) -> list[dict[str, Any]]:
    rows = [(record["text"], record["label"]) for record in labelled_texts(count, seed)]
    return [{"text": text, "labels": ["any", label][: 1 + i % 2]} for i, (text, label) in enumerate(rows)]


def numbered(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with a score that their label gives away."""
    return [{**record, "score": 2.0 * "bfg".index(record["label"][0])} for record in labelled_texts(count, seed)]


TOPICS = {"hours": ("open", "closed", "when"), "price": ("cost", "much", "pay"), "way": ("where", "bus", "street")}
FILLERS = ("the", "a", "of", "today", "please", "hello")
ANSWERS = [
    {"text": "when open", "label": "hours", "answer": "From ten to seven."},
    {"text": "closed when", "label": "hours", "answer": "Not on Monday."},
    {"text": "how much pay", "label": "price", "answer": "Twelve euros."},
    {"text": "where bus", "label": "way", "answer": "Tram 4."},
]


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Questions about a topic, in words of it and others."""
    dice, rows = random.Random(seed), []
    for _ in range(count):
        label = dice.choice(sorted(TOPICS))
        words = dice.sample(TOPICS[label], 2) + dice.choices(FILLERS, k=dice.randint(1, 3))
        rows.append({"text": " ".join(dice.sample(words, len(words))), "label": label, "reply": f"about {label}"})
    return rows


def passages(count: int, seed: int) -> list[dict[str, Any]]:
    """Passages about who is where, each with a question; every third is about something that is not said."""
    dice, rows = random.Random(seed), []
    for i in range(count):
        person = dice.choice(("Ada", "Bob Ray", "Cho", "Dee Dee Fox"))
        place = dice.choice(("Oslo", "New York", "Lima", "Rome"))
        context = dice.choice(("😀 {} lives in {} .", "Nobody but {} knows {} .")).format(person, place)
        question, text = (("who is it", person), ("which place is it", place), ("how much is it", ""))[i % 3]
        gold = {"text": [text], "answer_start": [context.index(text)]} if text else {"text": [], "answer_start": []}
        rows.append({"question": question, "context": context, "answers": gold})
    return rows


COLOURS = ("red", "green", "Blue", "Pink", "grey", "Gold", "teal", "Ruby")
LONGER = "red Gold green teal red grey red Ruby"  # than any other that `capitals` makes


def capitals(count: int, seed: int) -> list[dict[str, Any]]:
    """Words, and the positions of those with a capital, from the last to the first; the test set has a longer text."""
    dice = random.Random(seed)
    rows = [{"text": LONGER, "names": [7, 1]}] if seed == PARTS.index("test") + 1 else []
    for _ in range(count):
        words = dice.choices(COLOURS, k=dice.randint(1, 6))
        rows.append({"text": " ".join(words), "names": [i for i, w in enumerate(words) if w[0].isupper()][::-1]})
    return rows


def cities(count: int, seed: int) -> list[dict[str, Any]]:
    """Cities and their countries: either gives the other away."""
    dice = random.Random(seed)
    pairs = dice.choices((("Oslo", "Norway"), ("Rome", "Italy"), ("Lima", "Peru"), ("Cairo", "Egypt")), k=count)
    return [{"text": f"the city of {city} is in {country} ."} for city, country in pairs]


def tagged(count: int, seed: int) -> list[dict[str, Any]]:
    """Sentences with what a head of each kind needs as its target."""
    rows = []
    for i, (words, tags) in enumerate(tagged_sentences(count, seed)):
        labels = sorted({tag.partition("-")[2] for tag in tags if tag != "O"}) + ["EVEN"] * (len(words) % 2 == 0)
        rows.append({"words": words, "tags": tags, "label": "ab"[i % 2], "labels": labels, "score": len(words) / 3})
    return rows


def parsed(count: int, seed: int) -> list[dict[str, Any]]:
    """Sentences with a value for each field of the head `Shape`."""
    rows = []
    for words, tags in tagged_sentences(count, seed):
        pairs = [(i, i + 1) for i in range(len(words) - 1) if "O" not in tags[i : i + 2]]
        rows.append(
            {
                "words": words,
                "tags": tags,
                "head": [None, *range(len(words) - 1)],
                "size": [len(word) / 5 for word in words],
                "mood": "ab"[len(words) % 2],
                "length": len(words) / 4,
                "name": {"start": 0, "end": len(words[0])} if tags[0] != "O" else None,
                "next": [{"from": i, "to": j, "label": "next"} for i, j in pairs],
                "weight": [{"from": i, "to": j, "value": 1.0} for i, j in pairs],
            }
        )
    return rows


def number_rows(i: int) -> list[list[float]]:
    """From no row of numbers to four."""
    return [[i / 3 - 4, float(j * j), 1e-3 * i * j] for j in range(i % 5 or int(i < 60))]


def several_sources(count: int, seed: int) -> list[dict[str, Any]]:
    """A text and rows of numbers, and the first letters of the text."""
    return [
        {**record, "numbers": number_rows(i), "target": record["text"][: 3 + i % 4]}
        for i, record in enumerate(labelled_texts(count, 3))
    ]


class Shape(nn.Module):
    """A structured head with fields of each kind: of the text, of its words, of pairs of words."""

    answer = "structured"
    answer_settings: ClassVar = {
        "fields": {
            "tag": {"per": "word", "type": "label", "target": "tags"},
            "head": {"per": "word", "type": "position"},
            "size": {"per": "word", "type": "number"},
            "mood": {"per": "text", "type": "label"},
            "length": {"per": "text", "type": "number"},
            "name": {"per": "text", "type": "span"},
            "next": {"per": "pair", "type": "label", "outside": "none"},
            "weight": {"per": "pair", "type": "number"},
        }
    }

    def __init__(self, dim: int, labels: Mapping[str, Sequence[str]]):
        super().__init__()
        self.tag, self.mood = nn.Linear(dim, len(labels["tag"])), nn.Linear(dim, len(labels["mood"]))
        self.numbers, self.of_text, self.ends = nn.Linear(dim, 1), nn.Linear(dim, 2), nn.Linear(dim, 2)
        self.heads, self.pairs = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def logits(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        mean = torch.where(mask[..., None], x, 0.0).sum(1) / mask.sum(1, keepdim=True)
        among = (self.heads(x) @ x.transpose(1, 2)).masked_fill(~mask[:, None], -1e4)
        return {
            "tag": self.tag(x).log_softmax(2),
            "head": nn.functional.pad(among, (1, 0)).log_softmax(2),  # (B, T, 1 + T), none of them first
            "size": self.numbers(x)[..., 0],
            "mood": self.mood(mean).log_softmax(1),
            "of_text": self.of_text(mean),
            "ends": self.ends(x).masked_fill(~mask[..., None], -1e4),
            "pairs": torch.where(mask[:, :, None] & mask[:, None], self.pairs(x) @ x.transpose(1, 2), -1e4),
        }

    def loss(
        self, x: Tensor, mask: Tensor, tag: Tensor, head: Tensor, mood: Tensor, length: Tensor, next: Tensor
    ) -> Tensor:
        logits, both = self.logits(x, mask), mask[:, :, None] & mask[:, None]
        losses = [
            nn.functional.nll_loss(logits["tag"][mask], tag[mask]),
            nn.functional.nll_loss(logits["head"][mask], head[mask] + 1),
            nn.functional.nll_loss(logits["mood"], mood),
            nn.functional.mse_loss(logits["of_text"][:, 0], length),
            nn.functional.binary_cross_entropy_with_logits(logits["pairs"][both], next[both].float()),
        ]
        return torch.stack(losses).sum()

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        logits = self.logits(x, mask)
        first = logits["ends"][..., 0].argmax(1)
        positions = torch.arange(x.shape[1], device=x.device)
        last = logits["ends"][..., 1].masked_fill(positions < first[:, None], -2e4).argmax(1)
        near = logits["pairs"] > 0
        return {
            "tag": logits["tag"].argmax(2),
            "tag_scores": logits["tag"].amax(2).exp(),
            "head": logits["head"].argmax(2) - 1,
            "size": logits["size"],
            "mood": logits["mood"].argmax(1),
            "mood_scores": logits["mood"].amax(1).exp(),
            "length": logits["of_text"][:, 0],
            "name": torch.where(logits["of_text"][:, 1:] > 0, torch.stack([first, last], 1), -1),
            "next": near.long(),
            "next_scores": logits["pairs"].sigmoid(),
            "weight": torch.where(near, logits["pairs"], 0.0),
        }


# Models


def write_candidates(folder: Path, **content: Any) -> Path:
    """Write the data and YAML of the model `candidate`."""
    write_jsonl(folder / "candidates.jsonl", ANSWERS)
    return write_pipeline(folder, questions, "faq", (160, 40, 40), **content)


def write_hulls(folder: Path) -> Path:
    """Write the data and YAML of a pointer network that goes around the points of a plane."""
    for part, records, seed in (("train", 200, 5), ("dev", 30, 6), ("test", 30, 7)):
        recipe = {"task": "hull", "points": [3, 6], "records": records, "seed": seed}
        (folder / f"{part}.json").write_text(json.dumps(recipe))
    content = {
        "data": {"reader": "points"} | {part: f"{part}.json" for part in PARTS},
        "inputs": {"it": {"field": "points", "embedding": {"use": "linear", "dim": 16}}},
        "head": {"use": "pointer", "task": "hull", "close": True, "hidden": 16, "score": "bilinear"},
        "train": train_settings(8, 0.01, 128),
    }
    return write_yaml(folder, "corners", **content)


def write_reversals(folder: Path) -> Path:
    """Write the data and YAML of a model that writes strings of the letters a to f backward, and explains it."""
    content = {
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "lstm", "hidden": 24},
        "head": {"use": "seq2seq", "hidden": 32, "target": "reversed", "target_tokenizer": "same"},
        "train": train_settings(7, 0.015, 256) | {"schedule": {"use": "cosine"}},
        "export": {"explain": True},
    }
    path = write_seq2seq(folder, content)
    write_jsonl(folder / "train.jsonl", reversals(1000, 1))
    return path


@dataclass(frozen=True)
class Recipe:
    """A way to make an example: what writes its data and YAML, what changes in that YAML, components that it needs."""

    write: Callable[..., Path]
    content: Mapping[str, Any] = field(default_factory=dict)
    components: Callable[[], dict[str, tuple[str, type]]] = dict

    def make(self, folder: Path) -> None:
        config = load_config(self.write(folder, **self.content), (), plugins(**self.components()))
        with contextlib.chdir(folder):
            run_all(config, QUIET, RunOptions("cpu"))


def text_recipe(records: Records, name: str, *counts: int, **content: Any) -> Recipe:
    """A recipe of records of texts and the keys of a YAML."""
    return Recipe(write_pipeline, {"records": records, "name": name, "counts": counts or (60, 12, 12), **content})


def changed_recipe(write: Callable[..., Path], **changes: Any) -> Recipe:
    """A recipe of a pipeline of `tiny_pipelines`, with changes of its YAML."""
    return Recipe(lambda folder: write(folder, changes))


CONLL = {part: f"{part}.conll" for part in PARTS}
WORDS = {"use": "words", "lowercase": True}
LSTM = {"use": "lstm", "hidden": 6}
HEADS = [
    {"use": "label", "pool": "attention"},
    {"use": "label", "name": "many", "multi": True},
    {"use": "score", "pool": "mean"},
    {"use": "vector"},
    {"use": "crf", "name": "names"},
]
RECIPES: dict[str, Recipe] = {
    "spans": changed_recipe(write_tagger, train=train_settings(12)),
    "tags": changed_recipe(
        write_tagger,
        embedding={"use": "lookup", "dim": 8},
        data={"reader": {"use": "conll", "scheme": "none"}, **CONLL},
        head={"use": "crf", "scheme": "none"},
    ),
    "label": changed_recipe(
        write_classifier, encoder={"use": "lstm", "hidden": 8}, head="label", train=train_settings(12, 0.03, 64)
    ),
    "labels": text_recipe(several_labels, "several-labels", tokenizer="words", head={"use": "label", "multi": True}),
    "score": text_recipe(numbered, "numbered", tokenizer="words", head={"use": "score", "pool": "mean"}),
    "vector": text_recipe(labelled_texts, "similar", tokenizer="words", head="vector"),
    "candidate": Recipe(
        write_candidates,
        {
            "data": {"candidates": "candidates.jsonl"},
            "tokenizer": "words",
            "embedding": {"use": "lookup", "dim": 16},
            "head": "retrieval",
            "train": train_settings(5, tokens=256),
        },
    ),
    "span": text_recipe(
        passages,
        "passages",
        *(180, 24, 30),
        data={"reader": {"use": "jsonl", "text": None}},
        tokenizer={"use": "words", "field": ["question", "context"]},
        embedding={"use": "lookup", "dim": 16},
        encoder={"use": "lstm", "hidden": 24},
        head={"use": "answer-span", "no_answer": True},
        train=train_settings(12, 0.01, 256),
    ),
    "pointers": text_recipe(
        capitals,
        "names",
        *(300, 30, 40),
        tokenizer="words",
        embedding={"use": "lookup", "dim": 12},
        encoder={"use": "lstm", "hidden": 12},
        head={"use": "pointer", "target": "names", "hidden": 12, "score": "bilinear"},
        train=train_settings(8, 0.01, 128),
        export={"explain": True},
    ),
    "points": Recipe(write_hulls),
    "structured": Recipe(
        write_pipeline,
        {
            "records": parsed,
            "name": "structured",
            "counts": (120, 16, 16),
            "tokenizer": "words",
            "encoder": {"use": "gru", "hidden": 8},
            "head": "shape",
            "train": train_settings(30, 0.03, 24),
        },
        lambda: {"shape": ("head", Shape)},
    ),
    "text": Recipe(write_reversals),
    "generation": text_recipe(
        labelled_texts,
        "lm",
        tokenizer="chars",
        embedding={"use": "lookup", "dim": 24},
        encoder={"use": "gru", "hidden": 24, "direction": "forward"},
        head={"use": "lm", "packed": False},
        train=train_settings(6, 0.03, 128),
    ),
    "fill-mask": text_recipe(
        cities,
        "gaps",
        *(200, 20, 30),
        tokenizer=WORDS,
        embedding={"use": "lookup", "dim": 24},
        encoder={"use": "transformer", "layers": 1, "heads": 2, "dropout": 0.0},
        head={"use": "mlm", "tie": True},
        train=train_settings(25, 0.01, 256),
    ),
    "span-infilling": text_recipe(
        labelled_texts,
        "infilling",
        tokenizer={"use": "bpe", "max_size": 100},
        embedding={"use": "lookup", "dim": 16},
        encoder={"use": "transformer", "heads": 2, "layers": 1},
        head={"use": "transformer-decoder", "heads": 2, "layers": 1, "spans": 0.15},
        train=train_settings(1),
    ),
    "multi-head": text_recipe(
        tagged, "joint", *(60, 16, 16), tokenizer=WORDS, encoder=LSTM, head=HEADS, train=train_settings(12)
    ),
    "int8": changed_recipe(  # wide enough for weights in int8
        write_classifier,
        embedding={"use": "lookup", "dim": 64},
        encoder={"use": "transformer", "heads": 2},
        head="label",
        export={"precision": "int8"},
    ),
    "streaming": changed_recipe(
        write_tagger,
        encoder={**LSTM, "direction": "forward"},
        head={"use": "tags"},
        train=train_settings(12),
        export={"streaming": True},
    ),
    "plugin": Recipe(write_classifier, components=toy_heads),
    "sources": text_recipe(
        several_sources,
        "several",
        *(60, 8, 8),
        inputs={
            "source": {
                "tokenizer": "words",
                "embedding": {"use": "lookup", "dim": 6},
                "encoder": {"use": "gru", "hidden": 5},
            },
            "rows": {"field": "numbers", "embedding": {"use": "linear", "dim": 4}},
        },
        head={"use": "seq2seq", "hidden": 16, "embedding_dim": 8, "target_tokenizer": "chars"},
        train=train_settings(8, tokens=96),
    ),
}


# Making and keeping


@functools.cache
def root() -> Path:
    """The folder of the models that these sources make."""
    key = hashlib.sha256()
    files = [path for name in ("seqpipe", "plugins") for path in (ROOT / name).rglob("*")]
    files += [Path(__file__), Path(__file__).with_name("tiny_pipelines.py")]
    for path in sorted(files):
        if path.is_file() and path.suffix != ".pyc":
            key.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for package in ("torch", "onnx", "onnxruntime"):
        key.update(f"{package} {version(package)}".encode())
    folder = Path(os.environ["SEQPIPE_GALLERY"], key.hexdigest()[:16])
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for unused in folder.parent.iterdir():
        if unused.stat().st_mtime < time.time() - UNUSED_DAYS * 86_400:
            shutil.rmtree(unused, ignore_errors=True)
    return folder


def fingerprint(folder: Path) -> dict[str, list[int]]:
    """Size and time of the last change of every file but locks."""
    stats = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("[!.]*") if path.is_file()}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in sorted(stats.items())}


@functools.cache
def gallery(name: str) -> Example:
    """The model of this name of `RECIPES`, made if it is not there yet.

    Raises:
        RuntimeError: if a test has changed it.
    """
    folder, stamp = root() / name, root() / f"{name}.json"
    with FileLock(root() / f"{name}.lock"):
        if not stamp.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            RECIPES[name].make(folder)
            stamp.write_text(json.dumps(fingerprint(folder)), encoding="utf-8")
    if json.loads(stamp.read_text(encoding="utf-8")) != fingerprint(folder):
        raise RuntimeError(f"{folder} has changed: let the test that does so take `copy`, and delete the folder")
    return Example(folder)
