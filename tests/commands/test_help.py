"""The help of every command has examples that can be typed, fits the terminal, and cuts nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from factory import process, seqpipe

from seqpipe.commands.app import app
from seqpipe.commands.help import examples

ROOT: Any = typer.main.get_command(app)


def paths(command: Any = ROOT, path: str = "") -> Iterator[str]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, f"{path} {name}".strip())


PATHS = [*paths()]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path or "seqpipe")
def test_a_help_has_examples_and_plain_words_within_80_columns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = seqpipe(*path.split(), "--help")
    assert done.code == 0, done.err
    assert f"\nExamples:\n  seqpipe {path}".rstrip() in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    cut = [line for line in done.out.splitlines() if line.endswith("...") and "[KEY=VALUE]..." not in line]
    assert [line for line in cut if not line.startswith(("Usage", "  ["))] == []
    assert re.findall(r"<\w+( \w+)?>|\[\[|\{\w+\}|x>=", done.out) == []
    assert all(len(line) < 80 or " " in line for line in done.out.splitlines())


def test_every_word_of_a_long_text_stays_whole() -> None:
    assert "answer-span" in seqpipe("init", "--help").out
    assert "where a bundle's nodes run." in " ".join(seqpipe("--help").out.split())


COMPLETIONS = [
    ("seqpipe pre", {"predict"}),
    ("seqpipe run x.yaml train.patie", {"train.patience="}),
    ("seqpipe check x.yaml encoder=lst", {"encoder=lstm"}),
    ("seqpipe train x.yaml encoder.0.use=lst", {"encoder.0.use=lstm"}),
    ("seqpipe run x.yaml nothing=lst", set()),
    ("seqpipe plugins sho", {"show"}),
]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("line", "offered"), COMPLETIONS)
def test_a_shell_completes_commands_keys_and_components(shell: str, line: str, offered: set[str]) -> None:
    variables = {"_SEQPIPE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    variables |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "COMP_WORDS": line}
    done = process(folder=Path.cwd(), **variables, COMP_CWORD=str(len(line.split()) - 1))
    assert done.code == 0, done.err
    found = re.findall(r"[\w.=-]+", done.out)
    assert {word for word in found if word.startswith(line.split()[-1])} == offered


def test_bash_parts_an_override_at_its_equals_sign() -> None:
    variables = {"_SEQPIPE_COMPLETE": "complete_bash", "COMP_WORDS": "seqpipe run x.yaml encoder = lst"}
    assert process(folder=Path.cwd(), **variables, COMP_CWORD="5").out == "lstm\n"


def test_the_commands_stand_in_groups() -> None:
    out = seqpipe("--help").out
    places = [out.index(f"\n{group}:\n") for group in ("Everyday", "Data", "Deploy", "Extend", "Research", "Options")]
    assert places == sorted(places)
    assert places[0] < out.index("  run ") < places[1]
    assert places[2] < out.index("  deploy ") < places[3] < out.index("  plugins ") < places[4]


EXAMPLES = [example for path in PATHS for example in examples(path)]


@pytest.mark.parametrize("example", sorted({*EXAMPLES}))
def test_an_example_is_a_command_line_that_is_understood(example: str) -> None:
    command, arguments = ROOT, shlex.split(example)[1:]
    while arguments and arguments[0] in getattr(command, "commands", {}):
        command = command.commands[arguments.pop(0)]
    with command.make_context("seqpipe", arguments, resilient_parsing=False) as context:
        assert context.params is not None
