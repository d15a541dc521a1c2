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
from seqpipe.types import MOST_SIZE, OPTION_TYPES, OptionType

FIELD = "field"  # key of the value of an option that each record has itself: {"field": the key of the record}
USUAL = "usual"  # key of the value for records without that key
# Options that mean the same in every head (`docs/internals/bundle-options.md`); other files name no option of a head.
N_BEST, BEAMS, MAX_LENGTH, MIN_LENGTH, PREFIX, SEED = "n_best", "beams", "max_length", "min_length", "prefix", "seed"
ALLOWED = "allowed"  # the only texts to generate
WIDTHS = (BEAMS, N_BEST)
_SAMPLED = ("temperature", "top_k", "top_p")  # have an effect only with sampling
_NOT_BESIDE = ("stop", "forbidden", PREFIX, MIN_LENGTH, "no_repeat_ngram_size")  # not beside the only texts to generate
_SEED_MEANING = "Random seed: with one, texts are sampled; without, the most probable one is searched."
_SEED: Mapping[str, Any] = {"type": SEED, "default": None, "minimum": 0, "description": _SEED_MEANING}
Known = Mapping[str, Mapping[str, Any]]

_PHRASES = {
    "exclusiveMinimum": "above {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}


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
            beams, steps = (self._size(sibling(name, BEAMS), 1), self._size(sibling(name, MAX_LENGTH), longest))
            drawn[name] = np.stack([random_numbers(seed, doc, beams, steps) for doc in docs])
        arrays = {name: array for name, array in self.arrays.items() if name not in self.rankings}
        return arrays | drawn | {name: arcs(docs) for name, arcs in self.automata.items()}

    def written(self, read: int) -> int:
        """Return the maximum number of generated tokens for a text of this length, over all beams and heads."""
        fixed, per_token = self._written  # for heads that bound their length; the number of alternatives for the others
        return fixed + per_token * read

    @cached_property
    def _written(self) -> tuple[int, int]:
        fixed = per_token = 0
        for name, array in self.arrays.items():
            long, wide = sibling(name, MAX_LENGTH), sibling(name, BEAMS)
            if name == long:
                fixed += len(array) * self._size(wide, 1)
            elif name in (wide, sibling(name, N_BEST)) and long not in self.arrays and name not in self.rankings:
                per_token += len(array) - 1
        return fixed, per_token

    def _size(self, name: str, otherwise: int) -> int:
        return len(self.arrays[name]) if name in self.arrays else otherwise


def resolve_options(known: Known, values: Mapping[str, Any], kind: AnswerKind | None = None) -> Chosen:
    """Return all known options, with the caller's values or the defaults.

    Tokens are a text, which the target tokenizer of the answer kind splits, a list of tokens, or their ids; without a
    kind only ids, which are then not checked. Uniform samples are given by their seed, a whole number from 0.

    Raises:
        UsageError: names an unknown option, a wrong type, a value out of range, or two options that exclude each other.
    """
    _refuse_unknown(values, known)
    types = {name: OPTION_TYPES[option["type"]] for name, option in known.items()}
    chosen = {name: values.get(name, option["default"]) for name, option in known.items()}
    arrays = {name: _array(name, known[name], value, kind is None) for name, value in chosen.items()}
    seeds: dict[str, int] = {}
    for name in (name for name, option_type in types.items() if option_type.is_seeded):
        seed = values.get(sibling(name, SEED))
        if seed is None and values.get(sibling(name, "temperature")) == 0:
            seed = 0  # at temperature 0 every token is the likeliest one, whatever the samples
        if seed is not None:
            seeds[name] = _number(sibling(name, SEED), _SEED, seed)
    stops: list[str] = []
    automata: dict[str, Callable[..., np.ndarray]] = {}
    for name, value in chosen.items():
        option_type = types[name]
        if option_type.read is None or kind is None or value is None:
            continue
        texts = value if option_type.takes_ids else _texts(name, option_type, value, values)
        if texts == []:
            continue
        least, longest = int(arrays.get(sibling(name, MIN_LENGTH), 0)), len(arrays.get(sibling(name, MAX_LENGTH), ()))
        writer = kind.parts[name.rpartition(".")[0]].writer
        if writer is None:
            raise UsageError(f"{name}: no text is generated here")
        ids = option_type.read(writer, name, texts, least, longest)
        if callable(ids):
            automata[name] = ids
        else:
            arrays[name] = np.array([ids], option_type.dtype)
        if option_type.ends_text:
            stops = texts
    _check(arrays, values, {sibling(name, SEED) for name in seeds})
    allowed = [name for name in automata if types[name].allows_only]
    rankings = {name: array for name, array in arrays.items() if not types[name].is_input}
    return Chosen(arrays, seeds, tuple(stops), automata, allowed, rankings)


def _texts(name: str, option_type: OptionType, value: Any, values: Mapping[str, Any]) -> list[str]:
    """Return the texts of an option."""
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"{name}: must be a text or a list of non-empty texts, not {value!r}")
    if option_type.allows_only:
        if beside := [sibling(name, end) for end in _NOT_BESIDE if values.get(sibling(name, end))]:
            raise UsageError(f"{name}: an allowed text is written as it is; leave {beside[0]} out")
        if not texts:
            raise UsageError(f"{name}: an empty list allows no text; give at least one")
    elif (size := sum(len(utf8(text)) for text in texts)) > MOST_BYTES:
        raise UsageError(f"{name}: {size:,} bytes of texts are over the limit of {MOST_BYTES:,}; give fewer")
    return texts


