"""A trained pipeline in, a verified bundle out: exported, compared with PyTorch, then written whole or not at all."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqpipe.answers.metrics.table import shown
from seqpipe.answers.multi_head import tokenizer_file
from seqpipe.answers.types import Metric
from seqpipe.config.contract import has_member, member
from seqpipe.config.head_answers import metric_types
from seqpipe.config.loader import Component, Config
from seqpipe.config.plugins import BUILTIN
from seqpipe.config.yaml_text import plain
from seqpipe.console import Console
from seqpipe.export.golden import golden_examples
from seqpipe.export.graph_cache import GraphCache
from seqpipe.export.parity_gate import SEED, Comparison, verify_parity
from seqpipe.export.passes.int8 import in_int8
from seqpipe.export.precision import judge_int8
from seqpipe.export.verified import use_graph
from seqpipe.features.document import Record
from seqpipe.features.sources import tokenizer_file_of, tokenizers_of
from seqpipe.files import finite
from seqpipe.runtime import bundle
from seqpipe.runtime.evaluate import headlines
from seqpipe.runtime.model import Model
from seqpipe.training.fit import Learned
from seqpipe.training.pipeline import Pipeline, option_table

MARGIN, LEAST_LIMIT = 4, 1_000  # times the longest text that was seen, a bundle takes, and tokens in any case
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "tokenizers", "numpy")


def export(
    pipeline: Pipeline,
    config: Config,
    records: Sequence[Record],
    path: Path,
    console: Console,
    scores: Mapping[str, Any] | None = None,
    cache: GraphCache | None = None,
) -> Model:
    """Writes the bundle to `path` and returns it, open.

    Args:
        pipeline: Trained, on the CPU.
        config: Of the run.
        records: With references: they are answered by both sides, and the metric must be the same.
        path: Where the bundle goes; one that is there is replaced at the end.
        console: Is told what is done.
        scores: PyTorch's scores on the test sets, for the manifest.
        cache: Where the graph is looked for first, and kept.

    Raises:
        ExportError: if a component does not export.
        ParityError: if the graph answers differently.
    """
    pipeline.eval()
    docs = pipeline.learned.featurizer.docs([pipeline.learned.kind.question(record) for record in records])
    longest = max(map(len, docs), default=0)
    manifest = bundle_manifest(pipeline, config, option_table(*config.head), scores or {}, longest)
    console.say("exporting to ONNX")

    def compared(graph: bytes) -> _Compared:
        files = bundle_files(pipeline, graph)
        model = _read_back(path, files, manifest)
        console.say("comparing onnxruntime with PyTorch")
        comparison = Comparison(pipeline, config, model)
        parity = verify_parity(comparison, records)
        return _Compared(comparison, model, files, parity, golden_examples(comparison, records))

    made = use_graph(pipeline, config, cache, console, compared)
    _tell(made.parity, len(records), metric_types(config.head), console)
    if config.export.precision == "int8":
        made = _in_int8(made, records, path, console)
    manifest |= {"parity": made.parity, "golden": made.golden}
    if not made.golden:
        manifest["no_golden"] = "PyTorch and onnxruntime tie on every short text, or round its scores otherwise"
    bundle.write(path, {**made.files, "README.md": _card(manifest, metric_types(config.head)).encode()}, manifest)
    written = bundle.read(path)
    made.model.manifest, made.model.sha256 = written.manifest, written.sha256
    return made.model


@dataclass(frozen=True)
class _Compared:
    """A bundle that was compared with PyTorch and is not written yet."""

    comparison: Comparison
    model: Model
    files: dict[str, bytes]
    parity: dict[str, Any]
    golden: list[dict[str, Any]]


def _read_back(path: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Model:
    """The bundle that is to stand at `path`, written somewhere else and read as a deployment reads it."""
    with tempfile.TemporaryDirectory() as folder:
        bundle.write(Path(folder) / path.name, files, manifest)
        return Model(replace(bundle.read(Path(folder) / path.name), path=path), "cpu")


def _tell(parity: Mapping[str, Any], held_out: int, metrics: Mapping[str, Metric], console: Console) -> None:
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


def _in_int8(made: _Compared, records: Sequence[Record], path: Path, console: Console) -> _Compared:
    """The same bundle in int8; ParityError where it answers worse."""
    files = {**made.files, "model.onnx": in_int8(made.files["model.onnx"])}
    model = Model(bundle.Bundle(path, made.model.manifest, files), "cpu")
    parity = made.parity | judge_int8(made.comparison, model, records)
    metrics = model.predictor.metric_types
    fp32, int8 = (shown(parity["metric"], parity[side], metrics) for side in ("pytorch", "onnxruntime"))
    console.say(f"  in int8 {parity['metric']} {int8}, in fp32 {fp32}")
    if "agreement" in parity:
        told = f"{parity['agreement']:.1%} of {parity['compared']:,} decisions are those of fp32"
        console.say(f"  judged by its decisions, since {parity['records']} records are few: {told}")
    golden = [{**one, "answer": model(one["record"], **one.get("options", {}))} for one in made.golden]
    return _Compared(made.comparison, model, files, parity, golden)


def bundle_files(pipeline: Pipeline, graph: bytes) -> dict[str, bytes]:
    learned = pipeline.learned
    files = {"model.onnx": graph}
    for name, tokenizer in tokenizers_of(learned.featurizer).items():
        files[tokenizer_file_of(name)] = tokenizer.to_str(pretty=True).encode()
    for name, tokenizer in learned.target_tokenizers.items():
        files[tokenizer_file(name)] = tokenizer.to_str(pretty=True).encode()
    return files


def bundle_manifest(
    pipeline: Pipeline,
    config: Config,
    options: Mapping[str, Mapping[str, Any]],
    scores: Mapping[str, Any],
    longest: int = 0,
) -> dict[str, Any]:
    """What bundle.json says, golden examples and the comparison with PyTorch aside.

    Args:
        pipeline: Trained.
        config: Of the run.
        options: Decode options of the heads.
        scores: PyTorch's scores on the test sets.
        longest: Tokens of the longest held-out text.
    """
    learned = pipeline.learned
    return {
        "name": config.name,
        "field": learned.featurizer.field,
        "inputs": learned.featurizer.manifest(),
        "outputs": list(learned.kind.outputs),
        "options": {name: _bounded(name, option, config.export.max_beams) for name, option in options.items()},
        "answer": answer_manifest(pipeline),
        **({"cache": [entry.manifest() for entry in pipeline.cache]} if pipeline.cache else {}),
        "limits": _limits(pipeline, config, longest),
        "reader": {"use": config.data.reader.use, "options": config.data.reader.options},
        "golden": [],
        "metrics": finite(scores),
        **_own_metrics(learned, config.head),
        **(_explain(pipeline) if config.export.explain else {}),
        "parity": {},
        "made_with": {
            "packages": {name: importlib.metadata.version(name) for name in (BUILTIN, *PACKAGES)},
            "components": {f"{s.kind} {s.use}": f"{s.offer.distribution} {s.offer.version}" for s in config.components},
            "python": platform.python_version(),
        },
    }


def _limits(pipeline: Pipeline, config: Config, longest: int) -> dict[str, int]:
    """The most tokens of a text: what the YAML says, else several times as many as the longest that was seen."""
    limits, seen = pipeline.limits, max(pipeline.learned.longest, longest)
    wanted = config.export.max_tokens or (max(LEAST_LIMIT, MARGIN * seen) if seen else limits["tokens"])
    return limits | {"tokens": min(limits["tokens"], wanted)}


def _bounded(name: str, option: Mapping[str, Any], beams: int) -> dict[str, Any]:
    """A decode option, of which a caller may ask for at most so many beams or answers."""
    if name.rpartition(".")[2] not in ("beams", "n_best"):
        return dict(option)
    return {**option, "maximum": max(option["default"], min(option["maximum"], beams))}


def answer_manifest(pipeline: Pipeline) -> dict[str, Any]:
    """The answer kind, and what its heads chose on dev under `calibration`."""
    made = pipeline.learned.kind.manifest()
    for task, head in zip(pipeline.learned.tasks, pipeline.heads, strict=True):
        calibration = member(head, "calibration")
        if calibration and (chosen := calibration()):
            (made["parts"][task.name] if task.name else made)["calibration"] = chosen
    return made


def _explain(pipeline: Pipeline) -> dict[str, Any]:
    """The attention weights that the graph gives: what each is over, and at which axis it stands."""
    found = [one for names in pipeline.attended.values() for one in names.values()]
    return {"explain": {one.key: one.manifest() for one in found}}


def _own_metrics(learned: Learned, heads: Sequence[Component]) -> dict[str, Any]:
    """Whose metrics the scores hold beside the answer kinds', by head: `evaluate` asks them where they are there."""
    owners = {
        task.name: {
            "use": head.offer.name,
            "distribution": head.offer.distribution,
            "version": head.offer.version,
            "options": plain(head.options),
        }
        for task, head in zip(learned.tasks, heads, strict=True)
        if has_member(head.cls, "metrics")
    }
    return {"own_metrics": owners} if owners else {}


