"""Training examples and their batches, and texts as one row of tokens on disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.text import RECORD_CONTINUES, concatenate
from seqpipe.answers.types import Array, SpanRules, Targets, UnseenLabelError
from seqpipe.config.contract import answer_settings, build_component, changes_by_epoch, decode_options
from seqpipe.config.loader import Component, Config
from seqpipe.errors import DataError
from seqpipe.features.document import (
    Arrays,
    Doc,
    DroppedSpans,
    Overlaps,
    Record,
    first_tokens,
    resolve_overlaps,
    words_of,
)
from seqpipe.features.mapped import Docs, JoinedDocs, Ragged, StoredRecords, changed_while_read, plain_doc, write_values
from seqpipe.features.parts import DataPath, read_part
from seqpipe.features.sources import InputSource, sources_of, tokenizers_of
from seqpipe.features.spans import offsets_of
from seqpipe.features.vocabulary import BOS, EOS, SPECIALS
from seqpipe.files import is_whole, make_folder, remove_partial_files, write_sha256, writing
from seqpipe.runtime.decode_options import MAX_LENGTH
from seqpipe.runtime.predictor import chunks
from seqpipe.training.artifacts import Artifacts

Batch = dict[str, torch.Tensor]
SOFT_TARGETS = "teacher."  # prefix of a teacher's answers among targets, after that of the head
TICK = 1_000  # examples between two reports of progress
QUADRATIC_FROM = 512  # tokens of a text, from which what is quadratic counts more than the rest of a stage


@dataclass(frozen=True)
class Example:
    """One training example: the tokenized text, its targets, the candidate in its batch, a teacher's distributions."""

    doc: Doc
    targets: Targets  # none if only a teacher answers
    match: Example | None = None
    # A teacher's probabilities (n, …, L) of the text or its n words, by name.
    soft_targets: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    where: str = ""  # number of its record, and its file and line

    @property
    def length(self) -> int:
        longest = max(
            [len(self.doc.ids), *(len(target) for target in self.targets.values() if isinstance(target, list))]
        )
        return 2 * max(longest, self.match.length) if self.match else longest


def longest_of(examples: Iterable[Example]) -> Example:
    """Return the first of the longest examples."""
    return max(examples, key=lambda example: example.length)


def shorten(config: Config, artifacts: Artifacts, example: Example) -> list[Example]:
    """Return an example within `train.max_tokens`: itself, its first tokens, or its parts; spans are whole.

    Raises:
        DataError: `train.too_long` is error, or the task does not allow the parts.
    """
    most, rule = config.train.max_tokens, config.train.too_long
    if most is None or example.length <= most:
        return [example]
    kinds, doc = [task.kind for task in artifacts.tasks], example.doc.first
    problem = f"{example.where}: {example.length:,} tokens exceed train.max_tokens: {most:,}"
    splits = all(kind.tags_words or kind.self_supervised for kind in kinds)
    if rule == "error":
        fix = "truncate or split" if splits else "truncate"
        raise DataError(f"{problem}; shorten the text, raise train.max_tokens, or set train.too_long: {fix}")
    arrays, continues = dict[str, Array](), dict[str, Any]()
    for head, task, kind in zip(config.head, artifacts.tasks, kinds, strict=True):
        prefix = f"{task.name}." if task.name else ""
        for name, declared in task.head_task.declared_targets(answer_settings(head)).items():
            arrays[prefix + name] = arrays[f"{prefix}{SOFT_TARGETS}{name}"] = declared
        p = "(B, T, L)" if kind.tags_words or kind.is_generated else "(B, L)"
        arrays[f"{prefix}{SOFT_TARGETS}p"] = Array(p, "float32")
        if "scheme" in kind.manifest() and f"{prefix}tags" in example.targets:  # an unlabelled text has none
            continues[f"{prefix}tags"] = schemes.continues(kind.labels)
    points = any(arrays[name].values == "position" for name in example.targets)
    if points or example.doc.parts or doc.second is not None or doc.rows is not None:
        reason = "its answer is a place in it" if points else "it is not a single text"
        raise DataError(f"{problem}, and it cannot be cut, since {reason}; shorten or remove it")
    if rule == "split" and not splits:
        raise DataError(f"{problem}, and its answer is about all of it; set train.too_long: truncate")

    def part(doc: Doc, rows: slice) -> Example:
        inside = {"T": rows, "N": slice(most)}
        targets = {name: _cut(value, arrays[name].axes[1:], inside) for name, value in example.targets.items()}
        answers = {name: _cut(value, arrays[name].axes[1:], inside) for name, value in example.soft_targets.items()}
        return replace(example, doc=doc, targets=targets, soft_targets=answers)

    if rule == "truncate" and not any(kind.tags_words for kind in kinds):
        is_generated = artifacts.kind.is_generated  # then the graph reads [BOS] first
        first = first_tokens(doc, most - is_generated)
        return [part(first, slice(most if is_generated else len(first.word_offsets)))]
    tags: Any = example.targets
    bounds = [*(range(len(doc)) if doc.starts is None else doc.starts), len(doc)]
    parts, begin, count = list[Example](), 0, len(doc.word_offsets)
    while begin < count and (rule == "split" or not parts):
        end = bisect_right(bounds, bounds[begin] + most) - 1
        while begin < end < count and any(after[tags[k][end - 1], tags[k][end]] for k, after in continues.items()):
            end -= 1
        if end == begin:
            raise DataError(f"{problem}, and so does a span or a word of it; raise train.max_tokens, or correct it")
        parts.append(part(words_of(doc, begin, end), slice(begin, end)))
        begin = end
    return parts


