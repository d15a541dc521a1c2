"""What a head answers with that learns by hidden spans, and a run that learns so and starts another."""

import json
from pathlib import Path
from typing import Any

import pytest
from factory import seqpipe, write_jsonl
from pretrained import t5

from seqpipe.answers.fill_mask import SpanInfilling
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.config.loader import load
from seqpipe.config.signature import construct
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError
from seqpipe.features.vocabulary import SPAN_MARKS
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.words import Words

TALES = Path(__file__).parents[2] / "pipelines" / "data" / "tales" / "train.txt"
WORDS = TALES.read_text(encoding="utf-8").split()[:1200]
TEXTS = [" ".join(WORDS[i : i + 12]) for i in range(0, 1200, 12)]


def put_back(text: str, written: str) -> str:
    for number, mark in enumerate(SPAN_MARKS):
        if mark in text:
            text = text.replace(mark, written.split(mark)[1].split(SPAN_MARKS[number + 1])[0].strip())
    return text


@pytest.mark.parametrize("use", [Words, BPE])
def test_what_it_is_asked_and_what_is_right_make_the_text(use: type) -> None:
    tokenizer = construct(use).train(TEXTS)
    tokenizer.add_special_tokens([*SPAN_MARKS])
    kind = SpanInfilling(tokenizer, share=0.3, length=2.0, field="text")
    whole = 0
    for text in TEXTS:
        asked = task_of(kind).question({"text": text})["text"]
        assert SPAN_MARKS[0] in asked
        assert asked == task_of(kind).question({"text": text})["text"]
        whole += "".join(put_back(asked, task_of(kind).gold({"text": text})).split()) == "".join(text.split())
    assert whole == len(TEXTS)
    again = head_answer_from(kind.manifest(), tokenizer)
    assert isinstance(again, SpanInfilling)
    assert task_of(again).gold({"text": TEXTS[0]}) == task_of(kind).gold({"text": TEXTS[0]})
    assert task_of(kind).question({"text": ""})["text"] == ""


def yaml(folder: Path, **changes: Any) -> Path:
    write_jsonl(folder / "texts.jsonl", [{"text": text} for text in TEXTS])
    write_jsonl(folder / "pairs.jsonl", [{"text": text, "target": text[::-1]} for text in TEXTS[:20]])
    content: dict[str, Any] = {
        "name": "spans",
        "data": {"reader": "jsonl", "train": "texts.jsonl", "dev": "texts.jsonl"},
        "tokenizer": {"use": "bpe", "max_size": 200},
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "transformer", "heads": 2, "layers": 1},
        "head": {"use": "transformer-decoder", "heads": 2, "layers": 1, "spans": 0.15},
        "train": {"epochs": 1, "batch_size": 20, "threads": 1},
    }
    path = folder / f"{changes.get('name', 'spans')}.yaml"
    path.write_text(dump(content | changes), encoding="utf-8")
    return path


def test_it_learns_from_texts_alone_fills_marks_and_starts_another_run(tmp_path: Path) -> None:
    done = seqpipe("run", yaml(tmp_path), "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "spans" / "bundle"
    verified = seqpipe("verify", folder, "--device", "cpu")
    assert verified.code == 0, verified.err
    answered = seqpipe("predict", folder, "--option", "max_length=9", stdin=b"Rosa <extra_id_0> on a hill\n")
    assert {*json.loads(answered.out)} == {"generated_text", "score"}, answered.err
    scored = seqpipe("evaluate", folder, "--data", tmp_path / "texts.jsonl", "--json")
    assert scored.code == 0, scored.err
    stages = {
        "tokenizer": {"use": "bpe", "max_size": 200},
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "transformer", "heads": 2, "layers": 1},
        "head": {"use": "transformer-decoder", "heads": 2, "layers": 1, "target_tokenizer": "same"},
    }
    begun = {kind: {**stage, "init": "runs/spans"} for kind, stage in stages.items()}
    data = {"reader": "jsonl", "train": "pairs.jsonl", "dev": "pairs.jsonl"}
    done = seqpipe("train", yaml(tmp_path, name="more", data=data, **begun), "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.err
    assert "head: starts from runs/spans" in done.out + done.err


def test_a_t5_goes_on_with_texts_alone(tmp_path: Path) -> None:
    stage = {"checkpoint": str(t5(tmp_path / "t5", "1.0", TEXTS))}
    uses = {kind: {"use": "pretrained-seq2seq", **stage} for kind in ("encoder", "head")}
    uses["head"]["spans"] = 0.15
    path = yaml(tmp_path, tokenizer={"use": "pretrained", **stage}, embedding=[], **uses)
    done = seqpipe("train", path, "--device", "cpu", folder=tmp_path)
    assert done.code == 0, done.err


class TestBadInput:
    def test_a_target_that_nobody_needs(self, tmp_path: Path) -> None:
        head = {"use": "transformer-decoder", "spans": 0.15, "target": "text"}
        with pytest.raises(ConfigError, match="it learns from the text itself; delete `target`"):
            load(yaml(tmp_path, head=head))

    def test_letters_that_show_what_is_hidden(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="'chars' is of the uncorrupted text"):
            load(yaml(tmp_path, embedding={"use": "char-cnn", "dim": 16}))

    def test_two_texts(self, tmp_path: Path) -> None:
        done = seqpipe("check", yaml(tmp_path, tokenizer={"use": "bpe", "field": ["text", "text"]}), folder=tmp_path)
        assert done.code == 2
        assert "make the tokenizer read one field" in done.err
