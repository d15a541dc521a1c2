"""Score a run or a bundle: on its test sets, on a file, on raw text as in deployment, on minimal pairs."""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.metrics.numbers import format_score, metric_of, scores_table
from seqpipe.answers.metrics.text import has
from seqpipe.answers.task import Census
from seqpipe.answers.types import Masking, Metric, Pair
from seqpipe.batch.job import Shard
from seqpipe.batch.shards import read_description
from seqpipe.batch.tables import reader_for
from seqpipe.config import yaml
from seqpipe.config.contract import Metrics, build_component, has_member, head_metrics, member
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import YAML
from seqpipe.config.signature import options_model, validate_model, values
from seqpipe.console import Console, text_table
from seqpipe.errors import DataError, PluginError, UsageError
from seqpipe.evaluation.scores import answered, headline, read_pairs, robustness, score_answers
from seqpipe.evaluation.scores import swap as swap_words
from seqpipe.evaluation.significance import ScoreContext, score_contexts
from seqpipe.evaluation.text_scores import METRICS, Normalize, pair_scores, read_items, score_items, wrong_preferences
from seqpipe.features.document import Record
from seqpipe.features.media import json_value
from seqpipe.features.parts import DataPart, DataPath, Files, paths_of, read_part
from seqpipe.features.raw_text import compare_raw_text
from seqpipe.features.sources import media_fields
from seqpipe.files import (
    Rows,
    file_lines,
    input_sha256,
    json_bytes,
    make_folder,
    refuse_overwriting,
    sha256_file,
    write,
    writing,
)
from seqpipe.runtime import bundle
from seqpipe.runtime.bundle import reader_from
from seqpipe.runtime.decode_options import Known
from seqpipe.runtime.manifest import Manifest, MetricsOwner, Reader
from seqpipe.runtime.opened import OpenedBundle, open_bundle
from seqpipe.runtime.predictor import CHUNK, Predictor, chunks

# Scores on raw text, as in deployment, beside those on the words of the data.

RAW = "(raw)"  # after the name of a set, in scores
SPLIT_OTHERWISE = "split_otherwise"  # among the scores on raw text: the share of words
LOSS = 0.02  # of a score between 0 and 1 above which there is a warning


def score_raw_text(
    predictor: Predictor,
    name: str,
    records: Sequence[Record],
    scores: Mapping[str, Any],
    contexts: dict[str, list[ScoreContext]],
    console: Console,
) -> dict[str, Any]:
    """Return and print the scores on raw text, if its words differ from those of the data; add their `contexts`."""
    raw = compare_raw_text(predictor.featurizer, records)
    if not raw.words:
        return {}
    on_raw: dict[str, Any] = {}
    message, loses = raw.summary(), False
    if not raw.same and not any(part.counts_words or part.kind.is_generated for part in predictor.task.parts.values()):
        try:
            compared: list[Pair] = []
            raw_scores = score_answers(predictor, answered(predictor, records, raw=True), pairs=compared)[""]
        except DataError as error:  # for example, raw text may have too many tokens
            console.warn(f"{message}: it cannot be scored: {error}; {raw.suggestion()}", "  ")
            return {}
        on_raw = {f"{name} {RAW}": {**raw_scores, SPLIT_OTHERWISE: raw.share}}
        contexts[f"{name} {RAW}"] = score_contexts(predictor, compared, raw_scores, contexts[name][0].metric)
        (metric, score), (_, raw_score) = headline(scores), headline(raw_scores)
        values = [format_score(metric, value, predictor.metric_types) for value in (raw_score, score)]
        message += f": {metric} {values[0]} on raw text, {values[1]} on the words of the data"
        known = metric_of(metric, predictor.metric_types)
        loses = known.percent and known.more_is_better and score - raw_score >= LOSS
    if raw.is_large or loses:
        console.warn(f"{message}; {raw.suggestion()}", "  ")
    elif raw.share or on_raw:
        console.say(f"  {message}")
    return on_raw


QUIET = Console(-1)
# Score a run or a bundle and print its scores: one code path for PyTorch and onnxruntime.


