"""Decode options at deployment: checked choices of a caller, as graph inputs, and their JSON Schemas."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from seqpipe.answers.base import AnswerKind
from seqpipe.answers.schemas import Schema
from seqpipe.errors import MAX_NAME, UsageError, did_you_mean
from seqpipe.features.automaton import MOST_BYTES, utf8
from seqpipe.features.document import Arrays, Doc
from seqpipe.runtime.manifest import MOST_SIZE

FIELD = "field"  # key of the value of an option that each record has itself: {"field": the key of the record}
USUAL = "usual"  # key of the value for records without that key
SEED = "seed"  # the caller's option in place of uniform samples
ALL = "all"  # the caller's value for the number of answers, where they are few
DRAWING = ("temperature", "top_k", "top_p")  # options that have an effect only with sampling
ARE_TEXTS = ("texts", "automaton", "trie")  # types of options whose value is a text or a list of texts
NOT_BESIDE = ("stop", "forbidden", "prefix", "min_length", "no_repeat_ngram_size")  # beside allowed texts
Known = Mapping[str, Mapping[str, Any]]

_NUMBERS: Mapping[str, tuple[type, ...]] = {"size": (int,), "int": (int,), "float": (int, float), "bool": (bool,)}
_DTYPES = {"int": np.int64, "float": np.float32, "bool": np.bool_}
_LARGEST = {"size": MOST_SIZE, "int": int(np.iinfo(np.int64).max), "float": float(np.finfo(np.float32).max)}
_PHRASES = {
    "exclusiveMinimum": "above {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}
_OF_A_BLOCK = 8  # numbers of one SHA-256


@dataclass(frozen=True)
class Chosen:
    """Decode options as a caller chose them.

    Args:
        arrays: The inputs that are the same for every batch.
        seeds: Seeds of the uniform samples, which are generated for each text.
        stops: Texts before which a generated text ends.
        automata: For each option the function that returns an automaton's arcs after the generated tokens of these
            texts.
        allowed: Those of `automata` that have the only texts which may be generated.
        rankings: Those of `arrays` that the answer kind reads beside the decision, not the graph.
    """

    arrays: Arrays
    seeds: Mapping[str, int]
    stops: Sequence[str] = ()
    automata: Mapping[str, Callable[..., np.ndarray]] = field(default_factory=dict)
    allowed: Sequence[str] = ()
    rankings: Arrays = field(default_factory=dict)

    def of(self, docs: Sequence[Doc]) -> Arrays:
        """Return the inputs for a batch of these texts.

        For a head without `max_length`, whose texts are as long as their sources, the longest determines their number.
        """
        drawn, longest = {}, max((len(doc) for doc in docs), default=0) + 1
        for name, seed in self.seeds.items():
            beams, steps = (self._size(sibling(name, "beams"), 1), self._size(sibling(name, "max_length"), longest))
            drawn[name] = np.stack([random_numbers(seed, doc, beams, steps) for doc in docs])
        arrays = {name: array for name, array in self.arrays.items() if name not in self.rankings}
        return arrays | drawn | {name: arcs(docs) for name, arcs in self.automata.items()}

    def written(self, read: int) -> int:
        """Return the maximum number of generated tokens for a text of this length, over all beams and heads."""
        fixed, of_each = self._written  # for heads that bound their length; the number of alternatives for the others
        return fixed + of_each * read

    @cached_property
    def _written(self) -> tuple[int, int]:
        fixed = of_each = 0
        for name, array in self.arrays.items():
            long, wide = sibling(name, "max_length"), sibling(name, "beams")
            if name == long:
                fixed += len(array) * self._size(wide, 1)
            elif name in (wide, sibling(name, "n_best")) and long not in self.arrays and name not in self.rankings:
                of_each += len(array) - 1
        return fixed, of_each

    def _size(self, name: str, otherwise: int) -> int:
        return len(self.arrays[name]) if name in self.arrays else otherwise


def resolve_options(known: Known, values: Mapping[str, Any], kind: AnswerKind | None = None) -> Chosen:
    """Return all known options, with the caller's values or the defaults.

    Tokens are a text, which the target tokenizer of the answer kind splits, a list of tokens, or their ids; without a
    kind only ids, which are then not checked. Uniform samples are given by their seed, a whole number from 0.

    Raises:
        UsageError: names an unknown option, a wrong type, a value out of range, or two options that exclude each other.
    """
    named = {sibling(name, SEED): name for name, option in known.items() if option["type"] == "uniform"}
    seeds = {}
    for seed_name, name in named.items():
        seed = values.get(seed_name)
        if seed is None and values.get(sibling(name, "temperature")) == 0:
            seed = 0  # at temperature 0 every token is the likeliest one, whatever the samples
        if seed is not None:
            if type(seed) is not int or seed < 0:
                raise UsageError(f"{seed_name}: must be a whole number from 0, not {seed!r}")
            seeds[name] = seed
    for name in values:
        if name in named.values():
            raise UsageError(f"{name}: samples are generated from a seed; give a whole number as {sibling(name, SEED)}")
        if name not in named and name not in known:
            raise _unknown_option(name, known)
    arrays = {name: _array(name, option, values.get(name, option["default"]), kind) for name, option in known.items()}
    _check(arrays, values, {sibling(name, SEED) for name in seeds})
    stops: list[str] = []
    allowed: list[str] = []
    automata: dict[str, Callable[..., np.ndarray]] = {}
    for name, option in known.items():
        value = values.get(name, option["default"])
        if option["type"] not in ARE_TEXTS or value is None or kind is None:
            continue
        texts, part = value if isinstance(value, list) else [value], kind.parts[name.rpartition(".")[0]]
        if not all(isinstance(text, str) and text for text in texts):
            raise UsageError(f"{name}: must be a text or a list of non-empty texts, not {value!r}")
        if option["type"] != "trie" and (size := sum(len(utf8(text)) for text in texts)) > MOST_BYTES:
            raise UsageError(f"{name}: {size:,} bytes of texts are over the limit of {MOST_BYTES:,}; give fewer")
        if option["type"] == "automaton" and texts:
            automata[name] = part.forbidden_arcs(name, texts)
        elif option["type"] == "trie":
            if beside := [sibling(name, end) for end in NOT_BESIDE if values.get(sibling(name, end))]:
                raise UsageError(f"{name}: an allowed text is written as it is; leave {beside[0]} out")
            if not texts:
                raise UsageError(f"{name}: an empty list allows no text; give at least one")
            automata[name] = part.allowed_arcs(name, texts, len(arrays[sibling(name, "max_length")]))
            allowed.append(name)
        elif texts:
            stops = texts
            # The graph ends a text at pieces that contain a stop text; a stop text of several pieces is found outside
            # the graph. A minimum length applies to [EOS] only, so the graph must not ban these pieces before it.
            if not arrays[sibling(name, "min_length")]:
                arrays[name] = np.array([part.pieces_with(texts)], np.int64)
    rankings = {name: arrays[name] for name, option in known.items() if option["type"] == "ranking"}
    return Chosen(arrays, seeds, tuple(stops), automata, allowed, rankings)


def option_names(known: Known) -> list[str]:
    """Return the names that callers use: a seed in place of uniform samples, last."""
    is_seed = [option["type"] == "uniform" for option in known.values()]
    names = [name for name, seeds in zip(known, is_seed, strict=True) if not seeds]
    return names + [sibling(name, SEED) for name, seeds in zip(known, is_seed, strict=True) if seeds]


def _unknown_option(name: str, known: Known) -> UsageError:
    names = option_names(known)
    hint = f"{did_you_mean(name, names)} (there is: {', '.join(names) or 'none'})"
    return UsageError(f"no decode option {name[:MAX_NAME]!r}{hint}")


# Decode options of each record, in a key of it.


def field_options(
    fields: Iterable[str] | Mapping[str, str], options: Mapping[str, Any], known: Known
) -> dict[str, Any]:
    """Return decode options, some of which each record has itself.

    Args:
        fields: Those, each as NAME or NAME=KEY, or a mapping of names of options to keys of records.
        options: The options of all records; also of those without a key.
        known: The bundle's options.

    Raises:
        UsageError: for a name that is no decode option.
    """
    pairs = fields.items() if isinstance(fields, Mapping) else (item.partition("=")[::2] for item in fields)
    keys = {name: key or name for name, key in pairs}
    for name in keys:
        if name not in option_names(known):
            raise _unknown_option(name, known)
    usual = {name: {USUAL: options[name]} for name in keys if name in options}
    return {**options, **{name: {FIELD: key, **usual.get(name, {})} for name, key in keys.items()}}


def record_keys(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of records that have values of options, by the names of these."""
    stated = {name: value.get(FIELD) for name, value in options.items() if isinstance(value, dict)}
    return {name: key for name, key in stated.items() if isinstance(key, str)}  # a client may send another object


