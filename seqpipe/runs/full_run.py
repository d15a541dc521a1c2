"""Run a YAML to its bundle: create its needs, train, evaluate, export, verify, show answers; with seeds or folds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from seqpipe import files
from seqpipe.answers.metrics.numbers import format_score, scores_table
from seqpipe.answers.task import Census
from seqpipe.answers.types import Pair
from seqpipe.config.contract import dev_option, metric_types
from seqpipe.config.init_from import relative_path, run_problem
from seqpipe.config.loader import Config, load_config, resolved
from seqpipe.config.model import Need
from seqpipe.config.run_layout import ANSWERS, CHECKPOINTS, CONTEXTS, LAST, SCORES_FILE, STATE, YAML
from seqpipe.config.yaml import dump
from seqpipe.console import Console, text_width
from seqpipe.errors import ConfigError, UsageError
from seqpipe.evaluation.scores import answered, headlines, score_answers
from seqpipe.evaluation.significance import ScoreContext, score_contexts
from seqpipe.export.exporter import export_bundle
from seqpipe.features.document import Record
from seqpipe.features.parts import DataPart, folds, left_out_message
from seqpipe.runs.lock import lock_around, run_lock
from seqpipe.runs.results import RUNS, RunFolder
from seqpipe.runs.run_folder import fingerprint, load_trained, open_run, refuse_changes, start_run
from seqpipe.runs.scoring import score_raw_text
from seqpipe.runs.self_training import train_in_rounds
from seqpipe.runtime import bundle
from seqpipe.runtime.opened import OpenedBundle
from seqpipe.runtime.predictor import Predictor
from seqpipe.training import checkpoint, devices
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.data_forms import data_form
from seqpipe.training.evaluation import predictor
from seqpipe.training.tiny_bert import checkpoint_texts, tiny_bert

SHOWN_EXAMPLES = 4  # answers that are shown
INPUT_WIDTH, ANSWER_WIDTH = 160, 220  # columns of a text and of an answer with its score
MAX_ANSWER_LINES = 4  # of a multi-line answer
CUT_SEARCH_CHARS = 20  # characters within which a cut looks for a space


def print_answers(model: OpenedBundle, records: Sequence[Record], data: str, console: Console) -> None:
    """Print the first golden examples of a set that are answered without options, with the references of records."""
    console.say(f"\nanswers of the bundle to {data} records:")
    examples = [example for example in model.manifest.golden if not example.options]
    for example in examples[:SHOWN_EXAMPLES]:
        record: Mapping[str, Any] = example.record if isinstance(example.record, Mapping) else {"text": example.record}
        texts = [value if isinstance(value, str) else str(value) for name, value in record.items() if name != "words"]
        *before, last = texts or [" ".join(record.get("words", []))]
        # With several texts, the spans of an answer are in the last, so the last is cut around them.
        start = min(_starts(example.answer), default=0)
        shown = [*(cut_line(text, INPUT_WIDTH) for text in before), cut_line(last, INPUT_WIDTH, start)]
        console.say(f"  {' | '.join(shown)}")
        for line in shorten_lines(model.predictor.kind.lines(example.answer)):
            console.say(f"    {line}")
        source = next((r for r in records if all(r.get(key) == value for key, value in record.items())), None)
        if source is not None:
            for line in expected_lines(model.predictor, source, example.answer):
                console.say(f"    {cut_line(line, ANSWER_WIDTH)}")


def expected_lines(predictor: Predictor, record: Record, answer: Any) -> Iterator[str]:
    """Yield whether an answer is right, or the expected one; nothing without a reference."""
    task = predictor.task
    if predictor.kind.is_generated or not task.is_comparable or task.question(record) != record:
        return
    gold, predicted = task.gold(record), task.predicted(answer)
    if task.is_right(gold, predicted):
        yield "as expected"
        return
    for name, value in task.mistakes(gold, predicted).items():
        if value and name != "got":
            yield f"{name}: {value if isinstance(value, str) else files.json_bytes(value).decode()}"


def _starts(answer: Any) -> Iterator[int]:
    """Yield the start offsets of the spans of an answer."""
    if isinstance(answer, Mapping):
        if isinstance(start := answer.get("start"), int) and answer.get("end") != start:
            yield start
        answer = list(answer.values())
    if isinstance(answer, list):
        for part in answer:
            yield from _starts(part)


def shorten_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines of an answer; more than `MAX_ANSWER_LINES` are joined to one, cut to its width."""
    if len(lines) <= MAX_ANSWER_LINES:
        return [cut_line(line, ANSWER_WIDTH) for line in lines]
    joined, count = cut_line(lines[0], ANSWER_WIDTH), 1
    while count < len(lines) and text_width(f"{joined}; {lines[count]}") <= ANSWER_WIDTH:
        joined, count = f"{joined}; {lines[count]}", count + 1
    return [joined if count == len(lines) else f"{joined}; … and {len(lines) - count} more"]


