"""docs/bundle-format.md and docs/deploy: a runtime written from the page alone answers as seqpipe does, Node too."""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import documents
import independent
import numpy as np
import pytest
import torch
from factory import (
    PEOPLE,
    PLACES,
    QUIET,
    labelling,
    moods,
    plugins,
    sentences,
    tagging,
    toy_heads,
    write_jsonl,
    writing,
)
from huggingface_hub import ModelCard
from independent import Bundle, RefusedError
from jsonschema import Draft202012Validator
from media_bundles import GREY, IMAGE, MEL, STATED, encoded, in_base64, wav, write_media_bundle
from PIL import Image
from torch import Tensor, nn

from seqpipe import Model, load
from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.fill_mask import FillMask
from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.text import Text
from seqpipe.config.loader import load as load_config
from seqpipe.config.yaml import dump
from seqpipe.errors import BundleError, SeqpipeError
from seqpipe.features import splitting
from seqpipe.features.document import Doc
from seqpipe.features.kinds.ngrams import Ngrams
from seqpipe.features.kinds.registry import feature_kinds
from seqpipe.features.kinds.text import Chars
from seqpipe.pipeline.full_run import run_all
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.serve.openapi import input_schema

PAGE = documents.ROOT / "docs/bundle-format.md"
NODE = documents.ROOT / "examples/node"
PIECES = (
    *(
        *PEOPLE,
        *PLACES,
        "flew to",
        "met",
        "it rains in",
        "lovely",
        "sad",
        "fair",
        "abc",
        "fed",
        "10",
        "٣",
        "don't",
        "a_b",
    ),
    *(" ", " ", " ", " ", " . ", " , ", "!", "”", "。", "！」", "\n", "\r\n", "\n \n", "\u3000", "\x1c", "\x85"),
    *("Zoë", "İstanbul", "ΑΣΟΣ", "ROME", "ﬁ", "e\u0301", "\u0301", "שלום", "\u200b", "\ufeff", "你好", "「奥斯陆」"),
    *("ひらがな", "👩\u200d💻", "🇨🇭", "👍🏽", "\ud800", "\udfff", "\ufffd", "\U0010ffff", "[PAD]", "[UNK]"),
    *("Antidisestablishmentarianism", "Donaudampfschifffahrtsgesellschaft"),
)
SPLIT: list[Any] = [
    {"words": ["Ada", "flew", "to", "New", "York"]},
    {"words": ["Ada", "met", "Ada", "."], "text": "Ada  met\nAda."},
    {"words": ["New York", "[PAD]", "[EOS]", "ROME", "\ud800", "💩"]},
    {"words": []},
    {"words": None, "text": "in Rome"},
]
T = TypeVar("T")
KINDS = (
    *("spans", "tags", "text", "copying", "generation", "fill-mask", "label", "joint", "structured"),
    *("other field", "several", "ngrams"),
)


def texts(count: int, seed: int = 1) -> list[str]:
    """Texts of all scripts, with what is hard about each."""
    dice = random.Random(seed)
    return ["".join(dice.choices(PIECES, k=dice.randint(0, 14))) for _ in range(count)]


class OnDemand(dict[str, T]):
    """What is made when it is first asked for, so that no test waits for all."""

    def __init__(self, make: Callable[[str], T]):
        self.make = make

    def __missing__(self, name: str) -> T:
        self[name] = made = self.make(name)
        return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> OnDemand[Path]:
    """Bundles of trained pipelines, one for each kind of answer."""
    torch.set_num_threads(1)
    lookup = {"embedding": {"use": "lookup", "dim": 8}}
    ngrams = {"embedding": {"use": "ngrams", "dim": 8, "max_size": 150, "lr": 3.0, "weighting": "none"}}
    settings = {"batch_tokens": 48, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1}
    plain = {"use": "conll", "scheme": "none"}
    data = {"reader": plain, "train": "train.conll", "dev": "dev.conll", "test": "test.conll"}
    made = {
        "spans": (tagging, {"train": {"epochs": 12, **settings}}),
        "tags": (tagging, {**lookup, "data": data, "head": {"use": "crf", "scheme": "none"}}),
        "text": (writing, {"train": {"epochs": 25, **settings}}),
        "generation": (generation, {"train": {"epochs": 8, **settings}}),
        "fill-mask": (fill_mask, {"train": {"epochs": 4, **settings}}),
        "structured": (structured, {"train": {"epochs": 12, **settings}}),
        "copying": (copying, {"train": {"epochs": 8, **settings, "batch_tokens": 128}}),
        "label": (labelling, {}),
        "joint": (joint, {}),
        "ngrams": (tagging, {**ngrams, "data": data, "head": {"use": "tags", "scheme": "none"}}),
        "several": (several, {}),
    }

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("deploy")
        if name == "other field":
            other = Path(shutil.copytree(found["text"], folder / "bundle"))
            change(other, lambda manifest: manifest.update(field="note", golden=noted(manifest["golden"])))
            return other
        write, changes = made[name]
        config = load_config(write(folder, changes), (), plugins(**toy_heads(), shape=("head", Shape)))
        with contextlib.chdir(folder):
            run_all(config, QUIET, "cpu")
        return folder / "runs" / config.name / "bundle"

    found = OnDemand(make)
    return found


