"""fastText's training files through the reader fasttext."""

from pathlib import Path
from typing import Any

import pytest

from seqpipe.errors import DataError, UsageError
from seqpipe_plugins.readers.fasttext import FastText


def lines(*content: str, **options: Any) -> list[dict[str, Any]]:
    records = list(FastText(**options).records(content, "f"))
    return [{key: value for key, value in record.items() if key != "where"} for record in records]


def test_a_label_and_a_text_are_read_from_each_line(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("__label__city  in  Bern\n\n__label__问候\t你好\n", encoding="utf-8")
    assert list(FastText().read(path)) == [
        {"text": "in  Bern", "label": "city", "where": f"{path}:1"},
        {"text": "你好", "label": "问候", "where": f"{path}:3"},
    ]


def test_several_labels_may_be_anywhere_in_the_line() -> None:
    content = ["__label__a __label__b x y\n", "x __label__a y __label__a\n", "x y\n", "__label__c\n"]
    assert lines(*content, multi=True) == [
        {"text": "x y", "labels": ["a", "b"]},
        {"text": "x y", "labels": ["a"]},
        {"text": "x y", "labels": []},
        {"text": "", "labels": ["c"]},
    ]
    assert lines("#a x\n", prefix="#") == [{"text": "x", "label": "a"}]


BAD = [
    ("__label__a __label__b x", r"f:1: this line has 2 labels; set the reader's option `multi: true`"),
    ("x y", r"f:1: this line has no word that begins with .__label__.; label each line"),
    ("__label__ x", r"f:1: a label is missing after '__label__'; write one"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_line_without_its_label_is_an_error(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        lines(line)


def test_a_prefix_that_no_word_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"fasttext\.prefix"):
        FastText(prefix="a b")


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("__label__-0.5 a\n__label__x b\n")
    rows = FastText(numbers=True).read(path)
    assert next(rows) == {"text": "a", "label": -0.5, "where": f"{path}:1"}
    with pytest.raises(DataError, match=r"a\.txt:2: the label 'x' is not a number"):
        next(rows)
    with pytest.raises(UsageError, match=r"fasttext\.numbers"):
        FastText(numbers=True, multi=True)
