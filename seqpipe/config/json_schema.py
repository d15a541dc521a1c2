"""JSON Schema of a pipeline's YAML, for completion and checks in editors.

Keys, types, bounds, defaults and help are those of the configuration's models and of the components' signatures.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from seqpipe.config.loader import INHERITED, INPUT_NAME, Config
from seqpipe.config.plugins import KINDS, Offer, Plugins
from seqpipe.config.schema import CHOICES, OF_A_SOURCE, STAGES, TOP, DataKeys, Name, NeedKeys
from seqpipe.config.signature import COMMON_KEYS, TARGET_TOKENIZER_KEYS, CommonKeys, component_options, wired
from seqpipe.errors import PluginError
from seqpipe.files import null_non_finite

Json = dict[str, Any]

_SPECIAL = re.compile(r"[.*+?^${}()|[\]\\/]")  # in a pattern; JavaScript refuses some escapes of re.escape
NULL: Json = {"type": "null"}
USE = "Which {}."


# An installed component whose signature can be read: its offer, its class, and the model of its options.
Readable = tuple[Offer, type, type[BaseModel]]


class Generate(GenerateJsonSchema):
    """Pydantic's generator without generated titles, and with strict keys of mappings."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (a set in the base class)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dict_schema(self, schema: Any) -> Json:
        keys = super().dict_schema(schema)
        return {**keys, "additionalProperties": False} if "patternProperties" in keys else keys


def pipeline_schema(plugins: Plugins | None = None, tell: Callable[[str], None] = lambda line: None) -> Json:
    """Return the JSON Schema (draft 2020-12) of all pipelines of installed components.

    Components that cannot be loaded or read are left out; `tell` is called with a line about each. By default the
    components are those of all installed distributions.
    """
    return _Schema(plugins or Plugins(), tell).pipeline()


