"""Vocabularies learned from texts: their order, their special tokens, what is left out."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from seqpipe.errors import DataError
from seqpipe.features.vocabulary import SPECIALS, Vocabulary, replace_surrogates, special_id, vocabulary_of, word_level

SPACES = pre_tokenizers.WhitespaceSplit()


def learned(*texts: str | list[str], **options: int) -> list[str]:
    """The tokens after the special ones."""
    tokenizer = word_level(texts, normalizer=normalizers.Lowercase(), splitter=SPACES, **options)
    return list(vocabulary_of(tokenizer))[len(SPECIALS) :]


def test_special_tokens_have_the_ids_0_to_3_in_any_texts() -> None:
    tokenizer = word_level(["[UNK] [UNK] [PAD] a"], normalizer=normalizers.Sequence([]), splitter=SPACES)
    assert vocabulary_of(tokenizer) == ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "a")
    assert [special_id(tokenizer, token) for token in SPECIALS] == [0, 1, 2, 3]
    bare = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(DataError, match=r"no token \[UNK\]; it needs \[PAD\], \[UNK\]"):
        special_id(bare, "[UNK]")


def test_frequent_tokens_come_first_and_equally_frequent_ones_by_code_point() -> None:
    assert learned("b a b c", "é a b") == learned("é a b", "b a b c") == ["b", "a", "c", "é"]


def test_words_already_split_are_normalised_but_not_split() -> None:
    assert learned(["New York", "NEW YORK", "x"]) == ["new york", "x"]


def test_rare_tokens_and_those_over_the_size_are_left_out() -> None:
    assert learned("a a a b b c", min_count=2) == ["a", "b"]
    assert learned("a a a b b c", max_size=1) == ["a"]


@pytest.mark.parametrize(
    ("texts", "min_count", "message"),
    [
        (["a b"], 3, r"no token occurs 3 times .* lower the tokenizer's min_count"),
        (["", " \t"], 1, r"have no tokens: all are blank, or .* matches nothing; correct the data"),
    ],
)
def test_texts_without_a_token_are_an_error_of_the_data(texts: list[str], min_count: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        learned(*texts, min_count=min_count)


def test_lone_surrogates_in_training_texts_become_replacement_characters() -> None:
    assert learned("a\ud800", ["\udfff"]) == ["a\ufffd", "\ufffd"]
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert replace_surrogates("👩\u200d💻") == "👩\u200d💻"


def test_a_learned_tokenizer_is_the_same_after_saving() -> None:
    lowercase, text = normalizers.Lowercase(), "der FLUẞ fließt nicht"
    tokenizer = word_level(["Der Fluß fließt"], normalizer=lowercase, splitter=SPACES, decoder=decoders.Fuse())
    again = Tokenizer.from_str(tokenizer.to_str())
    assert json.loads(again.to_str()) == json.loads(tokenizer.to_str())
    assert again.encode(text).ids == tokenizer.encode(text).ids
    assert again.decode([4, 5]) == tokenizer.decode([4, 5]) == "derfließt"


def test_a_vocabulary_is_a_tuple_with_counts() -> None:
    vocabulary = Vocabulary(["a", "b"], [3, 1])
    assert (vocabulary, vocabulary.counts, Vocabulary(["a"]).counts) == (("a", "b"), [3, 1], None)
