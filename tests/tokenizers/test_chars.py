"""The `chars` tokenizer: one code point a token, and text again without loss."""

from typing import Any

import pytest

from seqpipe.config.signature import construct
from seqpipe_plugins.tokenizers.chars import CharsTokenizer

TEXTS = [
    "想告诉诸葛欣然",
    "l'été,  à 8h",
    "👩\u200d💻 e\u0301",
    "line\r\nline\n",
    " \t\u3000",
    "שלום",
    "",
    "[PAD][EOS]",
]


def split(text: str, **options: Any) -> list[str]:
    encoding = construct(CharsTokenizer, **options).train(["x"]).encode(text, add_special_tokens=False)
    return [text[start:end] for start, end in encoding.offsets]


@pytest.mark.parametrize("text", TEXTS)
def test_every_code_point_is_a_token_and_is_written_again_without_loss(text: str) -> None:
    assert split(text) == list(text)
    assert split(text, keep_spaces=False) == list("".join(text.split()))
    tokenizer = CharsTokenizer().train(TEXTS)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_characters_are_looked_up_by_the_options() -> None:
    tokenizer = construct(CharsTokenizer, lowercase=True, fold_digits=True).train(["ab1"])
    assert tokenizer.encode("AB7", add_special_tokens=False).ids == tokenizer.encode("ab0").ids
    plain = CharsTokenizer().train(["ab1"])
    assert plain.encode("AB7", add_special_tokens=False).ids == [plain.token_to_id("[UNK]")] * 3


def test_no_letter_becomes_two_in_lower_case() -> None:
    """U+0130 is the one that would: a dot of its own, at the place of the letter."""
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x20000)]))
    encoding = construct(CharsTokenizer, lowercase=True).train(["x"]).encode(text, add_special_tokens=False)
    assert encoding.offsets == [(i, i + 1) for i in range(len(text))]


def test_frequent_characters_are_kept_also_of_words_already_split() -> None:
    tokenizer = construct(CharsTokenizer, min_count=2, max_size=2).train(["aabbbc", "cc"])
    assert sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)[4:] == ["b", "c"]
    assert {"诸", "葛"} <= set(CharsTokenizer().train([["诸", "葛"]]).get_vocab())
