"""Train the pipeline of a run, or resume its training; checks of its data before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from seqpipe import files
from seqpipe.answers.task import folded_label, list_examples
from seqpipe.config.contract import declaration, describe, member
from seqpipe.config.loader import Config
from seqpipe.config.run_layout import FACTS, FEATURES, HELD_OUT_DIR, LAST, LEARNED, MAPPED, OUTCOME, PSEUDO_LABELS
from seqpipe.console import Console
from seqpipe.errors import DataError, EnvError, UsageError, did_you_mean
from seqpipe.evaluation.analysis import data_facts, unknown_share
from seqpipe.evaluation.scores import deciding
from seqpipe.features.document import Doc, Record
from seqpipe.features.mapped import FeatureStore, StoredRecords
from seqpipe.features.parts import DataPart
from seqpipe.runs.results import RunFolder, json_lines
from seqpipe.runtime.predictor import CHUNK, chunks, cores, refuse_long
from seqpipe.training import devices
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.data_faults import data_faults
from seqpipe.training.data_forms import DataForm, TrainingData, data_form
from seqpipe.training.datasets import docs_of, unseen_labels
from seqpipe.training.evaluation import DevScores, TrainedPipeline, calibrate, dev_allocations, sample_scores
from seqpipe.training.fit import dev_messages
from seqpipe.training.memory import try_longest_text
from seqpipe.training.network import Network
from seqpipe.training.optim import check_precision
from seqpipe.training.progress import outcome_of, rise_of_loss
from seqpipe.training.teacher import teacher_answers
from seqpipe.training.trainer import Trainer
from seqpipe.training.warm_start import warm_start

WEIGHTS_PER_THREAD = 500_000  # of each thread after the first


def report_unseen_labels(form: DataForm, artifacts: Artifacts, console: Console) -> None:
    """Raise DataError for labels of dev or test that training never saw; with `unseen_labels: miss`, print them."""
    if not any(task.labels for task in artifacts.tasks):
        return
    config, problems = form.config, []
    known = {
        folded_label(label): label for task in artifacts.tasks for label in task.head_task.answer_labels() if label
    }
    for name, path in {"dev": config.data.dev, **config.data.tests}.items():
        if path is None:
            continue
        examples = []
        for label, record in unseen_labels(artifacts, form.read(path) if form.store else form.stream(path)):
            twin = f", training has {known[fold]!r}" if (fold := folded_label(label)) in known else ""
            examples.append(f"{label!r} ({record.get('where', path)}{twin})")
        if examples:
            labels = "1 label" if len(examples) == 1 else f"{len(examples):,} labels"
            message = f"the {name} set has {labels} that training never saw: {list_examples(examples)}"
            problems.append(message)
            if config.data.unseen_labels == "miss":
                console.say(f"  note: {message}; such a label counts as missed")
    if problems and config.data.unseen_labels == "error":
        fix = "correct the data, add training records with it, or set data.unseen_labels: miss to count it as missed"
        raise DataError("\n".join([*problems, fix]))


def refuse_long_texts(form: DataForm, network: Network, checked: bool = False) -> None:
    """Raise DataError, before training, for a text, the first of a pair or a candidate that is too long for a stage.

    With `checked`, the training texts are known to be short enough.
    """
    artifacts = network.artifacts
    docs = [*artifacts.candidate_docs.values()]
    refuse_long(docs, [{"where": f"the candidate {doc.text!r}"} for doc in docs], network.limits)
    if not network.refuses_long_texts:
        return
    data = form.config.data
    for path in (data.train, data.unlabelled, data.dev, *data.tests.values()):
        if path is None or (checked and path is data.train):
            continue
        records = form.read(path) if form.store else form.stream(path)
        split: Iterable[Doc] = (doc for chunk in chunks(records, CHUNK) for doc in artifacts.featurizer.docs(chunk))
        if isinstance(records, StoredRecords):
            split = docs_of(artifacts.featurizer, records)
        refuse_long(split, records, network.limits)


def refuse_missing_group(form: DataForm) -> None:
    """Raise DataError, before training, for a record without the field `card.by`, by which the card has its scores."""
    by, data = form.config.card.by, form.config.data
    if by is None:
        return
    for path in data.tests.values() or ([data.dev] if data.dev else ()):
        for record in form.read(path) if form.store else form.stream(path):
            if by not in record:
                known = ", ".join(name for name in record if name != "where")  # which a reader adds
                fix = f"name a field of all records (here {known}), or delete the key"
                raise DataError.at(record, f"no field {by!r}, which card.by names{did_you_mean(by, record)}; {fix}")


def resolve_device(name: str) -> str:
    """Return the device of this name, for `auto` the one that PyTorch finds; EnvError if it is not available."""
    kind = name.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {name}: must be auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise EnvError(f"--device {name}: this PyTorch ({torch.__version__}) has no CUDA device; see `seqpipe doctor`")
    if kind == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return devices.local_device(name)


def thread_count(network: Network) -> int:
    """Return the default number of threads on a CPU: in a small model, threads wait longer than they work.

    It depends on the model and on the cores of this process, not on their load, so that a run resumes bit-equal.
    """
    tables = torch.nn.Embedding, torch.nn.EmbeddingBag  # a step reads few of their rows
    modules = [module for module in network.modules() if not isinstance(module, tables)]
    weights = sum(weight.numel() for module in modules for weight in module.parameters(recurse=False))
    return min(torch.get_num_threads(), cores(), 1 + weights // WEIGHTS_PER_THREAD)


def batch_dependent(config: Config) -> list[str]:
    """Return the stages whose training needs whole batches, with their reason."""
    stages = [stage for stage in config.components if declaration(stage, "batch_dependent")]
    return [f"{stage.key}: {describe(stage)}: its training needs all texts of a batch" for stage in stages]


def refuse_batch_dependent(config: Config) -> None:
    """Raise UsageError for a stage whose training needs whole batches, which several processes divide."""
    for problem in batch_dependent(config):
        raise UsageError(f"{problem}, which several devices divide; train on one device")


@dataclass(frozen=True)
class PreparedRun:
    """A run whose data are ready for training."""

    run: RunFolder
    console: Console
    device: str
    form: DataForm
    sets: dict[str, Sequence[Record]]  # of train, with pseudo-labels, of dev and of the test sets
    training: TrainingData


def train_run(run: RunFolder, console: Console, device: str = "auto") -> TrainedPipeline:
    """Train to the end, resume, or load a finished run; return the pipeline with its best weights, on the CPU."""
    device = resolve_device(device)
    if devices.current_processes().count > 1:
        refuse_batch_dependent(run.config)
    check_precision(run.config.train.precision, device)
    prepared = prepare_data(run, console, device)
    network, init_report = prepare_network(run, prepared.training.artifacts)
    scores = check_before_training(prepared, network)
    report_before_training(prepared, network, init_report)
    return train(prepared, network, scores)


def prepare_data(run: RunFolder, console: Console, device: str) -> PreparedRun:
    """Read the records, fit the artifacts and compute the teacher's answers; those in the run's folder are kept."""
    config, processes = run.config, devices.current_processes()
    form = data_form(config, FeatureStore(run.folder.parent / FEATURES, run.folder / MAPPED, console, cores()))
    records = form.read(config.data.train)
    if (run.folder / PSEUDO_LABELS).exists():
        records = [*records, *(row["record"] for row in json_lines(run.folder / PSEUDO_LABELS))]
    for part in (config.data.dev, *config.data.tests.values()):
        if isinstance(part, DataPart) and not processes.rank:
            lines = (json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in form.read(part))
            files.make_folder(run.folder / HELD_OUT_DIR)
            files.write(run.folder / HELD_OUT_DIR / f"{part.role}.jsonl", "".join(lines))
    with processes.first_alone():
        if (run.folder / LEARNED).exists():  # an interrupted run, or the first process, has fitted them
            artifacts = Artifacts.load(run.folder)
        else:
            artifacts = form.fit(records, run.folder)
            artifacts.save(run.folder)
        if config.train.teacher:
            form.unlabelled = form.read(config.data.unlabelled) if config.data.unlabelled else ()
            texts = [*records, *form.unlabelled]
            form.soft_targets = teacher_answers(config, artifacts, texts, run.folder, console, device)
        training = form.load(artifacts, records, run.folder)
        if training.artifacts != artifacts and not processes.rank:  # the length of target texts is known now
            training.artifacts.save(run.folder)
    sets = {"train": records} | ({"dev": form.read(config.data.dev)} if config.data.dev else {})
    sets |= {name: form.read(path) for name, path in config.data.tests.items()}
    return PreparedRun(run, console, device, form, sets, training)


def prepare_network(run: RunFolder, artifacts: Artifacts) -> tuple[Network, list[str]]:
    """Return the network with its initial weights, and lines about the runs that `init` names; set the threads."""
    torch.manual_seed(run.config.train.seed)
    network = Network(run.config, artifacts)
    torch.set_num_threads(run.config.train.threads or thread_count(network))
    return network, [] if (run.checkpoints / LAST).exists() else warm_start(network, run.config)


def check_before_training(prepared: PreparedRun, network: Network) -> DevScores | None:
    """Raise an error for what would fail later: a long text, memory, calibration, the metric; return the dev scores."""
    config, training, scores = prepared.run.config, prepared.training, None
    refuse_missing_group(prepared.form)
    refuse_long_texts(prepared.form, network)
    try_longest_text(network, training.batches, prepared.device)
    if training.dev_batches:
        with dev_allocations(training.artifacts, training.dev):
            calibrate(network, training.dev_batches)
        scores = DevScores(network, training.dev, training.dev_batches, prepared.device)
    if config.train.metric:
        if scores is None:
            raise UsageError("train.metric: it needs data.dev, which is missing; add it, or delete the key")
        deciding(scores(lambda: None, only_names=True), config.train.metric)
    return scores


def report_before_training(prepared: PreparedRun, network: Network, init_report: Sequence[str]) -> None:
    """Print the sizes, the messages of the stages and the warnings about the data; write facts about the data.

    Raises:
        DataError: for labels that training never saw.
    """
    run, console, training, sets = prepared.run, prepared.console, prepared.training, prepared.sets
    config, artifacts, processes = run.config, network.artifacts, devices.current_processes()
    tokens = sum(map(len, artifacts.vocabularies.values()))
    weights = sum(p.numel() for p in network.parameters())
    sizes = f"{training.size}, {tokens:,} tokens, {weights:,} weights"
    placed = f"{processes.count} processes, the first on {prepared.device}" if processes.count > 1 else prepared.device
    console.say(f"training {config.name}: {sizes}, on {placed} (threads: {torch.get_num_threads()}) -> {run.folder}")
    notes = (*dev_messages(config, artifacts, training.dev), *training.target_messages())
    if config.train.accumulate > 1:
        notes += tuple(f"note: {stage}, so accumulated batches are not one batch" for stage in batch_dependent(config))
    for message in (*init_report, *network.messages(), *notes):
        console.say(f"  {message}")
    repeated: dict[str, dict[str, int]] = {}
    tests = {name: sets[name] for name in config.data.tests}
    faults = data_faults(config, artifacts, sets["train"], training.dev, repeated, tests)
    warnings = [*training.warnings, *faults]
    for warning in warnings:
        console.warn(warning, "  ")
    if training.dev:
        unknown = unknown_share(docs_of(artifacts.featurizer, training.dev))
        console.detail(f"  {100 * unknown:.1f} % of the dev tokens are not in the vocabulary")
    report_unseen_labels(prepared.form, artifacts, console)
    facts = {name: data_facts(artifacts.featurizer, artifacts.task, some) for name, some in sets.items()}
    known = {"sets": {name: facts[name] | repeated.get(name, {}) for name in facts}, "warnings": warnings}
    if not processes.rank:
        files.write(run.folder / FACTS, files.json_bytes(known, indent=1))


def train(prepared: PreparedRun, network: Network, scores: DevScores | None) -> TrainedPipeline:
    """Train to the end, and write the outcome; return the pipeline with its best weights, on the CPU."""
    run, console, device, training = prepared.run, prepared.console, prepared.device, prepared.training
    config, processes = run.config, devices.current_processes()
    sample = sample_scores(network, prepared.sets["train"], device) if training.dev else None
    progress = Trainer(network, config, training.batches, scores, run.checkpoints, console, device, sample).train()
    sizes = {name: f"{len(split):,} records" for name, split in prepared.sets.items()} | {"train": training.size}
    outcome = outcome_of(progress, config, member(network.head, "uniform_loss")) | {"data": sizes}
    if rise := rise_of_loss(outcome):  # before the export, which such weights may not pass
        console.warn(rise, "  ")
    if not processes.rank:
        files.write(run.folder / OUTCOME, json.dumps(files.null_non_finite(outcome), indent=1))
    processes.wait()
    return TrainedPipeline(network, config)
