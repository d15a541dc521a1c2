"""Which device a bundle runs on, and one line that says why it is not the GPU, with an onnxruntime that has CUDA."""

import ctypes
import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import toy_bundles
from tiny_pipelines import seqpipe, succeed

from seqpipe import load
from seqpipe.errors import DataError, EnvError
from seqpipe.runtime import graph_check
from seqpipe.runtime import session as devices
from seqpipe.runtime.environment import examine_placement
from seqpipe.runtime.onnx_runtime import onnxruntime
from seqpipe.runtime.session import CPU, CUDA, cuda_fault, cuda_options, open_on_device, placement

# The words of onnxruntime-gpu 1.31.1.
NO_CUDNN = "cuDNN is unavailable or disabled for CUDA Execution Provider: cuDNN is not available. Install cuDNN, …"
NO_DEVICE = "this machine has no NVIDIA device; in a container, start it with --gpus all"


@pytest.fixture
def gpu_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An onnxruntime that has CUDA, whose sessions run where `works` says, on a machine that shows a device."""
    if platform.system() != "Linux":
        pytest.skip("needs Linux, for names of libraries")
    (tmp_path / "capi").mkdir()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(devices, "_DEVICES", (str(tmp_path / "nvidiactl"),))
    severities = []

    def session(model: bytes, options: Any, providers: list[Any], disabled_optimizers: Any = None) -> Any:
        build.opened.append(providers)
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        print("EP Error, falling back")
        used = names if build.works else [CPU]

        def run(*_: Any) -> None:
            severities.append("run")
            if model == devices._RECURRENT and not build.has_cudnn:
                raise RuntimeError(NO_CUDNN)

        return SimpleNamespace(providers=providers, get_providers=lambda: used, run=run)

    build = SimpleNamespace(
        __file__=str(tmp_path / "__init__.py"),
        works=True,
        has_cudnn=True,
        opened=[],
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
        assert (session.providers, fault) == ([(CUDA, cuda_options(index)), CPU], "")
    assert cuda_fault(gpu_build) == ""
    assert gpu_build.severities == [*[4, 2] * 4, "run"]
    assert capfd.readouterr() == ("", "")  # standard output is for answers


def driver(memory: int, refuses: str = "") -> Any:
    """The driver of devices with so many bytes, of which each call that it does not refuse succeeds."""

    def answer(call: str, pointer: Any, value: int) -> int:
        if call != refuses:
            pointer._obj.value = value
        return call == refuses

    return SimpleNamespace(
        cuInit=lambda flags: int(refuses == "cuInit"),
        cuDeviceGet=lambda pointer, index: answer("cuDeviceGet", pointer, index),
        cuDeviceTotalMem_v2=lambda pointer, device: answer("cuDeviceTotalMem_v2", pointer, memory + device.value),
    )


def options(index: int, limit: int | None = None) -> dict[str, str]:
    """The options of CUDA with this limit of memory."""
    expected = {"device_id": str(index), "use_tf32": "0", "arena_extend_strategy": "kSameAsRequested"}
    return expected | ({} if limit is None else {"gpu_mem_limit": str(limit)})


def test_cuda_computes_without_tf32_in_at_most_nine_tenths_of_the_memory(
    gpu_build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(80 * 10**9))
    assert cuda_options(3) == options(3, 72 * 10**9 + 2)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(2 * 10**9))
    # The model is opened after two graphs that only show whether CUDA and cuDNN work.
    open_on_device(gpu_build, devices._RECURRENT, None, "cuda:3")
    probe = options(0, 18 * 10**8)
    assert [providers[0][1] for providers in gpu_build.opened] == [probe, probe, options(3, 18 * 10**8 + 2)]


def test_a_device_whose_memory_is_unknown_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    refusing = [driver(80 * 10**9, call) for call in ("cuInit", "cuDeviceGet", "cuDeviceTotalMem_v2")]
    for library in (*refusing, SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, library=library: library)
        assert cuda_options(0) == options(0)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_options(0) == options(0)


def test_memory_of_a_huge_text_is_released_on_the_device_that_ran_it(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, released, opened = "memory.enable_memory_arena_shrinkage", [], devices.open_session

    class OnDevice:
        """A session on the CPU that says that it has these providers."""

        providers: tuple[str, ...] = (CUDA, CPU)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.session = opened(*arguments, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.session, name)

        def get_providers(self) -> tuple[str, ...]:
            return self.providers

        def get_provider_options(self) -> dict[str, dict[str, str]]:
            return {CUDA: {"device_id": "1"}, CPU: {}}

        def run(self, names: Any, feeds: Any, options: Any) -> Any:
            try:
                released.append(options.get_run_config_entry(key))
            except RuntimeError:  # it is not set
                released.append("")
            return self.session.run(names, feeds)

    monkeypatch.setattr(devices, "open_session", OnDevice)
    monkeypatch.setattr(devices, "RUN_TOKENS", 3)
    for arenas in ("cpu:0;gpu:1", "cpu:0"):
        model = load(tiny_bundle, "cpu", threads=1)
        released.clear()
        for text in ("Anna", "Anna in New York", "Anna", "Anna", "Anna"):
            model(text)
        assert released == ["", arenas, arenas, arenas, ""]
        OnDevice.providers = (CPU,)


def test_a_text_that_needs_more_than_the_limit_of_memory_is_an_error_of_the_text(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cpu", arena, 0, onnxruntime.OrtMemType.DEFAULT)
    limit = {"max_mem": 16 * 1024, "arena_extend_strategy": 1}
    onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg(limit))
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    limited = onnxruntime.InferenceSession(tiny_bundle / "model.onnx", options, providers=[CPU])
    model = load(tiny_bundle, "cpu", threads=1)
    expected = model("Anna")
    monkeypatch.setattr(model.graph, "_session", lambda threads: limited)
    assert model("Anna") == expected
    with pytest.raises(DataError, match="needs more memory for this input than available; shorten the text"):
        model("Anna " * 1000)


def test_a_library_that_does_not_load_is_named(gpu_build: Any) -> None:
    gpu_build.works = False
    assert "could not start CUDA and fell back to the CPU; update the driver" in cuda_fault(gpu_build)
    (Path(gpu_build.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so").touch()
    session, fault = open_on_device(gpu_build, b"", None, "auto")
    assert session.providers == [CPU]
    assert re.search(r"a library of CUDA does not load \(.*libonnxruntime_providers_cuda.so: file too short\)", fault)
    with pytest.raises(EnvError, match="--device cuda: a library of CUDA does not load"):
        open_on_device(gpu_build, b"", None, "cuda")


def test_an_onnxruntime_or_a_machine_for_the_cpu_alone_says_so_before_anything_is_loaded(
    gpu_build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_DEVICES", ("/nowhere",))
    del gpu_build.preload_dlls
    assert open_on_device(gpu_build, b"", None, "auto")[1] == cuda_fault(gpu_build) == NO_DEVICE
    assert open_on_device(gpu_build, b"", None, "cpu")[1] == ""
    with pytest.raises(EnvError, match=f"--device cuda:1: {NO_DEVICE}; see `seqpipe doctor --require cuda`"):
        open_on_device(gpu_build, b"", None, "cuda:1")
    gpu_build.get_available_providers = lambda: [CPU]
    session, fault = open_on_device(gpu_build, b"", None, "auto")
    assert (session.providers, fault) == ([CPU], "")
    with pytest.raises(EnvError, match=r"onnxruntime does not support CUDA; .* pip install .onnxruntime-gpu\[cuda"):
        open_on_device(gpu_build, b"", None, "cuda")


def test_the_graphs_that_prove_a_device_and_cudnn_run() -> None:
    for graph, expected in ((devices._NEGATE, [-1.0]), (devices._RECURRENT, [[[[0.0]]]])):
        session = onnxruntime.InferenceSession(graph, providers=[CPU])
        assert session.run(None, {"x": [1.0]})[0].tolist() == expected
    assert "LSTM" in [node.op_type for node in onnx.load_from_string(devices._RECURRENT).graph.node]


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="needs an onnxruntime without CUDA")
def test_a_machine_that_was_meant_to_have_cuda_ends_with_exit_code_7() -> None:
    done = seqpipe("doctor", "--require", "cuda")
    assert done.code == 7
    assert "error CUDA: required, but does not work: this onnxruntime does not support CUDA; pip uninstall" in done.out
    assert seqpipe("doctor").code == 0
    assert seqpipe("doctor", "--require", "rocm").code == 2


def test_a_recurrent_layer_without_cudnn_is_an_error_at_load_with_its_cure(gpu_build: Any) -> None:
    assert open_on_device(gpu_build, devices._RECURRENT, None, "cuda")[1] == ""
    gpu_build.has_cudnn = False
    assert open_on_device(gpu_build, devices._NEGATE, None, "cuda")[1] == ""  # needs none
    cure = r'recurrent layers need cuDNN; pip install "onnxruntime-gpu\[cuda,cudnn\]>=[\d.]+"'
    with pytest.raises(EnvError, match=rf"--device cuda: {cure} \(.*cuDNN is not available"):
        open_on_device(gpu_build, devices._RECURRENT, None, "cuda")
    session, fault = open_on_device(gpu_build, devices._RECURRENT, None, "auto")
    assert session.providers == [CPU]
    assert re.match(cure, fault)


def test_what_else_needs_cudnn_is_an_error_of_the_run_with_its_cure(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny_bundle, "cpu", threads=1)

    def fail(*_: Any) -> None:
        raise RuntimeError(f"Non-zero status code returned while running Conv node. {NO_CUDNN}")

    monkeypatch.setattr(model.graph, "_session", lambda threads: SimpleNamespace(run=fail))
    with pytest.raises(EnvError, match=r"the graph needs cuDNN; pip install .onnxruntime-gpu\[cuda,cudnn\].*Conv"):
        model("Anna")


def test_a_bundle_of_int8_is_refused_on_cuda_and_runs_on_the_cpu(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    toy_bundles.changed_bundle(tiny_bundle, tmp_path / "bundle", parity={"precision": "int8"})
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    cure = "use the CPU, or export it with precision: fp32"
    reason = f"onnxruntime has no CUDA kernels for the int8 of this bundle; {cure}"
    for device in ("cuda", "cuda:1"):
        with pytest.raises(EnvError, match=f"--device {device}: {reason}$"):
            load(tmp_path / "bundle", device)
    assert load(tmp_path / "bundle", "auto", threads=1).device == "cpu"
    note = f"note: CUDA is installed but not used, so answers come from the CPU: {reason}\n"
    assert capfd.readouterr().err == note
    assert load(tmp_path / "bundle", "cpu", threads=1).device == "cpu"
    assert capfd.readouterr().err == ""


def nodes_of(graph: onnx.GraphProto, in_loop: bool = False) -> Iterator[tuple[str, str, bool, list[bytes]]]:
    for node in graph.node:
        yield node.op_type, node.name, in_loop, [name.encode() for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g, in_loop or node.op_type in ("Loop", "Scan"))


def test_the_nodes_of_a_graph_and_of_its_loops_are_those_that_onnx_reads(slow_bundle: Path, tiny_bundle: Path) -> None:
    for bundle, loops in ((slow_bundle, True), (tiny_bundle, False)):
        data = (bundle / "model.onnx").read_bytes()
        nodes = sorted(graph_check.nodes(data))
        assert nodes == sorted(nodes_of(onnx.load_from_string(data).graph))
        assert any(in_loop for _, _, in_loop, _ in nodes) == loops


def test_nodes_are_counted_by_provider_and_those_of_the_cpu_within_loops(slow_bundle: Path) -> None:
    data = (slow_bundle / "model.onnx").read_bytes()
    nodes = [node[:3] for node in graph_check.nodes(data)]
    inside = next(node for node in nodes if node[2])
    outside = next(node for node in nodes if (*node[:2], True) not in nodes)

    def part(provider: str, *chosen: tuple[str, str, bool]) -> Any:
        listed = [SimpleNamespace(op_type=operator, name=name, domain="") for operator, name, _ in chosen]
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: listed)

    parts = [part(CUDA, inside, outside), part(CPU, outside), part(CPU, outside, inside)]
    expected = {"CUDA within loops": {inside[0]: 1}, "CUDA": {outside[0]: 1}, "CPU within loops": {inside[0]: 1}}
    placed = placement(SimpleNamespace(get_provider_graph_assignment_info=lambda: parts), data)
    assert placed == expected | {"CPU": {outside[0]: 2}}


def test_an_onnxruntime_that_does_not_report_where_nodes_run_fails_the_gate_alone(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(onnxruntime.InferenceSession.__mro__[1], "get_provider_graph_assignment_info")
    for gate, state in ((False, "note"), (True, "error")):
        finding = examine_placement(tiny_bundle, "cpu", gate)
        assert finding.state == state
        assert finding.detail == "this onnxruntime does not report the placement of nodes; install 1.31 or later"


def test_a_gate_fails_where_a_loop_runs_on_the_cpu(slow_bundle: Path, tiny_bundle: Path) -> None:
    gate = ("--device", "cpu", "--fail-on", "cpu-in-loop")
    for command, code in (("verify", 6), ("doctor", 7)):
        failed = seqpipe(command, slow_bundle, *gate)
        assert failed.code == code
        assert re.search(r"[1-9]\d* nodes on CPU within loops: .* ×[1-9]", failed.out + failed.err)
        passed = succeed(command, tiny_bundle, *gate)  # it has no loop
        assert "25 nodes on CPU" in passed.out + passed.err
        assert "within loops" not in passed.out + passed.err
        assert seqpipe(command, tiny_bundle, "--fail-on", "cpu").code == 2
    findings = {found["what"]: found for found in json.loads(seqpipe("doctor", slow_bundle, "--json").out)}
    assert findings["placement"]["state"] == "ok"  # as long as nobody asks
    assert "placement" not in seqpipe("doctor").out
    assert "nodes on CPU" not in seqpipe("verify", slow_bundle, "--device", "cpu").err
    assert seqpipe("doctor", "--fail-on", "cpu-in-loop").code == 2
    assert seqpipe("verify", tiny_bundle, "--untrusted", "--fail-on", "cpu-in-loop").code == 2
