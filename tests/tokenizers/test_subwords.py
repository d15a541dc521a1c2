"""The tokenizers `wordpiece`, `bpe` and `unigram`: pieces that stand where they say, the same in every training."""

import hashlib
import json
import subprocess
import sys
from typing import Any

import independent
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.text import Chars, Pieces, Sentences
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import SPECIALS
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece

TRICKY = [
    "It's a well-known fact, isn't it?",
    "播放周杰伦的《稻香》 now",
    "日本語とEnglishを混ぜる。",
    "👩\u200d💻 thumbs 👍🏽 up 👨\u200d👩\u200d👧",
    "e\u0301cole école ÉCOLE e\u0301\u0323",
    "İstanbul ﬁne ½ cup ǅ ß ẞ",
    "  blanks \t and\nlines\u3000 wide\u00a0 ",
    "[EOS] [PAD] [UNK]##x ▁y </w> Ġz",
    "नमस्ते दुनिया שלום עולם",
    "한국어 각 조합",
    "a" * 250,
    "\u200b \u2060 \x07 \ufffd",
    "1,234.50€ @user #tag http://a.b/c?d=e",
    "",
    " \n",
]
CORPUS = [
    *TRICKY,
    "Ada met Bo in Oslo.",
    "Ada and Bo are in Oslo and in Rome.",
    "the theatre there, then their theme",
] * 3
MAKERS: dict[str, Any] = {
    "wordpiece": construct(WordPiece, max_size=400),
    "wordpiece folded": construct(WordPiece, max_size=400, lowercase=True, strip_accents=True),
    "bpe": construct(BPE, max_size=400),
    "bpe folded": construct(BPE, max_size=400, lowercase=True, strip_accents=True),
    "bytes": construct(BPE, byte_level=True, max_size=400),
    "wordpiece NFC": construct(WordPiece, max_size=400, normalize="NFC"),
    "bpe NFKC": construct(BPE, max_size=400, normalize="NFKC", strip_accents=True),
    "unigram NFD": construct(Unigram, max_size=400, normalize="NFD"),
    "unigram": construct(Unigram, max_size=400),
    "unigram folded": construct(Unigram, max_size=400, lowercase=True, strip_accents=True),
}
TRAINED: dict[str, Tokenizer] = {name: maker.train(CORPUS) for name, maker in MAKERS.items()}
every = pytest.mark.parametrize("name", MAKERS)


def doc_of(name: str, **record: Any) -> Doc:
    (doc,) = TextSource(TRAINED[name], {}).docs([record])
    return doc


def in_order(doc: Doc) -> None:
    """Pieces stand in order and share one code point at most, and words hold just them, and one that is not empty."""
    assert doc.starts is not None
    end = 0
    for word, (a, b) in zip(doc.words, doc.offsets, strict=True):
        assert 0 <= a <= b <= len(doc.text)
        assert end - 1 <= a
        assert end <= b
        assert word == doc.text[a:b] == word.strip()
        end = b
    assert doc.starts == sorted({*doc.starts})
    assert (doc.starts[:1] or [0]) == [0]
    for word, (a, b) in enumerate(doc.word_offsets):
        pieces = doc.offsets[doc.starts[word] : [*doc.starts, len(doc)][word + 1]]
        assert (pieces[0][0], pieces[-1][1]) == (a, b)
        assert a < b
        assert not word or a >= doc.word_offsets[word - 1][1]


@every
@pytest.mark.parametrize("text", TRICKY)
def test_pieces_stand_in_order_at_visible_text(name: str, text: str) -> None:
    in_order(doc_of(name, text=text))


@every
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30) | st.text("aé\u0301İ👍\u200d🏽播 \n.'-각", max_size=20))
def test_pieces_stand_in_order_in_any_text(name: str, text: str) -> None:
    in_order(doc_of(name, text=text))


@every
@pytest.mark.parametrize("text", TRICKY)
def test_words_given_have_the_pieces_that_they_have_in_their_text(name: str, text: str) -> None:
    whole = doc_of(name, text=text)
    assert doc_of(name, text=text, words=[text[a:b] for a, b in whole.word_offsets]) == whole


@every
def test_every_word_given_is_a_word_even_one_of_which_nothing_is_left(name: str) -> None:
    words = ["New York", "\x07", "isn't", "播放", "[PAD]", "\u0301"]
    doc = doc_of(name, words=words)
    assert doc.starts is not None
    assert len(doc.starts) == len(words)
    assert [doc.text[a:b] for a, b in doc.word_offsets] == words
    assert all(i == 1 or i > 3 for i in doc.ids)


@every
def test_the_special_tokens_have_the_low_ids_and_no_text_means_one(name: str) -> None:
    tokenizer = TRAINED[name]
    assert [tokenizer.token_to_id(token) for token in SPECIALS] == [0, 1, 2, 3]
    assert not tokenizer.get_added_tokens_decoder()
    assert not {0, 2, 3} & {*tokenizer.encode("[PAD] [EOS] [BOS]", add_special_tokens=False).ids}


