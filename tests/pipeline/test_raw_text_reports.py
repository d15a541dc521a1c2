"""`run`, `check` and the model card say how raw text is split and scored where the data gives words."""

from __future__ import annotations

from pathlib import Path

import pytest
from factory import LEAN, tiny

from seqpipe.console import Console
from seqpipe.pipeline.check import check_export
from seqpipe.pipeline.full_run import run_all
from seqpipe.pipeline.scoring import score_raw_text
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.model import load

LETTERS = r"tokenizer={use: words, pattern: \w}"


def test_a_tokenizer_that_cuts_words_is_warned_of_and_scored_on_raw_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny(tmp_path, *LEAN, LETTERS, "train.epochs=6", "train.batch_size=4")
    scores = run_all(config, Console(0), "cpu").scores or {}
    messages = capsys.readouterr().err
    assert list(scores) == ["test", "test (raw)"]
    assert scores["test (raw)"]["f1"] < scores["test"]["f1"] - 0.02
    assert scores["test (raw)"]["split_otherwise"] > 0.5
    (warning,) = [line for line in messages.splitlines() if "split differently" in line and "warning" in line]
    assert "on raw text" in warning
    assert r"""with `tokenizer: {use: words, pattern: "\\w+|[^\\w\\s]"}` it is 0.0 %""" in warning
    card = (tmp_path / "runs" / "tiny" / "bundle" / "README.md").read_text()
    assert "| test (raw) | f1 |" in card
    assert (
        f"test (raw): the text alone is given, as in deployment; {100 * scores['test (raw)']['split_otherwise']:.1f} %"
        in card
    )


def test_check_warns_only_where_many_words_are_split_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_export(tiny(tmp_path, *LEAN, LETTERS), Console(0))
    assert "words are split differently by the tokenizer in the words joined by spaces: for example" in (
        capsys.readouterr().err
    )
    check_export(tiny(tmp_path, *LEAN), Console(0))
    messages = capsys.readouterr().err
    assert "0.0 % of" in messages
    assert "for example" not in messages


def test_raw_text_that_the_model_refuses_is_a_warning_and_no_score(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = load(tiny_bundle, "cpu").predictor
    predictor.limits = Limits(tokens=2)
    records = [{"text": "Anna-Lena", "words": ["Anna-Lena"], "tags": ["B-person"]}]
    assert score_raw_text(predictor, "test", records, {"f1": 1.0}, Console(0)) == {}
    message = capsys.readouterr().err
    assert "warning: 100.0 % of 1 words are split differently" in message
    assert "it cannot be scored: " in message
