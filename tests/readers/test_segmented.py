"""Word-segmented texts as records: the text without the white space between words, and the words as spans."""

from pathlib import Path
from typing import Any

import pytest

from seqpipe.errors import DataError, UsageError
from seqpipe_plugins.readers.segmented import Segmented


def read(path: Path, text: str, **options: Any) -> list[tuple[str, list[str]]]:
    """The text and the words of each record."""
    path.write_text(text, encoding="utf-8")
    records = list(Segmented(**options).read(path))
    assert {span["label"] for record in records for span in record["spans"]} == {"word"}
    return [(r["text"], [r["text"][span["start"] : span["end"]] for span in r["spans"]]) for r in records]


def test_words_stand_between_any_white_space_and_empty_lines_are_skipped(tmp_path: Path) -> None:
    text = "\ufeff他 从\u3000小学  毕业 。\r\n\n \u3000\n用 iPhone12 打 卡拉OK\n"
    assert read(tmp_path / "a.txt", text) == [
        ("他从小学毕业。", ["他", "从", "小学", "毕业", "。"]),
        ("用iPhone12打卡拉OK", ["用", "iPhone12", "打", "卡拉OK"]),
    ]
    places = [f"{tmp_path / 'a.txt'}:{n}" for n in (1, 4)]
    assert [record["where"] for record in Segmented().read(tmp_path / "a.txt")] == places


def test_syllables_of_vietnamese_words_are_joined_by_a_blank(tmp_path: Path) -> None:
    records = read(tmp_path / "a.txt", "Tôi yêu Việt_Nam _\n", joiner=" ", syllables="_")
    assert records == [("Tôi yêu Việt Nam _", ["Tôi", "yêu", "Việt Nam", "_"])]


BAD = [
    ("今天\n" + "天" * 201, r"a\.txt:2: '天天天.*is a word of 201 characters; separate the words by blanks"),
    ("Việt__Nam", r"a\.txt:1: the word 'Việt__Nam' has an empty syllable; write one '_'"),
    ("\n", "nothing in this file"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_line_without_words_is_an_error_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.txt", text, joiner=" ", syllables="_")


def test_a_blank_does_not_separate_syllables() -> None:
    with pytest.raises(UsageError, match=r"segmented\.syllables: ' ' cannot be within words"):
        Segmented(syllables=" ")