def _cut(values: Any, axes: Sequence[str], inside: Mapping[str, slice]) -> Any:
    """Return the part of nested lists or of a tensor with these axes that is inside the slices of some of them."""
    values = values[inside[axes[0]]] if axes and axes[0] in inside else values
    return [_cut(row, axes[1:], inside) for row in values] if inside.keys() & axes[1:] else values


def load_records(
    reader: Component,
    path: DataPath,
    most: int | None = None,
    overlaps: Overlaps = "error",
    left_out: list[str] | None = None,
) -> list[Record]:
    """Return the records of a file, or its first `most`; DataError if there are none.

    The errors of records that cannot be read are added to `left_out`; without it the first one is raised.
    """
    return list(itertools.islice(Records(reader, path, overlaps, left_out), most))


def epoch_examples(config: Config, artifacts: Artifacts) -> Callable[[int], Sequence[Example]] | None:
    """Return the function that makes the examples of an epoch; None if the reader yields the same ones in each."""
    reader, path = build_component(config.data.reader), config.data.train
    if not changes_by_epoch(reader, path):
        return None
    if not isinstance(path, Path):
        fix = "shares, folds, lists and data.add cannot divide; give data.train, data.dev and data.test a file each"
        raise DataError(f"{path}: its reader yields other records in each epoch, which {fix}")
    return lambda number: examples(
        config, artifacts, list(resolve_overlaps(reader.epoch(path, number), config.data.overlaps))
    )


def docs_of(featurizer: InputSource, records: Sequence[Record]) -> Sequence[Doc]:
    """Return the Docs of records; those of stored records are made once, and stored too."""
    if not isinstance(records, StoredRecords):
        return featurizer.docs(records)
    docs = [records.docs(source) for source in sources_of(featurizer).values()]
    return docs[0] if len(docs) == 1 else JoinedDocs(docs)


def examples(
    config: Config,
    artifacts: Artifacts,
    records: Sequence[Record],
    skip_unseen: bool = False,
    warn: Callable[[str], object] = lambda line: None,
    soft_targets: Sequence[Mapping[str, Any]] = (),
    is_labelled: bool = True,
    facts: TargetFacts | None = None,
) -> list[Example]:
    """Return records as examples, without empty texts and records to be skipped.

    With `skip_unseen`, records with labels that training never saw are left out. `warn` is called with a line about
    empty texts, and one about spans that were widened, skipped or dropped. `soft_targets` has a teacher's answer to
    each record by head: a distribution, or a text, which is a second target. Unlabelled records have no other target.
    `facts` receives what is known of their targets.
    """
    maker = ExampleMaker(config, artifacts, skip_unseen, soft_targets, is_labelled, facts)
    return [example for chunk in _make_examples(maker, records, warn) for _, example in chunk]