def _card(manifest: Mapping[str, Any], metrics: Mapping[str, Metric]) -> str:
    """The model card."""
    parts: Mapping[str, Any] = manifest["answer"].get("parts", {"": manifest["answer"]})
    kinds = " and ".join(part["kind"] + (f" (`{name}`)" if name else "") for name, part in parts.items())
    lines = [f"# {manifest['name']}", "", f"A seqpipe bundle that answers with {kinds}.", ""]
    for name, part in parts.items():
        if "labels" in part:
            told = ", ".join(f"`{label}`" for label in part["labels"])
            lines += [f"Labels{f' of `{name}`' if name else ''}: {told}", ""]
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
    if manifest["metrics"]:
        lines += ["## Scores", "", "| test set | metric | value |", "|---|---|---|"]
        for name, scores in manifest["metrics"].items():
            for metric, value in headlines(scores).items():
                lines.append(f"| {name} | {metric} | {shown(metric, value, metrics)} |")
        lines.append("")
    made = manifest["made_with"]
    lines += ["## Made with", "", *(f"- {name} {version}" for name, version in made["packages"].items())]
    lines += [f"- {place}: {owner}" for place, owner in made["components"].items()]
    parity = manifest["parity"]
    lines += ["", f"onnxruntime and PyTorch agreed on {parity['decisions']} decisions ({parity['ties']} ties).", ""]
    return "\n".join(lines)
