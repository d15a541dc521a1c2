"""Encode texts and align tokens with them; an error of the `tokenizers` library becomes a DataError with the place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from tokenizers import Encoding, Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from seqpipe.errors import DataError, SeqpipeError

# Offsets of tokens in the original text, for a tokenizer whose normalizer has a Unicode normalization form.
#
# The library gives a code point composed of several the offset of the first, and each of several that one decomposes to
# the offset of that one. Here a token has all code points that it is made of, and no two words share one.

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS = get_args(Form)
WORD_MARK = "▁"  # U+2581, the piece that unigram models have for a space
Place = tuple[int, int]


class Alignment:
    """Offsets of the tokens of one tokenizer; those of the library if the normalizer has no Unicode form."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.mark: int | None = tokenizer.token_to_id(WORD_MARK)
        self.forms = [step for step in _steps(tokenizer) if step in FORMS]
        self._composes = self.forms[-1:] in (["NFC"], ["NFKC"])

    def places(self, offsets: list[Place], text: str) -> list[Place]:
        """Return the offsets of tokens from those of the library; a combining mark belongs to its base character."""
        if not self._composes or not offsets:
            return offsets
        limits = [*(start for start, _ in offsets[1:]), len(text)]
        if all(end >= limit or text[end].isspace() for (_, end), limit in zip(offsets, limits, strict=True)):
            return offsets
        # A tokenizer of single code points with the same normalization shows which characters of the text remain; the
        # others were composed into the character before.
        single = Tokenizer(WordLevel({"": 0}, unk_token=""))
        single.normalizer = self.tokenizer.normalizer
        single.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
        code_points: list[Place] = single.encode(text, add_special_tokens=False).offsets
        kept = {i for start, end in code_points for i in range(start, end)}
        widened = []
        for (start, end), limit in zip(offsets, limits, strict=True):
            while end < limit and end not in kept and not text[end].isspace():
                end += 1
            widened.append((start, end))
        return widened


def unicode_form_of(tokenizer: Tokenizer) -> Form | None:
    """Return the Unicode normalization form that a tokenizer applies first, if any."""
    steps = _steps(tokenizer)
    is_first = bool(steps) and steps[0] in FORMS and steps[1:2] != ["StripAccents"]
    return steps[0] if is_first else None


def group_shared(offsets: Sequence[Place]) -> list[tuple[int, int]]:
    """Return first and last (exclusive) of each run of tokens that share a code point; most runs have one token."""
    runs: list[tuple[int, int]] = []
    end = 0
    for i, place in enumerate(offsets):
        if runs and place[0] < end:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
        end = place[1]
    return runs


def _steps(tokenizer: Tokenizer) -> list[Any]:
    """Return the types of all steps of a tokenizer's normalizer, in order."""
    normalizer = tokenizer.normalizer
    return [] if normalizer is None else [*_types(json.loads(normalizer.__getstate__()))]


def _types(part: Mapping[str, Any]) -> Iterator[str]:
    if part["type"] != "Sequence":
        yield part["type"]
    for inner in part.get("normalizers", ()):
        yield from _types(inner)


# Encode texts; an exception or panic of the `tokenizers` library becomes a DataError with the place.

EXCERPT_LENGTH = 40  # characters of a text that stand in a message
UNSPLIT_FIX = "shorten or correct the text, or remove nested repeats from the tokenizer's pattern and train again"
Result = TypeVar("Result")


def encode(tokenizer: Tokenizer, text: str | Sequence[str], at: str = "") -> Encoding:
    """Encode a text, or words; DataError, prefixed with `at`, if it cannot be split."""
    words = not isinstance(text, str)
    return guard(lambda: tokenizer.encode(text, is_pretokenized=words, add_special_tokens=False), text, at)


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens, with special ones."""
    return str(tokenizer.decode([*ids], skip_special_tokens=False))


def encode_batch(tokenizer: Tokenizer, texts: Sequence[str], at: Callable[[int], str]) -> list[Encoding]:
    """Encode texts; DataError for the first that cannot be split, prefixed with `at` of its position."""
    try:
        return list(tokenizer.encode_batch(texts, add_special_tokens=False))
    except BaseException as error:
        if not is_library_error(error):
            raise
        return [encode(tokenizer, text, at(position)) for position, text in enumerate(texts)]


def guard(split: Callable[[], Result], text: str | Sequence[str], at: str = "") -> Result:
    """Call `split`; raise DataError with the text, prefixed with `at`, if the library raises or panics."""
    try:
        return split()
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise split_error(text, error, at) from error


def split_error(text: str | Sequence[str], error: BaseException, at: str = "") -> DataError:
    """Return the error about a text, or words, that the library refuses."""
    whole = text if isinstance(text, str) else " ".join(text)
    return DataError(f"{at}the tokenizer cannot split {text_excerpt(whole)}: {error}; {UNSPLIT_FIX}")


def is_library_error(error: BaseException) -> bool:
    """Return whether a library raised this error: not seqpipe, a lack of memory, or the end of the process."""
    return is_panic(error) or (isinstance(error, Exception) and not isinstance(error, SeqpipeError | MemoryError))


def is_panic(error: BaseException) -> bool:
    """Return whether Rust code of `tokenizers` panicked; PyO3 raises a direct subclass of BaseException for that."""
    return type(error).__name__ == "PanicException"


def text_excerpt(text: str) -> str:
    """Shorten a text for a message to its beginning and its length."""
    return repr(text) if len(text) <= EXCERPT_LENGTH else f"{text[:EXCERPT_LENGTH]!r}… ({len(text):,} characters)"


def regular_expressions(content: Any) -> list[str]:
    """Return the distinct regular expressions in the JSON of a tokenizer."""
    if isinstance(content, list):
        patterns = [pattern for value in content for pattern in regular_expressions(value)]
    elif isinstance(content, dict):
        regexes = [content["Regex"]] if isinstance(content.get("Regex"), str) else []
        parts = [value for key, value in content.items() if key not in ("vocab", "merges")]
        patterns = regexes + regular_expressions(parts)
    else:
        patterns = []
    return list(dict.fromkeys(patterns))
