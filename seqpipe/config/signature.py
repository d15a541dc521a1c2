"""Options of components from signatures: their types in words, their validation, and the common keys."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from typing_extensions import is_typeddict

from seqpipe.config.yaml import Path as Where
from seqpipe.config.yaml import Plain, format_value, plain
from seqpipe.errors import PluginError
from seqpipe.types import OPTION_TYPES, Means, OptionType, TryWith

# Types in words, as in messages and docs: `a whole number above 0`, `'BIOES' or 'none'`, `text or null`.


def describe_type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Describe a type in words: `a whole number above 0`, `'BIOES' or 'none'`, `text or null`."""
    kind, inner = unpack_annotated(annotation)
    inner += metadata
    for item in inner:
        if isinstance(item, Means):
            return item.words
    limits = _limits(inner)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return _either([format_value(value) for value in arguments])
    if origin in (Union, types.UnionType):
        return _either([describe_type(member) + (limits if member is not type(None) else "") for member in arguments])
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        return f"a list of {len(arguments)} ({', '.join(map(describe_type, arguments))})"
    if origin in (list, tuple, set, frozenset):
        return f"a list{limits}, each {describe_type(arguments[0])}"
    if is_typeddict(kind):
        keys = typing.get_type_hints(kind, include_extras=True).items()
        return f"{{{', '.join(f'{key}: {describe_type(value_type)}' for key, value_type in keys)}}}"
    if origin is dict:
        return f"a mapping{limits}, each value {describe_type(arguments[1])}"
    return _SIMPLE.get(kind, kind.__name__ if isinstance(kind, type) else str(kind)) + limits


# Old names of options' values: the new name, and why.
RENAMED_VALUES = {"concat": ("key-only", "its term of the query has no effect; 'location' is a layer over both")}


def mismatch_message(expected: str, value: Plain) -> str:
    """Return the message about a value of another type than expected, with a fix if one is obvious."""
    return f"should be {expected}, not {format_value(value)}{suggest_fix(expected, value)}"


def suggest_fix(expected: str, value: Plain) -> str:
    """Return what to write instead, such as `; write 3 without quotes`; "" if there is no obvious correction."""
    new, reason = RENAMED_VALUES.get(value, ("", "")) if isinstance(value, str) else ("", "")
    if new and f"'{new}'" in expected:
        return f"; it is now called '{new}': {reason}"
    wants_number = "number" in expected
    if isinstance(value, str) and "true or false" in expected and value.lower() in ("yes", "on", "no", "off"):
        return f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if isinstance(value, str) and wants_number:
        with contextlib.suppress(ValueError):
            float(value)
            return f"; write {value.replace('_', '')}" + ("" if "_" in value else " without quotes")
    if isinstance(value, float) and "whole number" in expected and value.is_integer():
        return f"; write {int(value)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and "text" in expected:
        return f"; put it in quotes ('{format_value(value)}')"
    return ""


def unpack_annotated(annotation: Any) -> tuple[Any, list[Any]]:
    """Return a type without Annotated, and its metadata (pydantic's Fields expanded)."""
    metadata: list[Any] = []
    if typing.get_origin(annotation) is Annotated:
        annotation, *extra = typing.get_args(annotation)
        for item in extra:
            metadata += item.metadata if isinstance(item, FieldInfo) else [item]
    return annotation, metadata


_SIMPLE: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "null",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
    Any: "anything",
}
_PHRASES = {
    "gt": "above {}",
    "ge": "from {}",
    "lt": "below {}",
    "le": "up to {}",
    "multiple_of": "that is a multiple of {}",
    "min_length": "at least {} long",
    "max_length": "at most {} long",
    "pattern": "matching {}",
}


def _constraints(metadata: Iterable[Any]) -> dict[str, Any]:
    """Return the bounds among a type's metadata, by their names in pydantic's `Field`."""
    # Each bound is an object of its own class, most of annotated-types, some private to pydantic.
    return {name: value for item in metadata for name in _PHRASES if (value := getattr(item, name, None)) is not None}


def _limits(metadata: Iterable[Any]) -> str:
    """Return the bounds in words, with a leading space."""
    limits = _constraints(metadata)
    phrases = ["that is not empty"] if limits.get("min_length") == 1 else []
    phrases += [_PHRASES[name].format(value) for name, value in limits.items() if (name, value) != ("min_length", 1)]
    text = " and ".join(phrases)
    return f" {text.replace(' and up to ', ' to ') if 'ge' in limits else text}" if text else ""


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


