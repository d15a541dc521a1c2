"""Train the pipeline of a run, or resume its training."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch

from seqpipe import files
from seqpipe.commands.runs.data_checks import refuse_long_texts, report_unseen_labels
from seqpipe.commands.runs.run_folder import Run
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import LAST, OUTCOME
from seqpipe.console import Console
from seqpipe.errors import EnvError, UsageError
from seqpipe.runtime.evaluate import deciding
from seqpipe.training.artifacts import FILE, Artifacts
from seqpipe.training.data_forms import TrainingData, data_form, refuse_long_candidates
from seqpipe.training.evaluation import DevScores, calibrate, unknown_share, unwritable_notes
from seqpipe.training.fit import dev_messages, fit_artifacts
from seqpipe.training.optim import check_precision
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.progress import outcome_of
from seqpipe.training.trainer import train
from seqpipe.training.warm_start import warm_start


def resolve_device(name: str) -> str:
    """Return the device of this name, of `auto` the one that this PyTorch has; EnvError if it is not there."""
    kind = name.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {name}: must be auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise EnvError(f"--device {name}: this PyTorch ({torch.__version__}) sees no CUDA device; see `seqpipe doctor`")
    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def train_run(run: Run, console: Console, device: str = "auto") -> Pipeline:
    """Train to the end, resume, or load what is trained already: the pipeline at its best weights, on the CPU."""
    config, device = run.config, resolve_device(device)
    check_precision(config.train.precision, device)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    data = _load_data(run)
    torch.manual_seed(config.train.seed)
    pipeline = Pipeline(config, data.artifacts)
    is_new = not (run.checkpoints / LAST).exists()
    init_report = warm_start(pipeline, config) if is_new else []
    console.say(f"training {config.name}: {_sizes(data, pipeline)}, on {device} -> {run.folder}")
    _report(data, pipeline, config, init_report, console)
    report_unseen_labels(config, data.artifacts, console)
    refuse_long_texts(config, pipeline)
    refuse_long_candidates(pipeline)
    scores = _dev_scores(config, pipeline, data, device)
    progress = train(pipeline, config, data.batches, scores, run.checkpoints, console, device)
    outcome = outcome_of(progress, config)
    files.write(run.folder / OUTCOME, json.dumps(files.finite(outcome), indent=1))
    return pipeline


def _load_data(run: Run) -> TrainingData:
    """Read the records and fit the artifacts, or load those that an interrupted run has fitted."""
    form = data_form(run.config)
    records = form.read(run.config.data.train)
    if (run.folder / FILE).exists():
        artifacts = Artifacts.load(run.folder)
    else:
        artifacts = fit_artifacts(run.config, records)
        artifacts.save(run.folder)
    return form.load(artifacts, records, run.folder)


def _sizes(data: TrainingData, pipeline: Pipeline) -> str:
    tokens = sum(map(len, data.artifacts.vocabularies.values()))
    weights = sum(p.numel() for p in pipeline.parameters())
    return f"{data.size}, {tokens:,} tokens, {weights:,} weights"


def _report(
    data: TrainingData, pipeline: Pipeline, config: Config, init_report: Iterable[str], console: Console
) -> None:
    """Print what a person should know before training: notes, warnings, the share of unknown tokens in dev."""
    notes = (*dev_messages(config, data.artifacts, data.dev), *unwritable_notes(config, data.artifacts, data.targets))
    for message in (*init_report, *pipeline.messages(), *notes):
        console.say(f"  {message}")
    for warning in data.warnings:
        console.say(f"  warning: {warning}")
    if data.dev:
        unknown = unknown_share(data.artifacts, data.artifacts.featurizer.docs(data.dev))
        console.detail(f"  {100 * unknown:.1f} % of the dev tokens are not in the vocabulary")


def _dev_scores(config: Config, pipeline: Pipeline, data: TrainingData, device: str) -> DevScores | None:
    """Return the function that scores the dev set, None without one, once it and `train.metric` are known to work."""
    if data.dev_batches is None:
        if config.train.metric:
            raise UsageError("train.metric: it is a score of data.dev, and there is none; add it, or delete the key")
        return None
    calibrate(pipeline, data.dev_batches)  # what dev lacks for it is reported before training
    scores = DevScores(pipeline, config, data.dev, data.dev_batches, device)
    if config.train.metric:
        deciding(scores(lambda: None, only_names=True), config.train.metric)  # one that is not there is reported now
    return scores
