"""Offsets are code points of the text as given: text[start:end] == word, in order, not overlapping, for any text."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tiny_pipelines import tiers

from seqpipe import Model
from seqpipe.config.signature import construct
from seqpipe.features.sources import TextSource
from seqpipe.features.vocabulary import replace_surrogates
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.words import WordsTokenizer

PIECES = (
    *("Anna", "Bern", "naïve", "İstanbul", "ẞ", "ΑΣΟΣ", "ﬁne", "Ǆ", "10", "٣٤", "½", "don't", "e-mail", "...", "a_b"),
    *("诸葛", "欣", "想告诉", "，", "。", "「", "」", "ひらがな", "カﾞ", "한국어", "\u1112\u1161\u11ab"),  # CJK, jamo
    *("👩\u200d💻", "👨\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "🇨🇭", "👍🏽", "☺\ufe0f"),  # joiners, flags, skin
    *("e\u0301", "Z\u0351\u036b\u0343", "\u0301", "क्षि", "நி", "ก็", "\u0f40\u0f90"),  # combining marks, first or last
    *("שָׁלוֹם", "مرحبا", "\u202eabc\u202c", "\u2067עב\u2069", "\u200f", "\u061c"),  # right to left
    *("\u200b", "\u200c", "\u2060", "\ufeff", "\u00ad", "\u034f", "\ufffd"),  # zero width
    *(" ", "  ", "\t", "\u00a0", "\u3000", "\n", "\r\n", "\r", "\n\n", "\u2028", "\x85", "\x0b", "\x00", "\x1b"),
    *("\ud800", "\udfff", "\udc00\ud800", "𝒳", "\U0010ffff", "\uffff", "\ue000", "[PAD]", "[UNK]", "<s>", "▁", "##a"),
)
TOKENIZERS: dict[str, Any] = {
    "words": WordsTokenizer(),
    "words, folded": construct(WordsTokenizer, lowercase=True, fold_digits=True),
    "words between blanks": WordsTokenizer(pattern=r"\S+"),
    "chars": CharsTokenizer(),
    "chars, folded": construct(CharsTokenizer, lowercase=True, fold_digits=True, keep_spaces=False),
    "words, NFC": construct(WordsTokenizer, normalize="NFC"),
    "words, NFKC": construct(WordsTokenizer, normalize="NFKC"),
    "words, NFKD": construct(WordsTokenizer, normalize="NFKD", lowercase=True),
    "chars, NFC": construct(CharsTokenizer, normalize="NFC", lowercase=True),
    "chars, NFKC": construct(CharsTokenizer, normalize="NFKC"),
}

COUNTS = tiers(1_000, long=10_000)


def texts(count: int, seed: int = 1) -> list[str]:
    dice = random.Random(seed)
    return ["".join(dice.choices(PIECES, k=dice.randint(0, 15))) for _ in range(count)]


def fault(text: str, words: Sequence[str], places: Sequence[tuple[int, int]]) -> str | None:
    """Fault of these places; none without one."""
    before = 0
    for word, (start, end) in zip(words, places, strict=True):
        if not before <= start < end <= len(text):
            return f"{(start, end)} overlaps, is empty or lies outside of {text!r}"
        if text[start:end] != word:
            return f"{text[start:end]!r} is not {word!r}"
        before = end
    return None


# White space, and characters that Unicode calls ignorable by default.
UNSEEN = re.compile(
    "[\\s\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_word_is_its_stretch_of_the_text_and_only_the_unseen_lies_between_words(name: str, count: int) -> None:
    generated = texts(count)
    featurizer = TextSource(TOKENIZERS[name].train(generated), {})
    for text, doc in zip(generated, featurizer.docs([{"text": text} for text in generated]), strict=True):
        assert doc.text == text
        assert fault(replace_surrogates(text), doc.words, doc.offsets) is None
        assert UNSEEN.sub("", "".join(doc.words)) == UNSEEN.sub("", replace_surrogates(text))


@pytest.mark.parametrize("count", COUNTS)
def test_words_already_split_keep_their_places(count: int) -> None:
    dice = random.Random(3)
    featurizer = TextSource(WordsTokenizer().train(texts(100)), {})
    for joiner in (" ", ""):
        for _ in range(count):
            words = [word for word in dice.choices(PIECES, k=dice.randint(0, 15)) if word.strip()]
            text = joiner.join(words)
            (doc,) = featurizer.docs([{"words": words, "text": text}])
            assert fault(text, words, doc.offsets) is None


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("documents", [False, True])
def test_a_span_in_an_answer_is_its_stretch_of_the_text(documents: bool, count: int, tiny: Model) -> None:
    generated = [f"{a}Anna {b}. New York {a}" for a, b in zip(texts(count, seed=4), texts(count, seed=5), strict=True)]
    found = 0
    for text, answer in zip(generated, tiny(generated, documents=documents), strict=True):
        spans = [(span["word"], (span["start"], span["end"])) for span in answer]
        assert fault(text, [word for word, _ in spans], [place for _, place in spans]) is None
        found += len(spans)
    assert found > 1.5 * count


# Places in other units: of each, from the text and a code point of it.
PLANTED: dict[str, Callable[[str, int], int]] = {
    "shifted": lambda text, place: place + 1,
    "UTF-16": lambda text, place: len(text[:place].encode("utf-16-le")) // 2,
    "bytes": lambda text, place: len(text[:place].encode()),
    "of the lowered text": lambda text, place: len(text[:place].lower()),
}


@pytest.mark.parametrize("unit", PLANTED)
def test_offsets_in_any_other_unit_would_be_found(unit: str) -> None:
    generated, faults = texts(1_000), 0
    docs = TextSource(WordsTokenizer().train(generated), {}).docs([{"text": text} for text in generated])
    for doc in docs:
        text = replace_surrogates(doc.text)
        places = [(PLANTED[unit](text, start), PLANTED[unit](text, end)) for start, end in doc.offsets]
        faults += fault(text, doc.words, places) is not None
    assert faults > 20
