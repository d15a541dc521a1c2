"""Generated records that no data set holds, which training and the bundle have to read alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from seqpipe.features.document import Record
from seqpipe.features.sources import InputSource, NumericSource, TextSource, sources_of
from seqpipe.features.vocabulary import SPECIALS

SCRIPTS = (
    "Latin: Straße, naïve, ŒUVRE, İstanbul, ﬁne ǅ", "Ελληνικά: Ὀδυσσεύς, λόγος ς", "Русский: Ёлка, щука", "עברית: שָׁלוֹם",
    "العربية: مُحَمَّد ١٢٣", "हिन्दी: क्षत्रिय, ज़िन्दगी", "ไทย: น้ำใจ", "中文：我在北京。", "日本語：カタカナとｶﾀｶﾅ、がが",
    "한국어: 한글과 한글",
    "Tiếng Việt: Nguyễn Ngữ", "አማርኛ፡ ሰላም", "ქართული: მხედრული", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠮷野家",
    "emoji 👩‍💻 🏳️‍🌈 👍🏽 🇨🇭 ☺️", "combining e\u0301 e\u0301\u0302\u0323 Z\u0351\u036b\u0343\u036a\u0302\u036b",
    "marks “quoted” — (nested [brackets]) … ¿qué? 50 % $1,000.00 #tag @name a_b-c/d\\e",
    "https://example.org/a?b=c&d=1 mail@example.org 2026-11-23T10:00 192.168.0.1",
    "tabs\tand\u00a0blanks\u2003of\u200ball\u3000kinds\r\nlines\n\nparagraphs. Another!  And?",
    "\ufeffbyte order mark \u202eright to left\u202c \u00ad soft \ufffd replaced \ue000 private",
    "[PAD] [UNK] [CLS] [SEP] [MASK] [BOS] [EOS] <s> </s> ▁ ## Ġ",
)  # fmt: skip
BLANK = ("", " ", "\n", "\u00a0\u3000", "\u200b", "\u0301")
MOST_NAMES = 5_000  # tokens and characters of a vocabulary that are tried
_NAMES = 20  # in a text
_LONG, _MOST = 2_000, 20_000  # letters of a word that is cut, and tokens of a text at the limit


def probe_records(source: InputSource, tokens: int, seed: int = 1) -> Iterator[Record]:
    """Records of all scripts, of all vocabularies, blank and at the limit of length, raw and already split.

    Args:
        source: The inputs of the pipeline.
        tokens: The most tokens that a text may have.
        seed: Random seed.
    """
    draw = random.Random(seed)
    for text in _texts(source, tokens, draw):
        yield _record(source, text, draw)
        if isinstance(source, TextSource) and source.fields == ("text",) and text.strip():
            yield {**_record(source, text, draw), "words": text.split()}


def _texts(source: InputSource, tokens: int, draw: random.Random) -> Iterator[str]:
    yield from SCRIPTS
    for text in SCRIPTS[:4]:
        yield text.upper()
        yield text.lower()
    yield from BLANK
    characters = "".join(SCRIPTS)
    yield from ("".join(draw.choices(characters, k=length)) for length in (1, 2, 3, 5, 20, 21, 80, 400))
    yield "a" * _LONG
    yield from (" ".join(["a"] * length) for length in (tokens, tokens + 1) if length <= _MOST)
    names = sorted({name for vocabulary in _vocabularies(source) for name in vocabulary})
    for i in range(0, len(names := draw.sample(names, min(len(names), MOST_NAMES))), _NAMES):
        yield " ".join(names[i : i + _NAMES])


def _vocabularies(source: InputSource) -> Iterator[list[str]]:
    """The tokens of every vocabulary, and the names of every feature."""
    for part in sources_of(source).values():
        if isinstance(part, TextSource):
            yield [token for token in part.tokenizer.get_vocab() if token not in SPECIALS]
        yield from ([*feature.names] for feature in part.features.values())


def _record(source: InputSource, text: str, draw: random.Random) -> dict[str, Any]:
    """A record with this text in every field of text; rows of numbers and values of columns are random."""
    record: dict[str, Any] = {}
    for part in sources_of(source).values():
        if isinstance(part, NumericSource):
            record[part.field] = [[draw.gauss(0, 3) for _ in range(part.width)] for _ in range(draw.randint(1, 12))]
        else:
            record |= dict.fromkeys(part.fields, text)
    for feature in source.features.values():
        record |= feature.example_fields(draw.choice)
    return record
