"""Records through the featurizer: ids, masks, characters, offsets, sentences."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from seqpipe.config.signature import construct
from seqpipe.errors import BundleError, DataError
from seqpipe.features import sources
from seqpipe.features.document import Doc, TokenCounter, locate
from seqpipe.features.encoding import guard
from seqpipe.features.kinds import text as chars_kind
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.kinds.text import Chars, Pieces, Sentences
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import sentences
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.words import Words

TOKENIZER = Words(lowercase=True).train(["anna calls bern , new york ."])
IDS = TOKENIZER.get_vocab()


def featurizer(**further: Any) -> TextSource:
    return TextSource(TOKENIZER, further)


def fitted_chars(*words: str, longest: int = 20) -> Chars:
    return Chars(longest=longest).fit([Doc(word, [word], [(0, len(word))], [4]) for word in words])


def words_of(doc: Doc) -> list[str]:
    return [doc.text[start:end] for start, end in doc.offsets]


def test_a_text_becomes_words_as_written_with_offsets_and_ids() -> None:
    (doc,) = featurizer().docs([{"text": " Anna  calls\tBerlin."}])
    assert doc.words == ["Anna", "calls", "Berlin", "."]
    assert doc.offsets == [(1, 5), (7, 12), (13, 19), (19, 20)]
    assert doc.ids == [IDS["anna"], IDS["calls"], IDS["[UNK]"], IDS["."]]


def test_words_already_split_get_the_ids_that_their_text_would_get() -> None:
    whole, split = featurizer().docs([{"text": "Anna calls Bern ."}, {"words": ["Anna", "calls", "Bern", "."]}])
    assert whole == split


def test_split_words_are_not_split_again() -> None:
    (doc,) = featurizer().docs([{"words": ["New York", "e.g."]}])
    assert doc.text == "New York e.g."
    assert words_of(doc) == doc.words == ["New York", "e.g."]
    assert doc.ids == [IDS["[UNK]"]] * 2


def test_the_words_of_a_record_are_found_in_its_text() -> None:
    (doc,) = featurizer().docs([{"words": ["你", "好", "你"], "text": "你好，你"}])
    assert doc.offsets == [(0, 1), (1, 2), (3, 4)]


def test_a_special_token_in_the_data_is_an_unknown_word() -> None:
    (doc,) = featurizer().docs([{"words": ["[PAD]", "[EOS]"]}])
    assert doc.ids == [IDS["[UNK]"]] * 2


def test_lone_surrogates_keep_their_place_and_are_given_back_as_they_were() -> None:
    whole, split = featurizer().docs([{"text": "Anna \ud800 Bern"}, {"words": ["a\udc00", "Bern"]}])
    assert whole.words == ["Anna", "\ufffd", "Bern"]
    assert words_of(whole) == ["Anna", "\ud800", "Bern"]
    assert (split.words, words_of(split)) == (["a\ufffd", "Bern"], ["a\udc00", "Bern"])


def test_texts_and_split_words_may_be_mixed_and_stay_in_order() -> None:
    records = [{"text": "Anna"}, {"words": ["Bern", "."]}, {"text": ""}, {"words": []}, {"text": "calls"}]
    assert [doc.words for doc in featurizer().docs(records)] == [["Anna"], ["Bern", "."], [], [], ["calls"]]


def test_with_another_field_the_words_are_not_looked_at() -> None:
    (doc,) = TextSource(TOKENIZER, {}, "question").docs([{"question": "Bern", "words": ["Anna"], "text": "Anna"}])
    assert doc.words == ["Bern"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"title": "x", "where": "a.jsonl:7"}, "a.jsonl:7: no field 'text'; the record has: title; rename"),
        ({"text": 5}, "^field 'text' must be a text, not int"),
        ({}, "the record has: nothing"),
        ({"words": ["b", "a"], "text": "a b", "where": "x:2"}, "x:2: word 'a' is not in the text ''; leave"),
    ],
)
def test_a_record_without_its_text_is_an_error_that_says_where(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        featurizer().docs([record])


def test_a_batch_is_padded_with_zeros_to_its_longest_text() -> None:
    made = featurizer()
    batch = made.collate(made.docs([{"text": "Anna calls"}, {"text": ""}, {"text": "Bern"}]))
    a, c, b = IDS["anna"], IDS["calls"], IDS["bern"]
    assert batch["ids"].tolist() == [[a, c], [0, 0], [b, 0]]
    assert batch["mask"].tolist() == [[True, True], [False, False], [True, False]]
    assert (batch["ids"].dtype, batch["mask"].dtype) == (np.int64, np.bool_)


def test_a_batch_of_empty_texts_is_one_token_wide() -> None:
    made = featurizer(chars=fitted_chars("a"))
    batch = made.collate(made.docs([{"text": ""}, {"text": " "}]))
    assert batch["ids"].shape == batch["mask"].shape == (2, 1)
    assert batch["chars"].shape == (2, 1, 1)
    assert not batch["mask"].any()


def test_characters_are_the_words_as_written_with_1_for_the_unknown() -> None:
    made = featurizer(chars=fitted_chars("Bern", "a", longest=5))  # sorted: B a e n r
    batch = made.collate(made.docs([{"text": "Bern xa"}, {"text": "a"}]))
    assert batch["chars"].tolist() == [[[2, 4, 6, 5], [1, 3, 0, 0]], [[3, 0, 0, 0], [0, 0, 0, 0]]]
    assert made.features["chars"].size == 7


@pytest.mark.parametrize(("longest", "kept"), [(4, "abef"), (5, "abcef"), (6, "abcdef"), (1, "a")])
def test_of_a_long_word_both_ends_are_kept(longest: int, kept: str) -> None:
    chars = fitted_chars("abcdef", longest=longest)
    made = featurizer(chars=chars)
    row = made.collate(made.docs([{"words": ["abcdef"]}]))["chars"][0, 0]
    assert "".join(chars.alphabet[i - 2] for i in row) == kept


def test_a_learned_feature_survives_its_manifest() -> None:
    chars = fitted_chars("né", longest=7)
    assert feature_from(chars.manifest()) == chars
    with pytest.raises(BundleError, match="unknown feature kind 'pixels'; update seqpipe"):
        feature_from({"kind": "pixels"})


def test_learning_does_not_change_the_declared_feature() -> None:
    declared = Chars(longest=3)
    docs = [Doc("ab", ["ab"], [(0, 2)], [4])]
    for alphabet in ("ab", "b"):
        learned = declared.fit([Doc(alphabet, [alphabet], [(0, len(alphabet))], [4])])
        assert learned.array(docs, 1).tolist() == [[[2, 3]] if alphabet == "ab" else [[1, 2]]]
    assert declared == Chars(longest=3)


@pytest.fixture
def hectic() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hectic")
def test_full_caches_change_no_answer_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_CACHED", 2)
    monkeypatch.setattr(chars_kind, "_CACHED", 2)
    made = featurizer(chars=fitted_chars("abcdefgh", longest=4))
    records = [{"words": [a + b for b in "abcdefgh"]} for a in "abcdefgh"]

    def characters(record: dict[str, Any]) -> list[Any]:
        return list(made.collate(made.docs([record]))["chars"].tolist())

    alone = [characters(record) for record in records]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):
            assert list(pool.map(characters, records)) == alone


def test_words_are_located_in_order_even_if_they_repeat() -> None:
    assert locate(["a", "a", "b"], "ab a b") == [(0, 1), (3, 4), (5, 6)]
    assert locate([], "anything") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three", ["One.", " Two!", " Three"]),
        ('He said "No." Then', ['He said "No."', " Then"]),
        ("你好。再见！好吗？好", ["你好。", "再见！", "好吗？", "好"]),
        ("「好。」他说。", ["「好。」", "他说。"]),
        ("Version 2.5 is out", ["Version 2.5 is out"]),
        ("Really?! Yes… No", ["Really?!", " Yes…", " No"]),
        ("a title\nits text", ["a title\n", "its text"]),
        ("one\r\n\r\ntwo", ["one\r\n\r\n", "two"]),
        ("  \n ", []),
        ("", []),
    ],
)
def test_documents_are_split_at_ends_of_sentences_and_lines(text: str, expected: list[str]) -> None:
    assert [text[a:b] for a, b in sentences(text)] == expected


def test_nothing_but_blanks_is_lost_between_sentences() -> None:
    text = "A b. \n\n c d!\t\tE 你。\u3000f"
    assert "".join("".join(text[a:b] for a, b in sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text", ["." * 200_000 + "x", "\n" + " " * 200_000 + "x", '."' * 100_000, ".'" + "'" * 200_000]
)
def test_no_text_makes_splitting_slow(text: str) -> None:
    start = time.process_time()
    sentences(text)
    assert time.process_time() - start < 2  # quadratic search takes minutes


def test_tokens_are_counted_by_id() -> None:
    docs = featurizer().docs([{"text": "Anna Anna"}, {"text": "Anna ?"}])
    counter = TokenCounter(len(IDS))
    for doc in docs:
        counter.add(doc)
    counts = counter.counts()
    assert counter.longest == 2
    assert (counts[IDS["anna"]], counts[IDS["[UNK]"]], sum(counts)) == (3, 1, 4)


def test_a_text_that_holds_a_special_token_means_nothing_by_it() -> None:
    tokenizer = Words(pattern=r"\S+").train(["a b"])
    featurizer = TextSource(tokenizer, {})
    text, words = "a [PAD] [EOS] [UNK] [BOS] b", ["a", "[PAD]", "[EOS]", "[UNK]", "[BOS]", "b"]
    whole, split = featurizer.docs([{"text": text}, {"words": words}])
    assert whole.ids == split.ids == [4, 1, 1, 1, 1, 5]


def sentences_of(given: str, split: Any = "punctuation", **record: Any) -> list[list[str]]:
    """The tokens of each sentence, as the array has them."""
    made = TextSource(TOKENIZER, {"sentences": Sentences(split=split)})
    docs = made.docs([{"text": given} | record, {"text": "x " * 9}])
    array = made.collate(docs)["sentences"]
    assert array.dtype == np.int64
    return [[docs[0].words[i - 1] for i in row if i] for row in array[0].tolist() if any(row)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two three! 四。五", [["One", "."], ["Two", "three", "!"], ["四", "。"], ["五"]]),
        ("a title\nits text", [["a", "title"], ["its", "text"]]),
        ("no end", [["no", "end"]]),
        (" ... . a ", [[".", ".", "."], ["."], ["a"]]),
        ("", []),
    ],
)
def test_each_token_stands_in_the_sentence_in_which_it_begins(text: str, expected: list[list[str]]) -> None:
    assert sentences_of(text) == expected


def test_sentences_may_be_the_lines_alone() -> None:
    assert sentences_of("One. Two\n\nthree\r\n", "lines") == [["One", ".", "Two"], ["three"]]


def test_of_words_already_split_the_sentences_are_those_of_their_text() -> None:
    words = ["He", "left", ".", "Why", "?"]
    assert sentences_of("", words=words, text=None) == [["He", "left", "."], ["Why", "?"]]
    assert sentences_of("", words=words, text="He left.Why?") == [words]


def test_positions_count_from_1_and_a_text_has_at_least_one_sentence() -> None:
    made = TextSource(TOKENIZER, {"sentences": Sentences()})
    array = made.collate(made.docs([{"text": "A b. C"}, {"text": ""}]))["sentences"]
    assert array.tolist() == [[[1, 2, 3], [4, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert made.collate(made.docs([{"text": ""}]))["sentences"].shape == (1, 1, 1)


def test_of_tokens_that_are_words_each_begins_one() -> None:
    made = TextSource(TOKENIZER, {"pieces": Pieces()})
    assert made.collate(made.docs([{"text": "Anna calls"}, {"text": ""}]))["pieces"].tolist() == [[1, 2], [0, 0]]


def test_the_kinds_without_a_vocabulary_survive_their_manifest() -> None:
    for one in (Sentences(), Sentences(split="lines"), Pieces()):
        assert feature_from(one.manifest()) == one.fit([Doc("a", ["a"], [(0, 1)], [4])]) == one
    with pytest.raises(BundleError, match="unknown feature kind 'sentences' with split 'verse'; update seqpipe"):
        feature_from({"kind": "sentences", "split": "verse"})


EVIL = r"([a-z0-9]+[.-]?)+@[a-z]+|\w+"
PANIC = (
    r"b\.txt:2: the tokenizer cannot split 'a{40}'… \(60 characters\): .*retry-limit-in-match over; .* nested repeats"
)


def test_a_panic_of_the_library_is_an_error_that_names_the_record() -> None:
    featurizer = TextSource(Words(pattern=EVIL).train(["Bern a b"]), {})
    records = [{"text": text, "where": f"b.txt:{i}"} for i, text in enumerate(["a b", "a" * 60, "a"], 1)]
    with pytest.raises(DataError, match=PANIC):
        featurizer.docs(records)
    assert [len(doc) for doc in featurizer.docs([records[0], records[2]])] == [2, 1]


def test_a_panic_in_learned_pieces_of_split_words_names_the_record_too() -> None:
    tokenizer = construct(BPE).train(["Bern a b"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(EVIL), "removed", invert=True)
    with pytest.raises(DataError, match=PANIC):
        TextSource(tokenizer, {}).docs([{"words": ["a" * 60], "where": "b.txt:2"}])


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_no_error_of_a_text(signal: type[BaseException]) -> None:
    def split() -> None:
        raise signal

    with pytest.raises(signal):
        guard(split, "a")