def _make_examples(
    maker: ExampleMaker, records: Sequence[Record], warn: Callable[[str], object]
) -> Iterator[list[tuple[int | None, Example]]]:
    """Yield the examples of `examples` in chunks, as `ExampleMaker.make` returns them."""
    fields = records.fields if isinstance(records, StoredRecords) else ("spans",)
    offsets, message = offsets_of(records if "spans" in fields else ())
    config, featurizer = maker.config, maker.artifacts.featurizer
    if offsets != "characters":
        message = f"{config.data.train}: {message}; set data.offsets: {offsets}"
        if config.data.misaligned == "error":
            raise DataError(message)
        warn(message)
    stored = iter(docs_of(featurizer, records)) if isinstance(records, StoredRecords) else None
    for chunk in chunks(records, _RECORDS_PER_CHUNK):
        docs = list(itertools.islice(stored, len(chunk))) if stored else featurizer.docs(chunk)
        yield maker.make(chunk, docs)
    for line in maker.messages():
        warn(line)


@dataclass
class TargetFacts:
    """Facts about target texts, found while examples are made of them."""

    is_examined: bool = True  # whether there are messages too
    longest: list[int] = field(default_factory=list)  # tokens of the longest one of each head; 0 without such targets
    messages: list[str] = field(default_factory=list)  # about those that a head cannot generate


