"""Training records in, everything that is learned before any weight out: tokenizers, alphabets, labels, counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from seqpipe import schemes
from seqpipe.answers import Kind, kind_from, label_of
from seqpipe.config import Component, Config
from seqpipe.errors import DataError, PluginError, UsageError
from seqpipe.features import Doc, Feature, Featurizer, Record, feature_from, token_counts
from seqpipe.files import read_json, write
from seqpipe.vocabulary import EOS, SPECIALS, UNK, Vocabulary, clean, vocabulary_of
from seqpipe.wiring import answer_kind, built

FILE = "learned.json"
Targets = dict[str, list[int] | int]  # by name: a number for each token, or one for the record


@dataclass(frozen=True)
class Learned:
    """What a run knows besides its weights; a bundle is made from it."""

    featurizer: Featurizer
    counts: Sequence[int]
    answer: Mapping[str, Any]
    labels: tuple[str, ...]
    target_tokenizer: Tokenizer | None

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary_of(self.featurizer.tokenizer, self.counts)

    @property
    def target_vocabulary(self) -> Vocabulary | None:
        return vocabulary_of(self.target_tokenizer) if self.target_tokenizer else None

    @property
    def kind(self) -> Kind:
        return kind_from(self.answer, self.target_tokenizer)

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json, target_tokenizer.json where there is one, and learned.json."""
        write(folder / "tokenizer.json", self.featurizer.tokenizer.to_str(pretty=True))
        if self.target_tokenizer:
            write(folder / "target_tokenizer.json", self.target_tokenizer.to_str(pretty=True))
        state = {
            "field": self.featurizer.field,
            "features": {name: feature.manifest() for name, feature in self.featurizer.features.items()},
            "counts": list(self.counts),
            "answer": self.answer,
            "labels": self.labels,
        }
        write(folder / FILE, json.dumps(state, ensure_ascii=False))

    @staticmethod
    def load(folder: Path) -> Learned:
        state = read_json(folder / FILE)
        features = {name: feature_from(made) for name, made in state["features"].items()}
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        target = folder / "target_tokenizer.json"
        return Learned(
            Featurizer(tokenizer, features, state["field"]),
            state["counts"],
            state["answer"],
            tuple(state["labels"]),
            Tokenizer.from_file(str(target)) if target.exists() else None,
        )


def learn(config: Config, records: Sequence[Record]) -> Learned:
    """Trains the tokenizers and collects alphabets and labels; DataError if the records lack what the head learns."""
    field = config.tokenizer.frame.get("field") or "text"
    head = config.head[0]
    texts = [_split_or_whole(record, field) for record in records]
    tokenizer = _trained(config.tokenizer, texts)
    docs = Featurizer(tokenizer, {}, field).docs(records)
    declared: dict[str, Feature] = {}
    for stage in (*config.embedding, *config.encoder, *config.head):
        declared |= getattr(stage.cls, "features", {})
    features = {name: feature.learn(word for doc in docs for word in doc.words) for name, feature in declared.items()}
    answer, target = answer_kind(head), head.frame.get("target")
    target_tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()
    if answer == "text":
        target_tokenizer = _target_tokenizer(head, tokenizer, records, target or "target")
    else:
        labels = _labels(records, answer, head.options.get("scheme", "none"), target)
    manifest = {"kind": answer, "target": target} | ({"labels": list(labels)} if labels else {})
    counts = token_counts(docs, tokenizer.get_vocab_size())
    return Learned(Featurizer(tokenizer, features, field), counts, manifest, labels, target_tokenizer)


def targets(learned: Learned, head: Component, misaligned: str) -> Callable[[Record, Doc], Targets]:
    """The function that makes what the head learns from a record."""
    target = head.frame.get("target")
    if learned.target_tokenizer:
        return _text_target(learned.target_tokenizer, target or "target")
    scheme, ids = head.options.get("scheme", "none"), {label: i for i, label in enumerate(learned.labels)}

    def label(record: Record, doc: Doc) -> Targets:
        return {"label": ids[label_of(record, target or "label")]}

    def tags(record: Record, doc: Doc) -> Targets:
        if scheme == "none":
            return {"tags": [ids[tag] for tag in _present(record, target or "tags")]}
        spans = _word_spans(record, doc, target, misaligned)
        try:
            return {"tags": [ids[tag] for tag in schemes.to_tags(spans, len(doc), scheme)]}
        except ValueError as error:
            raise DataError(
                f"{record.get('where', 'record')}: {error} (in words); correct or remove one of the spans"
            ) from error

    return label if learned.answer["kind"] == "label" else tags