class _Schema:
    """The schema of every pipeline that a table of plugins allows; shared parts are in `$defs`."""

    def __init__(self, plugins: Plugins, tell: Callable[[str], None]):
        self.plugins, self.tell = plugins, tell
        self.defs: Json = {}
        self.reported: set[str] = set()

    def pipeline(self) -> Json:
        for plugin in self.plugins.broken:
            self.tell(f"left out: {plugin.distribution} {plugin.version} is broken: {plugin.reason}")
        tokenizers = self.readable("tokenizer")
        self.group("target_tokenizer", tokenizers, TARGET_TOKENIZER_KEYS)
        for kind in KINDS:
            components = tokenizers if kind == "tokenizer" else self.readable(kind)
            self.group(kind, components, COMMON_KEYS[kind])
        hints = typing.get_type_hints(Config)
        known: Json = {
            "name": _or_null(TypeAdapter(Name).json_schema(schema_generator=Generate)),
            "data": self.data(),
            "needs": _or_null({"type": "array", "items": self.model(NeedKeys, "needs")}),
            "inputs": self.inputs(),
            "tokenizer": definition_ref("tokenizer"),
            **{kind: self.stages(kind) for kind in STAGES},
        }
        properties = {
            key: {"description": description, **(known.get(key) or self.keys(hints[key]))}
            for key, description in TOP.items()
        }
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
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
        keys = self.model(DataKeys, "data")
        reader = {"description": "Converts a data file to records.", **definition_ref("reader")}
        return {
            **keys,
            "properties": {"reader": reader, **keys["properties"]},
            "required": ["reader", *keys["required"]],
        }

    def inputs(self) -> Json:
        """Return the schema of sources by name."""
        known = {"field": self.model(CommonKeys, "common")["properties"]["field"]}
        known["tokenizer"] = {"anyOf": [definition_ref("tokenizer"), NULL]}
        known |= {kind: self.stages(kind) for kind in ("embedding", "encoder")}
        keys = {key: {"description": description, **known[key]} for key, description in OF_A_SOURCE.items()}
        source: Json = {"type": "object", "properties": keys, "additionalProperties": False}
        source["anyOf"] = [{"required": ["tokenizer"]}, {"required": ["field"]}]
        named = {"patternProperties": {f"^{INPUT_NAME.pattern}$": source}, "additionalProperties": False}
        return _or_null({"type": "object", **named, "minProperties": 1})

    def stages(self, kind: str) -> Json:
        """Return the schema of one component, or a list of them; of at least one head."""
        several: Json = {"type": "array", "items": definition_ref(kind)}
        if kind == "head":
            return {"anyOf": [definition_ref(kind), {**several, "minItems": 1}]}
        return {"anyOf": [definition_ref(kind), several, NULL]}

    def keys(self, model: type[BaseModel]) -> Json:
        """Return the schema of a mapping of settings, which may be empty, with branches for values of `use`."""
        schema = self.model(model, model.__name__)
        for key in CHOICES.keys() & model.model_fields.keys():
            for member in CHOICES[key].values():  # the branches list them
                del self.defs[f"{model.__name__}.{member.__name__}"]
            common = {word: schema["properties"][key][word] for word in ("description", "default")}
            schema["properties"][key] = common | {"anyOf": self.choices(key, model.model_fields[key].default)}
        return {**schema, "type": ["object", "null"]}

    def choices(self, key: str, default: BaseModel) -> list[Json]:
        """Return a schema for a name alone, then a branch for each member of the union; the default needs no `use`."""
        branches = []
        for name, member in CHOICES[key].items():
            schema = self.model(member, f"{key}.{member.__name__}")
            schema["properties"]["use"] = {"description": USE.format(key), "const": name}
            needed = [] if isinstance(default, member) else ["use"]
            summary = " ".join((member.__doc__ or "").split())
            branches.append({"title": f"{key} {name}", "description": summary, **schema, "required": needed})
        return [{"title": f"{key} by name", "enum": [*CHOICES[key]]}, *branches, NULL]

    # The schemas of components.

    def readable(self, kind: str) -> list[Readable]:
        """Return the components of a kind whose signatures can be read."""
        components = []
        for offer in self.plugins.offers:
            if offer.kind == kind:
                try:
                    cls = offer.load()
                    components.append((offer, cls, component_options(kind, cls)))
                except PluginError as error:
                    self.leave_out(offer, str(error))
        return components

    def leave_out(self, offer: Offer, reason: str) -> None:
        whose = f"{offer.kind} {offer.name!r} of {offer.distribution} {offer.version}"
        line = f"left out: {reason if reason.startswith(whose) else f'{whose}: {reason}'}"
        if line not in self.reported:  # a tokenizer has two places
            self.reported.add(line)
            self.tell(line)

    def group(self, key: str, components: Sequence[Readable], common_keys: Sequence[str]) -> None:
        """Add `$defs` of the components under this key: names alone if no option is required, and a branch for each."""
        alone: list[str] = []
        branches: list[Json] = []
        for readable in components:
            offer = readable[0]
            title = f"{key}.{offer.distribution}.{offer.name}"
            try:
                component = self.component(readable, common_keys, title)
            except PydanticInvalidForJsonSchema as error:
                self.leave_out(offer, f"JSON Schema cannot describe its options: {str(error).splitlines()[0]}")
                continue
            if component["required"] == ["use"]:
                alone += self.names(offer)
            self.defs[title] = component
            branches.append(definition_ref(title))
        if alone or not components:
            branches.insert(0, {"title": f"{key} by name", **names_schema(alone)})
        self.defs[key] = {"anyOf": branches}

    def names(self, offer: Offer) -> list[str]:
        """Return the values of `use` for this component: its name if it is unique, and `distribution/name`."""
        rivals = [rival for rival in self.plugins.offers if (rival.kind, rival.name) == (offer.kind, offer.name)]
        return [*([offer.name] if len(rivals) == 1 else []), f"{offer.distribution}/{offer.name}"]

    def component(self, readable: Readable, common_keys: Sequence[str], title: str) -> Json:
        offer, cls, options = readable
        options_schema = self.model(options, title)
        common = self.model(CommonKeys, "common")["properties"]
        properties: Json = {"use": {"description": USE.format(offer.kind), **names_schema(self.names(offer))}}
        properties |= options_schema["properties"] | {key: common[key] for key in common_keys if key in common}
        if own_init := options_schema["properties"].get("init"):
            properties["init"] = {**own_init, "anyOf": [properties["init"]["anyOf"][0], *own_init["anyOf"]]}
        required = ["use", *options_schema.get("required", [])]
        if offer.kind in STAGES:  # an option that the tokenizer may have stated
            required = [name for name in required if name != INHERITED]
        if "target_tokenizer" in common_keys:
            writes = "target_vocabulary" in wired(cls)
            choice: Json = {"anyOf": [{"const": "same"}, definition_ref("target_tokenizer")]} if writes else NULL
            meaning = "Tokenizer of the text that the head generates; same: the tokenizer of the input."
            properties["target_tokenizer"] = {"description": meaning, **choice}
            required += ["target_tokenizer"] if writes else []
        return {
            "title": f"{offer.kind} {offer.name} ({offer.distribution})",
            "description": " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:")[0].split()),
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def model(self, model: type[BaseModel], title: str) -> Json:
        """Return the JSON Schema of a model, with inner models in `$defs`, without its name."""
        template = f"#/$defs/{quote(_escape(title))}.{{model}}"
        keys = model.model_json_schema(ref_template=template, schema_generator=Generate)
        for name, inner in keys.pop("$defs", {}).items():
            self.defs[f"{title}.{name}"] = inner
        keys.pop("title", None), keys.pop("description", None)
        keys.setdefault("properties", {})
        for property in keys["properties"].values():
            if null_non_finite(property.get("default")) != property.get("default"):
                del property["default"]  # JSON has no infinity
        return keys


def names_schema(names: Sequence[str]) -> Json:
    """Return an enumeration of names; full names are valid, but editors suggest only the unique short ones."""
    short = [name for name in names if "/" not in name]
    full = [name for name in names if "/" in name and name.rpartition("/")[2] in short]
    offered: Json = {"enum": [name for name in names if name not in full]}
    if not full:
        return offered
    pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", name) for name in full)
    return {"anyOf": [offered, {"type": "string", "pattern": f"^({pattern})$"}]}


def definition_ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{quote(_escape(name))}"}


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _or_null(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}
