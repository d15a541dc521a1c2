"""A device's name in, onnxruntime's providers out; and why CUDA does not start, in words."""

from __future__ import annotations

import base64
import ctypes
import os
import platform
from pathlib import Path
from typing import Any

from seqpipe.errors import EnvError, UsageError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_CUDA_LIBRARY = {"Linux": "libonnxruntime_providers_cuda.so", "Windows": "onnxruntime_providers_cuda.dll"}
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux within Windows
# A graph with one operator, y = -x, float32 (n,).
_NEGATE = base64.b64decode("CAo6NAoLCgF4EgF5IgNOZWcSAWdaEAoBeBILCgkIARIFCgMSAW5iEAoBeRILCgkIARIFCgMSAW5CBAoAEBI=")


def providers(onnxruntime: Any, device: str) -> tuple[list[Any], str]:
    """What a session is opened with, and why `auto` does without the CUDA that this onnxruntime has ("" if it doesn't).

    Raises:
        UsageError: if there is no device of this name.
        EnvError: if CUDA was asked for and cannot start.
    """
    name, _, index = device.partition(":")
    if name not in ("auto", "cpu", "cuda") or (index and not (name == "cuda" and index.isdigit())):
        raise UsageError(f"--device {device}: must be auto, cpu, cuda or cuda:N")
    if name == "cpu" or (name == "auto" and CUDA not in onnxruntime.get_available_providers()):
        return [CPU], ""
    fault = cuda_fault(onnxruntime)
    if fault and name == "cuda":
        raise EnvError(f"--device {device}: {fault}; see `seqpipe doctor --require cuda`")
    if fault:
        return [CPU], fault
    return [(CUDA, {"device_id": int(index or 0)}), CPU], ""


def cuda_fault(onnxruntime: Any) -> str:
    """Why CUDA cannot start here; "" if nothing speaks against it. Nothing is printed."""
    if CUDA not in onnxruntime.get_available_providers():
        return "this onnxruntime has no CUDA; pip uninstall onnxruntime, then pip install 'seqpipe[gpu]'"
    if platform.system() == "Linux" and not any(map(os.path.exists, _DEVICES)):
        return "this machine shows no NVIDIA device; in a container, start it with --gpus all"
    library = Path(onnxruntime.__file__).parent / "capi" / _CUDA_LIBRARY.get(platform.system(), "")
    if not library.is_file():
        return ""
    onnxruntime.preload_dlls()
    try:
        ctypes.CDLL(str(library.with_name(library.name.replace("_cuda", "_shared"))), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"a library of CUDA does not load ({error}); pip install 'seqpipe[gpu]' brings all of them"
    return ""


def cuda_proof_fault(onnxruntime: Any) -> str:
    """Why a graph of one operator does not run on CUDA; "" if it does."""
    if fault := cuda_fault(onnxruntime):
        return fault
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(_NEGATE, options, providers=[CUDA])
        if CUDA not in session.get_providers():
            return "onnxruntime could not start CUDA and fell back to the CPU; is the driver older than its CUDA?"
        session.run(None, {"x": [1.0]})
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        return f"a graph of one operator does not run on it: {error}"
    return ""