def options_of(record: Mapping[str, Any], options: Mapping[str, Any], known: Known) -> dict[str, Any]:
    """Return the decode options of one record; where its key is missing, empty or null, those of all records.

    A cell of a text table may be a number, a truth value or null in JSON; it is a text where the option is one.
    """
    chosen = dict(options)
    for name, key in record_keys(options).items():
        value = record.get(key)
        is_text = known.get(name, {}).get("type") in ("tokens", *ARE_TEXTS)
        if isinstance(value, str) and not is_text:
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        if value in (None, "") or value != value:  # NaN: an empty cell of a data frame
            value = options[name].get(USUAL)
        chosen[name] = value
        if value is None:
            del chosen[name]
    return chosen


def describe_options(known: Known) -> dict[str, dict[str, Any]]:
    """Return the options by name: type, default, minimum, maximum, any `const` besides numbers, and a description."""
    schemas = option_schemas(known)
    options = {}
    for name, option in known.items():
        const = {"const": ALL} if option["type"] == "ranking" else {}
        if option["type"] == "uniform":
            name, option = sibling(name, SEED), {"type": "int", "default": None, "minimum": 0}
        option_type = "int" if option["type"] in ("size", "ranking") else option["type"]
        bounds = {"minimum": option.get("minimum"), "maximum": option.get("maximum")}
        options[name] = {"type": option_type, "default": option["default"], **bounds, **const}
        if description := schemas[name].get("description"):
            options[name]["description"] = description
    return options


