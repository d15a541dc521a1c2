"""Generate the reference pages from settings, components and commands, and the licences from installed packages.

`python docs/generate.py` writes docs/reference/yaml.md, commands.md and contract.md, a page for each component in
docs/reference/components and their list in mkdocs.yml, the licences in requirements/README.md and the measured tables
of docs/course between their markers, the number of pipelines in the pages that state it, and the keys for tab
completion in seqpipe/commands/keys.json; a test fails where a file differs.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, Field

from seqpipe import errors, nn, plugin
from seqpipe.answers.registry import TASKS
from seqpipe.commands.app import app
from seqpipe.commands.help import command_examples
from seqpipe.config.contract import DECIDED, TARGETS, decode_options, has_member, member, stated_shapes
from seqpipe.config.json_schema import pipeline_schema as json_schema
from seqpipe.config.members import ABSENT, MEMBERS, REQUIRED, SHAPES, Member
from seqpipe.config.plugins import BUILTIN, KINDS, Plugins
from seqpipe.config.schema import (
    OF_A_SOURCE,
    TOP,
    AdamW,
    Card,
    Constant,
    DataKeys,
    Export,
    NeedKeys,
    PluginKeys,
    SelfTraining,
    Teacher,
    Train,
)
from seqpipe.config.signature import (
    COMMON_KEYS,
    CommonKeys,
    DecodeOption,
    describe_type,
    method_names,
    option_fields,
    option_rows,
    optional_names,
    options_model,
)
from seqpipe.config.yaml import format_value, plain
from seqpipe.features.kinds.registry import feature_kinds

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import report

ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    "reader": "`data.reader`",
    "tokenizer": "`tokenizer` and `target_tokenizer`",
    "embedding": "`embedding`; the vectors of a list are concatenated",
    "encoder": "`encoder`; a list is applied in order",
    "head": "`head`",
}
OTHER_KEYS = {
    "use": "The component: a name, or `distribution/name`.",
    "target_tokenizer": "The tokenizer of the target text: `same`, or `{use: NAME}`; for heads that generate text.",
}
WITH_FIGURES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/course/*.md"))
WITH_FIGURES += ["docs/scale/size.md", "docs/tasks/languages.md"]
WITH_PIPELINES = ["README.md", "docs/examples.md", "docs/index.md"]
COMPONENT_KEYS = {"data", "tokenizer", "embedding", "encoder", "head"}


def yaml_page() -> str:
    """Every key that a pipeline's YAML may have."""
    lines = [
        "# YAML reference",
        "",
        "Every key of a pipeline, generated from the signatures that validate it. Paths are relative to the YAML's",
        "folder; a bare name is short for `{use: NAME}`. `seqpipe schema` prints the same as a JSON Schema, with the",
        "components of every installed plugin, for editors.",
        "",
        "## Top",
        "",
        *_table(("key", "meaning"), [(f"[`{key}`](#{_anchor(key)})", text) for key, text in TOP.items()]),
        "",
        "## data",
        "",
        *_table(_HEAD, [("`reader`", "a component", "required", "Reads the records of a file."), *_keys(DataKeys)]),
        "",
        "## needs",
        "",
        "A list; each entry is a folder that another key names, and where it comes from if it is not there.",
        "",
        *_table(_HEAD, _keys(NeedKeys)),
        "",
        "## inputs",
        "",
        "Replaces `tokenizer`, `embedding` and `encoder` by a mapping from source names to the keys of each source.",
        "",
        *_table(("key", "meaning"), [(f"`{key}`", text) for key, text in OF_A_SOURCE.items()]),
        "",
        "## Common keys",
        "",
        "Keys beside `use`. They mean the same for every component, and no component has an option with such a name.",
        "",
        *_table(("key", "type", "default", "beside the `use` of", "meaning"), _frame()),
        "",
        "## train",
        "",
        *_table(_HEAD, _keys(Train)),
    ]
    for key, default in (("optimizer", AdamW), ("schedule", Constant)):
        field = Train.model_fields[key]
        lines += ["", f"### train.{key}", "", f"Selected by `use`; the default is `{default().use}`."]
        for choice in _members(field.annotation):
            name = choice.model_fields["use"].default
            lines += ["", f"**`{name}`**: {_first(choice)}", ""]
            lines += _table(_HEAD, [row for row in _keys(choice) if row[0] != "`use`"])
    lines += ["", "### train.teacher", "", "A path alone is that of the teacher.", "", *_table(_HEAD, _keys(Teacher))]
    lines += ["", "### train.self_training", "", _first(SelfTraining), "", *_table(_HEAD, _keys(SelfTraining))]
    lines += ["", "## export", "", *_table(_HEAD, _keys(Export))]
    lines += ["", "## card", "", *_table(_HEAD, _keys(Card))]
    lines += ["", "## plugins", "", *_table(_HEAD, _keys(PluginKeys))]
    lines += [
        "",
        "## Components",
        "",
        "The built-in components; each page has the equations, the source, the options and an example of one.",
        "`seqpipe plugins` lists all that are installed, `seqpipe plugins show gru` prints the options of one.",
    ]
    for kind in KINDS:
        rows = []
        for offer in _built_in(kind):
            cls = offer.load()
            page = _component_page(kind, offer.name).removeprefix("docs/reference/")
            rows.append((f"[`{offer.name}`]({page})", _meaning(offer.name, cls, cls.__module__)))
        lines += ["", f"## {kind.capitalize()}s", "", f"Place: {PLACES[kind]}.", "", *_table((kind, "meaning"), rows)]
    return "\n".join(lines) + "\n"


