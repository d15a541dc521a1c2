"""Every head that reads words or texts, together on one pretrained encoder, and long texts through it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import QUIET, sentences, write_jsonl
from pretrained import checkpoint

from seqpipe import load as open_bundle
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.pipeline.full_run import run_all

HEADS: list[dict[str, Any]] = [
    {"use": "label", "pool": "state"},
    {"use": "label", "name": "several", "multi": True, "target": "kinds", "threshold": 0.5},
    {"use": "score", "target": "length"},
    {"use": "vector"},
    {"use": "crf"},
    {"use": "tags", "name": "plain", "scheme": "none"},
    {"use": "seq2seq", "target": "text", "target_tokenizer": "chars"},
]


def records(count: int, seed: int) -> list[dict[str, Any]]:
    made = []
    for words, tags in sentences(count, seed):
        kinds = sorted({tag[2:] for tag in tags if tag != "O"})
        label = "+".join(kinds) or "none"
        made.append({"words": words, "tags": tags, "kinds": kinds, "label": label, "length": len(words)})
    return made


@pytest.mark.long
def test_every_head_works_on_a_checkpoint_at_once_and_reads_texts_longer_than_its_window(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for name, count, seed in (("train", 40, 1), ("test", 12, 2)):
        write_jsonl(tmp_path / f"{name}.jsonl", records(count, seed))
    made = checkpoint(tmp_path / "made", "bert", [" ".join(record["words"]) for record in records(40, 1)])
    first = {"use": "pretrained", "checkpoint": str(made)}
    content = {
        "name": "all-heads",
        "data": {"reader": "jsonl", "train": "train.jsonl", "test": "test.jsonl"},
        "tokenizer": first,
        "encoder": [{**first, "window": 6}, "words"],
        "head": HEADS,
        "train": {"epochs": 1, "batch_tokens": 128, "optimizer": {"use": "adamw", "lr": 0.01}, "threads": 1},
    }
    (tmp_path / "all.yaml").write_text(dump(content))
    with contextlib.chdir(tmp_path):
        run_all(load(tmp_path / "all.yaml"), QUIET, "cpu")
    answer = open_bundle(tmp_path / "runs" / "all-heads" / "bundle", "cpu")("Ada flew to New York . " * 5)
    assert {*answer} == {"label", "several", "score", "vector", "crf", "plain", "seq2seq"}
    assert len(answer["plain"]) == 30
