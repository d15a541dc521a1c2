"""Records through the featurizer: ids, masks, characters, offsets, sentences."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe.features import sources
from seqpipe.features.document import Doc, TokenCounter, locate_words
from seqpipe.features.kinds import text as chars_kind
from seqpipe.features.kinds.text import Chars, Pieces, Sentences
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import sentence_offsets
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.words import WordsTokenizer

TOKENIZER = construct(WordsTokenizer, lowercase=True).train(["anna calls bern , new york ."])
IDS = TOKENIZER.get_vocab()


def featurizer(**features: Any) -> TextSource:
    return TextSource(TOKENIZER, features)


def docs(*records: dict[str, Any]) -> list[Doc]:
    return featurizer().docs(records)


def fitted_chars(*words: str, longest: int = 20) -> Chars:
    return Chars(longest=longest).fit([Doc(word, [word], [(0, len(word))], [4]) for word in words])


def test_a_text_becomes_words_as_written_with_offsets_and_ids() -> None:
    doc, whole, split = docs({"text": " Anna  calls\tBerlin."}, {"text": "Anna ."}, {"words": ["Anna", "."]})
    assert doc.words == ["Anna", "calls", "Berlin", "."]
    assert doc.offsets == [(1, 5), (7, 12), (13, 19), (19, 20)]
    assert doc.ids == [IDS["anna"], IDS["calls"], IDS["[UNK]"], IDS["."]]
    assert whole == split


def test_split_words_are_not_split_again_and_found_in_the_text_of_their_record() -> None:
    split, chinese = docs({"words": ["New York", "e.g."]}, {"words": ["你", "好", "你"], "text": "你好，你"})
    assert split.text == "New York e.g."
    assert [split.text[start:end] for start, end in split.offsets] == split.words == ["New York", "e.g."]
    assert split.ids == [IDS["[UNK]"]] * 2
    assert chinese.offsets == [(0, 1), (1, 2), (3, 4)]


def test_with_another_field_the_words_are_not_read() -> None:
    (doc,) = TextSource(TOKENIZER, {}, "question").docs([{"question": "Bern", "words": ["Anna"], "text": "Anna"}])
    assert doc.words == ["Bern"]


def test_texts_and_split_words_may_be_mixed_and_stay_in_order() -> None:
    records = [{"text": "Anna"}, {"words": ["Bern", "."]}, {"text": ""}, {"words": []}, {"text": "calls"}]
    assert [doc.words for doc in featurizer().docs(records)] == [["Anna"], ["Bern", "."], [], [], ["calls"]]


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
    batch = featurizer().collate(docs({"text": "Anna calls"}, {"text": ""}, {"text": "Bern"}))
    a, c, b = IDS["anna"], IDS["calls"], IDS["bern"]
    assert batch["ids"].tolist() == [[a, c], [0, 0], [b, 0]]
    assert batch["mask"].tolist() == [[True, True], [False, False], [True, False]]
    assert (batch["ids"].dtype, batch["mask"].dtype) == (np.int64, np.bool_)


def test_a_batch_of_empty_texts_is_one_token_wide() -> None:
    batch = featurizer(chars=fitted_chars("a")).collate(docs({"text": ""}, {"text": " "}))
    assert batch["ids"].shape == batch["mask"].shape == (2, 1)
    assert batch["chars"].shape == (2, 1, 1)
    assert not batch["mask"].any()


def test_characters_are_the_words_as_written_with_1_for_the_unknown() -> None:
    source = featurizer(chars=fitted_chars("Bern", "a", longest=5))  # sorted: B a e n r
    batch = source.collate(docs({"text": "Bern xa"}, {"text": "a"}))
    assert batch["chars"].tolist() == [[[2, 4, 6, 5], [1, 3, 0, 0]], [[3, 0, 0, 0], [0, 0, 0, 0]]]
    assert source.features["chars"].size == 7


def test_fitting_does_not_change_the_declared_feature() -> None:
    declared = Chars(longest=3)
    for alphabet, row in (("ab", [2, 3]), ("b", [1, 2])):
        fitted = declared.fit([Doc(alphabet, [alphabet], [(0, len(alphabet))], [4])])
        assert fitted.array([Doc("ab", ["ab"], [(0, 2)], [4])], 1).tolist() == [[row]]
    assert declared == Chars(longest=3)


def test_full_caches_change_no_answer_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_MAX_CACHED_WORDS", 2)
    monkeypatch.setattr(chars_kind, "_MAX_CACHED_WORDS", 2)
    source = featurizer(chars=fitted_chars("abcdefgh", longest=4))
    records = [{"words": [a + b for b in "abcdefgh"]} for a in "abcdefgh"]

    def characters(record: dict[str, Any]) -> list[Any]:
        return list(source.collate(source.docs([record]))["chars"].tolist())

    expected = [characters(record) for record in records]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns after every few instructions
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(100):
                assert list(pool.map(characters, records)) == expected
    finally:
        sys.setswitchinterval(interval)


def test_words_are_located_in_order_even_if_they_repeat() -> None:
    assert locate_words(["a", "a", "b"], "ab a b") == [(0, 1), (3, 4), (5, 6)]
    assert locate_words([], "anything") == []


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
        ("A b. \n\n c d!\t\tE 你。\u3000f", ["A b.", " c d!", "\t\tE 你。", "\u3000f"]),
        ("  \n ", []),
        ("", []),
    ],
)
def test_documents_are_split_at_ends_of_sentences_and_lines(text: str, expected: list[str]) -> None:
    parts = [text[a:b] for a, b in sentence_offsets(text)]
    assert parts == expected
    assert "".join("".join(parts).split()) == "".join(text.split())  # nothing but white space is lost


@pytest.mark.parametrize(
    "text", ["." * 200_000 + "x", "\n" + " " * 200_000 + "x", '."' * 100_000, ".'" + "'" * 200_000]
)
def test_no_text_makes_splitting_slow(text: str) -> None:
    start = time.process_time()
    sentence_offsets(text)
    assert time.process_time() - start < 60  # quadratic search takes minutes


def test_tokens_are_counted_by_id() -> None:
    counter = TokenCounter(len(IDS))
    for doc in docs({"text": "Anna Anna"}, {"text": "Anna ?"}):
        counter.add(doc)
    counts = counter.counts()
    assert counter.longest == 2
    assert (counts[IDS["anna"]], counts[IDS["[UNK]"]], sum(counts)) == (3, 1, 4)


def test_special_tokens_in_a_text_are_unknown_words() -> None:
    source = TextSource(WordsTokenizer(pattern=r"\S+").train(["a b"]), {})
    text = "a [PAD] [EOS] [UNK] [BOS] b"
    for doc in source.docs([{"text": text}, {"words": text.split()}]):
        assert doc.ids == [4, 1, 1, 1, 1, 5]


def sentences_of(split: Any = "punctuation", **record: Any) -> list[list[str]]:
    """The tokens of each sentence, as the array has them."""
    source = featurizer(sentences=Sentences(split=split))
    docs = source.docs([record, {"text": "x " * 9}])
    array = source.collate(docs)["sentences"]
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
    assert sentences_of(text=text) == expected


def test_sentences_may_be_the_lines_alone() -> None:
    assert sentences_of("lines", text="One. Two\n\nthree\r\n") == [["One", ".", "Two"], ["three"]]


def test_words_already_split_have_the_sentences_of_their_text() -> None:
    words = ["He", "left", ".", "Why", "?"]
    assert sentences_of(words=words) == [["He", "left", "."], ["Why", "?"]]
    assert sentences_of(words=words, text="He left.Why?") == [words]


def test_positions_count_from_1_and_a_text_has_at_least_one_sentence() -> None:
    source = featurizer(sentences=Sentences(), pieces=Pieces())
    arrays = source.collate(docs({"text": "A b. C"}, {"text": ""}))
    assert arrays["sentences"].tolist() == [[[1, 2, 3], [4, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert arrays["pieces"].tolist() == [[1, 2, 3, 4], [0] * 4]  # each token is a word
    assert source.collate(docs({"text": ""}))["sentences"].shape == (1, 1, 1)


EVIL = r"([a-z0-9]+[.-]?)+@[a-z]+|\w+"
PANIC = r"b\.txt:2: the tokenizer cannot split 'a{40}'… \(60 characters\): .*retry-limit-in-match over; .* nested rep"


def test_a_panic_of_the_library_is_an_error_that_names_the_record() -> None:
    source = TextSource(WordsTokenizer(pattern=EVIL).train(["Bern a b"]), {})
    records = [{"text": text, "where": f"b.txt:{i}"} for i, text in enumerate(["a b", "a" * 60, "a"], 1)]
    with pytest.raises(DataError, match=PANIC):
        source.docs(records)
    assert [len(doc) for doc in source.docs([records[0], records[2]])] == [2, 1]
    pieces = construct(BPE).train(["Bern a b"])
    pieces.pre_tokenizer = pre_tokenizers.Split(Regex(EVIL), "removed", invert=True)
    with pytest.raises(DataError, match=PANIC):
        TextSource(pieces, {}).docs([{"words": ["a" * 60], "where": "b.txt:2"}])