def cut_line(text: str, columns: int, start: int = 0) -> str:
    """Return a text on one line; a long one is cut at spaces, from shortly before `start`."""
    if text_width(text) <= columns:
        return " ".join(text.split())
    # Chinese and Japanese characters take two columns, so the number of characters depends on the text. A quarter of
    # them come before `start`, and the cuts move to a space nearby, so that no word is cut.
    room = int(columns * len(text) / text_width(text))
    begin = 0 if start < room // 2 else min(start - room // 4, len(text) - room)
    end = begin + room
    if begin and (blank := text.find(" ", begin, min(begin + CUT_SEARCH_CHARS, start))) >= 0:
        begin = blank
    if end < len(text) and (blank := text.rfind(" ", end - CUT_SEARCH_CHARS, end + 1)) >= 0:
        end = blank
    before, after = "… " if begin else "", " …" if end < len(text) else ""
    return before + " ".join(text[begin:end].split()) + after


def score_test_sets(run: RunFolder, predictor: Predictor, console: Console) -> dict[str, Any]:
    """Return and print the scores on every test set, on dev if there is none, with warnings about the data.

    The answers are written to the run. If raw text is split into other words than in the data, there are also scores on
    raw text.
    """
    data, form = run.config.data, data_form(run.config)
    test_sets = data.tests or ({"dev": data.dev} if data.dev else {})
    scores, contexts = dict[str, Any](), dict[str, list[ScoreContext]]()
    answer_lines: list[bytes] = []
    for name, path in test_sets.items():
        records = form.read(path)
        census = Census(predictor.task)
        pairs = answered(predictor, census.watch(records))
        if not predictor.kind.is_generated:  # a text of which only a part fits into memory has no stored answers
            pairs = iter(kept := [*pairs])
            rows = ({"set": name, "record": record, "answer": answer} for record, answer in kept)
            answer_lines += [files.json_bytes(files.null_non_finite(row), default=str) + b"\n" for row in rows]
        compared: list[Pair] = []
        scores[name] = score_answers(predictor, pairs, pairs=compared)[""]
        console.say(f"\n{name}: {len(records):,} records\n{scores_table(scores[name], predictor.metric_types)}")
        contexts[name] = score_contexts(predictor, compared, scores[name], run.outcome.get("metric"))
        left_out = form.left_out.get(str(path), [])
        if left_out and not isinstance(path, DataPart):  # those of a part were reported with the training data
            console.warn(left_out_message(str(path), left_out), "  ")
        for warning in census.warnings(name):
            console.warn(warning, "  ")
        scores |= score_raw_text(predictor, name, records, scores[name], contexts, console)
    by_set = {name: [asdict(context) for context in of_set] for name, of_set in contexts.items()}
    files.write(run.folder / CONTEXTS, json.dumps(files.null_non_finite(by_set), indent=1, ensure_ascii=False))
    if answer_lines:
        files.write(run.folder / ANSWERS, b"".join(answer_lines))
    return scores


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, from training to its bundle; `more` and `parent` are those of `start_run`."""

    device: str = "auto"
    fresh: bool = False
    runs: Path = RUNS
    more: int = 0
    parent: str | None = None
    write_report: Callable[[RunFolder, Console], None] = lambda run, console: None  # called after the export


def run_all(config: Config, console: Console, options: RunOptions = RunOptions()) -> RunFolder:
    """Train, evaluate, export, verify and show answers; an unchanged, finished run is kept."""
    with start_run(config, console, options.fresh, options.runs, options.more, options.parent) as run:
        config, scores = run.config, run.scores
        processes = devices.current_processes()
        is_finished = processes.by_first(lambda: run.bundle_folder.exists() and scores is not None)
        if not is_finished:
            pipeline = train_in_rounds(run, console, options.device)
        if processes.rank:  # the first process evaluates and exports
            processes.wait()
            return run
        if is_finished and scores is not None:
            parity = bundle.read(run.bundle_folder).manifest.parity
            console.say(f"{run.folder} is finished and nothing changed: nothing to do (--fresh trains again)")
        else:
            scores = score_test_sets(run, predictor(pipeline.network), console)
            content = json.dumps(files.null_non_finite(scores), indent=1, ensure_ascii=False)
            if not run.bundle_folder.exists():  # beside the bundle before `more`, they would make the run look finished
                files.write(run.folder / SCORES_FILE, content)
            records = data_form(config).compared_records(run.folder)
            model = export_bundle(
                pipeline, records, run.bundle_folder, console, scores, _outcome(run), answers=run.answers
            )
            files.write(run.folder / SCORES_FILE, content)
            print_answers(model, records, config.data.compared, console)
            parity = model.manifest.parity
            options.write_report(run, console)
        outcome = run.outcome
        console.say("")
        for line in run.outcome_lines():
            console.say(line)
        for name, contexts in run.contexts.items():  # the score of the metric that selected the weights comes first
            chosen_on = ", on which the epoch was chosen" if name == "dev" and "best_epoch" in outcome else ""
            console.result(f"{name} {', '.join(context.line for context in contexts)}{chosen_on}")
            for remark in contexts[0].remarks():
                console.warn(f"{name}: {remark}")
        if not scores:
            fix = "name a file in `data.test`, or, of many records, hold out a part: `data.test: 0.2`"
            console.warn(f"no score: there is no test or dev set, and training records say nothing of new ones; {fix}")
        fp32 = " (fp32)" if "precision" in parity else ""  # an int8 graph was compared before it was quantized
        compared = f"{parity['decisions']:,} decisions on {parity['records']:,} records"
        compared += f" and {parity['texts']:,} generated texts"
        console.say(f"{run.bundle_folder}: onnxruntime{fp32} = PyTorch in {compared}")
        console.say(f"next: seqpipe serve {run.bundle_folder}")
        processes.wait()
        return run


def _outcome(run: RunFolder) -> dict[str, Any]:
    """Return the outcome of training, with the intervals of the scores by set and metric for the card."""
    contexts = run.contexts.items()
    return run.outcome | {"intervals": {name: {row.metric: row.interval for row in rows} for name, rows in contexts}}


@dataclass(frozen=True)
class ScoreSpread:
    """The scores of one test set in several runs: with several seeds, or of each fold."""

    metric: str  # the one that selected the weights, or the main one of the answer kind
    mean: float
    deviation: float  # standard deviation over the runs; 0 for one run
    values: list[float]  # the score of each run


LoadWith = Callable[[Sequence[str]], Config]


def run_seeds(
    load_with: LoadWith, name: str, seeds: int, console: Console, options: RunOptions
) -> dict[str, ScoreSpread]:
    """Run the same YAML with the seeds 1 to n; return mean and standard deviation of every test set's metric."""
    results = []
    for seed in range(1, seeds + 1):
        console.say(f"\n== seed {seed} of {seeds}")
        results.append(run_all(load_with([f"train.seed={seed}", f"name={name}-seed{seed}"]), console, options))
    return _print_spread(results, "seeds", console)


