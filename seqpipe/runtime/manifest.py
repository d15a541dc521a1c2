"""Manifest of a bundle as types: read bundle.json with all checks of its format, and write it.

Every byte is hashed before anything parses it: bundle.json seals itself (its last entry is the sha256 of the bytes
before it) and has the hashes of all other files. That detects damage, not forgery; against forged manifests there are
the bounds here. `docs/internals/bundle-format.md` specifies the format.
"""

from __future__ import annotations

import builtins
import codecs
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal, NotRequired, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, FailFast, Field, JsonValue, SkipValidation, Strict, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from seqpipe.answers.types import AXES, OVER
from seqpipe.errors import LFS_FIX, LFS_POINTER, BundleError
from seqpipe.features.kinds.base import PLACE_AXIS
from seqpipe.features.kinds.registry import MEDIA
from seqpipe.features.splitting import CUTS, Cut
from seqpipe.files import JSON_DECODER, json_bytes, sha256
from seqpipe.types import MOST_SIZE, OPTION_TYPES

BUNDLE_FORMAT, NEWEST, OLDEST = "seqpipe-bundle", 5, 2
OF_TEXTS, OF_MEDIA = 3, 4  # versions of bundles without log-probabilities in answers, which older runtimes read
MANIFEST = "bundle.json"
MOST_TOKENS = 1_000_000  # of one text, the maximum of `limits`
LONGEST_REASON = 1_000  # characters
PAST_BATCH, PAST_LENGTH, PAST_STATE = "past_batch_size", "past_length", "past_state"  # axes of a cache's inputs
_SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
_RESERVED = {"graphs": "other graphs beside model.onnx", "weights": "weights that several graphs share"}

# JSON that the manifest only stores: an example's record, an answer kind's labels. Its user checks it.
Json = SkipValidation[JsonValue]
Entry = TypeVar("Entry")
Item = TypeVar("Item")


def _stop_at_first(entries: object, validate: pydantic.ValidatorFunctionWrapHandler) -> object:
    # pydantic collects the errors of all entries: 2.5 GB of them for a manifest of 64 MB. Here it stops at the first.
    if not isinstance(entries, dict):
        return validate(entries)
    return {name: validate({name: entry})[name] for name, entry in entries.items()}


Entries = Annotated[Mapping[str, Entry], pydantic.WrapValidator(_stop_at_first)]
Items = Annotated[tuple[Item, ...], Strict(False), FailFast()]  # read from a JSON list


class _Form(BaseModel):
    """An object of a manifest; keys that this version does not know are preserved."""

    # Only the validator of a whole manifest is built, at its first use, not one more for each part of it.
    model_config = ConfigDict(frozen=True, extra="allow", strict=True, defer_build=True)


class FileEntry(_Form):
    """Hash and size of a file in the bundle."""

    model_config = ConfigDict(extra="forbid")

    sha256: str
    bytes: int

    def is_of(self, data: builtins.bytes) -> bool:
        """Return whether these are the bytes of the file."""
        return len(data) == self.bytes and sha256(data) == self.sha256


Bound = int | Annotated[float, Field(allow_inf_nan=False)] | None


class _Option(TypedDict):
    type: Annotated[str, Field(pattern=f"^({'|'.join(name for name, item in OPTION_TYPES.items() if item.is_input)})$")]
    default: Json
    minimum: NotRequired[Bound]
    maximum: NotRequired[Bound]
    exclusive_minimum: NotRequired[Bound]
    exclusive_maximum: NotRequired[Bound]
    description: NotRequired[str]


def _check_bounds(option: _Option) -> _Option:
    low, high = option.get("minimum"), option.get("maximum")
    for bound in (low, high, option.get("exclusive_minimum"), option.get("exclusive_maximum")):
        if bound is not None and abs(bound) > sys.float_info.max:
            raise ValueError("a bound exceeds every number of the graph")
        if bound is not None and OPTION_TYPES[option["type"]].is_size and not 0 <= bound <= MOST_SIZE:
            raise ValueError(f"{bound} is not a valid bound of a size, which is at most {MOST_SIZE:,}")
    if low is not None and high is not None and low > high:
        raise ValueError(f"the minimum {low} exceeds the maximum {high}")
    return option


