"""Nodes without a CUDA kernel, and copies to the host within loops, are found.

Exported models are checked in tests/test_gallery.py and tests/test_pipelines.py.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from cuda_placement import copies_to_host, faults_on_cuda, without_kernel
from exported_graphs import export
from torch import Tensor, nn
from torch.nn import functional as F

CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "one side": (lambda ids, mask: F.pad(ids, (1, 0), value=7), "int64"),
    "both sides of two axes": (lambda ids, mask: F.pad(ids, (0, 2, 3, 1), value=-1), "int64"),
    "as far as another axis": (lambda ids, mask: F.pad(ids, (ids.shape[0], ids.shape[1] - 1)), "int64"),
    "past 2^53": (lambda ids, mask: F.pad(ids + 2**53, (1, 1), value=1), "int64"),
    "int32": (lambda ids, mask: F.pad(ids.int(), (1, 1)).long(), "int64"),
    "floats": (lambda ids, mask: F.pad(ids.float(), (1, 1), value=0.5), "float32"),
    "booleans": (lambda ids, mask: F.pad(mask, (1, 1), value=True), "bool"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cuda_cannot_pad_is_written_otherwise_with_the_same_result(name: str, tmp_path: Path) -> None:
    call, kind = CASES[name]
    example = {"ids": torch.arange(15).view(3, 5), "mask": torch.arange(15).view(3, 5) % 2 == 0}
    axes = dict.fromkeys(example, ("rows", "length"))
    graph = export(tmp_path / "model.onnx", nn.Identity(), lambda ids, mask: {"y": call(ids, mask)}, axes, **example)
    for rows, length in ((3, 5), (1, 1), (2, 9)):
        ids = torch.randint(-9, 9, (rows, length))
        made = graph(ids=ids, mask=ids > 0)["y"]
        assert made.dtype == kind
        np.testing.assert_array_equal(made, call(ids, ids > 0).numpy())
    assert faults_on_cuda(tmp_path / "model.onnx") == []


def looped(step: str) -> onnx.ModelProto:
    """A graph with a Loop that carries vectors of floats v and of integers t, by these nodes that make y and u."""
    body = f"(int64 i, bool go, float[K] v, int64[J] t) => (bool on, float[L] y, int64[I] u) {{ {step} }}"
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        graph (float[N] x, int64[N] s) => (float[M] last)
        <int64 most = {{5}}, bool always = {{1}}, int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[1] far = {{99}},
         int64[2] edges = {{0, 1}}>
        {{ last, ignored = Loop <body = body {body}> (most, always, x, s) }}""")


GOES_ON = "a = ReduceSum <keepdims = 0> (y) b = Greater (a, a) on = Not (b)"
COMPUTED = f"m = ReduceMax <keepdims = 1> (t) y = Slice (v, m, far) u = Identity (t) {GOES_ON}"
ON_HOST = f"n = Shape (v) m = Sub (n, one) y = Slice (v, zero, m) u = Identity (t) {GOES_ON}"
NO_KERNEL = f"w = Add (t, t) u = Pad (w, edges) y = Add (v, v) {GOES_ON}"
STEPS: dict[str, tuple[str, set[str]]] = {
    "the condition": (f"y = Add (v, v) u = Identity (t) {GOES_ON}", {"on"}),
    "a condition that is known": ("y = Add (v, v) u = Identity (t) on = Identity (go)", {"on"}),
    "a beginning that was computed": (COMPUTED, {"m", "on"}),
    "a beginning that the last step computed": (f"u = Add (t, t) y = Slice (v, t, far) {GOES_ON}", {"t", "on"}),
    "a length, which is on the host": (ON_HOST, {"on"}),
    "an operator without a kernel": (NO_KERNEL, {"w", "on"}),
}


@pytest.mark.parametrize("name", STEPS)
def test_copies_to_the_host_within_a_loop_are_found(name: str) -> None:
    step, copied = STEPS[name]
    ((found),) = copies_to_host(looped(step)).values()
    assert {*found} == copied


def test_an_operator_without_a_kernel_for_its_types_is_found_in_a_loop_too() -> None:
    pad = looped(NO_KERNEL)
    assert without_kernel(pad) == ["Loop : Pad of int64"]
    largest = looped(f"m = ArgMax <keepdims = 1> (t) u = Add (m, t) y = Selu (v) {GOES_ON}")
    assert without_kernel(largest)[0] == "Loop : ArgMax of int64"
    assert without_kernel(largest)[1] == "Loop : Selu: cuda_kernels.json has no row for opset 18"


@pytest.mark.parametrize("wrong", ["hidden_size = 2, input_forget = 1", "hidden_size = 2, clip = 3.0"])
def test_a_recurrent_cell_that_cudnn_lacks_is_found(wrong: str) -> None:
    def cell(attributes: str) -> list[str]:
        text = f"""
            <ir_version: 9, opset_import: ["" : 18]>
            graph (float[T, B, 3] x, float[1, 8, 3] w, float[1, 8, 2] r) => (float[T, 1, B, 2] y)
            {{ y = LSTM <{attributes}> (x, w, r) }}"""
        return without_kernel(onnx.parser.parse_model(text))

    assert cell("hidden_size = 2") == []
    assert cell(wrong) == [": LSTM: cuDNN has no such cell"]
