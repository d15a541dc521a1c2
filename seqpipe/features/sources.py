"""Records of numbers or of several sources in, arrays out: what stands beside a Featurizer of one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.errors import DataError
from seqpipe.features.document import AXES, Arrays, Column, Doc, Feature, Featurizer, Record, held_by, place_of
from seqpipe.features.kinds import Matrix

MASK = "mask"


class Rows:
    """A field that holds rows of numbers, or the numbers of one row: each row stands where a token of a text would."""

    pairs = False

    def __init__(self, features: Mapping[str, Matrix], field: str):
        self.features, self.field, self.fields = dict(features), field, (field,)

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """The rows of each record; DataError for what is no matrix of finite numbers of the width that was learned."""
        return [self._doc(record) for record in records]

    def _doc(self, record: Record) -> Doc:
        rows = self._rows(record)
        numbers = [str(position) for position in range(len(rows))]
        ends = np.cumsum([len(number) + 1 for number in numbers]).tolist()
        offsets = [(end - 1 - len(number), end - 1) for end, number in zip(ends, numbers, strict=True)]
        words = [row.astype("<f4").tobytes().hex() for row in rows]  # what a seed is keyed by
        return Doc(" ".join(numbers), words, offsets, [1] * len(rows), rows=rows)

    def _rows(self, record: Record) -> np.ndarray:
        at = place_of(record)
        given, cure = record.get(self.field), "give a list of numbers, or a list of such lists of one length"
        try:
            with np.errstate(over="ignore"):  # told below
                rows = np.array(given, np.float32) if isinstance(given, list | tuple | np.ndarray) else None
        except (TypeError, ValueError):
            rows = None
        if rows is None or rows.ndim not in (1, 2):
            has = "" if self.field in record else f"; the record has: {held_by(record)}"
            told = f"must hold rows of numbers of one length, not {type(given).__name__}"
            raise DataError(f"{at}field {self.field!r} {told}{has}; {cure}")
        if not rows.size:
            return np.zeros((0, 0), np.float32)
        rows = rows[None] if rows.ndim == 1 else rows
        if not np.isfinite(rows).all():
            told = "holds a number that is not finite in float32; leave such rows out"
            raise DataError(f"{at}field {self.field!r} {told}")
        for feature in self.features.values():
            if feature.size and rows.shape[1] != feature.size:
                told = f"has rows of {rows.shape[1]} numbers, and training data had {feature.size}"
                raise DataError(f"{at}field {self.field!r} {told}; give {feature.size}")
        return rows

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        """Rows padded to the most of the batch (at least one): every feature, and `mask` (B, T)."""
        lengths = np.array([len(doc) for doc in docs])
        longest = max(1, int(lengths.max(initial=1)))
        arrays = {MASK: np.arange(longest)[None] < lengths[:, None]}
        return {name: feature.array(docs, longest) for name, feature in self.features.items()} | arrays

    def axes(self, name: str) -> tuple[str | int, ...]:
        return AXES if name == MASK else self.features[name].axes

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Of each input of the graph what it is made by, its axes and its type."""
        made = {name: feature.manifest() | {"axes": [*feature.axes]} for name, feature in self.features.items()}
        mask = {"axes": [*AXES], "dtype": "bool"}
        return {name: {**one, "dtype": "float32"} for name, one in made.items()} | {MASK: mask}


class Several:
    """Sources by name: an array or an axis of one is called `<source>.<name>`, but for the batch's own axis."""

    pairs = False

    def __init__(self, sources: Mapping[str, Featurizer | Rows]):
        self.sources = dict(sources)

    @property
    def features(self) -> dict[str, Feature]:
        return {f"{at}.{name}": one for at, source in self.sources.items() for name, one in source.features.items()}

    @property
    def field(self) -> dict[str, Any]:
        """By source the field that is its input, or the two of a pair, as a bundle says it."""
        return {name: source.field for name, source in self.sources.items()}

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field for source in self.sources.values() for field in source.fields))

    def docs(self, records: Sequence[Record]) -> list[Doc]:
        """Of each record the Docs of all sources as one; it is empty where one of them is."""
        columns = [source.docs(records) for source in self.sources.values()]
        return [together(parts) for parts in zip(*columns, strict=True)]

    def collate(self, docs: Sequence[Doc]) -> Arrays:
        arrays: Arrays = {}
        for number, (at, source) in enumerate(self.sources.items()):
            made = source.collate([doc.parts[number] for doc in docs])
            arrays |= {f"{at}.{name}": array for name, array in made.items()}
        return arrays

    def axes(self, name: str) -> tuple[str | int, ...]:
        at, _, own = name.partition(".")
        return tuple(_of_source(at, axis) for axis in self.sources[at].axes(own))

    def manifest(self) -> dict[str, dict[str, Any]]:
        made = {}
        for at, source in self.sources.items():
            for name, one in source.manifest().items():
                made[f"{at}.{name}"] = {**one, "axes": [_of_source(at, axis) for axis in one["axes"]]}
        return made


