"""The JSON Schema of a pipeline's YAML, by which an editor completes and checks it.

Keys, types, bounds, defaults and help are those of the configuration's models and of the components' signatures.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from seqpipe.config.common_keys import COMMON_KEYS, TARGET_TOKENIZER_KEYS, CommonKeys
from seqpipe.config.component_schemas import NULL, USE, ComponentSchemas, Generate, Json, ref
from seqpipe.config.loader import INPUT_NAME, Config
from seqpipe.config.plugins import KINDS, Plugins
from seqpipe.config.schema import OF_A_SOURCE, STAGES, TOP, DataKeys, Name, NeedKeys

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(plugins: Plugins | None = None, tell: Callable[[str], None] = lambda line: None) -> Json:
    """The JSON Schema (draft 2020-12) of every pipeline that can be written with what is installed.

    Components that cannot be loaded or read are left out.

    Args:
        plugins: Whose components; by default those of all installed distributions.
        tell: Called with a line about each thing that is left out.
    """
    return _PipelineSchema(plugins or Plugins(), tell).pipeline()


class _PipelineSchema(ComponentSchemas):
    """The schema of every pipeline that one table of plugins allows."""

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
            "needs": _or_null({"type": "array", "items": self.needs()}),
            "inputs": self.inputs(),
            "tokenizer": ref("tokenizer"),
            **{kind: self.stages(kind) for kind in STAGES},
        }
        properties = {
            key: {"description": description, **(known.get(key) or self.keys(hints[key]))}
            for key, description in TOP.items()
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
        keys = self.model(DataKeys, "data")
        properties = {
            "reader": {"description": "What makes records of a data file.", **ref("reader")},
            **keys["properties"],
        }
        return {**keys, "properties": properties, "required": ["reader", *keys["required"]]}

    def needs(self) -> Json:
        """One entry, with its path and one of the keys that say where it comes from."""
        keys = self.model(NeedKeys, "needs")
        return {**keys, "oneOf": [{"required": ["run"]}, {"required": ["make"]}]}

    def inputs(self) -> Json:
        """Sources by name."""
        known = {"field": self.model(CommonKeys, "common")["properties"]["field"]}
        known["tokenizer"] = {"anyOf": [ref("tokenizer"), NULL]}
        known |= {kind: self.stages(kind) for kind in ("embedding", "encoder")}
        keys = {key: {"description": description, **known[key]} for key, description in OF_A_SOURCE.items()}
        source: Json = {"type": "object", "properties": keys, "additionalProperties": False}
        source["anyOf"] = [{"required": ["tokenizer"]}, {"required": ["field"]}]
        named = {"patternProperties": {f"^{INPUT_NAME.pattern}$": source}, "additionalProperties": False}
        return _or_null({"type": "object", **named, "minProperties": 1})

    def stages(self, kind: str) -> Json:
        """One component, or a list of them; at least one head."""
        several: Json = {"type": "array", "items": ref(kind)}
        if kind == "head":
            return {"anyOf": [ref(kind), {**several, "minItems": 1}]}
        return {"anyOf": [ref(kind), several, NULL]}

    def keys(self, model: type[BaseModel]) -> Json:
        """A mapping of settings, which may be left empty; a key whose `use` says what else there is gets branches."""
        schema = self.model(model, model.__name__)
        for key, field in model.model_fields.items():
            if field.discriminator == "use":
                for member in typing.get_args(field.annotation):  # said by the branches
                    del self.defs[f"{model.__name__}.{member.__name__}"]
                common = {word: schema["properties"][key][word] for word in ("description", "default")}
                schema["properties"][key] = common | {"anyOf": self.choices(key, field)}
        return {**schema, "type": ["object", "null"]}

    def choices(self, key: str, field: FieldInfo) -> list[Json]:
        """A name alone, then a branch for each member of the union; the usual one needs no `use`."""
        names, branches = [], []
        for member in typing.get_args(field.annotation):
            schema = self.model(member, f"{key}.{member.__name__}")
            (name,) = typing.get_args(member.model_fields["use"].annotation)
            names.append(name)
            schema["properties"]["use"] = {"description": USE.format(key), "const": name}
            needed = [] if isinstance(field.default, member) else ["use"]
            summary = " ".join((member.__doc__ or "").split())
            branches.append({"title": f"{key} {name}", "description": summary, **schema, "required": needed})
        return [{"title": f"{key} by name", "enum": names}, *branches, NULL]


def _or_null(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}
