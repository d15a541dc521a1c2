"""Fields of a data file, columns of a table or keys of JSON objects, and what their values are."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

from seqpipe.init.names import NAMES, PLURALS, SPLITS, STRONG_NAMES, WEAK_NAMES, Role
from seqpipe.init.scripts import count_unspaced, has_unspaced
from seqpipe.init.tags import find_tagging

Kind = (
    Literal["texts", "repeated texts", "names", "words", "few values", "ratings", "truth values", "numbers", "amounts"]
    | Literal["separated labels", "lists of labels", "lists of texts", "lists of numbers", "lists of objects"]
    | Literal["lists as text", "objects", "files", "names of texts", "media", "features", "parses"]
    | Literal["identifiers", "row numbers", "dates", "addresses or licences", "the same value in every row", "empty"]
)
Item = TypeVar("Item")

MOST_CELLS = 1_500  # cells on which patterns are tried
CONSTANT_SIZE = 20  # equal lists, at least, that are a constant
NEARLY_ALL, MOST = 0.95, 0.9  # shares of the cells that make a kind, so that one odd cell turns nothing
MAX_RATINGS, MAX_FRACTIONS = 21, 11  # different whole numbers, or numbers with a fraction, of a rating
# Words of a label at most; words or characters of a text at least, also of scripts without spaces.
LABEL_WORDS, TEXT_WORDS, TEXT_CHARACTERS, UNSPACED_CHARACTERS = 4, 4, 28, 5
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
AMOUNT = re.compile(
    r"[-+]?(?:[$€£¥₹]|USD|EUR|GBP|Rs\.?)?\s?\d+(?:[.,\u00a0\u202f ]\d+)*\s?"
    r"(?:%|[$€£¥₹]|USD|EUR|GBP|kg|km|cm|mm|m|g|l|ms|s|h)?|0x[0-9a-fA-F]+"
)
MISSING = re.compile(r"(?i)|nan|n/?a|null|none|-+|\?|[-+]?inf(inity)?|\.|missing")
DATE = re.compile(
    r"\d{1,4}[-/.]\d{1,2}([-/.]\d{1,4})?([ T]\d+:[\d:.]+ ?([AP]M)?(Z|[-+]\d\d:?\d\d)?)?"
    r"|([A-Z][a-z]{2},? ){1,3}\d{1,2}.{0,30}\d{4}|\d+:\d\d(:\d\d)?"
)
NOTICE = re.compile(r"(https?://|www\.|s3://)\S+$|.*(\bCC[- ]?BY|Attribution:|[Ll]icen[cs]e).*", re.DOTALL)
MEDIA_FILE = re.compile(r"[\w./\\ -]+\.(wav|mp3|flac|ogg|m4a|opus|png|jpe?g|gif|bmp|tiff?|webp|npy|mp4)(#\d+)?", re.I)
TEXT_FILE = re.compile(r"[\w./\\ -]+\.txt(#\d+)?", re.I)
MEDIA = re.compile(r"(iVBOR|UklGR|/9j/|R0lGOD|SUQz|T2dnUw|ZkxhQ)[\w+/=\s]{20,}")  # base64 of usual first bytes
IDENTIFIER = re.compile(
    r"[0-9a-fA-F]{8,}(-[0-9a-fA-F]+)*|(?=.*\d)[A-Za-z]{0,12}[-_.:/]?(\w{0,12}[-_.:/])*\d[\w.:/-]*"
    r"|(?=.*[A-Z\d])(?=.*[a-z])[\w-]{9,22}"
)
LIST = re.compile(r"\[.*\]|\(.*,.*\)|\{.*\}", re.DOTALL)
# As V;IND;PRS or Case=Nom|Number=Sing.
FEATURES = re.compile(r"[A-Z][A-Z0-9]{0,5}(?:[.+/][A-Z0-9]+)*(;[A-Z0-9][\w.+/{}()-]*)+|N|V|ADJ|\w+=\w+(\|\w+=[\w,]+)*")
NAMED_FEATURES = re.compile(r"[\w.:/+()=-]+([;|,][\w.:/+()=-]+)*")
_LETTERS = re.compile(r"[^\W\d]+")
_FORMATTED = re.compile(r"[^\d,;| +-]|\d,\d{3}\b|\d \d{3}\b")
_STRUCTURE = re.compile(r"\w[\[(=]\w")  # a name with its value, as in food[bread] or size=4
ZERO_ONE = {"0", "1", "0.0", "1.0"}
_TRUTHS = (ZERO_ONE, {"true", "false"}, {"yes", "no"})
_PARSE = re.compile(r"\s*\(.*\(.*\).*\)\s*", re.DOTALL)  # a tree in brackets


class Parts(NamedTuple):
    """The parts of the cells of a field, which are several labels each."""

    separator: str
    counts: Counter[str]


def count_words(text: str) -> int:
    """Return the number of words; two characters of a script without spaces are about one word."""
    return max(len(text.split()), count_unspaced(text) // 2)


def spread(items: Sequence[Item], most: int) -> Sequence[Item]:
    """Return so many items at most, evenly spread from the first to the last."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


