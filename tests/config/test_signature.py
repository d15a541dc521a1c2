"""Options, wiring and decode options come from signatures; a class that breaks a rule is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from seqpipe.config.contract import decode_options
from seqpipe.config.signature import (
    OptionRow,
    call,
    construct,
    describe_type,
    method_names,
    option_rows,
    options_model,
    validate_model,
    values,
    wired,
)
from seqpipe.config.yaml import plain
from seqpipe.errors import PluginError
from seqpipe.types import Means, Size, Tokens, Uniform

if TYPE_CHECKING:
    from torch import Tensor


class LSTM:
    """Reads both ways.

    Longer words on it.

    Args:
        hidden: Units in each
            direction.
        copy: Whether to copy: yes or no.
        scheme (str): How tags mark spans.

    Returns:
        nothing: not an option.
    """

    def __init__(
        self,
        dim,
        vocabulary: list[str],
        *,
        hidden: Annotated[int, Field(gt=0)],
        copy: bool = False,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0,
        scheme: Literal["a", "b"] = "a",
        limit: Annotated[int, Field(ge=1)] | None = None,
        widths: tuple[int, ...] = (3, 5),
        file: Path | None = None,
        column: int | str = 0,
    ): ...

    def decide(
        self, x: Tensor, mask: Tensor, *, beams: Size = 4, penalty: Annotated[float, Field(ge=0)] = 0, raw: bool = False
    ): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Options of a group.

    Args:
        text: Column of the text.
        numbers: Columns of numbers.
    """

    text: str = "text"
    numbers: list[str] = dataclasses.field(default_factory=list)


def mistakes(cls: type, **data: Any) -> dict[tuple[str | int, ...], str]:
    instance, mistake_list = validate_model(options_model(cls), data)
    assert instance is None
    return {mistake.where: mistake.message for mistake in mistake_list}


def test_options_are_the_keyword_only_parameters_with_their_defaults() -> None:
    stated = {"hidden": 3, "copy": True, "dropout": 0, "widths": [1], "file": "a/b"}
    instance, none = validate_model(options_model(LSTM), stated)
    assert none == []
    assert instance is not None
    defaults = {"scheme": "a", "limit": None, "column": 0}
    assert values(instance) == stated | defaults | {"dropout": 0.0, "widths": (1,), "file": Path("a/b")}
    LSTM(3, [], **values(instance))
    assert wired(LSTM) == ("dim", "vocabulary")


