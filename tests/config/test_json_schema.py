"""The schema accepts every good pipeline and refuses every wrong one whose fault a schema can see."""

from __future__ import annotations

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
from factory import seqpipe, write_conll
from jsonschema import Draft202012Validator
from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from seqpipe.config import dataflow, yaml
from seqpipe.config.json_schema import schema
from seqpipe.config.loader import load, resolved
from seqpipe.config.plugins import KINDS, Offer, Plugins
from seqpipe.config.signature import options_model
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, Problem
from seqpipe.init import init_yaml

PIPELINES = Path(__file__).parents[2] / "pipelines"
SHIPPED: dict[str, Any] = json.loads((PIPELINES / "schema.json").read_text(encoding="utf-8"))
TOY_SCHEMA = schema(TOYS)
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
    return yaml.parse(encoded(text), "x").data


def valid(value: object, json_schema: dict[str, Any] = TOY_SCHEMA) -> bool:
    return bool(Draft202012Validator(json_schema).is_valid(value))


# What is shipped


def test_the_shipped_schema_is_that_of_the_built_in_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    done = seqpipe("schema")
    cure = "write it anew: SEQPIPE_PLUGINS=off seqpipe schema -o pipelines/schema.json"
    assert (PIPELINES / "schema.json").read_text(encoding="utf-8") == done.out, cure