def caller_options(known: Known) -> dict[str, Mapping[str, Any]]:
    """Return the options as callers give them: a seed in place of uniform samples."""
    seeds = {name: sibling(name, SEED) for name, option in known.items() if OPTION_TYPES[option["type"]].is_seeded}
    return {seeds.get(name, name): _SEED if name in seeds else option for name, option in known.items()}


def _refuse_unknown(names: Iterable[str], known: Known) -> None:
    options = [*caller_options(known)]
    for name in names:
        if name not in options:
            hint = f"{did_you_mean(name, options)} (there is: {', '.join(options) or 'none'})"
            raise UsageError(f"no decode option {name[:MAX_NAME]!r}{hint}")


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
    if not fields:
        return dict(options)
    pairs = fields.items() if isinstance(fields, Mapping) else (item.partition("=")[::2] for item in fields)
    keys = {name: key or name for name, key in pairs}
    _refuse_unknown(keys, known)
    usual = {name: {USUAL: options[name]} for name in keys if name in options}
    return {**options, **{name: {FIELD: key, **usual.get(name, {})} for name, key in keys.items()}}


def record_keys(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of records that have values of options, by the names of these."""
    return {
        name: value[FIELD]
        for name, value in options.items()
        if isinstance(value, dict) and isinstance(value.get(FIELD), str)  # a client may send another object
    }


def is_text(known: Known, name: str) -> bool:
    """Return whether the value of an option may be a text."""
    return name in known and OPTION_TYPES[known[name]["type"]].read is not None


def options_of(record: Mapping[str, Any], options: Mapping[str, Any], known: Known) -> dict[str, Any]:
    """Return the decode options of one record; where its key is missing, empty or null, those of all records.

    A cell of a text table may be a number, a truth value or null in JSON; it is a text where the option is one.
    """
    chosen = dict(options)
    for name, key in record_keys(options).items():
        value = record.get(key)
        if isinstance(value, str) and not is_text(known, name):
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
    for name, option in caller_options(known).items():
        option_type = OPTION_TYPES[option["type"]]
        bounds = {"minimum": option.get("minimum"), "maximum": option.get("maximum")}
        label = option_type.accepts[-1].__name__ if option_type.accepts else option_type.name
        more = {"const": option_type.const, "description": schemas[name].get("description")}
        stated = {key: value for key, value in more.items() if value}
        options[name] = {"type": label, "default": option["default"], **bounds, **stated}
    return options


def refuse_several(options: Mapping[str, Any], reason: str) -> None:
    """Raise UsageError if several answers to a text are requested."""
    for name, value in options.items():
        if name == sibling(name, N_BEST) and value != 1:
            raise UsageError(f"{name}: {reason}; leave it out")


def limit_options(options: Mapping[str, Any], beams: int, tokens: Mapping[str, int]) -> None:
    """Lower the bounds of beams, answers and tokens, these by the name of the head; a default is always allowed."""
    for name, option in options.items():
        head, _, last = name.rpartition(".")
        limit = beams if last in WIDTHS else tokens[head] if last == MAX_LENGTH else None
        if limit is not None and isinstance(option["default"], int):
            option["maximum"] = max(option["default"], min(option.get("maximum") or limit, limit))


def length_options(least: int, most: int) -> Arrays:
    """Return the inputs for a text of at least and at most these tokens."""
    return {MIN_LENGTH: np.array(least, np.int64), MAX_LENGTH: np.zeros(most, np.int64)}


def option_arrays(known: Known, values: Mapping[str, Any]) -> Arrays:
    """Return decode options as graph inputs, without sampling."""
    return resolve_options(known, values).arrays


def random_numbers(seed: int, doc: Doc, beams: int, steps: int) -> np.ndarray:
    """Return uniform samples from [0, 1), (beams, steps) float32: a function of seed and text only.

    The numbers 8 i to 8 i + 7 of beam k are the upper 24 bits, divided by 2^24, of the eight little-endian 32-bit words
    of the SHA-256 of the UTF-8 text "seed k i" and the text's tokens as written, one per line.
    """
    written = "".join(f"\n{word}" for word in doc.words).encode("utf-8", "surrogatepass")
    blocks = -(-steps // 8)
    digests = (hashlib.sha256(f"{seed} {k} {i}".encode() + written) for k in range(beams) for i in range(blocks))
    words = np.frombuffer(b"".join(digest.digest() for digest in digests), "<u4").reshape(beams, -1)
    return ((words[:, :steps] >> 8) / np.float32(2**24)).astype(np.float32)


def _array(name: str, option: Mapping[str, Any], value: Any, is_raw: bool) -> np.ndarray:
    """Return the input of a number, or of ids and arcs if they are given as in the graph (`is_raw`)."""
    option_type = OPTION_TYPES[option["type"]]
    if option_type.accepts:
        number = _number(name, option, value)
        return np.zeros(number, np.int64) if option_type.axes else np.array(number, option_type.dtype)
    if is_raw and not isinstance(value, list | None):
        raise UsageError(f"{name}: must be a list of ids, not {value!r}")
    # Texts are in the manifest of a bundle, whose graph has their arcs.
    is_ids = is_raw and not all(isinstance(item, str) for item in value or ())
    return np.array(value if is_ids else [], option_type.dtype).reshape(
        *[1] * (len(option_type.axes) - 1), -1, *option_type.fixed
    )


def _number(name: str, option: Mapping[str, Any], value: Any) -> Any:
    """Return a number within the bounds of its option."""
    option_type = OPTION_TYPES[option["type"]]
    if option_type.const and value == option_type.const:
        value = option["maximum"]
    if type(value) not in option_type.accepts:
        const = f" or {option_type.const!r}" if option_type.const else ""
        raise UsageError(f"{name}: must be {option_type.accepts[-1].__name__}{const}, not {value!r}")
    low, high = option.get("minimum"), option.get("maximum")
    if not ((low is None or value >= low) and (high is None or value <= high)):  # nan is not between either
        bounds = _schema_bounds(option)
        if bounds.keys() == {"minimum", "maximum"}:
            raise UsageError(f"{name}: {value} is not between {low} and {high}")
        phrases = [phrase.format(bounds[key]) for key, phrase in _PHRASES.items() if key in bounds]
        raise UsageError(f"{name}: {value} is not {' and '.join(phrases)}")
    if abs(value) > option_type.most:
        most = f"the limit of {MOST_SIZE:,}" if option_type.axes else "the graph's numbers hold"
        raise UsageError(f"{name}: {value} is more than {most}; choose a smaller one")
    return value


def _check(arrays: Arrays, values: Mapping[str, Any], seeds: set[str]) -> None:
    """Refuse options that exclude each other."""
    for name, array in arrays.items():
        wide, long, seed = (sibling(name, option) for option in (BEAMS, MAX_LENGTH, SEED))
        beams, most = (len(arrays[size]) if size in arrays else math.inf for size in (wide, long))
        message = ""
        match name.rpartition(".")[2]:
            case "n_best" if len(array) > beams:
                message = f"{len(array)} answers need as many beams; {wide} is {beams}: give {wide}={len(array)}"
            case "min_length" if array >= most:
                message = f"{array} tokens and an end exceed {long} {most}: lower it, or give {long}={array + 1}"
            case "prefix" if (tokens := array.shape[1]) >= most:
                message = f"{tokens} tokens leave nothing to generate of {long} {most}: give a greater {long}"
            case last if last in _SAMPLED and name in values and seed not in seeds:
                message = f"it has an effect only with sampling: give {seed} too, a whole number"
        if message:
            raise UsageError(f"{name}: {message}")


def sibling(name: str, option: str) -> str:
    """Return the name of another option of the same head."""
    return f"{name[: -len(name.rpartition('.')[2])]}{option}"


# The JSON Schema of the callers' value of each decode option of a bundle.


def option_schemas(known: Known) -> dict[str, Schema]:
    """Return the JSON Schema of each option by its name: type, bounds and default."""
    schemas = {}
    for name, option in caller_options(known).items():
        option_type = OPTION_TYPES[option["type"]]
        schema = {**option_type.json_schema, **_schema_bounds(option)}
        if option_type.const:
            schema = {"anyOf": [schema, {"const": option_type.const}]}
        schemas[name] = {**schema, "default": option["default"] if option_type.accepts else None}
        if words := [*filter(None, [option.get("description"), schema.get("description")])]:
            schemas[name]["description"] = " ".join(words)
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
