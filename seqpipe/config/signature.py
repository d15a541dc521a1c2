"""The signatures of components: what a constructor and a method ask for by name, and their keyword-only options."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, TypeGuard

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from seqpipe.config.type_words import bounds, unlike, unpacked, words
from seqpipe.config.yaml_text import plain
from seqpipe.errors import PluginError
from seqpipe.types import SIZE, TOKENS, UNIFORM

WIRED = ("dim", "vocabulary", "sizes", "labels", "target_vocabulary", "sources")


@dataclass(frozen=True)
class DecodeOption:
    """One keyword-only parameter of a head's `decide`; the bounds are inclusive, None where there is none."""

    annotation: Any
    type: str  # size, int, float, bool, tokens or uniform
    default: int | float | bool | None
    minimum: int | float | None
    maximum: int | float | None


def wired(cls: type) -> tuple[str, ...]:
    """The constructor's positional parameters, all from the closed list; PluginError otherwise."""
    names = []
    for parameter in constructor(cls):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            continue
        if parameter.name not in WIRED:
            cure = f"an option stands after a '*' (def __init__(self, …, *, {parameter.name}: int = 1))"
            raise bad_signature(
                cls, f"{parameter.name!r} is not wired in; {cure}, and by position come {', '.join(WIRED)}"
            )
        if parameter.default is not inspect.Parameter.empty:
            raise bad_signature(cls, f"{parameter.name!r} is wired in, so its default is never used; delete it")
        names.append(parameter.name)
    return tuple(names)


def method_names(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a method asks for: its positional names without `self`, and its keyword-only names."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    if vague := _vague(parameters):
        name = f"{function.__module__}.{function.__qualname__}" if inspect.isroutine(function) else repr(function)
        raise PluginError(f"{name}: '{vague}' asks for nothing by name; name each thing it needs")
    only = inspect.Parameter.KEYWORD_ONLY
    return tuple(p.name for p in parameters if p.kind is not only), tuple(p.name for p in parameters if p.kind is only)


def optional_names(function: Callable[..., Any]) -> set[str]:
    """What a method takes if there is such a thing: its positional names that have a default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is not p.empty}


def keyword_options(cls: type, decide: Callable[..., Any]) -> dict[str, DecodeOption]:
    """The decode options of a head: the keyword-only parameters of its `decide`, dataclasses opened up."""
    decode_options = {}
    for option, hint in _opened(_keyword_types(cls, decide)):
        kind, metadata = unpacked(hint)
        plain_type = kind.__name__ if isinstance(kind, type) else ""
        type_name = next((mark for mark in (SIZE, TOKENS, UNIFORM) if mark in metadata), plain_type)
        if kind not in (int, float, bool) and type_name not in (TOKENS, UNIFORM):
            there_is = "seqpipe.Size, seqpipe.Tokens, seqpipe.Uniform, int, float or bool"
            raise bad_signature(cls, f"decode option {option.name!r} must be {there_is}, not {words(hint)}")
        if option.default is inspect.Parameter.empty:
            raise bad_signature(cls, f"decode option {option.name!r} needs a default")
        check_default(cls, option, hint)
        low, high = bounds(kind, metadata)
        default = None if option.default is None else kind(option.default)
        decode_options[option.name] = DecodeOption(hint, type_name, default, low, high)
    return decode_options


def _keyword_types(cls: type, function: Callable[..., Any]) -> list[tuple[inspect.Parameter, Any]]:
    """The keyword-only parameters with their types."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = parameter_types(cls, function, parameters)
    return [(parameter, hints[parameter.name]) for parameter in parameters]


def _opened(typed: Iterable[tuple[inspect.Parameter, Any]]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """The same with the fields of a dataclass in place of a parameter that has it as its type."""
    for parameter, hint in typed:
        if _is_group(hint):
            types = typing.get_type_hints(hint, include_extras=True)
            yield from ((field, types[field.name]) for field in inspect.signature(hint).parameters.values())
        else:
            yield parameter, hint


def constructor(cls: type) -> list[inspect.Parameter]:
    """The parameters of `__init__` without `self`; none where a class leaves it to `object` or `nn.Module`."""
    function = inspect.getattr_static(cls, "__init__")
    of_module = inspect.isfunction(function) and function.__qualname__ == "Module.__init__"
    if function is object.__init__ or of_module:
        return []
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if vague := _vague(parameters):
        raise bad_signature(cls, f"'{vague}' would swallow a misspelt option; name each parameter of __init__")
    return parameters


def _vague(parameters: Iterable[inspect.Parameter]) -> str:
    """The first `*args` or `**kwargs`, as written; nothing if there is none."""
    signs = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return next((signs[parameter.kind] + parameter.name for parameter in parameters if parameter.kind in signs), "")


def parameter_types(cls: type, function: Any, parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """The types of these parameters alone, so that what only a type checker imports is never looked up."""
    function = inspect.unwrap(function)  # also of a static method
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
        raise bad_signature(cls, f"a type cannot be read: {error}; import it at the head of the module") from error


def check_default(cls: type, option: inspect.Parameter, hint: Any) -> None:
    if option.default is inspect.Parameter.empty:
        return
    try:
        TypeAdapter(hint).validate_python(option.default, strict=True)
    except ValidationError:
        raise bad_signature(
            cls, f"the default of {option.name!r} {unlike(words(hint), plain(option.default))}"
        ) from None
    except PydanticUserError as error:
        raise bad_signature(
            cls, f"the type of {option.name!r} cannot be read from a YAML: {str(error).splitlines()[0]}"
        ) from error


def argument_help(cls: type) -> dict[str, str]:
    """The lines of the docstrings' Args sections, by option: the class's own, else those of what it inherits from."""
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        helps |= _arguments(inspect.cleandoc(base.__dict__.get("__doc__") or "").splitlines())
    return helps


def _arguments(lines: list[str]) -> dict[str, str]:
    """The lines of an Args section by name; a line indented deeper continues the one above."""
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
    """Call a stage's method with what its positional parameters name; one with a default may lack.

    Decode options are given by name, those that are fields of a dataclass as that dataclass.
    """
    wanted = (p for p in inspect.signature(method).parameters.values() if p.kind is not p.KEYWORD_ONLY)
    for name, group in _option_groups(method.__func__ if inspect.ismethod(method) else method).items():
        fields = {field: options.pop(field) for field in inspect.signature(group).parameters if field in options}
        options[name] = group(**fields)
    return method(*(names[p.name] if p.default is p.empty else names.get(p.name, p.default) for p in wanted), **options)


def _is_group(hint: Any) -> TypeGuard[type]:
    """Whether a parameter's type is a dataclass, whose fields are options."""
    return isinstance(hint, type) and is_dataclass(hint)


@cache
def _option_groups(function: Callable[..., Any]) -> Mapping[str, type]:
    """The keyword-only parameters that have a dataclass as their type, with it."""
    typed = _keyword_types(type(function), function)
    return {parameter.name: hint for parameter, hint in typed if _is_group(hint)}