def _text_target(tokenizer: Tokenizer, field: str) -> Callable[[Record, Doc], Targets]:
    end = SPECIALS.index(EOS)

    def text(record: Record, doc: Doc) -> Targets:
        ids = tokenizer.encode(_text_of(record, field), add_special_tokens=False).ids
        return {"target_ids": [*ids, end], "target_mask": [1] * (len(ids) + 1)}

    return text


def _word_spans(record: Record, doc: Doc, target: str | None, misaligned: str) -> list[schemes.Span]:
    """The record's spans over words; a character span that cuts a word is an error, widened, or skipped as told."""
    tags = record.get(target or "tags")
    if tags is not None:
        return schemes.spans(tags)
    found = []
    for span in _present(record, target or "spans"):
        inside = [i for i, (a, b) in enumerate(doc.offsets) if a < span["end"] and b > span["start"]]
        exact = inside and doc.offsets[inside[0]][0] == span["start"] and doc.offsets[inside[-1]][1] == span["end"]
        if not exact and misaligned == "error":
            cut = doc.text[span["start"] : span["end"]]
            raise DataError(
                f"{record.get('where', 'record')}: span {cut!r} ({span['label']}) cuts a word of "
                f"{[doc.words[i] for i in inside]}; set data.misaligned to widen or skip, or use another tokenizer"
            )
        if exact or (inside and misaligned == "widen"):
            found.append((span["label"], inside[0], inside[-1] + 1))
    return found


def _labels(records: Sequence[Record], answer: str, scheme: schemes.Scheme, target: str | None) -> tuple[str, ...]:
    if answer == "label":
        return tuple(sorted({label_of(record, target or "label") for record in records}))
    if answer == "tags":
        return tuple(sorted({tag for record in records for tag in _present(record, target or "tags")}))
    names: set[str] = set()
    for record in records:
        tags = record.get(target or "tags")
        names |= (
            {label for label, *_ in schemes.spans(tags)}
            if tags is not None
            else {span["label"] for span in _present(record, target or "spans")}
        )
    if not names:
        raise DataError(
            "the training data holds no span at all; is the tag column right? See the reader's option `tags`"
        )
    return schemes.tag_set(sorted(names), scheme)


def _target_tokenizer(head: Component, source: Tokenizer, records: Sequence[Record], field: str) -> Tokenizer:
    chosen = head.frame.get("target_tokenizer")
    if chosen is None:
        raise UsageError(f"{head.key}: {head.use!r} answers with text; add `target_tokenizer: same`, or {{use: NAME}}")
    return source if chosen == "same" else _trained(chosen, (_text_of(record, field) for record in records))


def _trained(chosen: Component, texts: Iterable[str | list[str]]) -> Tokenizer:
    """A component's tokenizer; PluginError if the special tokens are not where every vocabulary has them."""
    tokenizer = built(chosen).train(texts)
    who = f"{chosen.key}: {chosen.kind} {chosen.use!r} of {chosen.offer.distribution}"
    if not isinstance(tokenizer, Tokenizer):
        raise PluginError(f"{who}: `train` must return a tokenizers.Tokenizer, not {type(tokenizer).__name__}")
    if [tokenizer.token_to_id(token) for token in SPECIALS] != list(range(len(SPECIALS))):
        raise PluginError(
            f"{who}: the first ids must be those of {' '.join(SPECIALS)}; train it with them as special tokens"
        )
    return tokenizer


def _split_or_whole(record: Record, field: str) -> str | list[str]:
    if field == "text" and record.get("words") is not None:
        return list(record["words"])
    return _text_of(record, field)


def _text_of(record: Record, field: str) -> str:
    text = _present(record, field)
    if not isinstance(text, str):
        raise DataError(f"{record.get('where', 'record')}: field {field!r} must be a text, not {type(text).__name__}")
    return clean(text)


def _present(record: Record, field: str) -> Any:
    if record.get(field) is None:
        raise DataError(f"{record.get('where', 'record')}: no field {field!r}; the record has: {', '.join(record)}")
    return record[field]


def unknown_share(learned: Learned, docs: Sequence[Doc]) -> float:
    """The share of tokens that the vocabulary does not hold."""
    unknown = SPECIALS.index(UNK)
    total = sum(len(doc) for doc in docs)
    return sum(doc.ids.count(unknown) for doc in docs) / max(1, total)
