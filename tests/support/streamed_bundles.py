"""Small bundles that answer in pieces, with random weights."""

from pathlib import Path
from typing import Any

import torch
from tiny_pipelines import untrained, write_tagger

from seqpipe.config.loader import load_config
from seqpipe.export.exporter import bundle_files, bundle_manifest
from seqpipe.export.graph import to_onnx
from seqpipe.runtime import bundle
from seqpipe.runtime.manifest import Streaming
from seqpipe.training.evaluation import TrainedPipeline

EMBEDDING = [{"use": "lookup", "dim": 6}, {"use": "char-cnn", "dim": 4, "char_dim": 3}]


def streaming_pipeline(folder: Path, encoder: Any, **changes: Any) -> TrainedPipeline:
    """A pipeline that answers in pieces, with weights so large that its answers vary."""
    changes = {"embedding": EMBEDDING, "head": {"use": "tags"}, "export": {"streaming": True}} | changes
    config = load_config(write_tagger(folder, {"encoder": encoder, **changes}))
    network = untrained(config, 100, 3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    return TrainedPipeline(network, config)


def streaming_bundle(folder: Path, encoder: Any, cut: str | None = "word", **changes: Any) -> Path:
    """Its bundle, written without the comparison of `seqpipe.export.exporter`."""
    pipeline = streaming_pipeline(folder, encoder, **changes)
    changes = {"streaming": Streaming.model_validate({"cut": cut}), "no_golden": "its weights are random"}
    manifest = bundle_manifest(pipeline).model_copy(update=changes)
    bundle.write_bundle(folder / "bundle", bundle_files(pipeline, to_onnx(pipeline)), manifest)
    return folder / "bundle"
