"""Inputs with NaN in the padding, and the outputs for them of PyTorch and of the graph, to compare with equations."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from exported_graphs import AXES, export, ragged_mask
from numpy_cells import Array, Step, run_encoder
from torch import Tensor, nn

MASKS = [ragged_mask(1), ragged_mask(9), ragged_mask(2, 1), ragged_mask(3, 12, 1, 7, 12)]


def noisy(mask: Tensor, dim: int = 5) -> Tensor:
    """Random vectors (B, T, D) of the tokens, and NaN in the padding."""
    return torch.randn(*mask.shape, dim).masked_fill(~mask[..., None], float("nan"))


def arrays(output: Tensor | Mapping[str, Tensor]) -> dict[str, Array]:
    tensors = {"x": output} if isinstance(output, Tensor) else output
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def outputs(
    encoder: nn.Module, folder: Path | None = None, dim: int = 5
) -> Iterator[tuple[Tensor, Tensor, dict[str, Array]]]:
    """x, its mask, and the outputs of PyTorch and, with a folder, of the graph, at sizes that the export never saw."""

    def call(x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        output = encoder(x, mask)
        return {"x": output} if isinstance(output, Tensor) else output

    calls: list[Callable[..., dict[str, Array]]] = [lambda x, mask: arrays(call(x, mask))]
    if folder:
        example = ragged_mask(7, 2, 4)
        calls.append(export(folder / "encoder.onnx", encoder, call, AXES, x=noisy(example, dim), mask=example))
    for mask in MASKS:
        for run in calls:
            x = noisy(mask, dim)
            yield x, mask, run(x=x, mask=mask)


def assert_rows(x: Array, read: Tensor, mask: Tensor, expected: Callable[[Array], Array]) -> None:
    """Each row of x is what the equations give for that row alone, and zero in the padding."""
    for b, n in enumerate(mask.sum(1).tolist()):
        row = expected(read[b, :n].double().numpy())
        assert x[b, :n].shape == row.shape
        assert np.abs(x[b, :n] - row).max() < 1e-5
        assert not x[b, n:].any()


def distance(
    output: Mapping[str, Array | Tensor],
    step: Step,
    encoder: nn.Module,
    inputs: tuple[Tensor, Tensor],
    options: Mapping[str, str],
    start: Callable[[int], Array | None] = lambda row: None,
) -> float:
    """The greatest difference at the tokens of a recurrent encoder from its equations, with a start for each row."""
    (x, mask), worst = inputs, 0.0
    direction, merge = options.get("direction", "both"), options.get("merge", "concat")
    for b, n in enumerate(mask.sum(1).tolist()):
        row = x[b, :n].double().numpy()
        expected = run_encoder(step, encoder.layers, row, direction, merge, start(b))  # type: ignore[arg-type]
        for ours, theirs in zip((output["x"][b, :n], output["state"][b], output["first"][b]), expected, strict=True):
            assert tuple(ours.shape) == theirs.shape
            worst = max(worst, float(np.abs(np.asarray(ours) - theirs).max()))
    return worst


def waves(length: int, dim: int) -> Array:
    """The sinusoidal positions of Vaswani et al. (2017), one number at a time."""
    table = np.zeros((length, dim))
    for t in range(length):
        for d in range(dim):
            angle = t / 10_000 ** ((d - d % 2) / dim)
            table[t, d] = np.cos(angle) if d % 2 else np.sin(angle)
    return table
