"""The kind `ngrams`: which n-grams a text has, their hashes, and which of them have a number."""

import unicodedata
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.ngrams import Ngrams, hash_of_word
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.kinds.text import Column
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import token_counts
from seqpipe_plugins.tokenizers.words import WordsTokenizer

A, B, A_B = 0x1CA6127B, 0x67468B28, 0x355B3DC1  # the words "a" and "b", and one after the other
CHARACTERS = [0x14E7523E, 0xB9212B40, 0xF2EBE8D4, 0x53B42ED2, 0x91236261]  # <a, <ab, ab, ab>, b>


def doc(text: str) -> Doc:
    words = text.split()
    return Doc(text, words, [(0, 0)] * len(words), [4] * len(words))


def fitted(feature: Ngrams, *texts: str) -> Ngrams:
    return feature.fit(map(doc, texts))


def rows(feature: Ngrams, text: str) -> list[list[int]]:
    return [[n for n in row if n] for row in feature.array([doc(text)], len(text.split()))[0].tolist()]


def test_hashes_never_change() -> None:
    expected = {"": 0, "a": 0xE0371F19, "Ada": 0xFBFC28C3, "straße": 0xCAF3F046, "ΣΑΣ": 0x1DE33872}
    assert {word: hash_of_word(word) for word in expected} == expected
    assert {*fitted(Ngrams(2, None), "a b").hashes} == {A, B, A_B}
    assert {*fitted(Ngrams(0, (2, 3)), "Ab").hashes} == {*CHARACTERS}


def test_with_labels_each_label_has_its_counts_and_a_deployment_needs_none() -> None:
    texts = [("a b", "x"), ("a", "y"), ("a", "y")]
    feature = Ngrams(2, None, label="mood")
    counted = feature.fit(replace(doc(text), columns={"mood": label}) for text, label in texts)
    assert (feature.fields, counted.fields) == (("mood",), ())
    assert counted.hashes == (A, *sorted((A_B, B)))
    assert token_counts(counted.size) == (1, 1, 1, 1, 2, 2, 0, 0)
    with pytest.raises(DataError, match="fewer than 2"):
        feature.fit([replace(doc("a"), columns={"mood": "x"})])


def test_word_n_grams_end_at_their_token_in_a_place_for_each_length() -> None:
    feature = Ngrams(2, None, hashes=(A, B, A_B))
    array = feature.array([doc("a b a"), doc("b")], 3)
    assert array.tolist() == [[[1, 0], [2, 3], [1, 0]], [[2, 0], [0, 0], [0, 0]]]


def test_character_n_grams_stand_in_order_behind_those_of_words() -> None:
    feature = fitted(Ngrams(1, (2, 3)), "ab")
    expected = [feature.hashes.index(value) + 1 for value in CHARACTERS]
    assert feature.array([doc("ab")], 1)[0, 0].tolist()[1:] == expected
    few = Ngrams(1, (2, 3), hashes=(CHARACTERS[0], CHARACTERS[4]))
    assert few.array([doc("ab")], 1).tolist() == [[[0, 1, 2]]]  # an unknown n-gram leaves no gap


def test_unknown_n_grams_are_0_and_a_text_of_them_has_a_place() -> None:
    assert fitted(Ngrams(2, (2, 5)), "a b").array([doc("xyz qrs")], 2).tolist() == [[[0, 0], [0, 0]]]
    assert fitted(Ngrams(0, (2, 5)), "a b").array([doc("xyz")], 1).tolist() == [[[0]]]


@pytest.mark.parametrize(("text", "same"), [("ADA", "ada"), ("ΣΑΣ", "σασ"), ("İ", "i̇"), ("x" * 40, "X" * 40 + "yz")])
def test_case_is_folded_and_40_code_points_are_read(text: str, same: str) -> None:
    feature = fitted(Ngrams(), text)
    assert np.array_equal(feature.array([doc(text)], 1), feature.array([doc(same)], 1))
    longest = fitted(Ngrams(1, None), "x" * 40)
    assert [rows(longest, "x" * 39 + end) for end in ("", "y")] == [[[]], [[]]]


@pytest.mark.parametrize("lengths", [None, (2, 4)])
def test_with_binary_each_stands_where_it_occurs_first(lengths: tuple[int, int] | None) -> None:
    texts = ["aa bb aa bb", "bb aa aa"]
    often, once = (fitted(Ngrams(2, lengths, binary), *texts) for binary in (False, True))
    for text in texts:
        numbers = [n for row in rows(often, text) for n in row]
        assert [n for row in rows(once, text) for n in row] == list(dict.fromkeys(numbers))
        assert len({*numbers}) < len(numbers)


