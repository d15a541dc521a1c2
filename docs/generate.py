"""The signatures of settings, components and commands in, the generated pages of the reference out.

`python docs/generate.py` writes docs/reference/yaml.md and commands.md; a test keeps them equal to what it would write.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from seqpipe import errors
from seqpipe.commands.app import app
from seqpipe.config.common_keys import COMMON_KEYS, CommonKeys
from seqpipe.config.contract import decode_options
from seqpipe.config.members import ABSENT, MEMBERS, REQUIRED, Member
from seqpipe.config.option_models import option_rows
from seqpipe.config.plugins import BUILTIN, KINDS, Plugins
from seqpipe.config.schema import OF_A_SOURCE, TOP, AdamW, Constant, DataKeys, Export, PluginKeys, Train
from seqpipe.config.type_words import words
from seqpipe.config.yaml_text import plain, shown

REFERENCE = Path(__file__).parent / "reference"
PLACES = {
    "reader": "`data.reader`",
    "tokenizer": "`tokenizer` and `target_tokenizer`",
    "embedding": "`embedding`; the vectors of a list are concatenated",
    "encoder": "`encoder`; a list is applied in order",
    "head": "`head`",
}
OTHER_KEYS = {
    "use": "Which component: a name, or `distribution/name`.",
    "target_tokenizer": "How the text to write becomes tokens: `same`, or `{use: NAME}`; of heads that write text.",
}
COMPONENT_KEYS = {"data", "tokenizer", "embedding", "encoder", "head"}


def yaml_page() -> str:
    """Every key that a pipeline's YAML may have."""
    lines = [
        "# YAML reference",
        "",
        "Every key of a pipeline, made from the signatures that check it. Paths count from the YAML's folder; a name",
        "alone is short for `{use: NAME}`. `seqpipe schema` prints the same for editors, with the components of every",
        "installed plugin.",
        "",
        "## Top",
        "",
        *_table(("key", "meaning"), [(f"[`{key}`](#{_anchor(key)})", text) for key, text in TOP.items()]),
        "",
        "## data",
        "",
        *_table(_HEAD, [("`reader`", "a component", "required", "What makes records of a file."), *_keys(DataKeys)]),
        "",
        "## inputs",
        "",
        "In place of `tokenizer`, `embedding` and `encoder`: a mapping from the names of sources to keys of their own.",
        "",
        *_table(("key", "meaning"), [(f"`{key}`", text) for key, text in OF_A_SOURCE.items()]),
        "",
        "## Keys beside any use",
        "",
        "The common keys mean the same for every component, and no component has an option of these names.",
        "",
        *_table(("key", "type", "default", "beside the `use` of", "meaning"), _frame()),
        "",
        "## train",
        "",
        *_table(_HEAD, _keys(Train)),
    ]
    for key, usual in (("optimizer", AdamW), ("schedule", Constant)):
        field = Train.model_fields[key]
        lines += ["", f"### train.{key}", "", f"`use` chooses; `{usual().use}` without it."]
        for choice in _members(field.annotation):
            name = choice.model_fields["use"].default
            lines += ["", f"**`{name}`**: {_first(choice)}", ""]
            lines += _table(_HEAD, [row for row in _keys(choice) if row[0] != "`use`"])
    lines += ["", "## export", "", *_table(_HEAD, _keys(Export))]
    lines += ["", "## plugins", "", *_table(_HEAD, _keys(PluginKeys))]
    lines += [
        "",
        "# Components",
        "",
        "Those that come with seqpipe. `seqpipe plugins list` names all that are installed.",
    ]
    for kind in KINDS:
        lines += ["", f"## {kind.capitalize()}s", "", f"Place: {PLACES[kind]}.", *_components(kind)]
    return "\n".join(lines) + "\n"


_HEAD = ("key", "type", "default", "meaning")


def _components(kind: str) -> Iterator[str]:
    for offer in Plugins().offers:
        if offer.kind != kind or offer.distribution != BUILTIN:
            continue
        cls = offer.load()
        yield from ("", f"### {kind}: {offer.name}", "", *_prose(cls))
        rows = [(f"`{row.option}`", row.type, _default(row.default), row.help) for row in option_rows(cls)]
        yield from _table(("option", *_HEAD[1:]), rows) if rows else ["No options."]
        if options := decode_options(cls):
            yield from ("", "Decode options, chosen at each call:", "")
            yield from _table(
                ("option", "type", "default"),
                [(f"`{name}`", words(one.annotation), f"`{shown(one.default)}`") for name, one in options.items()],
            )


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
            told, default = f"[see below](#train{name})", getattr(default, "use", "")
        else:
            told, default = words(kind, info.metadata), "required" if info.is_required() else shown(plain(default))
        rows.append((f"`{name}`", told, _default(default), info.description or ""))
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


