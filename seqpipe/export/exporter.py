"""Export a trained pipeline as a verified bundle: its manifest, golden examples, graph and model card."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, cast

import numpy as np

from seqpipe.answers.metrics.numbers import format_score
from seqpipe.answers.registry import ANSWER_KINDS, tokenizer_file
from seqpipe.answers.types import Metric
from seqpipe.config.contract import has_member, member
from seqpipe.config.loader import resolved
from seqpipe.config.plugins import BUILTIN
from seqpipe.config.yaml import dump, plain
from seqpipe.console import Console
from seqpipe.errors import ParityError
from seqpipe.evaluation.scores import MAX_GROUPS, MIN_GROUP_RECORDS, group_scores, headlines
from seqpipe.export.diagnose import naming_stage_at_fault
from seqpipe.export.graph import bytes_per_pair, to_onnx
from seqpipe.export.parity.answers import DualPredictor, find_different_split, possible_cut
from seqpipe.export.parity.decisions import MAX_GAP, SCORE_ATOL, probe_records
from seqpipe.export.parity.gate import PROBED, SAMPLE_SEED, judge_int8, sample_records, verify_parity
from seqpipe.export.passes.int8 import in_int8, input_ranges
from seqpipe.features import encoding
from seqpipe.features.document import Record
from seqpipe.features.media import json_value
from seqpipe.features.sources import TextSource, columns, keep_rows, media_fields, tokenizer_file_of, tokenizers_of
from seqpipe.features.splitting import Cut
from seqpipe.files import null_non_finite, writing
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import WIDTHS, limit_options
from seqpipe.runtime.manifest import Golden, Json, Limits, Manifest, MetricsOwner, Option, Reader, Streaming, Weights
from seqpipe.runtime.opened import SCORE_TOLERANCE, OpenedBundle, same_answer
from seqpipe.training.evaluation import TrainedPipeline
from seqpipe.training.progress import outcome_lines
from seqpipe.version import VERSION

TEMPLATE = Template(resources.files("seqpipe.export").joinpath("card.txt").read_text("utf-8"))
TO_FILL_IN = "> **To be filled in by the author:** "


def model_card(manifest: Manifest, metrics: Mapping[str, Metric], size: int) -> str:
    """Return a bundle's model card in Markdown, of a bundle of this many bytes; the model hub reads its YAML head."""
    answer, made_with = cast(Any, manifest.answer), cast(Any, manifest.made_with)
    outcome, tests = cast(Any, manifest.training or {}), cast(Mapping[str, Any], manifest.metrics)
    parts = answer.get("parts", {"": answer})
    kinds, labels = [], []
    for name, part in parts.items():
        suffix = f" of `{name}`" if name else ""
        kinds.append(f"{part['kind']} (`{name}`)" if name else part["kind"])
        if "labels" in part:
            labels.append(f"Labels{suffix}: {', '.join(f'`{label}`' for label in part['labels'])}.\n")
        if "calibration" in part:
            labels.append(f"Chosen on dev{suffix}: {json.dumps(part['calibration'])}\n")
    rows = {name: headlines(scores, outcome.get("metric")) for name, scores in tests.items()}
    if "dev" in outcome and "dev" not in tests:
        rows = {"dev": {outcome["metric"]: outcome["dev"]}, **rows}
    task, *more = dict.fromkeys(ANSWER_KINDS[part["kind"]].hub_task for part in parts.values())
    head: dict[str, Any] = {"library_name": "seqpipe", "pipeline_tag": task, "tags": ["seqpipe", "onnx", *more]}
    settings = made_with.get("settings", {"export": {}})
    head |= {key: value for key in ("license", "language") if (value := settings["export"].get(key))}
    results: list[dict[str, Any]] = []
    for name, scores in rows.items():
        # The hub knows scores by their plain names; the name that seqpipe gives one stands beside.
        values = [
            {"type": re.sub(r".*\.|^m[ai]cro_", "", score), "name": score, "value": value}
            for score, value in scores.items()
            if math.isfinite(value)
        ]
        result = {"task": {"type": task}, "dataset": {"name": name, "type": name}, "metrics": values}
        results += [result] if values else []
    if results:
        head["metrics"] = list(dict.fromkeys(value["type"] for result in results for value in result["metrics"]))
        head["model-index"] = [{"name": manifest.name, "results": results}]
    example = next((example for example in manifest.golden if not example.options), None)
    record = example.record if example else ""
    shown = json.dumps(example.answer, ensure_ascii=False) if example else manifest.no_golden
    limits, versions = manifest.limits, {**made_with["packages"], **made_with["components"]}
    stated = settings.get("card") or {}
    seen = f", the longest of training {limits.trained:,}" if "trained" in limits.model_fields_set else ""
    return TEMPLATE.substitute(
        version=VERSION,
        head=dump(head),
        name=manifest.name,
        kinds=" and ".join(kinds),
        labels="\n".join(labels),
        input=json.dumps(record, ensure_ascii=False),
        python=repr(record),
        answer=f"{shown:.2000}",  # the vector of an embedding is longer
        use=stated.get("intended_use") or f"{TO_FILL_IN}the intended use of the model, and uses that are not intended.",
        gaps=stated.get("limits") or f"{TO_FILL_IN}the source and the language of its data, and what the data lacks.",
        limits=f"at most {limits.tokens:,} tokens{seen}",
        scores=_scores(tests, rows, parts, metrics, outcome.get("intervals", {})),
        groups=_scores_by_group(cast(Any, manifest.groups), stated.get("by"), metrics),
        training="; ".join(outcome_lines(outcome, metrics)) or "the weights were not chosen on dev data",
        data="\n".join(f"| {name} | {size} |" for name, size in outcome.get("data", {}).items()),
        size=f"{size / 1e6:,.1f}",
        settings=dump(settings),
        versions="\n".join(f"- {name}: {version}" for name, version in versions.items()),
        parity="{decisions:,} decisions ({ties} ties)".format_map(manifest.parity),
    )


