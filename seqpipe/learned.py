"""Training records in, everything that is learned before any weight out: tokenizers, alphabets, labels, counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers import Kind, kind_from
from seqpipe.config import Component, Config
from seqpipe.errors import ConfigError, PluginError, UsageError
from seqpipe.feature_kinds import Segments, feature_from
from seqpipe.features import Doc, Feature, Featurizer, Record, token_counts
from seqpipe.files import read_json, write
from seqpipe.joint import Joint, tokenizer_file
from seqpipe.layout import LEARNED
from seqpipe.sources import counterpart, told
from seqpipe.subwords import splits_words
from seqpipe.targets import labels_of, text_of
from seqpipe.vocabulary import SPECIALS, UNK, Vocabulary, vocabulary_of
from seqpipe.wiring import answer_kind, built, declared, who

FILE, TOKENIZER = LEARNED, "tokenizer.json"


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
    def kind(self) -> Kind:
        return kind_from(self.answer, self.target_tokenizer)


@dataclass(frozen=True)
class Learned:
    """What a run knows besides its weights; a bundle is made from it."""

    featurizer: Featurizer
    counts: Sequence[int]
    tasks: tuple[Task, ...]

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary_of(self.featurizer.tokenizer, self.counts)

    @property
    def target_tokenizers(self) -> dict[str, Tokenizer]:
        """By the name of the head that writes with it."""
        return {task.name: task.target_tokenizer for task in self.tasks if task.target_tokenizer}

    @property
    def kinds(self) -> set[str]:
        """The answer kinds of all heads."""
        return {task.answer["kind"] for task in self.tasks}

    @property
    def kind(self) -> Kind:
        """The answer kind of a head alone, or of several together."""
        kinds = {task.name: task.kind for task in self.tasks}
        return Joint(kinds) if len(kinds) > 1 else kinds[""]

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json, a target tokenizer for each head that writes text, and learned.json."""
        write(folder / TOKENIZER, self.featurizer.tokenizer.to_str(pretty=True))
        for name, tokenizer in self.target_tokenizers.items():
            write(folder / tokenizer_file(name), tokenizer.to_str(pretty=True))
        state = {
            "field": self.featurizer.field,
            "features": {name: feature.manifest() for name, feature in self.featurizer.features.items()},
            "counts": list(self.counts),
            "tasks": [
                {"name": t.name, "answer": t.answer, "labels": t.labels, "counts": t.labels.counts} for t in self.tasks
            ],
        }
        write(folder / FILE, json.dumps(state, ensure_ascii=False))

    @staticmethod
    def load(folder: Path) -> Learned:
        state = read_json(folder / FILE)
        features = {name: feature_from(made) for name, made in state["features"].items()}
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        tasks = []
        for one in state["tasks"]:
            target = folder / tokenizer_file(one["name"])
            writer = Tokenizer.from_file(str(target)) if target.exists() else None
            tasks.append(Task(one["name"], one["answer"], Vocabulary(one["labels"], one["counts"]), writer))
        return Learned(Featurizer(tokenizer, features, state["field"]), state["counts"], tuple(tasks))


def learn(config: Config, records: Sequence[Record]) -> Learned:
    """Trains the tokenizers and collects alphabets and labels; DataError if the records lack what the heads learn.

    What starts from a run (`init`) takes its tokenizer as it is, and adds new characters and labels behind the old.
    """
    field = config.tokenizer.frame.get("field") or "text"
    fields = [field] if isinstance(field, str) else field
    texts = [_split_or_whole(record, fields, one) for record in records for one in fields]
    tokenizer = _trained(config.tokenizer, texts)
    _refuse_no_words(config, tokenizer)
    _refuse_no_passage(config)
    docs = Featurizer(tokenizer, {}, field).docs(records)
    found: dict[str, Feature] = {}
    for stage in (*config.embedding, *config.encoder, *config.head):
        mine = {name: found.get(name, feature) for name, feature in declared(stage).items()}
        if source := stage.frame.get("init"):
            older = Learned.load(source).featurizer.features
            mine = {name: feature.following(older.get(name)) for name, feature in mine.items()}
        found |= mine
    found |= {"segments": Segments()} if len(fields) == 2 else {}
    features = {name: feature.learn(word for doc in docs for word in doc.words) for name, feature in found.items()}
    tasks = tuple(_task(head, head.name if len(config.head) > 1 else "", tokenizer, records) for head in config.head)
    return Learned(Featurizer(tokenizer, features, field), token_counts(docs, tokenizer.get_vocab_size()), tasks)


