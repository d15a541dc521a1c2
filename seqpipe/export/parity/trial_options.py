"""The decode options under which a graph is compared with PyTorch, and the inputs that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from seqpipe.features.document import Arrays, Doc
from seqpipe.features.sources import masks
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.runtime.decode_options import DRAWING, SEED, Known, chosen

WRITTEN = 8  # tokens of a text that is generated from random input


def trial_options(options: Known) -> list[dict[str, Any]]:
    """Decode options to compare under: the defaults, every size at 3, and sampling, with a forced prefix."""
    every = {name: 3 for name, option in options.items() if option["type"] == "size"}
    sizes = {name: 3 for name in every if name.rpartition(".")[2] not in DRAWING}
    uniform = [name for name, option in options.items() if option["type"] == "uniform"]
    seeds = {f"{name.removesuffix('uniform')}{SEED}": 7 for name in uniform}
    tokens = {name: [len(SPECIALS)] for name, option in options.items() if option["type"] == "tokens"}
    return [{}, *([sizes] if sizes else []), *([every | seeds | tokens] if seeds or tokens else [])]


def options_off_default(options: Known) -> dict[str, list[dict[str, Any]]]:
    """By name of each decode option that is no size: decode options to compare under, in which it is off its default.

    Whether it then changes a decision depends on the others: each time some of them are set too. An option of sampling
    comes with a seed.
    """
    sizes = {
        name: min(3, option.get("maximum") or 3)
        for name, option in options.items()
        if option["type"] == "size" and name.rpartition(".")[2] not in ("max_length", *DRAWING)
    }
    candidates = {}
    for name in [name for name, option in options.items() if option["type"] in ("bool", "int", "float")]:
        head = name.removesuffix(name.rpartition(".")[2])  # with its dot, if there are several
        seed = {f"{head}{SEED}": 7} if name.removeprefix(head) in DRAWING else {}
        beside: dict[str, Any] = {f"{head}length_penalty": 4.0, f"{head}min_length": WRITTEN - 2}
        settings = [{}, *({key: value} for key, value in beside.items() if key in options and key != name)]
        candidates[name] = [sizes | seed | setting | {name: _off_default(options[name])} for setting in settings]
        if longest := options.get(f"{head}max_length"):  # texts that end by themselves
            candidates[name].append(candidates[name][0] | {f"{head}max_length": longest["default"]})
            if name == f"{head}min_length":
                candidates[name][-1][name] = max(1, longest["default"] - 1)
    return candidates


def _off_default(option: Mapping[str, Any]) -> Any:
    default, low, high = option["default"], option.get("minimum"), option.get("maximum")
    if option["type"] == "bool":
        return not default
    further = default + (2 if option["type"] == "int" else 4.0)
    if high is None or further <= high:
        return further
    if option["type"] == "int":
        return default - 1
    bound = high if default == low else low
    return ((bound or 0) + default) / 2


def with_short_texts(options: Known, chosen_options: Mapping[str, Any]) -> dict[str, Any]:
    """Decode options with texts of `WRITTEN` tokens at most, unless a length was chosen.

    A loop's step is traced once: what goes wrong in its graph does so in the first steps. Real records are compared at
    the length that the options say.
    """
    lengths = {name: option["default"] for name, option in options.items() if name.rpartition(".")[2] == "max_length"}
    return {name: min(WRITTEN, default) for name, default in lengths.items()} | dict(chosen_options)


def option_inputs(feeds: Arrays, options: Known, chosen_options: Mapping[str, Any]) -> Arrays:
    """The options' inputs for these features; random numbers depend on the row's number."""
    lengths = np.sum([mask.sum(1) for mask in masks(feeds).values()], 0).tolist()
    return chosen(options, chosen_options).of([Doc("", [str(row)], [], [0] * n) for row, n in enumerate(lengths)])
