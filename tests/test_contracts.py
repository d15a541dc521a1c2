"""The conformance kit that authors of plugins use, on every component of our own."""

from __future__ import annotations

from typing import Any

import pytest

from seqpipe.plugins import BUILTIN, Plugins
from seqpipe.testing import check_embedding, check_encoder, check_head, check_reader, check_tokenizer

CHECKS = {"tokenizer": check_tokenizer, "embedding": check_embedding, "encoder": check_encoder, "head": check_head}
OFFERS = {(offer.kind, offer.name): offer for offer in Plugins().offers if offer.distribution == BUILTIN}

STAGES: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("tokenizer", "chars"): [{}, {"keep_spaces": False, "fold_digits": True}],
    ("tokenizer", "words"): [{}, {"lowercase": True, "fold_digits": True, "min_count": 2}],
    ("embedding", "char-cnn"): [{"dim": 6, "char_dim": 4, "widths": [2, 3], "dropout": 0.1}],
    ("embedding", "lookup"): [{"dim": 6, "dropout": 0.1, "word_dropout": 0.1, "rare_dropout": 0.2}],
    ("encoder", "gru"): [
        {"hidden": 5, "layers": 2, "dropout": 0.1},
        {"hidden": 5, "direction": "backward", "reset": "before", "bias": False},
    ],
    ("encoder", "lstm"): [
        {"hidden": 5, "layers": 2, "dropout": 0.1},
        {"hidden": 5, "layers": 2, "direction": "forward", "bias": False},
    ],
    ("encoder", "rnn"): [
        {"hidden": 5, "layers": 2, "dropout": 0.1},
        {"hidden": 5, "layers": 2, "merge": "mean", "activation": "relu"},
    ],
    ("head", "crf"): [{"dropout": 0.1}],
    ("head", "label"): [
        {"dropout": 0.1, "label_smoothing": 0.1, "class_weights": {"b": 2.0}},
        *({"pool": pool} for pool in ("mean", "first", "last")),
    ],
    ("head", "seq2seq"): [{"hidden": 6, "embedding_dim": 4, "layers": 2, "dropout": 0.1}],
    ("head", "tags"): [{"dropout": 0.1}, {"scheme": "none"}],
}
CONLL = "# topic = a\nAda B-PER\nmet O\n\nOslo B-LOC\n\n"
CONLL_RECORDS = [
    {"text": "Ada met", "words": ["Ada", "met"], "tags": ["B-PER", "O"], "topic": "a"},
    {"text": "Oslo", "words": ["Oslo"], "tags": ["B-LOC"]},
]
JSONL = '{"text": "Ada met", "spans": [[0, 3, "PER"]], "topic": "a"}\n{"words": ["Oslo"], "tags": ["B-LOC"]}\n'
JSONL_RECORDS = [
    {"text": "Ada met", "spans": [{"start": 0, "end": 3, "label": "PER"}], "topic": "a"},
    {"text": "Oslo", "words": ["Oslo"], "tags": ["B-LOC"]},
]
READERS: dict[tuple[str, str], tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    ("reader", "conll"): (CONLL, CONLL_RECORDS, {}),
    ("reader", "jsonl"): (JSONL, JSONL_RECORDS, {"joiner": " "}),
}


@pytest.mark.parametrize(("name", "options"), [(name, options) for name, some in STAGES.items() for options in some])
def test_every_stage_and_tokenizer_of_ours_keeps_the_contract(name: tuple[str, str], options: dict[str, Any]) -> None:
    CHECKS[name[0]](OFFERS[name].load(), **options)


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_ours_keeps_the_contract(name: tuple[str, str]) -> None:
    content, expected, options = READERS[name]
    found = check_reader(OFFERS[name].load(), content, expected, **options)
    assert {finding.state for finding in found.findings} == {"ok"}


def test_no_component_of_ours_is_forgotten() -> None:
    assert {*STAGES, *READERS} == OFFERS.keys()
