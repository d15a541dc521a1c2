"""A component under test in a pipeline of toys, which its checks build, train and export."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqpipe.answers.registry import TASKS
from seqpipe.answers.task import HeadTask, check_settings
from seqpipe.answers.types import PASSAGE
from seqpipe.config import loader
from seqpipe.config.contract import answer_settings, expected_outputs, has_member, member, under_options
from seqpipe.config.members import ROWLESS
from seqpipe.config.model import Config
from seqpipe.config.plugins import Offer, Plugins
from seqpipe.config.signature import wired
from seqpipe.config.yaml import dump, plain
from seqpipe.errors import ConfigError, PluginError
from seqpipe.export.graph import tensors_of
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.kinds.base import WORD_AXIS, FeatureKind
from seqpipe.features.kinds.registry import pair_features
from seqpipe.testing import toys
from seqpipe.testing.kinds import checks_of
from seqpipe.testing.report import MEMBERS, ROUND_TRIP, Check, FaultError, Subject
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import Batch, Batches, Example, collate, examples
from seqpipe.training.evaluation import option_table
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network
from seqpipe.types import OPTION_TYPES

RAGGED = (4, 9, 1, 6, 2)  # lengths of the rows that are compared alone and together
_WIRING = (
    "A method may ask only for names that the pipeline provides: ids and mask, the features that the class declares, "
    "x, outputs of earlier stages (here: state), and in `loss` the targets of the answer kind"
)


class Bench:
    """A component under test in a pipeline of toys, built by the same code as every pipeline; it writes to `folder`."""

    def __init__(self, subject: Subject, folder: Path):
        self.subject, self.folder = subject, folder

    @cached_property
    def config(self) -> Config:
        """The checked pipeline, whose head reads everything that the component returns."""
        if self.subject.kind == "head":
            encoder: type[nn.Module] = toys.ToyCausal if self.is_language_model else toys.ToyEncoder
            methods = [method for name in ("loss", "decide") if (method := member(self.subject.cls, name))]
            read = {name for method in methods for name in inspect.signature(method).parameters}
            is_read = not read.isdisjoint({*member(encoder, "returns"), "sources"})
            return self._load(encoder if is_read else None, toys.watching((), ()))
        returned = expected_outputs(self.subject.cls, ("ids", "mask", "x")) if self.subject.kind == "encoder" else ["x"]
        names = [name for name in returned if name not in ("x", "mask", "ids", "tags", *ROWLESS)]
        has_words = under_options(self.subject.cls, "context", self.subject.chosen) != "same"
        tagging = has_words and not (self.replaces_mask or self.numbers or self.pairs)
        probe = self._load(None, toys.watching((), (), tagging))
        if not names:
            return probe
        artifacts = fit_artifacts(probe, self.records)
        network = Network(probe, artifacts).eval()
        batch = collate(artifacts, examples(probe, artifacts, self.records))
        with torch.no_grad():
            tensors_by_name = network(batch)
        shape = tensors_by_name["mask"].shape
        by_token = [name for name in names if tensors_by_name[name].shape[:2] == shape]
        return self._load(None, toys.watching(names, by_token, tagging))

    @property
    def replaces_mask(self) -> bool:
        """Return whether the component replaces the rows of tokens with rows of words or sentences."""
        return self.subject.kind == "encoder" and "mask" in member(self.subject.cls, "returns")

    @property
    def is_language_model(self) -> bool:
        """Return whether the component is a language-model head."""
        return self.subject.kind == "head" and has_member(self.subject.cls, "corpus")

    @property
    def numbers(self) -> bool:
        """Return whether the component reads rows of numbers."""
        return any(feature.reads_numbers for feature in self._features())

    @property
    def pairs(self) -> bool:
        """Return whether the component reads two texts: it needs segments, or is a head that answers with a span."""
        cls, is_head = self.subject.cls, self.subject.kind == "head"
        parameters = inspect.signature(cls.__dict__.get("decide" if is_head else "forward", len)).parameters
        needed = [name for name, parameter in parameters.items() if is_head or parameter.default is parameter.empty]
        if not pair_features().keys().isdisjoint(needed):
            return True
        task, settings = self._declared_answer if is_head else (None, {})
        return task is not None and task.declared_subject(settings) == PASSAGE

    @cached_property
    def _declared_answer(self) -> tuple[type[HeadTask], Mapping[str, Any]]:
        """The task of the head under test, and the settings of its answer kind."""
        cls, chosen = self.subject.cls, self.subject.chosen
        name = under_options(cls, "answer", chosen)
        if name not in TASKS:
            raise FaultError(f"its `answer` is {name!r}, which is not an answer kind", _WIRING)
        task = TASKS[name]
        return task, check_settings(task, under_options(cls, "answer_settings", chosen))

    @cached_property
    def records(self) -> list[Record]:
        """The toy records, with a value in every column field that the component reads, and with its targets."""
        fields = {field for feature in self._features() for field in feature.fields}
        labels = itertools.cycle(toys.LABELS)
        toy_records: list[Record] = [{**dict.fromkeys(fields, next(labels)), **record} for record in toys.records()]
        if self.numbers:
            toy_records = [{**record, "numbers": self._value(record["numbers"])} for record in toy_records]
        if self.subject.kind != "head":
            return toy_records
        task, settings = self._declared_answer
        checks = checks_of(task)
        return [{**record, **checks.example_fields(settings, record, i)} for i, record in enumerate(toy_records)]

    def _value(self, rows: Sequence[Sequence[float]]) -> Any:
        """Return a value of the field of numbers with as many rows as these."""
        (feature,) = (feature for feature in self._features() if feature.reads_numbers)
        return feature.value_of(rows)

    @property
    def _tokenizer(self) -> type:
        features = self._features()
        if any(WORD_AXIS in feature.axes for feature in features):
            return toys.ToyPieces
        return toys.ToyFewWords if any(feature.copies_tokens for feature in features) else toys.ToyTokenizer

    def _features(self) -> list[FeatureKind]:
        """The features that the component declares under its options; invalid ones are refused with the pipeline."""
        declared = under_options(self.subject.cls, "features", self.subject.chosen).values()
        return [feature for feature in declared if isinstance(feature, FeatureKind)]

    def _load(self, encoder: type[nn.Module] | None, head: type[nn.Module]) -> Config:
        kind, cls = self.subject.kind, self.subject.cls
        classes: dict[str, type] = {"tokenizer": self._tokenizer, "embedding": toys.ToyEmbedding, "head": head}
        if encoder is not None:
            classes["encoder"] = encoder
        classes[kind] = cls
        content: dict[str, Any] = {key: {"use": used.__name__} for key, used in classes.items()}
        content[kind] |= plain(dict(self.subject.options))
        if kind == "head" and "target_vocabulary" in wired(cls):
            content[kind]["target_tokenizer"] = "same"
        if self.numbers:
            del content["tokenizer"]
            stages = {key: content.pop(key) for key in ("embedding", "encoder") if key in content}
            content["inputs"] = {"numbers": {"field": "numbers", **stages}}
        if self.pairs:
            content["tokenizer"]["field"] = ["question", "context"]
        content["name"] = "toy"
        content["data"] = {"reader": "ToyReader", "train": "toy", "dev": "toy"}
        content["train"] = {"epochs": 2, "batch_tokens": 16, "checkpoint_steps": 1, "threads": 1}
        plugins, owner = Plugins([]), cls.__module__.partition(".")[0]
        classes["reader"] = toys.ToyReader
        plugins.offers = [Offer(key, offered.__name__, owner, "0", offered) for key, offered in classes.items()]
        path = self.folder / "toy.yaml"
        path.write_text(dump(content), encoding="utf-8")
        try:
            return loader.load_config(path, (), plugins, files=False)
        except ConfigError as error:
            problems = "; ".join(f"{p.key}: {p.message}" if p.key else p.message for p in error.problems)
            raise FaultError(f"a pipeline with it is not valid: {problems}", _WIRING) from error

    @cached_property
    def artifacts(self) -> Artifacts:
        return fit_artifacts(self.config, self.records)

    @cached_property
    def examples(self) -> list[Example]:
        return examples(self.config, self.artifacts, self.records)

    @property
    def batches(self) -> Batches:
        settings = self.config.train
        return Batches(self.artifacts, self.examples, settings.batch_tokens, settings.batch_size, settings.seed)

    @property
    def task(self) -> HeadTask:
        """Task of the head: its answer kind and fitted artifacts."""
        return self.artifacts.tasks[0].head_task

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the head's answer kind."""
        return answer_settings(self.config.head[0])

    def docs(self, lengths: Sequence[int]) -> list[Doc]:
        """Texts with these numbers of words, long and short; pairs with these numbers of tokens, at least two.

        Every column field holds one of its values.
        """
        records = [dict(self._unanswered(i, n)) for i, n in enumerate(lengths)]
        for i, record in enumerate(records):

            def choose(values: Sequence[str], i: int = i) -> str:
                return values[i % len(values)]

            for feature in self.artifacts.featurizer.features.values():
                record |= feature.example_fields(choose)
        return self.artifacts.featurizer.docs(records)

    def _unanswered(self, i: int, tokens: int) -> Record:
        """Return a record without targets that has this number of tokens, or of vectors."""
        if self.pairs:
            return toys.text_pair(i, tokens)
        if self.numbers:
            return {"numbers": self._value(toys.number_rows(i, tokens))}
        words = toys.word_list(i, tokens)
        if self.subject.kind == "head":
            task, settings = self._declared_answer
            words = [*checks_of(task).example_words(settings, words, i)]
        return {"words": words}

    def batch(self) -> Batch:
        """All toy records."""
        return collate(self.artifacts, self.examples)

    def network(self, seed: int = 1, padding: float = 0.0) -> Network:
        """The pipeline with its initial weights; `padding` is the value of x in the padding."""
        torch.manual_seed(seed)
        network = Network(self.config, self.artifacts)
        set_padding(network, padding)
        return network

    def feeds(self, lengths: Sequence[int]) -> Arrays:
        """The features of texts with these numbers of words."""
        return self.artifacts.featurizer.collate(self.docs(lengths))

    def decide(self, network: Network, feeds: Arrays, sizes: Mapping[str, int] | None = None) -> Arrays:
        """The decision with these decode options, by default with each of type size at 3."""
        if sizes is None:
            sizes = {n: 3 for n, option in option_table(network).items() if OPTION_TYPES[option["type"]].is_size}
        with torch.no_grad():
            return {name: tensor.numpy() for name, tensor in network.decide(tensors_of(feeds), sizes).items()}