class ExampleMaker:
    """Makes examples of records, which may come in parts, and counts those that it leaves out or changes."""

    def __init__(
        self,
        config: Config,
        artifacts: Artifacts,
        skip_unseen: bool = False,
        soft_targets: Sequence[Mapping[str, Any]] = (),
        is_labelled: bool = True,
        facts: TargetFacts | None = None,
    ):
        self.config, self.artifacts, self.skip_unseen = config, artifacts, skip_unseen
        self.soft_targets, self.is_labelled, self.facts = soft_targets, is_labelled, facts or TargetFacts(False)
        self.rules = [SpanRules(config.data.misaligned, config.data.overlaps) for _ in config.head]
        self.makers = []
        for head, task, rules in zip(config.head, artifacts.tasks, self.rules, strict=True):
            make = task.head_task.target_maker(answer_settings(head), rules)
            self.makers.append((f"{task.name}." if task.name else "", make))
        limits = [decode_options(head.cls).get(MAX_LENGTH) for head in config.head]
        every = [
            task.head_task.target_census(limit.default if limit else None, self.facts.is_examined)
            for task, limit in zip(artifacts.tasks, limits, strict=True)
        ]
        self.censuses = {number: census for number, census in enumerate(every) if census}  # by the number of a head
        self.records = 0  # that were read
        self.count = self.empty = self.unseen = self.long = 0
        self.first_empty = self.first_long = ""
        self.dropped = DroppedSpans(config.data.overlaps)

    def make(self, records: Sequence[Record], docs: Sequence[Doc]) -> list[tuple[int | None, Example]]:
        """Return the examples of a chunk of records, each with the position of its record, or None for a part."""
        self.dropped.add(records)
        first, self.records = self.records, self.records + len(records)
        for record, doc in zip(records, docs, strict=True):
            if not doc.ids:
                self.first_empty = self.first_empty or str(record.get("where", "no file and line known"))
                self.empty += 1
        filled = [i for i, doc in enumerate(docs) if doc.ids]
        records, docs = [records[i] for i in filled], [docs[i] for i in filled]
        columns = [make(records, docs) for _, make in self.makers] if self.is_labelled else []
        targets: Iterable[tuple[Any, ...]] = zip(*columns, strict=True) if columns else itertools.repeat(())
        soft_targets = self._soft_targets([first + i for i in filled], records, docs)
        made, counted = list[tuple[int | None, Example]](), list[Any]()
        for i, record, doc, by_head, soft in zip(filled, records, docs, targets, soft_targets, strict=False):
            error = next((target for target in by_head if isinstance(target, DataError)), None)
            if self.skip_unseen and isinstance(error, UnseenLabelError):
                self.unseen += 1
                continue
            if error is not None:
                raise error
            if None in by_head:
                continue
            if by_head:
                counted.append((record, doc, by_head))
            heads = zip(self.makers, by_head, strict=False)
            named = {prefix + name: value for (prefix, _), target in heads for name, value in target.items()}
            rows = {name: value for name, value in soft.items() if isinstance(value, torch.Tensor)}
            named |= {name: value for name, value in soft.items() if name not in rows}
            if self.soft_targets and not (named or rows):
                continue
            place = f"record {first + i + 1:,}" + (f" ({record['where']})" if "where" in record else "")
            example = Example(doc, named, where=place, soft_targets=rows)
            parts = [example] if self.skip_unseen else shorten(self.config, self.artifacts, example)
            if parts != [example]:
                self.long, self.first_long = self.long + 1, self.first_long or place
            made += [(first + i if part.doc is doc else None, part) for part in parts]
        self.count += len(made)
        if counted:
            records, docs, targets = zip(*counted, strict=True)
            for number, census in self.censuses.items():
                census.add(records, docs, [by_head[number] for by_head in targets])
        return made

    def _soft_targets(
        self, positions: Sequence[int], records: Sequence[Record], docs: Sequence[Doc]
    ) -> list[dict[str, Any]]:
        """Return a teacher's distributions for each record, and the targets made of its texts, by name."""
        rows: list[dict[str, Any]] = [{} for _ in positions]
        if not self.soft_targets:
            return rows
        for task, (prefix, make) in zip(self.artifacts.tasks, self.makers, strict=True):
            texts = dict[int, str]()
            for i, position in enumerate(positions):
                answer = self.soft_targets[position][task.name]
                if isinstance(answer, torch.Tensor):
                    rows[i][f"{prefix}{SOFT_TARGETS}p"] = answer
                elif answer.strip():  # an empty text is no target
                    texts[i] = answer
            answered = [{**records[i], task.kind.target or "target": text} for i, text in texts.items()]
            for i, targets in zip(texts, make(answered, [docs[i] for i in texts]), strict=True):
                if isinstance(targets, DataError):
                    raise targets
                rows[i] |= {f"{prefix}{SOFT_TARGETS}{name}": value for name, value in (targets or {}).items()}
        return rows

    def messages(self) -> Iterator[str]:
        """Yield a line about each group of records that were left out or changed; DataError if no example remains."""
        settings = self.config.train
        self.facts.longest = [0] * len(self.makers)
        for number, census in self.censuses.items():
            self.facts.longest[number] = census.most
            for level, message in census.messages():
                self.facts.messages.append(f"{level}{self.config.head[number].key}: {message}")
        if self.empty:
            message = f"{self.empty:,} of {self.records:,} records have no tokens, and are left out of training"
            yield f"{message}; the first: {self.first_empty}"
        if self.long:
            cut = "truncated" if settings.too_long == "truncate" else "split"
            texts = f"{self.long:,} texts of more than {settings.max_tokens:,} tokens are {cut}"
            yield f"{texts}; the first: {self.first_long}"
        spans = [line for rule in self.rules for line in rule.messages()]
        yield from dict.fromkeys([*self.dropped.messages(), *spans])  # two heads may have the same
        if not self.count and not self.unseen:
            data = self.config.data
            file = data.dev if self.skip_unseen else data.train if self.is_labelled else data.unlabelled
            raise DataError(f"{file}: every text is empty, or has no target")


