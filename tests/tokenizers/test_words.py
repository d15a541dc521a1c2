"""The `words` tokenizer: splitting, normalization and the vocabulary."""

import time
from typing import Any

import pytest
from tokenizers import Tokenizer

from seqpipe.config.signature import construct
from seqpipe.errors import UsageError
from seqpipe.features.sources import TextSource
from seqpipe_plugins.tokenizers import SubwordOptions
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.words import WordsTokenizer


def split(text: str, **options: Any) -> list[str]:
    """The pieces of the text, as written."""
    encoding = construct(WordsTokenizer, **options).train(["x 1"]).encode(text, add_special_tokens=False)
    return [text[start:end] for start, end in encoding.offsets]


def known(tokenizer: Tokenizer, word: str) -> bool:
    return tokenizer.encode(word, add_special_tokens=False).ids != [tokenizer.token_to_id("[UNK]")]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Anna's e-mail, twice!", ["Anna", "'", "s", "e", "-", "mail", ",", "twice", "!"]),
        ("l'État\tne ", ["l", "'", "État", "ne"]),
        ("e\u0301tude naïve", ["e\u0301tude", "naïve"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("你好，世界", ["你好", "，", "世界"]),
        ("a_b 3.5 10€", ["a_b", "3", ".", "5", "10", "€"]),
        ("\u3000a\u00a0b\r\nc", ["a", "b", "c"]),
        ("...", [".", ".", "."]),
        *((text, []) for text in ("", " \n")),
    ],
)
def test_words_and_single_marks_are_pieces(text: str, pieces: list[str]) -> None:
    assert split(text) == pieces


# Zero-width joiners and non-joiners, soft hyphens, variation selectors, a zero-width space, marks of direction.
UNSEEN = "\u200c\u200d\u00ad\ufe0e\ufe0f\U000e0100\u200b\u200e\u2060\ufeff\u034f"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("او می\u200cخواهم\u200c برود", ["او", "می\u200cخواهم", "برود"]),
        ("کتاب\u200cها\u200cی من", ["کتاب\u200cها\u200cی", "من"]),
        ("क्\u200dष है", ["क्\u200dष", "है"]),
        ("I ❤\ufe0f it", ["I", "❤\ufe0f", "it"]),
        ("👩\u200d👩\u200d👧 👍!", ["👩\u200d👩\u200d👧", "👍", "!"]),
        ("🏃\u200d♀\ufe0f.", ["🏃\u200d♀\ufe0f", "."]),
        ("co\u00adoper\u00adate\u00ad now", ["co\u00adoper\u00adate", "now"]),
        ("葛\U000e0100飾区", ["葛\U000e0100飾区"]),
        ("1\ufe0f\u20e3", ["1\ufe0f\u20e3"]),
        ("a\u200bb \u200ec\u200f", ["a", "b", "c"]),
        ("".join(f"{mark} " for mark in UNSEEN), []),
        (UNSEEN, []),
    ],
)
def test_characters_that_are_not_seen_are_no_tokens(text: str, pieces: list[str]) -> None:
    assert split(text) == pieces
    bpe = BPE(options=SubwordOptions(max_size=300)).train([text + " x"])
    source = TextSource(bpe, {})
    assert [text[a:b] for a, b in source.docs([{"text": text}])[0].word_offsets] == pieces


@pytest.mark.parametrize("unit", ["\u200d", "a\u200c", "!\u200d", "a\ufe0f\u200c", "\ufe0f"])
def test_a_long_text_of_joiners_is_split_in_time(unit: str) -> None:
    start = time.process_time()
    WordsTokenizer().train(["x"]).encode(unit * 200_000, add_special_tokens=False)
    assert time.process_time() - start < 30  # a quadratic search takes minutes


def test_another_pattern_makes_other_words() -> None:
    assert split("e-mail, twice!", pattern=r"\S+") == ["e-mail,", "twice!"]
    assert split("a1b", pattern=r"\d") == ["1"]


@pytest.mark.parametrize("pattern", ["(", "[a-z", "*", "(?<"])
def test_a_broken_pattern_is_an_error_of_the_yaml(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"words\.pattern: .* is no regular expression: "):
        WordsTokenizer(pattern=pattern)


def test_words_are_looked_up_in_lower_case_and_digits_as_zeros_and_no_offset_moves() -> None:
    plain, lower = WordsTokenizer().train(["Anna"]), construct(WordsTokenizer, lowercase=True).train(["Anna", "İzmir"])
    digits = construct(WordsTokenizer, fold_digits=True).train(["in 1984"])
    assert [known(plain, word) for word in ("Anna", "anna")] == [True, False]
    assert [known(lower, word) for word in ("Anna", "ANNA", "İZMİR", "izmir", "Ben")] == [True, True, True, True, False]
    assert [known(digits, word) for word in ("2024", "٢٠٢٤", "0000", "84")] == [True, True, True, False]
    text = "İİ ẞ Ǆ 12 ΑΣ"
    assert split(text, lowercase=True, fold_digits=True) == text.split()


def test_frequent_words_are_kept_and_have_the_low_ids() -> None:
    tokenizer = construct(WordsTokenizer, min_count=2, max_size=1).train(["b b b", "a a", "c"])
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "[BOS]": 2, "[EOS]": 3, "b": 4}
    assert {"New York", "e.g."} <= set(WordsTokenizer().train([["New York", "e.g."]]).get_vocab())  # already split
