"""What bundle.json states of a pipeline, checked and built: inputs, answers, limits, options, caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.registry import answer_from, tokenizer_file
from seqpipe.config.checks import Attended, attended_from
from seqpipe.errors import BundleError, UsageError
from seqpipe.features.document import Arrays
from seqpipe.features.encoding import is_library_error
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.sources import InputSource, source_from, tokenizer_file_of
from seqpipe.runtime import bundle
from seqpipe.runtime.bundle_check import check_features, check_options, check_tokenizer, limits_of
from seqpipe.runtime.cache_entries import CacheEntry, cache_from
from seqpipe.runtime.decode_options import option_arrays


@dataclass(frozen=True)
class Statement:
    """What a manifest states.

    Attributes:
        source: Turns records into arrays.
        kind: Turns decisions into answers.
        limits: The most tokens of a text.
        options: The decode options at their defaults.
        attended: The attention weights that the graph returns.
        cache: The cache entries of a language model.
    """

    source: InputSource
    kind: AnswerKind
    limits: Mapping[str, int]
    options: Arrays
    attended: Sequence[Attended]
    cache: Sequence[CacheEntry]


def read_statement(content: bundle.Bundle) -> Statement:
    """What the manifest of a bundle states; BundleError for what is missing, or means nothing."""
    manifest = content.manifest
    names = manifest["field"] if isinstance(manifest["field"], dict) else ("",)
    files = {name: tokenizer_file_of(name) for name in names}
    tokenizers = {name: _tokenizer(content, file) for name, file in files.items() if file in content.files}
    try:
        heads = manifest["answer"].get("parts", {""})
        writers = {head: tokenizer_file(head) for head in heads if tokenizer_file(head) in content.files}
        targets = {head: _tokenizer(content, file) for head, file in writers.items()}
        by_file = {tokenizer_file(head): tokenizer for head, tokenizer in targets.items()}
        stated = {name: feature for name, feature in manifest["inputs"].items() if "kind" in feature}
        features = {name: feature_from(feature, by_file) for name, feature in stated.items()}
        kind = answer_from(manifest["answer"], targets)
        source = source_from(manifest["field"], features, tokenizers, kind.every_token)
        limits = limits_of(manifest["limits"])
        check_features(features.values())
        check_options(manifest["options"])
        options = option_arrays(manifest["options"], {})
        attended = attended_from(manifest.get("explain", {}))
        cache = cache_from(manifest.get("cache", []))
        if kind.is_generated and not cache:
            raise ValueError(f"cache, which the answer kind {kind.kind} needs")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, UsageError) as error:
        raise BundleError(f"{content.path}: {bundle.MANIFEST} lacks or misstates {error}; export it again") from error
    return Statement(source, kind, limits, options, attended, cache)


def _tokenizer(content: bundle.Bundle, name: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(content.files[name])
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise BundleError(f"{content.path / name}: not a tokenizer this version reads: {error}") from error
    check_tokenizer(tokenizer, str(content.path / name))
    return tokenizer
