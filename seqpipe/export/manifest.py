"""The content of a bundle: its manifest, bundle.json, and its other files."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from seqpipe.answers.multi_head import tokenizer_file
from seqpipe.config.contract import has_member, member
from seqpipe.config.loader import Component, Config
from seqpipe.config.plugins import BUILTIN
from seqpipe.config.yaml_text import plain
from seqpipe.features.sources import tokenizer_file_of, tokenizers_of
from seqpipe.files import finite
from seqpipe.runtime.limits import TRAINED
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.pipeline import Pipeline

MARGIN, LEAST_LIMIT = 4, 1_000  # times the longest text that was seen, a bundle takes, and tokens in any case
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "tokenizers", "numpy")


def bundle_files(pipeline: Pipeline, graph: bytes) -> dict[str, bytes]:
    """The graph and the tokenizers, by file name."""
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
) -> dict[str, Any]:
    """The content of bundle.json, without golden examples and the comparison with PyTorch.

    Args:
        pipeline: Trained.
        config: Of the run.
        options: Decode options of the heads.
        scores: PyTorch's scores on the test sets.
        longest: Tokens of the longest held-out text.
    """
    artifacts = pipeline.artifacts
    return {
        "name": config.name,
        "field": artifacts.featurizer.field,
        "inputs": artifacts.featurizer.manifest(),
        "outputs": list(artifacts.kind.outputs),
        "options": {name: _bounded(name, option, config.export.max_beams) for name, option in options.items()},
        "answer": answer_manifest(pipeline),
        **({"cache": [entry.manifest() for entry in pipeline.cache]} if pipeline.cache else {}),
        "limits": _limits(pipeline, config, longest),
        "reader": {"use": config.data.reader.use, "options": config.data.reader.options},
        "golden": [],
        "metrics": finite(scores),
        **_own_metrics(artifacts, config.head),
        **(_explain(pipeline) if config.export.explain else {}),
        "parity": {},
        "made_with": {
            "packages": {name: importlib.metadata.version(name) for name in (BUILTIN, *PACKAGES)},
            "components": {f"{s.kind} {s.use}": f"{s.offer.distribution} {s.offer.version}" for s in config.components},
            "python": platform.python_version(),
        },
    }


def _limits(pipeline: Pipeline, config: Config, longest: int) -> dict[str, int]:
    """The most tokens of a text: what the YAML says, else several times as many as the longest that was seen.

    Where answers warn of inputs that are longer than any in training, also the tokens of the longest of those.
    """
    trained = pipeline.artifacts.longest
    limits, seen = pipeline.limits, max(trained, longest)
    most = config.export.max_tokens or (max(LEAST_LIMIT, MARGIN * seen) if seen else limits["tokens"])
    limits = limits | {"tokens": min(limits["tokens"], most)}
    warns = any(part.warns_of_length for part in pipeline.artifacts.kind.parts.values())
    return limits | {TRAINED: trained} if warns and trained else limits


def _bounded(name: str, option: Mapping[str, Any], beams: int) -> dict[str, Any]:
    """A decode option, of which a caller may ask for at most so many beams or answers."""
    if name.rpartition(".")[2] not in ("beams", "n_best"):
        return dict(option)
    return {**option, "maximum": max(option["default"], min(option["maximum"], beams))}


def answer_manifest(pipeline: Pipeline) -> dict[str, Any]:
    """The answer kind, and what its heads chose on dev under `calibration`."""
    manifest = pipeline.artifacts.kind.manifest()
    for task, head in zip(pipeline.artifacts.tasks, pipeline.heads, strict=True):
        calibration = member(head, "calibration")
        if calibration and (chosen := calibration()):
            (manifest["parts"][task.name] if task.name else manifest)["calibration"] = chosen
    return manifest


def _explain(pipeline: Pipeline) -> dict[str, Any]:
    """The attention weights that the graph gives: what each is over, and at which axis it stands."""
    return {"explain": {a.key: a.manifest() for names in pipeline.attended.values() for a in names.values()}}


def _own_metrics(artifacts: Artifacts, heads: Sequence[Component]) -> dict[str, Any]:
    """Whose metrics the scores hold beside the answer kinds', by head: `evaluate` asks them where they are there."""
    owners = {
        task.name: {
            "use": head.offer.name,
            "distribution": head.offer.distribution,
            "version": head.offer.version,
            "options": plain(head.options),
        }
        for task, head in zip(artifacts.tasks, heads, strict=True)
        if has_member(head.cls, "metrics")
    }
    return {"own_metrics": owners} if owners else {}
