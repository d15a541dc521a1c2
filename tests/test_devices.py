"""Which device a bundle runs on, and one line that says why it is not the GPU, with an onnxruntime that has CUDA."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factory import seqpipe

from seqpipe import devices, load
from seqpipe.devices import CPU, CUDA, cuda_fault, providers
from seqpipe.errors import EnvError, UsageError
from seqpipe.onnx_runtime import onnxruntime

NO_DEVICE = "this machine shows no NVIDIA device; in a container, start it with --gpus all"


@pytest.fixture
def gpu_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What an onnxruntime with CUDA looks like from outside, and a machine that shows a device."""
    if platform.system() != "Linux":
        pytest.skip("names of Linux")
    (tmp_path / "capi").mkdir()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(devices, "_DEVICES", (str(tmp_path / "nvidiactl"),))
    return SimpleNamespace(
        __file__=str(tmp_path / "__init__.py"),
        get_available_providers=lambda: [CUDA, CPU],
        preload_dlls=lambda: None,
    )


def test_a_machine_without_a_device_says_so_before_anything_is_loaded(
    gpu_build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_DEVICES", ("/nowhere",))
    del gpu_build.preload_dlls  # which prints lines for each library that is missing
    assert providers(gpu_build, "auto") == ([CPU], NO_DEVICE)
    assert providers(gpu_build, "cpu") == ([CPU], "")
    with pytest.raises(EnvError, match=f"--device cuda:1: {NO_DEVICE}; see `seqpipe doctor --require cuda`"):
        providers(gpu_build, "cuda:1")


def test_a_library_that_does_not_load_is_named(gpu_build: Any) -> None:
    folder = Path(gpu_build.__file__).parent / "capi"
    (folder / "libonnxruntime_providers_shared.so").touch()
    (folder / "libonnxruntime_providers_cuda.so").touch()
    assert "libonnxruntime_providers_shared.so: file too short" in cuda_fault(gpu_build)


def test_where_nothing_speaks_against_it_cuda_is_taken(gpu_build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(gpu_build.__file__).parent / "capi"
    (folder / "libonnxruntime_providers_cuda.so").touch()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: None)
    assert providers(gpu_build, "auto") == ([(CUDA, {"device_id": 0}), CPU], "")
    assert providers(gpu_build, "cuda:1") == ([(CUDA, {"device_id": 1}), CPU], "")


def test_an_onnxruntime_for_the_cpu_alone_has_nothing_to_say(gpu_build: Any) -> None:
    gpu_build.get_available_providers = lambda: [CPU]
    assert providers(gpu_build, "auto") == ([CPU], "")
    with pytest.raises(EnvError, match=r"this onnxruntime has no CUDA; .* pip install 'seqpipe\[gpu\]'"):
        providers(gpu_build, "cuda")
    with pytest.raises(UsageError, match="must be auto, cpu, cuda or cuda:N"):
        providers(gpu_build, "gpu")


def test_auto_says_in_one_line_that_it_runs_on_the_cpu(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(devices, "_DEVICES", ("/nowhere",))
    assert load(tiny_bundle, "auto", threads=1).device == "cpu"
    told = f"note: CUDA is installed but did not start, so answers come from the CPU: {NO_DEVICE}\n"
    assert capfd.readouterr().err == told
    load(tiny_bundle, "cpu", threads=1)
    assert capfd.readouterr().err == ""


def test_the_graph_that_proves_a_device_runs() -> None:
    session = onnxruntime.InferenceSession(devices._NEGATE, providers=[CPU])
    assert session.run(None, {"x": [1.0]})[0].tolist() == [-1.0]


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="has CUDA")
def test_a_machine_that_was_meant_to_have_cuda_ends_with_exit_code_7() -> None:
    done = seqpipe("doctor", "--require", "cuda")
    assert done.code == 7
    assert "error CUDA: required, and does not work: this onnxruntime has no CUDA; pip uninstall" in done.out
    assert seqpipe("doctor").code == 0
    assert seqpipe("doctor", "--require", "rocm").code == 2
