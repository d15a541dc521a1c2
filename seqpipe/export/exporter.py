"""Export a trained pipeline as a verified bundle: its manifest, golden examples, graph and model card."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import onnx

from seqpipe.answers.metrics.numbers import format_score
from seqpipe.answers.registry import tokenizer_file
from seqpipe.answers.types import Metric
from seqpipe.config.contract import has_member, member, metric_types
from seqpipe.config.loader import Config
from seqpipe.config.plugins import BUILTIN
from seqpipe.config.yaml import plain
from seqpipe.console import Console
from seqpipe.errors import SeqpipeError
from seqpipe.export.diagnose import naming_stage_at_fault
from seqpipe.export.graph import graph_without_weights, with_weights
from seqpipe.export.graph_cache import VARIABLE, GraphCache, UnknownKeyError, graph_key
from seqpipe.export.parity.answers import Comparison, possible_cut, split_otherwise
from seqpipe.export.parity.decisions import probe_records
from seqpipe.export.parity.gate import PROBED, SEED, judge_int8, sampled, verify_parity
from seqpipe.export.passes.int8 import in_int8
from seqpipe.features import encoding
from seqpipe.features.document import Record
from seqpipe.features.sources import TextSource, columns, tokenizer_file_of, tokenizers_of
from seqpipe.features.splitting import Cut
from seqpipe.files import finite
from seqpipe.runtime import bundle
from seqpipe.runtime.evaluate import headlines
from seqpipe.runtime.manifest import Golden, Json, Limits, Manifest, MetricsOwner, Option, Reader, Streaming, Weights
from seqpipe.runtime.model import TOLERANCE, Model, same_answer
from seqpipe.training.evaluation import option_table
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.progress import outcome_lines


def model_card(manifest: Manifest, metrics: Mapping[str, Metric]) -> str:
    """Return a bundle's model card in Markdown: description, usage, scores and training environment."""
    answer: Mapping[str, Any] = manifest.answer
    parts: Mapping[str, Any] = answer.get("parts", {"": answer})
    kinds = " and ".join(part["kind"] + (f" (`{name}`)" if name else "") for name, part in parts.items())
    lines = [f"# {manifest.name}", "", f"A seqpipe bundle that answers with {kinds}.", ""]
    for name, part in parts.items():
        if "labels" in part:
            labels = ", ".join(f"`{label}`" for label in part["labels"])
            lines += [f"Labels{f' of `{name}`' if name else ''}: {labels}", ""]
        if "calibration" in part:
            lines += [f"Chosen on dev{f' for `{name}`' if name else ''}: {json.dumps(part['calibration'])}", ""]
    lines += [
        "## Use",
        "",
        "```",
        'pip install "seqpipe-nlp[cpu]"',
        'echo "some text" | seqpipe predict PATH_OF_THIS_FOLDER',
        "```",
        "",
    ]
    lines += ["`seqpipe verify PATH_OF_THIS_FOLDER` repeats the golden examples on this machine.", ""]
    lines += _scores(manifest, metrics)
    made_with, parity = cast(Mapping[str, Mapping[str, str]], manifest.made_with), manifest.parity
    lines += ["## Made with", "", *(f"- {name} {version}" for name, version in made_with["packages"].items())]
    lines += [f"- {place}: {owner}" for place, owner in made_with["components"].items()]
    lines += ["", f"onnxruntime and PyTorch agreed on {parity['decisions']} decisions ({parity['ties']} ties).", ""]
    return "\n".join(lines)


def _scores(manifest: Manifest, metrics: Mapping[str, Metric]) -> list[str]:
    """Return the lines of the score table, led by the metric that selected the weights, and of training's outcome."""
    outcome, tests = cast(Mapping[str, Any], manifest.training), cast(Mapping[str, Mapping[str, Any]], manifest.metrics)
    rows = {}
    if "dev" in outcome and "dev" not in tests:
        rows["dev"] = {outcome["metric"]: outcome["dev"]}
    rows |= {name: headlines(scores, outcome.get("metric")) for name, scores in tests.items()}
    lines = ["## Scores", "", "| data set | metric | value |", "|---|---|---|"]
    for name, scores in rows.items():
        lines += [f"| {name} | {metric} | {format_score(metric, value, metrics)} |" for metric, value in scores.items()]
    raw = [
        f"{name}: the text alone is given, as in deployment; {100 * scores['split_otherwise']:.1f} % of the words of "
        "the data are split otherwise there."
        for name, scores in tests.items()
        if "split_otherwise" in scores
    ]
    training = [f"Training: {'; '.join(described)}.", ""] if (described := outcome_lines(outcome, metrics)) else []
    return [*lines, "", *(line for text in raw for line in (text, "")), *training] if rows else training


