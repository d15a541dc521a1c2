"""docs/internals/bundle-text.md: a reader of tokenizer.json written from it alone reads texts as `tokenizers` does."""

import random
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

import doc_pages
import pytest
import regex
import second_tokenizer
from hostile_inputs import PIECES
from second_tokenizer import Tokenizer, UnknownPartError
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from seqpipe.config.signature import construct
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.lexicon import Lexicon
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

PAGE = doc_pages.ROOT / "docs/internals/bundle-text.md"
MARKS = (
    "a\u0301\u0323",
    "\u0323\u0301",
    "\u0344",
    "\u03b1\u0345\u0301",
    "\u0f71\u0f72",
    "Ⅷ",
    "①",
    "ŉ",
    "ß",
    "Ǆ",
    "it's",
    "'ve",
)
SENTENCES = ["Oslo abc flew to it's the sea . Oslo ! 你好 奥斯陆 ( a “ b [ c . ; ] ” ) ? 10 % don't"] * 20


def texts(count: int, seed: int) -> list[str]:
    dice, pieces = random.Random(seed), [piece for piece in (*PIECES, *MARKS) if not "\ud800" <= piece <= "\udfff"]
    return ["".join(dice.choices(pieces, k=dice.randint(0, 10))) for _ in range(count)]


TOKENIZERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "words": (WordsTokenizer, {"lowercase": True, "fold_digits": True}),
    "words NFC": (WordsTokenizer, {"normalize": "NFC", "min_count": 2}),
    "words NFKC": (WordsTokenizer, {"normalize": "NFKC", "lowercase": True}),
    "words detokenized": (WordsTokenizer, {"detokenize": True}),
    "chars": (CharsTokenizer, {}),
    "chars NFKC": (CharsTokenizer, {"normalize": "NFKC", "keep_spaces": False}),
    "lexicon": (Lexicon, {}),
    "wordpiece": (WordPiece, {"max_size": 400, "lowercase": True, "strip_accents": True}),
    "wordpiece NFD": (WordPiece, {"max_size": 400, "normalize": "NFD"}),
    "bpe": (BPE, {"max_size": 400, "lowercase": True, "strip_accents": True}),
    "bytes": (BPE, {"max_size": 400, "byte_level": True}),
    "bytes NFKD": (BPE, {"max_size": 400, "byte_level": True, "normalize": "NFKD"}),
    "unigram": (Unigram, {"max_size": 400}),
    "unigram NFKC": (Unigram, {"max_size": 400, "normalize": "NFKC", "strip_accents": True}),
}


@cache
def library(name: str) -> Library:
    make, options = TOKENIZERS[name]
    corpus: list[Any] = [*texts(80, 1), *SENTENCES]
    tokenizer: Library = construct(make, **options).train([c.split() for c in corpus] if name == "lexicon" else corpus)
    if name in ("words", "bytes"):  # as heads add their gaps
        tokenizer.add_special_tokens([AddedToken("[MASK]", normalized=False, lstrip=name == "bytes")])
    return tokenizer


def differences(name: str) -> list[str]:
    """Differences between the library and the reader."""
    theirs, found = library(name), list[str]()
    reader = Tokenizer(theirs.to_str().encode())
    for text in texts(80, 7):
        whole = theirs.encode(text, add_special_tokens=False)
        split = theirs.encode(text.split(), is_pretokenized=True, add_special_tokens=False)
        ids = random.Random(text).choices(range(4, reader.size), k=5)
        pairs = {
            "encoding": ((whole.ids, whole.offsets, whole.word_ids), reader.encode(text)),
            "encoding of words": ((split.ids, split.offsets, split.word_ids), reader.encode_words(text.split())),
            "normal text": (theirs.normalizer.normalize_str(text), reader.normalize(text)),
            "decoded text": (theirs.decode(ids, skip_special_tokens=False), reader.decode(ids)),
        }
        found += [f"{what} of {text!a}: {one!a} {other!a}" for what, (one, other) in pairs.items() if one != other]
    return found


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_reader_of_the_page_reads_and_writes_texts_as_the_library_does(name: str) -> None:
    assert differences(name) == []
    assert len({*map(str, map(Tokenizer(library(name).to_str().encode()).encode, texts(80, 7)))}) > 60