def option_arrays(known: Known, values: Mapping[str, Any]) -> Arrays:
    """Return decode options as graph inputs, without sampling."""
    return resolve_options(known, values).arrays


def random_numbers(seed: int, doc: Doc, beams: int, steps: int) -> np.ndarray:
    """Return uniform samples from [0, 1), (beams, steps) float32: a function of seed and text only.

    The numbers 8 i to 8 i + 7 of beam k are the upper 24 bits, divided by 2^24, of the eight little-endian 32-bit words
    of the SHA-256 of the UTF-8 text "seed k i" and the text's tokens as written, one per line.
    """
    written = "".join(f"\n{word}" for word in doc.words).encode("utf-8", "surrogatepass")
    blocks = -(-steps // _OF_A_BLOCK)
    digests = (hashlib.sha256(f"{seed} {k} {i}".encode() + written) for k in range(beams) for i in range(blocks))
    words = np.frombuffer(b"".join(digest.digest() for digest in digests), "<u4").reshape(beams, -1)
    return ((words[:, :steps] >> 8) / np.float32(2**24)).astype(np.float32)


def _array(name: str, option: Mapping[str, Any], value: Any, kind: AnswerKind | None) -> np.ndarray:
    if option["type"] == "uniform":
        return np.zeros((1, 1, 0), np.float32)
    if option["type"] in ARE_TEXTS:  # without a kind: pieces and arcs, as in the graph
        shape = (1, -1) if option["type"] == "texts" else (1, -1, 3)
        is_default = isinstance(value, list) and all(isinstance(text, str) for text in value)  # of a bundle
        return np.array(value if kind is None and value and not is_default else [], np.int64).reshape(shape)
    if option["type"] == "tokens":
        if kind is None and not isinstance(value, list | None):
            raise UsageError(f"{name}: must be a list of token ids, not {value!r}")
        if kind is not None and value not in (None, []):
            value = kind.parts[name.rpartition(".")[0]].token_ids(name, value)
        return np.array([value or []], np.int64).reshape(1, -1)
    if option["type"] == "ranking":
        if isinstance(value, str) and value != ALL:
            raise UsageError(f"{name}: must be a whole number or {ALL!r}, not {value!r}")
        option, value = {**option, "type": "size"}, option["maximum"] if value == ALL else value
    if type(value) not in _NUMBERS[option["type"]]:
        raise UsageError(f"{name}: must be {option['type'].replace('size', 'int')}, not {value!r}")
    low, high = option.get("minimum"), option.get("maximum")
    if not ((low is None or value >= low) and (high is None or value <= high)):  # nan is not between either
        bounds = _schema_bounds(option)
        if bounds.keys() == {"minimum", "maximum"}:
            raise UsageError(f"{name}: {value} is not between {low} and {high}")
        phrases = [phrase.format(bounds[key]) for key, phrase in _PHRASES.items() if key in bounds]
        raise UsageError(f"{name}: {value} is not {' and '.join(phrases)}")
    if abs(value) > _LARGEST.get(option["type"], math.inf):
        most = f"the limit of {MOST_SIZE:,}" if option["type"] == "size" else "the graph's numbers hold"
        raise UsageError(f"{name}: {value} is more than {most}; choose a smaller one")
    return np.zeros(value, np.int64) if option["type"] == "size" else np.array(value, _DTYPES[option["type"]])


def _check(arrays: Arrays, values: Mapping[str, Any], seeds: set[str]) -> None:
    """Refuse options that exclude each other."""
    for name, array in arrays.items():
        wide, long, seed = (sibling(name, option) for option in ("beams", "max_length", SEED))
        beams, most = (len(arrays[size]) if size in arrays else math.inf for size in (wide, long))
        message = ""
        match name.rpartition(".")[2]:
            case "n_best" if len(array) > beams:
                message = f"{len(array)} answers need as many beams; {wide} is {beams}: give {wide}={len(array)}"
            case "min_length" if array >= most:
                message = f"{array} tokens and an end exceed {long} {most}: lower it, or give {long}={array + 1}"
            case "prefix" if (tokens := array.shape[1]) >= most:
                message = f"{tokens} tokens leave nothing to generate of {long} {most}: give a greater {long}"
            case last if last in DRAWING and name in values and seed not in seeds:
                message = f"it has an effect only with sampling: give {seed} too, a whole number"
        if message:
            raise UsageError(f"{name}: {message}")


def sibling(name: str, option: str) -> str:
    """Return the name of another option of the same head."""
    return f"{name[: -len(name.rpartition('.')[2])]}{option}"


# The JSON Schema of the callers' value of each decode option of a bundle.

_TYPES = {"size": "integer", "int": "integer", "float": "number", "bool": "boolean"}
_TOKENS: Schema = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer"]}}, {"type": "null"}],
    "description": "A text, which is split, or a list of tokens or of their ids.",
}
_TEXTS: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "null"},
    ],
    "description": "A text, or a list of texts.",
}
_SEED: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "default": None,
    "description": "Random seed: with one, texts are sampled; without, the most probable one is searched.",
}