def set_padding(network: Network, value: float) -> None:
    with torch.no_grad():
        for module in network.embedding:
            if isinstance(module, toys.ToyEmbedding):
                module.table[0] = value


def check_bit_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor], when: str) -> None:
    for name, tensor in first.items():
        if not torch.equal(tensor.nan_to_num(), second[name].nan_to_num()):
            raise FaultError(f"{when}, {name} differs")


@torch.no_grad()
def perturb(network: Network) -> Network:
    """The pipeline with slightly changed weights: at first a head may think all targets equally likely."""
    for parameter in network.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return network


# The checks that a stage can be built, and returns tensors of the stated shapes.

BUILT, SHAPES = "it is built", "shapes over a grid"

_BUILT_FIX = (
    "The positional parameters of a constructor are those that the pipeline wires in (dim, vocabulary, sizes, labels "
    "…); it refuses options with a UsageError that names the fix. Give the kit options that fit its toy pipeline"
)
_SHAPE_FIX = (
    "forward returns x (B, T, dim) in float32, or a dict with x and all names in `returns`, for every B and T "
    "from 1; `self.dim` is the width of that x, and T is unchanged unless `returns` has a new mask, boolean (B, N)"
)


def shape_checks(bench: Bench) -> list[Check]:
    return [
        Check(BUILT, bench.network, _BUILT_FIX, (ROUND_TRIP, MEMBERS)),
        Check(SHAPES, lambda: _check_shapes(bench), _SHAPE_FIX, (BUILT,)),
    ]