original = {name: getattr(second_tokenizer, name) for name in ("unicode_form", "replaced", "composed", "merged_pieces")}
FAULTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "marks keep their origins when sorted": ("wordpiece NFD", "unicode_form", lambda form, points: [
        (new, a, b) for point, a, b in points for new in unicodedata.normalize(form, point)
    ]),
    "a composed letter stands for its last mark": ("words NFC", "composed", lambda changes: [
        [point, min(1, count)] for point, count in original["composed"](changes)
    ]),
    "a match becomes its first code point": ("unigram", "replaced", lambda pattern, content, points: [
        (new, *points[0][1:]) for new, _, _ in original["replaced"](pattern, content, points)
    ]),
    "code points are not merged": ("bytes", "merged_pieces", lambda entry, ranks, part: (
        original["merged_pieces"](entry, {}, part)
    )),
    "an unknown code point is a word piece": ("wordpiece", "word_pieces", lambda entry, part: [
        (1, i, i + 1) for i in range(len(part))
    ]),
    "pieces are taken from the left": ("unigram", "likeliest_pieces", lambda pieces, lowest, unknown, part: [
        (pieces.get(point, (unknown, 0))[0], i, i + 1) for i, point in enumerate(part)
    ]),
    "words have a blank before marks": ("words detokenized", "stripped", lambda entry, token: token + " "),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reader_that_leaves_a_rule_of_the_page_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, function, planted = FAULTS[fault]
    monkeypatch.setattr(second_tokenizer, function, planted)
    assert differences(name)


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("normalizer", normalizers.Strip()),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        ("pre_tokenizer", pre_tokenizers.Metaspace()),
        ("decoder", decoders.CTC()),
    ],
)
def test_a_part_that_the_page_does_not_describe_is_refused(key: str, part: Any) -> None:
    changed = Library.from_str(library("chars").to_str())
    setattr(changed, key, part)
    with pytest.raises(UnknownPartError, match=key):
        Tokenizer(changed.to_str().encode())


ASSIGNED = [
    chr(i) for i in range(0x110000) if unicodedata.category(chr(i)) not in ("Cn", "Cs", "Co")
]  # of each the property stays in later versions


def library_class(pattern: str) -> set[str]:
    """The assigned code points that a regular expression of the library matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    parts = ("".join(ASSIGNED[i : i + 5_000]) for i in range(0, len(ASSIGNED), 5_000))
    return {point for part in parts for point, _ in split.pre_tokenize_str(part)}


@pytest.mark.parametrize("pattern", [r"\w", r"\W", r"\d", r"\s", r"[^\w\s]", r"[\W]", r"\p{M}", r"\p{DI}"])
def test_classes_of_regular_expressions_have_the_characters_of_the_page(pattern: str) -> None:
    spelled = second_tokenizer.oniguruma(pattern)
    differing = library_class(pattern) ^ {point for point in ASSIGNED if spelled.fullmatch(point)}
    assert {unicodedata.name(point, f"{ord(point):04X}") for point in differing} == set()


def test_the_page_spells_out_the_classes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for letter, expected in second_tokenizer.CLASSES.items():
        (row,) = regex.findall(rf"^\| `\\{letter}` \| `\[(.+)\]` \|$", page, regex.MULTILINE)
        assert row == expected.replace("\\x", "\\u00")


# A version, whether the part knows a code point, one that came with the version, and one that came later.
VERSIONS: dict[str, tuple[str, Callable[[str], bool], tuple[str, str]]] = {
    "regular expressions": ("16.0", lambda p: p in split_by(r"\w", p), ("\u1c89", "\U00010940")),
    "`Lowercase`": ("17.0", lambda p: normalizers.Lowercase().normalize_str(p) != p, ("\ua7ce", "\ud7c7")),
    "`NFC`": ("9.0", lambda p: normalizers.NFKD().normalize_str(p) != p, ("\U0001f23b", "\u32ff")),
    "`StripAccents`": ("9.0", lambda p: normalizers.StripAccents().normalize_str(p) == "", ("\u08d4", "\u1df6")),
    "`BertNormalizer`": ("8.0", lambda p: bert_accents(p) == "", ("\u08e3", "\u08d4")),
    "`Punctuation`": (
        "8.0",
        lambda p: len(pre_tokenizers.Punctuation().pre_tokenize_str(f"a{p}")) == 2,
        ("\ua8fc", "\U0001144b"),
    ),
}


def split_by(pattern: str, text: str) -> list[str]:
    return [part for part, _ in pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(text)]


def bert_accents(text: str) -> str:
    return normalizers.BertNormalizer(False, False, True, False).normalize_str(text)


@pytest.mark.parametrize("part", VERSIONS)
def test_the_page_names_the_version_of_unicode_of_each_part(part: str) -> None:
    version, is_known, (known, later) = VERSIONS[part]
    page = PAGE.read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.endswith(f"| {version} |") and part in line]
    assert is_known(known), row
    assert not is_known(later), row
