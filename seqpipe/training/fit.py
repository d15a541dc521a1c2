"""Fit the artifacts of a pipeline to its training records: tokenizers, vocabularies, features and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from seqpipe.answers.registry import ANSWER_KINDS, tokenizer_file
from seqpipe.answers.task import HeadInfo
from seqpipe.answers.text import target_text, text_of
from seqpipe.answers.types import EACH_WORD, PASSAGE
from seqpipe.config.checks import axis_of
from seqpipe.config.contract import (
    Input,
    answer_settings,
    build_component,
    by_source,
    can_copy,
    declaration,
    declared_features,
    describe,
    has_member,
    is_language_model_head,
    is_self_supervised,
    reads_every_token,
    replaces_mask,
    task_class,
)
from seqpipe.config.init_from import counterpart, relative_path
from seqpipe.config.loader import Config
from seqpipe.config.model import Component
from seqpipe.errors import ConfigError, DataError, PluginError, UsageError
from seqpipe.features.document import Doc, Record, TokenCounter, location
from seqpipe.features.encoding import UNSPLIT_FIX, is_panic, split_error
from seqpipe.features.kinds.base import WORD_AXIS, FeatureKind
from seqpipe.features.kinds.registry import pair_features
from seqpipe.features.mapped import StoredRecords
from seqpipe.features.sources import (
    InputSource,
    MultiSource,
    NumericSource,
    TextSource,
    sources_of,
    tokenizer_file_of,
    tokenizers_of,
)
from seqpipe.features.splitting import splits_words
from seqpipe.features.vocabulary import SPECIALS, Vocabulary
from seqpipe.runtime.predictor import CHUNK, chunks
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.datasets import TICK, Records, docs_of, load_records, token_file


def replacing_encoder(source: Input) -> Component | None:
    """Return the encoder that replaces the rows of tokens; None if there is none."""
    return next((stage for stage in source.encoder if replaces_mask(stage)), None)


def _refuse(heads: Sequence[Component], subjects: tuple[str, ...], message: str) -> None:
    """Raise ConfigError for heads that decide about one of these subjects, if there is a message."""
    if not message:
        return
    refused = [head for head in heads if task_class(head).declared_subject(answer_settings(head)) in subjects]
    if refused:
        raise ConfigError([head.problem(f"{describe(head)}: {message}") for head in refused])


def _lacking_words(source: Input, tokenizer: Tokenizer) -> str:
    """Return the reason why a source has no words to tag; "" if it has."""
    features = [feature for stage in source.encoder for feature in declared_features(stage).values()]
    axes = {axis for feature in features for axis in feature.axes}
    if source.pairs:
        return "a pair of texts has no words to tag; make the tokenizer read one field"
    if splits_words(tokenizer) and WORD_AXIS not in axes and source.tokenizer is not None:
        return (
            f"the tokenizer {source.tokenizer.use!r} splits words, and a tag belongs to a whole word; add "
            "{use: words} to the encoders, which joins pieces to words, or choose the tokenizer words"
        )
    return ""


Texts = Iterator[tuple[Record, str | list[str]]]  # texts, or their words, each with its record


def fit_tokenizer(component: Component, texts: Callable[[], Texts]) -> Tokenizer:
    """Train a component's tokenizer on texts, iterated again at each call; DataError if the library panics at one."""
    if folder := component.common_keys.get("init"):
        # The tokenizer, or a head's target tokenizer, of the run that the component is initialised from.
        there = counterpart(component, folder)
        if component.key.endswith(".target_tokenizer"):
            file = tokenizer_file(Artifacts.load(folder).tasks[there.number].name)
        else:
            file = tokenizer_file_of(there.source)
        return Tokenizer.from_file(str(folder / file))
    trainer = build_component(component)
    try:
        tokenizer = trainer.train(text for _, text in texts())
    except BaseException as error:
        if not is_panic(error):
            raise
        refuse_panicking_text(trainer, [*texts()])
        message = f"{component.key}: {describe(component)} cannot be trained on these texts: {error}; {UNSPLIT_FIX}"
        raise DataError(message) from error
    where = f"{component.key}: {describe(component)}"
    if not isinstance(tokenizer, Tokenizer):
        raise PluginError(f"{where}: `train` must return a tokenizers.Tokenizer, not {type(tokenizer).__name__}")
    if [tokenizer.token_to_id(token) for token in SPECIALS] != list(range(len(SPECIALS))):
        raise PluginError(
            f"{where}: the first ids must be those of {' '.join(SPECIALS)}; train it with them as special tokens"
        )
    return tokenizer