class MappedExamples(Sequence[Example]):
    """Examples in memory-mapped files, with arrays of their lengths and of their groups: those with the same targets.

    It is pickled as its folder and its Docs, so that another process opens the same files.
    """

    def __init__(self, folder: Path, docs: Sequence[Doc]):
        self.folder, self.docs = folder, docs
        self.lengths, self.groups = (np.fromfile(folder / name, np.int32) for name in ("lengths", "groups"))
        self._values: Ragged[Any] = Ragged(folder / "examples")

    def __reduce__(self) -> Any:
        return type(self), (self.folder, self.docs)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number, targets, where, part = self._values[index]
        return Example(self.docs[number] if part is None else Docs.decode(part), targets, where=where)


def mapped_examples(
    config: Config,
    artifacts: Artifacts,
    records: StoredRecords,
    skip_unseen: bool = False,
    warn: Callable[[str], object] = lambda line: None,
    facts: TargetFacts | None = None,
) -> MappedExamples:
    """Return what `examples` returns, in files that are written once for the same records, tokenizers and labels."""
    facts = facts or TargetFacts(False)
    docs, settings, store = docs_of(artifacts.featurizer, records), config.train, records.store
    writers = [task.target_tokenizer and task.target_tokenizer.to_str() for task in artifacts.tasks]
    tasks = [
        [task.name, task.answer, task.labels, answer_settings(h)]
        for task, h in zip(artifacts.tasks, config.head, strict=True)
    ]
    fitted = json.dumps([tasks, writers], sort_keys=True, default=str)
    key = {
        "examples": [records.docs(source).path.parent.name for source in sources_of(artifacts.featurizer).values()],
        "records": records.key,
        "tasks": hashlib.sha256(fitted.encode("utf-8", "surrogatepass")).hexdigest(),
        "rules": [config.data.misaligned, config.data.overlaps, settings.max_tokens, settings.too_long, skip_unseen],
        "examined": facts.is_examined,
    }

    def make_files(folder: Path) -> None:
        lengths, groups, kinds, messages = array("i"), array("i"), dict[tuple[str, ...], int](), list[str]()

        def values() -> Iterator[list[Any]]:
            maker = ExampleMaker(config, artifacts, skip_unseen, facts=facts)
            with store.console.progress("making examples", len(records)) as tick:
                for chunk in _make_examples(maker, records, messages.append):
                    rows = []
                    for number, example in chunk:
                        lengths.append(example.length)
                        groups.append(kinds.setdefault(tuple(example.targets), len(kinds)))
                        part = plain_doc(example.doc) if number is None else None
                        rows.append((number, dict(example.targets), example.where, part))
                    yield rows
                    tick(len(lengths))

        write_values(folder / "examples", itertools.chain.from_iterable(values()))
        for name, numbers in (("lengths", lengths), ("groups", groups)):
            (folder / name).write_bytes(np.array(numbers, np.int32).tobytes())
        targets = {"longest": facts.longest, "messages": facts.messages}
        (folder / "facts.json").write_text(json.dumps({"messages": messages, "targets": targets}))

    folder = store.make(key, make_files)
    known = json.loads((folder / "facts.json").read_text())
    facts.longest, facts.messages = known["targets"]["longest"], known["targets"]["messages"]
    for line in known["messages"]:
        warn(line)
    return MappedExamples(folder, docs)


class Order(Sequence[list[int]]):
    """The batches of an epoch, as lists of positions, in arrays: four bytes a position."""

    def __init__(self, positions: np.ndarray, bounds: np.ndarray, batches: np.ndarray):
        self.positions, self.bounds, self.batches = positions, bounds, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Order(self.positions, self.bounds, self.batches[index])
        batch = self.batches[index]
        return self.positions[self.bounds[batch] : self.bounds[batch + 1]].tolist()

    def __eq__(self, order: object) -> bool:
        return isinstance(order, Sequence) and [*self] == [*order]

    __hash__ = None  # type: ignore[assignment]


