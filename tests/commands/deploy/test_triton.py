"""`seqpipe deploy triton`: Triton's own schema takes the configs, and both models answer as `predict` does."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import triton_backend
from conftest import Build
from google.protobuf import json_format, text_format
from serving import Server
from tiny_pipelines import succeed
from toy_bundles import write_sum_bundle
from triton_backend import InferenceRequest as Request

from seqpipe import load
from seqpipe.commands.deploy import graph_config
from seqpipe.errors import BundleError
from seqpipe.runtime.session import cuda_options

model_config_pb2 = pytest.importorskip("tritonclient.grpc").model_config_pb2
DTYPES = {"TYPE_BOOL": np.bool_, "TYPE_INT64": np.int64, "TYPE_FP32": np.float32}  # Triton's model_configuration.md
TEXTS = ["Anna in New York", "Ben meets Alice", "", "calls", "Bern in New York . Anna", "你好 Anna", "Ben " * 300]


def deploy(bundle: Path, repository: Path, *options: str) -> Path:
    succeed("deploy", "triton", bundle, "-o", repository, *options)
    return repository


def parse(text: str) -> Any:
    """The config as Triton's schema reads it; an unknown field or value is an error there."""
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def config_of(repository: Path, name: str) -> Any:
    config = parse((repository / name / "config.pbtxt").read_text(encoding="utf-8"))
    assert config.name == name
    return config


def start(repository: Path, name: str) -> Any:
    return triton_backend.start(repository, name, json_format.MessageToDict(config_of(repository, name)))


def answers(response: Any) -> list[Any]:
    assert not response.has_error(), response.error().message()
    (tensor,) = response.output_tensors()
    assert tensor.name() == "answer_json"
    assert tensor.as_numpy().shape[1:] == (1,)
    return [json.loads(element) for element in tensor.as_numpy().reshape(-1)]


