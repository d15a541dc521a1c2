"""The tokenizers `wordpiece`, `bpe` and `unigram`: pieces that stand where they say, the same in every training."""

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import second_runtime
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Doc
from seqpipe.features.kinds.text import Chars, Pieces, Sentences
from seqpipe.features.sources import TextSource
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
PLAIN = ("Ada met Bo in Oslo.", "Ada and Bo are in Oslo and in Rome.", "the theatre there, then their theme")
CORPUS = [*TRICKY, *PLAIN] * 3
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


def check_order(doc: Doc) -> None:
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
    end = 0
    for (first, last), (a, b) in zip(pairwise([*doc.starts, len(doc)]), doc.word_offsets, strict=True):
        pieces = doc.offsets[first:last]
        assert (pieces[0][0], pieces[-1][1]) == (a, b)
        assert end <= a < b
        end = b


@every
@pytest.mark.parametrize("text", TRICKY)
def test_pieces_stand_in_order_at_visible_text_and_are_those_of_its_words(name: str, text: str) -> None:
    doc = doc_of(name, text=text)
    check_order(doc)
    assert doc_of(name, text=text, words=[text[a:b] for a, b in doc.word_offsets]) == doc


@every
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=30) | st.text("aé\u0301İ👍\u200d🏽播 \n.'-각", max_size=20))
def test_pieces_stand_in_order_in_any_text(name: str, text: str) -> None:
    check_order(doc_of(name, text=text))


@every
def test_every_word_of_a_record_is_a_word_even_if_normalization_deletes_it(name: str) -> None:
    words = ["New York", "\x07", "isn't", "播放", "[PAD]", "\u0301"]
    doc = doc_of(name, words=words)
    assert doc.starts is not None
    assert len(doc.starts) == len(words)
    assert [doc.text[a:b] for a, b in doc.word_offsets] == words
    assert all(i == 1 or i > 3 for i in doc.ids)


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
        blanks = (text[0].isspace(), text[-1].isspace())
        expected = [""] * blanks[0] + text.split() + [""] * blanks[1]
        assert written("unigram", text).split(" ") == expected


def test_frequent_words_are_one_piece_and_rare_ones_several() -> None:
    for name in ("wordpiece", "bpe", "bytes", "unigram"):
        doc = doc_of(name, text="Rome and theatrical")
        assert doc.starts is not None
        assert len(doc) > len(doc.starts) == 3
    for name in ("wordpiece", "unigram"):
        assert written(name, "Ada met Bo in Oslo.") == "Ada met Bo in Oslo."


@every
def test_training_again_gives_the_same_tokenizer_to_the_byte(name: str) -> None:
    assert {MAKERS[name].train(CORPUS).to_str() for _ in range(4)} == {TRAINED[name].to_str()}


def test_another_process_trains_the_same_tokenizer_to_the_byte() -> None:
    code = (
        "import sys, json\nfrom seqpipe_plugins.tokenizers import wordpiece, bpe, unigram\n"
        "from seqpipe.config.signature import construct\ntexts = json.load(sys.stdin)\n"
        "makers = [construct(cls, max_size=400) for cls in (wordpiece.WordPiece, bpe.BPE, unigram.Unigram)]\n"
        "print(json.dumps([maker.train(texts).to_str() for maker in makers]))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], input=json.dumps(CORPUS), text=True)
    assert json.loads(output) == [TRAINED[name].to_str() for name in ("wordpiece", "bpe", "unigram")]


def test_folded_text_has_the_pieces_of_lower_case_without_accents() -> None:
    for name in ("wordpiece folded", "bpe folded", "unigram folded"):
        assert doc_of(name, text="ÉCOLE").ids == doc_of(name, text="ecole").ids


def test_a_vocabulary_has_at_most_the_size_of_the_option() -> None:
    for make in (WordPiece, BPE, Unigram):
        assert construct(make, max_size=200).train(CORPUS).get_vocab_size() <= 200
        with pytest.raises(DataError, match="only white space"):
            construct(make).train([" ", ""])
    assert TRAINED["bytes"].get_vocab_size() > 300
    message = r"bpe\.max_size: 200 is less than all bytes and special tokens; set at least 260"
    with pytest.raises(UsageError, match=message):
        construct(BPE, byte_level=True, max_size=200)
    with pytest.raises(DataError, match=r"no subwords can be learned .* raise max_size"):
        construct(Unigram, max_size=5).train(["abcdefgh"])


def test_characters_are_those_of_each_piece_and_pieces_point_at_first_ones() -> None:
    text = "Ada theatrical."
    alphabet = "".join(sorted({*text}))
    source = TextSource(TRAINED["wordpiece"], {"chars": Chars(alphabet=alphabet), "pieces": Pieces()})
    (doc,) = source.docs([{"text": text}])
    arrays = source.collate([doc])
    spelled = ["".join(alphabet[i - 2] for i in row if i) for row in arrays["chars"][0].tolist()]
    assert spelled == doc.words
    assert "".join(spelled) == "Adatheatrical."
    assert arrays["pieces"].tolist() == [[start + 1 for start in doc.starts or ()]]


@every
def test_the_second_runtime_has_the_same_pieces_words_and_sentences(name: str) -> None:
    kinds = {"sentences": Sentences(), "lines": Sentences("lines"), "pieces": Pieces()}
    entries = {"ids": {}, "mask": {}, **{key: kind.manifest() for key, kind in kinds.items()}}
    second = second_runtime.TextSource("text", TRAINED[name].to_str().encode(), entries, {"tokens": 9999})
    records = [record for text in TRICKY for record in ({"text": text}, {"words": text.split(" ")})]
    source = TextSource(TRAINED[name], kinds)
    pairs = [(record, doc) for record, doc in zip(records, source.docs(records), strict=True) if len(doc)]
    docs, read = [doc for _, doc in pairs], [second.record(record) for record, _ in pairs]
    assert [[t.place for t in tokens if t.place] for _, tokens in read] == [doc.word_offsets for doc in docs]
    expected = source.collate(docs)
    for key, array in second.inputs([tokens for _, tokens in read], [text for text, _ in read]).items():
        assert np.array_equal(array, expected[key])
