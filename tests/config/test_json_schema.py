"""The schema takes every good pipeline and refuses every wrong one whose fault a schema can see."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from bad_yamls import BAD, GOOD, Bad, data, stage, toys
from conftest import Install
from factory import seqpipe, write_conll
from jsonschema import Draft202012Validator
from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from seqpipe.config import dataflow as wiring
from seqpipe.config import yaml
from seqpipe.config.json_schema import schema
from seqpipe.config.loader import load, resolved
from seqpipe.config.plugins import KINDS, Offer, Plugins
from seqpipe.config.signature import options_model
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, Problem
from seqpipe.init import init_yaml

PIPELINES = Path(__file__).parents[2] / "pipelines"
TOYS = toys()
TOY_SCHEMA = schema(TOYS)

FULL = """\
name: full
data:
  reader: {use: toys/lines, separator: '|', header: true}
  train: train.txt
  dev:
  test: {a: train.txt, b: dev.txt}
  misaligned: widen
tokenizer: {use: words, pattern: '\\\\w+', field: body}
embedding:
  - {use: lookup, dim: 3, vectors: dev.txt, scale: 1, lr: 1e-5}
  - {use: chars, widths: [1, 2]}
encoder: [mean, {use: toys/flat, freeze: true}, toys/mean]
head: [{use: writer, cells: 2, target: summary, weight: 2, target_tokenizer: {use: words, min_count: 7}}]
train: {optimizer: {use: sgd, momentum: 0.9, nesterov: true}, schedule: linear, clip: null, average: 0.999}
export:
plugins: {allow: [toys>=1], versions: {toys: '1.0'}}
"""
GOODS = [
    GOOD,
    FULL,
    stage(embedding="", encoder="from-ids"),
    stage(embedding="[lookup, toys/chars]", encoder="[]", train="{optimizer: {lr: 0.1}, schedule: {use: plateau}}"),
    stage(head="{use: writer, cells: 1, target_tokenizer: same}", train="{optimizer: adam, schedule: null}"),
    stage(head="[{use: tagger, scheme: none, target_tokenizer: null}]", encoder="{use: mean, lr: null}"),
    data("reader: {use: lines}", "train: train.txt", "test: dev.txt") + "name:\ntrain:\n",
]


def valid(value: object, json_schema: dict[str, Any] = TOY_SCHEMA) -> bool:
    return bool(Draft202012Validator(json_schema).is_valid(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("x\n")
    return tmp_path


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "pipeline.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


def problems(path: Path, *overrides: str, files: bool = True) -> list[Problem]:
    try:
        load(path, overrides, TOYS, files, runs=files)
    except ConfigError as error:
        return error.problems
    return []


# What is shipped


def test_the_shipped_schema_is_that_of_the_built_in_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    done = seqpipe("schema")
    cure = "write it anew: SEQPIPE_PLUGINS=off seqpipe schema -o pipelines/schema.json"
    assert (PIPELINES / "schema.json").read_text(encoding="utf-8") == done.out, cure


def test_it_is_a_schema_of_its_dialect() -> None:
    for json_schema in (TOY_SCHEMA, schema(Plugins([])), shipped()):
        Draft202012Validator.check_schema(json_schema)
    assert shipped()["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


def shipped() -> dict[str, Any]:
    json_schema: dict[str, Any] = json.loads((PIPELINES / "schema.json").read_text(encoding="utf-8"))
    return json_schema


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_pipeline_is_taken_as_written_and_with_every_default(path: Path) -> None:
    Draft202012Validator(shipped()).validate(yaml.parse(path.read_bytes(), str(path)).data)
    Draft202012Validator(shipped()).validate(resolved(load(path, runs=False)))


def test_what_init_writes_is_taken(tmp_path: Path) -> None:
    text = init_yaml(write_conll(tmp_path / "train.conll", 20, 1), tmp_path / "mine.yaml")
    Draft202012Validator(shipped()).validate(yaml.parse(text.read_bytes(), "mine.yaml").data)


# What is wrong


def numbers(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """JSON has one kind of number, so 3.0 is a whole one, and none that is infinite."""
    values = [(at(yaml.parse(encoded(bad), "x").data, problem.key), problem.message) for problem in wrong]
    return all(
        isinstance(v, float) and (not math.isfinite(v) or f"; write {v:.0f}" in message) for v, message in values
    )


def files(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """What there is on the disk, and what may be a path at all, a schema does not know."""
    return not problems(write(folder, bad.yaml), files=False) or all("U+0000" in problem.message for problem in wrong)


def wired(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """Names that one component needs and another gives: the schema would have to list every combination."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "problems", lambda *stages: [])
        return not problems(write(folder, bad.yaml))


