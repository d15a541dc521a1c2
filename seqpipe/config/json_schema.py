"""Everything installed in, one JSON Schema out: what an editor completes and checks a pipeline's YAML by.

Keys, types, bounds, defaults and help are those of the configuration's models and of the components' signatures.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from seqpipe.config.common_keys import COMMON_KEYS, TARGET_TOKENIZER_KEYS, CommonKeys
from seqpipe.config.loader import INPUT_NAME, Config
from seqpipe.config.option_models import options_model
from seqpipe.config.plugins import KINDS, Offer, Plugins
from seqpipe.config.schema import OF_A_SOURCE, STAGES, TOP, DataKeys, Name
from seqpipe.config.signature import wired
from seqpipe.errors import PluginError

Json = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TOLD = {
    "use": "Which {}.",
    "reader": "What makes records of a data file.",
    "target_tokenizer": "How the text that the head writes becomes tokens; same: as the pipeline's own text does.",
}
_SPECIAL = re.compile(r"[.*+?^${}()|[\]\\/]")  # in a pattern; re.escape writes what JavaScript refuses
_NULL: Json = {"type": "null"}


def schema(plugins: Plugins | None = None, tell: Callable[[str], None] = lambda line: None) -> Json:
    """The JSON Schema (draft 2020-12) of every pipeline that can be written with what is installed.

    Components that cannot be loaded or read are left out.

    Args:
        plugins: Whose components; by default those of all installed distributions.
        tell: Called with a line about each thing that is left out.
    """
    return _Schema(plugins or Plugins(), tell).pipeline()


class _Generate(GenerateJsonSchema):
    """Pydantic's generator without made-up titles, and strict about the keys of mappings."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (a set in the base class)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dict_schema(self, schema: Any) -> Json:
        made = super().dict_schema(schema)
        return {**made, "additionalProperties": False} if "patternProperties" in made else made