def _print_spread(results: Sequence[RunFolder], noun: str, console: Console) -> dict[str, ScoreSpread]:
    """Return and print mean and standard deviation of every test set's metric."""
    metrics, summary = metric_types(results[0].config.head), {}
    for test in results[0].scores or {}:
        by_run = [headlines((run.scores or {})[test], run.outcome.get("metric")) for run in results]
        metric = next(iter(by_run[0]))
        values = [math.nan if scores[metric] is None else scores[metric] for scores in by_run]
        numbers = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        summary[test] = ScoreSpread(metric, *numbers, values)
        mean, deviation = (format_score(metric, number, metrics) for number in numbers)
        console.result(f"{test} {metric}: {mean} ± {deviation} over {len(results)} {noun}")
    return summary


def run_folds(load_with: LoadWith, count: int, final: bool, console: Console, options: RunOptions) -> RunFolder:
    """Run a YAML once for each fold of its training data, and with `final` on all of it; return the run of the answers.

    The folder `NAME-folds` has the answers to all records, each by the run that was not trained on it, and the scores
    of these answers, with mean and deviation over the folds. Fitted artifacts in it are those of the first fold.
    """
    config = load_with(())
    folder = options.runs / f"{config.name}-folds"
    if (folder / STATE).exists() and not RunFolder(folder).folds:
        raise UsageError(f"{folder} is another run; give the YAML another name: or move the folder")
    if final:  # checked before the folds are trained
        changes = ["data.test=null"] if any(isinstance(path, DataPart) for path in config.data.tests.values()) else []
        needs_dev = [f"{head.key}.{option}" for head in config.head if (option := dev_option(head))]
        if isinstance(config.data.dev, DataPart) and needs_dev:
            console.say(f"data.dev stays a share of the data: {needs_dev[0]} chooses a value on it")
        elif isinstance(config.data.dev, DataPart):
            changes += ["data.dev=null", "train.patience=null", "train.metric=null"]
            changes += ["train.schedule={use: constant}"] if config.train.schedule.use == "plateau" else []
            held_out = [path for path in config.data.tests.values() if not isinstance(path, DataPart)]
            changes += ["card.by=null"] if config.card.by and not held_out else []
        final_config = load_with(changes)
        if not options.fresh:
            refuse_changes(options.runs / config.name, fingerprint(final_config), ("train.epochs",))
    if config.data.tests:
        console.say("data.test is not used: the test set of each run is its fold of data.train")
    results = []
    for number in range(1, count + 1):
        console.say(f"\n== fold {number} of {count}")
        changes = [f"data.fold=[{number}, {count}]", "data.test=null", "data.unseen_labels=miss"]
        results.append(run_all(load_with([*changes, f"name={config.name}-fold{number}"]), console, options))
    console.say("")
    _print_spread(results, "folds", console)
    scores: dict[str, Any] = {}
    data, by_fold, lines = results[0].config.data, [iter(fold.answers) for fold in results], []
    contexts: list[ScoreContext] = []
    if results[0].answers:  # a language model has none
        assert isinstance(data.train, DataPart)
        records = data_form(results[0].config).read(replace(data.train, dev=0.0, fold=None))
        for number in folds(records, count, data.split_seed, data.group):
            lines.append({"fold": number, **next(by_fold[number - 1])})
        first = predictor(load_trained(results[0]).network)
        compared: list[Pair] = []
        scores["test"] = score_answers(first, [(line["record"], line["answer"]) for line in lines], pairs=compared)[""]
        contexts = score_contexts(first, compared, scores["test"], config.train.metric)
        listed = ", ".join(context.line for context in contexts)
        console.result(f"all {len(lines):,} answers of the folds: {listed}")
    for test in results[0].scores or {}:
        for name, statistic in (("mean", statistics.mean), ("deviation", statistics.stdev)):
            scores[f"{test} ({name})"] = _each_score([(fold.scores or {})[test] for fold in results], statistic)

    def write() -> None:
        with run_lock(folder):
            Artifacts.load(results[0].folder).save(folder)
            files.write(folder / YAML, dump(resolved(config, folder)))
            files.write(folder / ANSWERS, b"".join(files.json_bytes(line) + b"\n" for line in lines))
            files.write(folder / SCORES_FILE, json.dumps(files.null_non_finite(scores), indent=1, ensure_ascii=False))
            by_set = {"test": [asdict(context) for context in contexts]} if lines else {}
            files.write(folder / CONTEXTS, json.dumps(files.null_non_finite(by_set), indent=1, ensure_ascii=False))
            state = {"fingerprint": fingerprint(config), "folds": [fold.folder.name for fold in results]}
            files.write(folder / STATE, json.dumps(state, indent=1))

    devices.current_processes().by_first(write)
    content = "the answers to all records, each by the run of its fold" if lines else "the scores of all folds"
    console.say(f"{folder}: {content}")
    if final:
        if config.data.dev and not final_config.data.dev:
            best = statistics.median_low(fold.outcome["best_epoch"] for fold in results)
            final_config = replace(final_config, train=final_config.train.model_copy(update={"epochs": best}))
        console.say(f"\n== all data, {final_config.train.epochs} epochs")
        run_all(final_config, console, options)
    return RunFolder(folder)