# A decode option. Its default is checked like a caller's value, by `seqpipe.runtime.decode_options`.
Option = Annotated[_Option, pydantic.AfterValidator(_check_bounds)]

TokenCount = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class Limits(_Form):
    """Maximum number of tokens of a text, of the first of a pair, and of any input in training.

    With `cut` only the first tokens of a longer text are read; else it is refused.
    """

    tokens: TokenCount
    cut: bool = False
    first_tokens: TokenCount = MOST_TOKENS
    trained: TokenCount = MOST_TOKENS


class CacheEntry(_Form):
    """One tensor of the cache: an output of a run of the graph, and the input of the next run that it becomes.

    (B, C) token ids, or (B, C, …) numbers of an encoder; C counts the tokens read, or is 1 for all of them.
    A first run has no such input, C = 0.
    """

    input: str
    output: str
    axes: Items[str | int]
    dtype: Literal["int64", "float32"]
    grows: bool

    @classmethod
    def of(cls, input: str, output: str, slot: tuple[int, ...] = (), grows: bool = True) -> CacheEntry:
        """Return the entry with the shape `slot` after (B, C), () for token ids; `grows`: C counts tokens."""
        axes: tuple[str | int, ...] = (PAST_BATCH, PAST_LENGTH if grows else PAST_STATE, *slot)
        return cls(input=input, output=output, axes=axes, dtype="float32" if slot else "int64", grows=grows)

    def shape(self, rows: int, slots: int) -> tuple[int, ...]:
        """Return the shape of the input with this many rows and slots."""
        return (rows, slots, *self.slot)

    @property
    def slot(self) -> tuple[int, ...]:
        return tuple(size for size in self.axes if isinstance(size, int))

    @pydantic.model_validator(mode="after")
    def _check_consistency(self) -> CacheEntry:
        if self.axes != (PAST_BATCH, PAST_LENGTH if self.grows else PAST_STATE, *self.slot):
            raise ValueError(f"the axes {reprlib.repr(self.axes)} are not those of a cache")
        if self.dtype != ("float32" if self.slot else "int64"):
            raise ValueError(f"the dtype {self.dtype} does not match its axes")
        return self


class Reader(_Form):
    """Reader of the training data, and its options."""

    use: str
    options: Mapping[str, Json]


class MetricsOwner(Reader):
    """Head that computes its own metrics, and its distribution."""

    distribution: str
    version: str


class Golden(_Form):
    """A golden example: a record and its answer on the exporting machine, with non-default decode options if any."""

    record: str | Mapping[str, Json]
    options: Mapping[str, Json] = {}
    answer: Json


class Weights(_Form):
    """Attention weights that the graph returns: the units that they are over, their axis, the places of a picture."""

    over: str
    axis: str
    grid: tuple[TokenCount, TokenCount] | None = Field(None, strict=False)

    @pydantic.model_validator(mode="after")
    def _check_consistency(self) -> Weights:
        if self.over not in OVER or self.axis not in AXES:
            raise ValueError(f"weights over {reprlib.repr(self.over)} cannot have the axis {reprlib.repr(self.axis)}")
        if self.grid is not None and self.axis != PLACE_AXIS:
            raise ValueError(f"weights with the axis {self.axis!r} cannot have a grid")
        return self


class Streaming(_Form):
    """Unit after which a chunk of a streamed text may end; None: chunks are lists of words."""

    cut: Cut | None


FieldNames = str | Annotated[list[str], Field(min_length=1, max_length=2)]


