"""Training records in, everything that is learned before any weight out: tokenizers, alphabets, labels, counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from seqpipe.answers.base import AnswerKind, HeadAnswer
from seqpipe.answers.multi_head import tokenizer_file
from seqpipe.answers.registry import ANSWER_KINDS, head_answer_from, joined
from seqpipe.answers.text import target_text, text_of
from seqpipe.answers.types import EACH_WORD, PASSAGE, WHOLE_TEXT, HeadInfo
from seqpipe.config.checks.attention import axis_of
from seqpipe.config.component import Input, build_component, by_source, describe
from seqpipe.config.contract import (
    can_copy,
    declared_features,
    is_language_model_head,
    is_self_supervised,
    replaces_mask,
    special_tokens,
)
from seqpipe.config.head_answers import answer_kind, answer_settings
from seqpipe.config.init_from import counterpart, relative_path
from seqpipe.config.loader import Component, Config
from seqpipe.config.run_layout import LEARNED
from seqpipe.errors import ConfigError, DataError, PluginError, UsageError
from seqpipe.features.document import Doc, Record, place_of, token_counts
from seqpipe.features.encoding import CURE, cannot_split, is_panic
from seqpipe.features.kinds.base import SENTENCES, WORDS, FeatureKind
from seqpipe.features.kinds.registry import feature_from, pair_features
from seqpipe.features.multi_source import MultiSource
from seqpipe.features.numeric_source import NumericSource
from seqpipe.features.sources import InputSource, source_from, tokenizer_file_of, tokenizers_of
from seqpipe.features.text_source import TextSource
from seqpipe.features.vocabulary import SPECIALS, UNK, Vocabulary, vocabulary_of
from seqpipe.features.word_pieces import splits_words
from seqpipe.files import read_json, write
from seqpipe.runtime.predictor import CHUNK, chunks

FILE = LEARNED
Texts = Callable[[], Iterator[tuple[Record, str | list[str]]]]  # with their records, anew at each call


@dataclass(frozen=True)
class Task:
    """What one head learns and answers with; the name of a head alone is empty."""

    name: str
    answer: Mapping[str, Any]
    labels: Vocabulary
    target_tokenizer: Tokenizer | None

    @property
    def target_vocabulary(self) -> Vocabulary | None:
        return vocabulary_of(self.target_tokenizer) if self.target_tokenizer else None

    @property
    def kind(self) -> HeadAnswer:
        return head_answer_from(self.answer, self.target_tokenizer)


@dataclass(frozen=True)
class Learned:
    """What a run knows besides its weights; a bundle is made from it.

    `longest`: how many tokens the longest text of training has.
    """

    featurizer: InputSource
    counts: Mapping[str, Sequence[int]]
    tasks: tuple[Task, ...]
    longest: int = 0

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """Of every source that is a text, by its name; that of an only one is empty."""
        tokenizers = tokenizers_of(self.featurizer)
        return {name: vocabulary_of(tokenizer, self.counts[name]) for name, tokenizer in tokenizers.items()}

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the only source; of rows of numbers, and of several sources together, there is none."""
        return self.vocabularies.get("", Vocabulary([]))

    @property
    def target_tokenizers(self) -> dict[str, Tokenizer]:
        """By the name of the head that writes with it."""
        return {task.name: task.target_tokenizer for task in self.tasks if task.target_tokenizer}

    @property
    def kind(self) -> AnswerKind:
        """The answer kind of a head alone, or of several together."""
        return joined({task.name: task.kind for task in self.tasks})

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json, a target tokenizer for each head that writes text, and learned.json."""
        for name, tokenizer in tokenizers_of(self.featurizer).items():
            write(folder / tokenizer_file_of(name), tokenizer.to_str(pretty=True))
        for name, tokenizer in self.target_tokenizers.items():
            write(folder / tokenizer_file(name), tokenizer.to_str(pretty=True))
        state = {
            "field": self.featurizer.field,
            "features": {name: feature.manifest() for name, feature in self.featurizer.features.items()},
            "counts": {name: list(counts) for name, counts in self.counts.items()},
            "longest": self.longest,
            "tasks": [
                {"name": t.name, "answer": t.answer, "labels": t.labels, "counts": t.labels.counts} for t in self.tasks
            ],
        }
        write(folder / FILE, json.dumps(state, ensure_ascii=False))

    @staticmethod
    def load(folder: Path) -> Learned:
        state = read_json(folder / FILE)
        counts = state["counts"]
        tokenizers = {name: Tokenizer.from_file(str(folder / tokenizer_file_of(name))) for name in counts}
        tasks: list[Task] = []
        writers: dict[str, Tokenizer] = {}
        for one in state["tasks"]:
            target = folder / tokenizer_file(one["name"])
            writer = Tokenizer.from_file(str(target)) if target.exists() else None
            tasks.append(Task(one["name"], one["answer"], Vocabulary(one["labels"], one["counts"]), writer))
            writers |= {target.name: writer} if writer else {}
        features = {name: feature_from(made, writers) for name, made in state["features"].items()}
        lossless = any(task.kind.is_generated for task in tasks)
        source = source_from(state["field"], features, tokenizers, lossless)
        return Learned(source, counts, tuple(tasks), state.get("longest", 0))


def learn(config: Config, records: Sequence[Record]) -> Learned:
    """Trains the tokenizers and collects alphabets and labels; DataError if the records lack what the heads learn.

    What starts from a run (`init`) takes its tokenizer as it is, and adds new characters and labels behind the old.
    """
    sources = by_source(config.inputs)
    heads = config.head if len(sources) == 1 else ()
    found = {name: _source(one, heads, records) for name, one in sources.items()}
    featurizer: InputSource = (
        found[""][0] if "" in found else MultiSource({name: source for name, (source, *_) in found.items()})
    )
    counts = {name: counted for name, (_, counted, _) in found.items() if counted is not None}
    tokenizers = [*tokenizers_of(featurizer).values()]
    same = tokenizers[0] if len(tokenizers) == 1 else None
    tasks = tuple(
        _task(head, head.name if len(config.head) > 1 else "", same, config.inputs, records) for head in config.head
    )
    _let_copy(config, featurizer, tasks)
    return Learned(featurizer, counts, tasks, sum(longest for _, _, longest in found.values()))


def _let_copy(config: Config, source: InputSource, tasks: Sequence[Task]) -> None:
    """Give the feature by which a head copies its target tokenizer; ConfigError where the two cannot go together."""
    copying = [(head, task) for head, task in zip(config.head, tasks, strict=True) if can_copy(head)]
    for head, task in copying:
        told, encoder, writer = "", _replacing(config.inputs[0]), task.target_tokenizer
        same = head.frame.get("target_tokenizer") == "same"
        if not isinstance(source, TextSource) or writer is None:
            continue
        if encoder:
            told = f"behind the encoder {encoder.use!r} there are no tokens to copy; leave that encoder out"
        elif not same and (splits_words(source.tokenizer) or splits_words(writer)):
            told = "it copies whole tokens, and one of the two tokenizers splits words: write target_tokenizer: same"
        elif not same and len(copying) > 1:
            told = "several heads copy, which can be of one vocabulary only: write target_tokenizer: same in each"
        if told:
            raise ConfigError([head.problem(f"{describe(head)}: {told}")])
        for name in declared_features(head):
            source.features[name] = source.features[name].with_target_tokenizer(same, tokenizer_file(task.name), writer)


def _source(
    one: Input, heads: Sequence[Component], records: Sequence[Record]
) -> tuple[TextSource | NumericSource, list[int] | None, int]:
    """What makes arrays of one source, how often each of its tokens occurs, and how many the longest text has."""
    found: dict[str, FeatureKind] = {}
    for stage in (*one.stages, *heads):
        mine = {name: found.get(name, feature) for name, feature in declared_features(stage).items()}
        if source := stage.frame.get("init"):
            older = Learned.load(source).featurizer.features
            mine = {name: feature.initialise_from(older.get(name)) for name, feature in mine.items()}
        found |= mine
    if one.tokenizer is None:
        _refuse_without_words(heads, "rows of numbers have no words; take a source with a tokenizer")
        rows, longest = _numbers(str(one.field), found, records)
        return rows, None, longest
    field = one.tokenizer.frame.get("field") or "text"
    fields = [field] if isinstance(field, str) else field

    def texts() -> Iterator[tuple[Record, str | list[str]]]:
        yield from ((record, _split_or_whole(record, fields, name)) for record in records for name in fields)
        yield from ((record, target_text(record, name)) for name in _shared(heads) for record in records)

    tokenizer = _with_special_tokens(_trained(one.tokenizer, texts), heads)
    _refuse_no_words(one, heads, tokenizer)
    _refuse_no_passage(one, heads)
    lossless = any(map(is_language_model_head, heads))
    unfitted = {name: feature.unfitted() for name, feature in found.items()}
    splitter = TextSource(tokenizer, unfitted, field, lossless)
    docs: Iterable[Doc] = splitter.docs(records) if isinstance(records, list) else _Split(splitter, records)
    counts, longest = token_counts(docs, tokenizer.get_vocab_size())
    if len(fields) == 2 and not lossless:
        found |= pair_features()
    features = {name: feature.fit(docs) for name, feature in found.items()}
    return TextSource(tokenizer, features, field, lossless), counts, longest


class _Split(Iterable[Doc]):
    """The records of a stream split, anew each time they are gone through."""

    def __init__(self, splitter: TextSource, records: Sequence[Record]):
        self.splitter, self.records = splitter, records

    def __iter__(self) -> Iterator[Doc]:
        for some in chunks(self.records, CHUNK):
            yield from self.splitter.docs(some)


def _with_special_tokens(tokenizer: Tokenizer, heads: Sequence[Component]) -> Tokenizer:
    """The tokenizer with the tokens that its heads need, behind all others, or where a checkpoint has them.

    In a text they stand for themselves. Where tokens hold the blank before them, one takes that blank with it.
    """
    blank = splits_words(tokenizer)
    for token in dict.fromkeys(token for head in heads for token in special_tokens(head)):
        tokenizer.add_special_tokens([AddedToken(token, lstrip=blank, normalized=False, special=True)])
    return tokenizer


def _shared(heads: Sequence[Component]) -> list[str]:
    """The fields of what heads write with the tokenizer of their source, which learns of both then."""
    writing = [head for head in heads if head.frame.get("target_tokenizer") == "same"]
    return [head.frame.get("target") or "target" for head in writing if answer_kind(head).has_target_text]


def _numbers(field: str, features: Mapping[str, FeatureKind], records: Sequence[Record]) -> tuple[NumericSource, int]:
    """A source of numbers with the means and deviations of these records, and the most rows of one.

    Raises:
        DataError: if their widths differ.
    """
    docs = NumericSource({}, field).docs(records)
    fitted = {name: feature.fit(docs) for name, feature in features.items() if feature.reads_numbers}
    return NumericSource(fitted, field), max(map(len, docs), default=0)


def _refuse_without_words(heads: Sequence[Component], cure: str) -> None:
    of_text = [head for head in heads if _subject(head) != WHOLE_TEXT]
    if of_text:
        raise ConfigError([head.problem(f"{describe(head)}: {cure}") for head in of_text])


def _subject(head: Component) -> str:
    return answer_kind(head).declared_subject(answer_settings(head))


def _refuse_no_words(one: Input, heads: Sequence[Component], tokenizer: Tokenizer) -> None:
    """ConfigError where a head is to tag words and gets something else: pieces of words, or sentences."""
    axes = {axis for stage in one.encoder for feature in declared_features(stage).values() for axis in feature.axes}
    cure = ""
    if one.pairs:
        cure = "a pair of texts has no words to tag; let the tokenizer read one field"
    elif SENTENCES in axes:
        cure = "behind an encoder that makes sentences of words there are none to tag; leave that encoder out"
    elif splits_words(tokenizer) and WORDS not in axes and one.tokenizer is not None:
        cure = (
            f"the tokenizer {one.tokenizer.use!r} splits words, and a tag belongs to a whole word; add "
            "{use: words} to the encoders, which makes words of pieces, or choose the tokenizer words"
        )
    tagging = [head for head in heads if _subject(head) == EACH_WORD]
    if cure and tagging:
        raise ConfigError([head.problem(f"{describe(head)}: {cure}") for head in tagging])


def _refuse_no_passage(one: Input, heads: Sequence[Component]) -> None:
    """ConfigError where a head is to choose tokens of a second text and there is none, or they are tokens no more."""
    replacing, told = _replacing(one), ""
    if not one.pairs:
        told = "its answer is a span of the second text; let the tokenizer read two, such as field: [question, context]"
    elif replacing:
        told = f"behind the encoder {replacing.use!r} there are no tokens to choose from; leave that encoder out"
    choosing = [head for head in heads if _subject(head) == PASSAGE]
    if told and choosing:
        raise ConfigError([head.problem(f"{describe(head)}: {told}") for head in choosing])


def _replacing(one: Input) -> Component | None:
    """The encoder behind which rows are tokens no more, if there is one."""
    return next((stage for stage in one.encoder if replaces_mask(stage)), None)


def _task(
    head: Component, name: str, source: Tokenizer | None, inputs: Sequence[Input], records: Sequence[Record]
) -> Task:
    """What a head learns; ConfigError where its answer cannot be made of this input."""
    kind, info = answer_kind(head), _head_info(head, inputs[0])
    if message := kind.refuse_input(info):
        raise ConfigError([head.problem(f"{describe(head)}: {message}")])
    labels = Vocabulary(()) if info.self_supervised else kind.collect_labels(info, records)
    tokenizer = _target_tokenizer(head, source, records, info.target or "target") if kind.needs_tokenizer else None
    return Task(name, kind.create(info, labels, tokenizer).manifest(), labels, tokenizer)


def _head_info(head: Component, source: Input) -> HeadInfo:
    fields = source.tokenizer.frame.get("field") if source.tokenizer else None
    return HeadInfo(
        answer_settings(head),
        target=head.frame.get("target"),
        self_supervised=is_self_supervised(head),
        same_tokenizer=head.frame.get("target_tokenizer") == "same",
        copies=can_copy(head),
        fields=tuple(fields) if isinstance(fields, tuple) else (fields or "text",),
        rows=axis_of(source),
        numbers=source.field if source.tokenizer is None else None,
        old_labels=_old_labels(head),
    )


def _old_labels(head: Component) -> Sequence[str]:
    """The labels of the run that a head starts from; ConfigError if it answers with something else."""
    source = head.frame.get("init")
    if not source:
        return ()
    there = counterpart(head, source)
    task = Learned.load(source).tasks[there.number]
    old_kind, kind, where = task.answer["kind"], answer_kind(head), f"the run {relative_path(source)}"
    if old_kind != kind.kind and not (kind.needs_tokenizer and ANSWER_KINDS[old_kind].needs_tokenizer):
        cure = "give its options their old values, or delete init"
        message = f"{where} answers with {old_kind}, and this head with {kind.kind}; {cure}"
        raise ConfigError([head.problem(message)])
    if message := kind.label_conflict(task.answer, answer_settings(head), where):
        raise ConfigError([head.problem(f"{message}, or delete init")])
    return task.labels


def _target_tokenizer(head: Component, source: Tokenizer | None, records: Sequence[Record], field: str) -> Tokenizer:
    chosen: Any = head.frame.get("target_tokenizer")
    if is_language_model_head(head) or (is_self_supervised(head) and chosen is None):
        chosen = "same"
    if chosen is None:
        raise UsageError(f"{head.key}: {head.use!r} answers with text; add `target_tokenizer: same`, or {{use: NAME}}")
    if chosen == "same":
        if source is None:
            told = "target_tokenizer: same means the only tokenizer, and there are several, or none; write {use: NAME}"
            raise ConfigError([head.problem(told)])
        return source
    return _trained(chosen, lambda: ((record, target_text(record, field)) for record in records))


def _trained(chosen: Component, texts: Texts) -> Tokenizer:
    """A component's tokenizer; PluginError if the special tokens are not where every vocabulary has them.

    DataError for the first text that the library panics at.
    """
    if source := chosen.frame.get("init"):
        return _old_tokenizer(chosen, source)
    component = build_component(chosen)
    try:
        tokenizer = component.train(text for _, text in texts())
    except BaseException as error:
        if not is_panic(error):
            raise
        _refuse_panic(component, [*texts()])
        told = f"{chosen.key}: {describe(chosen)} cannot be trained on these texts: {error}; {CURE}"
        raise DataError(told) from error
    whose = f"{chosen.key}: {describe(chosen)}"
    if not isinstance(tokenizer, Tokenizer):
        raise PluginError(f"{whose}: `train` must return a tokenizers.Tokenizer, not {type(tokenizer).__name__}")
    if [tokenizer.token_to_id(token) for token in SPECIALS] != list(range(len(SPECIALS))):
        raise PluginError(
            f"{whose}: the first ids must be those of {' '.join(SPECIALS)}; train it with them as special tokens"
        )
    return tokenizer


def _refuse_panic(component: Any, texts: list[tuple[Record, Any]]) -> None:
    """DataError that names the text at which the library panics, found by halving, if one text alone suffices."""

    def panic_of(some: list[tuple[Record, Any]]) -> BaseException | None:
        try:
            component.train(text for _, text in some)
        except Exception:  # what else it cannot learn from few texts is no matter
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
        raise cannot_split(text, error, place_of(record)) from error


def _old_tokenizer(chosen: Component, source: Path) -> Tokenizer:
    """The tokenizer, or a head's target tokenizer, of the run that it starts from."""
    file = tokenizer_file_of(_source_of(chosen, source))
    if chosen.key.endswith(".target_tokenizer"):
        file = tokenizer_file(Learned.load(source).tasks[counterpart(chosen, source).number].name)
    return Tokenizer.from_file(str(source / file))


def _source_of(chosen: Component, source: Path) -> str:
    """The name of the source of a run whose tokenizer is meant."""
    return "" if chosen.key.endswith(".target_tokenizer") else counterpart(chosen, source).source


def _split_or_whole(record: Record, fields: Sequence[str], field: str) -> str | list[str]:
    if tuple(fields) == ("text",) and record.get("words") is not None:
        return list(record["words"])
    return text_of(record, field)


def unknown_share(learned: Learned, docs: Sequence[Doc]) -> float:
    """The share of tokens that the vocabulary does not hold, of all sources that are texts."""
    unknown, texts = SPECIALS.index(UNK), [part for doc in docs for part in doc.parts or (doc,) if part.rows is None]
    return sum(doc.ids.count(unknown) for doc in texts) / max(1, sum(map(len, texts)))


def unwritable(learned: Learned, task: Task, records: Sequence[Record], longest: int | None) -> Iterator[str]:
    """What a head that writes texts can never write of these records' targets, a line each; nothing of other heads.

    Args:
        learned: Of the run.
        task: The head's.
        records: With their targets.
        longest: The most tokens of a text, its end included, where a caller asks for no other length.
    """
    if records:
        yield from task.kind.unwritable(records, learned.featurizer.docs(records), longest)