@pytest.fixture(scope="module")
def repository(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy(tiny_bundle, tmp_path_factory.mktemp("triton") / "models")


@pytest.fixture(scope="module")
def sums_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sum_bundle(tmp_path_factory.mktemp("sums") / "bundle")


@pytest.fixture(scope="module")
def sums(sums_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy(sums_bundle, tmp_path_factory.mktemp("triton") / "models")


@pytest.fixture(scope="module")
def toy(repository: Path) -> Any:
    return start(repository, "toy")


def test_the_python_model_takes_each_field_and_batches_without_delay(repository: Path, sums: Path) -> None:
    for config, field in ((config_of(repository, "toy"), "text"), (config_of(sums, "sums"), "points")):
        assert config.backend == "python"
        assert config.max_batch_size == 256
        assert config.HasField("dynamic_batching")
        assert config.dynamic_batching.max_queue_delay_microseconds == 0
        assert [(tensor.name, [*tensor.dims]) for tensor in config.input] == [(field, [1])]
        assert [(tensor.name, [*tensor.dims]) for tensor in config.output] == [("answer_json", [1])]
        assert {tensor.data_type for tensor in (*config.input, *config.output)} == {model_config_pb2.TYPE_STRING}
        assert [group.kind for group in config.instance_group] == [model_config_pb2.ModelInstanceGroup.KIND_CPU]


@pytest.fixture(scope="module")
def graphs(repository: Path, sums: Path) -> dict[str, tuple[Any, Any]]:
    """Configs of graphs with a session of each; `bare` is the toy's graph, whose option has no default."""
    pairs = {}
    for folder, name in ((repository, "toy_graph"), (sums, "sums_graph")):
        pairs[name] = config_of(folder, name), onnxruntime.InferenceSession(folder / name / "1" / "model.onnx")
    bare = onnx.load(repository / "toy_graph" / "1" / "model.onnx")
    (bias,) = (tensor for tensor in bare.graph.initializer if tensor.name == "bias")
    bare.graph.initializer.remove(bias)
    session = onnxruntime.InferenceSession(bare.SerializeToString())
    return {**pairs, "bare": (parse(graph_config("bare", session, cuda=False)), session)}


@pytest.mark.parametrize(("name", "batch"), [("toy_graph", 32), ("sums_graph", 32), ("bare", 0)])
def test_a_graph_runs_as_its_config_says(name: str, batch: int, graphs: Any) -> None:
    config, session = graphs[name]
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (batch, bool(batch))
    assert [tensor.name for tensor in config.input] == [node.name for node in session.get_inputs()]
    assert [tensor.name for tensor in config.output] == [node.name for node in session.get_outputs()]
    batch_sizes, free = ([3], [5, 4]) if batch else ([], [3, 5, 4])  # in place of -1, from the left

    def shape(tensor: Any) -> list[int]:
        """The shape that Triton makes of dims: the batch stands before them, and `reshape` in their place."""
        sizes = iter(free)
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        return batch_sizes + [next(sizes) if size == -1 else size for size in dims]

    types = model_config_pb2.DataType
    feeds = {tensor.name: np.ones(shape(tensor), DTYPES[types.Name(tensor.data_type)]) for tensor in config.input}
    for tensor, array in zip(config.output, session.run(None, feeds), strict=True):
        assert array.dtype == DTYPES[types.Name(tensor.data_type)]
        assert array.shape == tuple(shape(tensor))


def test_inputs_that_keep_their_defaults_are_named(sums: Path) -> None:
    assert "stay at their defaults, as they have no batch: scale." in (sums / "sums_graph/config.pbtxt").read_text()


def test_a_batch_of_requests_is_answered_at_once(toy: Any, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, answer_batch = [], toy.model.predictor.answer_batch

    def counted(records: Any, decoding: Any) -> Any:
        calls.append(len(records))
        return answer_batch(records, decoding)

    monkeypatch.setattr(toy.model.predictor, "answer_batch", counted)
    dice = random.Random(1)
    texts = [" ".join(dice.choices(TEXTS, k=dice.randint(0, 2))) for _ in range(60)]
    sizes, rest = [1, 3, 2, 4] * 6, iter(texts)
    responses = toy.execute([Request({"text": [next(rest) for _ in range(size)]}) for size in sizes])
    assert calls == [60]
    assert [len(answers(response)) for response in responses] == sizes
    predicted = succeed("predict", tiny_bundle, stdin="\n".join(texts).encode() + b"\n")
    answered = [answer for response in responses for answer in answers(response)]
    assert answered == [json.loads(line) for line in predicted.out.splitlines()]
    assert len({json.dumps(answer) for answer in answered}) > 15


def test_one_bad_text_fails_only_its_own_request(toy: Any, tiny: Any) -> None:
    good = "Anna in Bern"
    texts = ([good], [good, "Ben " * 1001], [b"\xff\xfe"], [good, "Ben"])
    first, too_long, no_utf8, last = toy.execute([Request({"text": elements}) for elements in texts])
    assert (too_long.has_error(), no_utf8.has_error()) == (True, True)
    assert answers(first) == [tiny(good)]
    assert answers(last) == [tiny(good), tiny("Ben")]
    assert all(part in too_long.error().message() for part in ("text 2", "limit of 1,000"))
    assert "input text" in no_utf8.error().message()


def test_decode_options_are_parameters_of_a_request(toy: Any, tiny: Any) -> None:
    text = "Alice in Bern"
    finals = {"bias": 5.0, "triton_enable_empty_final_response": True}
    parameters: list[Any] = [{}, {"bias": 5.0}, finals, {"bias": 99}, {"bais": 1}]
    responses = toy.execute([Request({"text": [text]}, of_request) for of_request in parameters])
    assert answers(responses[0]) == [tiny(text)] != [tiny(text, bias=5.0)]
    assert answers(responses[1]) == answers(responses[2]) == [tiny(text, bias=5.0)]
    assert "bias: 99" in responses[3].error().message()
    assert "did you mean 'bias'" in responses[4].error().message()


def test_numbers_are_given_as_json(sums: Path, sums_bundle: Path) -> None:
    model, parts = start(sums, "sums"), ("[[1, 2], [3, 4.5]]", '"seven"', "[[1, 2")
    good, bad, broken = model.execute([Request({"points": [part]}, {"scale": 2}) for part in parts])
    assert answers(good) == [load(sums_bundle, "cpu")({"points": [[1, 2], [3, 4.5]]}, scale=2)] == [{"score": 21.0}]
    assert "rows of numbers" in bad.error().message()
    assert "input points" in broken.error().message()


def test_a_client_of_triton_can_ask_seqpipe_serve_the_same(toy: Any, repository: Path, tiny_bundle: Path) -> None:
    texts, parameters = ["Alice in Bern", "Anna"], {"bias": 5.0}
    tensor = {"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": texts}
    (response,) = toy.execute([Request({"text": texts}, parameters)])
    with Server(tiny_bundle) as server:
        metadata = server.get("/v2/models/toy").json
        reply = server.post("/v2/models/toy/infer", {"inputs": [tensor], "parameters": parameters})
    config = config_of(repository, "toy")
    assert [part["name"] for part in metadata["inputs"]] == [part.name for part in config.input]
    outputs = {part["name"]: part for part in reply.json["outputs"]}
    assert outputs["answer_json"]["shape"] == [2, 1]
    assert [json.loads(answer) for answer in outputs["answer_json"]["data"]] == answers(response)


def test_a_model_whose_bundle_answers_otherwise_does_not_start(repository: Path, build: Build, tmp_path: Path) -> None:
    copy = shutil.copytree(repository, tmp_path / "models")
    shutil.rmtree(copy / "toy" / "1" / "bundle")
    build(copy / "toy" / "1" / "bundle", leaks=True)
    with pytest.raises(BundleError, match="answers differ on this machine"):
        start(copy, "toy")


def test_the_model_is_clean_python(repository: Path) -> None:
    pytest.importorskip("ruff")
    check = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "120", "--select", "E,F,W,B,N,PIE"]
    done = subprocess.run([*check, "--ignore", "B905", repository / "toy/1/model.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_on_a_gpu_both_models_run_there(repository: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    done = succeed("deploy", "triton", tiny_bundle, "-o", tmp_path / "models", "--cuda", "--name", "people")
    assert "--gpus all" in done.err
    assert "seqpipe-nlp[gpu]==" in done.err
    text_model, config = (config_of(tmp_path / "models", name) for name in ("people", "people_graph"))
    groups = [group.kind for group in (*text_model.instance_group, *config.instance_group)]
    assert groups == [model_config_pb2.ModelInstanceGroup.KIND_GPU] * 2
    # The device of the other model is opened by seqpipe.
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    strategies = {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"}
    strategy = strategies[config.parameters["arena_extend_strategy"].string_value]
    written = {**accelerator.parameters, "arena_extend_strategy": strategy}
    unknown = ("device_id", "gpu_mem_limit")  # where the files are written; Triton knows the device
    expected = {name: value for name, value in cuda_options(0).items() if name not in unknown}
    assert (accelerator.name, written) == ("cuda", expected)
    on_cpu = config_of(repository, "toy_graph")
    assert (on_cpu.HasField("optimization"), len(on_cpu.parameters)) == (False, 0)