# The golden examples of a bundle: short records with PyTorch's answers.

EXAMPLES, TOKENS = 8, 40  # that a bundle carries, and of the longest of them
SEVERAL = 3  # answers, and beams, of the last example


def golden_examples(comparison: Comparison, records: Sequence[Record]) -> tuple[Golden, ...]:
    """Return golden examples of short records from all of the data; the first also with alternatives, if there are any.

    Where all records are long, the shortest is cut; where none has a token, a probe stands in. Left out is what another
    machine may answer otherwise: ties, and scores that are already rounded otherwise here.

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
        inputs.append({key: record[key] for key in keys})
    examples = _answered(comparison, inputs, {})
    several = [name for name in comparison.model.manifest.options if name.rpartition(".")[2] in ("beams", "n_best")]
    if examples and several:
        options = comparison.decisions.trials.with_short_texts(dict.fromkeys(several, SEVERAL))
        examples += _answered(comparison, [cast(Record, examples[0].record)], options)
    return tuple(examples)


def answered_anew(model: Model, examples: Iterable[Golden]) -> tuple[Golden, ...]:
    """Return the examples with the answers of another model."""
    return tuple(example.model_copy(update={"answer": model.answer_example(example)}) for example in examples)


def _answered(comparison: Comparison, records: Sequence[Record], options: Mapping[str, Any]) -> list[Golden]:
    expected, got = comparison.answer_both(records, **options)
    return [
        Golden(record=record, answer=cast(Json, answer), **({"options": options} if options else {}))
        for record, answer, theirs in zip(records, expected, got, strict=True)
        if same_answer(theirs, answer, TOLERANCE / 2)
    ]


def _short(comparison: Comparison, records: Sequence[Record]) -> list[Record]:
    """Return records of 1 to `TOKENS` tokens, none longer than the inputs of training."""
    most = min(TOKENS, comparison.limits.trained)
    without_targets = [comparison.task.question(record) for record in records]
    lengths = [len(doc) for doc in comparison.docs(without_targets)]
    short = [i for i, length in enumerate(lengths) if 0 < length <= most]
    if short:
        return [without_targets[i] for i in short[:: max(1, len(short) // EXAMPLES)][:EXAMPLES]]
    if any(lengths):
        shortest = min((i for i, length in enumerate(lengths) if length), key=lengths.__getitem__)
        return [_cut(comparison, without_targets[shortest], most)]
    return [next(iter(probe_records(comparison.featurizer, most)))]


def _cut(comparison: Comparison, record: Record, most: int) -> Record:
    """Shorten a long record: halve each of its fields, at a blank if possible, until it is short."""
    record = {key: value for key, value in record.items() if key != "words" or "text" not in record}
    while len(comparison.docs([record])[0]) > most:
        halved = dict(record)
        for name in (*comparison.featurizer.fields, "words"):
            if record.get(name) is not None:
                half = record[name][: (len(record[name]) + 1) // 2]
                halved[name] = half.rpartition(" ")[0] or half if isinstance(half, str) else half
        if halved == record or not len(comparison.docs([halved])[0]):
            break
        record = halved
    return record


# The content of a bundle: its manifest, bundle.json, and its other files.

LEAST_WRITTEN = 200  # tokens that a caller may ask for in any case
MARGIN, LEAST_LIMIT = 4, 1_000  # times the longest text that was seen, a bundle takes, and tokens in any case
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "tokenizers", "numpy")


def bundle_files(pipeline: Pipeline, graph: bytes) -> dict[str, bytes]:
    """Return the graph and the tokenizers, by file name."""
    artifacts = pipeline.artifacts
    files = {"model.onnx": graph}
    for name, tokenizer in tokenizers_of(artifacts.featurizer).items():
        files[tokenizer_file_of(name)] = tokenizer.to_str(pretty=True).encode()
    for name, tokenizer in artifacts.target_tokenizers.items():
        files[tokenizer_file(name)] = tokenizer.to_str(pretty=True).encode()
    return files


def bundle_manifest(
    pipeline: Pipeline,
    config: Config,
    options: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, Any],
    longest: int = 0,
) -> Manifest:
    """Return the content of bundle.json without golden examples, parity figures and files.

    Args:
        pipeline: Trained.
        config: Of the run.
        options: Decode options of the heads.
        scores: PyTorch's scores on the test sets.
        longest: Tokens of the longest held-out text.
    """
    artifacts = pipeline.artifacts
    answer = artifacts.kind.manifest()
    for task, head in zip(artifacts.tasks, pipeline.heads, strict=True):
        if task.answer.get("every_token"):
            (answer["parts"][task.name] if task.name else answer)["every_token"] = True
        calibration = member(head, "calibration")
        if calibration and (chosen := calibration()):
            (answer["parts"][task.name] if task.name else answer)["calibration"] = chosen
    # A caller may ask for at most `export.max_beams` beams and answers, and for a text of a length that was learned.
    limits = _limits(pipeline, config, longest)
    targets = {task.name: 0 if config.export.max_tokens else task.longest for task in artifacts.tasks}
    bounded = {name: dict(option) for name, option in options.items()}
    for name, option in bounded.items():
        head_name, _, plain_name = name.rpartition(".")
        if plain_name in ("beams", "n_best"):
            most = config.export.max_beams
        elif plain_name == "max_length":
            most = min(pipeline.most_written, max(LEAST_WRITTEN, MARGIN * targets[head_name] or limits.tokens))
        else:
            continue
        option["maximum"] = max(option["default"], min(option["maximum"] or most, most))
    optional: dict[str, Any] = {"cache": pipeline.cache} if pipeline.cache else {}
    # Heads with metrics of their own, which `evaluate` asks for where their package is installed.
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
    if config.export.explain:  # the attention weights that the graph gives: what each is over, and at which axis
        maps = [weights for names in pipeline.attended.values() for weights in names.values()]
        optional["explain"] = {weights.key: Weights(over=weights.over, axis=weights.axis) for weights in maps}
    manifest = Manifest(
        name=config.name,
        field=artifacts.featurizer.field,
        inputs=artifacts.featurizer.manifest(),
        outputs=tuple(artifacts.kind.outputs),
        options=cast(dict[str, Option], bounded),
        answer=answer,
        limits=limits,
        reader=Reader(use=config.data.reader.use, options=config.data.reader.options),
        golden=(),
        metrics=finite(scores),
        parity={},
        made_with={
            "packages": {name: importlib.metadata.version(name) for name in (BUILTIN, *PACKAGES)},
            "components": {f"{s.kind} {s.use}": f"{s.offer.distribution} {s.offer.version}" for s in config.components},
            "python": platform.python_version(),
        },
        files={},
    )
    return manifest.model_copy(update=optional)


def _limits(pipeline: Pipeline, config: Config, longest: int) -> Limits:
    """Return the maximum number of tokens of a text: from the YAML, else a multiple of the longest training text.

    Where answers warn of inputs that are longer than any in training, also the tokens of the longest of those.
    """
    trained = pipeline.artifacts.longest
    limits, seen = pipeline.limits, max(trained, longest)
    most = config.export.max_tokens or (max(LEAST_LIMIT, MARGIN * seen) if seen else limits.tokens)
    changes = {"tokens": min(limits.tokens, most)}
    if trained and any(part.warns_of_length for part in pipeline.artifacts.kind.parts.values()):
        changes["trained"] = trained
    return limits.model_copy(update=changes)


# Export a pipeline's graph, or read it from the cache, and compare it with PyTorch.

Used = TypeVar("Used")


def use_graph(
    pipeline: Pipeline, config: Config, cache: GraphCache | None, console: Console, use: Callable[[bytes], Used]
) -> Used:
    """Return the result of `use` for the bytes of the pipeline's graph.

    Args:
        pipeline: In evaluation.
        config: Of the pipeline: its decode options, opset and whether the graph explains.
        cache: Where the graph is looked for first and written afterwards; None to trace it in any case.
        console: Gets a warning if a cached graph is wrong.
        use: Compares the graph with PyTorch. The graph is cached after that. If `use` raises for a cached graph, the
            entry is deleted and `use` is called again with a new graph.

    Raises:
        ExportError: if a component does not export; and whatever `use` raises for a graph that is not from the cache.
    """
    options = option_table(*config.head)
    settings = (options, config.export.opset, config.export.explain)
    key = None
    if cache is not None:
        try:
            key = graph_key(pipeline, *settings)
        except UnknownKeyError as error:
            console.detail(f"  the graph is not cached: {error}")
    if cache is not None and key is not None and (cached := cache.read(key)) is not None:
        try:
            return use(with_weights(onnx.ModelProto.FromString(cached), pipeline))
        except Exception as error:  # a new graph shows whether the pipeline is at fault
            cache.delete(key)
            why = str(error).partition(";")[0]  # the rest says what to do about a pipeline
            console.say(f"the cached graph was refused ({type(error).__name__}: {why}); it is deleted, exporting anew")
    with naming_stage_at_fault(pipeline, config.export.opset):
        with console.progress("exporting", None):
            model = graph_without_weights(pipeline, *settings)
        used = use(with_weights(model, pipeline))
    # A model that PyTorch's own exporter made holds the values of its weights, which are not the next pipeline's.
    holds_weights = any(t.raw_data and t.name.startswith("pipeline.") for t in model.graph.initializer)
    if cache is not None and key is not None and not holds_weights:
        try:
            cache.write(key, bytes(model.SerializeToString()))
        except (OSError, SeqpipeError) as error:  # such as a full disk; the graph itself is fine
            console.say(f"the graph is not cached: {error}; set {VARIABLE} to a folder that can be written")
    return used


# Export a trained pipeline as a verified bundle: compared with PyTorch, then written whole or not at all.


def export(
    pipeline: Pipeline,
    config: Config,
    records: Sequence[Record],
    path: Path,
    console: Console,
    scores: Mapping[str, Any] | None = None,
    cache: GraphCache | None = None,
    outcome: Mapping[str, Any] | None = None,
    references: bool = True,
) -> Model:
    """Write the bundle to `path` and return it as an open Model.

    Args:
        pipeline: Trained, on the CPU.
        config: Of the run.
        records: With references: they are answered by both sides, and the metric must be the same.
        path: Where the bundle goes; one that is there is replaced at the end.
        console: For reports of progress.
        scores: PyTorch's scores on the test sets, for the manifest.
        cache: Where the graph is looked for first, and kept.
        outcome: How training ended (`seqpipe.training.progress`), for the manifest.
        references: Whether the records have references; without, answers are compared and no metric.

    Raises:
        ExportError: if a component does not export.
        ParityError: if the graph answers differently.
    """
    pipeline.eval()
    docs = pipeline.artifacts.featurizer.docs([pipeline.artifacts.task.question(record) for record in records])
    longest = max(map(len, docs), default=0)
    manifest = bundle_manifest(pipeline, config, option_table(*config.head), scores or {}, longest)
    changes: dict[str, Any] = {"training": dict(outcome or {})}
    if pipeline.streams:
        changes["streaming"] = Streaming(cut=_cut_of_texts(pipeline, records, console))
    manifest = manifest.model_copy(update=changes)
    console.say("exporting to ONNX")
    start = time.monotonic()

    def compare(graph: bytes) -> _ComparedBundle:
        files = bundle_files(pipeline, graph)
        # The bundle is written somewhere else and read as a deployment reads it.
        with tempfile.TemporaryDirectory() as folder:
            bundle.write(Path(folder) / path.name, files, manifest)
            model = Model(replace(bundle.read(Path(folder) / path.name), path=path), "cpu")
        console.say(f"  {len(graph):,} bytes ({time.monotonic() - start:.1f} s)\ncomparing onnxruntime with PyTorch")
        comparison = Comparison(pipeline, config, model)
        parity = verify_parity(comparison, records, console, references)
        return _ComparedBundle(comparison, model, files, parity, golden_examples(comparison, records))

    compared = use_graph(pipeline, config, cache, console, compare)
    metrics = metric_types(config.head)
    compared.report(len(records), metrics, console)
    if config.export.precision == "int8":
        compared = compared.to_int8(records, path, console)
    changes = {"parity": compared.parity, "golden": compared.golden}
    if not compared.golden:
        changes["no_golden"] = "PyTorch and onnxruntime tie on every short text, or round its scores otherwise"
    manifest = manifest.model_copy(update=changes)
    bundle.write(path, {**compared.files, "README.md": model_card(manifest, metrics).encode()}, manifest)
    written = bundle.read(path)
    compared.model.manifest, compared.model.sha256 = written.manifest, written.sha256
    return compared.model


@dataclass(frozen=True)
class _ComparedBundle:
    """A bundle that has been compared with PyTorch but not written."""

    comparison: Comparison
    model: Model
    files: dict[str, bytes]
    parity: dict[str, Any]
    golden: tuple[Golden, ...]

    def report(self, held_out: int, metrics: Mapping[str, Metric], console: Console) -> None:
        """Print the agreement of PyTorch and the bundle."""
        parity = self.parity
        score = ""
        if "metric" in parity:
            score = f"; {parity['metric']} {format_score(parity['metric'], parity['pytorch'], metrics)} in both"
        console.say(
            f"  onnxruntime = PyTorch in {parity['decisions']:,} decisions, of which {parity['ties']} are ties; "
            f"scores within {parity['worst_score']:.1g}{score}"
        )
        optional = parity["records_with_options"]
        drawn = f"{parity['records']:,} of {held_out:,} (drawn with seed {SEED})"
        console.say(
            f"  the same features of {held_out:,} records and {parity['read'] - held_out:,} generated texts; "
            f"the same answers to {'all' if parity['records'] == held_out else drawn} records and "
            f"{parity['texts']:,} generated texts"
            + (f"; with other decode options to {optional:,} of these records" if optional else "")
        )
        if parity["without_effect"]:
            console.say(f"  no effect on the tried inputs, so not compared: {', '.join(parity['without_effect'])}")

    def to_int8(self, records: Sequence[Record], path: Path, console: Console) -> _ComparedBundle:
        """Return the bundle in int8; ParityError if its answers are worse."""
        console.say("quantizing to int8 and comparing with fp32")
        files = {**self.files, "model.onnx": in_int8(self.files["model.onnx"])}
        model = Model(bundle.BundleContent(path, self.model.manifest, files), "cpu")
        parity = self.parity | judge_int8(self.comparison, model, records)
        metrics = model.predictor.metric_types
        fp32, int8 = (format_score(parity["metric"], parity[side], metrics) for side in ("pytorch", "onnxruntime"))
        console.say(f"  in int8 {parity['metric']} {int8}, in fp32 {fp32}")
        if "agreement" in parity:
            agreement = f"{parity['agreement']:.1%} of {parity['compared']:,} decisions are those of fp32"
            console.say(f"  judged by its decisions, since {parity['records']} records are few: {agreement}")
        golden = answered_anew(model, self.golden)
        return _ComparedBundle(self.comparison, model, files, parity, golden)


def _cut_of_texts(pipeline: Pipeline, records: Sequence[Record], console: Console) -> Cut | None:
    """Return where streamed texts may be cut for their tokenizer; None if only words can be streamed."""
    source = pipeline.artifacts.featurizer
    assert isinstance(source, TextSource)
    texts = [*sampled(records), *probe_records(source, PROBED, SEED)]
    cut = possible_cut(source, texts)
    if cut is None:
        text = encoding.excerpt(split_otherwise(source, texts, "word") or "")
        message = f"the tokenizer splits {text} otherwise in pieces"
        console.say(f"note: {message}: streamed texts must be given as words (--format conll)")
    return cut
