"""Train the pipeline of a run, or resume its training."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from seqpipe.commands.runs.data_checks import refuse_long_pairs, report_unseen_labels
from seqpipe.commands.runs.dev_scores import DevScores
from seqpipe.commands.runs.run_folder import Run
from seqpipe.commands.runs.training_data import TrainingData, dev_batches, load_data, text_windows
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import LAST
from seqpipe.console import Console
from seqpipe.errors import EnvError, UsageError
from seqpipe.runtime.evaluate import deciding
from seqpipe.training.fit import unknown_share
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.prepare import packed, unwritable_notes
from seqpipe.training.token_corpus import Windows
from seqpipe.training.warm_start import begin


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
    from seqpipe.training import trainer  # not above: Lightning takes seconds to import, and only training needs it

    config, device = run.config, resolve_device(device)
    trainer.check_precision(config.train.precision, device)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    data = load_data(run)
    torch.manual_seed(config.train.seed)
    pipeline = Pipeline(config, data.learned)
    is_new = not (run.checkpoints / LAST).exists()
    init_report = begin(pipeline, config) if is_new else []
    console.say(f"training {config.name}: {_sizes(data, pipeline)}, on {device} -> {run.folder}")
    _report(data, pipeline, config, init_report, console)
    report_unseen_labels(config, data.learned, console)
    refuse_long_pairs(config, pipeline)
    scores = _dev_scores(run, pipeline, data, device)
    trainer.train(pipeline, config, data.batches, scores, run.checkpoints, console, device)
    return pipeline


def _sizes(data: TrainingData, pipeline: Pipeline) -> str:
    batches = data.batches
    size = f"a text of {len(batches.tokens):,}" if isinstance(batches, Windows) else f"{len(batches.data):,} examples"
    tokens = sum(map(len, data.learned.vocabularies.values()))
    weights = sum(p.numel() for p in pipeline.parameters())
    return f"{size}, {tokens:,} tokens, {weights:,} weights"


def _report(
    data: TrainingData, pipeline: Pipeline, config: Config, init_report: Iterable[str], console: Console
) -> None:
    """Print what a person should know before training: notes, warnings, the share of unknown tokens in dev."""
    target_records = [] if packed(config) else data.dev or data.records
    for message in (*init_report, *pipeline.messages(), *unwritable_notes(config, data.learned, target_records)):
        console.say(f"  {message}")
    for warning in data.warnings:
        console.say(f"  warning: {warning}")
    if data.dev:
        unknown = unknown_share(data.learned, data.learned.featurizer.docs(data.dev))
        console.detail(f"  {100 * unknown:.1f} % of the dev tokens are not in the vocabulary")


def _dev_scores(run: Run, pipeline: Pipeline, data: TrainingData, device: str) -> DevScores | None:
    """Return the function that scores the dev set, None without one, once it and `train.metric` are known to work."""
    config = run.config
    if not config.data.dev:
        if config.train.metric:
            raise UsageError("train.metric: it is a score of data.dev, and there is none; add it, or delete the key")
        return None
    if packed(config):
        batches = text_windows(config, data.learned, run.folder, "dev").once
    else:
        batches = dev_batches(config, data.learned, data.dev)
    pipeline.calibrate(batches)  # what dev lacks for it is reported before training
    scores = DevScores(pipeline, config, data.dev, batches, device)
    if config.train.metric:
        deciding(scores(lambda: None, few=True), config.train.metric)  # one that is not there is reported now
    return scores
