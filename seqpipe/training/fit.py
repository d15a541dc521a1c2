"""Fit the artifacts of a pipeline to its training records: tokenizers, features, labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from seqpipe.answers.multi_head import tokenizer_file
from seqpipe.answers.text import target_text
from seqpipe.config.component import Input, by_source, describe
from seqpipe.config.contract import can_copy, declared_features
from seqpipe.config.head_answers import reads_every_token
from seqpipe.config.loader import Component, Config
from seqpipe.errors import ConfigError
from seqpipe.features.document import Doc, Record, token_counts
from seqpipe.features.kinds.base import FeatureKind
from seqpipe.features.kinds.registry import pair_features
from seqpipe.features.sources import InputSource, MultiSource, NumericSource, TextSource, tokenizers_of
from seqpipe.features.splitting import splits_words
from seqpipe.runtime.predictor import CHUNK, chunks
from seqpipe.training.artifacts import Artifacts, Task
from seqpipe.training.datasets import read
from seqpipe.training.fit_tasks import fit_task
from seqpipe.training.fit_tokenizers import Texts, add_special_tokens, fit_tokenizer, shared_targets, split_or_whole
from seqpipe.training.head_inputs import (
    check_first_source,
    check_head_inputs,
    refuse_tagging_numbers,
    replacing_encoder,
)


@dataclass(frozen=True)
class _Source:
    """The fitted artifacts of one source.

    Attributes:
        source: Turns its records into arrays.
        counts: How often each of its tokens occurs; None for rows of numbers.
        longest: Tokens, or rows, of its longest record.
    """

    source: TextSource | NumericSource
    counts: list[int] | None
    longest: int


def fit_artifacts(config: Config, records: Sequence[Record]) -> Artifacts:
    """Train the tokenizers and collect alphabets and labels; DataError if the records lack what the heads need.

    What starts from a run (`init`) takes its tokenizer as it is, and adds new characters and labels behind the old.
    """
    inputs = by_source(config.inputs)
    heads = config.head if len(inputs) == 1 else ()
    candidates = records
    texts = records
    if path := config.data.candidates:
        candidates = read(config.data.reader, path)
        texts = [*records, *candidates]
    fitted = {name: _fit_source(source, heads, texts) for name, source in inputs.items()}
    sources = {name: part.source for name, part in fitted.items()}
    featurizer: InputSource = sources[""] if "" in sources else MultiSource(sources)
    tokenizers = [*tokenizers_of(featurizer).values()]
    if len(inputs) > 1 and config.inputs[0].tokenizer:
        check_first_source(config.inputs[0], config.head, tokenizers[0])
    shared_tokenizer = tokenizers[0] if len(tokenizers) == 1 else None
    tasks = tuple(
        fit_task(
            head, head.name if len(config.head) > 1 else "", shared_tokenizer, config.inputs[0], records, candidates
        )
        for head in config.head
    )
    _fit_copying(config, featurizer, tasks)
    counts = {name: part.counts for name, part in fitted.items() if part.counts is not None}
    return Artifacts(featurizer, counts, tasks, sum(part.longest for part in fitted.values()))


def _fit_copying(config: Config, source: InputSource, tasks: Sequence[Task]) -> None:
    """Give the copy feature of a head the tokenizer it writes with; ConfigError where the two do not go together."""
    copying = [(head, task) for head, task in zip(config.head, tasks, strict=True) if can_copy(head)]
    for head, task in copying:
        writer, encoder = task.target_tokenizer, replacing_encoder(config.inputs[0])
        is_same, message = head.common_keys.get("target_tokenizer") == "same", ""
        if not isinstance(source, TextSource) or writer is None:
            continue
        if encoder:
            message = f"behind the encoder {encoder.use!r} there are no tokens to copy; leave that encoder out"
        elif not is_same and (splits_words(source.tokenizer) or splits_words(writer)):
            message = "it copies whole tokens, and one of the two tokenizers splits words: write target_tokenizer: same"
        elif not is_same and len(copying) > 1:
            message = "several heads copy, which can be of one vocabulary only: write target_tokenizer: same in each"
        if message:
            raise ConfigError([head.problem(f"{describe(head)}: {message}")])
        for name in declared_features(head):
            feature = source.features[name].with_target_tokenizer(is_same, tokenizer_file(task.name), writer)
            source.features[name] = feature


def _fit_source(source: Input, heads: Sequence[Component], records: Sequence[Record]) -> _Source:
    features = _declared(source, heads)
    if source.tokenizer is None:
        refuse_tagging_numbers(heads)
        return _fit_numbers(str(source.field), features, records)
    field = source.tokenizer.common_keys.get("field") or "text"
    fields = [field] if isinstance(field, str) else field

    def texts() -> Texts:
        yield from ((record, split_or_whole(record, fields, name)) for record in records for name in fields)
        yield from ((record, target_text(record, name)) for name in shared_targets(heads) for record in records)

    tokenizer = add_special_tokens(fit_tokenizer(source.tokenizer, texts), heads)
    check_head_inputs(source, heads, tokenizer)
    lossless = all(map(reads_every_token, heads))
    docs = _split_records(tokenizer, features, field, lossless, records)
    counts, longest = token_counts(docs, tokenizer.get_vocab_size())
    if len(fields) == 2 and not lossless:
        features |= pair_features()
    fitted = {name: feature.with_tokenizer(tokenizer).fit(docs) for name, feature in features.items()}
    return _Source(TextSource(tokenizer, fitted, field, lossless), counts, longest)


def _declared(source: Input, heads: Sequence[Component]) -> dict[str, FeatureKind]:
    """The features that the stages of a source declare, continued from those of the runs that `init` names."""
    features: dict[str, FeatureKind] = {}
    for stage in (*source.stages, *heads):
        declared = {name: features.get(name, feature) for name, feature in declared_features(stage).items()}
        if folder := stage.common_keys.get("init"):
            older = Artifacts.load(folder).featurizer.features
            declared = {name: feature.initialise_from(older.get(name)) for name, feature in declared.items()}
        features |= declared
    return features


def _split_records(
    tokenizer: Tokenizer,
    features: dict[str, FeatureKind],
    field: str | tuple[str, ...],
    lossless: bool,
    records: Sequence[Record],
) -> Iterable[Doc]:
    """The records split into tokens, with the features that are still to be fitted."""
    unfitted = {name: feature.unfitted() for name, feature in features.items()}
    splitter = TextSource(tokenizer, unfitted, field, lossless)
    return splitter.docs(records) if isinstance(records, list) else _StreamedDocs(splitter, records)


class _StreamedDocs(Iterable[Doc]):
    """The records of a stream split, anew at each iteration."""

    def __init__(self, splitter: TextSource, records: Sequence[Record]):
        self.splitter, self.records = splitter, records

    def __iter__(self) -> Iterator[Doc]:
        for chunk in chunks(self.records, CHUNK):
            yield from self.splitter.docs(chunk)


def _fit_numbers(field: str, features: dict[str, FeatureKind], records: Sequence[Record]) -> _Source:
    """A source of numbers with their means and deviations; DataError if the widths of records differ."""
    docs = NumericSource({}, field).docs(records)
    fitted = {name: feature.fit(docs) for name, feature in features.items() if feature.reads_numbers}
    return _Source(NumericSource(fitted, field), None, max(map(len, docs), default=0))