def test_the_model_is_built_once_is_strict_and_has_a_json_schema() -> None:
    schema = options_model(LSTM).model_json_schema()
    assert options_model(LSTM) is options_model(LSTM)
    assert schema["required"] == ["hidden"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["copy"]["description"] == "Whether to copy: yes or no."
    assert schema["properties"]["hidden"]["exclusiveMinimum"] == 0
    for wrong in ({"hidden": "3"}, {"hidden": True}, {"hidden": 1, "x": 1}):
        with pytest.raises(ValidationError):
            options_model(LSTM).model_validate(wrong)


WRONG_OPTIONS = [
    ("hidden", math.inf, "should be a whole number above 0, not .inf"),
    ("copy", None, "should be true or false, not null"),
    ("dropout", True, "should be a number from 0 and below 1, not true"),
    ("dropout", "0.5", "should be a number from 0 and below 1, not '0.5'; write 0.5 without quotes"),
    ("scheme", "c", "should be 'a' or 'b', not 'c'"),
    ("limit", 0, "should be a whole number from 1 or null, not 0"),
    ("limit", "x", "should be a whole number from 1 or null, not 'x'"),
    ("widths", 3, "should be a list, each a whole number, not 3"),
    ("file", 3, "should be a path or null, not 3"),
    ("column", [1], "should be a whole number or text, not [1]"),
    ("column", True, "should be a whole number or text, not true"),
    ("option_copy", True, "unknown"),
]


@pytest.mark.parametrize(("option", "value", "message"), WRONG_OPTIONS)
def test_a_wrong_option_is_described_in_plain_words(option: str, value: object, message: str) -> None:
    assert [*mistakes(LSTM, **{"hidden": 1, option: value}).values()] == [message]


def test_every_mistake_is_reported_at_once() -> None:
    messages = mistakes(LSTM, copy=3, widths=["a", 1, "b"], more=1)
    assert set(messages) == {("hidden",), ("copy",), ("widths", 0), ("widths", 2), ("more",)}
    assert messages["hidden",] == "it: Units in each direction."


def test_a_class_without_a_constructor_has_no_options() -> None:
    class Plain:
        """Nothing to say."""

    class Module:  # as torch.nn.Module has it
        def __init__(self, *args: Any, **kwargs: Any): ...

    class Layer(Module): ...

    Module.__init__.__qualname__ = "Module.__init__"
    for cls in (Plain, Layer):
        assert wired(cls) == ()
        assert option_rows(cls) == []


def test_a_dataclass_is_a_component_too() -> None:
    @dataclasses.dataclass(kw_only=True)
    class Reader:
        """Reads.

        Args:
            column: Which one.
        """

        column: int = 3

    assert option_rows(Reader) == [OptionRow("column", "a whole number", "3", "Which one.")]


def test_names_that_pydantic_uses_itself_can_be_options() -> None:
    class Copying:
        def __init__(self, *, copy: bool = True, json: int = 1, schema: str = "x", model_fields: int = 2): ...

    instance, _ = validate_model(options_model(Copying), {"json": 5})
    assert instance is not None
    assert values(instance) == {"copy": True, "json": 5, "schema": "x", "model_fields": 2}
    assert [row.option for row in option_rows(Copying)] == ["copy", "json", "schema", "model_fields"]


class Opaque:
    """Not a type that a YAML can state."""


def with_method(name: str, parameters: str) -> type:
    """A class whose method has these parameters."""
    namespace: dict[str, Any] = {}
    exec(f"class Faulty:\n    def {name}(self, {parameters}): ...", globals(), namespace)
    cls: type = namespace["Faulty"]
    return cls


WRONG_CONSTRUCTORS = [
    ("hidden", "'hidden' is not wired in; an option follows a '*'"),
    ("dim=3", "'dim' is wired in, so its default is never used"),
    ("dim, **kwargs", "'**kwargs' would accept a misspelt option"),
    ("*args", "'*args' would accept a misspelt option"),
    ("*, hidden=3", "'hidden' has no type; annotate it (hidden: int = 1)"),
    ("*, lr: float = 1.0", "no option can be called 'lr'"),
    ("*, _x: int = 1", "no option can be called '_x'"),
    ("*, init: Saved | None = None", "no option can be called 'init'"),
    ("*, x: Annotated[int, Field(gt=0)] = 0", "the default of 'x' should be a whole number above 0, not 0"),
    ("*, hidden: int = None", "the default of 'hidden' should be a whole number, not null"),
    ("*, x: Tensor", "a type cannot be read: name 'Tensor' is not defined; import it at module level"),
    ("*, x: Opaque", "its options cannot be read"),
    ("*, x: Opaque = Opaque()", "the type of 'x' cannot be read from a YAML"),
    ("*, columns: Columns, text: str = ''", "the option 'text' occurs twice"),
]


@pytest.mark.parametrize(("parameters", "message"), WRONG_CONSTRUCTORS)
def test_a_constructor_that_breaks_the_rules_is_refused_with_its_class(parameters: str, message: str) -> None:
    cls = with_method("__init__", parameters)
    with pytest.raises(PluginError) as caught:
        options_model(cls)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{cls.__module__}.{cls.__qualname__}: ")


WRONG_DECODE_OPTIONS = [
    ("x, *, beams: Size", "decode option 'beams' needs a default"),
    ("*, mode: str = 'a'", "decode option 'mode' must be Size, Tokens, Texts, Automaton, Trie or Uniform of seqpipe"),
    ("x, *, beams=4", "'beams' has no type"),
    ("*, filling: Tokens = 3", "the default of 'filling' should be null, not 3"),
    ("x, *, beams: Size = 0", "the default of 'beams' should be a whole number from 1 to 100000, not 0"),
]


@pytest.mark.parametrize(("parameters", "message"), WRONG_DECODE_OPTIONS)
def test_a_wrong_decode_option_is_refused(parameters: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        decode_options(with_method("decide", parameters))


class Saved(TypedDict):
    """Accepted values of the option `init` of a component."""

    path: Path
    labels: Annotated[list[str], Field(min_length=1)]


def test_a_class_that_loads_it_may_have_an_option_init_of_its_own() -> None:
    class Loading:
        def __init__(self, *, init: Saved | None = None): ...

        def load_init(self, init: Saved) -> str: ...

    model = options_model(Loading)
    saved, mistakes = validate_model(model, {"init": {"path": "a.bin", "labels": ["x"]}})
    assert saved is not None
    assert not mistakes
    assert values(saved) == {"init": {"path": Path("a.bin"), "labels": ["x"]}}
    assert values(model()) == {}  # null is the common key
    _, (mistake,) = validate_model(model, {"init": {"path": "a.bin", "labels": ["x"], "more": None}})
    assert mistake.where == ("init", "more")


def test_types_are_described_in_plain_words() -> None:
    class Nested(BaseModel):
        a: int = 1

    words = {
        int: "a whole number",
        Annotated[int, Field(ge=1, le=5)]: "a whole number from 1 to 5",
        Annotated[float, Field(gt=0, le=1)]: "a number above 0 and up to 1",
        Annotated[str, Field(pattern="^a")]: "text matching ^a",
        Annotated[str, Field(min_length=1)]: "text that is not empty",
        Annotated[str, Field(min_length=2, max_length=3)]: "text at least 2 long and at most 3 long",
        Annotated[int, Field(multiple_of=8)]: "a whole number that is a multiple of 8",
        Size: "a whole number from 1 to 100000",
        list[int] | None: "a list, each a whole number or null",
        tuple[int, float]: "a list of 2 (a whole number, a number)",
        dict[str, bool]: "a mapping, each value true or false",
        Literal["x"]: "'x'",
        Literal[1, None, "a"]: "1, null or 'a'",
        Annotated[str, Means("a colour")] | None: "a colour or null",
        Any: "anything",
        Nested: "Nested",
        Saved | None: "{path: a path, labels: a list that is not empty, each text} or null",
    }
    assert {annotation: describe_type(annotation) for annotation in words} == words


def test_described_options_have_type_default_and_help() -> None:
    rows = {row.option: row for row in option_rows(LSTM)}
    assert rows["hidden"] == OptionRow("hidden", "a whole number above 0", "required", "Units in each direction.")
    assert rows["copy"] == OptionRow("copy", "true or false", "false", "Whether to copy: yes or no.")
    assert rows["scheme"] == OptionRow("scheme", "'a' or 'b'", "'a'", "How tags mark spans.")
    assert rows["widths"].default == "[3, 5]"
    assert rows["limit"].default == "null"
    assert list(rows) == ["hidden", "copy", "dropout", "scheme", "limit", "widths", "file", "column"]


def test_values_become_plain() -> None:
    assert plain({"a": (1, Path("b/c")), "d": None}) == {"a": [1, "b/c"], "d": None}
    assert plain([Path("x")], lambda path: f"<{path}>") == ["<x>"]


# Methods


def test_a_method_takes_its_inputs_by_name() -> None:
    assert method_names(LSTM.decide) == (("x", "mask"), ("beams", "penalty", "raw"))
    assert method_names(LSTM(1, [], hidden=1).decide) == (("x", "mask"), ("beams", "penalty", "raw"))
    assert method_names(lambda ids, mask: None) == (("ids", "mask"), ())


def test_a_method_whose_inputs_have_no_names_is_refused() -> None:
    for method, parameters, message in (
        ("forward", "*inputs", r"Faulty\.forward: '\*inputs' has no names"),
        ("loss", "x, **rest", r"Faulty\.loss: '\*\*rest' has no names"),
    ):
        with pytest.raises(PluginError, match=message):
            method_names(getattr(with_method(method, parameters), method))


def test_decode_options_are_the_keyword_only_parameters_of_decide() -> None:
    options = decode_options(LSTM)  # its Tensor is imported for type checkers alone
    beams, penalty, raw = options["beams"], options["penalty"], options["raw"]
    assert (beams.type.name, beams.default, beams.bounds) == ("size", 4, {"ge": 1, "le": 100_000})
    assert (penalty.type.name, penalty.default, penalty.bounds) == ("float", 0.0, {"ge": 0})
    assert isinstance(penalty.default, float)
    assert (raw.type.name, raw.default, raw.bounds) == ("bool", False, {})


def test_a_bundle_lists_inclusive_bounds_and_an_exclusive_one_beside_them() -> None:
    sampler = with_method(
        "decide",
        "*, k: Annotated[int, Field(gt=0, lt=10)] = 1, p: Annotated[float, Field(gt=0, le=1)] = 1.0, "
        "t: Annotated[float, Field(ge=-1, lt=0)] = -0.5",
    )
    options = {name: option.manifest() for name, option in decode_options(sampler).items()}
    assert options["k"] == {"type": "int", "default": 1, "minimum": 1, "maximum": 9}
    assert (options["p"]["exclusive_minimum"], options["p"]["maximum"]) == (0, 1)
    assert 0 < options["p"]["minimum"] < 1e-300
    assert (options["t"]["minimum"], options["t"]["exclusive_maximum"]) == (-1, 0)
    assert -1e-300 < options["t"]["maximum"] < 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Options.

    Args:
        beams: Beam size. K in the
            shapes.
    """

    beams: Size = 1


def test_a_bundle_describes_a_decode_option_by_the_first_sentence_of_its_docstring() -> None:
    class Writer:
        def decide(self, *, bare: bool = False, penalty: float = 0.0, options: Search):
            """The likeliest text.

            Args:
                penalty: Above 0 favours
                    longer texts
            """

    options = {name: option.manifest().get("description") for name, option in decode_options(Writer).items()}
    assert options == {"bare": None, "penalty": "Above 0 favours longer texts.", "beams": "Beam size."}


def test_tokens_and_random_numbers_have_types_of_their_own() -> None:
    class Writer:
        def decide(self, *, prefix: Tokens = None, uniform: Uniform = None): ...

    options = decode_options(Writer)
    types = {name: (option.type.name, option.default) for name, option in options.items()}
    assert types == {"prefix": ("tokens", None), "uniform": ("uniform", None)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Widths:
    beams: Size = 4
    penalty: Annotated[float, Field(ge=0)] = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths(Widths):
    longest: Size = 9


class Grouped:
    def decide(self, x: int, *, options: Lengths, raw: bool = False) -> tuple[int, Lengths, bool]:
        return x, options, raw


def test_a_dataclass_among_the_parameters_of_decide_stands_for_its_fields() -> None:
    types = {name: (option.type.name, option.default) for name, option in decode_options(Grouped).items()}
    widths = {"beams": ("size", 4), "penalty": ("float", 0.5)}
    assert types == widths | {"longest": ("size", 9), "raw": ("bool", False)}
    decide, options = Grouped().decide, {"beams": 2, "longest": 3, "raw": True}
    assert call(decide, {"x": 7}) == (7, Lengths(), False)
    assert call(decide, {"x": 7}, **options) == (7, Lengths(beams=2, longest=3), True)
    assert options == {"beams": 2, "longest": 3, "raw": True}


class Reader:
    """A component with a group of options.

    Args:
        text: Column of the words.
        delimiter: Between two cells.
    """

    def __init__(self, *, columns: Columns, delimiter: str):
        self.columns, self.delimiter = columns, delimiter


def test_a_dataclass_among_the_parameters_of_a_constructor_stands_for_its_fields() -> None:
    assert [tuple(row) for row in option_rows(Reader)] == [
        ("text", "text", "'text'", "Column of the words."),
        ("numbers", "a list, each text", "[]", "Columns of numbers."),
        ("delimiter", "text", "required", "Between two cells."),
    ]
    instance, mistakes = validate_model(options_model(Reader), {"numbers": ["a"], "delimiter": ","})
    assert instance is not None
    reader = construct(Reader, **values(instance))
    assert (reader.columns, reader.delimiter, mistakes) == (Columns(numbers=["a"]), ",", [])
    (mistake,) = validate_model(options_model(Reader), {"columns": {}, "delimiter": ","})[1]
    assert (mistake.where, mistake.kind) == (("columns",), "unknown")


def test_a_class_without_decide_has_no_decode_options() -> None:
    assert decode_options(Opaque) == {}
