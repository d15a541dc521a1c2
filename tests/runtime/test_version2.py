"""A bundle that seqpipe wrote in version 2 of the format loads and answers; its option `forbidden` takes tokens."""

from pathlib import Path

import pytest

from seqpipe import UsageError, load

BUNDLE = Path(__file__).parent.parent / "version2" / "language-model"


def test_a_language_model_of_version_2_answers_as_it_did_around_its_graph_too() -> None:
    model = load(BUNDLE, "cpu", threads=1)
    assert not model.verify()
    assert model("a ")["generated_text"] == model("a ", temperature=0)["generated_text"] == "a glad y day"
    assert model("a ", forbidden=["l"])["generated_text"].count("l") == 0
    assert not {"l", "d"} & {*model("a ", forbidden="ld")["generated_text"]}
    with pytest.raises(UsageError, match="forbidden: 'n' is not a token of the target vocabulary"):
        model("a ", forbidden="an")
    assert model("a ", stop="d y")["generated_text"] == "a gla"
    assert "".join(model.stream("a ", stop="d y")) == "gla"