def copying(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Writes data and the YAML of a pipeline that copies words which no vocabulary holds."""
    dice = random.Random(5)
    for name, count in (("train", 80), ("dev", 10), ("test", 10)):
        rows = []
        for _ in range(count):
            one, other = ("".join(dice.choices("bdklmn", k=2) + dice.choices("aeiou", k=2)) for _ in range(2))
            rows.append({"text": f"{one} met {other} .", "target": f"{other}, {one}!"})
        write_jsonl(folder / f"{name}.jsonl", rows)
    words = r"\w+|[^\w\s]"
    content: dict[str, Any] = {
        "name": "copying",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": {"use": "words", "pattern": words, "min_count": 4},
        "embedding": {"use": "lookup", "dim": 12},
        "encoder": {"use": "lstm", "hidden": 16},
        "head": {
            "use": "copy-seq2seq",
            "hidden": 24,
            "target_tokenizer": {"use": "words", "pattern": words, "min_count": 4, "detokenize": True},
        },
    }
    path = folder / "copying.yaml"
    path.write_text(dump(content | dict(changes)))
    return path


def generation(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Writes data and the YAML of a language model that depends on a label."""
    for name, count in (("train", 60), ("dev", 10), ("test", 10)):
        write_jsonl(folder / f"{name}.jsonl", moods(count, 3))
    content: dict[str, Any] = {
        "name": "generation",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": {"use": "bpe", "max_size": 80},
        "embedding": {"use": "lookup", "dim": 16, "column": "label"},
        "encoder": {"use": "transformer", "causal": True, "heads": 2},
        "head": {"use": "lm", "packed": False},
    }
    path = folder / "generation.yaml"
    path.write_text(dump(content | dict(changes)))
    return path


def fill_mask(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Writes data and the YAML of a masked language model of subwords."""
    for name, count in (("train", 60), ("dev", 10), ("test", 10)):
        write_jsonl(folder / f"{name}.jsonl", moods(count, 3))
    content: dict[str, Any] = {
        "name": "fill-mask",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": {"use": "bpe", "max_size": 300, "byte_level": True},
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "gru", "hidden": 16},
        "head": "mlm",
    }
    path = folder / "fill-mask.yaml"
    path.write_text(dump(content | dict(changes)))
    return path


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
        made, both = self.logits(x, mask), mask[:, :, None] & mask[:, None]
        losses = [
            nn.functional.nll_loss(made["tag"][mask], tag[mask]),
            nn.functional.nll_loss(made["head"][mask], head[mask] + 1),
            nn.functional.nll_loss(made["mood"], mood),
            nn.functional.mse_loss(made["of_text"][:, 0], length),
            nn.functional.binary_cross_entropy_with_logits(made["pairs"][both], next[both].float()),
        ]
        return torch.stack(losses).sum()

    def decide(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        made = self.logits(x, mask)
        first = made["ends"][..., 0].argmax(1)
        places = torch.arange(x.shape[1], device=x.device)
        last = made["ends"][..., 1].masked_fill(places < first[:, None], -2e4).argmax(1)
        near = made["pairs"] > 0
        return {
            "tag": made["tag"].argmax(2),
            "tag_scores": made["tag"].amax(2).exp(),
            "head": made["head"].argmax(2) - 1,
            "size": made["size"],
            "mood": made["mood"].argmax(1),
            "mood_scores": made["mood"].amax(1).exp(),
            "length": made["of_text"][:, 0],
            "name": torch.where(made["of_text"][:, 1:] > 0, torch.stack([first, last], 1), -1),
            "next": near.long(),
            "next_scores": made["pairs"].sigmoid(),
            "weight": torch.where(near, made["pairs"], 0.0),
        }


def structured(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Writes data and the YAML of a pipeline with the head `Shape`."""
    for name, count, seed in (("train", 60, 1), ("dev", 16, 2), ("test", 16, 3)):
        rows = []
        for words, tags in sentences(count, seed):
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
        write_jsonl(folder / f"{name}.jsonl", rows)
    content: dict[str, Any] = {
        "name": "structured",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": "words",
        "embedding": {"use": "lookup", "dim": 8},
        "encoder": {"use": "gru", "hidden": 6},
        "head": "shape",
    }
    path = folder / "structured.yaml"
    path.write_text(dump(content | dict(changes)))
    return path


def joint(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Writes data and the YAML of a pipeline that has a head of each kind that needs no target tokenizer."""
    for name, count, seed in (("train", 60, 1), ("dev", 16, 2), ("test", 16, 3)):
        rows = []
        for i, (words, tags) in enumerate(sentences(count, seed)):
            labels = sorted({tag.partition("-")[2] for tag in tags if tag != "O"}) + ["EVEN"] * (len(words) % 2 == 0)
            rows.append({"words": words, "tags": tags, "label": "ab"[i % 2], "labels": labels, "score": len(words) / 3})
        write_jsonl(folder / f"{name}.jsonl", rows)
    heads = [
        {"use": "label", "pool": "attention"},
        {"use": "label", "name": "many", "multi": True},
        {"use": "score", "pool": "mean"},
        {"use": "vector"},
        {"use": "crf", "name": "names"},
    ]
    content: dict[str, Any] = {
        "name": "joint",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": {"use": "words", "lowercase": True},
        "embedding": {"use": "lookup", "dim": 8},
        "encoder": {"use": "lstm", "hidden": 6},
        "head": heads,
        "train": {"epochs": 12, "batch_tokens": 48, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
    }
    path = folder / "joint.yaml"
    path.write_text(dump(content | dict(changes)))
    return path


def several(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Writes data and the YAML of a pipeline that reads a text and rows of numbers, and writes a text."""
    for name, count in (("train", 60), ("dev", 8), ("test", 8)):
        moved = [
            {**mood, "numbers": numbers(i), "target": mood["text"][: 3 + i % 4]}
            for i, mood in enumerate(moods(count, 3))
        ]
        write_jsonl(folder / f"{name}.jsonl", moved)
    source = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 6}, "encoder": {"use": "gru", "hidden": 5}}
    content: dict[str, Any] = {
        "name": "several",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "inputs": {"source": source, "rows": {"field": "numbers", "embedding": {"use": "linear", "dim": 4}}},
        "head": {"use": "seq2seq", "hidden": 16, "embedding_dim": 8, "target_tokenizer": "chars"},
        "train": {"epochs": 8, "batch_tokens": 96, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
    }
    path = folder / "several.yaml"
    path.write_text(dump(content | dict(changes)))
    return path


def numbers(i: int) -> list[list[float]]:
    """From no row of numbers to four."""
    return [[i / 3 - 4, float(j * j), 1e-3 * i * j] for j in range(i % 5 or int(i < 60))]


def noted(golden: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**example, "record": {"note": example["record"]["text"]}} for example in golden]


def change(path: Path, what: Callable[[dict[str, Any]], object], old: bytes = b"", new: bytes = b"") -> None:
    """Changes a bundle.json, and seals it as the page says; at last, bytes of the body."""
    manifest = json.loads((path / "bundle.json").read_text(encoding="utf-8"))
    del manifest["sha256"]
    what(manifest)
    body = json.dumps(manifest, ensure_ascii=False, indent=2).encode().removesuffix(b"}")
    assert old in body
    body = body.replace(old, new, 1)
    seal = f',\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'
    (path / "bundle.json").write_bytes(body + seal.encode())


class Pair:
    """One bundle, opened by seqpipe and by the runtime that was written from the page."""

    def __init__(self, path: Path):
        self.path, self.ours, self.theirs = path, load(path, "cpu", threads=1), Bundle(path)
        self.known: dict[str, Any] = {}
        field = self.ours.manifest.field
        unseen = ("  ", "\u200b\ufe0f", "\u3000\u00ad", "می\u200cخواهم so\u00adft ❤\ufe0f \u2060 \u200cOslo\u200d")
        given = (*texts(60), *(mood["text"] for mood in moods(9, 5)), *unseen)
        self.inputs = [{"text" if isinstance(field, dict) else field: text} for text in given]
        if isinstance(field, dict):
            self.inputs = [{**record, "numbers": numbers(i)} for i, record in enumerate(self.inputs)]
        column = self.ours.manifest.inputs.get("column")
        if column:
            self.inputs = [{**one, "label": column["values"][i % 2]} for i, one in enumerate(self.inputs)]
        self.inputs += SPLIT if field == "text" and not column else []
        if self.ours.manifest.answer["kind"] == "fill-mask":
            gaps = ("[MASK]", " [MASK]", "[MASK] [MASK]", "[MASK][MASK]")
            self.inputs += [{"text": gaps[i % 4].join(pair)} for i, pair in enumerate(pairwise(texts(61, seed=5)))]
        self.options: list[dict[str, Any]] = [{}]
        if "names.n_best" in self.ours.manifest.options:
            self.options += [{"names.n_best": 3}]
        if "n_best" in self.ours.manifest.options:
            beams = "beams" in self.ours.manifest.options
            self.options += [{"n_best": 3} | ({"beams": 4, "max_length": 7} if beams else {})]
        drawn = {"seed": 7, "beams": 2, "n_best": 2, "temperature": 1.3, "max_length": 9}
        drawn |= (
            {"prefix": [4]}
            if "prefix" in self.ours.manifest.options
            else {"stop": ["e", "an "], "repetition_penalty": 1.2}
        )
        # Node's program draws nothing, and makes no automata.
        self.drawn = [drawn, {"temperature": 0, "forbidden": ["a", "er", "n b"], "max_length": 12}]
        self.drawn = self.drawn if "uniform" in self.ours.manifest.options else []

    def answer(self, record: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        """seqpipe's answer, which several tests compare."""
        key = json.dumps([record, options])
        if key not in self.known:
            self.known[key] = self.ours(record, **options)
        return self.known[key]

    def differences(self) -> Iterator[str]:
        """What the two do not do alike, over inputs, options and documents."""
        for options, record in itertools.product([*self.options, *self.drawn], self.inputs):
            ours = self.answer(record, options)
            theirs = attempt(lambda record=record, options=options: self.theirs(record, **options))
            if not independent.same(ours, theirs):
                yield f"{record} {options}: {ours} {theirs}"
        if self.ours.manifest.answer["kind"] in ("tags", "spans"):
            for text in texts(30, seed=2):
                theirs = attempt(lambda text=text: self.theirs.document(text))
                if not independent.same(self.ours(text, documents=True), theirs):
                    yield f"document {text!r}: {theirs}"


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # a planted fault may end anyhow
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def pairs(trained: OnDemand[Path]) -> OnDemand[Pair]:
    return OnDemand(lambda name: Pair(trained[name]))


# The page


def test_the_second_runtime_shares_no_line_with_seqpipe() -> None:
    tree = ast.parse(Path(independent.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        n
        for node in imports
        for n in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    foreign = {str(name).split(".")[0] for name in names} - sys.stdlib_module_names
    assert foreign == {"PIL", "numpy", "onnxruntime", "tokenizers"}


def described(page: str, path: Path) -> list[str]:
    """What stands in the bundle and not in the page."""
    manifest = json.loads((path / "bundle.json").read_bytes())
    table = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    inner = {key for part in ("inputs", "options") for entry in manifest[part].values() for key in entry}
    inner |= {key for part in ("answer", "limits", "reader") for key in manifest[part]}
    inner |= {key for field in manifest["answer"].get("fields", []) if isinstance(field, dict) for key in field}
    inner |= {key for entry in manifest.get("cache", []) for key in entry}
    inner |= {key for example in manifest["golden"] for key in example}
    missing = [key for key in manifest if key not in table]
    return missing + [key for key in sorted(inner) if f"`{key}`" not in page]


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_fits_the_json_schema_of_its_kind(pairs: OnDemand[Pair], kind: str) -> None:
    model = pairs[kind].ours
    schema = Draft202012Validator(model.predictor.kind.schema(model.manifest.options))
    for options in [*pairs[kind].options, *pairs[kind].drawn]:
        answers = model(pairs[kind].inputs, **options)
        assert [answer for answer in answers if not schema.is_valid(answer)] == []
    inputs = Draft202012Validator(input_schema(model.predictor.featurizer))
    assert [record for record in pairs[kind].inputs if not inputs.is_valid(record)] == []
    assert not inputs.is_valid({"other": "a"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_bundle_stands_in_the_page(trained: OnDemand[Path], kind: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert described(page, trained[kind]) == []
    assert described(page.replace("| `limits` |", "| limits |").replace("`axes`", "axes"), trained[kind]) == [
        "limits",
        "axes",
    ]


def test_every_kind_of_answer_and_of_input_has_its_place_in_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert {*independent.OUTPUTS} == {*ANSWER_KINDS}
    for name, kind in ANSWER_KINDS.items():
        section = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
        shared = page.split("\n### text\n")[1].split("\n### ")[0] if issubclass(kind, Text | FillMask) else ""
        assert [output for output in kind.decided if f"`{output}`" not in section + shared] == []
    assert "\n### joint\n" in page
    kinds = ("chars", "column", "copy", "image", "matrix", "mel", "ngrams", "pieces", "segments", "sentences")
    assert {*feature_kinds()} == {*kinds}
    assert all(f"\n### {kind}\n" in page for kind in feature_kinds())


# The answers


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_runtime_answers_as_seqpipe_does(pairs: OnDemand[Pair], kind: str) -> None:
    assert [*pairs[kind].differences()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_runtime_repeats_the_golden_examples(pairs: OnDemand[Pair], kind: str) -> None:
    theirs = pairs[kind].theirs
    assert theirs.manifest["golden"]
    assert theirs.wrong() == []


def test_the_second_runtime_continues_a_text_from_the_cache(pairs: OnDemand[Pair]) -> None:
    pair, compared = pairs["generation"], 0
    for record in pair.inputs[:30]:
        whole = pair.theirs.in_pieces(record, [7])
        assert pair.theirs.in_pieces(record, [1, 2, 4]) == whole
        compared += len(whole) > 3
    assert compared > 10


def test_gaps_are_filled_with_many_tokens(pairs: OnDemand[Pair]) -> None:
    words = [word for record in pairs["fill-mask"].inputs for word in pairs["fill-mask"].answer(record, {})["words"]]
    assert len(words) > 80
    assert len({*words}) > 3


def test_structured_answers_hold_values_of_every_type(pairs: OnDemand[Pair]) -> None:
    answers = [pairs["structured"].answer(record, {}) for record in pairs["structured"].inputs]
    words = [word for answer in answers for word in answer["words"]]
    assert len({word["tag"] for word in words}) > 2
    assert len({word["head"] for word in words}) > 3
    assert len({answer["mood"] for answer in answers}) == 3  # the empty text has none
    assert len({answer["length"] for answer in answers}) > 30
    assert {answer["name"] is None for answer in answers} == {True, False}
    assert any(answer["next"] for answer in answers)
    assert len({pair["value"] for answer in answers for pair in answer["weight"]}) > 3


def test_the_answers_compared_are_of_many_kinds(pairs: OnDemand[Pair]) -> None:
    def varied(kind: str) -> int:
        return len({json.dumps(pairs[kind].answer(record, {})) for record in pairs[kind].inputs})

    assert all(varied(kind) > 20 for kind in KINDS if kind != "label")
    labels = {pairs["label"].answer(record, {})["label"] for record in pairs["label"].inputs}
    assert labels == {"bad", "fine", "good", None}
    found = [span for record in pairs["spans"].inputs for span in pairs["spans"].answer(record, {})]
    assert {span["entity_group"] for span in found} == {"PER", "LOC"}
    assert any(" " in span["word"] for span in found)


@pytest.mark.parametrize("kind", KINDS)
def test_one_run_for_all_texts_answers_as_one_run_each(pairs: OnDemand[Pair], kind: str) -> None:
    theirs, inputs = pairs[kind].theirs, pairs[kind].inputs
    assert independent.same(theirs.batch(inputs), [theirs(record) for record in inputs])


@pytest.mark.parametrize("longest", [1, 2, 5, 6, 20])
def test_the_second_runtime_makes_the_same_inputs(pairs: OnDemand[Pair], longest: int) -> None:
    ours, theirs = pairs["spans"].ours.predictor.featurizer, pairs["spans"].theirs
    records = [*({"text": text} for text in texts(40, seed=3)), *SPLIT]
    read = [theirs.sources[""].record(record) for record in records]
    docs, wholes, rows = ours.docs(records), [text for text, _ in read], [tokens for _, tokens in read]
    assert [[(t.id, t.word, (t.start, t.end)) for t in row] for row in rows] == [triples(doc) for doc in docs]
    feature = Chars(longest, "abcdeÀO你👩")
    size = (len(docs), max(map(len, docs)))
    expected = feature.array(docs, size[1])
    assert np.array_equal(independent.chars(rows, size, longest, feature.alphabet), expected)
    made = theirs.sources[""].inputs(rows, wholes)
    assert all(np.array_equal(array, ours.collate(docs)[name]) for name, array in made.items())


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("words", "lengths"), [(2, (2, 5)), (3, None), (0, (1, 3)), (1, (4, 4))])
def test_the_second_runtime_reads_the_same_n_grams(words: int, lengths: tuple[int, int] | None, binary: bool) -> None:
    docs = [Doc(text, text.split(), [(0, 0)] * len(text.split()), []) for text in texts(40, seed=6)]
    feature = Ngrams(words, lengths, binary, max_size=300).fit(docs[:20])
    tokens = [[independent.Token(4, word, 0, 0, None) for word in doc.words] for doc in docs]
    size = (len(docs), max(len(doc.words) for doc in docs))
    expected = feature.array(docs, size[1])
    assert len(np.unique(expected)) > 60
    assert np.array_equal(independent.ngrams(tokens, size, feature.manifest()), expected)


def triples(doc: Doc) -> list[tuple[int, str, tuple[int, int]]]:
    return list(zip(doc.ids, doc.words, doc.offsets, strict=True))


def test_the_second_runtime_reads_any_tags_as_seqpipe_does() -> None:
    tags = ("O", "B-x", "I-x", "E-x", "S-x", "L-x", "U-x", "I-y", "B", "I", "B-", "I-x-y", "O-x", "NOUN", "Bx", "")
    for some in itertools.chain.from_iterable(itertools.product(tags, repeat=n) for n in range(4)):
        assert [(label, a, b + 1) for label, a, b in independent.spans(some)] == schemes.spans(some)


def test_the_second_runtime_splits_documents_as_seqpipe_does() -> None:
    dice = random.Random(5)
    parts = [
        *'.!?…。！？"”’)]」』》）\n\r\t ',
        "\u2028",
        "\x1c",
        "\x85",
        "\ufeff",
        "\u200b",
        "\u3000",
        "a",
        "B",
        "，",
        "'",
    ]
    for _ in range(3000):
        text = "".join(dice.choices(parts, k=dice.randint(0, 12)))
        assert independent.sentences(text) == splitting.sentences(text)


# Pictures and sounds


def pictures() -> Iterator[Any]:
    """Pictures of many sizes and forms, as JSON has them."""
    draw = np.random.default_rng(7)
    for rows, columns in ((6, 5), (1, 1), (3, 40), (50, 2), (31, 33), (6, 80), (7, 4)):
        colours = draw.integers(0, 256, (rows, columns, 3))
        yield colours.tolist()
        yield (draw.random((rows, columns)) * 255).tolist()
        yield in_base64(encoded(colours))
        yield in_base64(encoded(colours[..., 0]))
        yield f"data:image/png;base64,{in_base64(encoded(colours, mode='P'))}"
        yield in_base64(encoded(colours, mode="RGBA"))
        yield in_base64(encoded(colours, mode="LA"))
        yield in_base64(encoded(colours, mode="1"))
        exif = Image.Exif()
        exif[0x0112] = 6  # turned to the right
        yield in_base64(encoded(colours, "JPEG", exif=exif, quality=90))
        yield in_base64(encoded(colours, "JPEG", mode="CMYK"))


def sounds() -> Iterator[Any]:
    """Sounds of many lengths, rates and forms, as JSON has them."""
    draw = np.random.default_rng(8)
    for n in (1, 159, 160, 700, 1603):
        samples = draw.normal(0, 0.2, n).clip(-1, 1)
        yield samples.tolist()
        for bits in (8, 16, 24, 32):
            yield in_base64(wav(samples, bits=bits))
        yield in_base64(wav(samples, kind=3, bits=32))
        for rate in (8_000, 11_025, 16_001, 44_100, 192_000):
            yield in_base64(wav(samples, rate=rate))
        yield f"data:audio/wav;base64,{in_base64(wav([*samples, *samples], channels=2))}"
    yield (0.3 * np.sin(np.arange(2_000) / 5)).tolist()
    yield [0.0] * 2_000


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> OnDemand[Path]:
    """Bundles that read pictures and sounds, each with golden examples."""
    made = {"picture": (IMAGE, pictures), "grey": (GREY, pictures), "sound": (MEL, sounds)}

    def make(name: str) -> Path:
        entry, values = made[name]
        return write_media_bundle(tmp_path_factory.mktemp("media") / name, entry, [*itertools.islice(values(), 4)])

    return OnDemand(make)


@pytest.mark.parametrize("kind", ["picture", "grey", "sound"])
def test_the_second_runtime_sees_and_hears_as_seqpipe_does(media: OnDemand[Path], kind: str) -> None:
    ours, theirs = load(media[kind], "cpu", threads=1), Bundle(media[kind])
    source: Any = ours.predictor.featurizer
    values = [*(sounds() if kind == "sound" else pictures())]
    assert len(values) > 50
    entry = theirs.sources[""].entry
    vectors = []
    for value in values:
        (doc,) = source.docs([{"it": value}])
        expected = theirs.sources[""].rows(value)
        assert doc.rows.shape == np.shape(expected)
        assert np.abs(doc.rows - expected).max() < 1e-4
        vectors.append(ours({"it": value})["vector"])
        most = 2e-3 / min(entry["deviations"])
        assert theirs({"it": value})["vector"] == pytest.approx(vectors[-1], abs=most, rel=1e-3)
    assert len({*map(str, vectors)}) > 30
    assert theirs.wrong() == []


MEDIA_FAULTS = {
    "pixels between two are dropped": ("picture", "resizing", lambda n, m: np.eye(n)[np.arange(m) * n // m]),
    "another mel scale": ("sound", "mel", lambda f: 2595 * np.log10(1 + f / 700)),
    "no resampling": ("sound", "resampled", lambda x, rate, wanted: x),
}


@pytest.mark.parametrize("fault", MEDIA_FAULTS)
def test_a_runtime_that_sees_or_hears_otherwise_is_found(
    media: OnDemand[Path], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, planted = MEDIA_FAULTS[fault]
    monkeypatch.setattr(independent, name, planted)
    with pytest.raises(AssertionError):
        test_the_second_runtime_sees_and_hears_as_seqpipe_does(media, kind)


@pytest.mark.parametrize("name", [name for name in STATED if not name.endswith("overflows")])
def test_absurd_pictures_and_sounds_are_refused_by_both(name: str, tmp_path: Path) -> None:
    entry, changes = STATED[name]
    path = write_media_bundle(tmp_path / "bundle", entry)
    assert refusals(path) == set()
    change(path, lambda manifest: manifest["inputs"]["rows"].update(changes))
    assert refusals(path) == BOTH


# Faults that the comparisons above must see

original = {name: getattr(independent, name) for name in ("chars", "polynomial", "spans")}
FAULTS: dict[str, tuple[str, Any, str, Any]] = {
    "lone surrogates stay": ("spans", independent, "clean", lambda text: text),
    "the end of a long word is dropped": ("spans", independent, "halves", lambda word, longest: word[:longest]),
    "the alphabet begins at 3": ("spans", independent, "chars", lambda *given: original["chars"](*given) + 1),
    "n-grams of words are hashed from the left": (
        "ngrams",
        independent,
        "polynomial",
        lambda start, values: original["polynomial"](start, values if start < 2 else [*values][::-1]),
    ),
    "n-grams are read as written": ("ngrams", independent, "lowered", lambda word: [*map(ord, word)]),
    "a span is its first token": (
        "spans",
        independent,
        "spans",
        lambda tags: [(s[0], s[1], s[1]) for s in original["spans"](tags)],
    ),
    "words are not normalised": (
        "spans",
        independent.Source,
        "id",
        lambda self, word: self.tokenizer.token_to_id(word) or 1,
    ),
    "special tokens are words": ("text", independent, "SPECIAL", ()),
    "words are searched from the start": (
        "spans",
        independent.Source,
        "from_words",
        lambda self, words, text: from_the_start(self, words, text),
    ),
    "scores are certain": ("tags", independent, "score", lambda value: 1.0),
    "empty texts have no answer": ("label", Bundle, "empty", lambda self, several: []),
    "documents are one sentence": ("spans", independent, "sentences", lambda text: [(0, len(text))]),
    "sentences are not shifted": ("tags", Bundle, "document", lambda self, text: unshifted(self, text)),
}


def from_the_start(theirs: independent.Source, words: Sequence[str], text: str) -> list[independent.Token]:
    places = [text.find(word) for word in words]
    found = [(w, at, at + len(w)) for w, at in zip(words, places, strict=True)]
    return [independent.Token(theirs.id(word), word, a, b, (a, b)) for word, a, b in found]


def unshifted(theirs: Bundle, text: str) -> list[Any]:
    return [item for a, b in independent.sentences(text) for item in theirs(text[a:b])]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_runtime_that_leaves_a_rule_of_the_page_is_found(
    pairs: OnDemand[Pair], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, place, name, planted = FAULTS[fault]
    monkeypatch.setattr(place, name, planted)
    assert next(pairs[kind].differences(), None)


# What is refused


def refusals(path: Path) -> set[str]:
    """Who refuses this bundle."""
    found = set()
    try:
        load(path, "cpu", threads=1)
    except BundleError:
        found.add("seqpipe")
    try:
        Bundle(path)
    except RefusedError:
        found.add("the second runtime")
    return found


BOTH = {"seqpipe", "the second runtime"}


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def test_a_damaged_bundle_is_refused_by_both(copy: Path) -> None:
    assert refusals(copy) == set()
    dice = random.Random(4)
    (copy / "README.md").write_text("# Completed by its author")
    assert refusals(copy) == set()
    for path in sorted(path for path in copy.iterdir() if path.name != "README.md"):
        whole = path.read_bytes()
        for _ in range(25):
            at = dice.randrange(len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :])
            assert refusals(copy) == BOTH
        path.write_bytes(whole[:-1])
        assert refusals(copy) == BOTH
        path.write_bytes(whole)
    assert refusals(copy) == set()


def renamed(manifest: dict[str, Any], name: str) -> None:
    manifest["files"][name] = manifest["files"].pop("tokenizer.json")


CACHE = {
    "input": "past.0",
    "output": "present.0",
    "axes": ["past_batch_size", "past_length", 2, 8],
    "dtype": "float32",
    "grows": True,
}
FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "an older version": lambda m: m.update(version=1),
    "a newer version": lambda m: m.update(version=5),
    "further graphs": lambda m: m.update(graphs={}),
    "shared weights": lambda m: m.update(weights={}),
    "a cache that is no list": lambda m: m.update(cache={}),
    "a cache that the graph has not": lambda m: m.update(cache=[CACHE]),
    "format": lambda m: m.update(format="bundle"),
    **{f"without {key}": (lambda m, key=key: m.pop(key)) for key in independent.KEYS},
    "an input of another kind": lambda m: m["inputs"]["chars"].update(kind="runes"),
    "an input more": lambda m: m["inputs"].update(more={"axes": [], "dtype": "int64"}),
    "an answer of another kind": lambda m: m["answer"].update(kind="picture"),
    "an output that is not there": lambda m: m["answer"].update(kind="label"),
    "no tokenizer": lambda m: m["files"].pop("tokenizer.json"),
    "a file elsewhere": lambda m: renamed(m, "../tokenizer.json"),
    "itself": lambda m: renamed(m, "bundle.json"),
    "another hash": lambda m: m["files"]["model.onnx"].update(sha256="0" * 64),
    "another size": lambda m: m["files"]["model.onnx"].update(bytes=1),
    "a key more of a file": lambda m: m["files"]["model.onnx"].update(mode=7),
}
WRITTEN = {
    "a key twice": (b'"name": "toy"', b'"name": "toy", "name": "toy"'),
    "no JSON": (b'"tokens": 1000', b'"tokens": NaN'),
}


@pytest.mark.parametrize("fault", [*FORGED, *WRITTEN])
def test_a_forged_bundle_is_refused_by_both(copy: Path, fault: str) -> None:
    change(copy, FORGED.get(fault, len), *WRITTEN.get(fault, ()))
    assert refusals(copy) == BOTH


def test_a_bundle_sealed_by_the_page_is_opened_by_both(copy: Path) -> None:
    change(copy, lambda manifest: manifest.update(more=1))
    assert refusals(copy) == set()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("spans", {"n_best": value}) for value in (0, 100_001, True, 1.0, "2", None)),
        ("spans", {"nbest": 2}),
        ("text", {"n_best": 3}),
        ("text", {"length_penalty": -0.1}),
        ("text", {"length_penalty": 1e39}),
        ("text", {"min_length": 2**63}),
        ("text", {"min_length": 100}),
        ("text", {"min_length": 5, "max_length": 5}),
        ("text", {"prefix": [4] * 6, "max_length": 6}),
        ("text", {"prefix": [4, 1_000_000]}),
        ("text", {"forbidden": [3]}),
        ("text", {"forbidden": ""}),
        ("text", {"prefix": [3]}),
        ("text", {"temperature": 0.5}),
        ("text", {"top_p": 0, "seed": 1}),
        ("text", {"seed": -1}),
        ("text", {"seed": True}),
        ("label", {"n_best": 0}),
    ],
)
def test_decode_options_out_of_their_bounds_are_refused_by_both(
    pairs: OnDemand[Pair], kind: str, options: Mapping[str, Any]
) -> None:
    with pytest.raises(SeqpipeError):
        pairs[kind].ours("in Rome", **options)
    with pytest.raises(RefusedError):
        pairs[kind].theirs("in Rome", **options)


@pytest.mark.parametrize("option", ["scale", "by", "flag"])
def test_options_of_every_type_are_fed_as_the_page_says(option: str) -> None:
    known = {
        "scale": {"type": "float", "default": 0.5, "minimum": None, "maximum": None},
        "by": {"type": "int", "default": 2, "minimum": None, "maximum": None},
        "flag": {"type": "bool", "default": False, "minimum": None, "maximum": None},
    }
    value = {"scale": 3, "by": 5, "flag": True}[option]
    ours, theirs = (
        option_arrays(known, {option: value})[option],
        independent.option_inputs(known, {option: value}),
    )
    assert (ours, ours.dtype, ours.shape) == (theirs[option], theirs[option].dtype, ())


# Node

NODE_KINDS = ("spans", "tags", "text", "label", "structured", "other field", "ngrams")
DRIVER = """
import { open } from "./bundle.mjs";
const [path, asked] = process.argv.slice(2), bundle = await open(path);
const { readFileSync, writeFileSync } = await import("node:fs");
const told = [];
for (const [records, options] of JSON.parse(readFileSync(asked, "utf8")))
  told.push(await bundle.answers(records, options));
writeFileSync(asked + ".answers", JSON.stringify(told));
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, and what it needs installed."""
    if shutil.which("npm") is None:
        pytest.skip("needs Node.js and npm")
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(NODE, folder, ignore=shutil.ignore_patterns("node_modules"), dirs_exist_ok=True)
    (folder / "driver.mjs").write_text(DRIVER)
    shell(node_lines("npm install"), folder)
    return folder


def node_lines(command: str) -> str:
    """The shell block of its README that begins with this command."""
    page = documents.blocks((NODE / "README.md").read_text(encoding="utf-8"))
    (found,) = [block.code for block in page if block.language == "sh" and block.code.startswith(command)]
    return found


def shell(lines: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", lines], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_node(folder: Path, path: Path, asked: list[Any]) -> Any:
    (folder / "asked.json").write_text(json.dumps(asked))
    shell(f"node driver.mjs '{path}' asked.json", folder)
    return json.loads((folder / "asked.json.answers").read_text())


def alike(one: Any, other: Any) -> bool:
    """As golden examples are compared; JavaScript writes the score 1.0 as 1."""
    if isinstance(one, float) and isinstance(other, int) and not isinstance(other, bool):
        other = float(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return independent.same(one, other)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", NODE_KINDS)
def test_node_answers_as_seqpipe_does(node: Path, pairs: OnDemand[Pair], kind: str) -> None:
    pair = pairs[kind]
    assert len(pair.inputs) >= 60
    theirs = in_node(node, pair.path, [[pair.inputs, options] for options in pair.options])
    for options, answered in zip(pair.options, theirs, strict=True):
        for record, answer in zip(pair.inputs, answered, strict=True):
            assert alike(pair.ours(record, **options), answer), (record, options)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_node_program_that_counts_utf_16_units_is_found(node: Path, pairs: OnDemand[Pair]) -> None:
    program = (node / "bundle.mjs").read_text(encoding="utf-8")
    assert program.count("points: [...text]") == 1
    try:
        (node / "bundle.mjs").write_text(
            program.replace("points: [...text]", 'points: text.split("")'), encoding="utf-8"
        )
        (theirs,) = in_node(node, pairs["tags"].path, [[pairs["tags"].inputs, {}]])
    finally:
        (node / "bundle.mjs").write_text(program, encoding="utf-8")
    assert not alike(pairs["tags"].ours(pairs["tags"].inputs), theirs)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_commands_of_the_node_page_do_what_it_says(node: Path, pairs: OnDemand[Pair]) -> None:
    shutil.copytree(pairs["spans"].path, node / "bundle", dirs_exist_ok=True)
    told = [json.loads(line) for line in shell(node_lines("node predict.mjs"), node).splitlines()]
    given = (node / "texts.txt").read_text(encoding="utf-8").splitlines()
    ours: Model = pairs["spans"].ours
    assert alike(ours(given) + ours(given, n_best=3), told)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_node_refuses_a_damaged_bundle(node: Path, copy: Path) -> None:
    model = copy / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"!")
    with pytest.raises(AssertionError, match="onnx is damaged"):
        in_node(node, copy, [])


# The hub


class Hub(BaseHTTPRequestHandler):
    """The part of the model hub's interface by which a folder is published and fetched, of one repository."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(f"{self.path} {self.headers['Authorization']}")
        if self.path.endswith("/create"):
            return self.respond({"url": f"http://{self.headers['Host']}/ada/intent"})
        if self.path.endswith("/validate-yaml"):  # the hub's own check of a card is stricter than its client's
            card = ModelCard(json.loads(body)["content"])
            assert card.data.eval_results
            return self.respond({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.respond({"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        url = f"http://{self.headers['Host']}/ada/intent/commit/{'0' * 40}"
        self.respond({"success": True, "commitOid": "0" * 40, "commitUrl": url, "hookOutput": ""})

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in self.files.items()
            ]
            return self.respond(entries)
        if self.path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in self.files]
            return self.respond({"id": "ada/intent", "sha": "0" * 40, "siblings": siblings})
        data = self.files[self.path.rpartition("/")[2]]
        self.respond(data, **{"X-Repo-Commit": "0" * 40, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})

    def do_HEAD(self) -> None:
        self.do_GET()

    def respond(self, content: object, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def test_the_lines_of_the_page_publish_a_bundle_and_load_it_again(trained: OnDemand[Path], tmp_path: Path) -> None:
    page = (documents.ROOT / "docs/deploy/recipes.md").read_text(encoding="utf-8")
    lines = [block.code for block in documents.blocks(page) if "huggingface_hub" in block.code]
    assert len(lines) == 2
    folder = Path(shutil.copytree(trained["label"], tmp_path / "runs/intent-lstm/bundle"))
    (folder / "README.md").write_text((folder / "README.md").read_text() + "\nIt is for tests.\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
        variables |= {"HF_TOKEN": "hf_test", "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(lines)],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in load(folder, "cpu").labels
    assert [line.partition(" ")[0] for line in Hub.asked][-1].endswith("/commit/main")
    assert all(line.endswith("Bearer hf_test") for line in Hub.asked)
    fetched = tmp_path / "intent"
    assert all((fetched / path.name).read_bytes() == path.read_bytes() for path in folder.iterdir())
    assert load(fetched, "cpu").verify() == []