@dataclass(eq=False)
class Batches:
    """Batches of similar lengths within a budget of padded tokens."""

    artifacts: Artifacts
    data: Sequence[Example]  # those of the first epoch if epochs differ
    tokens: int  # the budget
    most: int | None  # examples of a batch; None: limited by the budget only
    seed: int  # of the order
    epoch_examples: Callable[[int], Sequence[Example]] | None = None  # returns the examples of an epoch
    epoch: int = field(default=0, init=False)  # the epoch of `data`
    quadratic: bool = False  # whether a stage costs the square of the length
    epoch_batches: int | None = None  # batches of an epoch; None: those of one pass over the examples

    stateful = False  # whether recurrent states are carried from a batch to the next one of the epoch

    def cost(self, length: int) -> int:
        """Return the share of a text in the budget: its tokens, and above QUADRATIC_FROM, if so, their square."""
        return length * max(length, QUADRATIC_FROM) // QUADRATIC_FROM if self.quadratic else length

    @property
    def lengths(self) -> np.ndarray:
        """The length of each example."""
        if isinstance(self.data, MappedExamples):
            return self.data.lengths
        return np.array([example.length for example in self.data], np.int32)

    def order(self, epoch: int) -> Sequence[list[int]]:
        """Return the batches of an epoch as positions, of as many passes as it needs: a function of seed and epoch."""
        if self.epoch_examples is not None and epoch != self.epoch:
            self.data, self.epoch = self.epoch_examples(epoch), epoch
        random = np.random.default_rng((self.seed, epoch))
        if self.epoch_batches is None:
            return self.one_pass(random)
        passes = (self.one_pass(random) for _ in itertools.count())
        return list(itertools.islice(itertools.chain.from_iterable(passes), self.epoch_batches))

    def one_pass(self, random: np.random.Generator) -> Order:
        """Return the batches of a pass over all examples, in random order."""
        size = len(self.data)
        if isinstance(self.data, MappedExamples):
            groups = self.data.groups
        else:
            kinds: dict[tuple[str, ...], int] = {}  # the examples of a batch have the same targets
            groups = np.array([kinds.setdefault(tuple(e.targets), len(kinds)) for e in self.data], np.int32)
        costs = self.lengths
        if self.quadratic:  # as `cost`
            costs = costs * np.maximum(costs, QUADRATIC_FROM).astype(np.int64) // QUADRATIC_FROM
        noisy = random.uniform(0.9, 1.1, size)
        noisy *= costs
        noisy += random.uniform(0, 1, size)
        positions = np.lexsort((noisy, groups)).astype(np.int32)
        del noisy
        costs, groups = costs[positions], groups[positions]
        ends = [*(np.flatnonzero(np.diff(groups)) + 1).tolist(), size]  # of the groups
        bounds = array("q", [0])
        for end in ends:
            while bounds[-1] < end:
                bounds.append(bounds[-1] + self._batch_size(costs[bounds[-1] : end]))
        return Order(positions, np.array(bounds), random.permutation(len(bounds) - 1))

    def _batch_size(self, costs: np.ndarray) -> int:
        """Return the number of examples of the batch that begins with these costs."""
        most, size = self.most or len(costs), 32
        while True:
            size = min(size, most, len(costs))
            fits = np.maximum.accumulate(costs[:size]) * np.arange(1, size + 1) <= self.tokens
            fits[0] = True
            if not fits.all():
                return int(fits.argmin())
            if size == min(most, len(costs)):
                return size
            size *= 4

    def __call__(self, rows: Sequence[int]) -> Batch:
        data = [self.data[i] for i in rows]
        if matches := [example.match for example in data if example.match]:
            # The matching candidates of the examples are added to the batch, each text once.
            data = list({(example.doc.text, str(example.targets)): example for example in [*data, *matches]}.values())
        return collate(self.artifacts, data)


def tensors(arrays: Arrays, device: torch.device | str = "cpu") -> Batch:
    """Return arrays as tensors on a device."""
    return {
        name: torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device) for name, array in arrays.items()
    }


