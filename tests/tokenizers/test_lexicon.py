"""The `lexicon` tokenizer: forward maximum matching with the words of a file, or of split training data."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe.features.sources import TextSource
from seqpipe_plugins.tokenizers.lexicon import Lexicon

WORDS = ("研究", "研究生", "生命", "起源", "T恤", "卡拉OK", "Việt Nam", "การ", "IT", "a.b", "[x]", "ὰ-", "𠮷野家")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "words.txt"
    file.write_text("\n".join(WORDS), encoding="utf-8")
    return file


def units(tokenizer: Tokenizer, text: str) -> list[str]:
    return [text[start:end] for start, end in tokenizer.encode(text, add_special_tokens=False).offsets]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("研究生命起源", ["研究生", "命", "起源"]),  # the longest word at each place
        ("研究 生命\u3000起源", ["研究", "生命", "起源"]),
        ("买T恤，唱卡拉OK。", ["买", "T恤", "，", "唱", "卡拉OK", "。"]),
        ("用iPhone12和ITALY的IT", ["用", "iPhone12", "和", "ITALY", "的", "IT"]),  # Latin letters are words
        ("Việt Nam, Việt Nama", ["Việt Nam", ",", "Việt", "Nama"]),
        ("กิการ", ["กิ", "การ"]),  # a character that no word covers keeps its marks
        ("การิ", ["ก", "า", "ริ"]),  # a word does not stop before a mark
        ("在𠮷野家a.b[x]", ["在", "𠮷野家", "a.b", "[x]"]),
        *((text, []) for text in ("", " \n\u3000")),
    ],
)
def test_the_longest_word_at_each_place_is_a_unit(path: Path, text: str, expected: list[str]) -> None:
    assert units(Lexicon(path=path).train(["一"]), text) == expected


def test_an_unknown_character_takes_no_neighbour_with_it(path: Path) -> None:
    source = TextSource(Lexicon(path=path).train(["研究起源"]), {})
    (doc,) = source.docs([{"text": "研究丂丄🙂生命起源"}])
    assert doc.words == ["研究", "丂", "丄", "🙂", "生命", "起源"]
    assert [i == 1 for i in doc.ids] == [False, True, True, True, True, False]


def matched(words: set[str], text: str) -> list[str]:
    """Forward maximum matching, written plainly."""
    if not text:
        return []
    size = max((n for n in range(2, len(text) + 1) if text[:n] in words), default=1)
    return [text[:size], *matched(words, text[size:])]


def test_units_are_those_of_plain_maximum_matching_for_any_lexicon(tmp_path: Path) -> None:
    dice, path = random.Random(1), tmp_path / "words.txt"
    for characters in ("天地人", "一二三四五六七八九十", "".join(map(chr, range(0x4E00, 0x4F00)))):
        words = {"".join(dice.choices(characters, k=dice.randint(1, 6))) for _ in range(400)}
        path.write_text("\n".join(sorted(words)), encoding="utf-8")
        tokenizer = Lexicon(path=path).train(["一"])
        texts = ["".join(dice.choices(characters, k=40)) for _ in range(50)]
        assert [units(tokenizer, text) for text in texts] == [matched(words, text) for text in texts]


def test_counts_and_tags_behind_a_word_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeff研究 12 vn\n生命\t7\n\nViệt Nam\t3\r\n起源 5\n", encoding="utf-8")
    tokenizer = Lexicon(path=path).train(["一"])
    assert units(tokenizer, "研究生命Việt Nam起源") == ["研究", "生命", "Việt Nam", "起源"]


def test_the_longest_words_and_lines_are_read(tmp_path: Path) -> None:
    path, words = tmp_path / "words.txt", ["研" * length for length in range(1, 201)]  # each the beginning of the next
    path.write_text("\n".join([*words, "生命" + " " * 1_000_000 + "\0"]), encoding="utf-8")
    assert units(Lexicon(path=path).train(["一"]), "研" * 210 + "生命") == ["研" * 200, "研" * 10, "生命"]
    tokenizer = Lexicon().train([["小学", "研" * 5_000], ["毕业"]])  # without those that are longer
    assert units(tokenizer, "小学毕业") == ["小学", "毕业"]


def test_the_words_of_split_training_data_are_the_lexicon_and_stay_as_they_are() -> None:
    tokenizer = Lexicon().train([["他", "从", "小学", "毕业"], ["人工 智能", "小学"]])
    assert units(tokenizer, "他从小学毕业") == ["他", "从", "小学", "毕业"]
    (doc,) = TextSource(tokenizer, {}).docs([{"words": ["他从", "小学"], "text": "他从小学"}])
    assert doc.words == ["他从", "小学"]
    assert doc.ids == [1, tokenizer.token_to_id("小学")]


def test_a_word_at_which_matching_is_wrong_more_often_than_right_is_left_out() -> None:
    sentences = [["发展", "中", "国家"], ["发展", "中", "国家"], ["中国"]]
    assert units(Lexicon().train(sentences), "发展中国家") == ["发展", "中", "国家"]
    assert units(Lexicon().train([*sentences, ["中国"]]), "发展中国家") == ["发展", "中国", "家"]


def test_words_with_blanks_are_learned_of_data_that_is_joined_by_blanks() -> None:
    tokenizer = Lexicon(joiner=" ").train([["Tôi", "ở", "Việt Nam"], ["sinh viên", "Việt Nam"]])
    assert units(tokenizer, "sinh viên ở Việt Nam") == ["sinh viên", "ở", "Việt Nam"]
    assert tokenizer.decode(tokenizer.encode("sinh viên ở Việt Nam").ids) == "sinh viên ở Việt Nam"
    assert Lexicon().train([["小学", "毕业"]]).decode([4, 5]) in ("小学毕业", "毕业小学")


def test_text_and_lexicon_are_folded_alike(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("Ｔ恤\nVIỆT Nam\n2月\n", encoding="utf-8")
    tokenizer = construct(Lexicon, path=path, normalize="NFKC", lowercase=True, fold_digits=True).train(
        ["t恤 việt nam 3月"]
    )
    assert units(tokenizer, "T恤Ｔ恤 việt NAM 3月") == ["T恤", "Ｔ恤", "việt NAM", "3月"]
    assert 1 not in tokenizer.encode("T恤Ｔ恤 Việt NAM 3月").ids


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", r"words\.txt: the lexicon has no word"),
        ("研究\n 生命\n".encode(), r"words\.txt:2: the line ' 生命' does not begin"),
        ("研究".encode("gb18030"), "is not UTF-8"),
        (("研" * 201).encode(), r"a word over the limit of 200 characters, '研{50}'…; delete it"),
    ],
)
def test_a_bad_lexicon_is_an_error_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Lexicon(path=tmp_path / "words.txt").train(["一"])


@pytest.mark.parametrize("texts", [["未分词的文本"], [["已", "分词"], "未分词"]])
def test_without_a_lexicon_data_that_is_not_split_is_refused(texts: Sequence[Any]) -> None:
    with pytest.raises(DataError, match=r"is not split into words: name a lexicon \(`path`\) or a trained segmenter"):
        Lexicon().train(texts)


def test_words_come_from_one_place_only(path: Path) -> None:
    with pytest.raises(UsageError, match="delete one of them"):
        Lexicon(path=path, run=path.parent)
