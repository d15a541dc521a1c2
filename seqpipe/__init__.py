"""Train a sequence model from one YAML; ship it as one ONNX bundle that needs neither PyTorch nor plugin code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqpipe.config.hookspecs import hookimpl
from seqpipe.errors import SeqpipeError
from seqpipe.types import SIZE, Fraction, Positive, PositiveFloat, Probability, Size, Tokens, Uniform
from seqpipe.version import PLUGIN_API, VERSION

if TYPE_CHECKING:
    from seqpipe.answers import tagging_schemes
    from seqpipe.answers.types import Metric
    from seqpipe.features.checkpoint_tokenizer import LACKING, Checkpoint, pretrained_tokenizer
    from seqpipe.features.copy import Copy
    from seqpipe.features.document import Column
    from seqpipe.features.kinds import Chars, Matrix, Pieces, Sentences
    from seqpipe.features.vocabulary import BOS, EOS, MARKS, MASK, SPECIALS, UNK, clean, word_level
    from seqpipe.runtime.model import Model, load

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
    "Chars",
    "Checkpoint",
    "Column",
    "Copy",
    "Fraction",
    "Matrix",
    "Metric",
    "Model",
    "Pieces",
    "Positive",
    "PositiveFloat",
    "Probability",
    "Sentences",
    "SeqpipeError",
    "Size",
    "Tokens",
    "Uniform",
    "__version__",
    "clean",
    "hookimpl",
    "load",
    "pretrained_tokenizer",
    "tagging_schemes",
    "word_level",
]

__version__ = VERSION

_LATER = {  # imported when first asked for: numpy, tokenizers and onnxruntime take their time
    "BOS": "seqpipe.features.vocabulary",
    "Chars": "seqpipe.features.kinds",
    "Checkpoint": "seqpipe.features.checkpoint_tokenizer",
    "Column": "seqpipe.features.document",
    "Copy": "seqpipe.features.copy",
    "EOS": "seqpipe.features.vocabulary",
    "LACKING": "seqpipe.features.checkpoint_tokenizer",
    "MARKS": "seqpipe.features.vocabulary",
    "MASK": "seqpipe.features.vocabulary",
    "Matrix": "seqpipe.features.kinds",
    "Metric": "seqpipe.answers.types",
    "Model": "seqpipe.runtime.model",
    "Pieces": "seqpipe.features.kinds",
    "SPECIALS": "seqpipe.features.vocabulary",
    "Sentences": "seqpipe.features.kinds",
    "UNK": "seqpipe.features.vocabulary",
    "clean": "seqpipe.features.vocabulary",
    "load": "seqpipe.runtime.model",
    "pretrained_tokenizer": "seqpipe.features.checkpoint_tokenizer",
    "word_level": "seqpipe.features.vocabulary",
}
_MODULES = {"tagging_schemes": "seqpipe.answers.tagging_schemes"}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _LATER:
        raise AttributeError(f"module 'seqpipe' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