class Manifest(_Form):
    """Content of bundle.json besides format, version and seal; `docs/internals/bundle-format.md` describes each key.

    A description is the name of the value, or of one entry, in messages.
    """

    name: str
    field: Annotated[
        FieldNames | Entries[FieldNames], Field(description="the name of a field, a list of two, or an object of these")
    ]
    inputs: Entries[Mapping[str, Json]]
    outputs: Items[str] = Field(description="a text")
    options: Annotated[
        Entries[Option], Field(description="an object with `type`, `default`, and optional numbers as bounds")
    ]
    answer: Mapping[str, Json]
    cache: Items[CacheEntry] = Field((), description="an object with `input`, `output`, `axes`, `dtype` and `grows`")
    limits: Limits = Field(description=f"a whole number from 1 to {MOST_TOKENS:,}")
    reader: Reader = Field(description="an object with `use`, and the object `options`")
    golden: Items[Golden] = Field(description="an object with a record, an answer, and optionally the object `options`")
    metrics: Mapping[str, Json]
    groups: Mapping[str, Json] = {}
    own_metrics: Annotated[
        Entries[MetricsOwner],
        Field(description="an object with `use`, `distribution`, `version`, and the object `options`"),
    ] = {}
    explain: Annotated[Entries[Weights], Field(description="an object with `over` and `axis`")] = {}
    parity: Mapping[str, Json]
    made_with: Mapping[str, Json]
    training: Json = None
    streaming: Streaming | None = Field(None, description=f"an object with `cut`, which is {', '.join(CUTS)} or null")
    no_golden: str = Field("", max_length=LONGEST_REASON, description=f"a text of at most {LONGEST_REASON} characters")
    files: Annotated[Entries[FileEntry], Field(description="an object with only `sha256` and `bytes`")]

    @pydantic.field_validator("streaming", mode="before")
    @classmethod
    def _refuse_null(cls, streaming: object) -> object:
        if streaming is None:
            raise ValueError("must not be null")
        return streaming

    @property
    def version(self) -> int:
        """Version of the format: the lowest whose runtimes compute all inputs and all keys of answers."""
        parts = self.answer.get("parts")
        heads = parts.values() if isinstance(parts, dict) else [self.answer]
        if any(isinstance(head, Mapping) and head.get("log_score") for head in heads):
            return NEWEST
        return OF_MEDIA if any(entry.get("kind") in (*MEDIA,) for entry in self.inputs.values()) else OF_TEXTS

    def content(self) -> dict[str, object]:
        """Return the object of bundle.json, without its seal."""
        return {"format": BUNDLE_FORMAT, "version": self.version, **_set_fields(self)}


def _set_fields(form: BaseModel) -> dict[str, object]:
    """Return the fields that were set, without defaults."""
    return {name: value for name, value in form if name in form.model_fields_set}


def next_inputs(cache: Iterable[CacheEntry], outputs: Mapping[str, Item]) -> dict[str, Item]:
    """Return the cache inputs of the next run from the outputs of one."""
    return {entry.input: outputs[entry.output] for entry in cache}


def seal(content: Mapping[str, object]) -> bytes:
    """Return the bytes of bundle.json, with its own sha256 as the last entry."""
    body = json_bytes(content, indent=1, default=_set_fields).removesuffix(b"\n}")
    return body + f',\n "sha256": "{sha256(body)}"\n}}\n'.encode()