@dataclass(frozen=True)
class Opened:
    """A run or bundle to score: its predictor, its files by the name of their set, and how these are read."""

    predictor: Predictor
    test_sets: dict[str, DataPath]
    reader: Any
    overlaps: Any
    bad_rows: str

    def read(self, path: DataPath) -> Iterator[Record]:
        return read_part(self.reader, path, self.overlaps, [] if self.bad_rows == "skip" else None)


def score_target(
    opened: Opened,
    console: Console,
    *,
    raw: bool = False,
    by: str | None = None,
    errors: Path | None = None,
    options: Callable[[Known], Mapping[str, Any]] = lambda known: {},
) -> dict[str, Any]:
    """Return and print the scores of a run or bundle, by the name of the data.

    With `raw`, raw text is scored too, as in deployment; with `by`, also the records of each value of this field. The
    records with wrong answers are written to `errors`, as JSONL. `options` returns the values of decode options.
    """
    predictor, test_sets = opened.predictor, opened.test_sets
    if errors and len(test_sets) > 1:
        names = ", ".join(map(str, test_sets.values()))
        raise UsageError(f"--errors needs one data file; give one of {names} with --data")
    if errors:
        refuse_overwriting(errors, [file for path in test_sets.values() for file in paths_of(path)])
    decode_options = options(predictor.options)
    result: dict[str, Any] = {}
    for name, path in test_sets.items():
        census = Census(predictor.task)
        pairs = answered(predictor, census.watch(opened.read(path)), options=decode_options)
        result[name] = _score_set(predictor, console, name, pairs, by, None if raw else errors, census)
        if raw:
            pairs, name = answered(predictor, opened.read(path), raw=True, options=decode_options), f"{name} {RAW}"
            result[name] = _score_set(predictor, console, name, pairs, by, errors)
    _report_packages(predictor, console)
    return result


def _score_set(
    predictor: Predictor,
    console: Console,
    name: str,
    pairs: Iterable[tuple[Record, Answer]],
    by: str | None,
    errors: Path | None,
    census: Census | None = None,
) -> dict[str, Any]:
    """Return and print the scores of answers to a set of records, by group with `by`, and the warnings of a census."""
    compared: list[Pair] = []
    scores = score_answers(predictor, pairs, by=by, errors=errors, pairs=compared)
    for group, group_scores in scores.items():
        console.table(f"\n{name}{f', {group}' if group else ''}\n{scores_table(group_scores, predictor.metric_types)}")
    for context in score_contexts(predictor, compared, scores[""]):
        console.table(f"{name}: {context.line}")
        for remark in context.remarks():
            console.warn(f"{name}: {remark}")
    for warning in census.warnings(name) if census else ():
        console.warn(warning)
    if errors:
        console.say(f"\nthe mistakes are listed in {errors}")
    return scores if by else scores[""]


def _report_packages(predictor: Predictor, console: Console) -> None:
    """Print the metrics whose packages are not installed."""
    packages: dict[str, str] = {}
    for part in predictor.task.parts.values():
        packages |= part.metric_packages
    for package, metrics in packages.items():
        if not has(package):
            console.say(f"note: {metrics} are not installed: pip install {package.replace('_', '-')}")


# Answers in shards, each of one machine or process, and the scores of all of them.


_SHARD_KEYS = {"bundle", "options", "shards", "inputs", "records", "shard", "sha256"}


