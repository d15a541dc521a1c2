"""Self-training: rounds in which a model's confident answers to unlabelled texts become training data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqpipe import files
from seqpipe.answers.metrics.numbers import format_score
from seqpipe.answers.registry import part_of
from seqpipe.config.contract import build_component, changes_by_epoch, metric_types
from seqpipe.config.run_layout import BEST, HISTORY, LAST, LEARNED, PSEUDO_LABELS, ROUNDS_FILE, SELF_TRAINING
from seqpipe.console import Console
from seqpipe.errors import DataError
from seqpipe.evaluation.scores import goodness
from seqpipe.features.document import Record
from seqpipe.runs.results import RunFolder, json_lines
from seqpipe.runs.train import resolve_device, train_run
from seqpipe.runtime.predictor import batches
from seqpipe.training import devices
from seqpipe.training.data_forms import data_form
from seqpipe.training.evaluation import TrainedPipeline, predictor
from seqpipe.training.network import Network


def train_in_rounds(run: RunFolder, console: Console, device: str = "auto") -> TrainedPipeline:
    """Train a run in the rounds of `train.self_training`, or once without this key; return its pipeline.

    Rounds use the model's answers as labels (pseudo-labels: Lee 2013; rounds: Xie et al. 2020).

    Round 0 trains on the labelled data. In each further round the best model so far answers the unlabelled texts, and
    for each threshold a new model is trained on the labelled data and the answers of this confidence. The training with
    the best dev score becomes that of the run, which `train_run` then finds finished. Each training resumes in a folder
    of its own, and last.ckpt of the run is written last, so an interrupted self-training resumes too.
    """
    config, settings, folder = run.config, run.config.train.self_training, run.folder / SELF_TRAINING
    processes = devices.current_processes()
    if settings is None:
        return train_run(run, console, device)
    if processes.by_first((run.checkpoints / LAST).exists):
        if folder.exists() and not processes.rank:  # the process was killed before it removed the folder
            shutil.rmtree(folder)
        return train_run(run, console, device)
    assert config.data.unlabelled
    texts, reader = data_form(config).read(config.data.unlabelled), build_component(config.data.reader)
    if changes_by_epoch(reader, config.data.train):
        fix = "to which answers cannot be added; delete train.self_training"
        raise DataError(f"{config.data.train}: its reader yields other records in each epoch, {fix}")
    train = config.train.model_copy(update={"self_training": None})
    plain = replace(config, train=train, data=replace(config.data, unlabelled=None))
    console.say("self-training: the labelled data alone")
    best = RunFolder(folder / "0", plain)
    files.make_folder(best.folder)
    pipeline, trials = train_run(best, console, device), [(best, _row(best))]
    for number in range(1, settings.rounds + 1):
        before, path = best, folder / f"answers-{number}.jsonl"
        with processes.first_alone():
            if not files.is_whole(path):
                _write_lines(path, pseudo_labels(pipeline.network, texts, resolve_device(device)))
                files.write_sha256(path)
        for threshold in settings.thresholds:
            confident = [row for row in json_lines(path) if row["confidence"] >= threshold]
            count = f"{len(confident):,} of {len(texts):,} unlabelled texts"
            console.say(f"self-training: round {number}, threshold {threshold:g}: {count}")
            if not confident:
                continue
            trial = RunFolder(folder / f"{number}-{threshold:g}", plain)
            files.make_folder(trial.folder)
            _write_lines(trial.folder / PSEUDO_LABELS, confident)
            trained = train_run(trial, console, device)
            trials.append((trial, _row(trial, number, threshold, len(confident))))
            if _dev_goodness(trial) > _dev_goodness(best):
                best, pipeline = trial, trained
        if best is before:
            break
    rows = [{**row, "kept": trial is best} for trial, row in trials]
    metric, metrics = best.outcome["metric"], metric_types(config.head)
    processes.by_first(lambda: _keep(best, run, rows))
    for row in rows:
        with_texts = f"round {row['round']}, threshold {row['threshold']}, {row['texts']:,} texts"
        name = with_texts if row["round"] else "the labelled data alone"
        kept = ", which is kept" if row["kept"] else ""
        console.say(f"self-training: {name}: dev {metric} {format_score(metric, row['dev'], metrics)}{kept}")
    return train_run(run, console, device)


def pseudo_labels(network: Network, records: Sequence[Record], device: str) -> list[dict[str, Any]]:
    """Return the records with answers as references, each as `record` with its `confidence`, without empty texts."""
    answering, heads = predictor(network.to(device), device), network.artifacts.task.parts
    docs, labelled = answering.docs(records), dict[int, dict[str, Any]]()
    for rows in batches([len(doc) for doc in docs]):
        batch_docs = [docs[i] for i in rows]
        decision = answering.run(answering.featurizer.collate(batch_docs) | answering.defaults.of(batch_docs))
        for row, i in enumerate(rows):
            parts = [task.pseudo_label(docs[i].first, part_of(decision, head), row) for head, task in heads.items()]
            record = dict(records[i])
            for fields, _ in parts:
                record |= fields
            labelled[i] = {"confidence": min(confidence for _, confidence in parts), "record": record}
    network.cpu()
    return [labelled[i] for i in sorted(labelled)]


def _dev_goodness(run: RunFolder) -> float:
    """Return the dev score of a finished training, negated if lower is better."""
    dev = run.history[run.outcome["best_epoch"] - 1]["dev"]
    return goodness(dev, run.config.train.metric, metric_types(run.config.head))


def _row(run: RunFolder, number: int = 0, threshold: float | None = None, texts: int = 0) -> dict[str, Any]:
    return {"round": number, "threshold": threshold, "texts": texts, "dev": run.outcome["dev"]}


def _write_lines(path: Path, rows: Iterable[Any]) -> None:
    files.write(path, b"".join(files.json_bytes(row, default=str) + b"\n" for row in rows))


def _keep(trial: RunFolder, run: RunFolder, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make a finished training that of the run, and remove the folder of all trainings."""
    files.write(run.folder / ROUNDS_FILE, json.dumps(files.null_non_finite(rows), indent=1))
    files.make_folder(run.checkpoints)
    artifacts = [trial.folder / LEARNED, *trial.folder.glob("*tokenizer*.json"), *trial.folder.glob(PSEUDO_LABELS)]
    for path in (*artifacts, *trial.checkpoints.glob(BEST), trial.checkpoints / HISTORY, trial.checkpoints / LAST):
        with files.writing(run.folder / path.relative_to(trial.folder)) as copy:
            shutil.copyfile(path, copy)
    shutil.rmtree(run.folder / SELF_TRAINING)