def _scores(
    tests: Mapping[str, Any],
    rows: Mapping[str, Any],
    parts: Iterable[str],
    metrics: Mapping[str, Metric],
    intervals: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the tables of the main scores, led by the one that selected the weights, and of the scores by label."""
    lines = ["| data set | metric | value | 95 % interval |", "|---|---|---|---|"]
    for name, scores in rows.items():
        for metric, value in scores.items():
            interval = intervals.get(name, {}).get(metric, "")
            lines.append(f"| {name} | {metric} | {format_score(metric, value, metrics)} | {interval} |")
    for name, scores in tests.items():
        if "split_otherwise" in scores:
            share = f"{100 * scores['split_otherwise']:.1f} % of the words of the data are split otherwise there."
            lines += ["", f"{name}: the text alone is given, as in deployment; {share}"]
        for part in parts:
            title = f"{name}, `{part}`" if part else name
            by_label = (scores[part] if part else scores).get("labels", {})
            if by_label:
                lines.append(f"\n{title}:\n\n| label | precision | recall | F1 | support |\n|---|---|---|---|---|")
            for label, counts in by_label.items():
                values = " | ".join(f"{100 * counts[key]:.2f}" for key in ("precision", "recall", "f1"))
                lines.append(f"| {label.replace('|', '&#124;')} | {values} | {counts['gold']:,} |")
    return "\n".join(lines) if rows else "None: the bundle was made without a test set."


def _scores_by_group(groups: Mapping[str, Any], by: str | None, metrics: Mapping[str, Metric]) -> str:
    """Return a table for each set of the main scores of each value of the field `by`; "" without a field."""
    if by is None:
        return ""
    lines = [f"\n## Scores by `{by}`"]
    for name, of_set in groups.get("sets", {}).items():
        table, left_out = list[str](), of_set["left_out"]
        for value, row in of_set["values"].items():
            scores = {key: math.nan if score is None else score for key, score in row["scores"].items()}
            head = f"\n{name}:\n\n| {by} | records | {' | '.join(scores)} |\n{'|---' * (2 + len(scores))}|"
            cells = " | ".join(format_score(*score, metrics) for score in scores.items())
            row = f"| {' '.join(value.split()).replace('|', '&#124;'):.80} | {row['records']:,} | {cells} |"
            table += [row] if table else [head, row]
        lines += table
        if left_out["values"]:
            count = f"{left_out['values']:,} value{'s' * (left_out['values'] > 1)}, of {left_out['records']:,} records"
            rule = (
                f"a value has a score if it has {MIN_GROUP_RECORDS} records or more, and is among the {MAX_GROUPS} most"
            )
            lines.append(f"\n{name}: left out {count} in all; {rule} frequent.")
    if not groups.get("sets"):
        lines.append("\nNone: the run was not evaluated.")
    return "\n".join([*lines, ""])


# The golden examples of a bundle: short records with PyTorch's answers.

GOLDEN_EXAMPLES, MAX_GOLDEN_TOKENS = 8, 40  # number of examples in a bundle, and maximum tokens of one
GOLDEN_BEAMS = 3  # answers, and beams, of the last example


def golden_examples(comparison: DualPredictor, records: Sequence[Record]) -> tuple[Golden, ...]:
    """Return golden examples of short records from all of the data; the first also with alternatives, if there are any.

    If all records are long, the shortest is cut; if none has a token, a probe replaces them. Examples that another
    machine may answer differently are left out: ties, and scores whose rounding already differs here.

    Raises:
        ParityError: if the bundle answers one of them differently.
    """
    source = comparison.featurizer
    chosen = _short(comparison, records)
    alternate = isinstance(source, TextSource) and source.fields == ("text",)
    inputs: list[dict[str, Any]] = []
    for record in chosen:
        words = len(inputs) % 2 and alternate and record.get("words") is not None
        keys = (*columns(source), *(("words", "text") if words else source.fields))
        inputs.append({key: json_value(record[key]) for key in keys})
    examples = _answer_examples(comparison, inputs, {})
    several = [name for name in comparison.model.manifest.options if name.rpartition(".")[2] in WIDTHS]
    if examples and several:
        options = comparison.decisions.trials.with_short_texts(dict.fromkeys(several, GOLDEN_BEAMS))
        examples += _answer_examples(comparison, [cast(Record, examples[0].record)], options)
    return tuple(examples)


def answer_again(model: OpenedBundle, examples: Iterable[Golden]) -> tuple[Golden, ...]:
    """Return the examples with the answers of another model."""
    return tuple(example.model_copy(update={"answer": model.answer_example(example)}) for example in examples)


def _answer_examples(comparison: DualPredictor, records: Sequence[Record], options: Mapping[str, Any]) -> list[Golden]:
    expected, got = comparison.answer_both(records, **options)
    return [
        Golden(record=record, answer=cast(Json, answer), **({"options": options} if options else {}))
        for record, answer, theirs in zip(records, expected, got, strict=True)
        if same_answer(theirs, answer, SCORE_TOLERANCE / 2)
    ]


def _short(comparison: DualPredictor, records: Sequence[Record]) -> list[Record]:
    """Return records of 1 to `MAX_GOLDEN_TOKENS` tokens, none longer than the inputs of training."""
    most = min(MAX_GOLDEN_TOKENS, comparison.limits.trained)
    without_targets = [comparison.task.question(record) for record in records]
    lengths = [len(doc) for doc in comparison.docs(without_targets)]
    short = [i for i, length in enumerate(lengths) if 0 < length <= most]
    if short:
        return [without_targets[i] for i in short[:: max(1, len(short) // GOLDEN_EXAMPLES)][:GOLDEN_EXAMPLES]]
    if any(lengths):
        shortest = min((i for i, length in enumerate(lengths) if length), key=lengths.__getitem__)
        return [_cut(comparison, without_targets[shortest], most)]
    return [next(iter(probe_records(comparison.featurizer, most)))]


def _cut(comparison: DualPredictor, record: Record, most: int) -> Record:
    """Shorten a long record: halve each of its fields, at a space if possible, until it is short."""
    record = {key: value for key, value in record.items() if key != "words" or "text" not in record}
    whole = media_fields(comparison.featurizer)  # half of a picture is none
    while len(comparison.docs([record])[0]) > most:
        halved = dict(record)
        for name in (*(field for field in comparison.featurizer.fields if field not in whole), "words"):
            if record.get(name) is not None:
                half = record[name][: (len(record[name]) + 1) // 2]
                halved[name] = half.rpartition(" ")[0] or half if isinstance(half, str) else half
        if halved == record or not len(comparison.docs([halved])[0]):
            break
        record = halved
    return record


# The content of a bundle: its manifest, bundle.json, and its other files.

LEAST_WRITTEN = 200  # minimum of the limit of generated tokens
LIMIT_FACTOR, LEAST_LIMIT = 4, 1_000  # limit of input tokens as a multiple of the longest text, and its minimum
MOST_BYTES = 2_000_000_000  # maximum of a value that grows with the square of a text; a run has up to two at once
CALIBRATING = 256  # maximum number of records that int8 is calibrated with
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "tokenizers", "numpy")


def bundle_files(pipeline: TrainedPipeline, graph: bytes) -> dict[str, bytes]:
    """Return the graph and the tokenizers, by file name."""
    artifacts = pipeline.artifacts
    tokenizers = {tokenizer_file_of(name): of for name, of in tokenizers_of(artifacts.featurizer).items()}
    tokenizers |= {tokenizer_file(name): of for name, of in artifacts.target_tokenizers.items()}
    return {"model.onnx": graph, **{file: of.to_str(pretty=True).encode() for file, of in tokenizers.items()}}


def bundle_manifest(pipeline: TrainedPipeline, scores: Mapping[str, Any] | None = None, longest: int = 0) -> Manifest:
    """Return the content of bundle.json without golden examples, parity figures and files.

    `scores` are PyTorch's on the test sets, `longest` is the number of tokens of the longest held-out text.
    """
    network, config, artifacts = pipeline.network, pipeline.config, pipeline.artifacts
    answer = artifacts.kind.manifest()
    for task, head in zip(artifacts.tasks, network.heads, strict=True):
        answer_of_head = answer["parts"][task.name] if task.name else answer
        if task.answer.get("every_token"):
            answer_of_head["every_token"] = True
        calibration = member(head, "calibration")
        if calibration and (chosen := calibration()):
            answer_of_head["calibration"] = chosen
    # Callers may request at most `export.max_beams` beams and answers, and texts of lengths seen in training.
    limits = _limits(pipeline, longest)
    tokens = {}
    for task in artifacts.tasks:
        length = 0 if config.export.max_tokens else LIMIT_FACTOR * task.longest
        tokens[task.name] = min(network.most_written, max(LEAST_WRITTEN, length or limits.tokens))
    bounded = {name: dict(option) for name, option in pipeline.options.items()}
    limit_options(bounded, config.export.max_beams, tokens)
    optional: dict[str, Any] = {"cache": cache} if (cache := network.cache) else {}
    # Heads with their own metrics, which `evaluate` uses if their package is installed.
    owners = {
        task.name: MetricsOwner(
            use=head.offer.name,
            options=plain(head.options),
            distribution=head.offer.distribution,
            version=head.offer.version,
        )
        for task, head in zip(artifacts.tasks, config.head, strict=True)
        if has_member(head.cls, "metrics")
    }
    if owners:
        optional["own_metrics"] = owners
    if config.export.explain:  # the attention weights of the graph, each with its unit and axis
        maps = [weights for names in network.attended.values() for weights in names.values()]
        grids: list[dict[str, Any]] = [{"grid": weights.grid} if weights.grid else {} for weights in maps]
        weights_of = zip(maps, grids, strict=True)
        optional["explain"] = {of.key: Weights(over=of.over, axis=of.axis, **grid) for of, grid in weights_of}
    return Manifest(
        name=config.name,
        field=artifacts.featurizer.field,
        inputs=artifacts.featurizer.manifest(),
        outputs=tuple(artifacts.kind.outputs),
        options=cast(dict[str, Option], bounded),
        answer=answer,
        limits=limits,
        reader=Reader(use=config.data.reader.use, options=config.data.reader.options),
        golden=(),
        metrics=null_non_finite(scores or {}),
        parity={},
        made_with={
            "packages": {name: importlib.metadata.version(name) for name in (BUILTIN, *PACKAGES)},
            "components": {f"{s.kind} {s.use}": f"{s.offer.distribution} {s.offer.version}" for s in config.components},
            "python": platform.python_version(),
            "settings": resolved(config, only_names=True),
        },
        files={},
        **optional,
    )


def _limits(pipeline: TrainedPipeline, longest: int) -> Limits:
    """Return the maximum number of tokens of a text: from the YAML, else a multiple of the longest training text.

    If answers warn about inputs longer than any in training, also the tokens of the longest of those.
    """
    trained = pipeline.artifacts.longest
    limits, seen = pipeline.network.limits, max(trained, longest)
    most = pipeline.config.export.max_tokens or (max(LEAST_LIMIT, LIMIT_FACTOR * seen) if seen else limits.tokens)
    changes = {"tokens": min(limits.tokens, most)}
    if trained and any(part.warns_of_length for part in pipeline.artifacts.kind.parts.values()):
        changes["trained"] = trained
    return limits.model_copy(update=changes)


# Export a pipeline's graph and compare it with PyTorch.


@contextmanager
def exported_graph(pipeline: TrainedPipeline, console: Console) -> Iterator[bytes]:
    """Yield the bytes of the pipeline's graph, to be compared with PyTorch; an error names the stage at fault.

    Raises:
        ExportError: if a component does not export; or any error of the block.
    """
    with naming_stage_at_fault(pipeline.network, pipeline.config.export.opset):
        with console.progress("exporting", None):
            graph = to_onnx(pipeline)
        yield graph


# Export a trained pipeline as a verified bundle: compare it with PyTorch, then write it completely or not at all.


def export_bundle(
    pipeline: TrainedPipeline,
    records: Sequence[Record],
    path: Path,
    console: Console,
    scores: Mapping[str, Any] | None = None,
    outcome: Mapping[str, Any] | None = None,
    references: bool = True,
    answers: Iterable[Mapping[str, Any]] = (),
) -> OpenedBundle:
    """Write the bundle to `path` and return it as an open Model.

    Args:
        pipeline: The trained pipeline.
        records: Records with references: both sides answer them, and the metrics must be equal.
        path: Folder of the bundle; an existing one is replaced at the end.
        console: For progress.
        scores: PyTorch's scores on the test sets, for the manifest.
        outcome: The outcome of training (`seqpipe.training.progress`), for the manifest.
        references: Whether the records have references; without them answers are compared, but no metric.
        answers: The stored answers of the run (`RunFolder.answers`), for the scores by the field `card.by`.

    Raises:
        DataError: if an answered record has no such field.
        ExportError: if a component does not export.
        ParityError: if the graph answers differently.
    """
    artifacts, settings = pipeline.artifacts, pipeline.config.export
    pipeline.network.eval()
    docs = artifacts.featurizer.docs([artifacts.task.question(record) for record in records])
    keep_rows(artifacts.featurizer, docs)
    longest = max(map(len, docs), default=0)
    manifest = bundle_manifest(pipeline, scores, longest)
    if pipeline.network.streams:
        manifest = manifest.model_copy(update={"streaming": Streaming(cut=_find_cut(pipeline, records, console))})
    console.say("exporting to ONNX")
    start = time.monotonic()

    difference = path.with_name(f"{path.name}-difference.npz")
    try:
        with exported_graph(pipeline, console) as graph:
            if not settings.max_tokens and (pair := bytes_per_pair(graph)):
                most = max(longest, artifacts.longest, LEAST_LIMIT, math.isqrt(MOST_BYTES // pair))
                limits = manifest.limits.model_copy(update={"tokens": min(manifest.limits.tokens, most)})
                manifest = manifest.model_copy(update={"limits": limits})
            files = bundle_files(pipeline, graph)
            # The bundle is written to a temporary folder and read as in a deployment.
            with tempfile.TemporaryDirectory() as folder:
                bundle.write_bundle(Path(folder) / path.name, files, manifest)
                model = OpenedBundle(replace(bundle.read(Path(folder) / path.name), path=path), "cpu")
            seconds = time.monotonic() - start
            console.say(f"  {len(graph):,} bytes ({seconds:.1f} s)\ncomparing onnxruntime with PyTorch")
            comparison = DualPredictor(pipeline, model)
            parity = verify_parity(comparison, records, console, references)
            golden = golden_examples(comparison, records)
    except ParityError as error:
        if error.evidence:
            with writing(difference) as temporary, temporary.open("wb") as file:
                np.savez(file, **error.evidence)
            error.args = (f"{error}\nits inputs, both answers and their margins are in {difference}",)
        raise
    difference.unlink(missing_ok=True)
    _report(comparison, parity, len(records), pipeline.config.data.compared, console)
    if settings.precision == "int8":
        console.say("quantizing to int8 and comparing with fp32")
        files["model.onnx"] = _quantize(graph, comparison, records)
        model = OpenedBundle(bundle.BundleContent(path, model.manifest, files), "cpu")
        parity |= judge_int8(comparison, model, records)
        golden = answer_again(model, golden)
        _report_int8(comparison, parity, console)
    changes: dict[str, Any] = {"parity": parity, "golden": golden, "training": dict(outcome or {})}
    if by := pipeline.config.card.by:
        groups = group_scores(comparison.ours, answers, by, changes["training"].get("metric"))
        changes["groups"] = null_non_finite(groups)
    if not golden:
        changes["no_golden"] = "PyTorch and onnxruntime tie on every short text, or round its scores differently"
    manifest = model.manifest.model_copy(update=changes)
    card = model_card(manifest, comparison.ours.metric_types, sum(map(len, files.values())))
    bundle.write_bundle(path, {**files, bundle.CARD: card.encode()}, manifest)
    written = bundle.read(path)
    model.manifest, model.sha256 = written.manifest, written.sha256
    return model


def _report(comparison: DualPredictor, parity: Mapping[str, Any], held_out: int, data: str, console: Console) -> None:
    """Print the agreement of PyTorch and the bundle on the records of this set."""
    score = ""
    if "metric" in parity:
        value = format_score(parity["metric"], parity["pytorch"], comparison.ours.metric_types)
        score = f"; {data} {parity['metric']} {value} in both"
    console.say(
        f"  onnxruntime = PyTorch in {parity['decisions']:,} decisions, of which {parity['ties']} are ties; "
        f"scores within {parity['worst_score']:.1g}{score}"
    )
    optional = parity["records_with_options"]
    drawn = f"{parity['records']:,} of {held_out:,} (drawn with seed {SAMPLE_SEED})"
    console.say(
        f"  the same features of {held_out:,} records and {parity['read'] - held_out:,} generated texts; "
        f"the same answers to {'all' if parity['records'] == held_out else drawn} records and "
        f"{parity['texts']:,} generated texts"
        + (f"; with other decode options to {optional:,} of these records" if optional else "")
    )
    if parity["rounded"]:
        console.say(f"  {parity['rounded']:,} scores beyond {MAX_GAP:g} are as near to float64 as those of PyTorch")
    if fault := comparison.decisions.judge.fault:
        console.say(f"  note: compared within {SCORE_ATOL:g}, not by float64, in which a component fails: {fault}")
    if parity["without_effect"]:
        console.say(f"  without effect on the tried inputs, so not compared: {', '.join(parity['without_effect'])}")


def _quantize(graph: bytes, comparison: DualPredictor, records: Sequence[Record]) -> bytes:
    """Return the graph in int8, calibrated with a sample of the records."""
    docs = comparison.docs([comparison.task.question(record) for record in sample_records(records)[:CALIBRATING]])
    inputs = (comparison.featurizer.collate([doc]) for doc in docs if len(doc))  # singly, without padding
    return in_int8(graph, input_ranges(graph, inputs))


def _report_int8(comparison: DualPredictor, parity: Mapping[str, Any], console: Console) -> None:
    """Print the scores in int8 and in fp32, and for few records the share of equal decisions."""
    name, metrics = parity["metric"], comparison.ours.metric_types
    fp32, int8 = (format_score(name, parity[side], metrics) for side in ("pytorch", "onnxruntime"))
    console.say(f"  in int8 {name} {int8}, in fp32 {fp32}")
    if "agreement" in parity:
        agreement = f"{parity['agreement']:.1%} of {parity['compared']:,} decisions are those of fp32"
        console.say(f"  evaluated by its decisions, since {parity['records']} records are few: {agreement}")


def _find_cut(pipeline: TrainedPipeline, records: Sequence[Record], console: Console) -> Cut | None:
    """Return where streamed texts may be cut for their tokenizer; None if only words can be streamed."""
    source = pipeline.artifacts.featurizer
    assert isinstance(source, TextSource)
    texts = [*sample_records(records), *probe_records(source, PROBED, SAMPLE_SEED)]
    cut = possible_cut(source, texts)
    if cut is None:
        text = encoding.text_excerpt(find_different_split(source, texts, "word") or "")
        message = f"the tokenizer splits {text} differently in chunks"
        console.say(f"note: {message}: streamed texts must be given as words (--format conll)")
    return cut
