"""Graph of a bundle on a device: onnxruntime sessions, a watchdog for each run, and the memory."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import io
import math
import os
import platform
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.text import KEEP_CACHE
from seqpipe.answers.types import EXPLAIN_PREFIX
from seqpipe.console import Console
from seqpipe.errors import BundleError, DataError, EnvError, SeqpipeError, UsageError, install_command
from seqpipe.features.document import MASK_NAME, Arrays
from seqpipe.runtime import graph_check
from seqpipe.runtime.bundle import BundleContent, check_labels, read_again
from seqpipe.runtime.predictor import RENEWED, RUN_TOKENS, cores

# Open a session of onnxruntime on a device, or report in one line why CUDA is not used.

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, and of Linux within Windows
INT8 = "onnxruntime has no CUDA kernels for the int8 of this bundle; use the CPU, or export it with precision: fp32"
_WARNING, _FATAL = 2, 4  # severities of onnxruntime's log, the first its default
# A graph with one operator, y = -x, float32 (n,), and one whose x goes through an LSTM.
_NEGATE = base64.b64decode("CAo6NAoLCgF4EgF5IgNOZWcSAWdaEAoBeBILCgkIARIFCgMSAW5iEAoBeRILCgkIARIFCgMSAW5CBAoAEBI=")
_RECURRENT = base64.b64decode(
    "CAg6ggEKEgoBeAoBcxIBdiIHUmVzaGFwZQomCgF2CgF3CgF3EgF5IgRMU1RNKhIKC2hpZGRlbl9zaXplGAGgAQISAWcqDAgDEAc6"
    "AwEBAUIBcyodCAEIBAgBEAFCAXdKEAAAAAAAAAAAAAAAAAAAAABaCQoBeBIECgIIAWIJCgF5EgQKAggBQgQKABAO"
)


def open_on_device(onnxruntime: Any, model: bytes, options: Any, device: str, refused: str = "") -> tuple[Any, str]:
    """Return a session, and the reason why `auto` does not use CUDA though onnxruntime supports it, else "".

    Raises:
        UsageError: if there is no device of this name.
        EnvError: if CUDA was requested and did not start, or is `refused` for this reason.
    """
    name, _, index = device.partition(":")
    if name not in ("auto", "cpu", "cuda") or (index and not (name == "cuda" and index.isdigit())):
        raise UsageError(f"--device {device}: must be auto, cpu, cuda or cuda:N")
    wanted = name == "cuda" or (name == "auto" and CUDA in onnxruntime.get_available_providers())
    fault = (refused or missing_for_cuda(onnxruntime)) if wanted else ""
    if wanted and not fault and any(node[0] in ("GRU", "LSTM", "RNN") for node in graph_check.nodes(model)):
        fault = cuda_fault(onnxruntime) or cuda_fault(onnxruntime, _RECURRENT)
    if wanted and not fault:
        session = _cuda_session(onnxruntime, model, options, int(index or 0))
        if CUDA in session.get_providers():
            return session, ""
        fault = _fallback(onnxruntime)
    if name == "cuda":
        raise EnvError(f"--device {device}: {fault}" + ("; see `seqpipe doctor --require cuda`" if not refused else ""))
    # The fused operator is slower than addition and layer normalization on a CPU: 8 % of the time of a BERT encoder.
    unfused = ["SkipLayerNormFusion"]
    return onnxruntime.InferenceSession(model, options, providers=[CPU], disabled_optimizers=unfused), fault


def cuda_fault(onnxruntime: Any, graph: bytes = _NEGATE) -> str:
    """Return the reason why a graph of one operator does not run on CUDA; "" if it does."""
    if fault := missing_for_cuda(onnxruntime):
        return fault
    try:
        session = _cuda_session(onnxruntime, graph, onnxruntime.SessionOptions(), 0)
        if CUDA in session.get_providers():
            session.run(None, {"x": [1.0]})
            return ""
        fault = _fallback(onnxruntime)
    except Exception as error:  # onnxruntime's exceptions have no other common base
        fault = f"a graph of one operator does not run on it: {error}"
    return fault if graph is _NEGATE else f"recurrent layers need cuDNN; {install_command('gpu')} ({fault})"


def missing_for_cuda(onnxruntime: Any) -> str:
    """Return the missing requirement of CUDA on this machine, as far as visible without loading it."""
    if CUDA not in onnxruntime.get_available_providers():
        return f"this onnxruntime does not support CUDA; pip uninstall onnxruntime, then {install_command('gpu')}"
    if platform.system() == "Linux" and not any(map(os.path.exists, _DEVICES)):
        return "this machine has no NVIDIA device; in a container, start it with --gpus all"
    return ""


def _cuda_session(onnxruntime: Any, model: bytes, options: Any, index: int) -> Any:
    """Open a session on CUDA or, if that fails, on the CPU; onnxruntime's output about it is suppressed."""
    with _quiet(onnxruntime):
        onnxruntime.preload_dlls()
        return onnxruntime.InferenceSession(model, options, providers=[(CUDA, cuda_options(index)), CPU])


