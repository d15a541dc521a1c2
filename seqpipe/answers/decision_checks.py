"""Checks of decisions and targets against what an answer kind states of its arrays, for `seqpipe.testing`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from seqpipe.answers.types import Array
from seqpipe.features.document import Arrays

CLOSE = 1e-3  # tolerance of probabilities
_LETTER = re.compile(r"[A-Z]")


def array_fault(stated: Mapping[str, Array], arrays: Arrays, sizes: Mapping[str, int]) -> str:
    """What is wrong with the shapes and dtypes of a decision; "" if nothing is.

    Args:
        stated: By name; a letter stands for one size wherever it occurs.
        arrays: The decision.
        sizes: Of letters that are known.
    """
    bound = dict(sizes)
    for name, array in stated.items():
        value = arrays.get(name)
        if value is None:
            if array.required:
                return f"decide returns no {name!r}"
            continue
        axes = [axis.strip() for axis in array.shape.strip("()").split(",") if axis.strip()]
        if len(axes) == value.ndim:
            for axis, size in zip(axes, value.shape, strict=True):
                if _LETTER.fullmatch(axis):
                    bound.setdefault(axis, size)
        expected = tuple(int(bound.get(axis, axis)) if axis in bound or axis.isdigit() else -1 for axis in axes)
        if value.shape != expected or str(value.dtype) != array.dtype:
            return f"{name} is {value.shape} {value.dtype}, not {expected} {array.dtype}"
    return ""


def value_fault(stated: Mapping[str, Array], arrays: Arrays, mask: np.ndarray, counts: Mapping[str, int]) -> str:
    """What is wrong with the values of a decision; "" if nothing is.

    Args:
        stated: By name.
        arrays: The decision.
        mask: (B, T), which tokens are real.
        counts: How many ids there are of each sort: `label`, `flag`, `token`.
    """
    for name, array in stated.items():
        if name in arrays and (fault := _CHECKS.get(array.values, _ids)(name, array, arrays[name], mask, counts)):
            return fault
    return ""


Check = Callable[[str, Array, np.ndarray, np.ndarray, Mapping[str, int]], str]


def _ids(name: str, array: Array, values: np.ndarray, mask: np.ndarray, counts: Mapping[str, int]) -> str:
    most = counts.get(array.values)
    if most is not None and not ((values >= 0) & (values < most)).all():
        return f"{name} holds ids that are not from 0 to {most - 1}"
    return ""


def _positions(name: str, array: Array, values: np.ndarray, mask: np.ndarray, counts: Mapping[str, int]) -> str:
    lengths = mask.sum(1).reshape(-1, *[1] * (values.ndim - 1))
    if not ((values >= -1) & (values < lengths)).all():
        return f"{name} hold what is neither -1 nor the position of a real token"
    return ""


def _probabilities(name: str, array: Array, values: np.ndarray, mask: np.ndarray, counts: Mapping[str, int]) -> str:
    real = values[mask] if values.shape == mask.shape and array.shape == "(B, T)" else values
    if not ((real >= -CLOSE) & (real <= 1 + CLOSE)).all():
        return f"{name} go from {real.min():.3g} to {real.max():.3g}; they are to be probabilities"
    return ""


def _log_probabilities(name: str, array: Array, values: np.ndarray, mask: np.ndarray, counts: Mapping[str, int]) -> str:
    if not (values <= CLOSE).all():
        return f"{name} go from {values.min():.3g} to {values.max():.3g}; they are to be log-probabilities"
    return "" if (np.diff(values, axis=1) <= CLOSE).all() else "what is decided does not stand best first"


_CHECKS: Mapping[str, Check] = {
    "position": _positions,
    "probability": _probabilities,
    "log-probability": _log_probabilities,
}


def mirrored(positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Positions (B, …) counted from the last token of a mask (B, T); -1, and what stands in the padding, as it is."""
    lengths = mask.sum(1).reshape(-1, *[1] * (positions.ndim - 1))
    changed = lengths - 1 - positions
    return np.where((positions >= 0) & (changed >= 0), changed, positions)


def changed_values(array: Array, values: np.ndarray, mask: np.ndarray, counts: Mapping[str, int]) -> np.ndarray:
    """Other valid values of an array: other ids, mirrored positions, and of numbers 1 less them."""
    if array.values == "position":
        return mirrored(values, mask)
    if values.dtype.kind == "f":
        return 1 - values
    if array.values == "token":  # ids 0 to 3 are special
        return np.where(values > 3, 4 + (values - 3) % max(1, counts["token"] - 4), 3)
    return (values + 1) % counts.get(array.values, 2)


def equal_decisions(
    stated: Mapping[str, Array], outputs: Sequence[str], pair: tuple[Arrays, Arrays], masks: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """Of each thing that was decided, flat, whether two decisions agree: a tag, a label, a token of the best answer.

    Args:
        stated: The arrays of a decision.
        outputs: Those that say what was decided.
        pair: The two decisions.
        masks: Of the inputs, (B, T) each: padding is left out.
    """
    for name in (name for name in outputs if name in pair[0]):
        first, second = (decision[name] for decision in pair)
        absent = -1 if stated[name].values == "position" else 0
        if stated[name].shape == "(B, K, N)":
            width = max(first.shape[2], second.shape[2])
            first, second = (_widened(array[:, 0], width, absent) for array in (first, second))
            yield (first == second)[(first != absent) | (second != absent)]
        elif stated[name].shape == "(B, K)":
            yield first[:, 0] == second[:, 0]
        else:
            real = [mask for mask in masks if mask.shape == first.shape and stated[name].shape == "(B, T)"]
            yield (first == second)[real[0]] if real else (first == second).ravel()


def _widened(array: np.ndarray, width: int, absent: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=absent)
