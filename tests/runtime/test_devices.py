"""Which device a bundle runs on, and one line that says why it is not the GPU, with an onnxruntime that has CUDA."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factory import seqpipe

from seqpipe import load
from seqpipe.errors import EnvError, UsageError
from seqpipe.runtime import session as devices
from seqpipe.runtime.onnx_runtime import onnxruntime
from seqpipe.runtime.session import CPU, CUDA, cuda_fault, open_on_device

NO_DEVICE = "this machine shows no NVIDIA device; in a container, start it with --gpus all"


@pytest.fixture
def gpu_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An onnxruntime that has CUDA, whose sessions run where `works` says, on a machine that shows a device."""
    if platform.system() != "Linux":
        pytest.skip("names of Linux")
    (tmp_path / "capi").mkdir()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(devices, "_DEVICES", (str(tmp_path / "nvidiactl"),))
    severities = []

    def session(model: bytes, options: Any, providers: list[Any]) -> Any:
        names = [one if isinstance(one, str) else one[0] for one in providers]
        print("EP Error, falling back")
        used = names if build.works else [CPU]
        return SimpleNamespace(asked=providers, get_providers=lambda: used, run=lambda *_: severities.append("run"))

    build = SimpleNamespace(
        __file__=str(tmp_path / "__init__.py"),
        works=True,
        severities=severities,
        get_available_providers=lambda: [CUDA, CPU],
        preload_dlls=lambda: print("Failed to load libcublasLt.so.13"),
        set_default_logger_severity=severities.append,
        SessionOptions=SimpleNamespace,
        InferenceSession=session,
    )
    return build


def test_where_cuda_starts_it_is_taken(gpu_build: Any, capfd: pytest.CaptureFixture[str]) -> None:
    for device, index in (("auto", 0), ("cuda", 0), ("cuda:1", 1)):
        session, fault = open_on_device(gpu_build, b"", None, device)
        assert (session.asked, fault) == ([(CUDA, {"device_id": index}), CPU], "")
    assert cuda_fault(gpu_build) == ""
    assert gpu_build.severities == [*[4, 2] * 4, "run"]
    assert capfd.readouterr() == ("", "")  # standard output is for answers


def test_a_machine_without_a_device_says_so_before_anything_is_loaded(
    gpu_build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_DEVICES", ("/nowhere",))
    del gpu_build.preload_dlls
    assert open_on_device(gpu_build, b"", None, "auto")[1] == cuda_fault(gpu_build) == NO_DEVICE
    assert open_on_device(gpu_build, b"", None, "cpu")[1] == ""
    with pytest.raises(EnvError, match=f"--device cuda:1: {NO_DEVICE}; see `seqpipe doctor --require cuda`"):
        open_on_device(gpu_build, b"", None, "cuda:1")


def test_a_library_that_does_not_load_is_named(gpu_build: Any) -> None:
    gpu_build.works = False
    assert "could not start CUDA and fell back to the CPU; update the driver" in cuda_fault(gpu_build)
    (Path(gpu_build.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so").touch()
    session, fault = open_on_device(gpu_build, b"", None, "auto")
    assert session.asked == [CPU]
    assert re.search(r"a library of CUDA does not load \(.*libonnxruntime_providers_cuda.so: file too short\)", fault)
    with pytest.raises(EnvError, match="--device cuda: a library of CUDA does not load"):
        open_on_device(gpu_build, b"", None, "cuda")


def test_an_onnxruntime_for_the_cpu_alone_has_nothing_to_say(gpu_build: Any) -> None:
    gpu_build.get_available_providers = lambda: [CPU]
    session, fault = open_on_device(gpu_build, b"", None, "auto")
    assert (session.asked, fault) == ([CPU], "")
    with pytest.raises(EnvError, match=r"this onnxruntime has no CUDA; .* pip install 'seqpipe-nlp\[gpu\]'"):
        open_on_device(gpu_build, b"", None, "cuda")
    with pytest.raises(UsageError, match="must be auto, cpu, cuda or cuda:N"):
        open_on_device(gpu_build, b"", None, "gpu")


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