def cuda_options(index: int) -> dict[str, str]:
    """Return onnxruntime's options for a CUDA device: no TF32, and at most 90 % of its memory.

    CUDA's context and the workspaces of cuBLAS and cuDNN need the rest. There is no limit if the driver does not report
    the device's memory.
    """
    # onnxruntime's default, TF32, rounds the factors of products to 10 bits of mantissa: answers would differ from the
    # bundle's by more than its tolerance. Memory that is doubled, its other default, is not all released afterwards.
    options = {"device_id": str(index), "use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"}
    device, size = ctypes.c_int(), ctypes.c_size_t()
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
        if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), index):
            driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    if size.value:
        options["gpu_mem_limit"] = str(int(0.9 * size.value))
    return options


@contextlib.contextmanager
def _quiet(onnxruntime: Any) -> Iterator[None]:
    """Suppress onnxruntime's output: it prints to standard output, like answers, and logs to standard error.

    Afterwards its log severity is onnxruntime's default: the former one cannot be read.
    """
    onnxruntime.set_default_logger_severity(_FATAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNING)


def _fallback(onnxruntime: Any) -> str:
    """Return the reason why onnxruntime fell back to the CPU.

    Its CUDA library is loaded only after onnxruntime has tried itself: earlier it would not find its host.
    """
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if library.exists():
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            return f"a library of CUDA does not load ({error}); {install_command('gpu')}"
    return "onnxruntime could not start CUDA and fell back to the CPU; update the driver of the GPU"


# Open an onnxruntime session of a graph after checking its bytes.

_NOWHERE = os.path.join(os.devnull, "nowhere")  # no file can exist here, so a graph reads only its own bytes


def import_onnxruntime() -> Any:
    """Return the module; EnvError if it is not installed."""
    try:
        from seqpipe.runtime.onnx_runtime import onnxruntime
    except ImportError as error:
        raise EnvError(f"no onnxruntime: for CUDA {install_command('gpu')}; else {install_command('cpu')}") from error
    return onnxruntime


def open_session(onnxruntime: Any, model: bytes, device: str, path: Path, refused: str = "", threads: int = 1) -> Any:
    """Open a session of a bundle's graph; BundleError if the graph is refused, EnvError if the device is missing."""
    if fault := graph_check.refusal_reason(model):
        raise BundleError(f"{path / 'model.onnx'}: {fault}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Microseconds that threads wait actively for the next operator, or text. By default they do so for longer, which
    # halves the speed beside other programs; asleep sooner, they wake up too late. Versions before 1.31 ignore it.
    options.add_session_config_entry("session.intra_op.spin_duration_us", "3000")
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # for `placement`
    try:
        session, without_cuda = open_on_device(onnxruntime, model, options, device, refused)
    except SeqpipeError:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        runtime = f"onnxruntime {onnxruntime.__version__}"
        raise BundleError(f"{path / 'model.onnx'}: {runtime} refuses it: {error}") from error
    if without_cuda:
        Console().say(f"note: CUDA is installed but not used, so answers come from the CPU: {without_cuda}")
    return session


def placement(session: Any, model: bytes) -> dict[str, Counter[str]]:
    """Count the operators of a session's graph by placement, such as `CPU within loops`; from onnxruntime 1.31 on."""
    looped = {(operator, name) for operator, name, in_loop, _ in graph_check.nodes(model) if in_loop}
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            within = " within loops" if (node.op_type, node.name) in looped else ""
            operators[part.ep_name.removesuffix("ExecutionProvider") + within][node.op_type] += 1
    return operators


# Ends runs of a graph that exceed the time limit: a graph may have an endless loop.

RUN_SECONDS = 600.0  # default time limit of a run
_MAX_IDLE_SECONDS = 1.0  # maximum seconds that the thread outlives the last run
LARGE_MODEL_WEIGHTS = 4_000_000  # weights from which the products of one text are long enough to be shared by threads
LARGE_LOOP = 10_000_000  # bytes of weights in loops from which the products of one token are


class RunTimes(threading.local):
    """Deadline and times of the runs of a thread.

    Attributes:
        deadline: Latest time at which they must end, by `time.monotonic`.
        count: Number of runs.
        began: Start time of the first.
        seconds: Total time.
    """

    deadline = math.inf
    count, began, seconds = 0, 0.0, 0.0

    def restart(self, deadline: float = math.inf) -> None:
        """Reset the counts."""
        self.deadline, self.count, self.began, self.seconds = deadline, 0, 0.0, 0.0

    def add(self, began: float, ended: float) -> None:
        """Count a run."""
        self.began = self.began if self.count else began
        self.count, self.seconds = self.count + 1, self.seconds + ended - began


class Watchdog:
    """Terminates runs that exceed their time limit, from a thread that exists only while there are runs.

    Starting a thread for each run would take longer than a run of a small graph.

    Args:
        seconds: Time limit of a run, above 0; None: no limit.
    """

    def __init__(self, seconds: float | None):
        if seconds is not None and not 0 < seconds < math.inf:
            raise UsageError(f"timeout must be a number of seconds above 0, or None for no limit; got {seconds}")
        self.seconds = seconds
        self.renew()

    def renew(self) -> None:
        """Forget all runs, in a forked process: the threads do not exist in it."""
        self._changed = threading.Condition(threading.Lock())
        self.runs: dict[Any, float] = {}  # options of a run: its deadline
        self._next = math.inf  # the next check of the thread
        self._thread: threading.Thread | None = None

    def start(self, options: Any, deadline: float = math.inf) -> None:
        """Watch the run with these RunOptions, which starts now and must end by `deadline`."""
        end = min(deadline, math.inf if self.seconds is None else time.monotonic() + self.seconds)
        with self._changed:
            self.runs[options] = end
            if end < math.inf and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._watch, name="seqpipe-runs", daemon=True)
                self._thread.start()
            elif end < self._next:
                self._changed.notify()

    def stop(self, options: Any) -> None:
        """Forget a run that has ended."""
        with self._changed:
            self.runs.pop(options, None)

    def _watch(self) -> None:
        with self._changed:
            while self.runs:
                now = time.monotonic()
                for options, end in self.runs.items():
                    options.terminate = options.terminate or now >= end
                self._next = min([now + _MAX_IDLE_SECONDS, *(end for end in self.runs.values() if end > now)])
                self._changed.wait(self._next - now)
            self._thread = None


