"""Decisions of a pipeline in PyTorch and their scores: losses, metrics on dev data, coverage of a vocabulary."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqpipe.answers.types import Scores
from seqpipe.config.contract import (
    declared_inactive_options,
    decode_options,
    describe,
    dev_option,
    has_member,
    head_metrics,
    metric_types,
)
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import CHECKPOINTS
from seqpipe.errors import DataError, EnvError
from seqpipe.evaluation.scores import answered, score_answers, score_records
from seqpipe.features.document import Arrays, Record, location
from seqpipe.features.mapped import StoredRecords
from seqpipe.runtime.decode_options import Known
from seqpipe.runtime.predictor import Predictor
from seqpipe.training import checkpoint, devices
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import Batch, docs_of, tensors
from seqpipe.training.network import Network, errors_of
from seqpipe.types import OPTION_TYPES

Batches = Iterable[Mapping[str, Tensor]]
_MAX_EXPONENT = 700.0  # exp of more overflows a float


@contextmanager
def evaluation(network: Network) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore the former mode afterwards."""
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was_training)


@contextmanager
def dev_allocations(artifacts: Artifacts, records: Sequence[Record]) -> Iterator[None]:
    """Report an allocation that fails inside the block with the longest of these dev records, if there are any."""
    try:
        yield
    except MemoryError as error:
        if not records:
            raise
        lengths = [len(doc) for doc in docs_of(artifacts.featurizer, records)]
        longest = max(range(len(records)), key=lengths.__getitem__)
        place = f"{location(records[longest])}{lengths[longest]:,} tokens"
        fix = "shorten it, split it, or leave it out of data.dev"
        raise EnvError(
            f"out of memory in {error}, in scores on dev, of which the longest text is {place}; {fix}"
        ) from error


def calibrate(network: Network, batches: Callable[[], Batches]) -> None:
    """Calibrate every head that chooses values on dev, from its evidence of these batches."""
    choosing = [head for head in network.head_stages if dev_option(head.component)]
    if not choosing:
        return
    evidence = [defaultdict[str, list[Tensor]](list) for _ in choosing]
    with evaluation(network):
        for batch in batches():
            names = network(dict(batch))
            for head, columns in zip(choosing, evidence, strict=True):
                for name, rows in head.call(head.module.evidence, names).items():
                    columns[name].append(rows)
    for head, columns in zip(choosing, evidence, strict=True):
        if not columns:
            problem = f"training saw none of its labels, from which {describe(head.component)} chooses"
            raise DataError(f"data.dev: {problem}; add records with labels of the training data")
        with errors_of(head.component, "`calibrate`"):
            head.module.calibrate({name: torch.cat(rows) for name, rows in columns.items()})


def dev_measures(
    network: Network, batches: Batches, processes: devices.TrainingProcesses = devices.ALONE
) -> tuple[float | None, dict[str, dict[str, float]]]:
    """Return the mean loss of a record, and the `measures` of each head, or else its perplexity, by its name.

    The loss is the weighted sum of the heads' losses, as in training, or None without a record. A measure is the mean
    over all batches, and a perplexity exp of that: of a head that generates text, of its loss per target token. Of
    several `processes` each has some of the batches.
    """
    total, records = 0.0, 0
    sums: dict[str, dict[str, Tensor]] = {head.name: {} for head in network.head_stages}
    with evaluation(network):
        for batch in batches:
            names = network(network.corrupt(batch))
            rows = len(names["sources"][0]["mask"])
            records += rows
            for head in network.head_stages:
                loss, pairs = float(head.loss(names)), dict[str, Tensor]()
                total += loss * head.component.common_keys.get("weight", 1.0) * rows
                if has_member(head.module, "measures"):
                    pairs = head.call(head.module.measures, names)
                elif head.task.counts_tokens:
                    count = float({**names, **head.part(names)}["target_mask"].sum())
                    pairs = {"perplexity": torch.tensor([loss * count, count], dtype=torch.float64)}
                for name, pair in pairs.items():
                    sums[head.name][name] = sums[head.name].get(name, torch.zeros(2)) + pair.cpu()
    parts = processes.gather((total, records, sums))
    total, records = sum(part[0] for part in parts), sum(part[1] for part in parts)
    for _, _, others in parts[1:]:
        for head_name, pairs in others.items():
            first = parts[0][2][head_name]
            first |= {name: first.get(name, torch.zeros(2)) + pair for name, pair in pairs.items()}
    sums = parts[0][2]
    measures = {head: {name: _mean(name, *pair.tolist()) for name, pair in sums[head].items()} for head in sums}
    return total / records if records else None, measures


