"""The schema accepts every good pipeline and refuses every wrong one whose fault a schema can see."""

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from bad_yamls import BAD, FULL, GOOD, TOYS, Bad, data, encoded, keys, problems, stage, write
from conftest import Install
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, GetCoreSchemaHandler
from pydantic_core import core_schema
from tiny_pipelines import seqpipe, write_conll

from seqpipe.config import yaml
from seqpipe.config.json_schema import pipeline_schema
from seqpipe.config.loader import load_config, resolved
from seqpipe.config.plugins import KINDS, Offer, Plugins
from seqpipe.config.signature import options_model
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError
from seqpipe.init import init_yaml

PIPELINES = Path(__file__).parents[2] / "pipelines"
SHIPPED: dict[str, Any] = json.loads((PIPELINES / "schema.json").read_text(encoding="utf-8"))
TOY_SCHEMA = pipeline_schema(TOYS)
GOODS = [
    GOOD,
    FULL,
    stage(embedding="", encoder="from-ids"),
    stage(embedding="[lookup, toys/chars]", encoder="[]", train="{optimizer: {lr: 0.1}, schedule: linear}"),
    stage(head="{use: writer, cells: 1, target_tokenizer: same}", train="{optimizer: adam, schedule: null}"),
    stage(head="[{use: tagger, scheme: none, target_tokenizer: null}]", encoder="{use: mean, lr: null}"),
    data("reader: {use: lines}", "train: train.txt", "dev:", "test: dev.txt") + "name:\ntrain:\nexport:\n",
]


def tree_of(text: str | bytes) -> Any:
    return yaml.parse_tree(encoded(text), "x").data


def valid(value: object, json_schema: dict[str, Any] = TOY_SCHEMA) -> bool:
    return bool(Draft202012Validator(json_schema).is_valid(value))


# What is shipped


def test_the_shipped_schema_is_that_of_the_built_in_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    done = seqpipe("schema")
    cure = "write it anew: SEQPIPE_PLUGINS=off seqpipe schema -o pipelines/schema.json"
    assert (PIPELINES / "schema.json").read_text(encoding="utf-8") == done.out, cure


