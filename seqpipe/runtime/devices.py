"""A device's name in, a session of onnxruntime on it out; and why CUDA did not start, in words and one line."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import io
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqpipe.errors import EnvError, UsageError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_CUDA_LIBRARY = "libonnxruntime_providers_cuda.so"
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux within Windows
_WARNING, _FATAL = 2, 4  # severities of onnxruntime's log, the first its default
# A graph with one operator, y = -x, float32 (n,).
_NEGATE = base64.b64decode("CAo6NAoLCgF4EgF5IgNOZWcSAWdaEAoBeBILCgkIARIFCgMSAW5iEAoBeRILCgkIARIFCgMSAW5CBAoAEBI=")


def open_session(onnxruntime: Any, model: bytes, options: Any, device: str) -> tuple[Any, str]:
    """A session, and why it does without the CUDA that this onnxruntime has and `auto` wants ("" if it doesn't).

    Raises:
        UsageError: if there is no device of this name.
        EnvError: if CUDA was asked for and did not start.
    """
    name, _, index = device.partition(":")
    if name not in ("auto", "cpu", "cuda") or (index and not (name == "cuda" and index.isdigit())):
        raise UsageError(f"--device {device}: must be auto, cpu, cuda or cuda:N")
    wanted = name == "cuda" or (name == "auto" and CUDA in onnxruntime.get_available_providers())
    fault = missing_for_cuda(onnxruntime) if wanted else ""
    if wanted and not fault:
        session = _cuda_session(onnxruntime, model, options, int(index or 0))
        if CUDA in session.get_providers():
            return session, ""
        fault = _fallback(onnxruntime)
    if name == "cuda":
        raise EnvError(f"--device {device}: {fault}; see `seqpipe doctor --require cuda`")
    return onnxruntime.InferenceSession(model, options, providers=[CPU]), fault


def cuda_fault(onnxruntime: Any) -> str:
    """Why a graph of one operator does not run on CUDA; "" if it does."""
    if fault := missing_for_cuda(onnxruntime):
        return fault
    try:
        session = _cuda_session(onnxruntime, _NEGATE, onnxruntime.SessionOptions(), 0)
        if CUDA not in session.get_providers():
            return _fallback(onnxruntime)
        session.run(None, {"x": [1.0]})
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        return f"a graph of one operator does not run on it: {error}"
    return ""


def missing_for_cuda(onnxruntime: Any) -> str:
    """What CUDA needs and is not there, as far as can be seen without loading it."""
    if CUDA not in onnxruntime.get_available_providers():
        return "this onnxruntime has no CUDA; pip uninstall onnxruntime, then pip install 'seqpipe-nlp[gpu]'"
    if platform.system() == "Linux" and not any(map(os.path.exists, _DEVICES)):
        return "this machine shows no NVIDIA device; in a container, start it with --gpus all"
    return ""


def _cuda_session(onnxruntime: Any, model: bytes, options: Any, index: int) -> Any:
    """A session on CUDA or, where it does not start, on the CPU; what onnxruntime prints about that is not shown."""
    with _quiet(onnxruntime):
        onnxruntime.preload_dlls()
        return onnxruntime.InferenceSession(model, options, providers=[(CUDA, {"device_id": index}), CPU])


@contextlib.contextmanager
def _quiet(onnxruntime: Any) -> Iterator[None]:
    """It prints to standard output, where answers go, and logs to standard error.

    Its severity is then that of onnxruntime by default: there is no way to ask what it was.
    """
    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)


def _fallback(onnxruntime: Any) -> str:
    """Why onnxruntime fell back to the CPU.

    Its library is loaded for that only after onnxruntime has tried itself: loaded before, it would not find its host.
    """
    library = Path(onnxruntime.__file__).parent / "capi" / _CUDA_LIBRARY
    if library.exists():
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return f"a library of CUDA does not load ({error}); pip install 'seqpipe-nlp[gpu]' brings all of them"
    return "onnxruntime could not start CUDA and fell back to the CPU; update the driver of the GPU"
