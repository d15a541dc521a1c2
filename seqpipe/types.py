"""Types of options: bounds that many options share, the types of decode options, and markers for readers of options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

CHECKPOINT = "checkpoint"  # marks an option that is a folder if there is one of that name, else a name on the hub
FOLDER = "folder"  # marks an option that is a folder, not a file

Fraction = Annotated[float, Field(ge=0, lt=1)]  # a momentum, a decay, a share of the steps
Probability = Fraction  # of dropout and masking, below 1: at 1 nothing would be left

MOST_SIZE = 1_000_000  # of an option that is the length of a vector in the graph
_NULL = {"type": "null"}
_TOKENS = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer"]}}, _NULL],
    "description": "A text, which is split, or a list of tokens or of their ids.",
}
_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, _NULL], "description": "A text, or a list of texts."}


class TextWriter(Protocol):
    """Answer kind with generated text, `seqpipe.answers.text.Text`, whose tokenizer reads options."""

    copies: Any  # the extended vocabulary, if words of the input are copied

    def token_ids(self, option: str, value: Any) -> list[int]: ...
    def pieces_with(self, texts: Sequence[str]) -> list[int]: ...
    def forbidden_arcs(self, texts: Sequence[str]) -> Callable[..., Any]: ...
    def allowed_arcs(self, option: str, texts: Sequence[str], longest: int) -> Callable[..., Any]: ...
    def step_ids(self, ids: list[int]) -> list[int]: ...
    def decode(self, tokens: list[int], doc: Any) -> str: ...


@dataclass(frozen=True, eq=False)
class OptionType:
    """Type of a decode option. Other code reads these fields and tells no types apart.

    Args:
        name: Name of the type in a bundle; a parameter of `decide` has an annotation of this name, or Python's type.
        json_schema: JSON Schema of a value from a caller, without the bounds and the default of the option.
        dtype: Data type of the graph's input.
        axes: Free axes of the input, each named after the option and this word. An axis without a word is the only
            one, and its length is the value.
        fixed: Lengths of the axes after these.
        accepts: Types of a number from a caller; () if it is none. The last is the name of the type for callers.
        most: The greatest number.
        step: Difference to the default when the graph is compared with PyTorch; None: the other truth value.
        const: A text that stands for the greatest number.
        is_input: Whether it is an input of the graph. Others are read with the graph's decision.
        is_seeded: Whether the input is computed from a seed, which callers give in its place.
        read: Function of the writer of an answer kind, the option's name, the value of a caller, which is a text or a
            list, and the least and the greatest number of generated tokens. It returns the ids in the input, or a
            function of documents that returns the whole input.
        takes_ids: Whether the value may also be a list of ids.
        ends_text: Whether the texts end a generated text.
        allows_only: Whether no texts but these are generated.
        trial: Arcs with which the graph is compared with PyTorch.
    """

    name: str
    json_schema: Mapping[str, Any]
    dtype: str = "int64"
    axes: tuple[str, ...] = ()
    fixed: tuple[int, ...] = ()
    accepts: tuple[type, ...] = ()
    most: float = math.inf
    step: float | None = None
    const: str = ""
    is_input: bool = True
    is_seeded: bool = False
    read: Callable[[TextWriter, str, Any, int, int], Any] | None = None
    takes_ids: bool = False
    ends_text: bool = False
    allows_only: bool = False
    trial: Any = None

    @property
    def is_size(self) -> bool:
        return self.is_input and self.axes == ("",)

    @property
    def is_scalar(self) -> bool:
        return self.is_input and bool(self.accepts) and not self.axes


def _token_ids(writer: TextWriter, name: str, tokens: Any, least: int, longest: int) -> Any:
    return writer.token_ids(name, tokens)


def _stop_pieces(writer: TextWriter, name: str, texts: Any, least: int, longest: int) -> Any:
    # The graph ends a text at pieces that contain a stop text; a stop text of several pieces is found outside the
    # graph. A minimum length applies to [EOS] only, so the graph must not ban these pieces before it.
    return [] if least else writer.pieces_with(texts)


def _forbidden_arcs(writer: TextWriter, name: str, texts: Any, least: int, longest: int) -> Any:
    return writer.forbidden_arcs(texts)


def _allowed_arcs(writer: TextWriter, name: str, texts: Any, least: int, longest: int) -> Any:
    return writer.allowed_arcs(name, texts, longest)


_IDS, _ARCS = ("rows", "length"), ("rows", "arcs")
# Arcs for trials; 4 is the first token that is not special. These ban texts which begin with [EOS], [UNK] or 4, have 4
# twice in a row, or end with it: state 2 is the beginning, 1 is after a 4.
_FORBIDDEN = [[2, 3, -1], [2, 1, -1], [2, 4, -1], [-1, 4, 1], [1, 4, -1], [1, 3, -1]]
_ALLOWED = [[0, 0, 0], [0, 4, 1], [1, 4, 2], [1, 3, 0], [2, 3, 0]]  # two texts: 4, once or twice
_TYPES = (
    OptionType("size", {"type": "integer", "maximum": MOST_SIZE}, axes=("",), accepts=(int,), most=MOST_SIZE),
    OptionType("tokens", _TOKENS, axes=_IDS, read=_token_ids, takes_ids=True),
    OptionType("texts", _TEXTS, axes=_IDS, read=_stop_pieces, ends_text=True),
    OptionType("automaton", _TEXTS, axes=_ARCS, fixed=(3,), read=_forbidden_arcs, trial=_FORBIDDEN),
    OptionType("trie", _TEXTS, axes=_ARCS, fixed=(3,), read=_allowed_arcs, allows_only=True, trial=_ALLOWED),
    OptionType("uniform", {}, "float32", ("rows", "beams", "length"), is_seeded=True),
    OptionType("int", {"type": "integer"}, accepts=(int,), most=2**63 - 1, step=2),
    OptionType("float", {"type": "number"}, "float32", accepts=(int, float), most=(2 - 2**-23) * 2.0**127, step=4.0),
    OptionType("bool", {"type": "boolean"}, "bool", accepts=(bool,)),
    OptionType("ranking", {"type": "integer"}, axes=("",), accepts=(int,), most=MOST_SIZE, const="all", is_input=False),
    OptionType("seed", {"type": ["integer", "null"]}, accepts=(int,), is_input=False),
)
OPTION_TYPES = {option_type.name: option_type for option_type in _TYPES}

Size = Annotated[int, Field(ge=1, le=100_000), OPTION_TYPES["size"]]  # a count, which stays dynamic in a graph
# A tensor or None; readers of signatures have no PyTorch.
Automaton = Annotated[Any, OPTION_TYPES["automaton"]]  # forbidden texts, as arcs of an automaton over pieces
Tokens = Annotated[Any, OPTION_TYPES["tokens"]]  # ids of target tokens, (1 or B, n) int64
Texts = Annotated[Any, OPTION_TYPES["texts"]]  # texts that end generation, as ids of pieces that contain them
Trie = Annotated[Any, OPTION_TYPES["trie"]]  # the only texts that are generated, as arcs of a trie over pieces
Uniform = Annotated[Any, OPTION_TYPES["uniform"]]  # random numbers of a seed, (B, beams, max_length)


@dataclass(frozen=True)
class Means:
    """Metadata of an Annotated type: its description for people."""

    words: str


@dataclass(frozen=True, init=False)
class TryWith:
    """Metadata of a decode option that needs others to have an effect: values for a trial that shows its effect.

    The comparison at export changes each option and expects another decision. `Annotated[float, TryWith(beams=3)]`
    sets `beams` too. Several `TryWith` are alternatives; one that names an option which the head lacks is ignored. The
    option's own name among the values sets the value at which it is tried.
    """

    values: Mapping[str, int | float | bool]

    def __init__(self, **values: int | float | bool):
        object.__setattr__(self, "values", values)


Checkpoint = Annotated[
    str | Path, Means("a folder, or a name on the hub such as org/name or org/name@revision"), CHECKPOINT
]  # a folder of a checkpoint of `transformers`, or its name on the hub
Folder = Annotated[Path | None, Means("a folder or null"), FOLDER]  # a folder of a run, or null