def _mean(name: str, total: float, count: float) -> float:
    mean = total / max(1.0, count)
    return math.exp(min(mean, _MAX_EXPONENT)) if name.endswith("perplexity") else mean


FINITE = "none: all stages are finite when computed again"


def first_not_finite(network: Network, batch: Mapping[str, Tensor]) -> str:
    """Describe the first stage whose output for this batch has a NaN or an infinity."""
    with torch.no_grad():
        names = network.corrupt(batch)
        for stage, outputs in network.trace(names):
            mask = outputs.get("mask", names[network.mask_at(stage)])
            if "x" in outputs and not torch.isfinite(outputs["x"][mask]).all():
                return f"{stage.key}: {describe(stage)}: `forward` returned NaN or infinity for real tokens"
        for head in network.head_stages:
            if not torch.isfinite(head.loss(names)):
                return f"{head.component.key}: {describe(head.component)}: `loss` returned NaN or infinity"
    return FINITE


def option_table(network: Network) -> dict[str, dict[str, Any]]:
    """Return the heads' active decode options as in a bundle; for several heads prefixed with their names."""
    return {
        head.prefix + name: option.manifest()
        for head in network.head_stages
        for name, option in decode_options(head.component.cls).items()
        if name not in declared_inactive_options(head.component)
    }


def option_trials(network: Network) -> dict[str, list[dict[str, Any]]]:
    """Return, for each decode option, values of others with which it has an effect (`TryWith`); names of a bundle."""
    return {
        head.prefix + name: [
            {head.prefix + beside: value for beside, value in values.items()} for values in option.trials
        ]
        for head in network.head_stages
        for name, option in decode_options(head.component.cls).items()
    }


def decide(network: Network, inputs: Arrays, options: Known, explain: bool = False, device: str = "cpu") -> Arrays:
    """Return the decision about features and decode options; missing options have the defaults of their signatures."""
    features = tensors(inputs, device)
    values: dict[str, Any] = {name: features.pop(name) for name in options if name in features}
    values |= {name: len(inputs[name]) for name in values if OPTION_TYPES[options[name]["type"]].is_size}
    return {name: tensor.cpu().numpy() for name, tensor in network.decide(features, values, explain).items()}


def predictor(
    network: Network, device: str = "cpu", before: Callable[[], None] = lambda: None, explain: bool = False
) -> Predictor:
    """Return a Predictor that decides with PyTorch on a device; the rest is the code of deployment.

    `before` is called before each run. With `explain` the runs return the attention weights too.
    """
    artifacts, options = network.artifacts, option_table(network)

    def run(feeds: Arrays) -> Arrays:
        before()
        try:
            with evaluation(network):
                return decide(network, feeds, options, explain, device)
        except MemoryError as error:  # a batch is then answered text by text
            raise DataError(f"out of memory in {error}; shorten or split the text, or leave it out") from error

    heads = {head.name: head.component for head in network.head_stages}
    metrics = {
        name: functions
        for name, head in heads.items()
        if (functions := head_metrics(head.cls, head.options, describe(head)))
    }
    types = metric_types(heads.values())
    return Predictor(
        artifacts.featurizer, artifacts.kind, run, options, network.limits, metrics=metrics, score_types=types
    )