_HEAD = ("key", "type", "default", "meaning")


@cache
def _built_in(kind: str) -> list[Any]:
    return [offer for offer in Plugins().offers if offer.kind == kind and offer.distribution == BUILTIN]


def _of_callers(option: DecodeOption) -> str:
    """The type of a decode option's value: a number within its bounds, or null for what becomes a tensor."""
    accepts = option.type.accepts
    return describe_type(Annotated[accepts[-1], Field(**option.bounds)]) if accepts else "null"


def _frame() -> Iterator[tuple[str, ...]]:
    for key in dict.fromkeys(key for keys in COMMON_KEYS.values() for key in keys):
        kinds = ", ".join(kind for kind, keys in COMMON_KEYS.items() if key in keys)
        if key in CommonKeys.model_fields:
            name, kind, default, meaning = next(row for row in _keys(CommonKeys) if row[0] == f"`{key}`")
            yield name, kind, default, kinds, meaning
        else:
            default = "required" if key == "use" else "`null`"
            yield f"`{key}`", "text" if key == "use" else "a component", default, kinds, OTHER_KEYS[key]


def _keys(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        default = info.default
        if isinstance(default, BaseModel):
            type_text, default = f"[see below](#train{name})", getattr(default, "use", "")
        else:
            type_text = describe_type(kind, info.metadata)
            default = "required" if info.is_required() else format_value(plain(default))
        rows.append((f"`{name}`", type_text, _default(default), info.description or ""))
    return rows


def _default(value: str) -> str:
    return value if value == "required" else f"`{value}`".replace("\\\\", "\\")


def _members(annotation: Any) -> Sequence[type[BaseModel]]:
    return typing_args(annotation)


def typing_args(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, with or without Annotated around it."""
    while getattr(annotation, "__metadata__", None) is not None:
        annotation = annotation.__origin__
    return tuple(annotation.__args__)


def _first(cls: type) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def _prose(cls: type) -> Iterator[str]:
    """The paragraphs of a class's docstring before its Args, an empty line after each."""
    for paragraph in inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:")[0].strip().split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def _anchor(key: str) -> str:
    places = {"tokenizer": "tokenizers", "embedding": "embeddings", "encoder": "encoders", "head": "heads"}
    return "top" if key == "name" else places.get(key, key)


# A page for each component


def _component_page(kind: str, name: str) -> str:
    return f"docs/reference/components/{kind}s/{name}.md"


def component_page(kind: str, name: str) -> str:
    """One component: its docstring, an example, its options, and what it reads and returns."""
    cls = next(offer for offer in _built_in(kind) if offer.name == name).load()
    example, source = component_example(kind, name)
    keys = ", ".join(f"`{key}`" for key in COMMON_KEYS[kind] if key != "use")
    also = f" All {kind}s also have the [common keys](../../yaml.md#common-keys) {keys}." if keys else ""
    rows = [(f"`{row.option}`", row.type, _default(row.default), row.help) for row in option_rows(cls)]
    head = ("option", *_HEAD[1:])
    lines = [
        f"# {kind.capitalize()}: {name}",
        "",
        *_prose(cls),
        "## Example",
        "",
        f"{source or 'The shortest form'}:",
        "",
        "```yaml",
        *example.splitlines(),
        "```",
        "",
        "## Options",
        "",
        f"{'Keys beside `use`.' if rows else 'No options.'}{also}",
    ]
    if rows:
        lines += ["", *_table(head, rows)]
    if options := decode_options(cls):
        decode_rows = [
            (
                f"`{option}`",
                _of_callers(value),
                f"`{format_value(value.default)}`",
                value.manifest().get("description", ""),
            )
            for option, value in options.items()
        ]
        lines += ["", "## Decode options", "", "Chosen at each call.", "", *_table(head, decode_rows)]
    lines += ["", "## Inputs and outputs", "", *_inputs_and_outputs(kind, cls)]
    return "\n".join(lines) + "\n"


def _inputs_and_outputs(kind: str, cls: type) -> Iterator[str]:
    if kind == "reader":
        fields = [f"`{field}`" for field in member(cls, "fields") or () if field not in _FIELDS_OF_MESSAGES]
        yield f"- Reads: a {'folder' if member(cls, 'folder') else 'file'} of `data`."
        yield f"- Returns: records with the fields that the data has, such as {', '.join(fields)}."
    elif kind == "tokenizer":
        yield "- Reads: the texts of the record field that `field` names."
        yield f"- Returns: {_shaped('ids')}, {_shaped('mask')}, and the vocabulary."
    elif kind == "head":
        answer = member(cls, "answer")
        by_options = ""
        if callable(answer):
            defaults = {option: info.default for option, info in option_fields(options_model(cls)).items()}
            answer, by_options = answer(defaults), " with the default options"
        targets = {name for name in method_names(cls.loss)[0] if name in TASKS[answer].targets}
        yield f"- Reads: {_arguments(cls, ['loss', 'decide'], without=targets)}."
        yield f"- Returns: answers of the [kind](../../../plugins/answer-kinds.md) `{answer}`{by_options}."
        if targets:
            yield f"- Targets in training: {', '.join(map(_shaped, sorted(targets)))}."
    else:
        yield f"- Reads: {_arguments(cls, ['forward'])}."
        yield f"- Returns: {', '.join(_shaped(name, stated_shapes(cls)) for name in member(cls, 'returns'))}."


_FIELDS_OF_MESSAGES = ("where", "record_continues")  # which no YAML names


def _arguments(cls: type, methods: Sequence[str], without: Container[str] = ()) -> str:
    """The names that the methods of a stage ask for, each with its shape, in the order of the methods."""
    functions = [getattr(cls, name) for name in methods if has_member(cls, name)]
    names = dict.fromkeys(name for function in functions for name in method_names(function)[0])
    optional = set().union(*map(optional_names, functions))
    return ", ".join(
        _shaped(name) + (" (optional)" if name in optional else "") for name in names if name not in without
    )


def _shaped(name: str, shapes: Mapping[str, tuple[str, str]] = SHAPES) -> str:
    """A name that passes between stages, with its shape and dtype where they are known."""
    shape, dtype = shapes.get(name) or SHAPES.get(name, ("", ""))
    array = TARGETS.get(name) or DECIDED.get(name)
    if not shape and array:
        shape, dtype = array.shape, array.dtype
    return f"`{name}` {shape} {dtype}".rstrip()


PLACEHOLDERS = {"checkpoint": "my-model", "path": "my/words.vec", "form": "doccano"}  # of options without a default
GITHUB = "https://github.com/seqpipe/seqpipe/blob/main"


@cache
def _examples() -> Mapping[tuple[str, str], tuple[str, str]]:
    """The best use of each component in the pipelines, else in a page of the documentation, and where it stands."""
    uses: dict[tuple[str, str], list[tuple[Any, ...]]] = {}

    def collect(node: Any, rank: int, source: str) -> None:
        if isinstance(node, list):
            for entry in node:
                collect(entry, rank, source)
        for key, value in node.items() if isinstance(node, dict) else ():
            kind = key.removeprefix("target_")
            if kind in KINDS:
                entries = value if isinstance(value, list) else [value]
                names = [entry.get("use") if isinstance(entry, dict) else entry for entry in entries]
                text = _example_text(key, value)
                is_partial = "init:" in text or "…" in text
                for entry, name in zip(entries, names, strict=True):
                    bare = not isinstance(entry, dict) or len(entry) == 1
                    use = (is_partial, rank, key != kind, len(entries) > 1, bare, len(text), text, source)
                    uses.setdefault((kind, str(name)), []).append(use)
            collect(value, rank, source)

    for path in sorted(ROOT.glob("pipelines/*.yaml")):
        name = path.relative_to(ROOT).as_posix()
        collect(yaml.safe_load(path.read_text(encoding="utf-8")), 0, f"From [`{name}`]({GITHUB}/{name})")
    docs = ROOT / "docs"
    for path in sorted(path for path in docs.rglob("*.md") if "reference" not in path.relative_to(docs).parts):
        text = path.read_text(encoding="utf-8")
        title, page = text.partition("\n")[0].removeprefix("# "), path.relative_to(docs).as_posix()
        for block in re.findall(r"^```yaml[^\n]*\n(.*?)^```$", text, re.M | re.S):
            with contextlib.suppress(yaml.YAMLError):
                collect(yaml.safe_load(block), 1, f"From [{title}](../../../{page})")
    return {component: min(ranked)[-2:] for component, ranked in uses.items()}


def _example_text(key: str, value: Any) -> str:
    """A key of a YAML as it is written, each entry of a list on a line."""

    def flow(value: Any) -> str:
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
        return text.removesuffix("\n").removesuffix("\n...")

    if isinstance(value, list) and len(value) > 1:
        text = "\n".join([f"{key}:", *(f"  - {flow(entry)}" for entry in value)])
    else:
        text = f"{key}: {flow(value)}"
    return text if key != "reader" else f"data:\n  {text}"


def component_example(kind: str, name: str) -> tuple[str, str]:
    """A YAML with a component, and its source; the shortest valid one, and "", if no pipeline and no page has it."""
    if (kind, name) in _examples():
        return _examples()[kind, name]
    cls = next(offer for offer in _built_in(kind) if offer.name == name).load()
    required = [row.option for row in option_rows(cls) if row.default == "required"]
    return _example_text(kind, {"use": name, **{option: PLACEHOLDERS[option] for option in required}}), ""


def navigation() -> str:
    """The text of mkdocs.yml, with the pages of the components between their markers."""
    begin, end = "      # components, written by docs/generate.py\n", "      # end of components\n"
    before, _, rest = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError("mkdocs.yml: the markers of the list of components are missing")
    lines = ["      - Components:"]
    for kind in KINDS:
        lines.append(f"          - {kind.capitalize()}s:")
        pages = [(offer.name, _component_page(kind, offer.name)) for offer in _built_in(kind)]
        lines += [f"              - {name}: {page.removeprefix('docs/')}" for name, page in pages]
    return before + begin + "\n".join(lines) + "\n" + end + after


# Commands


def commands_page() -> str:
    """Every command with its arguments and options, and what exit codes mean."""
    lines = [
        "# Commands and exit codes",
        "",
        "Generated from the commands. Progress and messages go to standard error, answers and JSON to standard output.",
        "`seqpipe --debug …` shows tracebacks, `seqpipe --version` the version.",
        "",
        "Overrides follow the file name (`train.epochs=3`) or `--set`. Any key of the YAML can be overridden, an entry",
        "of a list by its index: `embedding.0.dim=64`.",
    ]
    for path, command in _commands(typer.main.get_command(app), "seqpipe"):
        arguments = [_row(p) for p in command.params if p.param_type_name == "argument"]
        options = [_row(p) for p in command.params if p.param_type_name == "option" and p.name != "help"]
        usage = " ".join([path, *(a[0] for a in arguments), *(["[options]"] if options else [])])
        lines += ["", f"## {path}", "", f"`{usage.replace('`', '')}`", "", " ".join((command.help or "").split())]
        if arguments or options:
            lines += ["", *_table(("argument or option", "meaning"), [*arguments, *options])]
        lines += ["", "```text", *command_examples(path.removeprefix("seqpipe").strip()), "```"]
    lines += [
        "",
        "## Exit codes",
        "",
        *_table(("code", "meaning", "exception"), [("0", "ok", ""), *_exit_codes()]),
        "",
        "With 130 and 143 a checkpoint was saved, and the same command resumes. A second Ctrl-C ends at once.",
        "",
        "## Environment variables",
        "",
        *_table(
            ("variable", "meaning"),
            [
                ("`SEQPIPE_PLUGINS=off`", "Load built-in components only."),
                ("`SEQPIPE_REPORT=off`", "Write no report at the end of `run`, for example in a search of parameters."),
                ("`SEQPIPE_CACHE`", "Folder for copies of remote data files; by default in the user's cache folder."),
                (
                    "`SEQPIPE_LOCK=off`",
                    "Disable locks on run folders, for file systems without locks; see "
                    "[One writer](../tasks/long-runs.md#one-writer).",
                ),
                (
                    "`SEQPIPE_FEATURES`",
                    "`auto`: training, dev and test files of 16 MB or more are mapped, not read into memory; `mapped`: "
                    "all are; `memory`: none is. See "
                    "[Data larger than memory](../tasks/long-runs.md#data-larger-than-memory).",
                ),
                (
                    "`OMP_NUM_THREADS`",
                    "Maximum number of PyTorch threads on a CPU; `train.threads` sets the number in the YAML.",
                ),
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name, child in children.items():
        yield from _commands(child, f"{path} {name}")


def _row(parameter: Any) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or (parameter.name or "").upper()
        return f"`{name}`", getattr(parameter, "help", "") or ""
    names = ", ".join(f"`{name}`" for name in sorted(parameter.opts, key=len))
    return names, " ".join((parameter.help or "").split())


def _exit_codes() -> Iterator[tuple[str, str, str]]:
    exceptions: dict[int, list[str]] = {}
    line = re.compile(r"[├└│ ─]*(\w+)\s+(\d+)\s+(.*)")
    meanings: dict[int, str] = {}
    for match in filter(None, map(line.fullmatch, (errors.__doc__ or "").splitlines())):
        code = int(match[2])
        exceptions.setdefault(code, []).append(f"`{match[1]}`")
        meanings[code] = f"{meanings[code]}; {match[3]}" if code in meanings else match[3]
    for code in sorted(exceptions):
        yield ("130, 143" if code == 130 else str(code)), meanings[code], ", ".join(exceptions[code])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[*head], ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def contract_page() -> str:
    """Every member that seqpipe reads of a component."""
    lines = [
        "# Component contract",
        "",
        "Every member that seqpipe reads of a component's class or of its instances. A class needs no base class; a",
        "member that it leaves out has the default. *By options*: the attribute may instead be a static method of the",
        "options. `seqpipe plugins check` and `seqpipe check` report a misspelt member. [Readers and",
        "tokenizers](../plugins/reader.md), [Encoders and embeddings](../plugins/encoder.md) and",
        "[Heads](../plugins/head.md) show how the members work together.",
    ]
    groups = {member.places for member in MEMBERS.values()}
    for places in sorted(groups, key=lambda places: (min(map(KINDS.index, places)), -len(places))):
        rows = [
            (f"`{name}`", _type(member), _member_default(member), member.meaning)
            for name, member in MEMBERS.items()
            if member.places == places
        ]
        head = ("member", "type", "default", "meaning")
        heading = " and ".join(places).replace(" and ", ", ", len(places) - 2).capitalize()
        lines += ["", f"## {heading}", "", *_table(head, rows)]
    lines += [
        "",
        "## Feature kinds",
        "",
        "What a stage may declare in `features`; the classes are in `seqpipe.plugin`. [Inputs of a",
        "bundle](../internals/bundle-inputs.md#inputs) says how a runtime makes each.",
        "",
        *_table(("class", "shape", "dtype", "made of", "meaning"), _feature_kinds()),
        *_names(),
    ]
    return "\n".join(lines) + "\n"


def _feature_kinds() -> Iterator[tuple[str, ...]]:
    for cls in feature_kinds().values():
        source = "rows of numbers" if cls.reads_numbers else "a pair of texts" if cls.of_pairs else "a text"
        yield f"`{cls.__name__}`", cls.shape, cls.dtype, source, _first(cls)


def _type(member: Member) -> str:
    """The signature of a method; the type of another member, and where it stands."""
    form = member.form + (", by options" if member.by_options else "")
    return member.type if form == "method" else f"{member.type} ({form})"


def _member_default(member: Member) -> str:
    if member.default is REQUIRED:
        return "required"
    return "" if member.default is ABSENT or callable(member.default) else f"`{member.default!r}`"


# Names of seqpipe.plugin and seqpipe.nn

SUBJECTS = {  # of modules, by how they begin
    "seqpipe.config": "Hooks, versions and options",
    "seqpipe.version": "Hooks, versions and options",
    "seqpipe.types": "Hooks, versions and options",
    "seqpipe.errors": "Errors",
    "seqpipe.features": "Features, vocabularies and tokenizers",
    "seqpipe.answers": "Answers and metrics",
    "seqpipe.files": "Files",
    "seqpipe.runtime": "Bundles",
    "seqpipe.testing": "Tests of components",
}


def _names() -> Iterator[str]:
    """Every name that `seqpipe.plugin` and `seqpipe.nn` offer, by subject."""
    rows: dict[str, list[tuple[str, str]]] = {subject: [] for subject in SUBJECTS.values()}
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(plugin))) if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}
    for name in sorted({*plugin.__all__} - {cls.__name__ for cls in feature_kinds().values()}, key=str.lower):
        subject = next(text for prefix, text in SUBJECTS.items() if modules[name].startswith(prefix))
        rows[subject].append((f"`{name}`", _meaning(name, getattr(plugin, name), modules[name])))
    yield from (
        "",
        "## Names for plugins",
        "",
        "What `from seqpipe.plugin import …` offers beside the feature kinds, with the beginning of its documentation;",
        "`help(seqpipe.plugin.NAME)` prints the rest. Only the test kit needs PyTorch.",
    )
    for subject, names in rows.items():
        yield from ("", f"### {subject}", "", *_list(names))
    yield from (
        "",
        "## Building blocks",
        "",
        "What stages are built of: `from seqpipe.nn.loops import scan`. All need PyTorch, and export to ONNX.",
    )
    for subject in nn.__all__:
        module = import_module(f"seqpipe.nn.{subject}")
        names = [
            (f"`{name}`", _meaning(name, getattr(module, name), module.__name__))
            for name in sorted(module.__all__, key=str.lower)
        ]
        heading = f"### seqpipe.nn.{subject}"
        yield from ("", heading, "", _paragraph(module), "", *_list(names))


def _list(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    """One line for each name, with its meaning up to a semicolon that ends a clause."""
    for name, meaning in names:
        start, _, _ = meaning.partition("; ")
        is_clause = start.count("`") % 2 == 0 and start.count("(") == start.count(")") and not start.endswith("`")
        yield f"- {name}: {(start if is_clause else meaning).removeprefix('Return ').removesuffix('.')}"


def _paragraph(value: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _meaning(name: str, value: Any, module: str) -> str:
    """The first sentence of an object's docstring; of a value, what it is and the comment behind its definition."""
    if inspect.isclass(value) and issubclass(value, errors.SeqpipeError):
        line = re.search(rf"\b{name} +\d+ +(.*)", errors.__doc__ or "")
        return line[1] if line else _first(value)
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
        return re.split(r"(?<!al)(?<=\.) (?=[A-Z`])", _paragraph(value))[0]
    source = inspect.getsource(import_module(module))
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign | ast.AnnAssign)]
    separators = [": " if isinstance(node, ast.AnnAssign) else " = " for node in statements]
    targets = [ast.unparse(node).partition(sep)[0] for node, sep in zip(statements, separators, strict=True)]
    is_of = [node for node, target in zip(statements, targets, strict=True) if name in target.split(", ")]
    comment = source.splitlines()[(is_of[-1].end_lineno or 1) - 1].partition("  # ")[2]
    if isinstance(value, int | float | str):
        return f"`{value!r}`; {comment}".removesuffix("; ")
    return comment or f"`{ast.unparse(is_of[-1].value or is_of[-1])}`"


# Tables between the markers of a page


def with_table(page: str, subject: str, lines: Sequence[str]) -> str:
    """The text of a page, with other lines between the markers of a subject."""
    begin, end = f"<!-- {subject}, written by docs/generate.py -->\n", f"<!-- end of {subject} -->\n"
    before, _, rest = (ROOT / page).read_text(encoding="utf-8").partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"{page}: the markers of the table of {subject} are missing")
    table = "\n".join(lines)
    return f"{before}{begin}\n{table}\n\n{end}{after}"


_FIGURES = re.compile(
    r"^(<!-- figures: (([\w-]+)/([\w-]+))(, [^\n]+)? -->\n).*?^(?=<!-- end of figures -->$)", re.M | re.S
)


def with_figures(page: str, text: str) -> str:
    """The text of a page, with the table of a question of benchmarks/results between each pair of markers.

    `<!-- figures: FILE/QUESTION -->`, or with `, rows: NAME; NAME` and `, columns: NAME; NAME` a part of it, to
    `<!-- end of figures -->`.
    """

    def with_rows(marker: re.Match[str]) -> str:
        key, file, name = marker[2], report.RESULTS / f"{marker[3]}.json", marker[4]
        place = file.relative_to(ROOT).as_posix()
        if not file.exists():
            raise ValueError(f"{page}: figures {key}: {place} is missing")
        questions = json.loads(file.read_text(encoding="utf-8"))["questions"]
        if name not in questions:
            raise ValueError(f"{page}: figures {key}: {place} has no question {name!r}; it has {', '.join(questions)}")
        rows = {row["row"]: row for row in questions[name]["rows"]}
        names = {
            "rows": [*rows],
            "columns": list(dict.fromkeys(key for row in rows.values() for key in row["figures"])),
        }
        chosen = dict(re.findall(r", (rows|columns): (.*?)(?=, (?:rows|columns): |$)", marker[5] or ""))
        for part, choice in chosen.items():
            if unknown := {*choice.split("; ")} - {*names[part]}:
                reason = f"question {name!r} has no {part} {'; '.join(sorted(unknown))}"
                raise ValueError(f"{page}: figures {key}: {reason}; it has {'; '.join(names[part])}")
            names[part] = choice.split("; ")
        columns = names["columns"] if "columns" in chosen else None
        lines = report.table(questions[name], [rows[row] for row in names["rows"]], columns)
        return "\n".join([marker[1], *lines, "\n"])

    if text.count("<!-- figures: ") != len(_FIGURES.findall(text)):
        raise ValueError(f"{page}: a marker of figures is not closed; add <!-- end of figures --> after it")
    return _FIGURES.sub(with_rows, text)


def with_pipelines(page: str, text: str) -> str:
    """The text of a page, with the number of example pipelines in the one sentence that states it."""
    number = len([*ROOT.glob("pipelines/*.yaml")])
    text, sentences = re.subn(r"\b\d+(?= (?:\[example )?pipelines\b)", str(number), text)
    if sentences != 1:
        raise ValueError(f"{page}: states the number of pipelines {sentences} times; state it once, as '38 pipelines'")
    return text


def needed_packages(extra: str) -> set[str]:
    """The packages that seqpipe with an extra needs on the oldest Python, and those that they need in turn.

    What constraints.txt does not pin, such as the libraries of CUDA that some builds of PyTorch need, is left out.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", constraints, re.M)}
    python = project["requires-python"].removeprefix(">=")
    needed: set[tuple[str, frozenset[str]]] = set()
    waiting = [*map(Requirement, project["dependencies"]), Requirement(f"{BUILTIN}[{extra}]")]
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name == BUILTIN:
            waiting += [Requirement(text) for extra in extras for text in project["optional-dependencies"][extra]]
        elif name in pinned and (name, extras) not in needed:
            needed.add((name, extras))
            for further in map(Requirement, metadata.requires(name) or ()):
                environments = [{"python_version": python, "extra": extra} for extra in (extras or {""})]
                if further.marker is None or any(map(further.marker.evaluate, environments)):
                    waiting.append(further)
    return {name for name, _ in needed}


def with_licences(page: str) -> str:
    """The text of a page, with the licences that pip-licenses reads from the metadata of the needed packages."""
    packages = {extra: needed_packages(extra) for extra in ("cpu", "serve", "train")}
    command = [sys.executable, "-m", "piplicenses", "--from=mixed", "--format=json", "--with-system", "--packages"]
    command += sorted(set().union(*packages.values()))
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    licences = {canonicalize_name(row["Name"]): row["License"] for row in json.loads(done.stdout)}
    rows = [
        (name, licence, ", ".join(f"`{extra}`" for extra, names in packages.items() if name in names))
        for name, licence in sorted(licences.items())
    ]
    return with_table(page, "licences", _table(("package", "licence", "needed by"), rows))


# The keys for tab completion


def keys_file() -> str:
    """Every dotted key of a YAML with one input, and the first sentence of its meaning, as JSON."""
    pipeline = json_schema()
    keys: dict[str, str] = {}

    def collect(prefix: str, node: Mapping[str, Any]) -> None:
        if "$ref" in node:
            node = pipeline["$defs"][unquote(node["$ref"].removeprefix("#/$defs/"))]
        for branch in node.get("anyOf", ()):
            collect(prefix, branch)
        for name, inner in node.get("properties", {}).items():
            key = f"{prefix}.{name}" if prefix else name
            keys.setdefault(key, re.split(r"[;.](?:\s|$)", inner.get("description", ""))[0])
            if name not in ("inputs", "target_tokenizer"):
                collect(key, inner)

    collect("", pipeline)
    return json.dumps(dict(sorted(keys.items())), ensure_ascii=False, indent=0) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/yaml.md": yaml_page,
    "docs/reference/commands.md": commands_page,
    "docs/reference/contract.md": contract_page,
    **{
        _component_page(kind, offer.name): partial(component_page, kind, offer.name)
        for kind in KINDS
        for offer in _built_in(kind)
    },
    "mkdocs.yml": navigation,
    "requirements/README.md": partial(with_licences, "requirements/README.md"),
    "seqpipe/commands/keys.json": keys_file,
    **{
        page: partial(lambda page, fill: fill(page, (ROOT / page).read_text(encoding="utf-8")), page, fill)
        for fill, pages in ((with_figures, WITH_FIGURES), (with_pipelines, WITH_PIPELINES))
        for page in pages
    },
}


if __name__ == "__main__":
    os.environ["SEQPIPE_PLUGINS"] = "off"
    for page, render in PAGES.items():
        (ROOT / page).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / page).write_text(render(), encoding="utf-8")
