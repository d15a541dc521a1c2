"""Train a sequence model from one YAML; ship it as one ONNX bundle that needs neither PyTorch nor plugin code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqpipe.config.hookspecs import hookimpl
from seqpipe.config.signature import SIZE, Size, Tokens, Uniform
from seqpipe.errors import SeqpipeError
from seqpipe.version import PLUGIN_API, VERSION

if TYPE_CHECKING:
    from seqpipe.features.copy import Copy
    from seqpipe.features.document import Column
    from seqpipe.features.kinds import Chars, Matrix, Pieces, Sentences
    from seqpipe.features.vocabulary import word_level
    from seqpipe.runtime.model import Model, load

__all__ = [
    "PLUGIN_API",
    "SIZE",
    "Chars",
    "Column",
    "Copy",
    "Matrix",
    "Model",
    "Pieces",
    "Sentences",
    "SeqpipeError",
    "Size",
    "Tokens",
    "Uniform",
    "__version__",
    "hookimpl",
    "load",
    "word_level",
]

__version__ = VERSION

_LATER = {  # imported when first asked for: numpy, tokenizers and onnxruntime take their time
    "Chars": "seqpipe.features.kinds",
    "Column": "seqpipe.features.document",
    "Copy": "seqpipe.features.copy",
    "Matrix": "seqpipe.features.kinds",
    "Model": "seqpipe.runtime.model",
    "Pieces": "seqpipe.features.kinds",
    "Sentences": "seqpipe.features.kinds",
    "load": "seqpipe.runtime.model",
    "word_level": "seqpipe.features.vocabulary",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'seqpipe' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATER[name]), name)