def option_schemas(known: Known) -> dict[str, Schema]:
    """Return the JSON Schema of each option by its name: type, bounds and default."""
    schemas = {}
    for name, option in known.items():
        match option["type"]:
            case "uniform":
                schemas[sibling(name, SEED)] = _SEED
            case "tokens":
                schemas[name] = {**_TOKENS, "default": option["default"]}
            case "texts" | "automaton" | "trie":
                schemas[name] = {**_TEXTS, "default": None}
            case "ranking":
                count = {"type": "integer", **_schema_bounds(option)}
                schemas[name] = {"anyOf": [count, {"const": ALL}], "default": option["default"]}
            case kind:
                most = {"maximum": MOST_SIZE} if kind == "size" else {}
                schemas[name] = {"type": _TYPES[kind], **most, **_schema_bounds(option), "default": option["default"]}
        if option["type"] != "uniform" and (meaning := option.get("description")):  # then the form, of lists of texts
            schemas[name]["description"] = " ".join([meaning, *filter(None, [schemas[name].get("description")])])
    return schemas


def _schema_bounds(option: Mapping[str, Any]) -> Schema:
    """Return the bounds by JSON Schema's names: exclusive if the bundle has an exclusive one, else inclusive."""
    bounds: Schema = {}
    for side in ("Minimum", "Maximum"):
        inclusive, exclusive = option.get(side.lower()), option.get(f"exclusive_{side.lower()}")
        if exclusive is not None:
            bounds[f"exclusive{side}"] = exclusive
        elif inclusive is not None:
            bounds[side.lower()] = inclusive
    return bounds