def test_it_is_a_schema_of_its_dialect() -> None:
    for json_schema in (TOY_SCHEMA, schema(Plugins([])), SHIPPED):
        Draft202012Validator.check_schema(json_schema)
    assert SHIPPED["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_pipeline_is_accepted_as_written_and_with_every_default(path: Path) -> None:
    Draft202012Validator(SHIPPED).validate(tree_of(path.read_bytes()))
    Draft202012Validator(SHIPPED).validate(resolved(load(path, runs=False)))


def test_a_yaml_of_init_is_accepted(tmp_path: Path) -> None:
    text = init_yaml(write_conll(tmp_path / "train.conll", 20, 1), tmp_path / "mine.yaml")
    Draft202012Validator(SHIPPED).validate(tree_of(text.read_bytes()))


# Wrong YAMLs: each of these functions is a class of faults that no schema sees


def numbers(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """JSON has one kind of number, so 3.0 is a whole one, and none that is infinite."""
    values = [(at(tree_of(bad.yaml), problem.key), problem.message) for problem in wrong]
    return all(
        isinstance(v, float) and (not math.isfinite(v) or f"; write {v:.0f}" in message) for v, message in values
    )


def files(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """A schema does not know the files on the disk, nor which texts are paths."""
    return not problems(write(folder, bad.yaml), files=False) or all("U+0000" in problem.message for problem in wrong)


def wired(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """Names that one component needs and another provides: the schema would have to list every combination."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataflow, "problems", lambda *stages: [])
        return not problems(write(folder, bad.yaml))


def between_keys(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """A rule between two keys is code, and would stand in the schema a second time: another key mends it."""
    path = write(folder, bad.yaml)
    mended = ("train.optimizer.momentum=0.9", "data.dev=dev.txt", "head.1.name=another", "inputs.a.field=y")
    return any(not problems(path, override) for override in mended)


def requirements(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """The language of version ranges is richer than a pattern says."""
    texts = [at(tree_of(bad.yaml), problem.key) for problem in wrong if problem.key.startswith("plugins.allow.")]
    return len(texts) == len(wrong) and not any(map(is_requirement, texts))


UNSEEN = (numbers, files, wired, between_keys, requirements)


def at(value: Any, key: str) -> Any:
    """The value of a key; None if there is no such key."""
    for step in key.split("."):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def is_requirement(value: object) -> bool:
    try:
        Requirement(str(value))
    except InvalidRequirement:
        return False
    return True


def is_readable(bad: Bad) -> bool:
    """A schema judges YAML that can be read, as it stands."""
    try:
        return not yaml.read(encoded(bad.yaml), "x")[1]
    except ConfigError:
        return False


READABLE = [bad for bad in BAD if is_readable(bad)]


def classes(folder: Path, bad: Bad) -> list[str]:
    """The classes of unseen faults that this one belongs to."""
    wrong = problems(write(folder, bad.yaml))
    return [check.__name__ for check in UNSEEN if check(folder, bad, wrong)]


def accepted(json_schema: dict[str, Any]) -> list[Bad]:
    """The wrong YAMLs that the schema accepts."""
    validator = Draft202012Validator(json_schema)
    return [bad for bad in READABLE if validator.is_valid(tree_of(bad.yaml))]


def test_a_wrong_yaml_is_refused_exactly_if_its_fault_is_one_that_a_schema_sees(tmp_path: Path) -> None:
    assert len(READABLE) >= 110
    missed = accepted(TOY_SCHEMA)
    assert len(missed) <= 30
    unseen = {bad.yaml: classes(tmp_path, bad) for bad in missed}
    assert [text for text, names in unseen.items() if len(names) != 1] == []
    assert {name for (name,) in unseen.values()} >= {"numbers", "files", "wired", "between_keys"}
    # The schema requires or forbids the key, so that neither fault is left to the wiring.
    refused = {bad.words for bad in READABLE if bad not in missed}
    assert {"add `target_tokenizer: {use: NAME}` to the head", "delete `target_tokenizer`"} <= refused


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
def test_a_schema_without_some_keywords_misses_more(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert any(classes(tmp_path, bad) == [] for bad in accepted(without(TOY_SCHEMA, words)))


def without(node: Any, words: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [without(child, words) for child in node]
    if not isinstance(node, dict):
        return node
    return {key: without(value, words) for key, value in node.items() if key not in words}


# Good YAMLs


@pytest.mark.parametrize("text", GOODS)
def test_a_good_pipeline_is_accepted_as_written_and_with_every_default(tmp_path: Path, text: str) -> None:
    config = load(write(tmp_path, text), plugins=TOYS)
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
    without_default = {
        path.rpartition("/")[2] for path, entry, needed in entries if not needed and "default" not in entry
    }
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
    assert SHIPPED["$defs"]["encoder.seqpipe-nlp.lstm"]["properties"]["hidden"] == {
        "description": "Number of units in each direction.",
        "default": 128,
        "exclusiveMinimum": 0,
        "type": "integer",
    }


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
    json_schema = schema()
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
    json_schema = schema(plugins, messages.append)
    for words in (
        "acme-broken 1.0 is broken: ZeroDivisionError",
        "encoder 'gone' of toys 1.0 cannot be loaded: ModuleNotFoundError",
        "encoder 'greedy' of toys 1.0: bad_yamls.Greedy: '**options' would accept",
        "reader 'asking' of acme 2.0: nothing is wired into it",
        "tokenizer 'opaque' of acme 2.0: JSON Schema cannot describe its options",
    ):
        assert sum(line.startswith(f"left out: {words}") for line in messages) == 1, messages
    assert not any(name.endswith((".gone", ".greedy", ".asking", ".opaque")) for name in json_schema["$defs"])
    Draft202012Validator.check_schema(json_schema)


def test_a_name_that_two_offer_must_be_written_in_full() -> None:
    json_schema = schema(offering(("tokenizer", "words", "a.b-c", Odd)))
    good = tree_of(GOOD)
    assert valid(good)
    assert not valid(good, json_schema)
    for name in ("toys/words", "a.b-c/words"):
        assert valid(good | {"tokenizer": name}, json_schema)
        assert valid(good | {"tokenizer": {"use": name}}, json_schema)
    assert not valid(good | {"tokenizer": "aXb-c/words"}, json_schema)


def test_options_of_every_kind_are_described() -> None:
    json_schema = schema(offering(("tokenizer", "odd one/é", "a.c", Odd)))
    entry = json_schema["$defs"]["tokenizer.a.c.odd one/é"]
    assert "default" not in entry["properties"]["limit"]  # JSON has no infinity
    assert entry["properties"]["copy"]["default"] == 1
    json.dumps(json_schema, allow_nan=False)
    good = tree_of(GOOD)

    def takes(**options: object) -> bool:
        return valid(good | {"tokenizer": {"use": "odd one/é", **options}}, json_schema)

    assert takes(inner={"size": 3}, limit=3, copy=2, kind="b", pair=[1, 2.5], table={"a": 1})
    tables: list[dict[str, object]] = [{"A": 1}, {"a": "b"}]
    for name, values in {
        "limit": ["x"],
        "copy": [0.5],
        "kind": ["c"],
        "pair": [[1], [1, 2, 3]],
        "table": tables,
    }.items():
        assert not any(takes(**{name: value}) for value in values), name
    assert not takes(inner={"size": "x"})
    assert valid(good | {"head": {"use": "writer", "cells": 1, "target_tokenizer": "odd one/é"}}, json_schema)


def test_without_plugins_there_is_nothing_to_choose() -> None:
    json_schema = schema(Plugins([]))
    assert all(json_schema["$defs"][kind] == {"anyOf": [{"title": f"{kind} by name", "enum": []}]} for kind in KINDS)


# The command


def test_the_command_writes_a_file_and_names_what_it_leaves_out(install: Install, tmp_path: Path) -> None:
    install("acme-broken", "1 / 0")
    done = seqpipe("schema", "-o", tmp_path / "mine.json")
    assert (done.code, done.out) == (0, "")
    assert "left out: acme-broken 1.0 is broken: ZeroDivisionError" in done.err
    assert json.loads((tmp_path / "mine.json").read_text()) == schema()