def written(name: str, text: str) -> str:
    ids = TRAINED[name].encode(text, add_special_tokens=False).ids
    return str(TRAINED[name].decode(ids, skip_special_tokens=False))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_bytes_are_written_again_without_loss(text: str) -> None:
    assert written("bytes", text) == text


@pytest.mark.parametrize("text", [text for text in TRICKY if text])
def test_known_text_is_written_again(text: str) -> None:
    assert written("bytes", text) == text
    assert written("bpe", text).split() == [text[a:b] for a, b in doc_of("bpe", text=text).word_offsets]
    if "▁" not in text:
        assert written("unigram", text).split(" ") == " ".join(["", *text.split(), ""])[
            not text[0].isspace() : None if text[-1].isspace() else -1
        ].split(" ")


def test_words_are_written_apart_and_punctuation_at_its_word() -> None:
    assert written("wordpiece", "Ada met Bo in Oslo.") == "Ada met Bo in Oslo."
    assert written("unigram", "Ada met Bo in Oslo.") == "Ada met Bo in Oslo."


def test_frequent_words_are_one_piece_and_rare_ones_several() -> None:
    for name in ("wordpiece", "bpe", "bytes", "unigram"):
        doc = doc_of(name, text="Rome and theatrical")
        assert doc.starts is not None
        assert len(doc.starts) == 3
        assert len(doc) > 3


def digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


@every
def test_training_again_gives_the_same_to_the_byte(name: str) -> None:
    assert {digest(MAKERS[name].train(CORPUS)) for _ in range(4)} == {digest(TRAINED[name])}


def test_another_process_learns_the_same_to_the_byte() -> None:
    code = (
        "import hashlib, sys, json\nfrom seqpipe_plugins.tokenizers import wordpiece, bpe, unigram\n"
        "from seqpipe.config.signature import construct\nt = json.load(sys.stdin)\n"
        "classes = wordpiece.WordPiece, bpe.BPE, unigram.Unigram\n"
        "makers = [construct(cls, max_size=400) for cls in classes]\n"
        "print(*(hashlib.sha256(m.train(t).to_str().encode()).hexdigest() for m in makers))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(CORPUS), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [digest(TRAINED[name]) for name in ("wordpiece", "bpe", "unigram")]


def test_folded_text_is_looked_up_as_told() -> None:
    for name in ("wordpiece folded", "bpe folded", "unigram folded"):
        assert doc_of(name, text="ÉCOLE").ids == doc_of(name, text="ecole").ids


def test_a_vocabulary_has_the_size_asked_for() -> None:
    for make in (WordPiece, BPE, Unigram):
        assert construct(make, max_size=200).train(CORPUS).get_vocab_size() <= 200
    assert TRAINED["bytes"].get_vocab_size() > 300


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"bpe\.max_size: 200 is less than all bytes and special tokens; set at least 260"
    ):
        construct(BPE, byte_level=True, max_size=200)
    with pytest.raises(DataError, match=r"no subwords can be learned .* raise max_size"):
        construct(Unigram, max_size=5).train(["abcdefgh"])
    for maker in (construct(WordPiece), construct(BPE), construct(Unigram)):
        with pytest.raises(DataError, match="only white space"):
            maker.train([" ", ""])


def test_characters_are_those_of_each_piece_and_pieces_point_at_first_ones() -> None:
    text = "Ada theatrical."
    made = TextSource(TRAINED["wordpiece"], {"chars": Chars(alphabet="".join(sorted({*text}))), "pieces": Pieces()})
    (doc,) = made.docs([{"text": text}])
    arrays = made.collate([doc])
    alphabet = made.features["chars"].manifest()["alphabet"]
    spelled = ["".join(alphabet[i - 2] for i in row if i) for row in arrays["chars"][0].tolist()]
    assert spelled == doc.words
    assert "".join(spelled) == "Adatheatrical."
    assert arrays["pieces"].tolist() == [[start + 1 for start in doc.starts or ()]]


@every
def test_a_reader_of_the_format_alone_finds_the_same_pieces_words_and_sentences(name: str) -> None:
    kinds = {"sentences": Sentences(), "lines": Sentences("lines"), "pieces": Pieces()}
    entries = {"ids": {}, "mask": {}, **{key: kind.manifest() for key, kind in kinds.items()}}
    theirs = independent.Source("text", TRAINED[name].to_str().encode(), entries, {"tokens": 9999})
    records: list[dict[str, Any]] = [*({"text": text} for text in TRICKY), *({"words": t.split(" ")} for t in TRICKY)]
    ours = TextSource(TRAINED[name], kinds)
    found = [(record, doc) for record, doc in zip(records, ours.docs(records), strict=True) if len(doc)]
    read = [theirs.record(record) for record, _ in found]
    assert [[token.place for token in tokens if token.place] for _, tokens in read] == [
        doc.word_offsets for _, doc in found
    ]
    expected = ours.collate([doc for _, doc in found])
    for key, array in theirs.inputs([tokens for _, tokens in read], [text for text, _ in read]).items():
        assert np.array_equal(array, expected[key])
