"""`normalize` of the tokenizers: other forms of a text are read alike, and places are those of the text as given."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factory import QUIET, plugins, sentences, tagging
from tokenizers import Tokenizer

import seqpipe
import seqpipe_plugins.tokenizers.chars as characters
from seqpipe.config.loader import load
from seqpipe.config.signature import construct
from seqpipe.features.encoding import form_of
from seqpipe.features.kinds.text import Chars
from seqpipe.features.sources import TextSource
from seqpipe.pipeline.full_run import run_all
from seqpipe.testing import check_tokenizer
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import Words

HANGUL, ACCENTS = "한국어는 즐겁다", "Zoë läßt grüßen"
COMPATIBLE = {"ＡＢＣ　１２": "ABC 12", "ﬁne oﬃce": "fine office", "ﾊﾞﾅﾅ": "バナナ", "㌔ ½": "キロ 1⁄2"}
MAKERS: dict[str, Any] = {
    "words": lambda form: Words(normalize=form),
    "chars": lambda form: characters.Chars(normalize=form),
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
    letters = Chars(alphabet="".join(map(chr, range(0x20, 0x2000)))).with_tokenizer(tokenizer)
    return TextSource(tokenizer, {"chars": letters})


@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("text", [HANGUL, ACCENTS])
def test_composed_and_decomposed_letters_are_read_alike(name: str, form: str, text: str) -> None:
    reader = source(trained(name, form))
    given = [unicodedata.normalize(other, text) for other in ("NFC", "NFD")]
    composed, decomposed = reader.docs([{"text": text} for text in given])
    assert 1 not in composed.ids
    assert composed.ids == decomposed.ids
    first, second = (reader.collate([doc])["chars"] for doc in (composed, decomposed))
    assert name != "words" or np.array_equal(first, second)
    for doc in (composed, decomposed):
        words = [doc.text[a:b] for a, b in doc.word_offsets]
        assert "".join(words).replace(" ", "") == doc.text.replace(" ", "")
    if (name, form[-1]) == ("bytes", "D"):
        return  # GPT-2's pattern of a word has no combining marks
    assert [unicodedata.normalize("NFC", decomposed.text[a:b]) for a, b in decomposed.word_offsets] == [
        composed.text[a:b] for a, b in composed.word_offsets
    ]


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "chars"])
@pytest.mark.parametrize("text", COMPATIBLE)
def test_full_width_forms_and_ligatures_are_read_as_what_they_stand_for(name: str, text: str) -> None:
    reader = source(trained(name, "NFKC"))
    wide, plain = reader.docs([{"text": text}, {"text": COMPATIBLE[text]}])
    assert {*wide.ids} <= {*plain.ids} | {1}
    assert 1 not in wide.ids or (name, text) == ("words", "㌔ ½")
    end = 0
    for a, b in wide.word_offsets:
        assert end <= a < b
        end = b


def test_what_one_code_point_becomes_is_one_word() -> None:
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
    assert form_of(construct(BPE, strip_accents=True).train(["cafe"])) is None


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (Words, {"normalize": "NFKC"}),
        (Words, {"normalize": "NFD", "lowercase": True}),
        (characters.Chars, {"normalize": "NFKC"}),
        (WordPiece, {"normalize": "NFKD", "max_size": 180}),
        (BPE, {"normalize": "NFKC", "max_size": 300}),
        (Unigram, {"normalize": "NFC", "max_size": 150}),
    ],
)
def test_tokenizers_keep_the_contract_with_a_form(cls: type, options: dict[str, Any]) -> None:
    result = check_tokenizer(cls, **options)
    assert not result.failed, str(result)


def test_a_bundle_reads_full_width_and_decomposed_text_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = {"epochs": 5, "batch_size": 4, "optimizer": {"use": "adamw", "lr": 0.05}, "threads": 1}
    embedding = [{"use": "lookup", "dim": 8}, {"use": "char-cnn", "dim": 6, "char_dim": 4}]
    lean = {"tokenizer": {"use": "words", "normalize": "NFKC"}, "embedding": embedding, "train": train}
    run_all(load(tagging(tmp_path, {**lean, "head": "tags"}), [], plugins()), QUIET, "cpu")
    model = seqpipe.load("runs/tiny/bundle")
    narrow = [" ".join(words) for words, _ in sentences(4, seed=3)]
    wide = ["".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text) for text in narrow]
    plain, answers = ([span for answer in model(texts) for span in answer] for texts in (narrow, wide))
    labels = [(span["entity_group"], span["score"], span["start"]) for span in plain]
    assert labels == [(span["entity_group"], span["score"], span["start"]) for span in answers]
    assert all(unicodedata.normalize("NFKC", b["word"]) == a["word"] for a, b in zip(plain, answers, strict=True))
    assert plain