def collate(artifacts: Artifacts, data: Sequence[Example]) -> Batch:
    """Collate examples to padded tensors: features, then targets.

    Targets of tokens are padded with 0, and `…_mask` is boolean; one number per record is (B,), a row (B, L).
    """
    batch = tensors(artifacts.featurizer.collate([example.doc for example in data]))
    if artifacts.kind.is_generated:  # predictions begin after [BOS]
        for name, first in (("ids", SPECIALS.index(BOS)), ("mask", 1)):
            batch[name] = nn.functional.pad(batch[name], (1, 0), value=first)
    for name in data[0].targets:
        rows: list[Any] = [example.targets[name] for example in data]
        number = torch.float32 if _holds_fractions(rows[0]) else torch.int64
        batch[name] = torch.tensor(_padded(rows), dtype=torch.bool if name.endswith("_mask") else number)
    for name in data[0].soft_targets:
        batch[name] = torch.cat([example.soft_targets[name] for example in data])
    return batch


def _holds_fractions(target: Any) -> bool:
    if isinstance(target, (list, tuple)):
        return any(map(_holds_fractions, target))
    return isinstance(target, float)


def _padded(rows: list[Any]) -> list[Any]:
    """Pad rows, lists or lists of lists, with zeros to equal shape."""
    if not isinstance(rows[0], list):
        return rows
    width = max(map(len, rows))
    if not any(row and isinstance(row[0], list) for row in rows):
        return [row + [0] * (width - len(row)) for row in rows]
    inner = max(len(cell) for row in rows for cell in row)
    return [[cell + [0] * (inner - len(cell)) for cell in row] + [[0] * inner] * (width - len(row)) for row in rows]


def unseen_labels(artifacts: Artifacts, records: Iterable[Record]) -> Iterator[tuple[str, Record]]:
    """Yield labels of these records that are not in the training data, each once, with its first record."""
    tasks = [fitted.head_task for fitted in artifacts.tasks if fitted.labels]
    known = [(task, task.answer_labels()) for task in tasks if task.answer_labels()]
    for record in records:
        for task, labels in known:
            for label in task.labels_in(task.gold(record)):
                if label not in labels:
                    labels.add(label)
                    yield label, record


# A token corpus: the tokens of all texts in one file, which may be larger than memory, and windows of it.

_RECORDS_PER_CHUNK = 256  # records split at a time
_WRITE = 1 << 20  # tokens written at a time


class Records(Sequence[Record]):
    """Records of a file, read again at each iteration; DataError if there are none."""

    def __init__(
        self, reader: Component, path: DataPath, overlaps: Overlaps = "error", left_out: list[str] | None = None
    ):
        self.reader, self.path, self.overlaps, self.left_out = reader, path, overlaps, left_out

    def __iter__(self) -> Iterator[Record]:
        empty, left_out = True, self.left_out
        if left_out:
            left_out.clear()
        for record in read_part(build_component(self.reader), self.path, self.overlaps, left_out):
            empty = False
            yield record
        if empty:
            reason = f", except those that cannot be read, such as {left_out[0]}" if left_out else ""
            raise DataError(f"{self.path}: has no records{reason}")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        raise TypeError("records of a stream have no index; iterate over them")


def _token_ids(
    source: InputSource, records: Iterable[Record], on_doc: Callable[[Doc], object] = lambda doc: None
) -> Iterator[int]:
    """Yield the tokens of all texts, with [EOS] after each text that does not continue in the next record."""

    def docs() -> Iterator[tuple[Doc, bool]]:
        for chunk in chunks(records, _RECORDS_PER_CHUNK):
            for record, doc in zip(chunk, source.docs(chunk), strict=True):
                on_doc(doc)
                yield doc, record.get(RECORD_CONTINUES) is True

    yield from concatenate(docs(), SPECIALS.index(EOS))


def in_memory(artifacts: Artifacts, records: Sequence[Record]) -> np.ndarray:
    """Return all texts as one row of tokens."""
    return np.fromiter(_token_ids(artifacts.featurizer, records), np.int64)


