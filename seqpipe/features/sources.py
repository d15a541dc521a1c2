"""What reads the inputs of a pipeline, one source or several: made from a bundle's description, and asked about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from seqpipe.features.document import MASK
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.multi_source import MultiSource
from seqpipe.features.numeric_source import NumericSource
from seqpipe.features.text_source import TextSource

InputSource = TextSource | NumericSource | MultiSource


def source_from(
    field: Any, features: Mapping[str, FeatureKind], tokenizers: Mapping[str, Tokenizer], lossless: bool = False
) -> InputSource:
    """What a bundle or a run describes by its field, its features and the tokenizers of its sources.

    `lossless`: as a TextSource has it; of several sources none is.

    Raises:
        ValueError: if a field is neither a name nor two.
    """
    if isinstance(field, Mapping):
        lossless = lossless and len(field) == 1
        parts = {name: _single(name, part, features, tokenizers.get(name), lossless) for name, part in field.items()}
        return MultiSource(parts)
    return _single("", field, features, tokenizers.get(""), lossless)


def _single(
    name: str, field: Any, features: Mapping[str, FeatureKind], tokenizer: Tokenizer | None, lossless: bool = False
) -> TextSource | NumericSource:
    prefix = f"{name}." if name else ""
    features = {full.removeprefix(prefix): feature for full, feature in features.items() if full.startswith(prefix)}
    fields = field if isinstance(field, list) else [field]
    if len(fields) not in (1, 2) or not all(isinstance(part, str) for part in fields):
        raise ValueError(f"field {field!r}, which is neither a name nor two")
    if tokenizer is not None:
        return TextSource(tokenizer, features, fields, lossless)
    if len(fields) > 1 or not all(feature.reads_numbers for feature in features.values()):
        raise ValueError(f"source {name!r}, which has no tokenizer and is no field of numbers")
    return NumericSource(features, fields[0])


def sources_of(source: InputSource) -> Mapping[str, TextSource | NumericSource]:
    """Each source by its name, which is empty where it is the only one."""
    return source.sources if isinstance(source, MultiSource) else {"": source}


def tokenizers_of(source: InputSource) -> dict[str, Tokenizer]:
    """The tokenizer of each source that is a text, by its name."""
    return {name: part.tokenizer for name, part in sources_of(source).items() if isinstance(part, TextSource)}


def tokenizer_file_of(source: str) -> str:
    """The file of a source's tokenizer; a source alone has the name ""."""
    return f"tokenizer.{source}.json" if source else "tokenizer.json"


def columns(source: InputSource) -> tuple[str, ...]:
    """The fields of a record that features read besides the input."""
    return tuple(dict.fromkeys(field for feature in source.features.values() for field in feature.fields))


def fields_of(source: InputSource) -> tuple[str, ...]:
    """All fields of a record that are read, texts and numbers last."""
    return tuple(dict.fromkeys([*columns(source), *source.fields]))


def numeric_fields(source: InputSource) -> tuple[str, ...]:
    """The fields of a record that hold rows of numbers."""
    return tuple(part.field for part in sources_of(source).values() if isinstance(part, NumericSource))


def one_text(source: InputSource) -> bool:
    """Whether a text is all that a record needs to hold."""
    return isinstance(source, TextSource) and not source.pairs and not columns(source)


def all_texts(source: InputSource) -> bool:
    """Whether no source reads numbers."""
    return not any(isinstance(part, NumericSource) for part in sources_of(source).values())


def masks(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The mask of each source, by what stands in front of its names: "", or `<source>.`."""
    names = [name for name in feeds if name == MASK or name.endswith(f".{MASK}")]
    return {name.removesuffix(MASK): feeds[name] for name in names}


def mask_of(name: str) -> str:
    """What the mask of a feature is called."""
    source, dot, _ = name.rpartition(".")
    return f"{source}{dot}{MASK}"