class _Schema:
    """One table of plugins in, the parts of the schema out; what several places share goes to `$defs`."""

    def __init__(self, plugins: Plugins, tell: Callable[[str], None]):
        self.plugins, self.tell = plugins, tell
        self.defs: Json = {}
        self.told: set[str] = set()

    def pipeline(self) -> Json:
        for one in self.plugins.broken:
            self.tell(f"left out: {one.distribution} {one.version} is broken: {one.reason}")
        tokenizers = self.loaded("tokenizer")
        self.group("target_tokenizer", "tokenizer", tokenizers, TARGET_TOKENIZER_KEYS)
        for kind in KINDS:
            found = tokenizers if kind == "tokenizer" else self.loaded(kind)
            self.group(kind, kind, found, COMMON_KEYS[kind])
        hints = typing.get_type_hints(Config)
        known: Json = {
            "name": _or_null(TypeAdapter(Name).json_schema(schema_generator=_Generate)),
            "data": self.data(),
            "inputs": self.inputs(),
            "tokenizer": _ref("tokenizer"),
            **{kind: self.stages(kind) for kind in STAGES},
        }
        properties = {
            key: {"description": told, **(known.get(key) or self.keys(hints[key]))} for key, told in TOP.items()
        }
        return {
            "$schema": _DIALECT,
            "title": "seqpipe pipeline",
            "description": "A sequence model: its data, its stages, how it is trained and shipped.",
            "type": "object",
            "properties": properties,
            "required": ["data", "head"],
            "anyOf": [{"required": ["tokenizer"]}, {"required": ["inputs"]}],
            "additionalProperties": False,
            "$defs": self.defs,
        }

    def data(self) -> Json:
        made = self.model(DataKeys, "data")
        properties = {"reader": {"description": _TOLD["reader"], **_ref("reader")}, **made["properties"]}
        return {**made, "properties": properties, "required": ["reader", *made["required"]]}

    def inputs(self) -> Json:
        """Sources by name."""
        known = {"field": self.model(CommonKeys, "frame")["properties"]["field"]}
        known["tokenizer"] = {"anyOf": [_ref("tokenizer"), _NULL]}
        known |= {kind: self.stages(kind) for kind in ("embedding", "encoder")}
        keys = {key: {"description": told, **known[key]} for key, told in OF_A_SOURCE.items()}
        source: Json = {"type": "object", "properties": keys, "additionalProperties": False}
        source["anyOf"] = [{"required": ["tokenizer"]}, {"required": ["field"]}]
        named = {"patternProperties": {f"^{INPUT_NAME.pattern}$": source}, "additionalProperties": False}
        return _or_null({"type": "object", **named, "minProperties": 1})

    def stages(self, kind: str) -> Json:
        """One component, or a list of them; at least one head."""
        several: Json = {"type": "array", "items": _ref(kind)}
        if kind == "head":
            return {"anyOf": [_ref(kind), {**several, "minItems": 1}]}
        return {"anyOf": [_ref(kind), several, _NULL]}

    def keys(self, model: type[BaseModel]) -> Json:
        """A mapping of settings, which may be left empty; a key whose `use` says what else there is gets branches."""
        made = self.model(model, model.__name__)
        for key, field in model.model_fields.items():
            if field.discriminator == "use":
                for member in typing.get_args(field.annotation):  # said by the branches
                    del self.defs[f"{model.__name__}.{member.__name__}"]
                kept = {word: made["properties"][key][word] for word in ("description", "default")}
                made["properties"][key] = kept | {"anyOf": self.choices(key, field)}
        return {**made, "type": ["object", "null"]}

    def choices(self, key: str, field: FieldInfo) -> list[Json]:
        """A name alone, then a branch for each member of the union; the usual one needs no `use`."""
        names, branches = [], []
        for member in typing.get_args(field.annotation):
            made = self.model(member, f"{key}.{member.__name__}")
            (name,) = typing.get_args(member.model_fields["use"].annotation)
            names.append(name)
            made["properties"]["use"] = {"description": _TOLD["use"].format(key), "const": name}
            needed = [] if isinstance(field.default, member) else ["use"]
            summary = " ".join((member.__doc__ or "").split())
            branches.append({"title": f"{key} {name}", "description": summary, **made, "required": needed})
        return [{"title": f"{key} by name", "enum": names}, *branches, _NULL]

    def loaded(self, kind: str) -> list[tuple[Offer, type, type[BaseModel]]]:
        """The components of a kind whose signatures can be read."""
        found = []
        for offer in self.plugins.offers:
            if offer.kind == kind:
                try:
                    cls = offer.load()
                    made, asked = options_model(cls), wired(cls)
                except PluginError as error:
                    self.leave_out(offer, str(error))
                    continue
                if asked and kind in ("reader", "tokenizer"):
                    self.leave_out(offer, f"nothing is wired into it, but its constructor asks for {asked[0]}")
                    continue
                found.append((offer, cls, made))
        return found

    def leave_out(self, offer: Offer, reason: str) -> None:
        whose = f"{offer.kind} {offer.name!r} of {offer.distribution} {offer.version}"
        line = f"left out: {reason if reason.startswith(whose) else f'{whose}: {reason}'}"
        if line not in self.told:  # a tokenizer stands in two places
            self.told.add(line)
            self.tell(line)

    def group(
        self, key: str, kind: str, found: Sequence[tuple[Offer, type, type[BaseModel]]], frame: Sequence[str]
    ) -> None:
        """`$defs` of a component as it stands under this key: names alone where they do, and a branch for each."""
        alone: list[str] = []
        branches: list[Json] = []
        for offer, cls, options in found:
            title = f"{key}.{offer.distribution}.{offer.name}"
            try:
                made = self.component(offer, cls, options, frame, title)
            except PydanticInvalidForJsonSchema as error:
                self.leave_out(offer, f"JSON Schema has no word for its options: {str(error).splitlines()[0]}")
                continue
            if made["required"] == ["use"]:
                alone += self.names(offer)
            self.defs[title] = made
            branches.append(_ref(title))
        if alone or not found:
            branches.insert(0, {"title": f"{key} by name", **_either(alone)})
        self.defs[key] = {"anyOf": branches}

    def names(self, offer: Offer) -> list[str]:
        """What `use` may be for it: its name, if nobody else has that, and `distribution/name`."""
        rivals = [one for one in self.plugins.offers if (one.kind, one.name) == (offer.kind, offer.name)]
        return [*([offer.name] if len(rivals) == 1 else []), f"{offer.distribution}/{offer.name}"]

    def component(self, offer: Offer, cls: type, options: type[BaseModel], frame: Sequence[str], title: str) -> Json:
        made = self.model(options, title)
        frames = self.model(CommonKeys, "frame")["properties"]
        properties: Json = {"use": {"description": _TOLD["use"].format(offer.kind), **_either(self.names(offer))}}
        properties |= made["properties"] | {key: frames[key] for key in frame if key in frames}
        required = ["use", *made.get("required", [])]
        if "target_tokenizer" in frame:
            writes = "target_vocabulary" in wired(cls)
            choice: Json = {"anyOf": [{"const": "same"}, _ref("target_tokenizer")]} if writes else _NULL
            properties["target_tokenizer"] = {"description": _TOLD["target_tokenizer"], **choice}
            required += ["target_tokenizer"] if writes else []
        return {
            "title": f"{offer.kind} {offer.name} ({offer.distribution})",
            "description": _summary(cls),
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def model(self, model: type[BaseModel], title: str) -> Json:
        """A model's own JSON Schema, its inner models among `$defs`, without its name."""
        template = f"#/$defs/{quote(_escaped(title))}.{{model}}"
        made = model.model_json_schema(ref_template=template, schema_generator=_Generate)
        for name, inner in made.pop("$defs", {}).items():
            self.defs[f"{title}.{name}"] = inner
        made.pop("title", None), made.pop("description", None)
        made.setdefault("properties", {})
        for one in made["properties"].values():
            if "default" in one and not _is_json(one["default"]):
                del one["default"]
        return made


def _summary(cls: type) -> str:
    """The docstring up to its Args, in one line."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:")[0].split())


def _either(names: Sequence[str]) -> Json:
    """One of the names; those in full are taken, but offered by no editor where the short ones do."""
    short = [name for name in names if "/" not in name]
    full = [name for name in names if "/" in name and name.rpartition("/")[2] in short]
    offered: Json = {"enum": [name for name in names if name not in full]}
    if not full:
        return offered
    pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", name) for name in full)
    return {"anyOf": [offered, {"type": "string", "pattern": f"^({pattern})$"}]}


def _ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{quote(_escaped(name))}"}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _or_null(made: Json) -> Json:
    return {**made, "type": [made["type"], "null"]}


def _is_json(value: Any) -> bool:
    """Whether JSON can say it: it has no infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
