"""Patterns that text can bring down, or slow down, are found; those that are safe pass."""

from pathlib import Path

import pytest
from tiny_pipelines import load_tagger
from tokenizers import Tokenizer

from seqpipe.config.signature import construct
from seqpipe.console import Console
from seqpipe.errors import ConfigError
from seqpipe.features import raw_text
from seqpipe.features.raw_text import find_fault
from seqpipe.runs.check import check_export
from seqpipe_plugins.tokenizers.bpe import BPE
from seqpipe_plugins.tokenizers.chars import CharsTokenizer
from seqpipe_plugins.tokenizers.unigram import Unigram
from seqpipe_plugins.tokenizers.wordpiece import WordPiece
from seqpipe_plugins.tokenizers.words import WordsTokenizer

TEXTS = ["the cat sat on the mat, aaa aaab abba 12"] * 5
BYTES = {"byte_level": True, "max_size": 300}
EVIL = r"([a-z0-9]+[.-]?)+@[a-z]+|\w+"


def words(pattern: str) -> Tokenizer:
    return WordsTokenizer(pattern=pattern).train(TEXTS)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (EVIL, "a" * 64),  # one letter
        (r"(?:\d+,?)+€|\w+", "1" * 64),  # digits
        (r"(?:\s|\s\s)+€|\w+", " " * 64),  # blanks
        (r"(?:x+x+)+y|\w+", "x" * 64),  # what the pattern names
        (r"(?:#|##)+y|\w+", "#" * 64),
        (r"(?:\w+\s?)+€|\w+", "a"),
        (r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}|<[^>]+>|(?:%+%?)+;|\w+", "%" * 64),
    ],
)
def test_a_pattern_that_panics_is_found_with_its_text(pattern: str, text: str) -> None:
    fault = find_fault(words(pattern))
    assert fault is not None
    assert (fault.fails, fault.text.startswith(text), "retry-limit" in fault.message) == (True, True, True)


@pytest.mark.parametrize("pattern", [r"\s+$|\w+", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\w+|[^\w\s]"])
def test_a_pattern_that_takes_the_square_of_the_length_is_found(pattern: str) -> None:
    fault = find_fault(words(pattern))
    assert fault is not None
    assert (fault.fails, "four times that for" in fault.message) == (False, True)


@pytest.mark.parametrize(
    "tokenizer",
    [
        words(r"\w+(?:[-.,:]\w+)*|[^\w\s]"),
        words(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}|\w+|[^\w\s]"),
        words(r"(?:[a-z]++-?)++|\w+"),
        *(
            tokenizer.train(TEXTS)
            for tokenizer in (WordsTokenizer(), CharsTokenizer(), construct(BPE), construct(Unigram))
        ),
        *(construct(cls, **options).train(TEXTS) for cls, options in ((WordPiece, {}), (BPE, BYTES))),
    ],
    ids=str,
)
def test_a_safe_tokenizer_passes(tokenizer: Tokenizer) -> None:
    assert find_fault(tokenizer) is None


@pytest.mark.parametrize("calls", range(1, 9))
def test_a_machine_that_is_busy_for_some_time_is_no_fault(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of one text is measured while it is busy, and then for so many calls."""
    seconds = iter([0.001] * 20 + [0.05] * calls + [0.001] * 100_000)
    monkeypatch.setattr(raw_text, "_seconds", lambda tokenizer, text: next(seconds))
    assert find_fault(WordsTokenizer().train(TEXTS)) is None


def test_check_names_the_text_and_a_fix_of_the_pattern(tmp_path: Path) -> None:
    config = load_tagger(tmp_path, f"tokenizer={{use: words, pattern: '{EVIL}'}}")
    message = r"tokenizer 'words' .* cannot split 'a{40}'… .*; write the pattern so that each character"
    with pytest.raises(ConfigError, match=message):
        check_export(config, Console(-1))
