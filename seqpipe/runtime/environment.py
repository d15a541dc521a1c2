"""Examine this machine: the onnxruntime installation, CUDA, and the number of threads."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from seqpipe.config.plugins import Plugins
from seqpipe.errors import install_command
from seqpipe.runtime import session
from seqpipe.runtime.predictor import cores, quota
from seqpipe.version import VERSION

WHEELS = ("onnxruntime", "onnxruntime-gpu")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # threads and how they wait


@dataclass(frozen=True)
class Finding:
    """A result, `ok`, `note` or `error`, with its subject, details and fix."""

    state: str
    what: str
    detail: str


def examine(require_cuda: bool = False) -> list[Finding]:
    """Return findings about this machine; if CUDA is required, test it."""
    system = f"{VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    # Checked before plugins are imported, since they may import onnxruntime.
    onnxruntime = _onnxruntime(require_cuda)
    version, plugins = _installed_version("torch"), Plugins()
    torch = Finding("note", "torch", f"not installed: bundles run; to train, {install_command('train')}")
    return [
        Finding("ok", "seqpipe", system),
        *onnxruntime,
        Finding("ok", "torch", f"{version} (for training)") if version else torch,
        _threads(),
        Finding("ok", "plugins", f"{len(plugins.offers)} components"),
        *(Finding("note", "plugin", f"{b.distribution} {b.version} is broken: {b.reason}") for b in plugins.broken),
    ]


def examine_placement(path: Path, device: str, only_gpu_in_loops: bool) -> Finding:
    """Return the placement of a bundle's nodes; an error if one in a loop must run on the GPU and does not."""
    from seqpipe.runtime.opened import open_bundle

    opened = open_bundle(path, device).session
    if not hasattr(opened, "get_provider_graph_assignment_info"):
        detail = "this onnxruntime does not report the placement of nodes; install 1.31 or later"
        return Finding("error" if only_gpu_in_loops else "note", "placement", detail)
    operators = session.placement(opened, (path / "model.onnx").read_bytes())
    counts = {place: ", ".join(f"{name} ×{n}" for name, n in of.most_common()) for place, of in operators.items()}
    detail = "; ".join(f"{operators[place].total()} nodes on {place}: {listed}" for place, listed in counts.items())
    return Finding("error" if only_gpu_in_loops and "CPU within loops" in counts else "ok", "placement", detail)


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _onnxruntime(require_cuda: bool) -> list[Finding]:
    versions = {name: version for name in WHEELS if (version := _installed_version(name))}
    if not versions:
        return [Finding("error", "onnxruntime", f"not installed; {install_command('cpu')} or {install_command('gpu')}")]
    stated = ", ".join(f"{name} {version}" for name, version in versions.items())
    if len(versions) == 2:
        fix = "sharing one folder disables CUDA: pip uninstall -y onnxruntime onnxruntime-gpu, then install one"
        return [Finding("error", "onnxruntime", f"{stated}: {fix}")]
    try:
        from seqpipe.runtime.onnx_runtime import onnxruntime
    except ImportError as error:
        return [Finding("error", "onnxruntime", f"{stated} does not import: {error}")]
    providers = onnxruntime.get_available_providers()
    findings = [Finding("ok", "onnxruntime", stated), Finding("ok", "providers", ", ".join(providers))]
    if require_cuda:
        fault = session.cuda_fault(onnxruntime)
        detail = f"required, but does not work: {fault}" if fault else "a graph runs on it"
        cuda = Finding("error" if fault else "ok", "CUDA", detail)
    elif missing := session.missing_for_cuda(onnxruntime):
        cuda = Finding("note", "CUDA", f"bundles run on the CPU: {missing}")
    else:
        proof = "`seqpipe verify BUNDLE --device cuda` proves it"
        cuda = Finding("ok", "CUDA", f"onnxruntime supports it and the machine has a device; {proof}")
    return [*findings, _telemetry(), cuda]


def _telemetry() -> Finding:
    from seqpipe.runtime.onnx_runtime import IMPORTED_BEFORE, TELEMETRY

    value = os.environ[TELEMETRY]
    if IMPORTED_BEFORE:
        fix = f"set {TELEMETRY}=1 before, or import seqpipe first"
        return Finding("note", "telemetry", f"onnxruntime was imported before seqpipe and may have sent data: {fix}")
    if value.lower() in ("1", "true", "yes"):
        return Finding("ok", "telemetry", f"onnxruntime's telemetry is off ({TELEMETRY}={value})")
    problem = f"onnxruntime's telemetry is on, since the environment has {TELEMETRY}={value}"
    fix = "unset the variable, and seqpipe sets it to 1"
    return Finding("note", "telemetry", f"{problem}: it reports to its vendor; {fix}")


def _threads() -> Finding:
    allowed, present = cores(), os.cpu_count() or 1
    facts = [f"{allowed} of {present} cores may be used"]
    facts += [f"quota {quota():g}"] if quota() < math.inf else []
    facts += [f"load {os.getloadavg()[0]:.1f}"] if hasattr(os, "getloadavg") else []  # Windows has none
    facts += [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    runs = f"a Model runs {allowed} batches at once, one thread each"
    return Finding("ok", "threads", f"{', '.join(facts)}; {runs}; training uses up to {allowed}")