# Commands


def commands_page() -> str:
    """Every command with its arguments and options, and what exit codes mean."""
    lines = [
        "# Commands and exit codes",
        "",
        "Made from the commands themselves. Progress and notes go to standard error, answers and JSON to standard",
        "output.",
        "`seqpipe --debug …` shows tracebacks, `seqpipe --version` the version.",
        "",
        "Overrides stand after the file (`train.epochs=3`) or behind `--set`. Any key of the YAML can be overridden,",
        "entries of lists by number: `embedding.0.dim=64`.",
    ]
    for path, command in _commands(typer.main.get_command(app), "seqpipe"):
        arguments = [_row(p) for p in command.params if p.param_type_name == "argument"]
        options = [_row(p) for p in command.params if p.param_type_name == "option" and p.name != "help"]
        usage = " ".join([path, *(a[0] for a in arguments), *(["[options]"] if options else [])])
        lines += ["", f"## {path}", "", f"`{usage.replace('`', '')}`", "", " ".join((command.help or "").split())]
        if arguments or options:
            lines += ["", *_table(("argument or option", "meaning"), [*arguments, *options])]
    lines += [
        "",
        "## Exit codes",
        "",
        *_table(("code", "meaning", "exception"), [("0", "ok", ""), *_exit_codes()]),
        "",
        "A second Ctrl-C ends at once. 130 and 143 come after the state was saved: the same command resumes.",
        "",
        "## Environment variables",
        "",
        *_table(
            ("variable", "meaning"),
            [
                ("`SEQPIPE_PLUGINS=off`", "Built-ins only; no plugin is asked."),
                (
                    "`SEQPIPE_CACHE`",
                    "The folder for traced graphs, at most 256 MB; the user's cache folder by default. `check`, `run` "
                    "and `export` use it unless `--no-cache` is given; predicting never does.",
                ),
                (
                    "`SEQPIPE_LOCK=off`",
                    "No lock on run folders, for file systems that have none; see "
                    "[One writer](../tasks/long-runs.md#one-writer).",
                ),
                (
                    "`OMP_NUM_THREADS`",
                    "Threads of PyTorch on a CPU, as everywhere; `train.threads` says it in the YAML.",
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
    found: dict[int, list[str]] = {}
    line = re.compile(r"[├└│ ─]*(\w+)\s+(\d+)\s+(.*)")
    meanings: dict[int, str] = {}
    for match in filter(None, map(line.fullmatch, (errors.__doc__ or "").splitlines())):
        code = int(match[2])
        found.setdefault(code, []).append(f"`{match[1]}`")
        meanings[code] = f"{meanings[code]}; {match[3]}" if code in meanings else match[3]
    for code in sorted(found):
        yield ("130, 143" if code == 130 else str(code)), meanings[code], ", ".join(found[code])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[*head], ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def contract_page() -> str:
    """Every member that seqpipe looks for on a component."""
    lines = [
        "# Component contract",
        "",
        "Every member that seqpipe reads of a component's class, or of the module that is built from it. A class needs",
        "no base class; what it leaves out has the default. *By options*: a static method of the options may stand in",
        "the place of the attribute. A member that is nearly one of these is refused by `seqpipe check` and `seqpipe",
        "plugins check`, naming the right one. How they work together is described in",
        "[Reader](../plugins/reader.md), [Tokenizer](../plugins/tokenizer.md), [Embedding](../plugins/embedding.md),",
        "[Encoder](../plugins/encoder.md) and [Head](../plugins/head.md).",
    ]
    for kind in KINDS:
        rows = [
            (
                f"`{name}`",
                one.form + (", by options" if one.by_options else ""),
                one.type,
                _member_default(one),
                one.meaning,
            )
            for name, one in MEMBERS.items()
            if kind in one.places
        ]
        lines += [
            "",
            f"## {kind.capitalize()}",
            "",
            *_table(("member", "what it is", "type", "default", "meaning"), rows),
        ]
    return "\n".join(lines) + "\n"


def _member_default(one: Member) -> str:
    if one.default is REQUIRED:
        return "required"
    return "" if one.default is ABSENT or callable(one.default) else f"`{one.default!r}`"


PAGES = {"yaml.md": yaml_page, "commands.md": commands_page, "contract.md": contract_page}


if __name__ == "__main__":
    os.environ["SEQPIPE_PLUGINS"] = "off"
    REFERENCE.mkdir(exist_ok=True)
    for file, made in PAGES.items():
        (REFERENCE / file).write_text(made(), encoding="utf-8")
