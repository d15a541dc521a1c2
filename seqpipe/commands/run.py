"""A YAML in, a run folder out: trained, evaluated, exported, verified; stopped anywhere, it goes on from there."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from seqpipe import files
from seqpipe.answers.data_warnings import Census, warnings_about
from seqpipe.answers.generation import prompts
from seqpipe.answers.metrics.counters import shown, table
from seqpipe.commands.run_lock import run_lock
from seqpipe.config.component import build_component
from seqpipe.config.contract import has_member, is_language_model
from seqpipe.config.loader import Component, Config, load, resolved
from seqpipe.config.run_layout import CHECKPOINTS, LAST, LOCK, SCORES, STATE, TOKENS, YAML
from seqpipe.config.yaml import dump
from seqpipe.console import Console
from seqpipe.errors import ConfigError, DataError, EnvError, UsageError
from seqpipe.export.exporter import export
from seqpipe.export.graph_cache import GraphCache
from seqpipe.features.document import Record
from seqpipe.runtime import bundle
from seqpipe.runtime.evaluate import deciding, evaluate, headline, headlines
from seqpipe.runtime.predictor import Predictor, refuse_long
from seqpipe.training import checkpoint
from seqpipe.training.datasets import Batch, Batches, examples, of_epoch, read, unseen_labels
from seqpipe.training.fit import FILE, Learned, learn, unknown_share
from seqpipe.training.pipeline import Pipeline, predictor
from seqpipe.training.prepare import judging_windows, packed, unwritable_notes, windows
from seqpipe.training.token_corpus import Records, Windows, token_file
from seqpipe.training.warm_start import begin

RUNS = Path("runs")
PLAIN = ("vector", "pointers", "words")  # parts of an answer that are lists of numbers or words


@dataclass(frozen=True)
class Run:
    """The folder of one training: what it was made from, and everything it made."""

    folder: Path
    config: Config

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def scores(self) -> dict[str, Any] | None:
        path = self.folder / SCORES
        return files.read_json(path) if path.exists() else None


@contextmanager
def start(config: Config, console: Console, fresh: bool = False) -> Iterator[Run]:
    """The run of this config: a new folder, or the one there if it was made from the same; UsageError otherwise.

    The folder is locked until the block ends. One without a checkpoint holds nothing worth keeping: it begins anew.
    """
    folder = RUNS / config.name
    for one in config.components:
        if one.frame.get("init") and one.frame["init"].resolve() == folder.resolve():
            told = f"{folder} would start from itself, and is what this run is called; give the YAML another name:"
            raise ConfigError([replace(one.problem(told), key=f"{one.key}.init")])
    _refuse_other_folder(folder)
    with ExitStack() as locks:
        locks.enter_context(run_lock(folder))
        mine = fingerprint(config)
        if fresh and (folder / STATE).exists():
            if os.name == "nt":
                locks.close()  # Windows moves no folder with an open file in it, so nobody else's run either
            console.say(f"the old run is now {files.set_aside(folder)}")
            locks.enter_context(run_lock(folder))
        _begin(config, folder, mine)
        yield Run(folder, config)


def _refuse_other_folder(folder: Path) -> None:
    """UsageError for a folder with something in it that is not a run."""
    try:
        names = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # nothing to protect, or the lock says what is wrong
    if STATE not in names and any(name not in (YAML, LOCK) and not name.endswith(".part") for name in names):
        raise UsageError(f"{folder} is there and is not a run; give the YAML another name: or move the folder")


def _begin(config: Config, folder: Path, mine: Mapping[str, Any]) -> None:
    """Writes what a run begins with, the fingerprint last: what it was made from before is forgotten until then."""
    trained = (folder / CHECKPOINTS / LAST).exists()
    changed = []
    if (folder / STATE).exists():
        changed = differences(files.read_json(folder / STATE)["fingerprint"], mine)
    if changed and trained:
        listed = "".join(f"\n  {line}" for line in changed)
        raise UsageError(
            f"{folder} was made from something else:{listed}\n"
            "run with --fresh to move it aside, or give the YAML another name:"
        )
    if changed:
        for path in (folder / FILE, *folder.glob("*tokenizer*.json")):
            path.unlink(missing_ok=True)
        if (folder / TOKENS).exists():
            shutil.rmtree(folder / TOKENS)
    if not trained:
        files.write(folder / YAML, dump(resolved(config, folder)))
        files.write(folder / STATE, json.dumps({"fingerprint": mine}, indent=1, ensure_ascii=False))


def open_run(folder: Path, console: Console, need_data: bool = True, sets: Sequence[str] = ()) -> Run:
    """The run in a folder, its YAML with these overrides; the console is told which versions have changed since.

    The runs that it started from need not be there any more.
    """
    if not (folder / STATE).exists():
        raise UsageError(f"{folder}: not a run (no {STATE}); a run is what `seqpipe train` or `seqpipe run` writes")
    config = load(folder / YAML, sets, files=need_data, sources=False)
    for note in config.drift:
        console.say(note)
    return Run(folder, config)


def fingerprint(config: Config) -> dict[str, Any]:
    """What a run is made from: the resolved YAML but for its folders, sha256 of every file and run, versions."""
    keyed = list(zip(config.versions, config.components, strict=True))
    options = {f"{key}.{where}": path for key, one in keyed for where, path in _paths(one.options)}
    sources = {f"{key}.init": one.frame["init"] for key, one in keyed if one.frame.get("init")}
    made = _by_name(resolved(config), {path.as_posix(): path.name for path in (*options.values(), *sources.values())})
    tests = {name if name == "test" else f"test.{name}": path for name, path in config.data.tests.items()}
    paths = {"train": config.data.train, "dev": config.data.dev, **tests}
    for role in ("train", "dev", "test"):
        made["data"].pop(role, None)
    made.pop("plugins")  # the components' versions stand below
    return {
        "yaml": made,
        "data": {role: _data_sha256(config.data.reader, path) for role, path in paths.items() if path},
        "components": {f"{s.kind} {s.use}": f"{s.offer.distribution} {s.offer.version}" for s in config.components},
        **({"files": {key: _sha256(path) for key, path in options.items()}} if options else {}),
        **({"sources": _sources_sha256(sources)} if sources else {}),
    }


def _sources_sha256(sources: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Of what a run that is started from holds: its best weights, its tokenizers, and what it learned besides."""
    made: dict[Path, dict[str, str]] = {}
    for folder in dict.fromkeys(sources.values()):
        _, weights = checkpoint.best(folder / CHECKPOINTS)
        learned = [folder / FILE, *sorted(folder.glob("*tokenizer*.json"))]
        made[folder] = {"weights": weights, **{path.name: files.sha256_file(path) for path in learned}}
    return {key: made[folder] for key, folder in sources.items()}