def _check_shapes(bench: Bench) -> None:
    network = bench.network().eval()
    for rows, longest in itertools.product((1, 2, 3), (1, 2, 5, 9)):
        feeds = bench.feeds([longest, *[max(1, longest - 1)] * (rows - 1)])
        try:
            _check_batch(bench, network, feeds)
        except PluginError as error:
            raise FaultError(f"at B={rows}, T={longest}: {error}") from error
    network.train()
    for indices in ([0], [1, 3, 6], range(len(bench.examples))):
        loss = network.loss(bench.batches(list(indices)))
        if loss.shape != () or not loss.is_floating_point() or not bool(torch.isfinite(loss)):
            raise FaultError(f"the loss of {len(indices)} records is {loss.detach()}, not a finite scalar tensor")


@torch.no_grad()
def _check_batch(bench: Bench, network: Network, feeds: Arrays) -> None:
    """Check the outputs of the stages for one batch, and that the head decides."""
    names = network(tensors_of(feeds))
    x, mask = names.get("x"), names["mask"]
    expected_shape = bench.replaces_mask or mask.shape == feeds["mask"].shape
    if not expected_shape or mask.dim() != 2 or len(mask) != len(feeds["mask"]) or mask.dtype != torch.bool:
        raise FaultError("the mask that it returns is not a boolean (B, T) of the same T")
    if x is not None and (x.shape[:2] != mask.shape or x.dtype != torch.float32):
        raise FaultError(f"x is {tuple(x.shape)} {x.dtype}; the mask is {tuple(mask.shape)}")
    if x is not None and not bool(torch.isfinite(x[mask]).all()):
        raise FaultError(f"x holds {x[mask][~torch.isfinite(x[mask])][0]} at a word")
    bench.decide(network, feeds)