def test_n_grams_of_most_texts_are_kept_with_their_counts_and_in_order_of_their_hashes() -> None:
    feature = fitted(Ngrams(1, None, max_size=2), "a a a a", "b c", "b c", "c")
    assert feature.hashes == (hash_of("c"), hash_of("b"))
    assert feature.counts == (4, 3, 2)
    assert (feature.size, token_counts(feature.size)) == (3, (4, 3, 2))
    assert token_counts(Ngrams().size) is None
    assert fitted(Ngrams(1, None), "a b").hashes == tuple(sorted([A, B]))


def test_a_text_counts_once_for_an_n_gram_that_several_of_its_words_have() -> None:
    feature = fitted(Ngrams(0, (2, 2)), "abc abd ab", "bd")  # ab is in three words of one text
    counts = dict(zip(feature.hashes, (feature.counts or ())[1:], strict=True))
    ab, bd = fitted(Ngrams(0, (2, 2)), "ab"), fitted(Ngrams(0, (2, 2)), "bd")
    (b_end,) = {*ab.hashes} & {*fitted(Ngrams(0, (2, 2)), "xb").hashes}
    assert counts[b_end] == 1
    assert {counts[value] for value in ab.hashes} == {1}
    assert sorted(counts[value] for value in bd.hashes) == [1, 2, 2]  # <b of one text; bd and d> of both


def hash_of(word: str) -> int:
    return fitted(Ngrams(1, None), word).hashes[0]


@pytest.mark.parametrize("waiting", [0, 5, 1_000])
def test_texts_are_counted_alike_in_any_portions(monkeypatch: pytest.MonkeyPatch, waiting: int) -> None:
    monkeypatch.setattr("seqpipe.features.kinds.ngrams._MAX_WAITING_HASHES", waiting)
    random = np.random.default_rng(1)
    texts = [[f"w{word}" for word in random.integers(12, size=random.integers(9))] for _ in range(40)]
    feature = Ngrams(words=1, chars=None, max_size=9).fit(doc(" ".join(words)) for words in texts)
    counts = Counter(word for words in texts for word in {*words})
    assert list(feature.counts) == [len(texts), *sorted(counts.values(), reverse=True)[:9]]
    by_number = {number: counts[word] for word in counts for number in rows(feature, word)[0]}
    assert by_number == dict(enumerate(feature.counts[1:], 1))


def test_a_feature_that_begins_with_an_older_one_keeps_its_numbers() -> None:
    older = fitted(Ngrams(1, None), "a b", "b")
    newer = Ngrams(1, None, max_size=3).initialise_from(older).fit(map(doc, ["c a", "c"]))
    assert newer.hashes == (*older.hashes, hash_of("c"))
    assert newer.counts == (2, 0, 1, 2)  # of the new texts
    assert Ngrams(1, None, max_size=1).initialise_from(older).fit([doc("c")]).hashes == older.hashes
    assert Ngrams().initialise_from(Column("mood")) == Ngrams()
    assert Ngrams().initialise_from(None) == Ngrams()


def test_many_words_clear_the_cache_and_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    text = doc("bob met ada met bob left ada")
    expected = fitted(Ngrams(), "ada met bob", "bob left").array([text], 7)
    monkeypatch.setattr("seqpipe.features.kinds.ngrams._MAX_CACHED_WORDS", 2)
    assert np.array_equal(fitted(Ngrams(), "ada met bob", "bob left").array([text], 7), expected)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composed_and_decomposed_words_have_the_same_n_grams_in_a_form_of_the_tokenizer(form: Any) -> None:
    composed, decomposed = (doc(unicodedata.normalize(written, "한국어 café 한국")) for written in ("NFC", "NFD"))
    tokenizer = construct(WordsTokenizer, normalize=form).train([composed.text])
    feature = Ngrams(words=2, chars=(2, 3)).with_tokenizer(tokenizer, TextSource(tokenizer, {}).words).fit([decomposed])
    array = feature.array([composed], 3)
    assert np.array_equal(array, feature.array([decomposed], 3))
    assert (array[..., :2] > 0).sum() == 5  # three words, and two pairs of them
    again = feature_from(feature.manifest())
    assert again == feature
    assert np.array_equal(again.array([composed], 3), array)
    plain = replace(feature, normalize=None, _rows={})
    assert not np.array_equal(plain.array([composed], 3), plain.array([decomposed], 3))
