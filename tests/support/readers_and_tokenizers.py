"""Toy readers and tokenizers: a sound one of each kind, and for each check some that fail it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from seqpipe.errors import DataError
from seqpipe.plugin import word_level
from seqpipe.testing.isolation import ACCESS
from seqpipe.testing.readers import BAD_LINE_ERROR, EXPECTED_RECORDS, FILE_AND_LINE, STREAMS_FILE
from seqpipe.testing.report import UNKNOWN
from seqpipe.testing.tokenizers import DATA, OFFSETS, SAME_VOCABULARY, SPECIAL, TRAINS, WORDS_AGREE

CONTENT = "Anna calls\tgreet\nrain\tweather\n"
EXPECTED = [{"text": "Anna calls", "label": "greet"}, {"text": "rain", "label": "weather"}]


class Fault:
    """Base of components with a planted fault, each with the checks that catch it."""

    faults: ClassVar[dict[str, tuple[type, set[str]]]]

    def __init_subclass__(cls, caught_by: set[str] | None = None):
        super().__init_subclass__()
        if caught_by:
            cls.faults[cls.__name__] = (cls, caught_by)


READER_FAULTS: dict[str, tuple[type, set[str]]] = {}
TOKENIZER_FAULTS: dict[str, tuple[type, set[str]]] = {}


class Lines(Fault):
    """A text and its label a line."""

    faults = READER_FAULTS
    fields = ("text", "label", "where")

    def __init__(self, *, separator: str = "\t"):
        self.separator = separator

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        with Path(path).open("rb") as file:
            yield from self.records(file, str(path))

    def records(self, lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            try:
                text, label = line.decode().rstrip("\n").split(self.separator)
            except ValueError as error:
                raise DataError(f"{name}:{number}: {error}; write a text, a tab and its label") from error
            yield {"text": text, "label": label, "where": self.where(name, number)}

    def where(self, name: str, number: int) -> str:
        return f"{name}:{number}"


class Whole(Lines, caught_by={STREAMS_FILE}):
    """Has all lines in memory before the first record."""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        yield from self.records(Path(path).read_bytes().splitlines(keepends=True), str(path))


class AList(Lines, caught_by={STREAMS_FILE}):
    def read(self, path: Path) -> Any:
        return list(super().read(path))


class Misspells(Lines, caught_by={"members are spelt correctly"}):
    def chagnes(self, path: Path) -> bool:
        return True


class FromZero(Lines, caught_by={FILE_AND_LINE}):
    def where(self, name: str, number: int) -> str:
        return f"{name}:{number - 1}"


class Nowhere(Lines, caught_by={FILE_AND_LINE}):
    def where(self, name: str, number: int) -> str:
        return f"line {number}"


class Decodes(Lines, caught_by={BAD_LINE_ERROR}):
    """Leaves bad bytes to Python."""

    def records(self, lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            text, label = line.decode().rstrip("\n").split(self.separator)
            yield {"text": text, "label": label, "where": f"{name}:{number}"}


class Forgives(Lines, caught_by={BAD_LINE_ERROR}):
    """Replaces bad bytes."""

    def records(self, lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(lines, 1):
            text, _, label = line.decode(errors="replace").rstrip("\n").partition(self.separator)
            yield {"text": text, "label": label, "where": f"{name}:{number}"}


class SaysNoLine(Lines, caught_by={BAD_LINE_ERROR}):
    def records(self, lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
        try:
            yield from super().records(lines, name)
        except DataError:
            raise DataError(f"{name}: a line is bad; mend it") from None


class Strips(Lines, caught_by={EXPECTED_RECORDS}):
    def records(self, lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
        for record in super().records(lines, name):
            yield {**record, "text": record["text"].split()[0]}


class Looks(Lines, caught_by={ACCESS}):
    """Lists another folder before it reads."""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        with os.scandir(Path(path).absolute().parent.parent) as entries:  # not a list: the folder may be large
            next(entries)
        yield from super().read(path)


class Kwargs(Lines, caught_by={"options round-trip", UNKNOWN}):
    def __init__(self, **options: Any):
        super().__init__()


class Blanks(Fault):
    """Splits at blanks."""

    faults = TOKENIZER_FAULTS
    normalizer: normalizers.Normalizer = normalizers.Sequence([])
    splitter: pre_tokenizers.PreTokenizer = pre_tokenizers.WhitespaceSplit()

    def __init__(self, *, min_count: int = 1):
        self.min_count = min_count

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        return word_level(texts, normalizer=self.normalizer, splitter=self.splitter, min_count=self.min_count)


class NoTokenizer(Blanks, caught_by={TRAINS}):
    def train(self, texts: Iterable[str | list[str]]) -> Any:
        return super().train(texts).to_str()


class Shuffles(Blanks, caught_by={SAME_VOCABULARY}):
    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        tokenizer = super().train(texts)
        known = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
        rest = random.SystemRandom().sample(known[4:], len(known) - 4)
        tokenizer.model = models.WordLevel({token: i for i, token in enumerate([*known[:4], *rest])}, unk_token="[UNK]")
        return tokenizer


class NoSpecials(Blanks, caught_by={SPECIAL}):
    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        tokenizer = super().train(texts)
        known = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
        tokenizer.model = models.WordLevel({token: i for i, token in enumerate(known[::-1])}, unk_token="[UNK]")
        return tokenizer


class Upper:
    """A normalizer in Python, which tokenizer.json cannot store."""

    def normalize(self, text: normalizers.NormalizedString) -> None:
        text.map(lambda c: c.upper()[:1])


class Custom(Blanks, caught_by={DATA}):
    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        tokenizer = super().train(texts)
        tokenizer.normalizer = normalizers.Normalizer.custom(Upper())
        return tokenizer


class Unfolds(Blanks, caught_by={OFFSETS, WORDS_AGREE}):
    """One code point becomes several tokens."""

    normalizer = normalizers.Lowercase()  # of İ
    splitter = pre_tokenizers.Split("", "isolated")


class Marks(Blanks, caught_by={OFFSETS, WORDS_AGREE}):
    """A word has another token in a text than alone."""

    splitter = pre_tokenizers.Metaspace()

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        tokenizer = super().train(texts)
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer


class Fetches(Blanks, caught_by={ACCESS}):
    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        Path("/etc/passwd").exists() and Path("/etc/passwd").read_bytes()
        return super().train(texts)


class Learns(Blanks, caught_by={WORDS_AGREE}):
    """Trains on lowercased words, but on texts as they are."""

    def train(self, texts: Iterable[str | list[str]]) -> Tokenizer:
        return super().train(text if isinstance(text, str) else [word.lower() for word in text] for text in texts)
