"""Every head that reads words or texts, together on one pretrained encoder, and long texts through it."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from gallery import tagged, train_settings, write_pipeline
from tiny_checkpoints import checkpoint
from tiny_pipelines import QUIET

from seqpipe import load as open_bundle
from seqpipe.config.loader import load_config
from seqpipe.runs.full_run import RunOptions, run_all

HEADS: list[dict[str, Any]] = [
    {"use": "label", "pool": "state"},
    {"use": "label", "name": "several", "multi": True, "threshold": 0.5},
    {"use": "score"},
    {"use": "vector"},
    {"use": "crf"},
    {"use": "tags", "name": "plain", "scheme": "none"},
    {"use": "seq2seq", "target": "text", "target_tokenizer": "chars"},
]


@pytest.mark.long
def test_every_head_works_on_a_checkpoint_at_once_and_reads_texts_longer_than_its_window(tmp_path: Path) -> None:
    texts = [" ".join(record["words"]) for record in tagged(40, 1)]
    stage = {"use": "pretrained", "checkpoint": str(checkpoint(tmp_path / "checkpoint", "bert", texts))}
    encoder = [{**stage, "window": 6}, "words"]
    content = {"tokenizer": stage, "embedding": None, "encoder": encoder, "head": HEADS}
    path = write_pipeline(tmp_path, tagged, "all-heads", (40, 12, 12), **content, train=train_settings(1, 0.01, 128))
    with contextlib.chdir(tmp_path):
        run_all(load_config(path), QUIET, RunOptions("cpu"))
    answer = open_bundle(tmp_path / "runs" / "all-heads" / "bundle", "cpu")("Ada flew to New York . " * 5)
    assert {*answer} == {"label", "several", "score", "vector", "crf", "plain", "seq2seq"}
    assert len(answer["plain"]) == 30
