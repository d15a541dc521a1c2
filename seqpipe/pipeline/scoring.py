"""Score a run or a bundle: on its test sets, on a file, on raw text as in deployment, on minimal pairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.numbers import format_score, metric_of, table
from seqpipe.answers.metrics.text import has
from seqpipe.answers.task import Census
from seqpipe.answers.types import Masking, Metric
from seqpipe.config import yaml
from seqpipe.config.contract import Metrics, build_component, head_metrics, member
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import YAML
from seqpipe.config.signature import options_model, validate, values
from seqpipe.console import Console, text_table
from seqpipe.errors import DataError, PluginError, UsageError
from seqpipe.features.document import Record
from seqpipe.features.parts import DataPath, Files, Part, paths_of, read_records
from seqpipe.features.raw_text import compare
from seqpipe.files import Rows, json_bytes, write
from seqpipe.runtime import bundle
from seqpipe.runtime.bundle import reader_from
from seqpipe.runtime.decode_options import Known
from seqpipe.runtime.evaluate import evaluate, headline, read_pairs, robustness
from seqpipe.runtime.evaluate import swap as swap_words
from seqpipe.runtime.manifest import Manifest, MetricsOwner, Reader
from seqpipe.runtime.model import Model, load
from seqpipe.runtime.predictor import Predictor
from seqpipe.runtime.table_io import reader_for
from seqpipe.runtime.text_scores import METRICS, Normalize, judge, pair_scores, read_items, wrong_preferences

# Scores on raw text, as in deployment, beside those on the words of the data.

RAW = "(raw)"  # after the name of a set, in scores
SPLIT = "split_otherwise"  # among the scores on raw text: the share of words
LOSS = 0.02  # of a score between 0 and 1 above which there is a warning


def score_raw_text(
    predictor: Predictor, name: str, records: Sequence[Record], scores: Mapping[str, Any], console: Console
) -> dict[str, Any]:
    """Return and print the scores on raw text, if its words differ from those of the data."""
    raw = compare(predictor.featurizer, records)
    if not raw.words:
        return {}
    on_raw: dict[str, Any] = {}
    message, loses = raw.summary(), False
    if not raw.same and not any(part.counts_words or part.kind.is_generated for part in predictor.task.parts.values()):
        try:
            raw_scores = evaluate(predictor, records, raw=True)[""]
        except DataError as error:  # for example, raw text may have too many tokens
            console.warn(f"{message}: it cannot be scored: {error}; {raw.suggestion()}", "  ")
            return {}
        on_raw = {f"{name} {RAW}": {**raw_scores, SPLIT: raw.share}}
        (metric, score), (_, raw_score) = headline(scores), headline(raw_scores)
        values = [format_score(metric, value, predictor.metric_types) for value in (raw_score, score)]
        message += f": {metric} {values[0]} on raw text, {values[1]} on the words of the data"
        known = metric_of(metric, predictor.metric_types)
        loses = known.percent and known.more_is_better and score - raw_score >= LOSS
    if raw.is_large or loses:
        console.warn(f"{message}; {raw.suggestion()}", "  ")
    else:
        console.say(f"  {message}")
    return on_raw


QUIET = Console(-1)
# Score a run or a bundle and print its scores: one code path for PyTorch and onnxruntime.

# The predictor of a run or bundle, the function that reads its records, and the files to score it on.
Opened = tuple[Predictor, Callable[[DataPath], Iterator[Record]], dict[str, DataPath]]


def score_target(
    target: Path,
    console: Console,
    *,
    data: Path | None = None,
    raw: bool = False,
    by: str | None = None,
    errors: Path | None = None,
    device: str = "auto",
    options: Callable[[Known], Mapping[str, Any]] = lambda known: {},
    plugins: Sequence[Path] = (),
) -> dict[str, Any]:
    """Return and print the scores of a run or bundle on its test sets, or on the file `data`, by the name of the data.

    With `raw`, raw text is scored too, as in deployment; with `by`, also the records of each value of this field. The
    records with wrong answers are written to `errors`, as JSONL. `options` returns the values of decode options.
    """
    predictor, read, test_sets = open_target(target, device, data, console, plugins)
    if errors and len(test_sets) > 1:
        names = ", ".join(map(str, test_sets.values()))
        raise UsageError(f"--errors needs one data file; give one of {names} with --data")
    decode_options = options(predictor.options)
    result: dict[str, Any] = {}

    def score(name: str, records: Iterable[Record], raw: bool, errors: Path | None) -> None:
        scores = evaluate(predictor, records, raw=raw, by=by, errors=errors, options=decode_options)
        result[name] = scores if by else scores[""]
        for group, group_scores in scores.items():
            console.say(f"\n{name}{f', {group}' if group else ''}\n{table(group_scores, predictor.metric_types)}")

    for name, path in test_sets.items():
        census = Census(predictor.task)
        score(name, census.watch(read(path)), False, None if raw else errors)
        for warning in census.warnings(name):
            console.warn(warning)
        if raw:
            score(f"{name} {RAW}", read(path), True, errors)
    packages: dict[str, str] = {}
    for part in predictor.task.parts.values():
        packages |= part.metric_packages
    for package, metrics in packages.items():
        if not has(package):
            console.say(f"note: {metrics} are not installed: pip install {package.replace('_', '-')}")
    return result


def score_perturbed(
    opened: Opened, console: Console, perturb: Sequence[str], swap: Path | None
) -> dict[str, dict[str, Rows]]:
    """Return and print `robustness` and `swap` of a run or a bundle, by the name of the data."""
    predictor, read, test_sets = opened
    result: dict[str, dict[str, Rows]] = {}
    for name, path in test_sets.items():
        records = [*read(path)]
        result[name] = {"perturb": robustness(predictor, records, perturb)} if perturb else {}
        if swap:
            result[name]["swap"] = swap_words(predictor, records, read_pairs(swap))
        for rows in result[name].values():
            *columns, _ = rows[0]
            console.say("\n".join(["", name, *text_table([columns, *([row[key] for key in columns] for row in rows)])]))
            for example in (example for row in rows for example in row["examples"][:1]):
                console.say(f"  {json_bytes(example).decode()}")
    return result


def open_target(target: Path, device: str, data: Path | None, console: Console, files: Sequence[Path] = ()) -> Opened:
    """Open a run or a bundle to score it on its test sets or on `data`; `files` are plugins."""
    if (target / bundle.MANIFEST).exists():
        return _open_bundle(target, device, data, console, files)
    # Imported here: a bundle can be scored without PyTorch.
    from seqpipe.pipeline.run_folder import load_trained, open_run
    from seqpipe.pipeline.training import resolve_device
    from seqpipe.training.evaluation import predictor

    run, device = open_run(target, console, data is None, plugins=files), resolve_device(device)
    settings = run.config.data
    test_sets: dict[str, DataPath] = {data.name: data} if data else dict(settings.tests)
    if not test_sets:
        raise UsageError(f"{target} has no test set; name a file with --data")
    stored = Reader(use=settings.reader.use, options=settings.reader.options)
    suitable = reader_for(stored, data)
    reader = build_component(settings.reader) if suitable is stored else reader_from(suitable, Plugins())
    left_out: list[str] | None = [] if settings.bad_rows == "skip" else None
    return (
        predictor(load_trained(run).to(device), run.config, device),
        lambda path: read_records(reader, path, settings.overlaps, left_out),
        test_sets,
    )


def open_bundle(path: Path, device: str, console: Console, plugins: Plugins) -> Model:
    """Return the model of a bundle, whose predictor has the metrics of the heads that it was trained with."""
    model = load(path, device)
    add_own_metrics(model.predictor, model.manifest, plugins, console)
    return model


def add_own_metrics(predictor: Predictor, manifest: Manifest, plugins: Plugins, console: Console) -> None:
    """Give a predictor the metrics of the heads that a bundle was trained with, as far as they are installed."""
    for head, origin in manifest.own_metrics.items():
        if loaded := _load_metrics(origin, plugins, console):
            predictor.metrics[head], score_types = loaded
            predictor.metric_types |= score_types


def _open_bundle(path: Path, device: str, data: Path | None, console: Console, files: Sequence[Path]) -> Opened:
    plugins = Plugins(files=files)
    model = open_bundle(path, device, console, plugins)
    reader = reader_from(reader_for(model.manifest.reader, data), plugins)
    # The YAML of the bundle's run is read as plain data: its components need not be installed.
    file = path.resolve().parent / YAML
    settings: Any = yaml.parse(file.read_bytes(), str(file)).data if file.exists() else {"data": {}}
    keys = settings["data"]
    fold, tests = keys.get("fold"), keys.get("test") or {}
    overlaps = keys.get("overlaps", "error")
    test_sets: dict[str, DataPath]

    def absolute(names: str | list[str]) -> Path | Files:
        listed = [names] if isinstance(names, str) else names
        paths = [Path(os.path.abspath(file.parent / name)) for name in listed]
        return paths[0] if len(paths) == 1 else Files(tuple(paths))

    if data:
        test_sets = {data.name: data}
    elif not file.exists():
        raise UsageError(f"{path} is not in a run, so its test set is unknown; name a file with --data")
    elif not tests and not fold:
        raise UsageError(f"the run of {path} has no test set; name a file with --data")
    elif fold or isinstance(tests, float):
        train, added = absolute(keys["train"]), paths_of(absolute(keys["add"])) if keys.get("add") else ()
        dev_share, test_share = (share if isinstance(share, float) else 0.0 for share in (keys["dev"], tests))
        rest = keys.get("split_seed", 1), keys.get("group"), tuple(fold) if fold else None, added
        test_sets = {"test": Part(train, "test", dev_share, test_share, *rest)}
    else:
        named = tests if isinstance(tests, dict) else {"test": tests}
        test_sets = {name: absolute(where) for name, where in named.items()}
    left_out: list[str] | None = [] if keys.get("bad_rows") == "skip" else None
    return model.predictor, lambda path: read_records(reader, path, overlaps, left_out), test_sets


def _load_metrics(
    origin: MetricsOwner, plugins: Plugins, console: Console
) -> tuple[Metrics, Mapping[str, Metric]] | None:
    """Load the metrics of the head that the bundle was trained with; None, with a note, if they are not installed."""
    name = f"{origin.distribution}/{origin.use}"
    try:
        cls = plugins.find("head", name).load()
        options, mistakes = validate(options_model(cls), origin.options)
        if options is None:
            messages = [f"{'.'.join(map(str, mistake.where))}: {mistake.message}" for mistake in mistakes]
            raise PluginError("; ".join(messages))
    except PluginError as error:
        console.say(f"note: the metrics of head {name} {origin.version} are not installed: {error}")
        return None
    metrics = head_metrics(cls, values(options), f"head {name!r}")
    return (metrics, member(cls, "score_types")) if metrics else None


# Score a language model, a run or a bundle, on minimal pairs and alternatives.

_EXAMPLES = 5  # unknown words that a warning names


def score_pairs(
    target: Path,
    console: Console,
    *,
    pairs: Path,
    normalize: Normalize = "none",
    masking: Masking = "token",
    by: str | None = None,
    errors: Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Return and print the accuracy of `target` on the file `pairs`, of all its items and of each group."""
    predictor, _, _ = open_target(target, device, pairs, console)
    judged = judge(predictor, [*read_items(pairs)], normalize=normalize, masking=masking)
    scores = pair_scores(judged, by)
    rows = {"labels" if name == "groups" else name: value for name, value in scores.items()}
    console.say(f"\n{pairs.name}\n{table(rows, METRICS)}")
    unknown = [result.unknown for result in judged if result.unknown]
    if unknown:
        words = list(dict.fromkeys(word for some in unknown for word in some))[:_EXAMPLES]
        console.warn(
            f"{pairs.name}: {len(unknown)} of {len(judged)} have words that the model does not know, such as "
            f"{', '.join(map(repr, words))}; their scores mean little"
        )
    if errors:
        write(errors, b"".join(json_bytes(line) + b"\n" for line in wrong_preferences(judged)))
    return {pairs.name: scores}
