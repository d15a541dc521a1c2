"""JSON Schemas of the installed components, made from their signatures."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from seqpipe.config.common_keys import CommonKeys
from seqpipe.config.option_models import options_model
from seqpipe.config.plugins import Offer, Plugins
from seqpipe.config.signature import wired
from seqpipe.errors import PluginError

Json = dict[str, Any]

_SPECIAL = re.compile(r"[.*+?^${}()|[\]\\/]")  # in a pattern; re.escape writes what JavaScript refuses
NULL: Json = {"type": "null"}
USE = "Which {}."
TARGET_TOKENIZER = "How the text that the head writes becomes tokens; same: as the pipeline's own text does."


class Readable(NamedTuple):
    """An installed component whose signature can be read: its offer, its class, and the model of its options."""

    offer: Offer
    cls: type
    options: type[BaseModel]


class Generate(GenerateJsonSchema):
    """Pydantic's generator without made-up titles, and strict about the keys of mappings."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (a set in the base class)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dict_schema(self, schema: Any) -> Json:
        keys = super().dict_schema(schema)
        return {**keys, "additionalProperties": False} if "patternProperties" in keys else keys


class ComponentSchemas:
    """The schemas of one table of plugins; what several places share goes to `$defs`."""

    def __init__(self, plugins: Plugins, tell: Callable[[str], None]):
        self.plugins, self.tell = plugins, tell
        self.defs: Json = {}
        self.reported: set[str] = set()

    def readable(self, kind: str) -> list[Readable]:
        """The components of a kind whose signatures can be read."""
        components = []
        for offer in self.plugins.offers:
            if offer.kind == kind:
                try:
                    cls = offer.load()
                    options, wired_names = options_model(cls), wired(cls)
                except PluginError as error:
                    self.leave_out(offer, str(error))
                    continue
                if wired_names and kind in ("reader", "tokenizer"):
                    self.leave_out(offer, f"nothing is wired into it, but its constructor asks for {wired_names[0]}")
                    continue
                components.append(Readable(offer, cls, options))
        return components

    def leave_out(self, offer: Offer, reason: str) -> None:
        whose = f"{offer.kind} {offer.name!r} of {offer.distribution} {offer.version}"
        line = f"left out: {reason if reason.startswith(whose) else f'{whose}: {reason}'}"
        if line not in self.reported:  # a tokenizer stands in two places
            self.reported.add(line)
            self.tell(line)

    def group(self, key: str, components: Sequence[Readable], common_keys: Sequence[str]) -> None:
        """`$defs` of a component as it stands under this key: names alone where they do, and a branch for each."""
        alone: list[str] = []
        branches: list[Json] = []
        for readable in components:
            offer = readable.offer
            title = f"{key}.{offer.distribution}.{offer.name}"
            try:
                component = self.component(readable, common_keys, title)
            except PydanticInvalidForJsonSchema as error:
                self.leave_out(offer, f"JSON Schema has no word for its options: {str(error).splitlines()[0]}")
                continue
            if component["required"] == ["use"]:
                alone += self.names(offer)
            self.defs[title] = component
            branches.append(ref(title))
        if alone or not components:
            branches.insert(0, {"title": f"{key} by name", **one_of(alone)})
        self.defs[key] = {"anyOf": branches}

    def names(self, offer: Offer) -> list[str]:
        """What `use` may be for it: its name, if nobody else has that, and `distribution/name`."""
        rivals = [rival for rival in self.plugins.offers if (rival.kind, rival.name) == (offer.kind, offer.name)]
        return [*([offer.name] if len(rivals) == 1 else []), f"{offer.distribution}/{offer.name}"]

    def component(self, readable: Readable, common_keys: Sequence[str], title: str) -> Json:
        offer, cls, options = readable
        of_options = self.model(options, title)
        common = self.model(CommonKeys, "common")["properties"]
        properties: Json = {"use": {"description": USE.format(offer.kind), **one_of(self.names(offer))}}
        properties |= of_options["properties"] | {key: common[key] for key in common_keys if key in common}
        required = ["use", *of_options.get("required", [])]
        if "target_tokenizer" in common_keys:
            writes = "target_vocabulary" in wired(cls)
            choice: Json = {"anyOf": [{"const": "same"}, ref("target_tokenizer")]} if writes else NULL
            properties["target_tokenizer"] = {"description": TARGET_TOKENIZER, **choice}
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
        keys = model.model_json_schema(ref_template=template, schema_generator=Generate)
        for name, inner in keys.pop("$defs", {}).items():
            self.defs[f"{title}.{name}"] = inner
        keys.pop("title", None), keys.pop("description", None)
        keys.setdefault("properties", {})
        for property in keys["properties"].values():
            if "default" in property and not _is_json(property["default"]):
                del property["default"]
        return keys


def _summary(cls: type) -> str:
    """The docstring up to its Args, in one line."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:")[0].split())


def one_of(names: Sequence[str]) -> Json:
    """One of the names; those in full are taken, but offered by no editor where the short ones do."""
    short = [name for name in names if "/" not in name]
    full = [name for name in names if "/" in name and name.rpartition("/")[2] in short]
    offered: Json = {"enum": [name for name in names if name not in full]}
    if not full:
        return offered
    pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", name) for name in full)
    return {"anyOf": [offered, {"type": "string", "pattern": f"^({pattern})$"}]}


def ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{quote(_escaped(name))}"}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _is_json(value: Any) -> bool:
    """Whether JSON can say it: it has no infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