@dataclass(frozen=True)
class DevScores:
    """Function that scores a pipeline, in training, on the dev set."""

    network: Network
    records: Sequence[Record]  # of dev; empty if only the batches are scored
    batches: Callable[[], Iterable[Batch]]  # of dev, with targets
    device: str  # of the pipeline

    def __call__(self, check_interrupt: Callable[[], None], only_names: bool = False) -> Mapping[str, Any]:
        """Return the scores; with `only_names`, those of two records, to find out their names.

        `check_interrupt` is called regularly; an exception that it raises ends the evaluation.
        """
        network, records = self.network, self.records[:2] if only_names else self.records
        processes = devices.ALONE if only_names else devices.current_processes()
        with dev_allocations(network.artifacts, self.records):
            if not only_names:
                calibrate(network, self._device_batches)
            stop, step = (1, 1) if only_names else (None, processes.count)
            shard = itertools.islice(self._device_batches(), processes.rank, stop, step)
            loss, measures = dev_measures(network, shard, processes)
        if network.is_language_model:
            check_interrupt()
            return {"perplexity": measures[""]["perplexity"], "loss": math.log(measures[""]["perplexity"])}
        scores = shared_scores(predictor(network, self.device, check_interrupt), records, processes)
        for head in network.head_stages:
            if not head.name:  # the only head; its own measures select the best weights
                has_measures = has_member(head.module, "measures")
                scores = {**measures[""], **scores} if has_measures else {**scores, **measures[""]}
            elif measures[head.name]:
                scores[head.name].update(measures[head.name])
        return scores if loss is None else {**scores, "loss": loss}

    def _device_batches(self) -> Iterator[Batch]:
        """Yield the batches on the device lazily."""
        for batch in self.batches():
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}


def shared_scores(predictor: Predictor, records: Sequence[Record], processes: devices.TrainingProcesses) -> Scores:
    """Return the scores of records, which several processes answer in shares; the first one scores all answers."""
    if processes.count == 1:
        return score_records(predictor, records.with_docs() if isinstance(records, StoredRecords) else records)[""]
    answers = processes.interleave([answer for _, answer in answered(predictor, processes.share(records))])
    return processes.by_first(lambda: score_answers(predictor, zip(records, answers, strict=True))[""])


SAMPLE_SIZES = 20, 100  # at least and at most so many training records, a hundredth of all, are scored after each epoch


def sample_scores(
    network: Network, records: Sequence[Record], device: str
) -> Callable[[Callable[[], None]], Scores] | None:
    """Return the function that scores a pipeline on a sample of its training records, as `DevScores` on dev.

    None for answers that are generated step by step, which takes long.
    """
    if any(task.head_task.is_stepwise or task.kind.is_generated for task in network.artifacts.tasks):
        return None
    size = min(len(records), SAMPLE_SIZES[1], max(SAMPLE_SIZES[0], len(records) // 100))
    sample = [records[i * len(records) // size] for i in range(size)]
    return lambda check_interrupt: shared_scores(
        predictor(network, device, check_interrupt), sample, devices.current_processes()
    )


@dataclass(frozen=True)
class TrainedPipeline:
    """A network with its final weights, on the CPU, and the configuration by which it is exported."""

    network: Network
    config: Config

    @staticmethod
    def load(config: Config, folder: Path) -> TrainedPipeline:
        """Return the pipeline of the run in a folder, with its best weights; UsageError if it was not trained."""
        weights = checkpoint.load_best(folder / CHECKPOINTS)
        network = Network(config, Artifacts.load(folder))
        network.load_state_dict(weights)
        return TrainedPipeline(network.eval(), config)

    @property
    def artifacts(self) -> Artifacts:
        return self.network.artifacts

    @cached_property
    def options(self) -> dict[str, dict[str, Any]]:
        """Decode options of the heads, by their names in the bundle."""
        return option_table(self.network)
