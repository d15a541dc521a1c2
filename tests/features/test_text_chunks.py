"""A streamed text is cut into chunks behind whole words, and tokenizers that need more than a word are detected."""

import random
from typing import Any

import pytest

from seqpipe.config.signature import construct
from seqpipe.export.parity.answers import find_different_split, possible_cut
from seqpipe.features.document import words_of
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import TextChunks, smallest_chunks
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.words import WordsTokenizer

TEXTS = ["Ada  flew\tto Rome .", " it rains\u00a0 in Oslo\n\ntoday .  ", "", "   ", "don't stop", "播播 e\u0301\u3000x"]
RECORDS = [{"text": text} for text in TEXTS]


def test_chunks_end_behind_words_and_are_the_text() -> None:
    assert [*smallest_chunks(" Ada  flew ", "word")] == [" Ada", "  flew", " "]
    assert [*smallest_chunks("Ada", "word")] == ["Ada"]
    assert [*smallest_chunks(" 播e\u0301", "character")] == [" ", "播", "e", "\u0301"]
    dice = random.Random(0)
    for text in TEXTS * 5:
        chunks, fed, rest = TextChunks("word"), "", text
        while rest:
            size = dice.randint(1, 5)
            chunk, rest = chunks.feed(rest[:size]), rest[size:]
            assert not chunk[-1:].isspace()
            fed += chunk
        assert fed + chunks.finish() == text


def source(tokenizer: Any) -> TextSource:
    return TextSource(tokenizer.train(TEXTS * 3), {})


@pytest.mark.parametrize(
    ("tokenizer", "cut"),
    [
        *(
            (tokenizer, "word")
            for tokenizer in (WordsTokenizer(), construct(WordsTokenizer, lowercase=True, normalize="NFKC"))
        ),
        *(
            (tokenizer, "word")
            for tokenizer in (construct(CharsTokenizer, normalize="NFC"), construct(BPE, byte_level=True))
        ),
        *(
            (tokenizer, "character")
            for tokenizer in (CharsTokenizer(), construct(CharsTokenizer, keep_spaces=False, lowercase=True))
        ),
    ],
)
def test_a_text_may_be_cut_behind_words_and_a_text_of_characters_anywhere(tokenizer: Any, cut: str) -> None:
    assert possible_cut(source(tokenizer), RECORDS) == cut


@pytest.mark.parametrize("pattern", [r"\w+ \w+|\S+", r"\w+|\.(?=\s*$)"])
def test_a_tokenizer_that_reads_beyond_a_word_is_detected(pattern: str) -> None:
    records = [{"text": text} for text in ("Ada", "Dr. Ada flew . home .")]
    assert find_different_split(source(WordsTokenizer(pattern=pattern)), records, "word") == "Dr. Ada flew . home ."
    assert possible_cut(source(WordsTokenizer(pattern=pattern)), records) is None


def test_words_of_a_text_are_a_text() -> None:
    for tokenizer in (WordsTokenizer(), construct(BPE, max_size=60)):
        (doc,) = source(tokenizer).docs([{"text": "Ada flew to  Rome ."}])
        parts = [words_of(doc, a, b) for a, b in ((0, 0), (0, 2), (2, 3), (3, len(doc.word_offsets)))]
        assert "".join(part.text for part in parts) == doc.text
        assert [i for part in parts for i in part.ids] == doc.ids
        for part in parts:
            assert [part.text[a:b] for a, b in part.offsets] == part.words
