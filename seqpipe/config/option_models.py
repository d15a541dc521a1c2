"""The pydantic model of a component's options, made from its constructor, and plain data checked by such a model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from seqpipe.config.common_keys import ALL_COMMON_KEYS
from seqpipe.config.signature import argument_help, bad_signature, check_default, constructor, parameter_types, wired
from seqpipe.config.type_words import cure, unlike, words
from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml_text import Plain, plain, shown

Model = TypeVar("Model", bound=BaseModel)


class Mistake(NamedTuple):
    """What is wrong with one option: its path below the component, what is meant by the path, and what to do."""

    where: Where
    kind: Literal["missing", "unknown", "value"]
    message: str


class Row(NamedTuple):
    """One option as `plugins show` prints it."""

    option: str
    type: str
    default: str
    help: str


@cache
def options_model(cls: type) -> type[BaseModel]:
    """The pydantic model of a component's options, made from the keyword-only parameters of its constructor."""
    wired(cls)
    options = [parameter for parameter in constructor(cls) if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    hints = parameter_types(cls, inspect.getattr_static(cls, "__init__"), options)
    helps = argument_help(cls)
    fields: dict[str, Any] = {}
    for option in options:
        name, hint = option.name, hints[option.name]
        if name in ALL_COMMON_KEYS or name.startswith("_"):
            is_common = name in ALL_COMMON_KEYS
            rule = f"the common keys are {', '.join(ALL_COMMON_KEYS)}" if is_common else "no leading underscore"
            raise bad_signature(cls, f"no option can be called {name!r}; choose another name ({rule})")
        check_default(cls, option, hint)
        default = ... if option.default is inspect.Parameter.empty else option.default
        # A name that BaseModel uses itself (copy, json, …) is kept as an alias.
        field, alias = (f"option_{name}", name) if hasattr(BaseModel, name) else (name, None)
        fields[field] = (Annotated[hint, Field(alias=alias, description=helps.get(name))], default)
    config = ConfigDict(
        extra="forbid", strict=True, frozen=True, protected_namespaces=(), arbitrary_types_allowed=False
    )
    try:
        return create_model(
            cls.__name__,
            __config__=config,
            __module__=cls.__module__,
            __doc__=inspect.cleandoc(cls.__doc__ or ""),
            **fields,
        )
    except (PydanticUserError, TypeError) as error:
        raise bad_signature(cls, f"its options cannot be read: {str(error).splitlines()[0]}") from error


def validate(model: type[Model], data: Mapping[str, Plain]) -> tuple[Model | None, list[Mistake]]:
    """Plain data as an instance of the model, or every mistake in it in plain words.

    Read as JSON, strictly: a list may become a tuple and text a path, but "3" is no int, 3.0 and True neither.
    """
    try:
        return model.model_validate_json(json.dumps(data)), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    fields = option_fields(model)
    mistakes: dict[Where, Mistake] = {}
    for error_details in errors:
        mistake = _mistake(error_details, data, fields)
        mistakes.setdefault(mistake.where, mistake)
    # Of a union, the member that got furthest counts: a mistake inside a value replaces the one about the value.
    return None, [m for w, m in mistakes.items() if not any(len(o) > len(w) and o[: len(w)] == w for o in mistakes)]


def _mistake(error: ErrorDetails, data: Plain, fields: Mapping[str, FieldInfo]) -> Mistake:
    """One of pydantic's errors in plain words."""
    loc, kind = error["loc"], error["type"]
    if kind == "missing" and len(loc) == 1:
        help = fields[str(loc[0])].description
        return Mistake(loc, "missing", f"it: {help}" if help else "it, for it has no default")
    if kind == "extra_forbidden" and len(loc) == 1:
        return Mistake(loc, "unknown", "unknown")
    where = _existing(data, loc)
    field = fields.get(str(where[0])) if where else None
    if field is None or kind == "value_error":
        return Mistake(where, "value", error["msg"].removeprefix("Value error, "))
    expected, value = words(field.annotation, field.metadata), _at(data, where)
    inside = f"{shown(value)} does not fit here; {where[0]!r} should be {expected}{cure(expected, value)}"
    return Mistake(where, "value", unlike(expected, value) if len(where) == 1 else inside)


def option_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the names that a YAML has for them."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def values(options: BaseModel) -> dict[str, Any]:
    """The options by the names that the constructor has for them."""
    fields = type(options).model_fields
    return {fields[name].alias or name: value for name, value in options}


def option_rows(cls: type) -> list[Row]:
    """One row an option of the constructor: name, type, default, and its line of the docstring's Args section."""
    rows = []
    for option, info in option_fields(options_model(cls)).items():
        default = "required" if info.is_required() else shown(plain(info.default))
        rows.append(Row(option, words(info.annotation, info.metadata), default, info.description or ""))
    return rows


def _existing(data: Plain, loc: tuple[str | int, ...]) -> Where:
    """As much of pydantic's location as leads through the data (it also names the members of unions)."""
    where: list[str | int] = []
    for step in loc:
        inside = (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if inside:
            where.append(step)
            data = data[step]
    return tuple(where)


def _at(data: Plain, where: Where) -> Plain:
    for step in where:
        data = data[step]
    return data