def _each_score(scores: Sequence[Any], statistic: Callable[[Sequence[float]], float]) -> Any:
    """Return a statistic of each score of several runs, in their form, without those of single labels."""
    if isinstance(scores[0], Mapping):
        names = [name for name in scores[0] if name != "labels" and all(name in run_scores for run_scores in scores)]
        return {name: _each_score([run_scores[name] for run_scores in scores], statistic) for name in names}
    return statistic([math.nan if score is None else score for score in scores])


def export_run(
    folder: Path,
    output: Path | None,
    sets: Sequence[str],
    console: Console,
    plugins: Sequence[Path] = (),
) -> Path:
    """Export a trained run, with these overrides of its keys of `export` and `card`; return the folder of the bundle.

    Raises:
        UsageError: if the folder is not a run, was not trained, or the output exists and is not a bundle.
        ExportError: if the bundle would not answer as PyTorch does.
    """
    path = output or folder / "bundle"
    bundle.refuse_other(path)
    with lock_around(path):
        run = open_run(folder, console, sets=sets, plugins=plugins)
        pipeline, records = load_trained(run), data_form(run.config).compared_records(run.folder)
        export_bundle(pipeline, records, path, console, run.scores, _outcome(run), answers=run.answers)
    return path


@dataclass(frozen=True)
class Missing:
    """A missing need (another run, or a generated small model), and the pipeline that has it."""

    need: Need
    config: Config

    def __str__(self) -> str:
        path = relative_path(self.need.path)
        if self.need.run:
            return f"{path}: the run of {relative_path(self.need.run)}, which is run first"
        return f"{path}: a tiny BERT with random weights, which is generated from the training texts"


