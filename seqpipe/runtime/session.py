"""An onnxruntime session of a graph whose bytes are checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from seqpipe.console import Console
from seqpipe.errors import BundleError, EnvError, SeqpipeError
from seqpipe.runtime import devices, graph_check

_NOWHERE = os.path.join(os.devnull, "nowhere")  # no file is below this: all that a graph reads is its own bytes


def import_onnxruntime() -> Any:
    """The module; EnvError if it is not installed."""
    try:
        from seqpipe.runtime.onnx_runtime import onnxruntime
    except ImportError as error:
        raise EnvError(
            "onnxruntime is not installed: pip install 'seqpipe-nlp[cpu]' (or 'seqpipe-nlp[gpu]')"
        ) from error
    return onnxruntime


def open_session(onnxruntime: Any, model: bytes, device: str, path: Path) -> Any:
    """A session of a bundle's graph; BundleError if the graph is refused, EnvError if the device is not there."""
    if fault := graph_check.refusal_reason(model):
        raise BundleError(f"{path / 'model.onnx'}: {fault}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
    try:
        session, without_cuda = devices.open_session(onnxruntime, model, options, device)
    except SeqpipeError:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise BundleError(
            f"{path / 'model.onnx'}: onnxruntime {onnxruntime.__version__} refuses it: {error}"
        ) from error
    if without_cuda:
        Console().say(f"note: CUDA is installed but did not start, so answers come from the CPU: {without_cuda}")
    return session
