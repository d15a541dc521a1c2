"""Weights and one row in, the states that the published equations give: NumPy in float64, one token after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import nn

Array = np.ndarray
Weights = Mapping[str, Array]
Step = Callable[[Weights, Array, tuple[Array, ...]], tuple[Array, ...]]  # weights, x(t), state; the state's first is h


def weights_of(rnn: nn.Module, suffix: str = "") -> Weights:
    """W, R, b, c of one layer in one direction; without biases b and c are 0."""
    found = {name: value.detach().double().numpy() for name, value in rnn.named_parameters()}
    none = np.zeros(len(found["weight_hh_l0"]))
    names = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih", "c": "bias_hh"}
    return {short: found.get(f"{name}_l0{suffix}", none) for short, name in names.items()}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def elman_tanh(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    return (np.tanh(p["W"] @ x + p["b"] + p["R"] @ state[0] + p["c"]),)


def elman_relu(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    return (np.maximum(p["W"] @ x + p["b"] + p["R"] @ state[0] + p["c"], 0),)


def gru_after(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    (h,) = state
    (r, z, n), (hr, hz, hn) = np.split(p["W"] @ x + p["b"], 3), np.split(p["R"] @ h + p["c"], 3)
    r, z = sigmoid(r + hr), sigmoid(z + hz)
    return (z * h + (1 - z) * np.tanh(n + r * hn),)


def gru_before(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    (h,) = state
    (r, z, n), (R_r, R_z, R_n), (c_r, c_z, c_n) = (np.split(v, 3) for v in (p["W"] @ x + p["b"], p["R"], p["c"]))
    r, z = sigmoid(r + R_r @ h + c_r), sigmoid(z + R_z @ h + c_z)
    return (z * h + (1 - z) * np.tanh(n + R_n @ (r * h) + c_n),)


def lstm(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    h, cell = state
    i, f, g, o = np.split(p["W"] @ x + p["b"] + p["R"] @ h + p["c"], 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def one_way(step: Step, p: Weights, row: Array, backward: bool) -> Array:
    """The states (T, H) of one row (T, D), each where its token stands."""
    state: tuple[Array, ...] = (np.zeros(p["R"].shape[1]),) * 2 if step is lstm else (np.zeros(p["R"].shape[1]),)
    states = []
    for x in row[::-1] if backward else row:
        state = step(p, x, state)
        states.append(state[0])
    return np.stack(states[::-1] if backward else states)


def layer(step: Step, rnn: nn.Module, row: Array, direction: str) -> list[tuple[Array, Array, Array]]:
    """The states (T, H) of each direction, the last that it makes (H,), and the first."""
    found = []
    for backward in {"forward": [False], "backward": [True], "both": [False, True]}[direction]:
        states = one_way(step, weights_of(rnn, "_reverse" if backward and direction == "both" else ""), row, backward)
        found.append((states, states[0 if backward else -1], states[-1 if backward else 0]))
    return found


def encoded(step: Step, layers: nn.ModuleList, row: Array, direction: str, merge: str) -> tuple[Array, Array, Array]:
    """What an encoder makes of one row: its x (T, D'), state (D',) and first (D',)."""
    merged = {
        "concat": lambda arrays: np.concatenate(arrays, -1),
        "sum": lambda arrays: np.sum(arrays, 0),
        "mean": lambda arrays: np.mean(arrays, 0),
    }[merge]
    for rnn in layers:
        x, state, first = (merged(arrays) for arrays in zip(*layer(step, rnn, row, direction), strict=True))
        row = x
    return x, state, first