def missing_needs(config: Config, chain: Sequence[Path] = ()) -> list[Missing]:
    """Return the needs that must be created before a pipeline can run, in that order; `chain`: files that need it.

    Raises ConfigError for a cycle, and for a folder that is not the run of its YAML.
    """
    missing, chain = dict[Path, Missing](), (*chain, config.file.resolve())
    for need in config.needs:
        if need.run:
            if not run_problem(need.path) and checkpoint.load(need.path / CHECKPOINTS / LAST)["progress"]["done"]:
                continue
            if need.run.resolve() in chain:
                cycle = " -> ".join(path.name for path in (*chain, need.run))
                raise ConfigError([replace(need.problem, message=f"pipelines need each other in a cycle: {cycle}")])
            source = load_config(need.run, plugin_files=config.plugin_files)
            if source.name != need.path.name:
                message = f"the run of {need.run.name} is called {source.name!r}; end the path with this name"
                raise ConfigError([replace(need.problem, key=f"{need.problem.key}.path", message=message)])
            missing |= {step.need.path: step for step in missing_needs(source, chain)}
        elif need.path.exists():
            continue
        missing[need.path] = Missing(need, config)
    return list(missing.values())


def make_needs(config: Config, console: Console, options: RunOptions) -> bool:
    """Create the missing needs of a pipeline; return whether there were any."""
    steps, processes = missing_needs(config), devices.current_processes()
    processes.wait()
    for step in steps:
        console.say(f"{config.name} needs {step}")
        if step.need.run:
            needed = load_config(step.need.run, plugin_files=config.plugin_files)
            run_all(needed, console, replace(options, runs=Path(relative_path(step.need.path.parent))))
            console.say(f"\ncontinuing with {config.name}")
        elif not processes.rank:
            texts = checkpoint_texts(step.config, step.need.path)
            pieces = tiny_bert(step.need.path, texts, step.need.pieces)
            console.say(f"  created {relative_path(step.need.path)}: {pieces:,} pieces of words")
    processes.wait()
    return bool(steps)
