"""Train a sequence model from one YAML; ship it as one ONNX bundle that needs neither PyTorch nor plugin code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqpipe.config.hookspecs import hookimpl
from seqpipe.errors import (
    BundleError,
    ConfigError,
    DataError,
    EnvError,
    ExportError,
    SeqpipeError,
    TrainingError,
    UsageError,
)
from seqpipe.features.kinds import registry as _feature_kinds
from seqpipe.types import SIZE, Checkpoint, Folder, Probability, Size, Tokens, Uniform
from seqpipe.version import PLUGIN_API, VERSION

if TYPE_CHECKING:
    from seqpipe.answers import tagging_schemes
    from seqpipe.answers.metrics.squad import gold_answers, locate_answer
    from seqpipe.answers.types import Metric
    from seqpipe.config.patterns import may_explode
    from seqpipe.console import Progress
    from seqpipe.features.checkpoint_tokenizer import LACKING, pretrained_tokenizer
    from seqpipe.features.kinds.registry import *  # noqa: F403
    from seqpipe.features.vocabulary import BOS, EOS, MARKS, MASK, SPECIALS, UNK, clean, counts_of, word_level
    from seqpipe.pipeline.pipeline import Pipeline
    from seqpipe.pipeline.run import Run
    from seqpipe.runtime.model import Bundle, Model, load

__all__ = [
    "BOS",
    "EOS",
    "LACKING",
    "MARKS",
    "MASK",
    "PLUGIN_API",
    "SIZE",
    "SPECIALS",
    "UNK",
    "Bundle",
    "BundleError",
    "Checkpoint",
    "ConfigError",
    "DataError",
    "EnvError",
    "ExportError",
    "Folder",
    "Metric",
    "Model",
    "Pipeline",
    "Probability",
    "Progress",
    "Run",
    "SeqpipeError",
    "Size",
    "Tokens",
    "TrainingError",
    "Uniform",
    "UsageError",
    "__version__",
    "clean",
    "counts_of",
    "gold_answers",
    "hookimpl",
    "load",
    "locate_answer",
    "may_explode",
    "pretrained_tokenizer",
    "tagging_schemes",
    "word_level",
]
__all__ += _feature_kinds.__all__

__version__ = VERSION

_LATER = {  # imported when first asked for: numpy, tokenizers and onnxruntime take their time
    "BOS": "seqpipe.features.vocabulary",
    "EOS": "seqpipe.features.vocabulary",
    "LACKING": "seqpipe.features.checkpoint_tokenizer",
    "MARKS": "seqpipe.features.vocabulary",
    "MASK": "seqpipe.features.vocabulary",
    "Metric": "seqpipe.answers.types",
    "Bundle": "seqpipe.runtime.model",
    "Model": "seqpipe.runtime.model",
    "Pipeline": "seqpipe.pipeline.pipeline",
    "Progress": "seqpipe.console",
    "Run": "seqpipe.pipeline.run",
    "SPECIALS": "seqpipe.features.vocabulary",
    "UNK": "seqpipe.features.vocabulary",
    "clean": "seqpipe.features.vocabulary",
    "counts_of": "seqpipe.features.vocabulary",
    "gold_answers": "seqpipe.answers.metrics.squad",
    "load": "seqpipe.runtime.model",
    "locate_answer": "seqpipe.answers.metrics.squad",
    "may_explode": "seqpipe.config.patterns",
    "pretrained_tokenizer": "seqpipe.features.checkpoint_tokenizer",
    "word_level": "seqpipe.features.vocabulary",
}
_LATER |= {name: _feature_kinds.module_of(name) for name in _feature_kinds.__all__}
_MODULES = {"tagging_schemes": "seqpipe.answers.tagging_schemes"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _LATER:
        raise AttributeError(f"module 'seqpipe' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