def between_keys(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """A rule between two keys is code, and would stand in the schema a second time: another key mends it."""
    path = write(folder, bad.yaml)
    mended = ("train.optimizer.momentum=0.9", "data.dev=dev.txt", "head.1.name=another", "inputs.a.field=y")
    return any(not problems(path, override) for override in mended)


def requirements(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """The language of version ranges is richer than a pattern says."""
    tree = yaml.parse(encoded(bad), "x").data
    return all(problem.key.startswith("plugins.allow.") and no_requirement(at(tree, problem.key)) for problem in wrong)


def unparsed(folder: Path, bad: Bad, wrong: list[Problem]) -> bool:
    """A schema is asked once the YAML is read, and this one is not, or not as it stands."""
    try:
        return bool(yaml.read(encoded(bad), "x")[1])
    except ConfigError:
        return True


UNSEEN: tuple[Callable[[Path, Bad, list[Problem]], bool], ...] = (
    numbers,
    files,
    wired,
    between_keys,
    requirements,
    unparsed,
)


def encoded(bad: Bad) -> bytes:
    return bad.yaml if isinstance(bad.yaml, bytes) else bad.yaml.encode("utf-8", "surrogatepass")


def at(value: Any, key: str) -> Any:
    """The value of a key; None if there is no such key."""
    for step in key.split("."):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def no_requirement(value: object) -> bool:
    try:
        Requirement(str(value))
    except InvalidRequirement:
        return True
    return False


def why_unseen(folder: Path, bad: Bad) -> list[str]:
    """The classes of faults that this one is of, among those that no schema sees."""
    if unparsed(folder, bad, []):
        return ["unparsed"]
    wrong = problems(write(folder, bad.yaml))
    return [check.__name__ for check in UNSEEN if check is not unparsed and check(folder, bad, wrong)]


def missed(json_schema: dict[str, Any]) -> list[Bad]:
    """The wrong YAMLs that can be read and that the schema takes."""
    validator = Draft202012Validator(json_schema)
    readable = [bad for bad in BAD if not unparsed(Path(), bad, [])]
    return [bad for bad in readable if validator.is_valid(yaml.parse(encoded(bad), "x").data)]


def test_every_wrong_yaml_is_refused_unless_its_fault_is_one_that_no_schema_sees(folder: Path) -> None:
    classes = {bad.yaml: why_unseen(folder, bad) for bad in missed(TOY_SCHEMA)}
    assert [text for text, names in classes.items() if len(names) != 1] == []
    assert {name for names in classes.values() for name in names} >= {"numbers", "files", "wired", "between_keys"}


def test_most_wrong_yamls_that_can_be_read_are_refused() -> None:
    readable = [bad for bad in BAD if not unparsed(Path(), bad, [])]
    assert len(readable) >= 110
    assert len(missed(TOY_SCHEMA)) <= 30


def test_no_fault_that_the_schema_sees_is_called_unseen_but_a_wiring_that_stands_in_one_place(folder: Path) -> None:
    unseen = missed(TOY_SCHEMA)
    readable = [bad for bad in BAD if not unparsed(Path(), bad, [])]
    unseen_by_words = {bad.words: why_unseen(folder, bad) for bad in readable if bad not in unseen}
    assert {words: classes for words, classes in unseen_by_words.items() if classes} == {
        "add `target_tokenizer: {use: NAME}` to the head": ["wired"],
        "delete `target_tokenizer`": ["wired"],
    }


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
def test_a_schema_that_says_less_misses_more(folder: Path, words: tuple[str, ...]) -> None:
    weak = without(TOY_SCHEMA, words)
    assert any(why_unseen(folder, bad) == [] for bad in missed(weak))


def without(node: Any, words: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [without(child, words) for child in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if key not in words}
    return {key: without(value, words) for key, value in kept.items()}


# What is right


@pytest.mark.parametrize("text", GOODS)
def test_a_good_pipeline_is_taken_as_written_and_with_every_default(folder: Path, text: str) -> None:
    config = load(write(folder, text), plugins=TOYS)
    Draft202012Validator(TOY_SCHEMA).validate(yaml.parse(text.encode(), "x").data)
    Draft202012Validator(TOY_SCHEMA).validate(resolved(config))


VALUES = (
    None,
    True,
    0,
    1,
    3,
    -1,
    0.5,
    "same",
    "words",
    "lookup",
    "mean",
    "adam",
    "x y",
    "",
    [],
    [1, 2],
    {},
    {"use": "mean"},
)


def test_nothing_that_the_configuration_takes_is_refused(folder: Path) -> None:
    path, dice = folder / "pipeline.yaml", random.Random(1)
    places = [(text, where) for text in GOODS for where in keys(yaml.parse(text.encode(), "x").data)]
    taken = 0
    for text, where in places:
        for value in dice.sample(VALUES, 7):
            tree = copy.deepcopy(yaml.parse(text.encode(), "x").data)
            put(tree, where, copy.deepcopy(value))
            path.write_text(dump(tree), encoding="utf-8")
            if not problems(path, files=False):
                taken += 1
                assert valid(tree), dump(tree)
    assert taken > 100


def keys(node: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in inside:
        yield (*before, key)
        yield from keys(child, (*before, key))


def put(node: Any, where: tuple[Any, ...], value: object) -> None:
    for step in where[:-1]:
        node = node[step]
    node[where[-1]] = value


# What it tells


def described(node: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every property: where it stands, what is said of it, and whether it must be given."""
    if isinstance(node, dict):
        for name, child in node.get("properties", {}).items():
            yield f"{where}/{name}", child, name in node.get("required", [])
        for key, child in node.items():
            yield from described(child, f"{where}/{key}")
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from described(child, f"{where}/{number}")


def test_every_key_has_a_description_and_every_setting_its_default() -> None:
    entries = list(described(shipped()))
    assert len(entries) > 100
    assert [where for where, entry, _ in entries if not entry.get("description")] == []
    frame = {
        "use",
        "target_tokenizer",
        "checkpoint",
        *shipped()["properties"],
    }  # a stage's checkpoint is the tokenizer's
    silent = [where for where, entry, needed in entries if not needed and "default" not in entry]
    assert {where.rpartition("/")[2] for where in silent} <= frame


def test_every_component_has_a_summary_and_its_options_with_their_defaults() -> None:
    offers = [offer for offer in Plugins().offers if offer.distribution == "seqpipe-nlp"]
    for offer in offers:
        entry = shipped()["$defs"][f"{offer.kind}.seqpipe-nlp.{offer.name}"]
        assert entry["description"]
        assert "Args" not in entry["description"]
        for name, field in options_model(offer.load()).model_fields.items():
            if not field.is_required():
                model = options_model(offer.load()).model_json_schema()["properties"][name]
                assert entry["properties"][field.alias or name]["default"] == model["default"]
    assert shipped()["$defs"]["encoder.seqpipe-nlp.lstm"]["properties"]["hidden"] == {
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


# Strangers


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


class Unsayable:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: value)


class Opaque:
    def __init__(self, *, what: Unsayable | None = None): ...


class Asking:
    def __init__(self, vocabulary: Any): ...


def offering(*offers: tuple[str, str, str, type | str]) -> Plugins:
    plugins = Plugins([])
    plugins.offers += [*TOYS.offers, *(Offer(kind, name, owner, "2.0", cls) for kind, name, owner, cls in offers)]
    return plugins


def test_a_stranger_of_the_right_form_is_in_it_with_its_options(install: Install) -> None:
    code = """
from seqpipe.plugin import hookimpl

class Tabs:
    \"\"\"Reads lines.\"\"\"
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
    assert not valid(good, shipped())


def test_what_cannot_be_used_is_left_out_and_named(install: Install) -> None:
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
    good = yaml.parse(GOOD.encode(), "x").data
    assert valid(good)
    assert not valid(good, json_schema)
    for name in ("toys/words", "a.b-c/words"):
        assert valid(good | {"tokenizer": name}, json_schema)
        assert valid(good | {"tokenizer": {"use": name}}, json_schema)
    assert not valid(good | {"tokenizer": "aXb-c/words"}, json_schema)


def test_options_of_every_kind_are_told() -> None:
    json_schema = schema(offering(("tokenizer", "odd one/é", "a.c", Odd)))
    entry = json_schema["$defs"]["tokenizer.a.c.odd one/é"]
    assert "default" not in entry["properties"]["limit"]  # JSON has no infinity
    assert entry["properties"]["copy"]["default"] == 1
    json.dumps(json_schema, allow_nan=False)
    good = yaml.parse(GOOD.encode(), "x").data

    def takes(**options: object) -> bool:
        return valid(good | {"tokenizer": {"use": "odd one/é", **options}}, json_schema)

    assert takes(inner={"size": 3}, limit=3, copy=2, kind="b", pair=[1, 2.5], table={"a": 1})
    for wrong in (
        {"inner": {"size": "x"}},
        {"limit": "x"},
        {"copy": 0.5},
        {"kind": "c"},
        {"pair": [1]},
        {"pair": [1, 2, 3]},
        {"table": {"A": 1}},
        {"table": {"a": "b"}},
    ):
        assert not takes(**wrong), wrong
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