def _data_sha256(reader: Component, path: Path) -> str | list[str]:
    """Of a data file, or of each file that the reader says belongs to it."""
    if not has_member(reader.cls, "files"):
        return files.sha256_file(path)
    return [files.sha256_file(one) for one in build_component(reader).files(path)]


def _sha256(path: Path) -> str | dict[str, str]:
    """Of a file, or of each file in a folder."""
    if not path.is_dir():
        return files.sha256_file(path)
    return {one.name: files.sha256_file(one) for one in sorted(path.iterdir()) if one.is_file()}


def _paths(value: Any, where: str = "") -> Iterator[tuple[str, Path]]:
    """Every path in a component's options, with its place in them."""
    if isinstance(value, Path):
        yield where, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _paths(one, f"{where}.{key}" if where else str(key))
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _paths(one, f"{where}.{number}")


def _by_name(value: Any, names: Mapping[str, str]) -> Any:
    """Plain data with files told by their names: a run may move, and its files with it."""
    if isinstance(value, dict):
        return {key: _by_name(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_by_name(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """What changed between two fingerprints, a line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        return [
            line
            for name in names
            for line in differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, (a, b) in enumerate(zip(old, new, strict=True)) for line in differences(a, b, f"{key}.{i}")]
    if old == new:
        return []
    if key.startswith("sources."):
        name, _, what = key.removeprefix("sources.").partition(".init.")
        return [f"{name}.init: the {what} of the run changed"] if what else [f"{name}: was {old}, is {new}"]
    name = key.removeprefix("yaml.").removeprefix("files.")
    of_a_file = key.startswith(("data.", "files."))
    return [f"{name}: the file's content changed"] if of_a_file else [f"{name}: {old} -> {new}"]


def device_of(name: str) -> str:
    """`auto` to what this PyTorch has; EnvError if the device asked for is not there."""
    kind = name.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {name}: must be auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise EnvError(f"--device {name}: this PyTorch ({torch.__version__}) sees no CUDA device; see `seqpipe doctor`")
    return ("cuda" if torch.cuda.is_available() else "cpu") if kind == "auto" else name


def train_run(run: Run, console: Console, device: str = "auto") -> Pipeline:
    """Trains to the end, or goes on, or loads what is trained already: the pipeline at its best weights, on the CPU."""
    from seqpipe.training import (
        trainer as train,  # not above: Lightning takes seconds to import, and only training needs it
    )

    config, place = run.config, device_of(device)
    train.check_precision(config.train.precision, place)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    streams = packed(config)
    records = Records(config.data.reader, config.data.train) if streams else read(config.data.reader, config.data.train)
    dev = read(config.data.reader, config.data.dev) if config.data.dev and not streams else []
    if (run.folder / FILE).exists():
        learned = Learned.load(run.folder)
    else:
        learned = learn(config, records)
        learned.save(run.folder)
    warnings: list[str] = []
    batches = (
        _windows(config, learned, run.folder, "train")
        if streams
        else _batches(config, learned, records, warnings.append)
    )
    for name, some in () if streams else (("train", records), ("dev", dev)):
        warnings += warnings_about(learned.kind, name, some)
    torch.manual_seed(config.train.seed)
    pipeline = Pipeline(config, learned)
    anew = not (run.checkpoints / LAST).exists()
    told = begin(pipeline, config) if anew else []
    weights = sum(p.numel() for p in pipeline.parameters())
    many = f"a text of {len(batches.tokens):,}" if isinstance(batches, Windows) else f"{len(batches.data):,} examples"
    console.say(
        f"training {config.name}: {many}, {sum(map(len, learned.vocabularies.values())):,} tokens, "
        f"{weights:,} weights, on {place} -> {run.folder}"
    )
    for note in (*told, *pipeline.notes(), *unwritable_notes(config, learned, () if streams else dev or records)):
        console.say(f"  {note}")
    for warning in warnings:
        _warn(console, warning)
    if dev:
        unknown = unknown_share(learned, learned.featurizer.docs(dev))
        console.detail(f"  {100 * unknown:.1f} % of the dev tokens are not in the vocabulary")
    _look_for_unseen_labels(config, learned, console)
    _refuse_long_pairs(config, pipeline)
    scores = None
    if config.data.dev:
        dev_batches = (
            _windows(config, learned, run.folder, "dev").once if streams else _dev_batches(config, learned, dev)
        )
        pipeline.calibrate(dev_batches)  # what dev lacks for it is said before training
        scores = partial(_dev_scores, pipeline, config, dev, dev_batches, place)
        if config.train.metric:
            deciding(scores(lambda: None, few=True), config.train.metric)  # one that is not there is told now
    elif config.train.metric:
        raise UsageError("train.metric: it is a score of data.dev, and there is none; add it, or delete the key")
    train.train(pipeline, config, batches, scores, run.checkpoints, console, place)
    return pipeline


def _warn(console: Console, told: str) -> None:
    console.say(f"  warning: {told}")


def _batches(config: Config, learned: Learned, records: Sequence[Record], warn: Callable[[str], None]) -> Batches:
    settings, changing = config.train, of_epoch(config, learned)
    data = examples(config, learned, records, tell=warn)
    return Batches(learned, data, settings.batch_tokens, settings.batch_size, settings.seed, changing)


def _windows(config: Config, learned: Learned, folder: Path, part: str) -> Windows:
    """Of the training or dev texts, whose tokens are kept in the folder of the run."""
    path = getattr(config.data, part)
    tokens = token_file(folder / TOKENS / f"{part}.bin", learned, Records(config.data.reader, path))
    try:
        return windows(config, tokens) if part == "train" else judging_windows(config, tokens, len(learned.vocabulary))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _look_for_unseen_labels(config: Config, learned: Learned, console: Console) -> None:
    """A label of dev or test that training never saw is told with its place: as an error, or as a miss if so chosen."""
    reader, problems = build_component(config.data.reader), []
    for name, path in {"dev": config.data.dev, **config.data.tests}.items():
        for label, record in unseen_labels(learned, reader.read(path)) if path else ():
            told = f"{record.get('where', path)}: the {name} set holds the label {label!r}, which training never saw"
            problems.append(told)
            if config.data.unseen_labels == "miss":
                console.say(f"  note: {told}; it counts as missed")
    if problems and config.data.unseen_labels == "error":
        cure = "correct the data, add training records with it, or set data.unseen_labels: miss to count it as missed"
        raise DataError("\n".join([*problems, cure]))


def _refuse_long_pairs(config: Config, pipeline: Pipeline) -> None:
    """DataError, before training, for a pair of which no stage can read the first text as a whole."""
    if "first_tokens" not in pipeline.limits:
        return
    reader, featurizer = build_component(config.data.reader), pipeline.learned.featurizer
    for path in (config.data.train, config.data.dev, *config.data.tests.values()):
        for record in reader.read(path) if path else ():
            refuse_long(featurizer.docs([record]), [record], pipeline.limits)


def _dev_batches(config: Config, learned: Learned, dev: Sequence[Record]) -> Callable[[], Iterator[Batch]]:
    """The dev data as batches with targets, made when first asked for."""

    @cache
    def batches() -> Batches:
        data = examples(config, learned, dev, unseen=True)
        return Batches(learned, data, config.train.batch_tokens, config.train.batch_size, config.train.seed)

    return lambda: (batches()(rows) for rows in batches().order(0))


def _dev_scores(
    pipeline: Pipeline,
    config: Config,
    dev: Sequence[Record],
    batches: Callable[[], Iterable[Batch]],
    device: str,
    heed: Callable[[], None],
    few: bool = False,
) -> Mapping[str, Any]:
    """Scores on dev, or on a few of its records, where they are wanted for their names."""

    def placed() -> Iterator[Batch]:  # makes nothing before it is asked for a batch
        for one in batches():
            yield {name: tensor.to(device) for name, tensor in one.items()}

    pipeline.calibrate(placed)
    if pipeline.continues:
        (perplexity,) = pipeline.perplexities(itertools.islice(placed(), 1 if few else None)).values()
        heed()
        return {"perplexity": perplexity, "loss": math.log(perplexity)}
    scores = evaluate(predictor(pipeline, config, device, heed), dev[:2] if few else dev)[""]
    for head, perplexity in pipeline.perplexities(itertools.islice(placed(), 1 if few else None)).items():
        (scores[head] if head else scores)["perplexity"] = perplexity
    for head, measures in pipeline.measured(itertools.islice(placed(), 1 if few else None)).items():
        if head:
            scores[head].update(measures)
        else:
            scores = {**measures, **scores}  # what a head measures of itself decides which weights are best
    return scores


def trained(run: Run) -> Pipeline:
    """The pipeline of a run with its best weights; UsageError if it was not trained."""
    weights = checkpoint.load_best(run.checkpoints)
    pipeline = Pipeline(run.config, Learned.load(run.folder))
    pipeline.load_state_dict(weights)
    return pipeline.eval()


def test_scores(run: Run, answer: Predictor, console: Console) -> dict[str, Any]:
    """Scores on every test set (on dev if there is none), with the share of tokens that training did not see."""
    sets = run.config.data.tests or ({"dev": run.config.data.dev} if run.config.data.dev else {})
    scores = {}
    for name, path in sets.items():
        records = Records(run.config.data.reader, path) if packed(run.config) else read(run.config.data.reader, path)
        census = Census(answer.kind)
        scores[name] = evaluate(answer, census.watch(records))[""]
        console.say(f"\n{name}: {len(records):,} records\n{table(scores[name])}")
        for warning in census.warnings(name):
            _warn(console, warning)
    return scores


def held_out(run: Run) -> list[Record]:
    """Records that parity is shown on: the first test set, else dev, else the first of train."""
    data = run.config.data
    path = next(iter(data.tests.values()), None) or data.dev
    if is_language_model(run.config.head[0]):
        source = Learned.load(run.folder).featurizer
        context = run.config.head[0].options["context"]
        return prompts(Records(data.reader, path or data.train), source.docs, source.fields[-1], context)
    return read(data.reader, path) if path else read(data.reader, data.train, 200)


def run_all(
    config: Config, console: Console, device: str = "auto", fresh: bool = False, cache: GraphCache | None = None
) -> dict[str, Any]:
    """Trains, evaluates, exports, verifies and shows answers; an unchanged, finished run is left as it is.

    A graph that the cache has is not traced again.
    """
    with start(config, console, fresh) as run:
        return _run_all(run, console, device, cache)


def _run_all(run: Run, console: Console, device: str, cache: GraphCache | None) -> dict[str, Any]:
    config, scores = run.config, run.scores
    if run.bundle.exists() and scores is not None:
        bundle.read(run.bundle)
        console.say(f"{run.folder} is finished and nothing changed: nothing to do (--fresh trains again)")
    else:
        pipeline = train_run(run, console, device)
        scores = test_scores(run, predictor(pipeline, config), console)
        files.write(run.folder / SCORES, json.dumps(files.finite(scores), indent=1, ensure_ascii=False))
        model = export(pipeline, config, held_out(run), run.bundle, console, scores, cache)
        _show(model.manifest["golden"], console)
    for name, values in scores.items():
        for metric, value in headlines(values).items():
            console.result(f"{name} {metric} {shown(metric, value)}")
    console.say(f"\nnext: seqpipe predict {run.bundle}")
    return {"run": str(run.folder), "bundle": str(run.bundle), "scores": scores}


def run_seeds(
    load_with: Callable[[Sequence[str]], Config],
    name: str,
    seeds: int,
    console: Console,
    device: str,
    fresh: bool,
    cache: GraphCache | None = None,
) -> dict[str, Any]:
    """The same YAML under seeds 1 to n, a run each; mean and standard deviation of every test set's metric."""
    results = []
    for seed in range(1, seeds + 1):
        console.say(f"\n== seed {seed} of {seeds}")
        config = load_with([f"train.seed={seed}", f"name={name}-seed{seed}"])
        results.append(run_all(config, console, device, fresh, cache)["scores"])
    summary: dict[str, Any] = {}
    for test in results[0]:
        metric, _ = headline(results[0][test])
        values = [headline(scores[test])[1] for scores in results]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        summary[test] = {"metric": metric, "mean": statistics.mean(values), "deviation": spread, "values": values}
        mean, deviation = (shown(metric, value) for value in (summary[test]["mean"], spread))
        console.result(f"{test} {metric}: {mean} ± {deviation} over {seeds} seeds")
    return summary


def _show(golden: Sequence[Mapping[str, Any]], console: Console) -> None:
    console.say("\nanswers of the bundle:")
    for example in [example for example in golden if "options" not in example][:4]:
        record, answer = example["record"], example["answer"]
        given = [one if isinstance(one, str) else str(one)[:80] for name, one in record.items() if name != "words"]
        console.say(f"  {' | '.join(given) or ' '.join(record.get('words', []))}")
        for line in _lines(answer):
            console.say(f"    {line}")


def _lines(answer: Any) -> Iterator[str]:
    """An answer as a person reads it: a line for each of its parts, of several heads with their names in front."""
    for part in answer if isinstance(answer, list) else [answer]:
        if any(isinstance(value, (dict, list)) and name not in PLAIN for name, value in part.items()):
            yield from (f"{head}: {line}" for head, value in part.items() for line in _lines(value))
        else:
            yield ", ".join(
                f"{value:.3f}" if isinstance(value, float) else str(value)[:80] or "(nothing)"
                for value in part.values()
            )
