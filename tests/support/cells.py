"""Weights and one row in, the states that the published equations give: NumPy in float64, one token after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import nn

Array = np.ndarray
Weights = Mapping[str, Array]
Step = Callable[[Weights, Array, tuple[Array, ...]], tuple[Array, ...]]  # weights, x(t), state; the state's first is h


def weights_of(rnn: nn.Module, suffix: str = "") -> Weights:
    """W, R, b, c of one layer in one direction, and what else it has; without biases b and c are 0."""
    found = {name: value.detach().double().numpy() for name, value in rnn.named_parameters()}
    own = {name.split("_l0")[0]: value for name, value in found.items() if name.endswith(f"_l0{suffix}")}
    none = np.zeros(len(own["weight_hh"]))
    names = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih", "c": "bias_hh"}
    return {short: own.pop(name, none) for short, name in names.items()} | own


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


def peephole(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    h, cell = state
    i, f, g, o = np.split(p["W"] @ x + p["b"] + p["R"] @ h + p["c"], 4)
    p_i, p_f, p_o = np.split(p["weight_ch"], 3)
    new = sigmoid(f + p_f * cell) * cell + sigmoid(i + p_i * cell) * np.tanh(g)
    return sigmoid(o + p_o * new) * np.tanh(new), new


def coupled(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    h, cell = state
    i, g, o = np.split(p["W"] @ x + p["b"] + p["R"] @ h + p["c"], 3)
    p_i, p_o = np.split(p.get("weight_ch", np.zeros(2 * len(h))), 2)
    i = sigmoid(i + p_i * cell)
    new = (1 - i) * cell + i * np.tanh(g)
    return sigmoid(o + p_o * new) * np.tanh(new), new


def coupled_peephole(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    assert "weight_ch" in p
    return coupled(p, x, state)


def nested(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    h, cell, within = state
    i, f, g, o = np.split(p["W"] @ x + p["b"] + p["R"] @ h + p["c"], 4)
    W, R = np.split(p["inner_1"], 2, 1)
    inner = W @ (sigmoid(i) * np.tanh(g)) + R @ (sigmoid(f) * cell) + p.get("inner_bias_1", 0)
    i, f, g, out = np.split(inner, 4)
    within = sigmoid(f) * within + sigmoid(i) * np.tanh(g)
    cell = sigmoid(out) * np.tanh(within)
    return sigmoid(o) * np.tanh(cell), cell, within


def nested_three(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
    """The outermost memory's answer is h, what the second answers is c, what the third answers the second's cell."""
    h, cell, second, third = state
    i, f, g, o = np.split(p["W"] @ x + p["b"] + p["R"] @ h + p["c"], 4)
    outputs = [o]
    for k, memory in ((1, cell), (2, second)):
        read = np.concatenate([sigmoid(i) * np.tanh(g), sigmoid(f) * memory])
        i, f, g, o = np.split(p[f"inner_{k}"] @ read + p.get(f"inner_bias_{k}", 0), 4)
        outputs.append(o)
    third = sigmoid(f) * third + sigmoid(i) * np.tanh(g)
    second = sigmoid(outputs[2]) * np.tanh(third)
    cell = sigmoid(outputs[1]) * np.tanh(second)
    return sigmoid(outputs[0]) * np.tanh(cell), cell, second, third


STATES: dict[Step, int] = {lstm: 2, peephole: 2, coupled: 2, coupled_peephole: 2, nested: 3, nested_three: 4}


def greff(*, without: tuple[str, ...] = (), coupled: bool = False, full: bool = False) -> Step:
    """A variant of Greff et al. (2017, section II): without gates i, f, o, or the tanh of input (g) or output (h)."""
    gates = [gate for gate in "ifo" if gate not in without and not (coupled and gate == "f")]
    blocks = [block for block in "ifgo" if block == "g" or block in gates]

    def step(p: Weights, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        h, cell, *previous = state
        z = dict(zip(blocks, np.split(p["W"] @ x + p["b"] + p["R"] @ h + p["c"], len(blocks)), strict=True))
        peepholes = np.split(p.get("weight_ch", np.zeros(len(gates) * len(h))), max(len(gates), 1))
        P = dict(zip(gates, peepholes, strict=False))
        for row, to in enumerate(gates):
            for column, activation in enumerate(previous):
                H = len(h)
                z[to] = z[to] + p["weight_gh"][row * H : (row + 1) * H, column * H : (column + 1) * H] @ activation
        i = sigmoid(z["i"] + P["i"] * cell) if "i" in gates else np.ones_like(h)
        f = sigmoid(z["f"] + P["f"] * cell) if "f" in gates else np.ones_like(h)
        new = (1 - i if coupled else f) * cell + i * (z["g"] if "g" in without else np.tanh(z["g"]))
        o = sigmoid(z["o"] + P["o"] * new) if "o" in gates else np.ones_like(h)
        kept = {"i": i, "f": f, "o": o}
        return o * (new if "h" in without else np.tanh(new)), new, *([kept[gate] for gate in gates] if full else [])

    STATES[step] = 2 + (len(gates) if full else 0)
    return step


def one_way(step: Step, p: Weights, row: Array, backward: bool, start: Array | None = None) -> Array:
    """The states (T, H) of one row (T, D), each where its token stands, from `start` (S, H) or from zeros."""
    state: tuple[Array, ...] = (np.zeros(p["R"].shape[1]),) * STATES.get(step, 1)
    if start is not None:
        assert len(start) == len(state)
        state = tuple(start)
    states = []
    for x in row[::-1] if backward else row:
        state = step(p, x, state)
        states.append(state[0])
    return np.stack(states[::-1] if backward else states)


def layer(
    step: Step, rnn: nn.Module, row: Array, direction: str, start: Array | None = None
) -> list[tuple[Array, Array, Array]]:
    """The states (T, H) of each direction, the last that it makes (H,), and the first, from (directions, S, H)."""
    found = []
    for number, backward in enumerate({"forward": [False], "backward": [True], "both": [False, True]}[direction]):
        weights = weights_of(rnn, "_reverse" if backward and direction == "both" else "")
        states = one_way(step, weights, row, backward, None if start is None else start[number])
        found.append((states, states[0 if backward else -1], states[-1 if backward else 0]))
    return found


def encoded(
    step: Step, layers: nn.ModuleList, row: Array, direction: str, merge: str, start: Array | None = None
) -> tuple[Array, Array, Array]:
    """What an encoder makes of one row: its x (T, D'), state (D',) and first (D',).

    `start` holds the initial states (layers, directions, S, H), each layer's h first; without it they are 0.
    """
    merged = {
        "concat": lambda arrays: np.concatenate(arrays, -1),
        "sum": lambda arrays: np.sum(arrays, 0),
        "mean": lambda arrays: np.mean(arrays, 0),
    }[merge]
    for depth, rnn in enumerate(layers):
        of_layer = layer(step, rnn, row, direction, None if start is None else start[depth])
        x, state, first = (merged(arrays) for arrays in zip(*of_layer, strict=True))
        row = x
    return x, state, first