# The signatures of components: the names that constructors and methods ask for, and their keyword-only options.

Instance = TypeVar("Instance")
WIRED = ("dim", "vocabulary", "sizes", "labels", "target_vocabulary", "sources")
MAY_LACK = ("sizes",)  # of these, the value that a head of several inputs lacks, and may have a default for


@dataclass(frozen=True)
class DecodeOption:
    """One keyword-only parameter of a head's `decide`."""

    type: OptionType
    default: int | float | bool | None  # the value if a caller passes none
    bounds: Mapping[str, int | float]  # its least and greatest value by pydantic's names, `ge`, `gt`, `le` and `lt`
    # Alternative values of this and of other options with which it has an effect.
    trials: tuple[Mapping[str, int | float | bool], ...] = ()
    help: str = ""  # its line in an Args section, of `decide` or of the dataclass

    def manifest(self) -> dict[str, Any]:
        """The option as in a bundle.

        `minimum` and `maximum` are inclusive. An exclusive bound is listed too; the inclusive one is then the nearest
        number within it, for a runtime that supports inclusive bounds only.
        """
        low, high = self.bounds.get("ge"), self.bounds.get("le")
        above, below = self.bounds.get("gt"), self.bounds.get("lt")
        is_float = float in self.type.accepts
        if above is not None:
            low = math.nextafter(above, math.inf) if is_float else above + 1
        if below is not None:
            high = math.nextafter(below, -math.inf) if is_float else below - 1
        entry = {"type": self.type.name, "default": self.default, "minimum": low, "maximum": high}
        exclusive = {"exclusive_minimum": above, "exclusive_maximum": below}
        entry |= {name: bound for name, bound in exclusive.items() if is_float and bound is not None}
        if self.help:  # of which the first sentence is for callers; what follows is about tensors
            entry["description"] = f"{self.help.partition('. ')[0].rstrip('.')}."
        return entry


@cache
def wired(cls: type) -> tuple[str, ...]:
    """Return the constructor's positional parameters, all from the closed list; PluginError otherwise."""
    names = []
    for parameter in constructor(cls):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            continue
        if parameter.name not in WIRED:
            fix = f"an option follows a '*' (def __init__(self, …, *, {parameter.name}: int = 1))"
            fix += f", and positional parameters are {', '.join(WIRED)}"
            raise bad_signature(cls, f"{parameter.name!r} is not wired in; {fix}")
        if parameter.default is not inspect.Parameter.empty and parameter.name not in MAY_LACK:
            raise bad_signature(cls, f"{parameter.name!r} is wired in, so its default is never used; delete it")
        names.append(parameter.name)
    return tuple(names)


@cache
def method_names(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parameters of a method: its positional names without `self`, and its keyword-only names."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    if variadic := _variadic(parameters):
        name = f"{function.__module__}.{function.__qualname__}" if inspect.isroutine(function) else repr(function)
        raise PluginError(f"{name}: '{variadic}' has no names; name each parameter")
    only = inspect.Parameter.KEYWORD_ONLY
    return tuple(p.name for p in parameters if p.kind is not only), tuple(p.name for p in parameters if p.kind is only)


@cache
def optional_names(function: Callable[..., Any]) -> frozenset[str]:
    """Return the optional inputs of a method: its positional names that have a default."""
    parameters = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty)


def keyword_options(cls: type, decide: Callable[..., Any]) -> dict[str, DecodeOption]:
    """Return the decode options of a head: the keyword-only parameters of its `decide`, with dataclasses expanded."""
    decode_options, typed = {}, _keyword_types(cls, decide)
    helps = _arguments(inspect.cleandoc(decide.__doc__ or "").splitlines())
    for _, hint in typed:
        helps |= argument_help(hint) if _is_group(hint) else {}
    for option, hint in _expand_dataclasses(typed):
        kind, metadata = unpack_annotated(hint)
        scalars = {item.accepts[-1]: item for item in OPTION_TYPES.values() if item.is_scalar}
        option_type = next((item for item in metadata if isinstance(item, OptionType)), scalars.get(kind))
        if option_type is None:
            markers = [item.name.title() for item in OPTION_TYPES.values() if item.is_input and not item.is_scalar]
            allowed = f"{_either(markers)} of seqpipe.plugin, {_either([item.name for item in scalars.values()])}"
            raise bad_signature(cls, f"decode option {option.name!r} must be {allowed}, not {describe_type(hint)}")
        if option.default is inspect.Parameter.empty:
            raise bad_signature(cls, f"decode option {option.name!r} needs a default")
        check_default(cls, option, hint if option_type.accepts else type(None))
        limits = {key: limit for key, limit in _constraints(metadata).items() if key in ("ge", "gt", "le", "lt")}
        trials = tuple(item.values for item in metadata if isinstance(item, TryWith))
        default = None if option.default is None else kind(option.default)
        decode_options[option.name] = DecodeOption(option_type, default, limits, trials, helps.get(option.name, ""))
    return decode_options


