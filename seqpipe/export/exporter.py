"""Export a trained pipeline as a verified bundle: compared with PyTorch, then written whole or not at all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.table import shown
from seqpipe.answers.types import Metric
from seqpipe.config.head_answers import metric_types
from seqpipe.config.loader import Config
from seqpipe.console import Console
from seqpipe.export.card import model_card
from seqpipe.export.golden import golden_examples
from seqpipe.export.graph_cache import GraphCache
from seqpipe.export.manifest import bundle_files, bundle_manifest
from seqpipe.export.parity.answers import Comparison
from seqpipe.export.parity.gate import PROBED, SEED, sampled, verify_parity
from seqpipe.export.parity.generated_records import probe_records
from seqpipe.export.parity.precision import judge_int8
from seqpipe.export.parity.text_pieces import possible_cut, split_otherwise
from seqpipe.export.passes.int8 import in_int8
from seqpipe.export.verified import use_graph
from seqpipe.features import encoding
from seqpipe.features.document import Record
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import Cut
from seqpipe.runtime import bundle
from seqpipe.runtime.model import Model
from seqpipe.training.evaluation import option_table
from seqpipe.training.pipeline import Pipeline


def export(
    pipeline: Pipeline,
    config: Config,
    records: Sequence[Record],
    path: Path,
    console: Console,
    scores: Mapping[str, Any] | None = None,
    cache: GraphCache | None = None,
    outcome: Mapping[str, Any] | None = None,
) -> Model:
    """Writes the bundle to `path` and returns it, open.

    Args:
        pipeline: Trained, on the CPU.
        config: Of the run.
        records: With references: they are answered by both sides, and the metric must be the same.
        path: Where the bundle goes; one that is there is replaced at the end.
        console: For reports of progress.
        scores: PyTorch's scores on the test sets, for the manifest.
        cache: Where the graph is looked for first, and kept.
        outcome: How training ended (`seqpipe.training.progress`), for the manifest.

    Raises:
        ExportError: if a component does not export.
        ParityError: if the graph answers differently.
    """
    pipeline.eval()
    docs = pipeline.artifacts.featurizer.docs([pipeline.artifacts.kind.question(record) for record in records])
    longest = max(map(len, docs), default=0)
    manifest = bundle_manifest(pipeline, config, option_table(*config.head), scores or {}, longest)
    manifest["training"] = dict(outcome or {})
    if pipeline.streams:
        manifest["streaming"] = {"cut": _cut_of_texts(pipeline, records, console)}
    console.say("exporting to ONNX")
    start = time.monotonic()

    def compare(graph: bytes) -> _ComparedBundle:
        files = bundle_files(pipeline, graph)
        model = _read_back(path, files, manifest)
        console.say(f"  {len(graph):,} bytes ({time.monotonic() - start:.1f} s)\ncomparing onnxruntime with PyTorch")
        comparison = Comparison(pipeline, config, model)
        parity = verify_parity(comparison, records, console)
        return _ComparedBundle(comparison, model, files, parity, golden_examples(comparison, records))

    compared = use_graph(pipeline, config, cache, console, compare)
    metrics = metric_types(config.head)
    _report_parity(compared.parity, len(records), metrics, console)
    if config.export.precision == "int8":
        compared = _in_int8(compared, records, path, console)
    manifest |= {"parity": compared.parity, "golden": compared.golden}
    if not compared.golden:
        manifest["no_golden"] = "PyTorch and onnxruntime tie on every short text, or round its scores otherwise"
    bundle.write(path, {**compared.files, "README.md": model_card(manifest, metrics).encode()}, manifest)
    written = bundle.read(path)
    compared.model.manifest, compared.model.sha256 = written.manifest, written.sha256
    return compared.model


@dataclass(frozen=True)
class _ComparedBundle:
    """A bundle that was compared with PyTorch and is not written yet."""

    comparison: Comparison
    model: Model
    files: dict[str, bytes]
    parity: dict[str, Any]
    golden: list[dict[str, Any]]


def _cut_of_texts(pipeline: Pipeline, records: Sequence[Record], console: Console) -> Cut | None:
    """What texts may be cut behind, as their tokenizer splits them; None where only words can be streamed."""
    source = pipeline.artifacts.featurizer
    assert isinstance(source, TextSource)
    texts = [*sampled(records), *probe_records(source, PROBED, SEED)]
    cut = possible_cut(source, texts)
    if cut is None:
        text = encoding.shown(split_otherwise(source, texts, "word") or "")
        message = f"the tokenizer splits {text} otherwise in pieces"
        console.say(f"note: {message}: streamed texts must be given as words (--format conll)")
    return cut


def _read_back(path: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Model:
    """The bundle that is to stand at `path`, written somewhere else and read as a deployment reads it."""
    with tempfile.TemporaryDirectory() as folder:
        bundle.write(Path(folder) / path.name, files, manifest)
        return Model(replace(bundle.read(Path(folder) / path.name), path=path), "cpu")


def _report_parity(parity: Mapping[str, Any], held_out: int, metrics: Mapping[str, Metric], console: Console) -> None:
    score = shown(parity["metric"], parity["pytorch"], metrics)
    console.say(
        f"  {parity['decisions']:,} decisions: the same but for {parity['ties']} ties; "
        f"scores within {parity['worst_score']:.1g}; {parity['metric']} {score} in both"
    )
    optional = parity["records_with_options"]
    drawn = f"{parity['records']:,} of {held_out:,} (drawn with seed {SEED})"
    console.say(
        f"  the same features of {held_out:,} held-out records and {parity['read'] - held_out:,} generated texts; "
        f"the same answers to {'all' if parity['records'] == held_out else drawn} held-out records and "
        f"{parity['texts']:,} generated texts"
        + (f"; with other decode options to {optional:,} of these records" if optional else "")
    )
    if parity["without_effect"]:
        console.say(f"  no effect on the tried inputs, so not compared: {', '.join(parity['without_effect'])}")


def _in_int8(compared: _ComparedBundle, records: Sequence[Record], path: Path, console: Console) -> _ComparedBundle:
    """The same bundle in int8; ParityError where it answers worse."""
    console.say("quantizing to int8 and comparing with fp32")
    files = {**compared.files, "model.onnx": in_int8(compared.files["model.onnx"])}
    model = Model(bundle.Bundle(path, compared.model.manifest, files), "cpu")
    parity = compared.parity | judge_int8(compared.comparison, model, records)
    metrics = model.predictor.metric_types
    fp32, int8 = (shown(parity["metric"], parity[side], metrics) for side in ("pytorch", "onnxruntime"))
    console.say(f"  in int8 {parity['metric']} {int8}, in fp32 {fp32}")
    if "agreement" in parity:
        agreement = f"{parity['agreement']:.1%} of {parity['compared']:,} decisions are those of fp32"
        console.say(f"  judged by its decisions, since {parity['records']} records are few: {agreement}")
    golden = [
        {**example, "answer": model(example["record"], **example.get("options", {}))} for example in compared.golden
    ]
    return _ComparedBundle(compared.comparison, model, files, parity, golden)
