"""Span infilling: questions, targets and answers, and a run that initialises another."""

import json
from pathlib import Path
from typing import Any

import pytest
from gallery import RECIPES, gallery, write_pipeline
from tiny_checkpoints import t5
from tiny_pipelines import QUIET, seqpipe, succeed, write_jsonl

from seqpipe.answers.fill_mask import SpanInfilling
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.config.loader import load_config
from seqpipe.config.signature import construct
from seqpipe.errors import ConfigError
from seqpipe.features.vocabulary import SPAN_MARKS
from seqpipe.runs.check import check_export
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.words import WordsTokenizer

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WORDS = TALES.read_text(encoding="utf-8").split()[:1200]
TEXTS = [" ".join(WORDS[i : i + 12]) for i in range(0, 1200, 12)]


def yaml(folder: Path, **changes: Any) -> Path:
    write_jsonl(folder / "pairs.jsonl", [{"text": text, "target": text[::-1]} for text in TEXTS[:20]])
    content = {**RECIPES["span-infilling"].content, "records": lambda count, seed: [{"text": t} for t in TEXTS]}
    return write_pipeline(folder, **content | changes)


def put_back(text: str, written: str) -> str:
    for number, mark in enumerate(SPAN_MARKS):
        if mark in text:
            text = text.replace(mark, written.split(mark)[1].split(SPAN_MARKS[number + 1])[0].strip())
    return text


@pytest.mark.parametrize("use", [WordsTokenizer, BPE])
def test_the_text_with_marks_and_its_target_make_the_text(use: type) -> None:
    tokenizer = construct(use).train(TEXTS)
    tokenizer.add_special_tokens([*SPAN_MARKS])
    kind = SpanInfilling(tokenizer, share=0.3, length=2.0, field="text")
    again = head_answer_from(kind.manifest(), tokenizer)
    assert isinstance(again, SpanInfilling)
    for text in TEXTS:
        record = {"text": text}
        question, gold = task_of(kind).question(record)["text"], task_of(kind).gold(record)
        assert SPAN_MARKS[0] in question
        assert (task_of(again).question(record)["text"], task_of(again).gold(record)) == (question, gold)
        assert "".join(put_back(question, gold).split()) == "".join(text.split())
    assert task_of(kind).question({"text": ""})["text"] == ""


def test_it_learns_from_texts_alone_fills_marks_and_initialises_another_run(tmp_path: Path) -> None:
    example = gallery("span-infilling")
    assert seqpipe("verify", example.bundle, "--device", "cpu").code == 0
    answered = seqpipe("predict", example.bundle, "--option", "max_length=9", stdin=b"a <extra_id_0> day\n")
    assert {*json.loads(answered.out)} == {"generated_text", "score", "log_score"}, answered.err
    assert seqpipe("evaluate", example.bundle, "--data", example.folder / "test.jsonl", "--json").code == 0
    content = RECIPES["span-infilling"].content
    head = {"use": "transformer-decoder", "heads": 2, "layers": 1, "target_tokenizer": "same"}
    stages = {kind: content[kind] for kind in ("tokenizer", "embedding", "encoder")} | {"head": head}
    init = {kind: {**stage, "init": str(example.run)} for kind, stage in stages.items()}
    path = yaml(tmp_path, name="more", data=dict.fromkeys(("train", "dev", "test"), "pairs.jsonl"), **init)
    result = succeed("train", path, "--device", "cpu", folder=tmp_path)
    assert "head: starts from " in result.err


def test_a_t5_is_trained_on_texts_alone(tmp_path: Path) -> None:
    stage = {"checkpoint": str(t5(tmp_path / "t5", "1.0", TEXTS))}
    uses = {kind: {"use": "pretrained-seq2seq", **stage} for kind in ("encoder", "head")}
    uses["head"]["spans"] = 0.15
    path = yaml(tmp_path, tokenizer={"use": "pretrained", **stage}, embedding=[], **uses)
    succeed("train", path, "--device", "cpu", folder=tmp_path)


def test_a_pair_of_texts_is_refused(tmp_path: Path) -> None:
    config = load_config(yaml(tmp_path, tokenizer={"use": "bpe", "field": ["text", "text"]}))
    with pytest.raises(ConfigError, match="make the tokenizer read one field"):
        check_export(config, QUIET)