def find_change(data: bytes, is_original: Callable[[bytes], bool]) -> str:
    """Return what Git or an editor did to a file of a bundle, with the fix; "" if it is damaged otherwise."""
    if data.startswith(LFS_POINTER):
        return LFS_FIX
    if not is_original(data.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")):
        return ""
    if b"\r\n" not in data:
        return "an editor wrote a byte order mark (BOM) at its beginning; copy the bundle again"
    fix = "write the line `*.json -text` in .gitattributes, and check the file out again"
    return f"its line ends were changed to CRLF, as Git does with core.autocrlf; {fix}"


def _sealed_body(data: bytes) -> bytes | None:
    """Return the bytes before the seal; None if they are not those that were sealed."""
    match = _SEAL.search(data[-90:])
    body = data[: -len(match.group())] if match else b""
    return body if match and sha256(body) == match.group(1).decode() else None


def unseal(data: bytes, what: str) -> dict[str, object]:
    """Return the object in these bytes; BundleError, before anything is parsed, if they were modified."""
    body = _sealed_body(data)
    if body is None:
        problem = "cut short or not a bundle.json: its last entry must be its sha256; export it again"
        if _SEAL.search(data[-90:]):
            problem = "damaged: its sha256 is not that in its last entry; copy or export the bundle again"
        change = find_change(data, lambda original: _sealed_body(original) is not None)
        raise BundleError(f"{what}: {change or problem}")
    try:
        content: dict[str, object] = JSON_DECODER.decode((body + b"}").decode())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{what}: not valid JSON: {str(error) or 'nested too deeply'}") from error
    return content


def parse_manifest(data: bytes, what: str) -> Manifest:
    """Parse the manifest in the bytes of bundle.json; BundleError, in one line, for the first problem."""
    content = unseal(data, what)
    stated_format, version = content.pop("format", None), content.pop("version", None)
    if stated_format != BUNDLE_FORMAT:
        raise BundleError(f"{what}: its format is {reprlib.repr(stated_format)}, not {BUNDLE_FORMAT!r}")
    if type(version) is not int or not OLDEST <= version <= NEWEST:
        fix = "update seqpipe, or create the bundle again with this one: `seqpipe run PIPELINE.yaml --fresh`"
        if version == 1:
            fix = "create the bundle again: `seqpipe run PIPELINE.yaml --fresh`"
        message = f"bundle format version {reprlib.repr(version)}; this seqpipe reads versions {OLDEST} to {NEWEST}"
        raise BundleError(f"{what}: {message}: {fix}")
    for key, meaning in _RESERVED.items():
        if key in content:
            raise BundleError(f"{what}: {key}: {meaning}, which this seqpipe does not read; update seqpipe")
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        raise BundleError(f"{what}: {_message(error.errors(include_url=False)[0])}") from error
    if version < manifest.version > OF_TEXTS:
        needed = "log_score is a key of answers" if manifest.version == NEWEST else "pictures and sounds are inputs"
        message = f"its version is {version}, but {needed} from version {manifest.version} on"
        raise BundleError(f"{what}: {message}; export it again")
    if version == OLDEST and "stop" in manifest.options and manifest.options["stop"]["type"] == "tokens":
        manifest.options["stop"]["type"] = "texts"  # found outside the graph, which may lack the option
    for name in manifest.files:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name) or name == MANIFEST:
            raise BundleError(f"{what}: files: {name[:100]!r} is not the plain name of a file in the bundle")
    texts = [name.rpartition(".")[0] for name in manifest.inputs if name == "ids" or name.endswith(".ids")]
    for name in ("model.onnx", *(f"tokenizer.{text}.json" if text else "tokenizer.json" for text in texts)):
        if name not in manifest.files:
            raise BundleError(f"{what}: files: {reprlib.repr(name)[1:-1]} is missing")
    return manifest


_WORDS = {"string_type": "a text", "tuple_type": "a list", "dict_type": "an object"}
_WORDS |= {"mapping_type": "an object", "model_type": "an object"}


def _message(error: ErrorDetails) -> str:
    """Return one line on one problem: the key or entry, the expected value and the value found."""
    head, *inner = error["loc"]
    description = Manifest.model_fields[str(head)].description
    is_value = head in ("name", "field", "reader", "streaming", "no_golden")  # a value, not a list or object of values
    where = str(head) if is_value or not inner else f"{head}.{_format_key(inner[0])}"
    keys = inner if is_value and head != "field" else inner[1:]
    if error["type"] == "value_error":
        return f"{where}: {error['ctx']['error']}"
    if error["type"] == "missing" and not keys:
        return f"{where}: missing"
    expected = description if description and (inner or is_value) else _WORDS.get(error["type"], error["msg"])
    if error["type"] == "missing":
        return f"{where}: must be {expected}; it lacks `{_format_key(keys[0])}`"
    value = reprlib.repr(error["input"])
    return f"{where}: must be {expected}" + (f"; its `{_format_key(keys[0])}` is {value}" if keys else f", not {value}")


def _format_key(key: int | str) -> str:
    """Return a key in the notation of messages; list entries count from 1."""
    if isinstance(key, int):
        return str(key + 1)
    return key if re.fullmatch(r"[\w.-]{0,100}", key) else reprlib.repr(key)