def answer_shard(
    target: Path,
    opened: Opened,
    console: Console,
    shard: Shard,
    output: Path,
    *,
    raw: bool = False,
    options: Callable[[Known], Mapping[str, Any]] = lambda known: {},
) -> None:
    """Answer a share of the data of the bundle `target`, for `score_shards`; arguments as of `score_target`.

    A share is every N-th block of records, as many as are answered together, so that answers do not depend on it. The
    folder `output` gets a line for each record with its answer, and last a description of them, with the sha256 of
    every file that was read.

    Raises:
        UsageError: if `target` is no bundle or a language model, or data are in a pipe.
        DataError: if data cannot be read, change while they are read, or are not those of another shard in `output`;
            nothing is written then.
    """
    if not (target / bundle.MANIFEST).exists():
        raise UsageError(f"{target}: shards are answered by a bundle; name one, such as {target / 'bundle'}")
    predictor, test_sets, reader = opened.predictor, opened.test_sets, opened.reader
    if predictor.kind.is_generated:
        fix = "evaluate a language model without --shard"
        raise UsageError(f"--shard: a perplexity may be of all texts as one, which cannot be divided; {fix}")
    decode_options, media = options(predictor.options), media_fields(predictor.featurizer)
    totals: dict[str, int] = {}
    count = 0

    def choose(name: str, records: Iterable[Record]) -> Iterator[Record]:
        totals[name] = 0
        for number, block in enumerate(chunks(records, CHUNK)):
            totals[name] += len(block)
            if number % shard.count == shard.index - 1:
                yield from block

    def hashes(source: DataPath) -> dict[str, str]:
        files = [*paths_of(source)]
        if has_member(reader, "files"):  # the reader knows which files belong together
            files = [file for path in files for file in reader.files(path)]
        return {str(file): input_sha256(file) for file in files}

    inputs = {name: hashes(source) for name, source in test_sets.items()}
    make_folder(output)
    for description in sorted(output.glob("shard-*.json")):
        _check_inputs(description, inputs, _read_shard(description)["inputs"])
    path = output / f"shard-{shard.index:05d}.jsonl"
    with writing(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        for (name, source), is_raw in itertools.product(test_sets.items(), [False, True][: 1 + raw]):
            name = f"{name} {RAW}" if is_raw else name
            pairs = answered(predictor, choose(name, opened.read(source)), raw=is_raw, options=decode_options)
            for position, (record, answer) in enumerate(pairs):
                block = position // CHUNK * shard.count + shard.index - 1
                kept = {key: json_value(value) for key, value in record.items() if key not in media}
                line = {"set": name, "number": block * CHUNK + position % CHUNK, "record": kept, "answer": answer}
                file.write(json.dumps(line, default=str) + "\n")
                count += 1
        for name, source in test_sets.items():
            if hashes(source) != inputs[name]:
                raise DataError(f"{source}: changed while it was answered; write the shard again")
    about = {"bundle": sha256_file(target / bundle.MANIFEST), "options": decode_options, "shards": shard.count}
    about |= {"inputs": inputs, "records": totals, "shard": shard.index, "answers": count, "sha256": sha256_file(path)}
    write(path.with_suffix(".json"), json_bytes(about, 1) + b"\n")
    console.say(f"{path}: {count:,} answers\n\nnext: seqpipe merge {target} {output}, after all shards")


def score_shards(
    target: Path,
    folder: Path,
    console: Console,
    *,
    by: str | None = None,
    errors: Path | None = None,
    plugins: Sequence[Path] = (),
) -> dict[str, Any]:
    """Return and print the scores of the answers in `folder`, by the name of the data, exactly those of one run.

    All answers are counted in the order of the data by the code that scores one run: sums of fractions, ranks, stored
    texts and metrics of plugins are the same to the last bit.

    Raises:
        DataError: if a shard is missing or damaged, or of another bundle, other options or other data.
    """
    descriptions = sorted(folder.glob("shard-*.json"))
    about = [_read_shard(file) for file in descriptions]
    if not about:
        raise DataError(f"{folder}: has no shards; write them with seqpipe evaluate {target} --shard 1/2 -o {folder}")
    files = {shard["shard"]: folder / f"shard-{shard['shard']:05d}.jsonl" for shard in about}
    if missing := [number for number in range(1, about[0]["shards"] + 1) if number not in files]:
        named = ", ".join(map(str, missing[:5]))
        raise DataError(f"{folder}: lacks {len(missing)} of {about[0]['shards']} shards: {named}; write them first")
    expected = {**about[0], "bundle": sha256_file(target / bundle.MANIFEST)}
    for shard in about:
        path = files[shard["shard"]]
        _check_inputs(descriptions[0], shard["inputs"], expected["inputs"])
        for key in ("bundle", "options", "shards", "records"):
            if shard[key] != expected[key]:
                raise DataError(f"{path}: {key!r} differs from that of {target} or another shard; write it again")
        if sha256_file(path) != shard["sha256"]:
            raise DataError(f"{path}: damaged: its sha256 is not the one in {path.stem}.json; write it again")
    predictor = open_with_metrics(target, "cpu", console, Plugins(files=plugins)).predictor
    names = {name: position for position, name in enumerate(about[0]["records"])}
    if errors and len(names) > 1:
        raise UsageError(
            f"--errors needs one set, and {folder} has {', '.join(names)}; write shards of one with --data"
        )
    rows = (map(json.loads, file_lines(path)) for path in files.values())
    ordered = heapq.merge(*rows, key=lambda row: (names[row["set"]], row["number"]))
    result = {}
    for name, set_rows in itertools.groupby(ordered, itemgetter("set")):
        census, (for_records, for_answers) = Census(predictor.task), itertools.tee(set_rows)
        records = census.watch(row["record"] for row in for_records)
        pairs = zip(records, (row["answer"] for row in for_answers), strict=True)
        watched = None if name.endswith(RAW) else census
        result[name] = _score_set(predictor, console, name, pairs, by, errors, watched)
    _report_packages(predictor, console)
    return result


def _read_shard(path: Path) -> dict[str, Any]:
    return read_description(path, _SHARD_KEYS, "remove it, and write the shard again")


def _check_inputs(path: Path, inputs: Mapping[str, Mapping[str, str]], stated: Mapping[str, Mapping[str, str]]) -> None:
    """Raise DataError if the files of a set, by name the sha256 of each, are not those that the shard `path` states."""
    for name, hashes in inputs.items():
        expected = [*stated.get(name, hashes).values()]
        if [*hashes.values()] != expected:
            changed = next((file for file, digest in hashes.items() if digest not in expected), name)
            fix = "restore it, or write all shards again to another folder"
            raise DataError(f"{changed}: has changed between shards: its sha256 is not the one in {path}; {fix}")


def score_perturbed(
    opened: Opened, console: Console, perturb: Sequence[str], swap: Path | None
) -> dict[str, dict[str, Rows]]:
    """Return and print `robustness` and `swap` of a run or a bundle, by the name of the data."""
    predictor, result = opened.predictor, dict[str, dict[str, Rows]]()
    for name, path in opened.test_sets.items():
        records = [*opened.read(path)]
        result[name] = {"perturb": robustness(predictor, records, perturb)} if perturb else {}
        if swap:
            result[name]["swap"] = swap_words(predictor, records, read_pairs(swap))
        for rows in result[name].values():
            *columns, _ = rows[0]
            console.table(
                "\n".join(["", name, *text_table([columns, *([row[key] for key in columns] for row in rows)])])
            )
            for example in (example for row in rows for example in row["examples"][:1]):
                console.table(f"  {json_bytes(example).decode()}")
    return result


def open_target(target: Path, device: str, data: Path | None, console: Console, files: Sequence[Path] = ()) -> Opened:
    """Open a run or a bundle to score it on its test sets or on `data`; `files` are plugins."""
    if (target / bundle.MANIFEST).exists():
        return _open_bundle(target, device, data, console, files)
    # Imported here: a bundle can be scored without PyTorch.
    from seqpipe.runs.run_folder import load_trained, open_run
    from seqpipe.runs.train import resolve_device
    from seqpipe.training.evaluation import predictor

    run, device = open_run(target, console, data is None, plugins=files), resolve_device(device)
    settings = run.config.data
    test_sets: dict[str, DataPath] = {data.name: data} if data else dict(settings.tests)
    if not test_sets:
        raise UsageError(f"{target} has no test set; name a file with --data")
    stored = Reader(use=settings.reader.use, options=settings.reader.options)
    suitable = reader_for(stored, data)
    reader = build_component(settings.reader) if suitable is stored else reader_from(suitable, Plugins())
    model = predictor(load_trained(run).network.to(device), device)
    return Opened(model, test_sets, reader, settings.overlaps, settings.bad_rows)


def open_with_metrics(path: Path, device: str, console: Console, plugins: Plugins) -> OpenedBundle:
    """Return the model of a bundle, whose predictor has the metrics of the heads that it was trained with."""
    model = open_bundle(path, device)
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
    model = open_with_metrics(path, device, console, plugins)
    reader = reader_from(reader_for(model.manifest.reader, data), plugins)
    # The YAML of the bundle's run is read as plain data: its components need not be installed.
    file = path.resolve().parent / YAML
    settings: Any = yaml.parse_tree(file.read_bytes(), str(file)).data if file.exists() else {"data": {}}
    keys = settings["data"]
    fold, tests, split = keys.get("fold"), keys.get("test") or {}, keys.get("split") or {}
    test_sets: dict[str, DataPath]

    def absolute(names: str | list[str]) -> Path | Files:
        listed = [names] if isinstance(names, str) else names
        paths = [Path(os.path.abspath(file.parent / name)) for name in listed]
        return paths[0] if len(paths) == 1 else Files(tuple(paths))

    if data:
        test_sets = {data.name: data}
    elif not file.exists():
        raise UsageError(f"{path} is not in a run, so its test set is unknown; name a file with --data")
    elif not (tests or fold or split.get("test")):
        raise UsageError(f"the run of {path} has no test set; name a file with --data")
    elif fold or isinstance(tests, float) or split.get("test"):
        train, added = absolute(keys["train"]), paths_of(absolute(keys["add"])) if keys.get("add") else ()
        dev_share, test_share = (share if isinstance(share, float) else 0.0 for share in (keys["dev"], tests))
        split_options = keys.get("split_seed", 1), keys.get("group"), tuple(fold) if fold else None, added
        roles = (split["field"], split.get("dev"), split.get("test")) if split else None
        test_sets = {"test": DataPart(train, "test", dev_share, test_share, *split_options, roles)}
    else:
        named = tests if isinstance(tests, dict) else {"test": tests}
        test_sets = {name: absolute(where) for name, where in named.items()}
    return Opened(model.predictor, test_sets, reader, keys.get("overlaps", "error"), keys.get("bad_rows", "error"))


def _load_metrics(
    origin: MetricsOwner, plugins: Plugins, console: Console
) -> tuple[Metrics, Mapping[str, Metric]] | None:
    """Load the metrics of the head that the bundle was trained with; None, with a note, if they are not installed."""
    name = f"{origin.distribution}/{origin.use}"
    try:
        cls = plugins.find("head", name).load()
        options, mistakes = validate_model(options_model(cls), origin.options)
        if options is None:
            messages = [f"{'.'.join(map(str, mistake.where))}: {mistake.message}" for mistake in mistakes]
            raise PluginError("; ".join(messages))
    except PluginError as error:
        console.say(f"note: the metrics of head {name} {origin.version} are not installed: {error}")
        return None
    metrics = head_metrics(cls, values(options), f"head {name!r}")
    return (metrics, member(cls, "score_types")) if metrics else None


# Score a language model on minimal pairs and alternatives.

_MAX_SHOWN_WORDS = 5  # unknown words that a warning names


def score_pairs(
    predictor: Predictor,
    console: Console,
    pairs: Path,
    *,
    normalize: Normalize = "none",
    masking: Masking = "token",
    by: str | None = None,
    errors: Path | None = None,
) -> dict[str, Any]:
    """Return and print the accuracy of a model on the file `pairs`, of all its items and of each group."""
    judged = score_items(predictor, [*read_items(pairs)], normalize=normalize, masking=masking)
    scores = pair_scores(judged, by)
    rows = {"labels" if name == "groups" else name: value for name, value in scores.items()}
    console.table(f"\n{pairs.name}\n{scores_table(rows, METRICS)}")
    unknown = [result.unknown for result in judged if result.unknown]
    if unknown:
        words = list(dict.fromkeys(word for unknown_words in unknown for word in unknown_words))[:_MAX_SHOWN_WORDS]
        console.warn(
            f"{pairs.name}: {len(unknown)} of {len(judged)} have words that the model does not know, such as "
            f"{', '.join(map(repr, words))}; their scores mean little"
        )
    if errors:
        write(errors, b"".join(json_bytes(line) + b"\n" for line in wrong_preferences(judged)))
        console.say(f"\nthe mistakes are listed in {errors}")
    return {pairs.name: scores}
