"""`normalize` of the tokenizers: other forms of a text are read alike, and places are those of the text as given."""

import unicodedata
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from seqpipe.config.signature import construct
from seqpipe.features.encoding import unicode_form_of
from seqpipe.features.kinds import text as kinds
from seqpipe.features.sources import TextSource
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

HANGUL, ACCENTS = "한국어는 즐겁다", "Zoë läßt grüßen"
COMPATIBLE = {"ＡＢＣ　１２": "ABC 12", "ﬁne oﬃce": "fine office", "ﾊﾞﾅﾅ": "バナナ", "㌔ ½": "キロ 1⁄2"}
MAKERS: dict[str, Any] = {
    "words": lambda form: construct(WordsTokenizer, normalize=form),
    "chars": lambda form: construct(CharsTokenizer, normalize=form),
    "wordpiece": lambda form: construct(WordPiece, normalize=form),
    "bpe": lambda form: construct(BPE, normalize=form),
    "bytes": lambda form: construct(BPE, byte_level=True, normalize=form),
    "unigram": lambda form: construct(Unigram, normalize=form),
}
FORMS = ("NFC", "NFD", "NFKC", "NFKD")
CASES = [(name, form) for name in MAKERS for form in FORMS if name != "chars" or form in ("NFC", "NFKC")]


def trained(name: str, form: str) -> Tokenizer:
    tokenizer: Tokenizer = MAKERS[name](form).train([HANGUL, ACCENTS, *COMPATIBLE.values()])
    return tokenizer


def source(tokenizer: Tokenizer) -> TextSource:
    unfitted = kinds.Chars(alphabet="".join(map(chr, range(0x20, 0x2000))))
    letters = unfitted.with_tokenizer(tokenizer, TextSource(tokenizer, {}).words)
    return TextSource(tokenizer, {"chars": letters})


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("text", [HANGUL, ACCENTS])
def test_composed_and_decomposed_letters_have_the_same_pieces(name: str, form: str, text: str) -> None:
    reader = source(trained(name, form))
    composed, decomposed = docs = reader.docs([{"text": unicodedata.normalize(f, text)} for f in ("NFC", "NFD")])
    assert 1 not in composed.ids
    assert composed.ids == decomposed.ids
    first, second = (reader.collate([doc])["chars"] for doc in docs)
    assert name != "words" or np.array_equal(first, second)
    words = [[doc.text[a:b] for a, b in doc.word_offsets] for doc in docs]
    for doc, of_doc in zip(docs, words, strict=True):
        assert "".join(of_doc).replace(" ", "") == doc.text.replace(" ", "")
    if (name, form[-1]) != ("bytes", "D"):  # GPT-2's pattern of a word has no combining marks
        assert [unicodedata.normalize("NFC", word) for word in words[1]] == words[0]


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "chars"])
@pytest.mark.parametrize("text", COMPATIBLE)
def test_full_width_forms_and_ligatures_have_the_pieces_of_their_normal_form(name: str, text: str) -> None:
    wide, plain = source(trained(name, "NFKC")).docs([{"text": text}, {"text": COMPATIBLE[text]}])
    assert {*wide.ids} <= {*plain.ids} | {1}
    assert 1 not in wide.ids or (name, text) == ("words", "㌔ ½")
    edges = [0, *(edge for place in wide.word_offsets for edge in place)]
    assert edges == sorted(edges)
    assert all(a < b for a, b in wide.word_offsets)


def test_the_expansion_of_one_code_point_is_one_word() -> None:
    (doc,) = source(trained("words", "NFKC")).docs([{"text": "1½ ﷺ x"}])
    assert doc.words == ["1½", "ﷺ", "x"]
    (doc,) = source(trained("unigram", "NFKC")).docs([{"text": "½ cup"}])
    assert [doc.text[a:b] for a, b in doc.word_offsets] == ["½", "cup"]
    (doc,) = TextSource(MAKERS["chars"]("NFKC").train(["ﬁne"]), {}).docs([{"text": "ﬁn"}])
    assert (doc.words, 1 in doc.ids) == (["ﬁ", "n"], False)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_are_removed_of_decomposed_letters_too(form: Any) -> None:
    tokenizer = construct(BPE, strip_accents=True, normalize=form).train(["cafe au lait"])
    composed, decomposed = source(tokenizer).docs([{"text": "café au"}, {"text": "cafe\u0301 au"}])
    assert composed.ids == decomposed.ids
    assert [decomposed.text[a:b] for a, b in decomposed.word_offsets] in (["cafe\u0301", "au"], ["cafe", "au"])
    assert unicode_form_of(construct(BPE, strip_accents=True).train(["cafe"])) is None