def _keyword_types(cls: type, function: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    """Return the keyword-only parameters with their types."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = parameter_types(cls, function, parameters)
    return [(parameter, hints[parameter.name]) for parameter in parameters]


def _expand_dataclasses(typed: Iterable[tuple[inspect.Parameter, Any]]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Expand parameters whose type is a dataclass to the fields of the dataclass."""
    for parameter, hint in typed:
        if not _is_group(hint):
            yield parameter, hint
            continue
        types = typing.get_type_hints(hint, include_extras=True)
        for field in dataclass_fields(hint):
            default = field.default if field.default_factory is MISSING else field.default_factory()
            default = inspect.Parameter.empty if default is MISSING else default
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default), types[field.name]


def constructor(cls: type) -> list[inspect.Parameter]:
    """Return the parameters of `__init__` without `self`; none if a class inherits it from `object` or `nn.Module`."""
    function = inspect.getattr_static(cls, "__init__")
    is_module_init = inspect.isfunction(function) and function.__qualname__ == "Module.__init__"
    if function is object.__init__ or is_module_init:
        return []
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if variadic := _variadic(parameters):
        raise bad_signature(cls, f"'{variadic}' would accept a misspelt option; name each parameter of __init__")
    return parameters


def _variadic(parameters: Iterable[inspect.Parameter]) -> str:
    """Return the first `*args` or `**kwargs`, as written; "" if there is none."""
    signs = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return next((signs[parameter.kind] + parameter.name for parameter in parameters if parameter.kind in signs), "")