def token_file(
    path: Path, source: InputSource, records: Iterable[Record], on_doc: Callable[[Doc], object] = lambda doc: None
) -> np.memmap:
    """Return all texts as one memory-mapped row of tokens; written atomically, and again if its sha256 is another.

    `on_doc` is called with each Doc when the file is written. A token has two bytes, or four if the vocabulary has more
    than 65,536 tokens.
    """
    size = max(tokenizer.get_vocab_size() for tokenizer in tokenizers_of(source).values())
    dtype = np.dtype("<u2" if size <= 1 << 16 else "<u4")
    if not is_whole(path):
        make_folder(path.parent)
        remove_partial_files(path.parent, [path.name])
        with writing(path) as temporary, temporary.open("wb") as file:
            for chunk in chunks(_token_ids(source, records, on_doc), _WRITE):
                file.write(np.array(chunk, dtype).tobytes())
        write_sha256(path)
    if not path.stat().st_size:
        raise DataError(f"{path}: the texts have no tokens")
    return np.memmap(path, dtype, "r")


@dataclass(eq=False)
class Windows:
    """Windows of one long text, sampled at random.

    Raises:
        DataError: if the text is shorter than a window and the next token, or than this number of windows per row.
    """

    tokens: np.ndarray  # the text
    context: int  # T, tokens of a window
    rows: int  # B, windows of a batch
    seed: int = 0  # of the order
    epoch_batches: int | None = None  # batches of an epoch; None: as many as fit in the text
    stateful: bool = False  # whether the windows of a batch follow those of the one before, in B parallel parts

    def __post_init__(self) -> None:
        size, context = len(self.tokens), self.context
        if size <= context:
            message = f"the text has {size:,} tokens, and a window needs {context:,} and the next one"
            raise DataError(f"{message}; give more text, or set head.context to {max(1, size // 2):,} or less")
        self.windows = (size - 1) // context  # of the whole text
        self.rows = min(self.rows, self.windows)
        self.stretch = (size - 1) // self.rows  # tokens of a part
        if self.stateful and (self.epoch_batches or 0) > (most := self.stretch // context):
            message = f"the text has {most:,} windows for each of {self.rows} rows, not {self.epoch_batches:,}"
            raise DataError(f"{message}; give more text, or lower train.epoch_steps or train.batch_size")

    def __getstate__(self) -> dict[str, Any]:
        """Return its attributes for a process that makes batches; of a file of tokens its name, not its content."""
        tokens = self.tokens
        return vars(self) | ({"tokens": (tokens.filename, tokens.dtype)} if isinstance(tokens, np.memmap) else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.tokens, tuple):
            self.tokens = np.memmap(*self.tokens, "r")

    def order(self, epoch: int) -> list[list[int]]:
        """Return the start offsets of the windows of each batch of an epoch; a function of seed and epoch."""
        random = np.random.default_rng((self.seed, epoch))
        if self.stateful:
            count = self.epoch_batches or self.stretch // self.context
            begin = int(random.integers(0, self.stretch - count * self.context + 1))
            rows = range(begin, begin + self.rows * self.stretch, self.stretch)
            return [[row + i * self.context for row in rows] for i in range(count)]
        if self.epoch_batches is not None:
            last = len(self.tokens) - self.context
            return random.integers(0, last, (self.epoch_batches, self.rows)).tolist()
        spare_tokens = len(self.tokens) - 1 - self.windows * self.context
        begins = random.integers(0, spare_tokens + 1) + self.context * random.permutation(self.windows)
        return [begins[i : i + self.rows].tolist() for i in range(0, self.windows, self.rows)]

    def __call__(self, rows: Sequence[int]) -> Batch:
        """Return the windows with these start offsets."""
        if isinstance(self.tokens, np.memmap) and os.path.getsize(str(self.tokens.filename)) < self.tokens.nbytes:
            raise changed_while_read(self.tokens.filename)
        windows = [torch.from_numpy(np.array(self.tokens[i : i + self.context + 1], np.int64)) for i in rows]
        tokens = nn.utils.rnn.pad_sequence(windows, batch_first=True)  # (B, T + 1)
        ids, target_ids = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return {"ids": ids, "mask": target_ids > 0, "target_ids": target_ids, "target_mask": target_ids > 0}

    def once(self) -> Iterator[Batch]:
        """Yield batches in which every token of the text except the first is a target once, in order."""
        for starts in chunks(range(0, len(self.tokens) - 1, self.context), self.rows):
            yield self(starts)
