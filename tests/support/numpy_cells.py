"""Recurrent cells by their published equations, in NumPy: the states of one row in float64, step by step."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from torch import nn

Array = np.ndarray
Weights = Mapping[str, Array]
State = tuple[Array, ...]
Start = Array | None
Step = Callable[[Weights, Array, State], State]  # weights, x(t), state; the state's first is h


def weights_of(rnn: nn.Module, suffix: str = "") -> Weights:
    """W, R, b, c and the other weights of one layer in one direction; without biases b and c are 0."""
    arrays = {
        name.split("_l0")[0]: parameter.detach().double().numpy()
        for name, parameter in rnn.named_parameters()
        if name.endswith(f"_l0{suffix}")
    }
    zeros = np.zeros(len(arrays["weight_hh"]))
    names = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih", "c": "bias_hh"}
    return {short: arrays.pop(name, zeros) for short, name in names.items()} | arrays


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gates(p: Weights, x: Array, h: Array) -> Array:
    """The inputs of all gates, before their activations."""
    return p["W"] @ x + p["b"] + p["R"] @ h + p["c"]


def elman_tanh(p: Weights, x: Array, state: State) -> State:
    return (np.tanh(gates(p, x, state[0])),)


def elman_relu(p: Weights, x: Array, state: State) -> State:
    return (np.maximum(gates(p, x, state[0]), 0),)


def gru_reset_after(p: Weights, x: Array, state: State) -> State:
    (h,) = state
    (r, z, n), (hr, hz, hn) = np.split(p["W"] @ x + p["b"], 3), np.split(p["R"] @ h + p["c"], 3)
    r, z = sigmoid(r + hr), sigmoid(z + hz)
    return (z * h + (1 - z) * np.tanh(n + r * hn),)


def gru_reset_before(p: Weights, x: Array, state: State) -> State:
    (h,) = state
    (r, z, n), (R_r, R_z, R_n), (c_r, c_z, c_n) = (np.split(v, 3) for v in (p["W"] @ x + p["b"], p["R"], p["c"]))
    r, z = sigmoid(r + R_r @ h + c_r), sigmoid(z + R_z @ h + c_z)
    return (z * h + (1 - z) * np.tanh(n + R_n @ (r * h) + c_n),)


def lstm(p: Weights, x: Array, state: State) -> State:
    h, cell = state
    i, f, g, o = np.split(gates(p, x, h), 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


STATES: dict[Step, int] = {lstm: 2}  # tensors of a state, where they are not one


def nested_of_depth(depth: int) -> Step:
    """Nested LSTM (Moniz and Krueger 2017): the memory of a cell is another cell, `depth` levels in all."""

    def step(p: Weights, x: Array, state: State) -> State:
        h, *memories = state  # from the outermost to the innermost
        i, f, g, o = np.split(gates(p, x, h), 4)
        outputs = [o]
        for k, memory in enumerate(memories[:-1], 1):
            inner = np.concatenate([sigmoid(i) * np.tanh(g), sigmoid(f) * memory])
            i, f, g, o = np.split(p[f"inner_{k}"] @ inner + p.get(f"inner_bias_{k}", 0), 4)
            outputs.append(o)
        new = [sigmoid(f) * memories[-1] + sigmoid(i) * np.tanh(g)]
        for o in reversed(outputs):
            new.append(sigmoid(o) * np.tanh(new[-1]))
        return tuple(reversed(new))

    STATES[step] = 1 + depth
    return step


nested_lstm, nested_lstm_of_depth_3 = nested_of_depth(2), nested_of_depth(3)


def lstm_variant(
    *, without: tuple[str, ...] = (), coupled: bool = False, full: bool = False, peephole: bool = False
) -> Step:
    """A variant of Greff et al. (2017, section II): without names i, f, o, or the tanh of input (g) or output (h)."""
    names = [gate for gate in "ifo" if gate not in without and not (coupled and gate == "f")]
    blocks = [block for block in "ifgo" if block == "g" or block in names]

    def step(p: Weights, x: Array, state: State) -> State:
        assert "weight_ch" in p or not peephole
        h, cell, *previous = state
        z = dict(zip(blocks, np.split(gates(p, x, h), len(blocks)), strict=True))
        peepholes = np.split(p.get("weight_ch", np.zeros(len(names) * len(h))), max(len(names), 1))
        # A vector of peepholes is the diagonal of a matrix that is 0 elsewhere.
        P = {gate: np.diag(part) if part.ndim == 1 else part for gate, part in zip(names, peepholes, strict=False)}
        for row, to in enumerate(names):
            for column, activation in enumerate(previous):
                H = len(h)
                z[to] = z[to] + p["weight_gh"][row * H : (row + 1) * H, column * H : (column + 1) * H] @ activation
        i = sigmoid(z["i"] + P["i"] @ cell) if "i" in names else np.ones_like(h)
        f = sigmoid(z["f"] + P["f"] @ cell) if "f" in names else np.ones_like(h)
        new = (1 - i if coupled else f) * cell + i * (z["g"] if "g" in without else np.tanh(z["g"]))
        o = sigmoid(z["o"] + P["o"] @ new) if "o" in names else np.ones_like(h)
        kept = {"i": i, "f": f, "o": o}
        return o * (new if "h" in without else np.tanh(new)), new, *([kept[gate] for gate in names] if full else [])

    STATES[step] = 2 + (len(names) if full else 0)
    return step


peephole, coupled, coupled_peephole = (
    lstm_variant(peephole=True),
    lstm_variant(coupled=True),
    lstm_variant(coupled=True, peephole=True),
)


def full_peephole(p: Weights, x: Array, state: State) -> State:
    """LSTM with full peepholes (Olah 2015): a gate is σ(W [c, h, x] + b), with one matrix over the three vectors."""
    h, cell = state
    P_i, P_f, P_o = np.split(p["weight_ch"], 3)  # (H, H) each
    W_i, W_f, W_g, W_o = np.split(np.hstack([p["R"], p["W"]]), 4)  # (H, H + D) each, over [h, x]
    b_i, b_f, b_g, b_o = np.split(p["b"] + p["c"], 4)
    early, hx = np.concatenate([cell, h, x]), np.concatenate([h, x])
    i = sigmoid(np.hstack([P_i, W_i]) @ early + b_i)
    f = sigmoid(np.hstack([P_f, W_f]) @ early + b_f)
    new = f * cell + i * np.tanh(W_g @ hx + b_g)
    o = sigmoid(np.hstack([P_o, W_o]) @ np.concatenate([new, h, x]) + b_o)
    return o * np.tanh(new), new


STATES[full_peephole] = 2


def run_direction(step: Step, p: Weights, row: Array, backward: bool, start: Start = None) -> Array:
    """The states (T, H) of one row (T, D), each where its token stands, from `start` (S, H) or from zeros."""
    state: State = (np.zeros(p["R"].shape[1]),) * STATES.get(step, 1)
    if start is not None:
        assert len(start) == len(state)
        state = tuple(start)
    states = []
    for x in row[::-1] if backward else row:
        state = step(p, x, state)
        states.append(state[0])
    return np.stack(states[::-1] if backward else states)


def layer(step: Step, rnn: nn.Module, row: Array, direction: str, start: Start = None) -> list[State]:
    """The states (T, H) of each direction, the last that it makes (H,), and the first, from (directions, S, H)."""
    directions = []
    for number, backward in enumerate({"forward": [False], "backward": [True], "both": [False, True]}[direction]):
        weights = weights_of(rnn, "_reverse" if backward and direction == "both" else "")
        states = run_direction(step, weights, row, backward, None if start is None else start[number])
        directions.append((states, states[0 if backward else -1], states[-1 if backward else 0]))
    return directions


def run_encoder(
    step: Step, layers: nn.ModuleList, row: Array, direction: str, merge: str, start: Start = None
) -> State:
    """The outputs of an encoder for one row: x (T, D'), state (D',) and first (D',).

    `start` holds the initial states (layers, directions, S, H), each layer's h first; without it they are 0.
    """
    functions = {"concat": partial(np.concatenate, axis=-1), "sum": partial(np.sum, axis=0)}
    merged = functions.get(merge, partial(np.mean, axis=0))
    for depth, rnn in enumerate(layers):
        of_layer = layer(step, rnn, row, direction, None if start is None else start[depth])
        x, state, first = (merged(arrays) for arrays in zip(*of_layer, strict=True))
        row = x
    return x, state, first