def refuse_panicking_text(trainer: Any, texts: list[tuple[Record, Any]]) -> None:
    """Raise DataError for the text at which the library panics, found by bisection, if a single text causes it."""

    def panic_of(part: list[tuple[Record, Any]]) -> BaseException | None:
        try:
            trainer.train(text for _, text in part)
        except Exception:  # a plugin may refuse so few texts with any exception; only panics count here
            return None
        except BaseException as error:
            if not is_panic(error):
                raise
            return error
        return None

    while len(texts) > 1:
        half = texts[: len(texts) // 2]
        texts = half if panic_of(half) else texts[len(half) :]
    if error := panic_of(texts):
        record, text = texts[0]
        raise split_error(text, error, location(record)) from error


def split_or_whole(record: Record, fields: Sequence[str], field: str) -> str | list[str]:
    """Return the words of a record if its text is given as words, else the text of a field."""
    if tuple(fields) == ("text",) and record.get("words") is not None:
        return list(record["words"])
    return text_of(record, field)


def dev_messages(config: Config, artifacts: Artifacts, dev: Sequence[Record]) -> Iterator[str]:
    """Yield the tokenizers' messages about the dev records."""
    fitted = tokenizers_of(artifacts.featurizer)
    for name, source in by_source(config.inputs).items():
        component = source.tokenizer
        if component is None or component.common_keys.get("init") or not has_member(component.cls, "dev_messages"):
            continue
        fields = sources_of(artifacts.featurizer)[name].fields
        texts = [split_or_whole(record, fields, field) for record in dev for field in fields]
        yield from build_component(component).dev_messages(fitted[name], texts)


def fit_task(
    head: Component,
    name: str,
    tokenizer: Tokenizer | None,
    source: Input,
    records: Sequence[Record],
    candidates: Sequence[Record],
) -> FittedTask:
    """Collect a head's labels and fit its target tokenizer; ConfigError if the head cannot answer this input.

    `tokenizer` is that of the only text source, `source` the first one; the head chooses from the `candidates`.
    """
    task = task_class(head)
    fields = source.tokenizer.common_keys.get("field") if source.tokenizer else None
    info = HeadInfo(
        answer_settings(head),
        target=head.common_keys.get("target"),
        self_supervised=is_self_supervised(head),
        same_tokenizer=head.common_keys.get("target_tokenizer") == "same",
        copies=can_copy(head),
        fields=fields if isinstance(fields, tuple) else (fields or "text",),
        rows=axis_of(source),
        numbers=source.field if source.tokenizer is None else None,
        candidates=candidates,
        old_labels=_old_labels(head),
    )
    if message := task.refuse_input(info):
        raise ConfigError([head.problem(f"{describe(head)}: {message}")])
    labels = Vocabulary(()) if info.self_supervised else task.collect_labels(info, records)
    writer, target = None, info.target or "target"
    if task.kind_type.needs_tokenizer:
        choice: Any = head.common_keys.get("target_tokenizer")
        if is_language_model_head(head) or (info.self_supervised and choice is None):
            choice = "same"
        if choice is None:
            fix = "add `target_tokenizer: same`, or {use: NAME}"
            raise UsageError(f"{head.key}: {head.use!r} answers with text; {fix}")
        if choice != "same":
            writer = fit_tokenizer(choice, lambda: ((record, target_text(record, target)) for record in records))
        elif tokenizer is None:
            message = "target_tokenizer: same needs exactly one tokenizer of the input; write {use: NAME}"
            raise ConfigError([head.problem(message)])
        else:
            writer = tokenizer
    return FittedTask(name, task.create(info, labels, writer).manifest(), labels, writer)


def _old_labels(head: Component) -> Sequence[str]:
    """Return the labels of the run that a head is initialised from; ConfigError if its answer kind differs."""
    folder = head.common_keys.get("init")
    if not folder:
        return ()
    task = Artifacts.load(folder).tasks[counterpart(head, folder).number]
    old_kind, kind, where = task.answer["kind"], task_class(head).kind_type, f"the run {relative_path(folder)}"
    if old_kind != kind.kind and not (kind.needs_tokenizer and ANSWER_KINDS[old_kind].needs_tokenizer):
        fix = "restore its old options, or delete init"
        message = f"{where} answers with {old_kind}, but this head with {kind.kind}; {fix}"
        raise ConfigError([head.problem(message)])
    if message := task_class(head).label_conflict(task.answer, answer_settings(head), where):
        raise ConfigError([head.problem(f"{message}, or delete init")])
    return task.labels


class _Source(NamedTuple):
    """Fitted artifacts of one source."""

    source: TextSource | NumericSource  # converts its records to arrays
    counts: list[int] | None  # occurrences of each token; None for rows of numbers
    longest: int  # tokens, or rows, of its longest record


def fit_artifacts(
    config: Config, records: Sequence[Record], unlabelled: Sequence[Record] = (), tokens: Path | None = None
) -> Artifacts:
    """Return the artifacts fitted to records: trained tokenizers, and alphabets, labels and other features.

    A component initialised from a run (`init`) keeps the run's tokenizer, and adds new characters and labels after the
    old.

    Args:
        config: The pipeline.
        records: Those of the training file.
        unlabelled: Those of `data.unlabelled`.
        tokens: A file for the tokens of the records of a token corpus, which are then tokenized only once.

    Raises:
        DataError: if the records lack what the heads need.
    """
    inputs, candidates, texts = by_source(config.inputs), records, records
    heads = config.head if len(inputs) == 1 else ()
    if path := config.data.candidates:
        candidates = load_records(config.data.reader, path)
        texts = [*records, *candidates]
    if unlabelled and not any(task_class(head).has_target_text for head in config.head):
        texts = [*texts, *unlabelled]
    fitted = {name: _fit_source(source, heads, texts, tokens) for name, source in inputs.items()}
    sources = {name: part.source for name, part in fitted.items()}
    featurizer: InputSource = sources[""] if "" in sources else MultiSource(sources)
    tokenizers = [*tokenizers_of(featurizer).values()]
    if len(inputs) > 1 and config.inputs[0].tokenizer:
        # A head that tags the first of several sources needs its words.
        joining = [head for head in config.head if task_class(head).joins_sources]
        _refuse(joining, (EACH_WORD,), _lacking_words(config.inputs[0], tokenizers[0]))
    shared_tokenizer = tokenizers[0] if len(tokenizers) == 1 else None
    names = [head.name if len(config.head) > 1 else "" for head in config.head]
    tasks = tuple(
        fit_task(head, name, shared_tokenizer, config.inputs[0], records, candidates)
        for name, head in zip(names, config.head, strict=True)
    )
    _fit_copying(config, featurizer, tasks)
    counts = {name: part.counts for name, part in fitted.items() if part.counts is not None}
    return Artifacts(featurizer, counts, tasks, sum(part.longest for part in fitted.values()))


def _fit_copying(config: Config, source: InputSource, tasks: Sequence[FittedTask]) -> None:
    """Give a head's copy feature the target tokenizer; ConfigError if they are incompatible."""
    copying = [(head, task) for head, task in zip(config.head, tasks, strict=True) if can_copy(head)]
    for head, task in copying:
        writer, encoder = task.target_tokenizer, replacing_encoder(config.inputs[0])
        is_same, message = head.common_keys.get("target_tokenizer") == "same", ""
        if not isinstance(source, TextSource) or writer is None:
            continue
        if encoder:
            message = f"after the encoder {encoder.use!r} there are no tokens to copy; delete that encoder"
        elif not is_same and (splits_words(source.tokenizer) or splits_words(writer)):
            message = "it copies whole tokens, but one of the two tokenizers splits words: write target_tokenizer: same"
        elif not is_same and len(copying) > 1:
            message = "several heads that copy must share a vocabulary: write target_tokenizer: same in each"
        if message:
            raise ConfigError([head.problem(f"{describe(head)}: {message}")])
        for name in declared_features(head):
            feature = source.features[name].with_target_tokenizer(is_same, tokenizer_file(task.name), writer)
            source.features[name] = feature


def _fit_source(source: Input, heads: Sequence[Component], records: Sequence[Record], tokens: Path | None) -> _Source:
    # The features that the stages declare, extended from those of the runs that `init` names.
    features: dict[str, FeatureKind] = {}
    for stage in (*source.stages, *heads):
        declared = {name: features.get(name, feature) for name, feature in declared_features(stage).items()}
        if folder := stage.common_keys.get("init"):
            older = Artifacts.load(folder).featurizer.features
            declared = {name: feature.initialise_from(older.get(name)) for name, feature in declared.items()}
        features |= declared
    if source.tokenizer is None:
        # ConfigError for heads that tag words or choose spans, on a source of numbers.
        _refuse(heads, (EACH_WORD, PASSAGE), "rows of numbers have no words; use a source with a tokenizer")
        # Features of numbers have means and deviations; DataError if the widths of records differ.
        field = str(source.field)
        numeric = {name: feature for name, feature in features.items() if feature.reads_numbers}
        if len(kinds := sorted({feature.kind for feature in numeric.values()})) > 1:
            fix = "give each kind an input of its own"
            raise ConfigError([source.stages[-1].problem(f"one input cannot be {' and '.join(kinds)} at once; {fix}")])
        rows = docs_of(NumericSource(numeric, field), records)
        fitted = {name: feature.fit(rows) for name, feature in numeric.items()}
        return _Source(NumericSource(fitted, field), None, max(map(len, rows), default=0))
    field = source.tokenizer.common_keys.get("field") or "text"
    fields = [field] if isinstance(field, str) else field

    def texts() -> Texts:
        watched = _Watched("fitting the tokenizer", records, records)
        yield from ((record, split_or_whole(record, fields, name)) for record in watched for name in fields)
        # A tokenizer shared with the target is trained on both texts.
        writing = [head for head in heads if head.common_keys.get("target_tokenizer") == "same"]
        targets = [head.common_keys.get("target") or "target" for head in writing if task_class(head).has_target_text]
        yield from ((record, target_text(record, name)) for name in targets for record in records)

    tokenizer = fit_tokenizer(source.tokenizer, texts)
    # The special tokens of heads come after all others, or at their ids in a checkpoint, and are special in a text too.
    # If tokens include the space before them, so do the special tokens.
    blank = splits_words(tokenizer)
    for token in dict.fromkeys(token for head in heads for token in declaration(head, "special_tokens")):
        tokenizer.add_special_tokens([AddedToken(token, lstrip=blank, normalized=False, special=True)])
    # ConfigError for each head whose answer kind needs words or a second text that the source does not have.
    _refuse(heads, (EACH_WORD,), _lacking_words(source, tokenizer))
    missing = ""  # the reason why there is no second text to choose tokens from
    if not source.pairs:
        fix = "make the tokenizer read two, such as field: [question, context]"
        missing = f"its answer is a span of the second text; {fix}"
    elif encoder := replacing_encoder(source):
        missing = f"after the encoder {encoder.use!r} there are no tokens to choose from; delete that encoder"
    _refuse(heads, (PASSAGE,), missing)
    lossless = all(map(reads_every_token, heads))
    splitter = TextSource(tokenizer, {name: feature.unfitted() for name, feature in features.items()}, field, lossless)
    docs = _TokenizedDocs(splitter, records) if isinstance(records, Records) else docs_of(splitter, records)
    counter = TokenCounter(tokenizer.get_vocab_size())
    if isinstance(records, Records) and tokens:
        tokens.unlink(missing_ok=True)  # of a fit that was interrupted
        token_file(tokens, splitter, records, counter.add)
    else:
        for doc in docs:
            counter.add(doc)
    if len(fields) == 2 and not lossless:
        features |= pair_features()
    words_of = TextSource(tokenizer, {}).words
    fitted = {
        name: feature.with_tokenizer(tokenizer, words_of).fit(_Watched(f"fitting the feature {name}", docs, records))
        for name, feature in features.items()
    }
    return _Source(TextSource(tokenizer, fitted, field, lossless), counter.counts(), counter.longest)


class _Watched(Iterable[Any]):
    """Records or their Docs; each pass over those of stored records, which are many, has a progress bar."""

    def __init__(self, what: str, values: Iterable[Any], records: Sequence[Record]):
        self.what, self.values, self.records = what, values, records

    def __iter__(self) -> Iterator[Any]:
        if not isinstance(self.records, StoredRecords):
            yield from self.values
            return
        with self.records.store.console.progress(self.what, len(self.records)) as tick:
            for number, value in enumerate(self.values, 1):
                yield value
                if number % TICK == 0:
                    tick(number)


class _TokenizedDocs(Iterable[Doc]):
    """Tokenized records of a file, read again at each iteration."""

    def __init__(self, splitter: TextSource, records: Sequence[Record]):
        self.splitter, self.records = splitter, records

    def __iter__(self) -> Iterator[Doc]:
        for chunk in chunks(self.records, CHUNK):
            yield from self.splitter.docs(chunk)