def parameter_types(cls: type, function: Any, parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """Resolve the types of these parameters only, so that imports for type checking are not looked up."""
    function = inspect.unwrap(function)  # also unwraps a static method
    annotations = {}
    for parameter in parameters:
        if parameter.annotation is inspect.Parameter.empty:
            raise bad_signature(cls, f"{parameter.name!r} has no type; annotate it ({parameter.name}: int = 1)")
        annotations[parameter.name] = parameter.annotation
    holder = types.SimpleNamespace(__annotations__=annotations)
    try:
        namespace = function.__globals__ if inspect.isfunction(function) else {}
        return typing.get_type_hints(holder, globalns=namespace, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise bad_signature(cls, f"a type cannot be read: {error}; import it at module level") from error


def check_default(cls: type, option: inspect.Parameter, hint: Any) -> None:
    if option.default is inspect.Parameter.empty:
        return
    try:
        TypeAdapter(hint).validate_python(option.default, strict=True)
    except ValidationError:
        message = mismatch_message(describe_type(hint), plain(option.default))
        raise bad_signature(cls, f"the default of {option.name!r} {message}") from None
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise bad_signature(cls, f"the type of {option.name!r} cannot be read from a YAML: {reason}") from error


def argument_help(cls: type) -> dict[str, str]:
    """Return the lines of the docstrings' Args sections by option: the class's own, else those of its bases."""
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        helps |= _arguments(inspect.cleandoc(base.__dict__.get("__doc__") or "").splitlines())
    return helps


def _arguments(lines: list[str]) -> dict[str, str]:
    """Return the lines of an Args section by name; a line with deeper indentation continues the previous one."""
    start = next((number for number, line in enumerate(lines) if line.strip() in ("Args:", "Arguments:")), len(lines))
    helps: dict[str, str] = {}
    name, indent = "", None
    for line in lines[start + 1 :]:
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if depth == 0:
            break
        indent = depth if indent is None else indent
        before, colon, after = line.strip().partition(":")
        if depth == indent and colon:
            name, helps[before.split(" ")[0]] = before.split(" ")[0], after.strip()
        elif name:
            helps[name] += f" {line.strip()}"
    return helps


def bad_signature(cls: type, message: str) -> PluginError:
    return PluginError(f"{cls.__module__}.{cls.__qualname__}: {message}")


def call(method: Callable[..., Any], names: Mapping[str, Any], **options: Any) -> Any:
    """Call a stage's method with the values that its positional parameters name; those with a default are optional.

    Decode options are passed by name, fields of a dataclass as that dataclass.
    """
    wanted = (p for p in inspect.signature(method).parameters.values() if p.kind is not p.KEYWORD_ONLY)
    options = _group_options(method.__func__ if inspect.ismethod(method) else method, options)
    return method(*(names[p.name] if p.default is p.empty else names.get(p.name, p.default) for p in wanted), **options)


def construct(cls: type[Instance], *wired: Any, **options: Any) -> Instance:
    """Construct a component from its wired arguments and its options by their names in a YAML.

    Options that are fields of a dataclass are passed as that dataclass.
    """
    return cls(*wired, **_group_options(inspect.getattr_static(cls, "__init__"), options))


def _group_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the function: fields of a dataclass are grouped to that dataclass."""
    groups = _option_groups(function)
    if not groups:
        return dict(options)
    grouped, taken = {}, set()
    for name, group in groups.items():
        names = options.keys() & inspect.signature(group).parameters.keys()
        grouped[name] = group(**{option: options[option] for option in names})
        taken |= names
    return grouped | {option: value for option, value in options.items() if option not in taken}


def _is_group(hint: Any) -> TypeGuard[type]:
    """Return whether a parameter's type is a dataclass, whose fields are options."""
    return isinstance(hint, type) and is_dataclass(hint)


@cache
def _option_groups(function: Callable[..., Any]) -> Mapping[str, type]:
    """Return the keyword-only parameters whose type is a dataclass, with that class."""
    if not inspect.isroutine(function) or not hasattr(function, "__globals__"):
        return {}
    typed = _keyword_types(type(function), function)
    return {parameter.name: hint for parameter, hint in typed if _is_group(hint)}


# The common keys, which any `use` may have beside the component's own options.

Text = Annotated[str, Field(min_length=1)]


class CommonKeys(BaseModel):
    """Types, defaults and meaning of the common keys; `COMMON_KEYS` lists those of each kind of component."""

    # Built at its first use, since bundles run without it.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")] | None = Field(
        default=None, description="Name of the head, for lists of heads; null: the value of `use`."
    )
    field: Text | tuple[Text, Text] = Field(
        default="text", description="The record field that is the input, or a list of two, which are read as a pair."
    )
    target: str | None = Field(
        default=None, min_length=1, description="The record field to learn; null: the default of the answer kind."
    )
    weight: float = Field(default=1.0, gt=0, description="The weight of this head's loss.")
    init: Annotated[str, Field(min_length=1), Means("a run's folder")] | None = Field(
        default=None,
        description="The folder of a trained run that its weights are initialised from; null: random weights.",
    )
    freeze: bool = Field(default=False, description="Whether its weights are not trained.")
    lr: PositiveFloat | None = Field(default=None, description="A learning rate of its own; null: the optimizer's.")


_STAGE = ("use", "init", "freeze", "lr")
COMMON_KEYS: Mapping[str, tuple[str, ...]] = {
    "reader": ("use",),
    "tokenizer": ("use", "field", "init"),
    "embedding": _STAGE,
    "encoder": _STAGE,
    "head": (*_STAGE, "name", "target", "weight", "target_tokenizer"),
}
TARGET_TOKENIZER_KEYS = ("use", "init")
INIT = "init"  # of a component with `load_init` also an option, a mapping
ALL_COMMON_KEYS = ("use", *CommonKeys.model_fields, "target_tokenizer")


# The pydantic model of a component's options, built from its constructor, and the validation of plain data by it.

Model = TypeVar("Model", bound=BaseModel)


class Mistake(NamedTuple):
    """Problem with one option: its path below the component, the kind of problem, and a message with the fix."""

    where: Where
    kind: Literal["missing", "unknown", "value"]
    message: str


class OptionRow(NamedTuple):
    """One option in the output of `plugins show`."""

    option: str
    type: str
    default: str
    help: str


@cache
def options_model(cls: type) -> type[BaseModel]:
    """Return the pydantic model of a component's options, from the keyword-only parameters of its constructor."""
    wired(cls)
    keyword_only = [parameter for parameter in constructor(cls) if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    hints = parameter_types(cls, inspect.getattr_static(cls, "__init__"), keyword_only)
    helps: dict[str, str] = {}
    for group in filter(_is_group, hints.values()):
        helps |= argument_help(group)
    helps |= argument_help(cls)
    entries: dict[str, Any] = {}
    for option, hint in _expand_dataclasses((parameter, hints[parameter.name]) for parameter in keyword_only):
        name = option.name
        is_common = name in ALL_COMMON_KEYS and not (name == INIT and hasattr(cls, "load_init"))
        if is_common or name.startswith("_"):
            rule = f"the common keys are {', '.join(ALL_COMMON_KEYS)}" if is_common else "no leading underscore"
            raise bad_signature(cls, f"no option can be called {name!r}; choose another name ({rule})")
        check_default(cls, option, hint)
        default = ... if option.default is inspect.Parameter.empty else option.default
        # A name that BaseModel uses itself (copy, json, …) is kept as an alias.
        field, alias = (f"option_{name}", name) if hasattr(BaseModel, name) else (name, None)
        if field in entries:
            raise bad_signature(cls, f"the option {name!r} occurs twice; delete one of the two")
        entries[field] = (Annotated[hint, Field(alias=alias, description=helps.get(name))], default)
    config, doc = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=()), cls.__doc__ or ""
    try:
        return create_model(
            cls.__name__, __config__=config, __module__=cls.__module__, __doc__=inspect.cleandoc(doc), **entries
        )
    except (PydanticUserError, TypeError) as error:
        raise bad_signature(cls, f"its options cannot be read: {str(error).splitlines()[0]}") from error


def component_options(kind: str, cls: type) -> type[BaseModel]:
    """Return the model of a component's options; PluginError if a reader or tokenizer asks for what is wired in."""
    if (names := wired(cls)) and kind in ("reader", "tokenizer"):
        raise PluginError(f"nothing is wired into a {kind}, but its constructor asks for {names[0]!r}")
    return options_model(cls)


def validate_model(model: type[Model], data: Mapping[str, Plain]) -> tuple[Model | None, list[Mistake]]:
    """Return plain data as an instance of the model, or all mistakes in it in plain words.

    Read as strict JSON: a list may become a tuple and text a path, but "3", 3.0 and True are not ints.
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
    # For a union, the deepest mistake counts: one inside a value replaces the one about the whole value.
    return None, [m for w, m in mistakes.items() if not any(len(o) > len(w) and o[: len(w)] == w for o in mistakes)]


def _mistake(error: ErrorDetails, data: Plain, fields: Mapping[str, FieldInfo]) -> Mistake:
    """Return one of pydantic's errors in plain words."""
    loc, kind = error["loc"], error["type"]
    if kind == "missing" and len(loc) == 1:
        help = fields[str(loc[0])].description
        return Mistake(loc, "missing", f"it: {help}" if help else "it: it has no default")
    if kind == "extra_forbidden" and len(loc) == 1:
        return Mistake(loc, "unknown", "unknown")
    where, value = existing(data, loc)
    field = fields.get(str(where[0])) if where else None
    if field is None or kind == "value_error":
        return Mistake(where, "value", error["msg"].removeprefix("Value error, "))
    expected = describe_type(field.annotation, field.metadata)
    inside = f"{format_value(value)} does not fit here; {where[0]!r} should be {expected}{suggest_fix(expected, value)}"
    return Mistake(where, "value", mismatch_message(expected, value) if len(where) == 1 else inside)


def option_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their names in a YAML."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def values(options: BaseModel) -> dict[str, Any]:
    """Return the options by their names in the constructor, without an `init` that is null: it is the common key."""
    fields = type(options).model_fields
    return {fields[name].alias or name: value for name, value in options if name != INIT or value is not None}


def option_rows(cls: type) -> list[OptionRow]:
    """Return a row for each option of the constructor: name, type, default, and its line in the Args section."""
    rows = []
    for option, info in option_fields(options_model(cls)).items():
        default = "required" if info.is_required() else format_value(plain(info.default))
        rows.append(OptionRow(option, describe_type(info.annotation, info.metadata), default, info.description or ""))
    return rows


def existing(data: Plain, loc: tuple[str | int, ...]) -> tuple[Where, Plain]:
    """Return the part of pydantic's location that is in the data (it also names members of unions), and its value."""
    where: list[str | int] = []
    for step in loc:
        inside = (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if inside:
            where.append(step)
            data = data[step]
    return tuple(where), data
