"""Train a sequence model from one YAML; ship it as one ONNX bundle that needs neither PyTorch nor plugin code.

This module has the names for users of the library. Authors of components import from `seqpipe.plugin`
and `seqpipe.nn` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqpipe.errors import (
    BundleError,
    ConfigError,
    DataError,
    EnvError,
    ExportError,
    InterruptedRunError,
    OpenChoiceError,
    ParityError,
    PluginError,
    SeqpipeError,
    SkippedError,
    TrainingError,
    UsageError,
    did_you_mean,
)
from seqpipe.version import VERSION

if TYPE_CHECKING:
    from seqpipe.api.bundle import Bundle
    from seqpipe.api.classifier import Classifier
    from seqpipe.api.model import Model, load
    from seqpipe.api.notebook import show
    from seqpipe.api.pipeline import Pipeline
    from seqpipe.api.run import Run
    from seqpipe.runs.compare import compare
    from seqpipe.runs.table import list_runs

__all__ = ["Bundle", "Classifier", "Model", "Pipeline", "Run", "__version__", "compare", "list_runs", "load", "show"]
__all__ += ["BundleError", "ConfigError", "DataError", "EnvError", "PluginError", "SeqpipeError", "UsageError"]
__all__ += ["ExportError", "InterruptedRunError", "OpenChoiceError", "ParityError", "SkippedError", "TrainingError"]
__version__ = VERSION

_LATER = {  # imported at first use, since NumPy, pydantic and onnxruntime load slowly
    "Pipeline": "seqpipe.api.pipeline",
    "Bundle": "seqpipe.api.bundle",
    "Classifier": "seqpipe.api.classifier",
    "Run": "seqpipe.api.run",
    "show": "seqpipe.api.notebook",
    "compare": "seqpipe.runs.compare",
    "list_runs": "seqpipe.runs.table",
    **dict.fromkeys(("Model", "load"), "seqpipe.api.model"),
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LATER:
        raise AttributeError(f"module 'seqpipe' has no attribute {name!r}{did_you_mean(name, __all__)}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
