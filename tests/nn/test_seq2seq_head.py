"""What heads that write texts share: texts as long as their source, whatever options say; the tokenizer of BLEU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from factory import writing

from seqpipe.answers.metrics import text as text_metrics
from seqpipe.answers.registry import task_of
from seqpipe.config.loader import load
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import examples, read
from seqpipe.training.evaluation import option_table, predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline

HEADS: dict[str, dict[str, Any]] = {
    "seq2seq": {"hidden": 8, "embedding_dim": 4},
    "transformer-decoder": {"heads": 2, "layers": 1, "feedforward": 8},
}


def untrained(folder: Path, head: str, **options: Any) -> Predictor:
    """A pipeline of random weights that writes texts, in PyTorch."""
    said = {"use": head, "target": "reversed", "target_tokenizer": "same", **HEADS[head], **options}
    config = load(writing(folder, {"head": said}))
    artifacts = fit_artifacts(config, read(config.data.reader, config.data.train))
    torch.manual_seed(1)
    return predictor(Pipeline(config, artifacts), config)


def lengths(made: Predictor, texts: list[str], **options: Any) -> list[int]:
    return [len(one["generated_text"]) for one in made.stream(({"text": text} for text in texts), **options)]


@pytest.mark.parametrize("head", HEADS)
def test_a_text_of_equal_length_is_as_long_as_its_source_however_long_and_drawn_too(head: str, tmp_path: Path) -> None:
    made = untrained(tmp_path, head, equal_length=True)
    texts = ["ab" * 55, "c", "", "fade"]  # the first is longer than max_length would be
    wanted = [len(text) for text in texts]
    unknown = ["[UNK]"]  # no text holds it: what is written would be shorter
    assert lengths(made, texts, forbidden=unknown) == wanted
    assert lengths(made, texts, forbidden=unknown, beams=3) == wanted
    assert lengths(made, texts, forbidden=unknown, seed=4) == wanted
    drawn = [*made.stream(({"text": text} for text in texts), seed=4, beams=2)]
    assert drawn == [next(made.stream([{"text": text}], seed=4, beams=2)) for text in texts]


@pytest.mark.parametrize("head", HEADS)
def test_lengths_are_no_options_of_a_head_whose_source_says_them(head: str, tmp_path: Path) -> None:
    made = untrained(tmp_path, head, equal_length=True)
    other = untrained(tmp_path, head)
    assert {*other.options} - {*made.options} == {"max_length", "min_length", "allowed"}
    for name in ("max_length", "min_length"):
        with pytest.raises(UsageError, match=f"no decode option '{name}'"):
            [*made.stream([{"text": "abc"}], **{name: 2})]
    config = load(writing(tmp_path))
    assert {*option_table(*config.head)} == {*other.options}


def test_a_record_whose_text_is_not_as_long_as_its_source_is_named(tmp_path: Path) -> None:
    said = {"use": "seq2seq", "target": "reversed", "target_tokenizer": "same", "equal_length": True}
    config = load(writing(tmp_path, {"head": said}))
    records = read(config.data.reader, config.data.train)
    assert len(examples(config, fit_artifacts(config, records), records)) == len(records)
    records[3] = {**records[3], "text": "abc", "reversed": "cb"}
    told = r"train\.jsonl:4: the text has 2 tokens and its source 3; equal_length needs equal numbers"
    with pytest.raises(DataError, match=told):
        examples(config, fit_artifacts(config, records), records)


@pytest.mark.parametrize("options", [{"use": "seq2seq"}, {"use": "transformer-decoder"}, {"use": "copy-seq2seq"}])
def test_the_tokenizer_of_bleu_is_part_of_the_answer_that_a_bundle_states(
    options: dict[str, Any], tmp_path: Path
) -> None:
    head = {"target": "reversed", "target_tokenizer": "same", **options}
    artifacts = {name: fitted(tmp_path, {**head, "bleu_tokenize": name}) for name in ("none", None)}
    assert "bleu_tokenize" not in artifacts[None].tasks[0].answer
    task = artifacts["none"].tasks[0]
    assert task.answer["bleu_tokenize"] == "none"
    counts = task_of(task.kind).counter()
    counts.add("a, b c d e (f)", "a, b c d e")
    expected = sacrebleu.corpus_bleu(["a, b c d e"], [["a, b c d e (f)"]], tokenize="none").score / 100
    assert 0 < counts.result()["bleu"] == pytest.approx(expected)


def test_a_head_that_fills_spans_states_the_tokenizer_of_bleu_too(tmp_path: Path) -> None:
    head = {"use": "transformer-decoder", "target_tokenizer": "same", "spans": 0.2, "bleu_tokenize": "char"}
    assert fitted(tmp_path, head).tasks[0].answer["bleu_tokenize"] == "char"


def test_a_tokenizer_of_bleu_that_there_is_not_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {"use": "seq2seq", "target": "reversed", "target_tokenizer": "same"}
    with pytest.raises(ConfigError, match=r"head\.bleu_tokenize: .*13b"):
        fitted(tmp_path, {**head, "bleu_tokenize": "13b"})
    monkeypatch.setattr(text_metrics, "has", lambda package: package == "sacrebleu")
    with pytest.raises(ConfigError, match=r"ja-mecab needs MeCab and its dictionary: pip install 'sacrebleu\[ja\]'"):
        fitted(tmp_path, {**head, "bleu_tokenize": "ja-mecab"})


def fitted(folder: Path, head: dict[str, Any]) -> Artifacts:
    config = load(writing(folder, {"head": head}))
    return fit_artifacts(config, read(config.data.reader, config.data.train))