Inputs = Featurizer | Rows | Several


def together(parts: Sequence[Doc]) -> Doc:
    """The Docs of several sources as one, a line each; without tokens where one of them has none."""
    text, words, offsets, shift = "\n".join(part.text for part in parts), [], [], 0
    for part in parts:
        words += part.words
        offsets += [(a + shift, b + shift) for a, b in part.offsets]
        shift += len(part.text) + 1
    ids = [i for part in parts for i in part.ids] if all(map(len, parts)) else []
    return Doc(text, words, offsets, ids, parts=tuple(parts))


def source_from(
    field: Any, features: Mapping[str, Feature], tokenizers: Mapping[str, Tokenizer], lossless: bool = False
) -> Inputs:
    """What a bundle or a run describes by its field, its features and the tokenizers of its sources.

    `lossless`: as a Featurizer has it; of several sources none is.

    Raises:
        ValueError: if a field is neither a name nor two.
    """
    if isinstance(field, Mapping):
        return Several({name: _one(name, own, features, tokenizers.get(name)) for name, own in field.items()})
    return _one("", field, features, tokenizers.get(""), lossless)


def _one(
    name: str, field: Any, features: Mapping[str, Feature], tokenizer: Tokenizer | None, lossless: bool = False
) -> Featurizer | Rows:
    before = f"{name}." if name else ""
    own = {full.removeprefix(before): one for full, one in features.items() if full.startswith(before)}
    fields = field if isinstance(field, list) else [field]
    if len(fields) not in (1, 2) or not all(isinstance(one, str) for one in fields):
        raise ValueError(f"field {field!r}, which is neither a name nor two")
    if tokenizer is not None:
        return Featurizer(tokenizer, own, fields, lossless)
    numbers = {name: one for name, one in own.items() if isinstance(one, Matrix)}
    if len(fields) > 1 or len(numbers) < len(own):
        raise ValueError(f"source {name!r}, which has no tokenizer and is no field of numbers")
    return Rows(numbers, fields[0])


def sources_of(source: Inputs) -> Mapping[str, Featurizer | Rows]:
    """Each source by its name, which is empty where it is the only one."""
    return source.sources if isinstance(source, Several) else {"": source}


def tokenizers_of(source: Inputs) -> dict[str, Tokenizer]:
    """The tokenizer of each source that is a text, by its name."""
    return {name: one.tokenizer for name, one in sources_of(source).items() if isinstance(one, Featurizer)}


def tokenizer_file_of(source: str) -> str:
    """The file of a source's tokenizer; a source alone has the name ""."""
    return f"tokenizer.{source}.json" if source else "tokenizer.json"


def columns(source: Inputs) -> tuple[str, ...]:
    """The fields of a record that stages ask for beside what is split."""
    return tuple(dict.fromkeys(one.field for one in source.features.values() if isinstance(one, Column)))


def fields_of(source: Inputs) -> tuple[str, ...]:
    """All fields of a record that are read, texts and numbers last."""
    return tuple(dict.fromkeys([*columns(source), *source.fields]))


def one_text(source: Inputs) -> bool:
    """Whether a text is all that a record needs to hold."""
    return isinstance(source, Featurizer) and not source.pairs and not columns(source)


def all_texts(source: Inputs) -> bool:
    """Whether no source reads numbers."""
    return not any(isinstance(one, Rows) for one in sources_of(source).values())


def masks(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The mask of each source, by what stands in front of its names: "", or `<source>.`."""
    return {name.removesuffix(MASK): one for name, one in feeds.items() if name == MASK or name.endswith(f".{MASK}")}


def mask_of(name: str) -> str:
    """What the mask of a feature is called."""
    at, dot, _ = name.rpartition(".")
    return f"{at}{dot}{MASK}"


def _of_source(source: str, axis: str | int) -> str | int:
    return axis if isinstance(axis, int) or axis == AXES[0] else f"{source}_{axis}"
