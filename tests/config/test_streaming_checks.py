"""A stage that cannot answer on a text in parts is refused at its line, with the setting that makes it possible."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import write_tagger

from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError

FITTING: dict[str, Any] = {
    "embedding": "lookup",
    "encoder": {"use": "lstm", "direction": "forward"},
    "head": {"use": "tags"},
    "export": {"streaming": True},
}


def problems(folder: Path, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(write_tagger(folder, FITTING | changes))
    assert all(problem.line for problem in caught.value.problems)
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


STREAMING = [
    {},
    {"embedding": ["lookup", "char-cnn", "char-lstm"]},
    {"encoder": [{"use": "transformer", "causal": True}, {"use": "words"}]},
    {"encoder": None},
    {"head": {"use": "label", "target": "topic", "pool": "mean"}},
    {"head": "crf", "encoder": "lstm", "export": {}},  # not for streaming
]


@pytest.mark.parametrize("changes", STREAMING)
def test_stages_that_wait_for_no_later_token_may_stream(changes: dict[str, Any], tmp_path: Path) -> None:
    assert load_config(write_tagger(tmp_path, FITTING | changes)).name == "tiny"


WHOLE_TEXTS_ONLY = [
    ({"encoder": "gru"}, "encoder", "set direction: forward"),
    ({"encoder": "transformer"}, "encoder", "set causal: true"),
    ({"encoder": ["words", "conv"]}, "encoder.1", "choose transformer, lstm, gru, rnn or pretrained-decoder"),
    ({"embedding": ["lookup", "positions"]}, "embedding.1", "whole texts only.*choose lookup"),
    ({"head": "crf"}, "head", "Viterbi decides on the whole text.*use the head tags"),
    ({"head": {"use": "label", "target": "topic", "pool": "attention"}}, "head", "pool: last, mean or max"),
    ({"head": {"use": "label", "target": "topic", "pool": "state"}}, "head", "set pool: last"),
    ({"head": {"use": "retrieval", "target": "topic"}}, "head", "use the head vector"),
    ({"head": ["tags", {"use": "label", "target": "topic"}]}, "export.streaming", "one head"),
    (
        {"export": {"streaming": True, "explain": True}, "encoder": [{"use": "transformer", "causal": True}]},
        "export.streaming",
        "delete explain, or this",
    ),
]


@pytest.mark.parametrize(("changes", "key", "fix"), WHOLE_TEXTS_ONLY)
def test_a_stage_that_reads_whole_texts_is_refused(changes: dict, key: str, fix: str, tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, **changes)
    assert re.fullmatch(f"{key}: .*{fix}.*", problem)


def test_every_stage_that_prevents_streaming_is_reported_at_once(tmp_path: Path) -> None:
    messages = problems(tmp_path, embedding="positions", encoder=["lstm", "gru"], head="crf")
    assert [message.partition(":")[0] for message in messages] == ["embedding", "encoder.0", "encoder.1", "head"]
