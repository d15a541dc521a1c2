"""Base class of feature kinds, and the axis names of their arrays; imports no NumPy by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from seqpipe.errors import BundleError

if TYPE_CHECKING:
    import random

    import numpy as np
    from tokenizers import Tokenizer

    from seqpipe.features.document import Doc

BATCH = "batch_size"
TOKEN_AXIS, WORD_AXIS, SENTENCE_AXIS = "sequence_length", "word_count", "sentence_count"  # names of the second axis
PLACE_AXIS = "place_count"  # second axis of the places into which an encoder divides a picture or a sound
TOKEN_AXES = (BATCH, TOKEN_AXIS)  # of an array with one entry for each token

WordsOf = Callable[[Sequence[str]], Iterable[Sequence[str]]]  # texts to the words of each


class FeatureKind(ABC):
    """One input of the graph besides ids and mask: a stage declares it, training data fit it, a bundle describes it.

    A subclass is a frozen dataclass that `registry.py` lists. The set is closed, because a runtime in any language must
    compute each kind. The first paragraph of its docstring is its description in the reference.
    """

    kind: ClassVar[str]
    """Its name in bundles, and that of its file."""
    shape: ClassVar[str]
    """Shape of its array, for people: `(B, T, C)`."""
    dtype: ClassVar[str] = "int64"
    """Dtype of its array."""
    reads_numbers: ClassVar[bool] = False
    """True if it is computed from rows of numbers, not from a text."""
    is_media: ClassVar[bool] = False
    """True if it is computed from a picture or a sound: a file, its bytes, or an array (`seqpipe.features.media`)."""
    shows_tokens: ClassVar[bool] = False
    """True if it reveals a token whose id is masked."""
    of_whole_text: ClassVar[bool] = False
    """True if it is a property of the whole text, so that a part of the text does not have it."""
    of_pairs: ClassVar[bool] = False
    """True if every pair of texts has it without a declaration, under the kind's name."""
    joins_words: bool = False
    """True if the tokens of a converted checkpoint are joined to words as `transformers` joins them."""
    copies_tokens: ClassVar[bool] = False
    """True if a head copies tokens of its input with it, so that it needs the head's target tokenizer."""

    @property
    def axes(self) -> tuple[str | int, ...]:
        """Names of the axes of its array; a number for an axis of fixed size."""
        return TOKEN_AXES

    @property
    def names(self) -> tuple[str, ...]:
        """Entries of its own vocabulary in the order of their ids, if it has one."""
        return ()

    @property
    def size(self) -> int:
        """Size of its own vocabulary, 0 if it has none."""
        return len(self.names)

    def sizes(self, name: str) -> dict[str, int]:
        """Return the sizes that stages are built from, by name; `name` is that of the feature."""
        return {name: self.size}

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a record that it reads besides the input."""
        return ()

    @property
    def fitting_fields(self) -> tuple[str, ...]:
        """Those of its `fields` that only `fit` reads, so that they may be a head's target."""
        return ()

    def mismatch(self, reads_text: bool, source: str) -> str:
        """Return the reason why the feature cannot be computed from this source, with the fix; "" if it can."""
        if self.reads_numbers and reads_text:
            where = f"inputs: {{{source or 'numbers'}: {{field: NAME, embedding: …}}}}"
            return f"it reads rows of numbers, and this source is a text: add a source for the numbers, {where}"
        if not self.reads_numbers and not reads_text:
            fix = "add one, or use linear"
            return f"its feature {self.kind!r} needs a text, and this source has no tokenizer; {fix}"
        return ""

    def unfitted(self) -> Self:
        """Return the feature before fitting, which accepts any value of a field."""
        return self

    def with_tokenizer(self, tokenizer: Tokenizer, words_of: WordsOf) -> Self:
        """Return the feature for texts of this tokenizer; `words_of` splits texts as it splits them."""
        return self

    def fit(self, docs: Iterable[Doc]) -> Self:
        """Return the feature fitted to training data; entries fitted by an older run are kept."""
        return self

    def initialise_from(self, older: FeatureKind | None) -> Self:
        """Return the feature with the fitted entries of an older run's feature of the same name."""
        return self

    def with_target_tokenizer(self, same: bool, file: str, tokenizer: Tokenizer) -> Self:
        """Return the feature with the head's target tokenizer and its file; `same`: the source shares the tokenizer."""
        return self

    def value(self, text: str, place: str = "") -> str:
        """Return the value of one of its `fields`; DataError, prefixed with `place`, if it cannot be read."""
        return text

    def rows(self, value: Any, place: str) -> np.ndarray:
        """Return the value of a record's field as rows of numbers (T, F), float32; for kinds that read numbers.

        Raises:
            DataError: if it cannot be read. `place` is the location and the field, such as `f.jsonl:7: field 'image'`;
                the rest of the message follows, and names the fix.
        """
        raise TypeError(f"feature kind {self.kind!r} reads no numbers, but {type(value).__name__} was passed: {place}")

    def media_tokens(self, value: Any, place: str) -> int:
        """Return how many tokens reading a picture or a sound costs as much as, from its header; it is not decoded.

        Raises:
            DataError: if it is larger than the kind, or `limited`, permits. `place` is as of `rows`.
        """
        return 0

    def limited(self, pixels: int, samples: int) -> Self:
        """Return the feature that reads no picture of more pixels, and no sound of more samples after resampling."""
        return self

    def example_value(self, draw: random.Random) -> Any:
        """Return a random value for `rows`, as JSON data."""
        raise TypeError(f"feature kind {self.kind!r} reads no numbers")

    def value_of(self, rows: Sequence[Sequence[float]]) -> Any:
        """Return a value for `rows` that is made of these numbers from -20 to 20, with as many rows as these."""
        return rows

    @abstractmethod
    def array(self, docs: Sequence[Doc], longest: int) -> np.ndarray:
        """Return its array for a batch whose longest text has `longest` tokens; 0 in the padding."""

    def manifest(self) -> dict[str, Any]:
        """Return everything that a runtime needs to compute the feature, as JSON data."""
        return {"kind": self.kind}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer]) -> Self:
        """Return the fitted feature that a manifest describes; `tokenizers` are the target tokenizers by file."""
        return cls()

    def out_of_bounds(self) -> str:
        """Return why this feature is unsafe to compute (unbounded memory, division by zero), or ""."""
        return ""

    def example_fields(self, choose: Callable[[Sequence[str]], Any]) -> dict[str, str]:
        """Return each of its `fields` with a valid value, selected by `choose`."""
        return {}

    def example_tokens(
        self, words: list[str], ids: list[int], random: np.random.Generator
    ) -> tuple[list[str], list[int]]:
        """Return the words and ids of a random text, some of them replaced if the kind distinguishes words."""
        return words, ids


def unknown_kind(kind: str) -> BundleError:
    """Return the error about a feature kind that this version does not have."""
    return BundleError(f"unknown feature kind {kind}; update seqpipe")