def test_it_is_a_schema_of_its_dialect() -> None:
    for json_schema in (TOY_SCHEMA, pipeline_schema(Plugins([])), SHIPPED):
        Draft202012Validator.check_schema(json_schema)
    assert SHIPPED["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_pipeline_is_accepted_as_written_and_with_every_default(path: Path) -> None:
    Draft202012Validator(SHIPPED).validate(tree_of(path.read_bytes()))
    Draft202012Validator(SHIPPED).validate(resolved(load_config(path, runs=False)))


def test_a_yaml_of_init_is_accepted(tmp_path: Path) -> None:
    text = init_yaml(write_conll(tmp_path / "train.conll", 20, 1), tmp_path / "mine.yaml")
    Draft202012Validator(SHIPPED).validate(tree_of(text.read_bytes()))


def test_init_is_a_folder_or_the_mapping_that_the_component_takes() -> None:
    path = next(path for path in sorted(PIPELINES.glob("*.yaml")) if "use: crf" in path.read_text(encoding="utf-8"))
    field = {"crf": "crf.safetensors", "labels": ["O", "B-a", "I-a"], "scheme": "BIO"}
    for init, is_valid in (
        ("runs/old", True),
        (None, True),
        (field, True),
        (field | {"scheme": "IO"}, False),
        (field | {"size": 3}, False),
        ({"crf": "crf.safetensors"}, False),
        (["runs/old"], False),
    ):
        content = tree_of(path.read_bytes())
        content["head"]["init"] = init
        assert valid(content, SHIPPED) == is_valid, init
        content = tree_of(path.read_bytes())
        content["encoder"] = {"use": "lstm", "init": init}
        assert valid(content, SHIPPED) == (is_valid and init != field), init


# Wrong YAMLs


def is_readable(bad: Bad) -> bool:
    """A schema judges YAML that can be read, as it stands."""
    try:
        return not yaml.read_tree(encoded(bad.yaml), "x")[1]
    except ConfigError:
        return False


READABLE = [bad for bad in BAD if is_readable(bad)]


def accepted(json_schema: dict[str, Any]) -> list[str]:
    """The places of the wrong YAMLs that the schema accepts."""
    validator = Draft202012Validator(json_schema)
    return sorted(bad.places for bad in READABLE if validator.is_valid(tree_of(bad.yaml)))


# JSON has one kind of number, so that 3.0 is a whole one, and none that is infinite.
NUMBERS = ["7:30: encoder.hidden", "7:31: encoder.dropout", "7:26: encoder.lr", "9:17: train.epochs"]
# A schema does not know the files on the disk, nor which texts are paths.
DATA_FILES = ["4:8: data.dev, 5:9: data.test", "4:27: data.test.b", "4:9: data.add.0"]
FILES = [*(["3:10: data.train"] * 6), *DATA_FILES, "6:35: embedding.vectors", "7:42: encoder.1.init"]
# Names that one component needs and another provides: the schema would have to list every combination.
WIRING = [
    *("6:16: encoder", "7:16: encoder", "7:10: encoder, 7:10: encoder", "6:26: embedding.1", "6:13: head"),
    *("8:13: head, 8:13: head", "8:7: head, 8:7: head", "5:35: inputs.a.embedding, 5:35: inputs.a.embedding"),
]
# A rule between two keys is code, and would stand in the schema a second time.
BETWEEN_KEYS = [
    *("8:19: train.patience", "8:19: train.schedule.use", "9:20: train.optimizer"),
    *("5:55: inputs.a.tokenizer.field", "8:16: head.1"),
]
# The language of version ranges is richer than a pattern says.
REQUIREMENTS = ["9:19: plugins.allow.0"]


def test_every_wrong_yaml_is_refused_unless_its_fault_is_one_that_no_schema_sees() -> None:
    assert len(READABLE) >= 110
    assert accepted(TOY_SCHEMA) == sorted(NUMBERS + FILES + WIRING + BETWEEN_KEYS + REQUIREMENTS)


WEAKENED = {
    "no bounds": ("exclusiveMinimum", "minimum", "maximum", "exclusiveMaximum"),
    "any key": ("additionalProperties",),
    "nothing required": ("required",),
    "any value": ("type",),
    "any choice": ("enum", "const"),
    "any text": ("pattern", "minLength"),
    "any number of heads": ("minItems", "maxItems"),
}


@pytest.mark.parametrize("words", WEAKENED.values(), ids=WEAKENED)
def test_a_schema_without_some_keywords_misses_more(words: tuple[str, ...]) -> None:
    assert len(accepted(without(TOY_SCHEMA, words))) > len(accepted(TOY_SCHEMA))


def without(node: Any, words: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [without(child, words) for child in node]
    if not isinstance(node, dict):
        return node
    return {key: without(value, words) for key, value in node.items() if key not in words}


# Good YAMLs


@pytest.mark.parametrize("text", GOODS)
def test_a_good_pipeline_is_accepted_as_written_and_with_every_default(tmp_path: Path, text: str) -> None:
    config = load_config(write(tmp_path, text), plugins=TOYS)
    Draft202012Validator(TOY_SCHEMA).validate(tree_of(text))
    Draft202012Validator(TOY_SCHEMA).validate(resolved(config))


NAMES = ["same", "words", "lookup", "mean", "adam", "x y", ""]
VALUES = [None, True, 0, 1, 3, -1, 0.5, *NAMES, [], [1, 2], {}, {"use": "mean"}]


def test_no_yaml_that_the_configuration_accepts_is_refused(tmp_path: Path) -> None:
    path, dice = write(tmp_path, GOOD), random.Random(1)
    count = 0
    for text in GOODS:
        for steps in keys(tree_of(text)):
            for value in dice.sample(VALUES, 4):
                tree = tree_of(text)
                put(tree, steps, copy.deepcopy(value))
                path.write_text(dump(tree), encoding="utf-8")
                if not problems(path, files=False):
                    count += 1
                    assert valid(tree), dump(tree)
    assert count > 60


def put(node: Any, steps: tuple[Any, ...], value: object) -> None:
    for step in steps[:-1]:
        node = node[step]
    node[steps[-1]] = value


# Descriptions


def described(node: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every property: its path, its schema, and whether it is required."""
    if isinstance(node, dict):
        for name, child in node.get("properties", {}).items():
            yield f"{where}/{name}", child, name in node.get("required", [])
        for key, child in node.items():
            yield from described(child, f"{where}/{key}")
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from described(child, f"{where}/{number}")


def test_every_key_has_a_description_and_every_setting_its_default() -> None:
    entries = list(described(SHIPPED))
    assert len(entries) > 100
    assert [path for path, entry, _ in entries if not entry.get("description")] == []
    optional = [(path, entry) for path, entry, is_required in entries if not is_required]
    without_default = {path.rpartition("/")[2] for path, entry in optional if "default" not in entry}
    # A stage's checkpoint is the tokenizer's.
    assert without_default <= {"use", "target_tokenizer", "checkpoint", *SHIPPED["properties"]}


def test_every_component_has_a_summary_and_its_options_with_their_defaults() -> None:
    offers = [offer for offer in Plugins().offers if offer.distribution == "seqpipe-nlp"]
    for offer in offers:
        entry = SHIPPED["$defs"][f"{offer.kind}.seqpipe-nlp.{offer.name}"]
        assert entry["description"]
        assert "Args" not in entry["description"]
        for name, field in options_model(offer.load()).model_fields.items():
            if not field.is_required():
                model = options_model(offer.load()).model_json_schema()["properties"][name]
                assert entry["properties"][field.alias or name]["default"] == model["default"]
    hidden = SHIPPED["$defs"]["encoder.seqpipe-nlp.lstm"]["properties"]["hidden"]
    description = "Number of units in each direction."
    assert hidden == {"description": description, "default": 128, "exclusiveMinimum": 0, "type": "integer"}


def test_there_is_a_branch_for_each_use_and_short_names_only_where_nothing_must_be_given() -> None:
    definitions = TOY_SCHEMA["$defs"]
    assert {f"head.toys.{name}" for name in ("tagger", "writer", "mute")} <= set(definitions)
    assert definitions["head.toys.tagger"]["properties"]["use"]["anyOf"][0] == {"enum": ["tagger"]}
    assert definitions["head"]["anyOf"][0]["anyOf"][0] == {"enum": ["mute", "tagger"]}
    assert definitions["head.toys.writer"]["required"] == ["use", "cells", "target_tokenizer"]
    assert "field" in definitions["tokenizer.toys.words"]["properties"]
    assert "field" not in definitions["target_tokenizer.toys.words"]["properties"]


# Components of others


class Inner(BaseModel):
    """An option with keys of its own."""

    size: int = 3


class Odd:
    """A component with options of every kind."""

    def __init__(
        self,
        *,
        inner: Inner = Inner(size=4),  # noqa: B008 (frozen in effect)
        limit: float = math.inf,
        copy: int = 1,
        kind: Literal["a", "b"] = "a",
        pair: tuple[int, float] = (1, 2.0),
        table: dict[Annotated[str, Field(pattern="^[a-z]+$")], int] = {},  # noqa: B006
    ): ...


class Indescribable:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: value)


class Opaque:
    def __init__(self, *, value: Indescribable | None = None): ...


class Asking:
    def __init__(self, vocabulary: Any): ...


def offering(*offers: tuple[str, str, str, type | str]) -> Plugins:
    plugins = Plugins([])
    plugins.offers += [*TOYS.offers, *(Offer(kind, name, owner, "2.0", cls) for kind, name, owner, cls in offers)]
    return plugins


def test_a_component_of_another_distribution_is_in_it_with_its_options(install: Install) -> None:
    code = """
from seqpipe.plugin import hookimpl

class Tabs:
    def __init__(self, *, column: int = 2): ...

@hookimpl
def register_readers():
    return {"tabs": Tabs}
"""
    install("acme-tabs", code)
    json_schema = pipeline_schema()
    good = {"data": {"reader": {"use": "tabs", "column": 3}, "train": "x"}, "tokenizer": "words", "head": "crf"}
    assert valid(good, json_schema)
    assert valid(good | {"data": {"reader": "acme-tabs/tabs", "train": "x"}}, json_schema)
    assert not valid(good | {"data": {"reader": {"use": "tabs", "column": "3"}, "train": "x"}}, json_schema)
    assert not valid(good, SHIPPED)


def test_an_unusable_component_is_left_out_and_named(install: Install) -> None:
    install("acme-broken", "1 / 0")
    messages: list[str] = []
    plugins = offering(("tokenizer", "opaque", "acme", Opaque), ("reader", "asking", "acme", Asking))
    plugins.broken = Plugins().broken
    json_schema = pipeline_schema(plugins, messages.append)
    for words in (
        "acme-broken 1.0 is broken: ZeroDivisionError",
        "encoder 'gone' of toys 1.0 cannot be loaded: ModuleNotFoundError",
        "encoder 'greedy' of toys 1.0: bad_yamls.Greedy: '**options' would accept",
        "reader 'asking' of acme 2.0: nothing is wired into a reader",
        "tokenizer 'opaque' of acme 2.0: JSON Schema cannot describe its options",
    ):
        assert sum(line.startswith(f"left out: {words}") for line in messages) == 1, messages
    assert not any(name.endswith((".gone", ".greedy", ".asking", ".opaque")) for name in json_schema["$defs"])
    Draft202012Validator.check_schema(json_schema)


def test_a_name_that_two_offer_must_be_written_in_full() -> None:
    json_schema = pipeline_schema(offering(("tokenizer", "words", "a.b-c", Odd)))
    good = tree_of(GOOD)
    assert valid(good)
    assert not valid(good, json_schema)
    for name in ("toys/words", "a.b-c/words"):
        assert valid(good | {"tokenizer": name}, json_schema)
        assert valid(good | {"tokenizer": {"use": name}}, json_schema)
    assert not valid(good | {"tokenizer": "aXb-c/words"}, json_schema)


def test_options_of_every_kind_are_described() -> None:
    json_schema = pipeline_schema(offering(("tokenizer", "odd one/é", "a.c", Odd)))
    entry = json_schema["$defs"]["tokenizer.a.c.odd one/é"]
    assert "default" not in entry["properties"]["limit"]  # JSON has no infinity
    assert entry["properties"]["copy"]["default"] == 1
    json.dumps(json_schema, allow_nan=False)
    good = tree_of(GOOD)

    def takes(**options: object) -> bool:
        return valid(good | {"tokenizer": {"use": "odd one/é", **options}}, json_schema)

    assert takes(inner={"size": 3}, limit=3, copy=2, kind="b", pair=[1, 2.5], table={"a": 1})
    tables: list[dict[str, object]] = [{"A": 1}, {"a": "b"}]
    wrong = {"limit": ["x"], "copy": [0.5], "kind": ["c"], "pair": [[1], [1, 2, 3]], "table": tables}
    for name, values in wrong.items():
        assert not any(takes(**{name: value}) for value in values), name
    assert not takes(inner={"size": "x"})
    assert valid(good | {"head": {"use": "writer", "cells": 1, "target_tokenizer": "odd one/é"}}, json_schema)


def test_without_plugins_there_is_nothing_to_choose() -> None:
    json_schema = pipeline_schema(Plugins([]))
    assert all(json_schema["$defs"][kind] == {"anyOf": [{"title": f"{kind} by name", "enum": []}]} for kind in KINDS)


# The command


def test_the_command_writes_a_file_and_names_what_it_leaves_out(install: Install, tmp_path: Path) -> None:
    install("acme-broken", "1 / 0")
    done = seqpipe("schema", "-o", tmp_path / "mine.json")
    assert (done.code, done.out) == (0, "")
    assert "left out: acme-broken 1.0 is broken: ZeroDivisionError" in done.err
    assert json.loads((tmp_path / "mine.json").read_text()) == pipeline_schema()