class GraphSession:
    """Graph of a bundle on a device. Thread-safe.

    Args:
        content: The bundle.
        kind: Its answer kind.
        device, threads, timeout: See `seqpipe.load`.

    Attributes:
        device: `cuda` or `cpu`.
        workers: Useful number of parallel runs.
        cache: Outputs of one run that are inputs of the next.
        run_times: Times of the runs of this thread.

    Raises:
        BundleError: if the graph is refused, or has other inputs and outputs than the manifest.
        EnvError: if the device or onnxruntime is missing.
    """

    def __init__(
        self, content: BundleContent, kind: AnswerKind, device: str, threads: int | None, timeout: float | None
    ):
        onnxruntime, manifest = import_onnxruntime(), content.manifest
        refused = INT8 if manifest.parity.get("precision") == "int8" else ""
        self._watchdog, self._run_options, self._path = Watchdog(timeout), onnxruntime.RunOptions, content.path
        model = content.files["model.onnx"]
        session = open_session(onnxruntime, model, device, content.path, refused)
        self._sessions = {1: session}  # by threads of a run
        self.device = "cuda" if CUDA in session.get_providers() else "cpu"
        self._arenas = "cpu:0"  # memory that onnxruntime keeps for later runs
        if self.device == "cuda":
            self._arenas += f";gpu:{session.get_provider_options()[CUDA]['device_id']}"
        self.workers = 1 if self.device == "cuda" else threads or cores()
        count, looped = graph_check.product_sizes(model) if len(model) >= LARGE_MODEL_WEIGHTS else (0, 0)
        is_large = count >= LARGE_MODEL_WEIGHTS or looped >= LARGE_LOOP
        # A bundle that is not written yet, in an export to int8, cannot be read again for a second session.
        self._alone_threads = self.workers if is_large and content.sha256 else 1
        self.cache, self.run_times = manifest.cache, RunTimes()
        self._after_huge, self._lock = 0, threading.Lock()  # runs that still release memory
        self._is_lost, self._has_run, self._opened = False, False, (content.path.absolute(), content.sha256)
        RENEWED.add(self)
        outputs = [output.name for output in session.get_outputs()]
        self._weights = [name for name in outputs if name.startswith(EXPLAIN_PREFIX)]
        self._caches = [entry.output for entry in self.cache]
        self._without_cache = {KEEP_CACHE: np.array(False)} if KEEP_CACHE in manifest.options else {}
        self._decision = [name for name in outputs if name not in self._weights + self._caches]
        inputs = {node.name for node in session.get_inputs() + session.get_overridable_initializers()}
        stated = {*manifest.inputs, *manifest.options, *(entry.input for entry in self.cache)}
        odd = sorted(inputs ^ stated) + sorted({*self._caches} - {*outputs})
        odd += sorted({*kind.outputs} - {*self._decision})
        odd += sorted({*self._weights} ^ {EXPLAIN_PREFIX + key for key in manifest.explain})
        if odd:
            raise BundleError(f"{self._path}: model.onnx and bundle.json disagree about {', '.join(odd)}")
        shapes = {output.name: output.shape for output in session.get_outputs()}
        check_labels(kind, shapes, str(self._path))

    def renew(self) -> None:
        # Locks of onnxruntime that another thread held in a run stay locked, so the next run reopens the graph.
        self._is_lost = self._is_lost or bool(self._watchdog.runs) or self.device == "cuda"
        self._watchdog.renew()
        self._lock = threading.Lock()

    def run(self, feeds: Arrays) -> Arrays:
        """Run the graph: padded features and option inputs to the decision."""
        return self._run(self._decision, feeds | self._without_cache)

    def run_alone(self, feeds: Arrays) -> Arrays:
        """Run the graph on one text; a large graph uses all threads if no other run is in progress."""
        return self._run(self._decision, feeds, self._alone_threads)

    def run_with_cache(self, feeds: Arrays) -> Arrays:
        """Return the decision, and the cache for a later run (`seqpipe.runtime.manifest.next_inputs`)."""
        return self._run(self._decision + self._caches, feeds, self._alone_threads)

    def run_all(self, feeds: Arrays) -> Arrays:
        """Return the decision, the cache for a later run, and the attention weights as `explain.<name>`."""
        return self._run(self._decision + self._caches + self._weights, feeds)

    @property
    def session(self) -> Any:
        """A session of onnxruntime."""
        return self._session(next(iter(self._sessions), 1))

    def before_fork(self) -> None:
        if self._alone_threads > 1:
            self._sessions.pop(self._alone_threads, None)

    def _session(self, threads: int) -> Any:
        """Return the session whose runs use so many threads; it is opened at its first use."""
        if self._is_lost and self.device == "cuda":
            message = "this process was forked from one that uses CUDA, which does not support forks"
            raise EnvError(f"{message}; start processes by spawn: multiprocessing.get_context('spawn')")
        with self._lock:
            if self._is_lost:
                self._sessions.clear()
            if threads not in self._sessions:
                try:
                    model = read_again(*self._opened).files["model.onnx"]
                except BundleError:
                    if self._sessions:  # the folder is gone, and the other session answers the same, but slower
                        return next(iter(self._sessions.values()))
                    raise
                if not self._has_run:
                    self._sessions.clear()  # a session that was only checked, with a second copy of the weights
                session = open_session(import_onnxruntime(), model, "cpu", self._path, threads=threads)
                self._sessions[threads] = session
            self._is_lost = False
            return self._sessions[threads]

    def _run(self, names: Sequence[str], feeds: Arrays, threads: int = 1) -> Arrays:
        session, self._has_run = self._session(1 if self._watchdog.runs else threads), True
        options, is_huge = self._run_options(), False
        for name, array in feeds.items():
            is_huge = is_huge or (array.size > RUN_TOKENS and (name == MASK_NAME or name.endswith(f".{MASK_NAME}")))
        # onnxruntime keeps the memory of a huge text for the next run. That run releases it, and so do the next ones,
        # as many as there are workers, since its outputs remain until they are read.
        if is_huge or self._after_huge:
            with self._lock:
                self._after_huge = 1 + self.workers if is_huge else max(0, self._after_huge - 1)
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", self._arenas)
        times, began = self.run_times, time.monotonic()
        self._watchdog.start(options, times.deadline)
        try:
            arrays = session.run(names, feeds, options)
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            raise self._run_error(error, options.terminate) from error
        finally:
            self._watchdog.stop(options)
            times.add(began, time.monotonic())
        return dict(zip(names, arrays, strict=True))

    def _run_error(self, error: Exception, ended: bool) -> SeqpipeError:
        if ended and time.monotonic() >= self.run_times.deadline:
            return BundleError(f"{self._path}: the run was ended: its answer is no longer needed")
        if ended:
            late = f"the run took more than {self._watchdog.seconds:g} seconds, and was ended"
            return BundleError(f"{self._path}: {late}; `load(…, timeout=…)` and `predict --timeout` allow more")
        if "cuDNN" in str(error):
            return EnvError(f"{self._path}: the graph needs cuDNN; {install_command('gpu')} ({error})")
        if any(sign in str(error) for sign in ("allocate", "bad_alloc", "Available memory")):
            reason = "needs more memory for this input than available; shorten the text, or lower decode options"
            return DataError(f"{self._path}: the graph {reason} ({error})")
        return BundleError(f"{self._path}: onnxruntime could not run the graph: {error}")