def _refuse_no_words(config: Config, tokenizer: Tokenizer) -> None:
    """ConfigError where a head is to tag words and gets something else: pieces of words, or sentences."""
    kinds = {feature.kind for stage in config.encoder for feature in declared(stage).values()}
    cure = ""
    if config.tokenizer.pairs:
        cure = "a pair of texts has no words to tag; let the tokenizer read one field"
    elif "sentences" in kinds:
        cure = "behind an encoder that makes sentences of words there are none to tag; leave that encoder out"
    elif splits_words(tokenizer) and "pieces" not in kinds:
        cure = (
            f"the tokenizer {config.tokenizer.use!r} splits words, and a tag belongs to a whole word; add "
            "{use: words} to the encoders, which makes words of pieces, or choose the tokenizer words"
        )
    tagging = [head for head in config.head if answer_kind(head) in ("tags", "spans")]
    if cure and tagging:
        raise ConfigError([head.problem(f"{who(head)}: {cure}") for head in tagging])


def _refuse_no_passage(config: Config) -> None:
    """ConfigError where a head is to choose tokens of a second text and there is none, or they are tokens no more."""
    replacing = [stage for stage in config.encoder if "mask" in getattr(stage.cls, "returns", ())]
    told = ""
    if not config.tokenizer.pairs:
        told = "its answer is a span of the second text; let the tokenizer read two, such as field: [question, context]"
    elif replacing:
        told = f"behind the encoder {replacing[0].use!r} there are no tokens to choose from; leave that encoder out"
    choosing = [head for head in config.head if answer_kind(head) == "span"]
    if told and choosing:
        raise ConfigError([head.problem(f"{who(head)}: {told}") for head in choosing])


def _task(head: Component, name: str, source: Tokenizer, records: Sequence[Record]) -> Task:
    answer, target = answer_kind(head), head.frame.get("target")
    labels = labels_of(head, records, _old_labels(head))
    writer = _target_tokenizer(head, source, records, target or "target") if answer == "text" else None
    manifest = {"kind": answer, "target": target} | ({"labels": list(labels)} if labels else {})
    if answer == "label" and head.options.get("out_of_scope") is not None:
        manifest["out_of_scope"] = head.options["out_of_scope"]
    return Task(name, manifest, labels, writer)


def _old_labels(head: Component) -> Sequence[str]:
    """The labels of the run that a head starts from; ConfigError if it answers with something else."""
    source = head.frame.get("init")
    if not source:
        return ()
    there = counterpart(head, source)
    task = Learned.load(source).tasks[there.number]
    was, kind, where = task.answer["kind"], answer_kind(head), f"the run {told(source)}"
    scheme = there.options.get("scheme")
    if was != kind:
        cure = "give its options their old values, or delete init"
        raise ConfigError([head.problem(f"{where} answers with {was}, and this head with {kind}; {cure}")])
    if kind == "spans" and scheme != head.options.get("scheme"):
        raise ConfigError([head.problem(f"the tags of {where} are {scheme}; set scheme: {scheme}, or delete init")])
    return task.labels


def _target_tokenizer(head: Component, source: Tokenizer, records: Sequence[Record], field: str) -> Tokenizer:
    chosen = head.frame.get("target_tokenizer")
    if chosen is None:
        raise UsageError(f"{head.key}: {head.use!r} answers with text; add `target_tokenizer: same`, or {{use: NAME}}")
    return source if chosen == "same" else _trained(chosen, (text_of(record, field) for record in records))


def _trained(chosen: Component, texts: Iterable[str | list[str]]) -> Tokenizer:
    """A component's tokenizer; PluginError if the special tokens are not where every vocabulary has them."""
    if source := chosen.frame.get("init"):
        return _old_tokenizer(chosen, source)
    tokenizer = built(chosen).train(texts)
    whose = f"{chosen.key}: {who(chosen)}"
    if not isinstance(tokenizer, Tokenizer):
        raise PluginError(f"{whose}: `train` must return a tokenizers.Tokenizer, not {type(tokenizer).__name__}")
    if [tokenizer.token_to_id(token) for token in SPECIALS] != list(range(len(SPECIALS))):
        raise PluginError(
            f"{whose}: the first ids must be those of {' '.join(SPECIALS)}; train it with them as special tokens"
        )
    return tokenizer


def _old_tokenizer(chosen: Component, source: Path) -> Tokenizer:
    """The tokenizer, or a head's target tokenizer, of the run that it starts from."""
    file = TOKENIZER
    if chosen.key.endswith(".target_tokenizer"):
        file = tokenizer_file(Learned.load(source).tasks[counterpart(chosen, source).number].name)
    return Tokenizer.from_file(str(source / file))


def _split_or_whole(record: Record, fields: Sequence[str], field: str) -> str | list[str]:
    if tuple(fields) == ("text",) and record.get("words") is not None:
        return list(record["words"])
    return text_of(record, field)


def unknown_share(learned: Learned, docs: Sequence[Doc]) -> float:
    """The share of tokens that the vocabulary does not hold."""
    unknown = SPECIALS.index(UNK)
    total = sum(len(doc) for doc in docs)
    return sum(doc.ids.count(unknown) for doc in docs) / max(1, total)
