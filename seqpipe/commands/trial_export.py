"""Check that a pipeline exports: build it small with random weights, export it, run it and compare."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

import torch

from seqpipe.commands.raw_text import report_splitting
from seqpipe.commands.runs.data_checks import refuse_long_texts, report_unseen_labels
from seqpipe.commands.trial_build import Trial, build_trial
from seqpipe.config.contract import by_source, describe
from seqpipe.config.loader import Component, Config
from seqpipe.console import Console
from seqpipe.errors import ConfigError, TrainingError
from seqpipe.export.exporter import bundle_files, bundle_manifest, use_graph
from seqpipe.export.graph import random_batches
from seqpipe.export.graph_cache import GraphCache
from seqpipe.export.parity.decisions import DecisionParity, Tally
from seqpipe.export.parity.gate import compare_streams, one_thread
from seqpipe.features.encoding import shown
from seqpipe.features.raw_text import CURE, fault_of
from seqpipe.features.sources import tokenizers_of
from seqpipe.runtime import bundle
from seqpipe.runtime.evaluate import deciding
from seqpipe.runtime.model import Model
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.data_forms import refuse_long_candidates
from seqpipe.training.datasets import Batch, read
from seqpipe.training.evaluation import DevScores, first_not_finite, option_table, predictor
from seqpipe.training.pipeline import Pipeline


@one_thread()
def check_export(config: Config, console: Console, cache: GraphCache | None = None) -> dict[str, Any]:
    """Build from all records, take one step of training, export, and compare with PyTorch on ragged batches.

    A graph that the cache has is not traced again.

    Raises UsageError, DataError, PluginError, TrainingError, ExportError or ParityError, whichever the real run would
    meet.
    """
    clock = time.monotonic()
    trial = build_trial(config)
    pipeline, artifacts = trial.pipeline, trial.pipeline.artifacts
    _try_hostile_texts(config, artifacts, console)
    for warning in trial.data.warnings:
        console.say(f"warning: {warning}")
    report_splitting(artifacts.featurizer, "train", trial.records, console)
    _check_held_out(trial, config, console)
    loss = _backpropagate(pipeline, trial.batch)
    _check_metric(trial, config)
    weights = sum(p.numel() for p in pipeline.parameters())
    for message in trial.messages:
        console.say(message)
    console.say(f"builds: {weights:,} weights on {trial.size}, loss {loss:.3f}")
    for line in trial.init_report:
        console.say(f"  {line}")
    pipeline.eval()
    tally = use_graph(pipeline, config, cache, console, partial(_compare_graph, pipeline, config, console))
    seconds = time.monotonic() - clock
    console.say(
        f"answers the same in PyTorch and onnxruntime: {tally.decisions} decisions, {tally.ties} ties ({seconds:.1f} s)"
    )
    return {"decisions": tally.decisions, "ties": tally.ties, "worst_score": tally.worst, "seconds": round(seconds, 2)}


def _backpropagate(pipeline: Pipeline, batch: Batch) -> float:
    """Compute the loss of a batch and its gradients; return the loss."""
    loss = pipeline.loss(batch)
    if not torch.isfinite(loss):
        raise TrainingError(f"the loss of the first batch is {loss.item()}: {first_not_finite(pipeline, batch)}")
    loss.backward()
    return loss.item()


def _check_held_out(trial: Trial, config: Config, console: Console) -> None:
    """Raise DataError for records of dev or test that the run could not be scored on."""
    report_unseen_labels(config, trial.pipeline.artifacts, console)
    if trial.data.dev_batches:
        next(iter(trial.data.dev_batches()))  # the examples of all dev records are made for it
    refuse_long_texts(config, trial.pipeline)
    refuse_long_candidates(trial.pipeline)


def _check_metric(trial: Trial, config: Config) -> None:
    """Raise UsageError if the dev scores have none of the name that `train.metric` says."""
    data = config.data
    if config.train.metric and data.dev:
        scores = DevScores(trial.pipeline, config, read(data.reader, data.dev, 2), lambda: [trial.batch], "cpu")
        deciding(scores(lambda: None, only_names=True), config.train.metric)


def _compare_graph(pipeline: Pipeline, config: Config, console: Console, graph: bytes) -> Tally:
    """Compare the graph with PyTorch on short ragged batches; ParityError if it answers differently."""
    options, artifacts = option_table(*config.head), pipeline.artifacts
    files = bundle_files(pipeline, graph)
    model = Model(bundle.Bundle(config.file, bundle_manifest(pipeline, config, options, {}), files), "cpu", threads=1)
    console.say(f"exports: {len(graph):,} bytes, inputs {', '.join(i.name for i in model.session.get_inputs())}")
    reference = predictor(pipeline, config, explain=config.export.explain)
    parity = DecisionParity(pipeline, reference.run, model.graph.run_all, options)
    short = random_batches(artifacts, config.train.seed, sizes=(1, 3), lengths=(1, 2, 9))
    long = random_batches(artifacts, config.train.seed, sizes=(2,), lengths=pipeline.long)
    parity.compare_batches(itertools.chain(short, long), {})
    if pipeline.streams:
        compare_streams(parity, config.train.seed)
    parity.resolve_ties()
    return parity.tally


def _try_hostile_texts(config: Config, artifacts: Artifacts, console: Console) -> None:
    """Raise ConfigError for a tokenizer that panics at a hostile text; warn of one that is slow at it."""
    tokenizers, problems = tokenizers_of(artifacts.featurizer), []
    components = {name: source.tokenizer for name, source in by_source(config.inputs).items()}
    pairs: list[tuple[Any, Any]] = [(components[name], tokenizer) for name, tokenizer in tokenizers.items()]
    for head, task in zip(config.head, artifacts.tasks, strict=True):
        pairs.append((head.common_keys.get("target_tokenizer"), task.target_tokenizer))
    for component, tokenizer in pairs:
        if not isinstance(component, Component) or tokenizer is None:  # one of `same` is tried already
            continue
        fault = fault_of(tokenizer)
        if fault and fault.fails:
            message = f"{describe(component)} cannot split {shown(fault.text)}: {fault.message}; {CURE}"
            problems.append(component.problem(message))
        elif fault:
            console.say(f"warning: {component.key}: {describe(component)} takes {fault.message}; {CURE}")
    if problems:
        raise ConfigError(problems)