class Field:
    """Values of a column or key from all over a file, as cells, and what they are."""

    def __init__(self, name: str, values: Sequence[Any], number: int = 0, has_name: bool = True):
        self.name, self.values, self.number, self.has_name = name, values, number, has_name
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition(".")[2])
        self.key = re.sub(r"[ -]", "_", words.strip().lower())

    @property
    def noun(self) -> str:
        return "column" if self.number else "key"

    @property
    def title(self) -> str:
        """The column or key, for messages."""
        return f"{self.noun} {self.name!r}" if self.has_name else f"{self.noun} {self.number}"

    @property
    def option(self) -> str:
        """The column or key, for options of commands."""
        return self.name if self.has_name else str(self.number)

    @cached_property
    def cells(self) -> list[str]:
        """The values as text; a missing one is empty."""
        return [_as_cell(value) for value in self.values]

    @cached_property
    def filled(self) -> list[str]:
        return [cell for cell in self.cells if cell.strip()]

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(self.filled)

    @property
    def size(self) -> int:
        """The number of cells that are not empty."""
        return len(self.filled)

    @property
    def different(self) -> int:
        """The number of different cells."""
        return len(self.counts)

    @cached_property
    def examined(self) -> Sequence[str]:
        """The filled cells that are examined, from all over the field."""
        return spread(self.filled, MOST_CELLS)

    @cached_property
    def words(self) -> float:
        """Words of a cell on average."""
        return sum(map(count_words, self.examined)) / max(1, len(self.examined))

    @cached_property
    def characters(self) -> float:
        """Characters of a cell on average."""
        return sum(map(len, self.examined)) / max(1, len(self.examined))

    def share(self, pattern: re.Pattern[str]) -> float:
        """Return the share of the filled cells that match as a whole."""
        return sum(bool(pattern.fullmatch(cell.strip())) for cell in self.examined) / max(1, len(self.examined))

    def named(self, role: Role) -> float:
        """Return the bits by which the name speaks for a role: how rare it is for a field of another role."""
        if role == "unlearned":
            return 10.0 if self.key in NAMES[role] else 0.0
        if not self.has_name or not self.key or self.key.isdigit():
            return 0.0
        parts = [part for part in re.split(r"[_.\d]+", self.key) if part]
        weak, strong = WEAK_NAMES.get(role, []), STRONG_NAMES.get(role, [])
        if self.key in NAMES[role]:
            if self.key in weak:
                return 6.0
            bonus = (4 if role in ("source", "target") else 2) if self.key in strong else 0
            return 10.0 + (2 if self.key == NAMES[role][0] else 0) + bonus
        if len(parts) > 1 and parts[-1] in NAMES[role] and parts[-1] not in weak and role in ("label", "score", "text"):
            return 8.0
        is_flag = role == "label" and self.key.startswith(("is_", "has_"))
        return 5.0 if is_flag or any(part in NAMES[role] for part in parts if len(part) > 1) else 0.0

    @cached_property
    def is_unspaced(self) -> bool:
        """True if most cells are written without spaces, as in Chinese, Japanese and Thai."""
        cells = self.filled[:100]
        return sum(map(has_unspaced, cells)) > len(cells) / 2

    @cached_property
    def is_ascii(self) -> bool:
        """True if nearly all characters of the cells are ASCII."""
        text = "".join(self.filled[:100])
        return sum(map(str.isascii, text)) > 0.9 * len(text)

    @property
    def is_named_as_identifier(self) -> bool:
        return self.named("ignored") >= 10

    @cached_property
    def kind(self) -> Kind:
        """The kind of its values."""
        return self._json_kind() or self._number_kind() or self._pattern_kind() or self._text_kind()

    def is_a(self, *kinds: Kind) -> bool:
        return self.kind in kinds

    def _json_kind(self) -> Kind | None:
        """Return the kind of lists and objects, and of fields without different values."""
        types = Counter(type(value) for value in self.values if value not in (None, "", [], {}))
        most = types.most_common(1)[0][0] if types else str
        if most is list:
            items = [item for value in self.values if isinstance(value, list) for item in value][:3_000]
            if self.different == 1 and self.size >= CONSTANT_SIZE and not isinstance(items[0], dict | list):
                return "the same value in every row"
            if items and all(isinstance(item, str) for item in items):
                is_short = sum(map(count_words, items)) < LABEL_WORDS * len(items)
                is_few = len({*items}) < 0.35 * len(items)
                return "lists of labels" if is_short and (is_few or self.named("label") >= 10) else "lists of texts"
            return "lists of numbers" if items and all(map(_is_number, items)) else "lists of objects"
        if most is dict:
            return "objects"
        if not self.size:
            return "empty"
        first = self.filled[0]
        if self.different == 1 < self.size:
            if self.words >= 5 and not NOTICE.fullmatch(first):
                return "repeated texts"
            return "the same value in every row"
        return None

    def _number_kind(self) -> Kind | None:
        """Return the kind of numbers, truth values and row numbers."""
        lower = {cell.lower().strip() for cell in self.counts}
        if any(lower <= truths for truths in _TRUTHS):
            return "truth values"
        cells = self.numbers
        numbers = [float(cell) for cell in cells if NUMBER.fullmatch(cell)]
        if len(numbers) < 0.97 * len(cells) or not numbers:
            return None
        is_whole = all(number.is_integer() for number in numbers if math.isfinite(number))
        is_label, is_score = self.named("label") >= 10, self.named("score") > 0
        most = self.size - 1 if is_label else 0.5 * self.size
        is_few = self.different <= min(MAX_RATINGS if is_whole else MAX_FRACTIONS, most)
        is_even = is_whole or all((2 * number).is_integer() for number in numbers)  # whole or half numbers
        if is_few and is_even and (min(numbers) <= 1 or self.different <= 5 or is_label):
            return "ratings"
        steps = sum(after - before == 1 for before, after in itertools.pairwise(numbers))
        is_counting = steps > MOST * max(1, len(numbers) - 1)
        is_key = self.different > 0.98 * self.size and (numbers == sorted(numbers) or self.named("ignored") > 0)
        if is_whole and (is_counting or (is_key and not is_score)):
            return "row numbers"
        if is_whole and not is_score and (self.named("ignored") or min(numbers) > 1e6):
            return "identifiers"
        return "numbers"

    def _pattern_kind(self) -> Kind | None:
        """Return the kind of cells of one form, such as dates, paths, lists and labels with a separator."""
        if self.share(DATE) > NEARLY_ALL:
            return "dates"
        real = self.numbers
        formatted = sum(bool(_FORMATTED.search(cell)) or (cell.count(",") == 1 and len(cell) > 4) for cell in real)
        if all(map(AMOUNT.fullmatch, real)) and formatted > 0.8 * len(real):
            return "amounts"
        media, texts = self.share(MEDIA_FILE), self.share(TEXT_FILE)
        if media + texts > MOST:
            return "files" if media > texts else "names of texts"
        forms: tuple[tuple[re.Pattern[str], Kind], ...]
        forms = ((MEDIA, "media"), (NOTICE, "addresses or licences"), (_PARSE, "parses"))
        for pattern, kind in forms:
            if self.share(pattern) > MOST:
                return kind
        is_named = self.key in ("features", "feats", "msd", "morph")
        has_values = any(sign in cell for cell in self.filled[:50] for sign in ";=")
        if (is_named and self.share(NAMED_FEATURES) > MOST) or (has_values and self.share(FEATURES) > MOST):
            return "features"
        if self.share(LIST) > MOST and self.characters > 3:
            return "lists as text"
        is_id = self.different > MOST * self.size and self.words < 1.3 and self.share(IDENTIFIER) > MOST
        if is_id and self.share(_LETTERS) <= 0.3:
            return "identifiers"
        return "separated labels" if self.parts else None

    def _text_kind(self) -> Kind:
        """Return the kind of words and texts: few values that repeat, or many."""
        size, different, is_label = self.size, self.different, self.named("label") >= 10
        is_long = self.words >= TEXT_WORDS or (self.characters >= TEXT_CHARACTERS and self.words > 1.5 and not is_label)
        if self.is_unspaced and self.characters >= UNSPACED_CHARACTERS and different > MOST * size:
            return "texts"
        if different > 1 and not is_long:
            repeats = (size - different) * math.log2(size / different)
            if repeats > 8 and different <= 0.55 * size:
                return "few values"
            is_short = self.words < LABEL_WORDS and different <= 0.8 * size
            if is_short and size < (100 if is_label else 20 if self.named("label") else 0):
                return "few values"
        if is_long or (self.words >= 2.5 and different > 0.55 * size):
            return "repeated texts" if different < 0.55 * size and size > 9 else "texts"
        return "names" if self.words > 1.3 else "words"

    @cached_property
    def numbers(self) -> list[str]:
        """Cells that are not marks of missing values."""
        cells = [cell.strip() for cell in spread(self.filled, 4 * MOST_CELLS)]
        return [cell for cell in cells if not MISSING.fullmatch(cell)] or [""]

    @cached_property
    def has_points(self) -> bool:
        """True if the numbers are written with a decimal point, as 5.0 is."""
        return any("." in cell for cell in self.numbers[:100])

    @cached_property
    def is_whole(self) -> bool:
        """True if all numbers are whole, though they may be written as 5.0."""
        return all(float(cell).is_integer() for cell in self.numbers if NUMBER.fullmatch(cell))

    @property
    def is_measured(self) -> bool:
        """True if the cells are measured numbers, not classes: over 20 different ones, or over 5 with a fraction."""
        return self.is_a("numbers") and self.different > (MAX_RATINGS - 1 if self.is_whole else 5)

    @cached_property
    def is_split(self) -> bool:
        """True if the cells say which rows are for training and which for evaluation."""
        return self.different > 1 and {cell.strip().lower() for cell in self.counts} <= SPLITS

    @cached_property
    def parts(self) -> Parts | None:
        """The labels of cells that are several labels each; None if each cell is one value."""
        cells = spread(self.filled, 4_000)
        if self.named("target") and self.key not in ("target", *PLURALS):
            return None
        for separator in "|;,/ " if self.key in PLURALS else "|;,/":
            lists = [[part.strip() for part in cell.split(separator)] for cell in cells]
            number = sum(len(parts) > 1 for parts in lists)
            counts = Counter(part for parts in lists for part in {*parts})
            if number < max(2, 0.05 * len(cells)) or "" in counts or any(map(_STRUCTURE.search, list(counts)[:20])):
                continue
            if sum(part.count(" ") + 1 for part in counts) > 2.5 * len(counts):
                continue
            once = sum(number for number in counts.values() if number == 1) / counts.total()
            is_few = len(counts) < 0.35 * counts.total() and len(counts) < max(60, 0.3 * self.size)
            kinds = {tuple(parts) for parts in lists}
            others = Counter(part for parts in kinds for part in {*parts})  # cells of each label, equal cells once
            several = [parts for parts in kinds if len(parts) > 1]
            recur = sum(any(others[part] > 1 for part in parts) for parts in several) >= 0.5 * len(several)
            is_list = once < 0.2 and is_few and recur and len(counts) < len(kinds) + 2
            if is_list or (self.key in PLURALS and once < MOST):
                return Parts(separator, counts)
        return None

    @cached_property
    def tagging(self) -> tuple[float, int, str] | None:
        """The share of tags of entities among those inside, entities, and the tag outside; None for plain values."""
        style = find_tagging(self.counts) if self.different <= 400 else None
        if style is None or not style.tag_format or style.share < 0.8 or not style.entities:
            return None
        return style.share, style.entities, style.outside


def _as_cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False)


def _is_number(item: Any) -> bool:
    return isinstance(item, (int, float)) and not isinstance(item, bool)


def kinds_of(fields: Sequence[Field]) -> str:
    """Return the kind of each field, for messages."""
    return ", ".join(f"{repr(field.name) if field.has_name else field.number} {field.kind}" for field in fields)
