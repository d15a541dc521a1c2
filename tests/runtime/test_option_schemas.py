"""The JSON Schema of decode options allows what the options themselves allow."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from seqpipe.errors import UsageError
from seqpipe.runtime.decode_options import describe_options, option_schemas, resolve_options

KNOWN: dict[str, dict[str, Any]] = {
    "beams": {"type": "size", "default": 4, "minimum": 1, "maximum": 10},
    "max_length": {"type": "size", "default": 20, "minimum": 1, "maximum": None},
    "penalty": {"type": "float", "default": 0.0, "minimum": 0, "maximum": None},
    "top_p": {"type": "float", "default": 1.0, "minimum": 5e-324, "maximum": 1, "exclusive_minimum": 0},
    "flag": {"type": "bool", "default": False, "minimum": None, "maximum": None},
    "by": {"type": "int", "default": 2, "minimum": None, "maximum": None},
    "uniform": {"type": "uniform", "default": None, "minimum": None, "maximum": None},
    "many.uniform": {"type": "uniform", "default": None, "minimum": None, "maximum": None},
}
VALUES = (0, 1, 2, 10, 11, -1, 1_000_000, 1_000_001, 0.0, 0.5, 1.0, 1.5, -0.5, True, False, "a", [1])
OPTIONS = [name for name, option in KNOWN.items() if option["type"] != "uniform"]


def test_every_option_has_a_schema_and_random_numbers_that_of_their_seed() -> None:
    schemas = option_schemas(KNOWN)
    assert [*schemas] == [*OPTIONS, "seed", "many.seed"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
        assert Draft202012Validator(schema).is_valid(schema["default"])
    assert schemas["top_p"]["exclusiveMinimum"] == 0


def test_a_description_reaches_callers_with_the_form_of_what_they_give() -> None:
    known = {
        "beams": {**KNOWN["beams"], "description": "Beam size."},
        "stop": {"type": "texts", "default": None, "description": "Texts before which the answer ends."},
        "uniform": {**KNOWN["uniform"], "description": "Random numbers."},
        "n_best": {"type": "ranking", "default": 1, "minimum": 1, "maximum": 3},
    }
    schemas, options = option_schemas(known), describe_options(known)
    assert schemas["beams"]["description"] == options["beams"]["description"] == "Beam size."
    assert options["stop"]["description"] == "Texts before which the answer ends. A text, or a list of texts."
    assert options["seed"]["description"].startswith("Random seed")
    assert (options["n_best"]["const"], "description" in options["n_best"]) == ("all", False)


@pytest.mark.parametrize("name", [*OPTIONS, "seed"])
def test_a_schema_allows_just_what_its_option_does(name: str) -> None:
    schema = Draft202012Validator(option_schemas(KNOWN)[name])
    allowed = []
    for value in VALUES:
        try:
            resolve_options(KNOWN, {"seed": 1, name: value})
        except UsageError:
            pass
        else:
            allowed.append(value)
    whole = {"beams", "max_length", "by", "seed"}  # JSON Schema counts 1.0 among the integers, options do not
    fitting = [value for value in VALUES if schema.is_valid(value) and not (name in whole and type(value) is float)]
    assert [repr(value) for value in fitting] == [repr(value) for value in allowed]
    assert 0 < len(allowed) < len(VALUES)


@pytest.mark.parametrize(
    ("value", "valid"), [("a b", True), (["a", 7], True), (None, True), (3, False), ([1.5], False)]
)
def test_tokens_are_a_text_a_list_or_nothing(value: Any, valid: bool) -> None:
    known = {"stop": {"type": "tokens", "default": None, "minimum": None, "maximum": None}}
    assert Draft202012Validator(option_schemas(known)["stop"]).is_valid(value) is valid
